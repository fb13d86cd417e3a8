"""The checker, on histories small enough to be judged by eye."""

import pytest

from sim.check import Stored, check
from sim.history import Attempt, End, History, Outcome, Seen, Sent
from sim.loop import VirtualLoop


def history(*events: Sent | Seen | End) -> History:
    loop = VirtualLoop()
    loop.close()
    made = History(loop)
    for event in events:
        match event:
            case Sent():
                made.sent.append(event)
            case Seen():
                made.seen.append(event)
            case End():
                made.ends.append(event)
    return made


def sent(value: bytes, *outcomes: Outcome, offset: int = 0, number: int = 0, at_s: float = 1.0, idempotent: bool = True) -> Sent:
    attempts = [Attempt("b", at_s, outcome, at_s + 0.5, offset if outcome is Outcome.OK else -1) for outcome in outcomes]
    return Sent("p", idempotent, 0, number, 1, value, attempts)


def seen(value: bytes, offset: int, at_s: float = 5.0) -> Seen:
    return Seen("r", "b", 0, offset, 1, value, at_s)


OK, FAIL, UNKNOWN = Outcome.OK, Outcome.FAIL, Outcome.UNKNOWN
A, B = Stored(0, 1, b"a"), Stored(1, 1, b"b")


@pytest.mark.parametrize(
    ("expected", "events", "log"),
    [
        ("gap or reuse", [sent(b"a", OK), sent(b"b", OK, offset=2, number=1, at_s=2)], [A, Stored(2, 1, b"b")]),
        ("lost ack", [sent(b"a", OK)], []),
        ("lost ack", [sent(b"a", OK, offset=1), sent(b"b", UNKNOWN, number=1)], [A, B]),
        ("dirty read", [sent(b"a", FAIL)], [A]),
        ("dirty read", [seen(b"a", 0)], []),
        ("duplicate", [sent(b"a", UNKNOWN, OK)], [A, Stored(1, 1, b"a")]),
        ("duplicate", [sent(b"a", FAIL, OK, idempotent=False)], [A, Stored(1, 1, b"a")]),
        ("never sent", [], [A]),
        ("order", [sent(b"a", UNKNOWN, number=1), sent(b"b", UNKNOWN)], [A, B]),
        ("order", [sent(b"a", UNKNOWN, number=1)], [A]),
        ("two values at one offset", [sent(b"a", OK), seen(b"b", 0)], [A]),
        (
            "out of real time",
            [sent(b"a", OK, at_s=3, idempotent=False), sent(b"b", OK, offset=1, number=1, at_s=1, idempotent=False)],
            [A, B],
        ),
        ("stale end", [sent(b"a", OK), End("e", "b", 0, 2.0, 2.1, 0)], [A]),
        ("stale end", [sent(b"a", UNKNOWN), seen(b"a", 0, 1.5), End("e", "b", 0, 2.0, 2.1, 0)], [A]),
        ("stale end", [sent(b"a", UNKNOWN), End("e", "b", 0, 1.0, 1.1, 1), End("e", "c", 0, 2.0, 2.1, 0)], [A]),
    ],
)
def test_what_is_wrong_is_called_by_its_name(expected: str, events: list[Sent | Seen | End], log: list[Stored]) -> None:
    found = check(history(*events), {0: log})

    assert expected in {text.partition(":")[0] for text in found}, found


@pytest.mark.parametrize(
    ("events", "log"),
    [
        ([], []),
        ([sent(b"a", OK), sent(b"b", OK, offset=1, number=1, at_s=2), seen(b"a", 0), seen(b"b", 1)], [A, B]),
        ([sent(b"a", UNKNOWN)], []),
        ([sent(b"a", UNKNOWN)], [A]),
        ([sent(b"a", UNKNOWN, OK, offset=1, idempotent=False)], [A, Stored(1, 1, b"a")]),
        ([sent(b"a", FAIL, OK)], [A]),
        ([sent(b"a", OK), End("e", "b", 0, 1.2, 2.1, 0)], [A]),
    ],
)
def test_what_may_happen_is_no_violation(events: list[Sent | Seen | End], log: list[Stored]) -> None:
    assert check(history(*events), {0: log}) == []
