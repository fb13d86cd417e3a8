"""Evidence of a load → its verdict: what agrees, what is explained, and what is wrong, by partition and offset."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.commands.bench.load.reconcile import (
    NOT_OURS,
    SHOWN_MAX,
    AckedRange,
    DoubtfulRange,
    Evidence,
    PartitionEnds,
    ProcessCounts,
    RequestKey,
    SentRange,
    SessionBegan,
    SessionCommitted,
    SessionRead,
    StoredRun,
    length,
    merged,
    reconcile,
    without,
)

PUT = RequestKey("put", "wal", "2xx")
LOST_PUT = RequestKey("put", "wal", "none")
READ_ALL = (SessionBegan(1.0, "m", "t", 0), SessionRead(2.0, "m", StoredRun("t", 0, 0, 10, 0, 0)), SessionCommitted(3.0, "m", "t", 0, 10))


def evidence(**changed: Any) -> Evidence:
    """One producer's ten records in partition 0, read by a group: everything agrees."""
    found: dict[str, Any] = {
        "sent": [SentRange(0, "t", 0, 0, 10)],
        "acked": [AckedRange(0, "t", 0, 0, 10, 0)],
        "doubtful": [],
        "stored": [StoredRun("t", 0, 0, 10, 0, 0)],
        "bounds": [PartitionEnds("t", 0, 0, 10)],
        "idempotent": frozenset({0}),
        "groups": {"g": READ_ALL},
        "group_topics": {"g": frozenset({"t"})},
        "committed": {"g": {("t", 0): 10}},
        "counts": [ProcessCounts("broker-1", "r", False, appended={"t": 10}, requests={PUT: 3})],
        "logged": {"r": {PUT: 3}},
    }
    return Evidence(**(found | changed))


def faults(**changed: Any) -> Sequence[str]:
    return reconcile(evidence(**changed)).faults


def test_what_agrees_is_reconciled_in_one_line() -> None:
    verdict = reconcile(evidence())

    assert (verdict.is_good, verdict.explained) == (True, ())
    assert verdict.line() == "reconciled: intent 10 · acked 10 · stored 10 · consumed 1 × 10 · PUT 3 = 3"


def test_without_an_s3_server_and_groups_the_line_says_what_was_not_checked() -> None:
    verdict = reconcile(evidence(logged=None, groups={}))

    assert verdict.line() == "reconciled: intent 10 · acked 10 · stored 10 · PUT 3 (not checked: no S3 server)"


def test_trouble_beside_the_records_is_a_fault() -> None:
    verdict = reconcile(evidence(trouble=["broker 1 ended by itself"]))

    assert verdict.faults == ("broker 1 ended by itself",)
    assert verdict.line().startswith("NOT reconciled: ")


SHORTER: Mapping[str, Any] = {
    "groups": {},
    "counts": [],
    "logged": None,
}
"""For a case that is about the records alone."""


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        (
            {"stored": [StoredRun("t", 0, 0, 8, 0, 0)], "bounds": [PartitionEnds("t", 0, 0, 8)]},
            "topic t partition 0 offsets 8 to 9: records 8 to 9 of producer 0 were acknowledged, and are not stored",
        ),
        (
            {"stored": [StoredRun("t", 0, 0, 10, 0, 0), StoredRun("t", 0, 10, 2, 0, 4)], "bounds": [PartitionEnds("t", 0, 0, 12)]},
            "topic t partition 0 offsets 10 to 11: records 4 to 5 of producer 0 are stored twice",
        ),
        (
            {"stored": [StoredRun("t", 0, 0, 10, 0, 0), StoredRun("t", 0, 10, 1, NOT_OURS, 0)], "bounds": [PartitionEnds("t", 0, 0, 11)]},
            "topic t partition 0 offset 10: stored, and never sent like that",
        ),
        (
            {"stored": [StoredRun("t", 0, 0, 10, 0, 0), StoredRun("t", 0, 10, 5, 0, 10)], "bounds": [PartitionEnds("t", 0, 0, 15)]},
            "topic t partition 0 offsets 10 to 14: records 10 to 14 of producer 0 are stored, and were never sent",
        ),
        (
            {"stored": [StoredRun("t", 0, 0, 5, 0, 5), StoredRun("t", 0, 5, 5, 0, 0)], "acked": [AckedRange(0, "t", 0, 0, 10, -1)]},
            "topic t partition 0 offsets 5 to 9: records of producer 0 are out of order",
        ),
        (
            {"stored": [StoredRun("t", 0, 0, 4, 0, 0), StoredRun("t", 0, 5, 6, 0, 4)], "bounds": [PartitionEnds("t", 0, 0, 11)]},
            "topic t partition 0 offset 4: nothing could be read there, and the log reaches from 0 to 11",
        ),
        (
            {"bounds": [PartitionEnds("t", 0, 0, 12)]},
            "topic t partition 0 offsets 10 to 11: nothing could be read there, and the log reaches from 0 to 12",
        ),
        ({"bounds": [PartitionEnds("t", 0, 0, 9)]}, "topic t partition 0 offset 9: stored behind the end of the log"),
        ({"bounds": [PartitionEnds("t", 0, 2, 10)]}, "topic t partition 0 offsets 0 to 1: outside the log, or read twice"),
        (
            {"acked": [AckedRange(0, "t", 0, 0, 10, 3)]},
            "topic t partition 0 offsets 3 to 9: acknowledged to producer 0 there, and stored elsewhere",
        ),
    ],
)
def test_a_log_that_is_wrong_is_named_by_partition_and_offsets(changed: dict[str, Any], fault: str) -> None:
    assert fault in faults(**(SHORTER | changed))


def test_an_acknowledged_record_that_is_lost_is_named_even_without_an_offset() -> None:
    found = faults(**SHORTER, stored=[], bounds=[PartitionEnds("t", 0, 0, 0)], acked=[AckedRange(0, "t", 0, 0, 10, -1)])

    assert found == ("topic t partition 0: records 0 to 9 of producer 0 were acknowledged, and are not stored",)


def test_unknown_outcomes_are_explained_whether_stored_or_not() -> None:
    verdict = reconcile(
        evidence(
            **(SHORTER | {"counts": process(appended=8)}),
            acked=[AckedRange(0, "t", 0, 0, 6, 0)],
            doubtful=[DoubtfulRange(0, "t", 0, 6, 10, "_MSG_TIMED_OUT")],
            stored=[StoredRun("t", 0, 0, 8, 0, 0)],
            bounds=[PartitionEnds("t", 0, 0, 8)],
        )
    )

    assert verdict.is_good
    assert verdict.explained == (
        "topic t partition 0: the outcome of 4 records of producer 0 is unknown (_MSG_TIMED_OUT): 2 are stored, 2 are not",
    )


def test_a_producer_that_is_not_idempotent_may_be_stored_twice() -> None:
    twice = [StoredRun("t", 0, 0, 10, 0, 0), StoredRun("t", 0, 10, 2, 0, 4)]
    counts = {"counts": process(appended=12)}
    verdict = reconcile(evidence(**(SHORTER | counts), stored=twice, bounds=[PartitionEnds("t", 0, 0, 12)], idempotent=frozenset()))

    assert verdict.is_good
    assert verdict.explained == ("topic t partition 0: 2 records of producer 0 are stored again: it is not idempotent",)


@pytest.mark.parametrize(
    ("events", "committed", "fault"),
    [
        (READ_ALL[:1], 10, "group g, topic t partition 0 offsets 0 to 9: stored, and not read by the group"),
        (READ_ALL, 7, "group g, topic t partition 0: the group has committed offset 7, and the log ends at 10"),
        (READ_ALL, None, "group g, topic t partition 0: the group has committed offset none, and the log ends at 10"),
        (
            (READ_ALL[0], SessionRead(2.0, "m", StoredRun("t", 0, 0, 10, 0, 1))),
            10,
            "group g, topic t partition 0 offsets 0 to 9: m read other records than are stored there",
        ),
        (
            (READ_ALL[0], SessionRead(2.0, "m", StoredRun("t", 0, 0, 4, 0, 0)), SessionRead(3.0, "m", StoredRun("t", 0, 2, 8, 0, 2))),
            10,
            "group g, topic t partition 0 offsets 2 to 9: m read these where offset 4 was next",
        ),
        (
            (*READ_ALL, SessionBegan(4.0, "n", "t", 0), SessionRead(5.0, "n", StoredRun("t", 0, 6, 4, 0, 6))),
            10,
            "group g, topic t partition 0: n went on at offset 6, and 10 was committed before",
        ),
        (
            (READ_ALL[0], SessionRead(2.0, "m", StoredRun("t", 0, 0, 12, 0, 0))),
            10,
            "group g, topic t partition 0 offsets 10 to 11: m read other records than are stored there",
        ),
    ],
)
def test_a_group_that_read_or_committed_otherwise_is_named(events: Any, committed: int | None, fault: str) -> None:
    offsets = {} if committed is None else {("t", 0): committed}

    assert fault in faults(groups={"g": events}, committed={"g": offsets})


def test_what_is_read_again_from_the_last_commit_on_is_explained() -> None:
    events = (
        SessionBegan(1.0, "m", "t", 0),
        SessionRead(2.0, "m", StoredRun("t", 0, 0, 6, 0, 0)),
        SessionCommitted(2.5, "m", "t", 0, 4),
        SessionBegan(3.0, "n", "t", 0),
        SessionRead(4.0, "n", StoredRun("t", 0, 4, 6, 0, 4)),
    )
    verdict = reconcile(evidence(groups={"g": events}))

    assert verdict.is_good
    assert verdict.consumed == {"g": 10}
    assert verdict.explained == ("group g, topic t partition 0: 2 records were read again after a rebalance, from the last commit on",)


def test_a_topic_that_a_group_does_not_read_is_not_expected_of_it() -> None:
    assert faults(group_topics={"g": frozenset({"other"})}, groups={"g": ()}) == ()


def process(*, has_ended: bool = False, appended: int = 10, requests: Mapping[RequestKey, int] | None = None) -> list[ProcessCounts]:
    return [ProcessCounts("broker-1", "r", has_ended, appended={"t": appended}, requests=requests or {PUT: 3})]


def test_counters_equal_what_is_stored_unless_their_process_has_ended() -> None:
    assert faults(counts=process(appended=9)) == ("topic t: the brokers count 9 appended records, and 10 are stored",)
    (many,) = faults(counts=process(appended=11, has_ended=True))
    assert many.startswith("topic t: the brokers count 11 appended records, and 10 are stored")

    verdict = reconcile(evidence(counts=process(appended=9, has_ended=True)))
    assert verdict.explained == ("topic t: 1 records were appended after the last sample of what has ended: broker-1",)


def test_a_process_that_has_ended_cannot_have_appended_more_than_was_acknowledged_since_its_last_sample() -> None:
    acked = [AckedRange(0, "t", 0, 0, 6, 0, at=4.0), AckedRange(0, "t", 0, 6, 10, 6, at=9.0)]

    def ended(appended: int) -> list[ProcessCounts]:
        return [ProcessCounts("broker-1", "r", True, {"t": appended}, {PUT: 3}, sampled_at=5.0)]

    assert faults(acked=acked, counts=ended(6)) == ()
    (fault,) = faults(acked=acked, counts=ended(5))
    assert fault.endswith("10 are stored; after the last sample of broker-1 at most 4 can have been appended")


def test_the_meter_equals_the_access_log_unless_its_process_has_ended() -> None:
    (fault,) = faults(logged={"r": {PUT: 4}})
    assert fault == "broker-1 (r): it counts 3 put of wal answered 2xx, and the S3 server's log has 4"
    assert len(faults(logged={"r": {PUT: 2}}, counts=process(has_ended=True))) == 1

    late = reconcile(evidence(logged={"r": {PUT: 5}}, counts=process(has_ended=True)))
    assert late.is_good
    assert late.explained == ("broker-1 (r): the S3 server's log has 2 requests after its last sample",)
    assert late.line().endswith("PUT 3 + 2 after last samples = 5")


def test_a_request_whose_answer_was_lost_may_be_in_the_log() -> None:
    for logged in (3, 4):
        assert faults(logged={"r": {PUT: logged}}, counts=process(requests={PUT: 3, LOST_PUT: 1})) == ()
    assert len(faults(logged={"r": {PUT: 5}}, counts=process(requests={PUT: 3, LOST_PUT: 1}))) == 1

    verdict = reconcile(evidence(logged={"r": {PUT: 6}}, counts=process(requests={PUT: 3, LOST_PUT: 1}, has_ended=True)))
    assert verdict.line().endswith("PUT 3 + 1 unanswered + 2 after last samples = 6")


def test_where_no_broker_could_be_asked_its_counters_are_not_compared() -> None:
    verdict = reconcile(evidence(counts=None))

    assert verdict.is_good
    assert verdict.explained == ("what the brokers count was not compared: the scenario names no HTTP addresses of theirs",)
    assert verdict.line().endswith("PUT not checked: no broker was asked")


def test_requests_of_an_unknown_process_are_a_fault() -> None:
    (fault,) = faults(logged={"r": {PUT: 3}, "": {PUT: 2}})

    assert fault == "the S3 server's log has 2 requests of an unknown process (no token)"


def test_lists_of_faults_are_bounded() -> None:
    runs = [StoredRun("t", 0, offset, 1, NOT_OURS, 0) for offset in range(0, 4 * SHOWN_MAX, 2)]

    found = faults(**SHORTER, stored=runs, bounds=[PartitionEnds("t", 0, 0, 4 * SHOWN_MAX)])

    assert len(found) == SHOWN_MAX + 1
    assert found[-1].endswith(" more")


spans = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 10)).map(lambda pair: (pair[0], sum(pair))), max_size=8)


@given(spans, spans)
def test_spans_are_sets_of_numbers(ours: list[tuple[int, int]], others: list[tuple[int, int]]) -> None:
    def numbers(some: list[tuple[int, int]]) -> set[int]:
        return {number for first, end in some for number in range(first, end)}

    left = without(merged(ours), merged(others))

    assert numbers(left) == numbers(ours) - numbers(others)
    assert length(merged(ours)) == len(numbers(ours))
    assert merged(left) == left


batches = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(1, 5)), min_size=1, max_size=20)
"""Producer, partition, records."""


def world(log: Sequence[tuple[int, int, int]]) -> Evidence:
    """What honest brokers store of these batches, and what a group reads of it in pieces."""
    following: dict[tuple[int, int], int] = {}
    ends = dict.fromkeys(range(3), 0)
    sent, acked, stored, events = [], [], [], []
    for at, (producer, partition, records) in enumerate(log):
        first, offset = following.get((producer, partition), 0), ends[partition]
        sent.append(SentRange(producer, "t", partition, first, first + records))
        acked.append(AckedRange(producer, "t", partition, first, first + records, offset))
        run = StoredRun("t", partition, offset, records, producer, first)
        stored.append(run)
        events += [SessionRead(float(at), "m", run), SessionCommitted(at + 0.5, "m", "t", partition, offset + records)]
        following[producer, partition], ends[partition] = first + records, offset + records
    return evidence(
        sent=sent,
        acked=acked,
        stored=stored,
        bounds=[PartitionEnds("t", partition, 0, end) for partition, end in ends.items()],
        idempotent=frozenset(range(3)),
        groups={"g": [*(SessionBegan(-1.0, "m", "t", partition) for partition in range(3)), *events]},
        committed={"g": {("t", partition): end for partition, end in ends.items()}},
        counts=process(appended=sum(ends.values())),
    )


@given(batches)
def test_an_honest_log_is_reconciled_whatever_was_written(log: list[tuple[int, int, int]]) -> None:
    verdict = reconcile(world(log))

    assert (verdict.faults, verdict.explained) == ((), ())
    assert verdict.intent == verdict.acked == verdict.stored == verdict.consumed["g"]


@given(batches, st.data())
def test_a_batch_that_is_lost_swapped_doubled_or_foreign_is_named_by_its_partition(
    log: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    honest = world(log)
    place = data.draw(st.integers(0, len(honest.stored) - 1))
    run = honest.stored[place]
    wrong = data.draw(st.sampled_from(["lost", "doubled", "foreign", "shifted"]))
    others = [*honest.stored[:place], *honest.stored[place + 1 :]]
    stored = {
        "lost": others,
        "doubled": [*honest.stored, run._replace(offset=next(one.end for one in honest.bounds if one.partition == run.partition))],
        "foreign": [*others, run._replace(producer=NOT_OURS, sequence=0)],
        "shifted": [*others, run._replace(sequence=run.sequence + 1_000)],
    }[wrong]

    found = reconcile(dataclasses.replace(honest, stored=stored)).faults

    assert any(line.startswith(f"topic t partition {run.partition} offset") for line in found), (wrong, found)
