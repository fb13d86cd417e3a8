"""What retention deletes, against a naive reading of the limits."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.limits import DEFAULT_LIMITS
from compactor.plan import AHEAD_MS, NO_LIMIT, RetentionLimits, RetentionPlan, limits_of, source_ms
from runtime.ulid import encode_ulid
from storage.formats.manifest import Entry, EntrySource, Manifest, SegmentEntry
from storage.vocabulary import ObjectId

NOW_MS = 1_800_000_000_000
DAY_MS = 86_400_000
FOR_EVER = 2**62
SIZES_KEPT_MAX = DEFAULT_LIMITS.retention_sizes_kept_max


def object_id(at_ms: int) -> ObjectId:
    return ObjectId(encode_ulid(at_ms << 80))


def entry(base: int, *, at_ms: int = NOW_MS, timestamp: int | None = None, size_bytes: int = 100) -> Entry:
    timestamp = at_ms if timestamp is None else timestamp
    return Entry(base, base + 1, object_id(at_ms), ((0, size_bytes - 1), (50, 1)), timestamp, FOR_EVER)


def segment(base: int, *, at_ms: int = NOW_MS, timestamp: int | None = None, size_bytes: int = 100) -> SegmentEntry:
    return SegmentEntry(base, base + 1, object_id(at_ms), size_bytes, at_ms if timestamp is None else timestamp, FOR_EVER)


def log_of(drawn: Sequence[tuple[bool, int, int | None, int]]) -> list[EntrySource]:
    return [
        (segment if is_segment else entry)(
            number * 2,
            at_ms=NOW_MS - days * DAY_MS,
            timestamp=None if ahead_days is None else NOW_MS + ahead_days * DAY_MS,
            size_bytes=size_bytes,
        )
        for number, (is_segment, days, ahead_days, size_bytes) in enumerate(drawn)
    ]


def manifest_of(log: Sequence[EntrySource], **fields: Any) -> Manifest:
    end = log[-1].last + 1 if log else 0
    return Manifest(sequence_counter=end, bytes_total=sum(one.size_bytes for one in log), **fields)


def plan_of(
    log: Sequence[EntrySource],
    limits: RetentionLimits,
    *,
    now_ms: int = NOW_MS,
    page: int = 3,
    sizes_kept_max: int = SIZES_KEPT_MAX,
) -> RetentionPlan:
    plan = RetentionPlan(limits, manifest_of(log), now_ms=now_ms, sizes_kept_max=sizes_kept_max)
    for begin in range(0, len(log), page):
        if not plan.add(log[begin : begin + page]):
            break
    return plan


def naive(log: Sequence[EntrySource], limits: RetentionLimits, *, now_ms: int = NOW_MS) -> int:
    """Where the log begins, with the whole of it at hand."""
    rest = list(log)
    while rest and limits.retention_ms != NO_LIMIT and source_ms(rest[0], ahead_ms=limits.ahead_ms) < now_ms - limits.retention_ms:
        rest.pop(0)
    while rest and limits.retention_bytes != NO_LIMIT and sum(one.size_bytes for one in rest[1:]) >= limits.retention_bytes:
        rest.pop(0)
    return rest[0].base if rest else log[-1].last + 1 if log else 0


logs = st.lists(
    st.tuples(st.booleans(), st.integers(0, 20), st.sampled_from([None, None, -30, 0, 30]), st.integers(2, 50)), max_size=12
).map(log_of)
limits_drawn = st.builds(
    RetentionLimits, st.sampled_from([NO_LIMIT, 0, 3 * DAY_MS, 15 * DAY_MS]), st.sampled_from([NO_LIMIT, 0, 60, 200, 10_000])
)


@given(logs, limits_drawn, st.integers(1, 5))
def test_what_goes_is_what_a_naive_reading_of_the_limits_says(log: list[EntrySource], limits: RetentionLimits, page: int) -> None:
    assert plan_of(log, limits, page=page).log_start == naive(log, limits)


@given(logs, logs, limits_drawn, st.integers(0, 40))
def test_nothing_goes_before_the_plan_said_that_something_may(
    log: list[EntrySource], more: list[EntrySource], limits: RetentionLimits, days: int
) -> None:
    plan = plan_of(log, limits)
    now_ms = NOW_MS + days * DAY_MS
    end = log[-1].last + 1 if log else 0
    rest = [one for one in log if one.base >= plan.log_start]
    appended = [msgspec.structs.replace(one, base=one.base + end, last=one.last + end) for one in more]
    grown = [*rest, *appended]
    bytes_total = manifest_of(log).bytes_total + sum(one.size_bytes for one in appended)
    if rest and now_ms < plan.again_ms and bytes_total < plan.again_bytes:
        assert naive(grown, limits, now_ms=now_ms) == rest[0].base


def test_items_without_number_are_counted_in_bounded_memory_and_never_too_much_goes() -> None:
    log = [entry(base * 2, size_bytes=10) for base in range(1_000)]
    for limit in (0, 10, 100, 2_000, 9_985, 20_000):
        limits = RetentionLimits(NO_LIMIT, limit)
        plan = plan_of(log, limits, sizes_kept_max=16)
        kept_bytes = sum(one.size_bytes for one in log if one.base >= plan.log_start)

        assert len(plan._kept) <= 16
        assert plan.log_start <= naive(log, limits)
        assert kept_bytes <= limit * 5 // 4 + 10, "what goes together is a fourth of it at most, a thousandth by default"


def test_by_time_alone_no_more_is_looked_at_than_the_first_that_stays() -> None:
    plan = RetentionPlan(RetentionLimits(DAY_MS, NO_LIMIT), Manifest(sequence_counter=9), now_ms=NOW_MS, sizes_kept_max=SIZES_KEPT_MAX)

    assert plan.add([entry(0, at_ms=NOW_MS - 2 * DAY_MS)])
    assert not plan.add([entry(2)])
    assert (plan.log_start, plan.again_ms) == (2, NOW_MS + DAY_MS + 1)


def test_by_size_nothing_is_counted_of_a_log_that_never_had_so_much() -> None:
    plan = RetentionPlan(
        RetentionLimits(NO_LIMIT, 1_000), Manifest(sequence_counter=9, bytes_total=1_000), now_ms=NOW_MS, sizes_kept_max=SIZES_KEPT_MAX
    )

    assert not plan.add([entry(0, size_bytes=600)])
    assert (plan.log_start, plan.again_bytes) == (0, 1_001)


def test_what_a_merge_has_put_in_the_place_of_counted_segments_is_not_counted_twice() -> None:
    log = [segment(0, size_bytes=100), segment(2, size_bytes=100), SegmentEntry(0, 5, object_id(NOW_MS), 250, NOW_MS, NOW_MS)]
    plan = RetentionPlan(
        RetentionLimits(NO_LIMIT, 150), Manifest(sequence_counter=9, bytes_total=300), now_ms=NOW_MS, sizes_kept_max=SIZES_KEPT_MAX
    )
    plan.add(log)

    assert plan.log_start == 0


@pytest.mark.parametrize("make", [entry, segment])
def test_a_record_without_a_time_or_with_one_from_the_future_is_as_old_as_its_object(make: Any) -> None:
    written_ms = NOW_MS - 8 * DAY_MS

    def age(timestamp: int) -> int:
        return NOW_MS - source_ms(make(0, at_ms=written_ms, timestamp=timestamp), ahead_ms=AHEAD_MS)

    assert age(-1) == 8 * DAY_MS
    assert age(0) == NOW_MS, "a producer may well import what is old"
    assert age(written_ms + AHEAD_MS) == 8 * DAY_MS - AHEAD_MS
    assert age(written_ms + AHEAD_MS + 1) == 8 * DAY_MS
    assert age(2**62) == 8 * DAY_MS


def test_a_record_from_the_future_keeps_nothing_that_lies_behind_it() -> None:
    log = [entry(0, at_ms=NOW_MS - 8 * DAY_MS, timestamp=FOR_EVER), entry(2, at_ms=NOW_MS - 8 * DAY_MS), entry(4)]

    assert plan_of(log, limits_of({})).log_start == 4


def test_limits_are_those_of_the_topic_and_none_where_nothing_is_to_be_deleted() -> None:
    endless = RetentionLimits(NO_LIMIT, NO_LIMIT)

    assert limits_of({}) == RetentionLimits(7 * DAY_MS, NO_LIMIT)
    assert limits_of({"retention.ms": "-1", "retention.bytes": "5"}) == RetentionLimits(NO_LIMIT, 5)
    assert limits_of({"cleanup.policy": "compact", "retention.ms": "1"}) == endless
    assert limits_of({"cleanup.policy": "compact,delete", "retention.ms": "1"}) == RetentionLimits(1, NO_LIMIT)
    assert endless.is_endless


@pytest.mark.parametrize(
    ("after_max_ms", "retention_ms", "ahead_ms"),
    [(3_600_000, 7 * DAY_MS, AHEAD_MS), (0, 7 * DAY_MS, AHEAD_MS), (2**63 - 1, 7 * DAY_MS, 7 * DAY_MS), (DAY_MS, 7 * DAY_MS, DAY_MS)],
)
def test_timestamps_count_as_far_ahead_as_the_topic_permits_but_not_beyond_its_retention(
    after_max_ms: int, retention_ms: int, ahead_ms: int
) -> None:
    configs = {"message.timestamp.after.max.ms": str(after_max_ms), "retention.ms": str(retention_ms)}

    assert limits_of(configs).ahead_ms == ahead_ms
