"""Retention: log_start moves up, keys below it go, and nothing else, whatever fails on the way; readers see the rest."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
import pytest

from compactor.limits import CompactorLimits
from compactor.plan import NO_LIMIT, RetentionLimits
from compactor.retention import RetentionResult
from storage.errors import NotFound, OffsetOutOfRange, OutcomeUnknown, Unavailable
from storage.formats.manifest import LogState, Manifest, SegmentFact, encode
from storage.formats.segment import segment_key
from storage.formats.wal import object_key
from storage.log.limits import DEFAULT_LIMITS
from storage.metadata.keys import PartitionKeys
from storage.metadata.port import ABSENT, DeleteRange, Put, WriteOp, WriteOutcome
from storage.recordbatch import parse_header
from tests.unit.compactor.aging import ENDLESS, HOUR, KEYS, Aging, Counting, Meanwhile, aging, base_offsets
from tests.unit.compactor.compacting import index_ends, listed_segments
from tests.unit.storage.log.rig import PARTITION, FaultyMetadata, Rig, rig

# What goes


@pytest.mark.parametrize("segments", [0, 2])
async def test_what_is_too_old_goes_with_its_keys_and_the_rest_reads_as_before(segments: int) -> None:
    async with aging(old=40, segments=segments, new=7) as log:
        before = await base_offsets(log.broker, 80)
        done = await log.run()
        manifest = await log.broker.manifest()

        assert (done.log_start, done.removed) == (80, 80)
        assert (manifest.log_start, manifest.sequence_counter) == (80, 94)
        assert await log.segment_ends() == []
        assert [end for end in await index_ends(log.broker.shared) if end < 80] == []
        assert done.keys > 0
        assert await base_offsets(log.broker, 80) == before == [*range(80, 94, 2)]


async def test_an_item_goes_as_a_whole_or_not_at_all() -> None:
    async with aging(old=10) as log:
        await log.append(10)
        await log.compact()
        done = await log.run()

        assert done == RetentionResult(0)


async def test_nothing_behind_the_first_that_stays_is_too_old() -> None:
    async with aging(old=3, new=1) as log:
        await log.append(3, age_h=2)

        assert (await log.run()).log_start == 6


async def test_all_may_go_and_the_log_goes_on_at_the_same_offset() -> None:
    async with aging(old=40, segments=2) as log:
        await log.append(3, age_h=2)
        done = await log.run()
        await log.append(2)

        assert done.log_start == 86
        assert await base_offsets(log.broker, 86) == [86, 88]
        assert (await log.run()).log_start == 86


async def test_what_is_too_much_goes_while_what_follows_has_that_size() -> None:
    async with aging(new=40) as log:
        manifest = await log.broker.manifest()
        one_bytes = manifest.bytes_total // 40
        exact = await log.run(RetentionLimits(NO_LIMIT, 15 * one_bytes))
        more = await log.run(RetentionLimits(NO_LIMIT, 14 * one_bytes + 1))
        none = await log.run(RetentionLimits(NO_LIMIT, 15 * one_bytes))

        assert [done.log_start for done in (exact, more, none)] == [50, 50, 50]
        assert [end for end in await index_ends(log.broker.shared) if end < 50] == []


async def test_segments_have_the_size_of_their_objects() -> None:
    async with aging(new=0) as log:
        for _ in range(3):
            await log.append(10)
            await log.compact()
        sizes = [one.size_bytes for one in await listed_segments(log.broker.shared)]
        newest = (await log.broker.manifest()).segment
        assert newest is not None
        before = await log.run(RetentionLimits(NO_LIMIT, sizes[1] + newest.size_bytes + 1))
        after = await log.run(RetentionLimits(NO_LIMIT, sizes[1] + newest.size_bytes))

        assert (before.log_start, after.log_start) == (0, 20)
        assert await log.segment_ends() == [39]


async def test_the_newest_segment_stays_in_the_record_and_a_chunk_that_holds_log_start_stays_too() -> None:
    async with aging(old=20, segments=1) as log:
        segment = (await log.broker.manifest()).segment
        await log.append(5, age_h=2)
        await log.append(DEFAULT_LIMITS.pending_entries_max * 2)
        ends = await index_ends(log.broker.shared)
        await log.run()
        manifest = await log.broker.manifest()

        assert manifest.log_start == 50
        assert (manifest.segment, manifest.compaction_cursor) == (segment, 40), "it says where the cursor is"
        assert await index_ends(log.broker.shared) == [end for end in ends if end >= 50]
        assert await base_offsets(log.broker, 50) == [*range(50, 50 + 4 * DEFAULT_LIMITS.pending_entries_max, 2)]


async def test_compaction_goes_on_behind_what_retention_took() -> None:
    async with aging(old=40, new=20) as log:
        await log.run()
        await log.compact()
        manifest = await log.broker.manifest()

        assert (manifest.segment.base, manifest.segment.last) == (80, 119)  # type: ignore[union-attr]
        assert await base_offsets(log.broker, 80) == [*range(80, 120, 2)]


async def test_keys_below_what_a_client_has_deleted_go_and_those_that_straddle_it_stay() -> None:
    async with aging(new=0) as log:
        for _ in range(3):
            await log.append(10)
            await log.compact()
        await log.append(DEFAULT_LIMITS.pending_entries_max * 2)
        await log.broker.parts.trimmer.trim(PARTITION, 27)
        first = await log.run(ENDLESS)
        ends = await log.segment_ends()
        await log.broker.parts.trimmer.trim(PARTITION, 63)
        index = await index_ends(log.broker.shared)
        second = await log.run(ENDLESS)

        assert (first.removed, first.log_start, first.keys, ends) == (0, 27, 1, [39])
        assert (second.log_start, await log.segment_ends()) == (63, [])
        assert await index_ends(log.broker.shared) == index, "the first chunk ends above it"
        assert await base_offsets(log.broker, 63) == [62, *range(64, 60 + 4 * DEFAULT_LIMITS.pending_entries_max, 2)]


async def test_objects_are_left_to_the_collector() -> None:
    async with aging(old=40, segments=2, new=3) as log:
        before = [stat.key async for stat in log.broker.objects.list("")]  # type: ignore[operator]
        await log.run()

        assert [stat.key async for stat in log.broker.objects.list("")] == before  # type: ignore[operator]


@pytest.mark.parametrize("state", [LogState.FENCED, LogState.DELETED])
async def test_a_log_that_is_not_open_is_left_alone(state: LogState) -> None:
    async with aging(old=40, segments=2) as log:
        await log.broker.parts.trimmer.trim(PARTITION, 45)
        await log.change(log_state=state)
        ends = await log.segment_ends()

        assert await log.run() == RetentionResult(45)
        assert not log.retention().is_due(PARTITION, await log.broker.manifest(), HOUR)
        assert ((await log.broker.manifest()).log_start, await log.segment_ends()) == (45, ends)


async def test_a_partition_that_is_not_there_is_left_alone() -> None:
    async with aging() as log:
        assert await log.retention().run(PARTITION._replace(partition=9), HOUR) == RetentionResult(0)


# What it costs


@pytest.mark.parametrize(
    ("limits", "calls"),
    [
        (ENDLESS, ["get_many"]),
        (HOUR, ["get_many", "range_scan"]),
        (RetentionLimits(NO_LIMIT, 1 << 40), ["get_many", "range_scan"]),
    ],
)
async def test_where_nothing_is_due_a_run_reads_once_or_twice_and_writes_nothing(limits: RetentionLimits, calls: list[str]) -> None:
    async with aging(new=40) as log:
        counting = Counting(log.broker.shared)
        await log.retention(counting).run(PARTITION, limits)

        assert counting.calls == calls


# When to look


async def test_nothing_is_due_before_it_may_have_something_to_do() -> None:
    async with aging(new=4) as log:
        upkeep = log.retention()
        manifest = await log.broker.manifest()
        unknown = upkeep.is_due(PARTITION, manifest, HOUR)
        await upkeep.run(PARTITION, HOUR)
        later = upkeep.is_due(PARTITION, manifest, HOUR)
        altered = upkeep.is_due(PARTITION, manifest, RetentionLimits(1, NO_LIMIT))
        trimmed = upkeep.is_due(PARTITION, msgspec.structs.replace(manifest, log_start=2), HOUR)
        log.clock.advance(3_600 + 60)
        aged = upkeep.is_due(PARTITION, manifest, HOUR)
        await upkeep.run(PARTITION, HOUR)
        empty = upkeep.is_due(PARTITION, await log.broker.manifest(), HOUR)
        await log.append(1, age_h=2)
        late = upkeep.is_due(PARTITION, await log.broker.manifest(), HOUR)

        assert (unknown, later, altered, trimmed, aged, empty, late) == (True, False, True, True, True, False, True)
        assert not log.retention().is_due(PARTITION, Manifest(sequence_counter=9, last_append_ms=log.clock.now_ms()), ENDLESS)


async def test_by_size_a_partition_is_due_with_the_append_that_makes_it_too_large() -> None:
    async with aging(new=40) as log:
        upkeep = log.retention()
        fifty = RetentionLimits(NO_LIMIT, 50 * (await log.broker.manifest()).bytes_total // 40)
        for _ in range(3):
            await upkeep.run(PARTITION, fifty)
            seen: list[bool] = []
            while not seen or not seen[-1]:
                await log.append(1)
                seen.append(upkeep.is_due(PARTITION, await log.broker.manifest(), fifty))
            done = await upkeep.run(PARTITION, fifty)
            if done.removed:
                break

        assert done.removed == 2
        assert (await log.broker.manifest()).sequence_counter == 102


async def test_so_many_looks_are_remembered_and_a_partition_beyond_them_is_always_due() -> None:
    other = PARTITION._replace(partition=1)
    async with aging(new=4, limits=CompactorLimits(retention_looks_kept_max=1)) as log:
        upkeep = log.retention()
        manifest = await log.broker.manifest()
        await log.broker.shared.write([Put(PartitionKeys(other).manifest, encode(msgspec.structs.replace(manifest, pending=())), ABSENT)])
        for partition in (PARTITION, other):
            with contextlib.suppress(Unavailable):
                await upkeep.run(partition, RetentionLimits(NO_LIMIT, 1 << 40))
        due = [upkeep.is_due(partition, manifest, RetentionLimits(NO_LIMIT, 1 << 40)) for partition in (PARTITION, other)]
        upkeep.keep_only(frozenset({other}))

        assert due == [False, True]
        assert upkeep.is_due(PARTITION, manifest, HOUR), "it was somebody else's meanwhile"


# Faults


class Crash(Exception):
    """The process dies here."""


class Crashing:
    """A store that dies before its n-th write, or after it."""

    def __init__(self, inner: Any, *, at: int, is_done: bool) -> None:
        self._inner = inner
        self._left = at
        self._is_done = is_done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def write(self, ops: Sequence[WriteOp]) -> WriteOutcome:
        self._left -= 1
        if self._left < 0 and not self._is_done:
            raise Crash
        done: WriteOutcome = await self._inner.write(ops)
        if self._left < 0:
            raise Crash
        return done


WRITES = 4
"""log_start, then a key of index/ and two of segments/, one by one."""


@contextlib.asynccontextmanager
async def with_all_there_is_to_do() -> AsyncIterator[Aging]:
    async with aging(old=60, segments=3, limits=CompactorLimits(keys_per_delete=1)) as log:
        await log.append(DEFAULT_LIMITS.pending_entries_max, age_h=2)
        await log.append(DEFAULT_LIMITS.pending_entries_max)
        yield log


async def check_done(log: Aging) -> None:
    begin = 120 + 2 * DEFAULT_LIMITS.pending_entries_max
    assert (await log.broker.manifest()).log_start == begin
    assert await log.segment_ends() == []
    assert [end for end in await index_ends(log.broker.shared) if end < begin] == []
    assert await base_offsets(log.broker, begin) == [*range(begin, begin + 2 * DEFAULT_LIMITS.pending_entries_max, 2)]


@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", range(WRITES))
async def test_one_that_dies_at_any_step_leaves_what_the_next_one_finishes(at: int, is_done: bool) -> None:
    async with with_all_there_is_to_do() as log:
        begin = 120 + 2 * DEFAULT_LIMITS.pending_entries_max
        with pytest.raises(Crash):
            await log.retention(Crashing(log.broker.shared, at=at, is_done=is_done)).run(PARTITION, HOUR)
        assert await base_offsets(log.broker, begin) == [*range(begin, begin + 2 * DEFAULT_LIMITS.pending_entries_max, 2)]
        if not at and not is_done:
            assert await base_offsets(log.broker, 0) == [*range(0, begin + 2 * DEFAULT_LIMITS.pending_entries_max, 2)], (
                "nothing has gone before the CAS"
            )
        await log.run()

        await check_done(log)


@pytest.mark.parametrize("fault", ["request lost", "reply lost", "late", "refused"])
@pytest.mark.parametrize("at", range(WRITES))
async def test_a_write_without_an_answer_is_made_up_for(at: int, fault: str) -> None:
    async with with_all_there_is_to_do() as log:
        faulty = FaultyMetadata(log.broker.shared)
        upkeep = log.retention(faulty)
        faulty.faults.extend(["none"] * at + [fault])
        for _ in range(3):
            try:
                await upkeep.run(PARTITION, HOUR)
            except (Unavailable, OutcomeUnknown):
                await faulty.deliver_late()
        await faulty.deliver_late()

        assert not upkeep.is_due(PARTITION, await log.broker.manifest(), HOUR)
        await check_done(log)


async def test_appends_compactions_and_trims_meanwhile_are_no_reason_to_give_up() -> None:
    async with aging(old=40, new=7) as log:

        async def act() -> None:
            await log.append(3)
            await log.compact()
            await log.broker.parts.trimmer.trim(PARTITION, 33)

        done = await log.retention(Meanwhile(log.broker.shared, act)).run(PARTITION, HOUR)
        manifest = await log.broker.manifest()

        assert (done.log_start, manifest.log_start, manifest.compaction_cursor) == (80, 80, 100)
        assert await base_offsets(log.broker, 80) == [80, *range(82, 100, 2)]


async def test_log_start_does_not_go_back_where_a_client_deletes_more_meanwhile() -> None:
    async with aging(old=40, new=7) as log:
        trimmed = Meanwhile(log.broker.shared, lambda: log.broker.parts.trimmer.trim(PARTITION, 91))  # type: ignore[arg-type, return-value]
        done = await log.retention(trimmed).run(PARTITION, HOUR)

        assert (done.log_start, (await log.broker.manifest()).log_start) == (91, 91)


@pytest.mark.parametrize("state", [LogState.FENCED, LogState.DELETED])
async def test_a_log_that_is_closed_meanwhile_is_left_alone(state: LogState) -> None:
    async with aging(old=40, segments=2, new=7) as log:
        await log.broker.parts.trimmer.trim(PARTITION, 45)
        ends = await log.segment_ends()
        closed = Meanwhile(log.broker.shared, lambda: log.change(log_state=state))

        assert await log.retention(closed).run(PARTITION, HOUR) == RetentionResult(45)
        assert ((await log.broker.manifest()).log_start, await log.segment_ends()) == (45, ends)


async def test_a_key_that_a_merge_has_put_anew_stays_until_the_next_run_sees_it() -> None:
    async with aging(old=40, segments=2, new=7) as log:
        (segment,) = await listed_segments(log.broker.shared)

        async def put_anew() -> None:
            await log.broker.shared.write([Put(KEYS.segment(segment.last), encode(SegmentFact(entry=segment)), None)])

        upkeep = log.retention(Meanwhile(log.broker.shared, put_anew, at=1))
        await upkeep.run(PARTITION, HOUR)
        ends = await log.segment_ends()
        is_due = upkeep.is_due(PARTITION, await log.broker.manifest(), HOUR)
        await upkeep.run(PARTITION, HOUR)

        assert (ends, is_due, await log.segment_ends()) == ([segment.last], True, [])


async def test_entries_that_move_while_they_are_read_are_left_to_the_next_run() -> None:
    async with aging(old=40, new=7) as log:
        await log.broker.shared.write([DeleteRange(KEYS.index(0), KEYS.index(32).path)])

        assert await log.run() == RetentionResult(0)
        assert (await log.broker.manifest()).log_start == 0


async def test_a_store_that_does_not_answer_is_said_to_be_unavailable() -> None:
    async with aging(old=40, limits=CompactorLimits(call_timeout_s=0.01)) as log:

        class Silent(Counting):
            async def range_scan(self, _start: object, _end: object) -> Any:
                await asyncio.Event().wait()
                yield None

        with pytest.raises(Unavailable, match="did not answer"):
            await log.retention(Silent(log.broker.shared)).run(PARTITION, HOUR)


# Readers


async def read_from(broker: Rig, offset: int) -> int:
    """The base offset of what a broker serves that does not look at the record first: it keeps the one that it knows."""
    run = await broker.parts.reader.stored(broker.parts.partitions.get(PARTITION), offset, bytes_max=1)
    piece = run.from_offset(offset, 1, at_least_one=True)
    assert piece is not None
    return parse_header(b"".join(piece[0])).base_offset


@pytest.mark.parametrize("segments", [0, 2])
async def test_a_broker_that_has_not_heard_of_it_says_out_of_range_only_where_that_is_true(segments: int) -> None:
    async with (
        aging(old=40, segments=segments, new=40) as log,
        rig(shared=log.broker.shared, objects=log.broker.objects.inner, epoch=8) as other,
    ):
        view = other.parts.partitions.get(PARTITION)
        await other.parts.manifest_reads.refresh([view])
        await log.run()
        known = view.seen.manifest
        assert known is not None
        assert known.log_start == 0
        with pytest.raises(OffsetOutOfRange) as refused:
            await read_from(other, 3)

        assert (refused.value.log_start, refused.value.high_watermark) == (80, 160)
        assert [await read_from(other, offset) for offset in (80, 101, 158)] == [80, 100, 158]


@pytest.mark.parametrize("segments", [0, 2])
async def test_a_read_of_what_was_collected_meanwhile_goes_on_or_says_where_the_log_begins(segments: int) -> None:
    async with (
        aging(old=40, segments=segments, new=40) as log,
        rig(shared=log.broker.shared, objects=log.broker.objects.inner, epoch=8) as other,
    ):
        view = other.parts.partitions.get(PARTITION)
        await other.parts.manifest_reads.refresh([view])
        found = await other.parts.reader._index.find(view, 10)  # it keeps the key
        await log.run()
        key = segment_key(PARTITION, found.object_id) if segments else object_key(found.object_id)
        await log.broker.objects.inner.delete_many([key])
        with pytest.raises(NotFound):
            await log.broker.objects.inner.get_range(key, 0, 1)
        with pytest.raises(OffsetOutOfRange):
            await read_from(other, 10)

        assert await read_from(other, 80) == 80


async def test_offsets_by_time_are_found_beside_retention() -> None:
    async with aging(old=40, segments=2, new=40) as log, rig(shared=log.broker.shared, objects=log.broker.objects.inner, epoch=8) as other:
        before = await other.parts.time_search.first_at_or_after(PARTITION, 0)
        await log.run()
        after = await other.parts.time_search.first_at_or_after(PARTITION, 0)
        greatest = await other.parts.time_search.of_maximum(PARTITION)

        assert before is not None
        assert after is not None
        assert greatest is not None
        assert (before.offset, after.offset) == (0, 80)
        assert greatest.offset >= 80
