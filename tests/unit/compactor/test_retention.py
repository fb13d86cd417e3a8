"""Retention: what is too old or too much goes, whole entries and segments at a time, and nothing else; whatever fails on the way."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor import retention
from compactor.plan import CompactionPolicy
from compactor.retention import Retention, RetentionResult
from compactor.retention_plan import (
    AHEAD_MS_MAX,
    NO_LIMIT,
    RetentionLimits,
    count_gone,
    expired,
    limits_of,
    source_bytes,
    source_ms,
)
from runtime.clock import SystemClock
from runtime.ulid import encode_ulid
from storage.errors import OffsetOutOfRange, OutcomeUnknown, Unavailable
from storage.formats.control import Control, Entry, EntrySource, LogState, SegmentEntry, encode
from storage.log.index import check_range
from storage.metadata.keys import PartitionKeys
from storage.metadata.port import Applied, NotApplied, Put, Unknown, WriteOp, WriteOutcome
from storage.vocabulary import ObjectId
from tests.kit.record_batches import record_batch
from tests.unit.compactor.compacting import compacting, index_ends, listed_segments
from tests.unit.storage.log.rig import PARTITION, Rig, rig

NOW_MS = 1_800_000_000_000
DAY_MS = 86_400_000
ENDLESS = RetentionLimits(NO_LIMIT, NO_LIMIT)


def object_id(at_ms: int) -> ObjectId:
    return ObjectId(encode_ulid(at_ms << 80))


def entry(base: int, *, at_ms: int = NOW_MS, timestamp: int | None = None, size_bytes: int = 100) -> Entry:
    timestamp = at_ms if timestamp is None else timestamp
    return Entry(base, base, object_id(at_ms), ((0, size_bytes),), timestamp, timestamp)


def segment(base: int, *, at_ms: int = NOW_MS, size_bytes: int = 100) -> SegmentEntry:
    return SegmentEntry(base, base, object_id(at_ms), size_bytes, at_ms, at_ms)


sources = st.lists(
    st.tuples(st.booleans(), st.integers(0, 20), st.integers(1, 50)).map(
        lambda drawn: (segment if drawn[0] else entry)(0, at_ms=NOW_MS - drawn[1] * DAY_MS, size_bytes=drawn[2])
    ),
    max_size=12,
)
limits = st.builds(
    RetentionLimits, st.sampled_from([NO_LIMIT, 0, 3 * DAY_MS, 15 * DAY_MS]), st.sampled_from([NO_LIMIT, 0, 60, 200, 10_000])
)


@given(sources, limits)
def test_what_goes_is_what_a_naive_reading_of_the_limits_says(found: list[EntrySource], allowed: RetentionLimits) -> None:
    sizes = [source_bytes(one) for one in found]
    gone, live_bytes = count_gone(found, allowed, live_bytes=sum(sizes), now_ms=NOW_MS)

    for number in range(len(found) + 1):
        is_old = number < len(found) and 0 <= allowed.retention_ms < NOW_MS - source_ms(found[number])
        is_much = number < len(found) and 0 <= allowed.retention_bytes <= sum(sizes[number + 1 :])
        if not (is_old or is_much):
            assert gone == number
            break
    assert live_bytes == sum(sizes[gone:])


def test_a_record_without_time_or_from_the_future_has_that_of_its_object() -> None:
    week = RetentionLimits(7 * DAY_MS, NO_LIMIT)
    written_ms = NOW_MS - 8 * DAY_MS
    ages = {timestamp: expired(entry(0, at_ms=written_ms, timestamp=timestamp), week, now_ms=NOW_MS) for timestamp in (-1, 0, 2**62)}

    assert ages == {-1: True, 0: True, 2**62: True}
    assert not expired(entry(0, timestamp=-1), week, now_ms=NOW_MS)
    assert source_ms(entry(0, at_ms=written_ms, timestamp=written_ms + AHEAD_MS_MAX)) == written_ms + AHEAD_MS_MAX
    assert source_ms(entry(0, at_ms=written_ms, timestamp=written_ms + AHEAD_MS_MAX + 1)) == written_ms


def test_limits_are_those_of_the_topic_and_none_where_nothing_is_deleted() -> None:
    assert limits_of({}) == RetentionLimits(7 * DAY_MS, NO_LIMIT)
    assert limits_of({"retention.ms": "-1", "retention.bytes": "5"}) == RetentionLimits(NO_LIMIT, 5)
    assert limits_of({"cleanup.policy": "compact", "retention.ms": "1"}) == ENDLESS
    assert limits_of({"cleanup.policy": "compact,delete", "retention.ms": "1"}) == RetentionLimits(1, NO_LIMIT)


class OffsetClock(SystemClock):
    later_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.later_ms


class Setting(NamedTuple):
    broker: Rig
    clock: OffsetClock

    def retention(self, metadata: Any = None) -> Retention:
        return Retention(metadata=metadata or self.broker.shared, clock=self.clock)

    async def append(self, count: int, *, ahead_ms: int = 0) -> None:
        for _ in range(count):
            await self.broker.send(record_batch(b"x" * 50, base_timestamp=self.clock.now_ms() + ahead_ms))

    async def change(self, **fields: Any) -> None:
        keys = PartitionKeys(PARTITION)
        (record,) = await self.broker.shared.get_many([keys.control])
        assert record is not None
        changed = msgspec.structs.replace(await self.broker.control(), **fields)
        assert isinstance(await self.broker.shared.write([Put(keys.control, encode(changed), record.version)]), Applied)


@contextlib.asynccontextmanager
async def setting(*, compacted: bool = False) -> AsyncIterator[Setting]:
    """40 records; the first 30 in three segments if `compacted`."""
    async with rig() as broker:
        one = Setting(broker, OffsetClock())
        for number in range(4):
            await one.append(10)
            if compacted and number < 3:
                async with compacting(broker.shared, broker.objects, policy=CompactionPolicy(entries_due=1)) as compaction:
                    await compaction.run(PARTITION)
        yield one


@pytest.mark.parametrize("compacted", [False, True])
async def test_what_is_too_old_goes_and_readers_see_the_rest(compacted: bool) -> None:
    async with setting(compacted=compacted) as it:
        it.clock.later_ms = 1_000
        await it.append(7)
        before = await it.broker.read_all()
        done = await it.retention().run(PARTITION, RetentionLimits(500, NO_LIMIT))
        control = await it.broker.control()

        assert (done.log_start, done.removed) == (40, 40)
        assert (control.log_start, control.sequence_counter) == (40, 47)
        assert await listed_segments(it.broker.shared) == []
        assert [end for end in await index_ends(it.broker.shared) if end < 40] == []
    async with rig(shared=it.broker.shared, objects=it.broker.objects._inner, epoch=8) as other:
        log = other.parts.partitions.get(PARTITION)
        await other.parts.control_reads.refresh([log])
        with pytest.raises(OffsetOutOfRange):
            check_range(log, 39)
        found, offset = b"", 40
        while offset < 47:
            run = await other.parts.reader.stored(log, offset, bytes_max=1 << 20)
            found, offset = found + bytes(run.buffer), run.last + 1

        assert before.endswith(found)


@pytest.mark.parametrize("compacted", [False, True])
async def test_what_is_too_much_goes_oldest_first_and_the_limit_stays(compacted: bool) -> None:
    async with setting(compacted=compacted) as it:
        one_bytes = (await it.broker.control()).bytes_total // 40
        done = await it.retention().run(PARTITION, RetentionLimits(NO_LIMIT, 15 * one_bytes))
        control = await it.broker.control()

        assert done.log_start == control.log_start
        assert (done.log_start == 25) if not compacted else (done.log_start == 20), "whole segments, whole entries"
        assert [one.last for one in await listed_segments(it.broker.shared) if one.last < done.log_start] == []


async def test_nothing_is_looked_at_before_it_may_have_something_to_do() -> None:
    async with setting() as it:
        upkeep = it.retention()
        hour = RetentionLimits(3_600_000 // 2, NO_LIMIT)
        control = await it.broker.control()
        first = upkeep.is_due(PARTITION, control, hour)
        await upkeep.run(PARTITION, hour)
        later = upkeep.is_due(PARTITION, control, hour)
        it.clock.later_ms = hour.retention_ms + 60_000
        aged = upkeep.is_due(PARTITION, control, hour)
        changed = upkeep.is_due(PARTITION, control, RetentionLimits(1, NO_LIMIT))
        await upkeep.run(PARTITION, hour)
        emptied = await it.broker.control()
        empty = upkeep.is_due(PARTITION, emptied, hour)
        await it.append(1, ahead_ms=-2 * hour.retention_ms)
        old_again = upkeep.is_due(PARTITION, await it.broker.control(), hour)

        assert (first, later, aged, changed, empty, old_again) == (True, False, True, True, False, True)
        assert emptied.log_start == emptied.sequence_counter
        assert not it.retention().is_due(PARTITION, Control(sequence_counter=9), ENDLESS)
        assert not it.retention().is_due(PARTITION, Control(sequence_counter=9, log_state=LogState.DELETED), hour)


async def test_a_partition_below_its_size_is_looked_at_when_it_may_have_reached_it() -> None:
    async with setting() as it:
        upkeep = it.retention()
        one_bytes = (await it.broker.control()).bytes_total // 40
        fifty = RetentionLimits(NO_LIMIT, 50 * one_bytes)
        await upkeep.run(PARTITION, fifty)
        seen = []
        for _ in range(15):
            await it.append(1)
            seen.append(upkeep.is_due(PARTITION, await it.broker.control(), fifty))
        done = await upkeep.run(PARTITION, fifty)

        assert seen == [False] * 10 + [True] * 5
        assert done.removed == 5


async def test_keys_that_clients_left_below_what_they_deleted_go_too() -> None:
    async with setting(compacted=True) as it:
        await it.broker.parts.trimmer.trim(PARTITION, 25)
        upkeep = it.retention()
        was_due = upkeep.is_due(PARTITION, await it.broker.control(), ENDLESS)
        done = await upkeep.run(PARTITION, ENDLESS)

        assert was_due
        assert (done.removed, done.log_start) == (0, 25)
        assert done.keys >= 2
        assert [one.last for one in await listed_segments(it.broker.shared)] == []
        assert not upkeep.is_due(PARTITION, await it.broker.control(), ENDLESS)
        assert len(await it.broker.read_all_from(25)) > 0


@pytest.mark.parametrize("state", [LogState.FENCED, LogState.DELETED])
async def test_a_log_that_takes_no_changes_stays_as_it_is(state: LogState) -> None:
    async with setting() as it:
        await it.change(log_state=state)
        done = await it.retention().run(PARTITION, RetentionLimits(0, 0))

        assert done == RetentionResult(0)
        assert (await it.broker.control()).log_start == 0


class Failing:
    """The store inside; the write of that number fails in that way."""

    def __init__(self, inner: Any, number: int, way: str) -> None:
        self._inner = inner
        self._left = number
        self._way = way

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def write(self, ops: Sequence[WriteOp]) -> WriteOutcome:
        self._left -= 1
        if self._left:
            return await self._inner.write(ops)  # type: ignore[no-any-return]
        if self._way == "refused":
            return NotApplied("refused")
        if self._way == "reply lost":
            await self._inner.write(ops)
        return Unknown(self._way)


@pytest.mark.parametrize("way", ["refused", "request lost", "reply lost"])
@pytest.mark.parametrize("number", [1, 2, 3])
async def test_whatever_write_fails_another_call_does_the_rest(number: int, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "KEYS_PER_DELETE", 1)
    async with setting(compacted=True) as it:
        before = await it.broker.read_all_from(25)
        one_bytes = (await it.broker.control()).bytes_total // 40
        fifteen = RetentionLimits(NO_LIMIT, 15 * one_bytes)
        with contextlib.suppress(Unavailable, OutcomeUnknown):
            await it.retention(Failing(it.broker.shared, number, way)).run(PARTITION, fifteen)
        await it.retention().run(PARTITION, fifteen)

        assert (await it.broker.control()).log_start == 20
        assert [one.last for one in await listed_segments(it.broker.shared) if one.last < 20] == []
        assert await it.broker.read_all_from(25) == before


async def test_appends_and_compactions_meanwhile_are_no_reason_to_give_up() -> None:
    async with setting() as it:
        one_bytes = (await it.broker.control()).bytes_total // 40
        taken = []

        class Meanwhile(Failing):
            async def write(self, ops: Sequence[WriteOp]) -> WriteOutcome:
                if not taken:
                    taken.append(ops)
                    await it.append(3)
                    async with compacting(it.broker.shared, it.broker.objects) as compaction:
                        await compaction.run(PARTITION)
                return await self._inner.write(ops)  # type: ignore[no-any-return]

        done = await it.retention(Meanwhile(it.broker.shared, 0, "")).run(PARTITION, RetentionLimits(NO_LIMIT, 15 * one_bytes))
        control = await it.broker.control()

        assert (done.log_start, control.log_start, control.compaction_cursor) == (25, 25, 43)
        assert len(await it.broker.read_all_from(25)) > 0


async def test_entries_that_move_while_they_are_read_are_left_to_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    async with setting(compacted=True) as it:
        first, *_ = await listed_segments(it.broker.shared)
        keys = PartitionKeys(PARTITION)
        await it.retention()._records.delete_range(keys.segment(0), keys.segment(first.last + 1).path)
        done = await it.retention().run(PARTITION, RetentionLimits(NO_LIMIT, 1))

        assert done == RetentionResult(0)
        assert (await it.broker.control()).log_start == 0


async def test_a_partition_beyond_those_that_are_remembered_is_always_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "KEPT_MAX", 0)
    async with setting() as it:
        upkeep, week = it.retention(), RetentionLimits(7 * DAY_MS, NO_LIMIT)
        await upkeep.run(PARTITION, week)

        assert upkeep.is_due(PARTITION, await it.broker.control(), week)
