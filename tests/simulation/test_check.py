"""The checker, on histories small enough to be judged by eye."""

import random

import pytest

from sim.check import Log, RememberedProducers, Stored, check, forgotten
from sim.history import PLAIN, Attempt, BatchIdentity, End, History, LogStart, OperationOutcome, SeenBatch, Sent
from sim.loop import VirtualLoop
from sim.themes import theme_of


def history(*events: Sent | SeenBatch | End | LogStart) -> History:
    loop = VirtualLoop()
    loop.close()
    made = History(loop)
    for event in events:
        match event:
            case Sent():
                made.sent.append(event)
            case SeenBatch():
                made.seen.append(event)
            case End():
                made.ends.append(event)
            case LogStart():
                made.starts.append(event)
    return made


def sent(
    value: bytes,
    *outcomes: OperationOutcome,
    offset: int = 0,
    number: int = 0,
    at_s: float = 1.0,
    idempotent: bool = True,
    epochs: tuple[int, ...] = (),
    settled_s: float = float("inf"),
) -> Sent:
    """A batch that was sent once for each outcome, under these epochs (0 unless given), all arriving at `at_s`."""
    attempts = [
        Attempt(
            "b",
            at_s,
            BatchIdentity(7, epochs[place] if epochs else 0, number) if idempotent else PLAIN,
            1,
            outcome,
            arrived_s=at_s,
            settled_s=settled_s,
            was_taken=outcome is OperationOutcome.OK,
            ended_s=at_s + 0.5,
            offset=offset if outcome is OperationOutcome.OK else -1,
        )
        for place, outcome in enumerate(outcomes)
    ]
    return Sent("p", idempotent, "t/0", number, 1, value, attempts)


def seen(value: bytes, offset: int, at_s: float = 5.0, *, asked_s: float = 0.0, may_be_old: bool = False) -> SeenBatch:
    return SeenBatch("r", "b", "t/0", "id", offset, 1, value, at_s, asked_s, may_be_old)


def end(asker: str, broker: str, invoked_s: float, ended_s: float, offset: int, *, may_be_old: bool = False) -> End:
    return End(asker, broker, "t/0", invoked_s, ended_s, offset, may_be_old)


def start(ended_s: float, offset: int, *, may_be_old: bool = False) -> LogStart:
    return LogStart("e", "b", "t/0", ended_s - 0.1, ended_s, offset, may_be_old)


def stored(offset: int, value: bytes, *, seq: int, epoch: int = 0) -> Stored:
    return Stored(offset, 1, value, BatchIdentity(7, epoch, seq))


OK, FAIL, UNKNOWN = OperationOutcome.OK, OperationOutcome.FAIL, OperationOutcome.UNKNOWN
A, B = stored(0, b"a", seq=0), stored(1, b"b", seq=1)
PLAIN_A, PLAIN_B = Stored(0, 1, b"a"), Stored(1, 1, b"b")


@pytest.mark.parametrize(
    ("expected", "events", "log"),
    [
        ("gap or reuse", [sent(b"a", OK), sent(b"b", OK, offset=2, number=1, at_s=2)], [A, stored(2, b"b", seq=1)]),
        ("lost ack", [sent(b"a", OK)], []),
        ("lost ack", [sent(b"a", OK, offset=1), sent(b"b", UNKNOWN, number=1)], [A, B]),
        ("dirty read", [sent(b"a", FAIL)], [A]),
        ("dirty read", [seen(b"a", 0)], []),
        ("duplicate", [sent(b"a", UNKNOWN, OK)], [A, stored(1, b"a", seq=0)]),
        ("duplicate", [sent(b"a", FAIL, OK, idempotent=False)], [PLAIN_A, Stored(1, 1, b"a")]),
        ("never sent", [], [A]),
        ("never sent", [sent(b"a", UNKNOWN)], [stored(0, b"a", seq=0, epoch=3)]),
        ("order", [sent(b"a", UNKNOWN, number=1), sent(b"b", UNKNOWN)], [stored(0, b"a", seq=1), stored(1, b"b", seq=0)]),
        ("order", [sent(b"a", UNKNOWN, number=1)], [stored(0, b"a", seq=1)]),
        (
            "order",
            [sent(b"a", UNKNOWN), sent(b"b", UNKNOWN, number=1, epochs=(1,))],
            [stored(0, b"b", seq=0, epoch=1), stored(1, b"a", seq=0)],
        ),
        ("two values at one offset", [sent(b"a", OK), seen(b"b", 0)], [A]),
        (
            "out of real time",
            [sent(b"a", OK, at_s=3, idempotent=False), sent(b"b", OK, offset=1, number=1, at_s=1, idempotent=False)],
            [PLAIN_A, PLAIN_B],
        ),
        ("stale end", [sent(b"a", OK), end("e", "b", 2.0, 2.1, 0)], [A]),
        ("stale end", [sent(b"a", UNKNOWN), seen(b"a", 0, 1.5), end("e", "b", 2.0, 2.1, 0)], [A]),
        ("stale end", [sent(b"a", UNKNOWN), end("e", "b", 1.0, 1.1, 1), end("e", "c", 2.0, 2.1, 0)], [A]),
        ("stale start", [sent(b"a", OK), start(2.0, 1), start(3.0, 0)], [A]),
        ("deleted record", [sent(b"a", OK), start(2.0, 1), seen(b"a", 0, 3.2, asked_s=3.1)], [A]),
        (
            "overtaken",
            [sent(b"a", FAIL, settled_s=1.4, idempotent=False), sent(b"b", OK, number=1, at_s=1.2, idempotent=False)],
            [Stored(0, 1, b"b")],
        ),
    ],
)
def test_what_is_wrong_is_called_by_its_name(expected: str, events: list[Sent | SeenBatch | End | LogStart], log: list[Stored]) -> None:
    found = check(history(*events), [Log("t/0", "id", log)])

    assert expected in {text.partition(":")[0] for text in found}, found


@pytest.mark.parametrize(
    ("events", "log"),
    [
        ([], []),
        ([sent(b"a", OK), sent(b"b", OK, offset=1, number=1, at_s=2), seen(b"a", 0), seen(b"b", 1)], [A, B]),
        ([sent(b"a", UNKNOWN)], []),
        ([sent(b"a", UNKNOWN)], [A]),
        ([sent(b"a", UNKNOWN, OK, offset=1, idempotent=False)], [PLAIN_A, Stored(1, 1, b"a")]),
        ([sent(b"a", UNKNOWN, OK, offset=1, epochs=(0, 1))], [A, stored(1, b"a", seq=0, epoch=1)]),
        ([sent(b"a", FAIL, OK)], [A]),
        ([sent(b"a", OK), end("e", "b", 1.2, 2.1, 0)], [A]),
        ([sent(b"a", OK), end("e", "b", 2.0, 2.1, 0, may_be_old=True)], [A]),
        ([sent(b"a", OK), start(2.0, 1), start(2.05, 0), start(3.0, 0, may_be_old=True)], [A]),
        ([sent(b"a", OK), start(2.0, 1), seen(b"a", 0, 3.2, asked_s=2.9), seen(b"a", 0, 3.2, asked_s=3.1, may_be_old=True)], [A]),
        ([sent(b"a", OK), sent(b"b", OK, offset=1, number=1, at_s=2), start(3.0, 1), seen(b"b", 1, 9.0, asked_s=8.0)], [A, B]),
        (
            [sent(b"a", FAIL, settled_s=1.4, idempotent=False), sent(b"b", OK, number=1, at_s=1.5, idempotent=False)],
            [Stored(0, 1, b"b")],
        ),
    ],
)
def test_what_may_happen_is_no_violation(events: list[Sent | SeenBatch | End | LogStart], log: list[Stored]) -> None:
    assert check(history(*events), [Log("t/0", "id", log)]) == []


def test_a_producer_may_go_on_with_its_sequences_where_a_topic_was_created_again() -> None:
    happened = history(sent(b"a", OK), sent(b"b", OK, offset=0, number=1, at_s=2))

    assert check(happened, [Log("t/0", "old", [A]), Log("t/0", "new", [stored(0, b"b", seq=1)])]) == []


def test_an_append_to_a_topic_whose_deletion_was_confirmed_before_is_found() -> None:
    happened = history(sent(b"a", OK), sent(b"b", OK, offset=1, number=1, at_s=3))
    happened.deleted_s["old"] = 2.0

    found = check(happened, [Log("t/0", "old", [A, B]), Log("t/0", "new", [])])

    assert [text.partition(":")[0] for text in found] == ["append to a deleted topic"]


def numbered(producer_id: int, first_seq: int, offset: int) -> Stored:
    return Stored(offset, 2, b"%d:%d" % (producer_id, first_seq), BatchIdentity(producer_id, 0, first_seq))


@pytest.mark.parametrize(
    ("told", "is_wrong"),
    [
        ({7: (0, 3), 8: (0, 1)}, False),
        ({7: (0, 5), 8: (0, 1)}, False),  # of what was appended while it was asked
        ({7: (0, 3), 8: (0, 1), 9: (0, 1)}, False),
        ({7: (0, 1), 8: (0, 1)}, True),
        ({7: (1, 3), 8: (0, 1)}, True),
        ({8: (0, 1)}, True),
    ],
)
def test_the_last_batch_of_a_producer_must_be_remembered(told: dict[int, tuple[int, int]], is_wrong: bool) -> None:
    log = Log("t/0", "id", [numbered(7, 0, 0), numbered(8, 0, 2), numbered(7, 2, 4), numbered(7, 4, 6), numbered(9, 0, 8)])

    found = list(forgotten([log], {"t/0": RememberedProducers(6, told)}, lambda _last: False))

    assert bool(found) is is_wrong
    assert list(forgotten([log], {}, lambda _last: False)) == []


def test_a_producer_may_be_forgotten_when_it_may_have_expired() -> None:
    log = Log("t/0", "id", [numbered(7, 0, 0), numbered(8, 0, 2)])

    def may_have_expired(last: Stored) -> bool:
        return last.identity.producer_id == 7

    assert list(forgotten([log], {"t/0": RememberedProducers(4, {8: (0, 1)})}, may_have_expired)) == []
    assert len(list(forgotten([log], {"t/0": RememberedProducers(4, {})}, may_have_expired))) == 1
    assert len(list(forgotten([log], {"t/0": RememberedProducers(4, {7: (0, 9), 8: (0, 1)})}, may_have_expired))) == 1


def test_a_producer_may_have_expired_by_the_clock_that_is_furthest_ahead() -> None:
    passing = theme_of(random.Random(1), "harsh", name="passing")
    sent_s, expires_s = 40.0, 40.0 + passing.expiration_ms / 1_000

    assert max(passing.skews_ms) == 40
    assert [passing.may_have_expired(sent_s, expires_s - early_s) for early_s in (0.0, 0.039, 0.041)] == [True, True, False]
