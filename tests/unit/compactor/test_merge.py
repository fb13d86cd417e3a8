"""Small segments become one: the log stays the same, whatever happens on the way."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
import pytest

from compactor.compaction import CompactionEnd
from compactor.limits import DEFAULT_LIMITS, CompactorLimits
from compactor.merge import MergeEnd, MergeResult
from compactor.plan import CompactionPolicy, MergePolicy
from storage.errors import Corrupt, OffsetOutOfRange, OutcomeUnknown, Unavailable
from storage.formats.manifest import LogState, SegmentEntry, SegmentFact, encode
from storage.formats.segment import HEADER_BYTES, segment_key
from storage.metadata.keys import PartitionKeys
from storage.metadata.port import ABSENT, Applied, Delete, DeleteRange, Put, WriteOp, WriteOutcome
from storage.vocabulary import ObjectId
from tests.kit.record_batches import record_batch
from tests.unit.compactor.compacting import PAIRS, compacting, left_behind, listed_segments, merging
from tests.unit.compactor.crashing import Crash, Crashing
from tests.unit.storage.log.rig import PARTITION, FaultyMetadata, Rig, rig

KEYS = PartitionKeys(PARTITION)
SEGMENTS = 4
"""Of two batches of two records each, the newest included."""


async def fill(broker: Rig, segments: int = SEGMENTS, *, begin: int = 0) -> list[SegmentEntry]:
    """Their times rise, but for the last batch of each segment."""
    made = []
    async with compacting(broker.shared, broker.objects) as compaction:
        for number in range(begin, begin + segments):
            await broker.send(record_batch(b"%d" % number, b"and", base_timestamp=1_000 + 10 * number))
            await broker.send(record_batch(b"%d" % number, b"and", base_timestamp=500 + number))
            segment = (await compaction.run(PARTITION)).segment
            assert segment is not None
            made.append(segment)
    return made


async def change(broker: Rig, **fields: Any) -> None:
    (record,) = await broker.shared.get_many([KEYS.manifest])
    assert record is not None
    changed = msgspec.structs.replace(await broker.manifest(), **fields)
    assert isinstance(await broker.shared.write([Put(KEYS.manifest, encode(changed), record.version)]), Applied)


async def everything(broker: Rig) -> tuple[list[bytes], list[object], object]:
    """What a broker that remembers nothing gives for each offset, and for each time."""
    async with rig(shared=broker.shared, objects=broker.objects.inner, epoch=8) as other:
        manifest = await other.manifest()
        log = other.parts.partitions.get(PARTITION)
        await other.parts.manifest_reads.refresh([log])
        reads = []
        for offset in range(manifest.log_start, manifest.sequence_counter):
            run = await other.parts.reader.stored(log, offset, bytes_max=1)
            piece = run.from_offset(offset, 1, at_least_one=True)
            assert piece is not None
            reads.append(b"".join(piece[0]))
        search = other.parts.time_search
        times = [await search.first_at_or_after(PARTITION, time) for time in (0, *range(495, 520), *range(995, 1_080, 3))]
        return reads, times, await search.of_maximum(PARTITION)


async def merge(broker: Rig, policy: MergePolicy = PAIRS, *, limits: CompactorLimits = DEFAULT_LIMITS) -> MergeResult:
    async with merging(broker.shared, broker.objects, policy=policy, limits=limits) as merger:
        return await merger.run(PARTITION)


async def segment_objects(broker: Rig) -> list[str]:
    return [stat.key async for stat in broker.objects.list("segments/")]  # type: ignore[operator]


async def test_small_neighbours_become_one_segment_and_the_log_reads_as_before() -> None:
    async with rig() as broker:
        sources = await fill(broker)
        before = await everything(broker)
        result = await merge(broker)
        manifest = await broker.manifest()

        assert (result.ended, result.sources, result.recovered) == (MergeEnd.MERGED, 3, False)
        assert result.merged is not None
        assert (result.merged.base, result.merged.last) == (0, 11)
        assert (manifest.rewritten, manifest.fmt, manifest.segment) == (None, 1, sources[3])
        assert await listed_segments(broker.shared) == [result.merged] * 3, "under every key in its range"
        assert len(await segment_objects(broker)) == 5, "the old ones are the collector's"
        assert await left_behind(broker.shared) == []
        assert await everything(broker) == before

        await broker.objects.inner.delete_many([segment_key(PARTITION, one.object_id) for one in sources[:3]])

        assert await everything(broker) == before


async def test_a_partition_without_segments_to_merge_is_read_and_not_claimed() -> None:
    async with rig() as broker:
        await fill(broker, 2)
        writes = [0]
        async with merging(Crashing(broker.shared, at=0, is_done=False, shared=writes), broker.objects) as merger:
            assert (await merger.run(PARTITION)).ended is MergeEnd.NOTHING_DUE
        assert writes == [0]


async def test_merges_are_merged_and_the_newest_segment_never_is() -> None:
    async with rig() as broker:
        merged = []
        for begin in range(0, 16, 4):
            newest = (await fill(broker, 4, begin=begin))[-1]
            merged.append((await merge(broker)).merged)
            assert (await merge(broker)).ended is MergeEnd.NOTHING_DUE
        before = await everything(broker)

        assert [(one.base, one.last) for one in merged if one] == [(0, 11), (0, 27), (0, 43), (0, 59)]
        assert await listed_segments(broker.shared) == [merged[-1]] * 15
        assert (await broker.manifest()).segment == newest
        assert await everything(broker) == before


async def test_nothing_is_due_without_enough_small_neighbours() -> None:
    async with rig() as broker:
        assert (await merge(broker)).ended is MergeEnd.NOTHING_DUE
        await fill(broker)

        assert (await merge(broker, MergePolicy())).ended is MergeEnd.NOTHING_DUE
        assert (await merge(broker, MergePolicy(count_min=2, growth_min=1, segment_bytes=800))).ended is MergeEnd.NOTHING_DUE
        assert (await broker.manifest()).rewritten is None
        assert await left_behind(broker.shared) == []


async def test_segments_that_nobody_may_read_any_more_are_not_merged() -> None:
    async with rig() as broker:
        await fill(broker, 6)
        await broker.parts.trimmer.trim(PARTITION, 9)
        merged = (await merge(broker)).merged

        assert merged is not None
        assert (merged.base, merged.last) == (8, 19), "the one with the log start is whole"


async def test_a_plan_looks_back_so_far_and_behind_so_many_large_segments() -> None:
    async with rig() as broker:
        await fill(broker, 8)
        limits = CompactorLimits(merge_large_passed_max=2)
        assert (await merge(broker, MergePolicy(count_min=2, segment_bytes=1), limits=limits)).ended is MergeEnd.NOTHING_DUE
        merged = (await merge(broker, limits=CompactorLimits(merge_large_passed_max=2, merge_segments_read_max=3))).merged

        assert merged is not None
        assert (merged.base, merged.last) == (16, 27)


async def test_what_reaches_above_the_manifest_that_was_read_is_not_merged() -> None:
    """The record is old: the newest segment of then has been merged since, and its entry is under the keys below it."""
    async with rig() as broker:
        sources = await fill(broker)
        newer = msgspec.structs.replace(sources[2], last=sources[3].last)
        await broker.shared.write([Put(KEYS.segment(sources[2].last), encode(SegmentFact(entry=newer)), None)])

        assert (await merge(broker)).ended is MergeEnd.NOTHING_DUE


async def test_a_partition_that_is_not_there_or_was_deleted_is_gone() -> None:
    async with rig() as broker:
        async with merging(broker.shared, broker.objects) as merger:
            assert (await merger.run(PARTITION._replace(partition=9))).ended is MergeEnd.GONE
        await fill(broker)
        await change(broker, log_state=LogState.DELETED)

        assert (await merge(broker)).ended is MergeEnd.GONE


async def meanwhile(broker: Rig, act: Callable[[], Awaitable[object]]) -> MergeResult:
    """`act` runs when the object of the merge is about to be put."""
    put = broker.objects.inner.put_if_absent
    acts = [act]

    async def acting(key: str, parts: Any) -> None:
        if acts:
            await acts.pop()()
        await put(key, parts)

    broker.objects.put_if_absent = acting  # type: ignore[method-assign]
    return await merge(broker)


@pytest.mark.parametrize(
    ("fields", "ended"),
    [
        ({"log_state": LogState.DELETED}, MergeEnd.GONE),
        ({"revoked_floor": ObjectId("7" + "Z" * 25)}, MergeEnd.REVOKED),
        ({"segment": SegmentEntry(8, 15, ObjectId("7" + "Z" * 25), 1, 1, 1)}, MergeEnd.OVERTAKEN),
    ],
)
async def test_a_merge_that_is_refused_leaves_its_object_where_it_is(fields: dict[str, Any], ended: MergeEnd) -> None:
    async with rig() as broker:
        sources = await fill(broker)
        result = await meanwhile(broker, lambda: change(broker, **fields))

        assert (result.ended, result.merged) == (ended, None)
        assert len(await segment_objects(broker)) == 5, "a merger deletes nothing"
        assert await listed_segments(broker.shared) == sources[:3]
        assert (await broker.manifest()).rewritten is None


async def test_a_merge_is_refused_while_another_is_under_way() -> None:
    async with rig() as broker:
        sources = await fill(broker)
        other = SegmentEntry(0, 7, ObjectId("01J00000000000000000000000"), 1_000, 1_000, 1_000)
        result = await meanwhile(broker, lambda: change(broker, fmt=2, rewriting=other))

        assert result.ended is MergeEnd.OVERTAKEN
        assert (await broker.manifest()).rewritten == other
        assert await listed_segments(broker.shared) == sources[:3]


async def test_appends_and_compactions_meanwhile_are_no_reason_to_give_up() -> None:
    async with rig() as broker:
        await fill(broker)
        inner = broker.shared.write

        async def also_appending(ops: Sequence[WriteOp]) -> WriteOutcome:
            """The manifest moves between the touch of the sources and the CAS, at first."""
            if len(moves) and isinstance(ops[-1], Put) and b'"rewritten"' in ops[-1].value:
                await moves.pop()()
            return await inner(ops)

        async def compact() -> None:
            async with compacting(broker.shared, broker.objects) as compaction:
                (claim,) = await broker.shared.get_many([KEYS.compactor_claim])
                assert claim is not None
                await inner([Delete(KEYS.compactor_claim, claim.version)])
                assert (await compaction.run(PARTITION)).ended is CompactionEnd.COMPACTED

        moves: list[Callable[[], Awaitable[object]]] = [compact, lambda: broker.send(record_batch(b"new"))]
        faulty = FaultyMetadata(broker.shared)
        faulty.write = also_appending  # type: ignore[method-assign]
        async with merging(faulty, broker.objects) as merger:
            result = await merger.run(PARTITION)

        assert (result.ended, moves) == (MergeEnd.MERGED, [])
        assert [one.last for one in await listed_segments(broker.shared)] == [11, 11, 11, 15]


async def test_of_two_compactors_the_second_leaves_the_partition_to_the_first() -> None:
    async with rig() as broker:
        await fill(broker)
        seen: list[object] = []

        async def act() -> None:
            seen.append((await merge(broker)).ended)
            async with compacting(broker.shared, broker.objects) as compaction:
                seen.append((await compaction.run(PARTITION)).ended)

        result = await meanwhile(broker, act)

        assert (result.ended, seen) == (MergeEnd.MERGED, [MergeEnd.CLAIMED, CompactionEnd.CLAIMED])


async def unclaim(broker: Rig) -> None:
    (claim,) = await broker.shared.get_many([KEYS.compactor_claim])
    assert claim is not None
    await broker.shared.write([Delete(KEYS.compactor_claim, claim.version)])


async def test_without_its_claim_a_merger_that_another_has_overtaken_gives_up() -> None:
    async with rig() as broker:
        await fill(broker)
        before = await everything(broker)
        other: list[MergeResult] = []

        async def act() -> None:
            await unclaim(broker)
            other.append(await merge(broker))

        result = await meanwhile(broker, act)

        assert (result.ended, other[0].ended) == (MergeEnd.OVERTAKEN, MergeEnd.MERGED)
        assert await listed_segments(broker.shared) == [other[0].merged] * 3
        assert await everything(broker) == before


async def test_sources_that_retention_has_deleted_are_not_brought_back() -> None:
    async with rig() as broker:
        sources = await fill(broker)

        async def act() -> None:
            await broker.parts.trimmer.trim(PARTITION, 8)
            await broker.shared.write([DeleteRange(KEYS.segment(0), KEYS.segment(8).path)])

        assert (await meanwhile(broker, act)).ended is MergeEnd.OVERTAKEN
        assert await listed_segments(broker.shared) == sources[2:3]


async def test_a_merge_that_the_log_start_has_passed_is_cleared_without_its_keys() -> None:
    """Model: F-rewritten-below."""
    async with rig() as broker:
        await fill(broker, 6)
        with pytest.raises(Crash):
            async with merging(Crashing(broker.shared, at=2, is_done=True, shared=[0]), broker.objects) as merger:
                await merger.run(PARTITION)
        assert (await broker.manifest()).rewritten is not None
        await broker.parts.trimmer.trim(PARTITION, 21)
        await broker.shared.write([DeleteRange(KEYS.segment(0), KEYS.segment(20).path)])

        assert (await merge(broker)).recovered
        assert (await broker.manifest()).rewritten is None
        assert await listed_segments(broker.shared) == []


async def test_a_merge_with_the_log_start_in_it_is_finished_under_the_keys_that_are_left() -> None:
    async with rig() as broker:
        await fill(broker)
        with pytest.raises(Crash):
            async with merging(Crashing(broker.shared, at=2, is_done=True, shared=[0]), broker.objects) as merger:
                await merger.run(PARTITION)
        await broker.parts.trimmer.trim(PARTITION, 6)
        await broker.shared.write([Delete(KEYS.segment(3))])
        before = await everything(broker)
        merged = (await merge(broker)).merged

        assert await listed_segments(broker.shared) == [merged] * 2
        assert await everything(broker) == before


async def test_the_entry_of_a_source_that_arrives_late_changes_nothing() -> None:
    """Model: F-merge-late-put. It travelled beside a CAS that was refused."""
    async with rig() as broker:
        sources = await fill(broker)
        before = await everything(broker)
        merged = (await merge(broker)).merged
        for source in sources[:3]:
            await broker.shared.write([Put(KEYS.segment(source.last), encode(SegmentFact(entry=source)), ABSENT)])

        assert await listed_segments(broker.shared) == [merged] * 3
        assert await everything(broker) == before


async def test_whoever_finishes_a_merge_that_was_merged_again_long_ago_leaves_that_alone() -> None:
    """It read the manifest, and paused. The object it would put into segments/ may be gone."""
    async with rig() as broker:
        await fill(broker)
        with pytest.raises(Crash):
            async with merging(Crashing(broker.shared, at=2, is_done=True, shared=[0]), broker.objects) as merger:
                await merger.run(PARTITION)
        first = (await broker.manifest()).rewritten
        assert first is not None
        (old,) = await broker.shared.get_many([KEYS.manifest])
        await merge(broker)
        await fill(broker, 2, begin=SEGMENTS)
        again = (await merge(broker)).merged
        before = await everything(broker)
        inner = broker.shared.get_many

        async def paused(wanted: Sequence[Any]) -> list[Any]:
            return [old if key == KEYS.manifest else found for key, found in zip(wanted, await inner(wanted), strict=True)]

        faulty = FaultyMetadata(broker.shared)
        faulty.get_many = paused  # type: ignore[method-assign]
        async with merging(faulty, broker.objects) as merger:
            with pytest.raises(Unavailable, match="merged meanwhile"):
                await merger.run(PARTITION)

        assert await listed_segments(broker.shared) == [again] * 5
        assert await everything(broker) == before


async def test_a_merge_from_an_old_scan_is_not_committed() -> None:
    """Model: F-merge-stale. A deposed leader shows the sources of a merge that is over."""
    async with rig() as broker:
        await fill(broker)
        inner = broker.shared.get_many
        ends = [3, 7, 11]
        old = {KEYS.segment(end).path: record for end, record in zip(ends, await inner([KEYS.segment(end) for end in ends]), strict=True)}
        merged = (await merge(broker)).merged
        before = await everything(broker)

        async def stale(wanted: Sequence[Any]) -> list[Any]:
            return [old.get(key.path, found) for key, found in zip(wanted, await inner(wanted), strict=True)]

        faulty = FaultyMetadata(broker.shared)
        faulty.get_many = stale  # type: ignore[method-assign]
        async with merging(faulty, broker.objects) as merger:
            with pytest.raises(Unavailable, match="changed all the time"):
                await merger.run(PARTITION)

        assert (await broker.manifest()).rewritten is None
        assert await listed_segments(broker.shared) == [merged] * 3
        assert await everything(broker) == before


@pytest.mark.parametrize("position", [HEADER_BYTES + 8, -100, -9])
async def test_a_damaged_source_becomes_no_merge(position: int) -> None:
    async with rig() as broker:
        sources = await fill(broker)
        key = segment_key(PARTITION, sources[1].object_id)
        data = bytearray(await broker.objects.inner.get_range(key, 0, sources[1].size_bytes))
        data[position] ^= 1
        await broker.objects.inner.delete_many([key])
        await broker.objects.inner.put_if_absent(key, [data])
        with pytest.raises(Corrupt, match=key):
            await merge(broker)

        assert (await broker.manifest()).rewritten is None
        assert len(await segment_objects(broker)) == 4


async def test_a_source_whose_object_is_missing_is_an_alarm_unless_it_was_merged() -> None:
    async with rig() as broker:
        sources = await fill(broker)
        get_range = broker.objects.inner.get_range

        async def gone(key: str, start: int, end: int) -> bytes:
            broker.objects.inner.get_range = get_range  # type: ignore[method-assign]
            await unclaim(broker)
            await merge(broker)
            await broker.objects.inner.delete_many([segment_key(PARTITION, one.object_id) for one in sources[:3]])
            return await get_range(key, start, end)

        broker.objects.inner.get_range = gone  # type: ignore[method-assign]
        assert (await merge(broker)).ended is MergeEnd.OVERTAKEN
        more = await fill(broker, 3, begin=SEGMENTS)
        await broker.objects.inner.delete_many([segment_key(PARTITION, more[0].object_id)])

        with pytest.raises(Corrupt, match="the object of a live segment is missing"):
            await merge(broker)


async def test_a_source_that_was_trimmed_while_it_was_read_and_lost_its_object_before_its_key_is_no_alarm() -> None:
    async with rig() as broker:
        sources = await fill(broker)
        get_range = broker.objects.inner.get_range

        async def gone(key: str, start: int, end: int) -> bytes:
            broker.objects.inner.get_range = get_range  # type: ignore[method-assign]
            await change(broker, log_start=sources[0].last + 1)
            await broker.objects.inner.delete_many([segment_key(PARTITION, sources[0].object_id)])
            return await get_range(key, start, end)

        broker.objects.inner.get_range = gone  # type: ignore[method-assign]
        overtaken = await merge(broker)
        again = await merge(broker)

    assert (overtaken.ended, again.ended) == (MergeEnd.OVERTAKEN, MergeEnd.MERGED)


async def test_an_entry_that_contradicts_its_object_becomes_no_merge() -> None:
    async with rig() as broker:
        sources = await fill(broker)
        wrong = msgspec.structs.replace(sources[1], object_id=sources[0].object_id, size_bytes=sources[0].size_bytes)
        await broker.shared.write([Put(KEYS.segment(7), encode(SegmentFact(entry=wrong)), None)])

        with pytest.raises(Corrupt, match="covers other offsets than its entry says"):
            await merge(broker)


async def test_a_merge_of_many_keys_is_put_in_several_requests() -> None:
    async with rig() as broker:
        await fill(broker, 8)
        merged = (await merge(broker, limits=CompactorLimits(merge_keys_per_put=2))).merged

        assert await listed_segments(broker.shared) == [merged] * 7


EFFECTS = 6
"""Claim, object, touch, CAS, keys, CAS; then the claim goes."""


@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", range(EFFECTS + 1))
async def test_a_merger_that_dies_at_any_step_leaves_what_the_next_one_finishes(at: int, is_done: bool) -> None:
    async with rig() as broker:
        sources = await fill(broker)
        before = await everything(broker)
        counted = [0]
        stores = [Crashing(store, at=at, is_done=is_done, shared=counted) for store in (broker.shared, broker.objects)]
        with pytest.raises(Crash):
            async with merging(*stores) as merger:
                await merger.run(PARTITION)
        assert counted[0] >= at + 1
        assert await everything(broker) == before, "nobody has gone on with it yet"
        results = [await merge(broker), await merge(broker)]
        manifest = await broker.manifest()
        merged = (await listed_segments(broker.shared))[0]

        assert {result.ended for result in results} <= {MergeEnd.MERGED, MergeEnd.NOTHING_DUE}
        assert len(await segment_objects(broker)) <= len(sources) + 2, "what was committed is not written again"
        assert (manifest.rewritten, manifest.segment) == (None, sources[-1])
        assert (merged.base, merged.last) == (0, 11)
        assert await listed_segments(broker.shared) == [merged] * 3
        assert await left_behind(broker.shared) == []
        await broker.objects.inner.delete_many([segment_key(PARTITION, one.object_id) for one in sources[:3]])
        assert await everything(broker) == before


@pytest.mark.parametrize("fault", ["request lost", "reply lost", "late", "refused"])
@pytest.mark.parametrize("at", range(EFFECTS))
async def test_a_write_without_an_answer_changes_nothing_of_the_log(at: int, fault: str) -> None:
    async with rig() as broker:
        sources = await fill(broker)
        before = await everything(broker)
        faulty = FaultyMetadata(broker.shared)
        async with merging(faulty, broker.objects) as merger:
            faulty.faults.extend(["none"] * at + [fault])
            for _ in range(4):
                try:
                    await merger.run(PARTITION)
                except (Unavailable, OutcomeUnknown):
                    await faulty.deliver_late()
            await faulty.deliver_late()
            await merger.run(PARTITION)
        merged = (await listed_segments(broker.shared))[0]

        assert (await broker.manifest()).rewritten is None
        assert (merged.base, merged.last) == (0, 11)
        assert await listed_segments(broker.shared) == [merged] * 3
        assert await left_behind(broker.shared) == []
        await broker.objects.inner.delete_many([segment_key(PARTITION, one.object_id) for one in sources[:3]])
        assert await everything(broker) == before


async def test_a_merged_log_equals_the_unmerged_one_under_random_schedules() -> None:
    """Also for a reader that remembers what it has read, and while objects that nothing names are collected."""
    merged = recovered = 0
    for seed in range(12):
        chance = random.Random(seed)
        policy = MergePolicy(count_min=chance.choice((2, 3)), growth_min=1, block_bytes=chance.choice((1, 300, 1 << 18)))
        async with rig() as broker, rig(shared=broker.shared, objects=broker.objects.inner, epoch=8) as reader:
            sent = 0
            times: list[int] = []
            for _ in range(250):
                match chance.choice(("send", "send", "send", "compact", "merge", "crash", "crash", "trim", "read", "read", "time")):
                    case "send":
                        await broker.send(record_batch(b"%d" % sent, base_timestamp=1_000 + chance.randint(0, 30)))
                        sent += 1
                        run = await _read(broker, sent - 1)
                        times.append(int.from_bytes(run[35:43], "big"))
                    case "compact":
                        at_once = CompactionPolicy(entries_due=1, segment_bytes=chance.choice((1, 200, 1 << 20)), block_bytes=1)
                        async with compacting(broker.shared, broker.objects, policy=at_once) as compaction:
                            for _ in range(3):
                                await compaction.run(PARTITION)
                    case "merge":
                        result = await merge(broker, policy)
                        merged += result.ended is MergeEnd.MERGED and not result.recovered
                        recovered += result.recovered
                    case "crash":
                        crashing = Crashing(broker.shared, at=chance.randrange(2, 6), is_done=True, shared=[0])
                        try:
                            async with merging(crashing, broker.objects, policy=policy) as merger:
                                await merger.run(PARTITION)
                        except Crash:
                            pass
                    case "trim":
                        log_start = min(sent, (await broker.manifest()).log_start + chance.randint(0, 2))
                        await broker.parts.trimmer.trim(PARTITION, log_start)
                        if log_start:
                            await broker.shared.write([DeleteRange(KEYS.segment(0), KEYS.segment(log_start).path)])
                    case "read":
                        await _collect(broker)
                        offset = chance.randrange(sent + 1)
                        try:
                            assert int.from_bytes((await _read(reader, offset))[:8], "big") == offset
                        except OffsetOutOfRange:
                            assert not (await broker.manifest()).log_start <= offset < sent
                    case "time":
                        wanted, start = chance.randint(1_000, 1_031), (await broker.manifest()).log_start
                        left = list(enumerate(times))[start:]
                        first = next(((at, time) for at, time in left if time >= wanted), None)
                        greatest = max(left, key=lambda found: (found[1], -found[0]), default=None)
                        search = reader.parts.time_search
                        assert await search.first_at_or_after(PARTITION, wanted) == first, f"{seed=} {wanted=} {start=} {times=}"
                        assert await search.of_maximum(PARTITION) == greatest, f"{seed=} {start=} {times=}"
            await _collect(broker)
            start = (await broker.manifest()).log_start
            reads, *_ = await everything(broker)

            assert [int.from_bytes(one[:8], "big") for one in reads] == list(range(start, sent))

    assert merged > 20
    assert recovered > 5


async def _read(broker: Rig, offset: int) -> bytes:
    log = broker.parts.partitions.get(PARTITION)
    await broker.parts.manifest_reads.refresh([log])
    manifest = await broker.manifest()
    if not manifest.log_start <= offset < manifest.sequence_counter:
        raise OffsetOutOfRange("", log_start=manifest.log_start, high_watermark=manifest.sequence_counter)
    run = await broker.parts.reader.stored(log, offset, bytes_max=1)
    piece = run.from_offset(offset, 1, at_least_one=True)
    assert piece is not None
    return b"".join(piece[0])


async def _collect(broker: Rig) -> None:
    """Segments that nothing names go at once."""
    manifest = await broker.manifest()
    named = [*await listed_segments(broker.shared), manifest.segment, manifest.rewritten]
    kept = {segment_key(PARTITION, one.object_id) for one in named if one is not None}
    await broker.objects.inner.delete_many([key for key in await segment_objects(broker) if key not in kept])
    await asyncio.sleep(0)
