"""Entries become segments: the log stays the same, whatever happens on the way."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
import pytest

from compactor.compaction import CompactionEnd, CompactionResult
from compactor.limits import CompactorLimits
from compactor.plan import CompactionPolicy
from runtime.clock import SystemClock
from storage.errors import Corrupt, OutcomeUnknown, Unavailable
from storage.formats.manifest import CompactionState, LogState, Manifest, decode_attempt, encode
from storage.formats.segment import decode_footer, parse_segment_key, segment_key
from storage.formats.wal import object_key
from storage.log.flush import EarlySettings
from storage.log.limits import DEFAULT_LIMITS, LogLimits
from storage.metadata.keys import PartitionKeys
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import Applied, DeleteRange, Put, WriteOp, WriteOutcome
from storage.objects.memory import MemoryObjectStore
from storage.vocabulary import ObjectId
from tests.kit.inline_entries import put_inline
from tests.kit.record_batches import record_batch
from tests.unit.compactor.compacting import compacting, index_ends, left_behind, listed_segments
from tests.unit.compactor.crashing import Crash, Crashing
from tests.unit.storage.log.rig import PARTITION, FaultyMetadata, Rig, rig

KEYS = PartitionKeys(PARTITION)
NEVER = CompactionPolicy(entries_due=1_000_000)


async def fill(broker: Rig, count: int = 40, *, begin: int = 0) -> None:
    for number in range(begin, begin + count):
        await broker.send(record_batch(b"%d" % number, b"and"))


async def segment_keys(broker: Rig) -> list[str]:
    return [stat.key async for stat in broker.objects.list("segments/")]  # type: ignore[operator]


async def change(broker: Rig, **fields: Any) -> None:
    (record,) = await broker.shared.get_many([KEYS.manifest])
    assert record is not None
    changed = msgspec.structs.replace(await broker.manifest(), **fields)
    assert isinstance(await broker.shared.write([Put(KEYS.manifest, encode(changed), record.version)]), Applied)


async def test_entries_become_a_segment_and_the_log_reads_as_before() -> None:
    async with rig() as broker, compacting(broker.shared, broker.objects) as compaction:
        await fill(broker)
        before = await broker.read_all()
        result = await compaction.run(PARTITION)
        manifest = await broker.manifest()

        assert result.ended is CompactionEnd.COMPACTED
        assert (manifest.compaction_cursor, manifest.segment) == (80, result.segment)
        assert manifest.sequence_counter == 80
        assert await index_ends(broker.shared) == []
        assert await left_behind(broker.shared) == []
        assert await segment_keys(broker) == [segment_key(PARTITION, manifest.segment.object_id)]  # type: ignore[union-attr]
    async with rig(shared=broker.shared, objects=broker.objects.inner, epoch=8) as other:
        assert await other.read_all() == before, "batches, offsets and all"


async def test_index_keys_of_many_entries_are_deleted_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    ranges: list[str] = []
    async with rig() as broker:
        await fill(broker)
        chunks, write = await index_ends(broker.shared), broker.shared.write

        async def note(ops: Sequence[WriteOp]) -> WriteOutcome:
            ranges.extend(op.end for op in ops if isinstance(op, DeleteRange))
            return await write(ops)

        monkeypatch.setattr(broker.shared, "write", note)
        async with compacting(broker.shared, broker.objects, limits=CompactorLimits(keys_per_delete=1)) as compaction:
            await compaction.run(PARTITION)

        assert len(ranges) == len(chunks) > 1
        assert await index_ends(broker.shared) == []


async def test_the_object_says_what_its_entry_says() -> None:
    async with rig() as broker, compacting(broker.shared, broker.objects) as compaction:
        await fill(broker)
        segment = (await compaction.run(PARTITION)).segment
        assert segment is not None
        key = segment_key(PARTITION, segment.object_id)
        data = await broker.objects.get_range(key, 0, segment.size_bytes)  # type: ignore[operator]
        footer = decode_footer(data, size_bytes=segment.size_bytes, key=key)

        assert (footer.base, footer.last, footer.batch_count, footer.record_count) == (0, 79, 40, 80)
        assert footer.max_timestamp == segment.max_timestamp == segment.running_max_timestamp


async def test_the_segment_before_gets_a_key_of_its_own_when_the_cursor_moves_on() -> None:
    async with rig() as broker, compacting(broker.shared, broker.objects) as compaction:
        made = []
        for begin in range(0, 60, 20):
            await fill(broker, 20, begin=begin)
            made.append((await compaction.run(PARTITION)).segment)

        assert await listed_segments(broker.shared) == made[:2]
        assert (await broker.manifest()).segment == made[2]
        assert [segment.base for segment in made if segment] == [0, 40, 80]
        assert len(await broker.read_all()) > 0


async def test_nothing_is_due_until_there_is_enough_or_it_is_old() -> None:
    async with rig() as broker, compacting(broker.shared, broker.objects, policy=NEVER) as compaction:
        await fill(broker)

        assert (await compaction.run(PARTITION)).ended is CompactionEnd.NOTHING_DUE
        assert (await broker.manifest()).compaction_cursor == 0
        assert await left_behind(broker.shared) == []


async def test_full_segments_are_made_one_by_one() -> None:
    async with rig() as broker, compacting(broker.shared, broker.objects, policy=CompactionPolicy(segment_bytes=500)) as compaction:
        await fill(broker)
        results = [await compaction.run(PARTITION) for _ in range(12)]

        assert [result.entries for result in results[:5]] == [7] * 5, "79 bytes each"
        assert {result.ended for result in results[:5]} == {CompactionEnd.COMPACTED}
        assert {result.ended for result in results[5:]} == {CompactionEnd.NOTHING_DUE}


async def test_compaction_begins_with_the_entry_that_holds_the_log_start() -> None:
    async with rig() as broker, compacting(broker.shared, broker.objects) as compaction:
        await fill(broker)
        await broker.parts.trimmer.trim(PARTITION, 11)
        segment = (await compaction.run(PARTITION)).segment

        assert segment is not None
        assert (segment.base, segment.last) == (10, 79)


async def test_a_partition_that_is_not_there_or_was_deleted_is_gone() -> None:
    async with rig() as broker, compacting(broker.shared, broker.objects) as compaction:
        assert (await compaction.run(PARTITION._replace(partition=9))).ended is CompactionEnd.GONE
        await fill(broker)
        await change(broker, log_state=LogState.DELETED)

        assert (await compaction.run(PARTITION)).ended is CompactionEnd.GONE
        assert await segment_keys(broker) == []


async def meanwhile(broker: Rig, act: Callable[[], Awaitable[None]]) -> CompactionResult:
    """`act` runs when the object of the segment is about to be put."""
    put = broker.objects.inner.put_if_absent

    async def acting(key: str, parts: Any) -> None:
        if key.startswith("segments/"):
            await act()
        await put(key, parts)

    async with compacting(broker.shared, broker.objects) as compaction:
        broker.objects.put_if_absent = acting  # type: ignore[method-assign]
        return await compaction.run(PARTITION)


@pytest.mark.parametrize(
    ("fields", "ended"),
    [
        ({"log_state": LogState.DELETED}, CompactionEnd.GONE),
        ({"revoked_floor": ObjectId("7" + "Z" * 25)}, CompactionEnd.REVOKED),
        ({"compaction_cursor": 2}, CompactionEnd.OVERTAKEN),
    ],
)
async def test_a_segment_that_is_refused_stays_where_it_is(fields: dict[str, Any], ended: CompactionEnd) -> None:
    async with rig() as broker:
        await fill(broker)
        result = await meanwhile(broker, lambda: change(broker, **fields))

        assert (result.ended, result.segment) == (ended, None)
        assert len(await segment_keys(broker)) == 1, "the loser deletes nothing"
        assert (await broker.manifest()).segment is None
        assert await left_behind(broker.shared) == []


async def test_appends_meanwhile_are_no_reason_to_begin_anew() -> None:
    async with rig() as broker:
        await fill(broker, 20)
        result = await meanwhile(broker, lambda: fill(broker, 20, begin=20))

        assert result.ended is CompactionEnd.COMPACTED
        assert (await broker.manifest()).compaction_cursor == 40
        assert await index_ends(broker.shared) == [63], "the chunk that holds the cursor stays"
    async with rig(shared=broker.shared, objects=broker.objects.inner, epoch=8) as other:
        assert (await other.read_all()).count(b"and") == 40


async def test_of_two_compactors_the_second_leaves_the_partition_to_the_first() -> None:
    async with rig() as broker:
        await fill(broker)
        seen: list[CompactionEnd] = []

        async def act() -> None:
            async with compacting(broker.shared, broker.objects) as other:
                seen.append((await other.run(PARTITION)).ended)

        result = await meanwhile(broker, act)

        assert (result.ended, seen) == (CompactionEnd.COMPACTED, [CompactionEnd.CLAIMED])


async def test_a_compactor_whose_claim_was_lost_ends_when_another_goes_on() -> None:
    async with rig() as broker:
        await fill(broker)
        took_over: list[CompactionResult] = []

        async def act() -> None:
            (claim,) = await broker.shared.get_many([KEYS.compactor_claim])
            assert claim is not None
            for session in broker.shared._sessions:
                await session.close()
            broker.objects.put_if_absent = broker.objects.inner.put_if_absent  # type: ignore[method-assign]
            async with compacting(broker.shared, broker.objects) as other:
                took_over.append(await other.run(PARTITION))

        result = await meanwhile(broker, act)

        assert (result.ended, took_over[0].ended) == (CompactionEnd.OVERTAKEN, CompactionEnd.COMPACTED)
        assert (await broker.manifest()).segment == took_over[0].segment
        assert await left_behind(broker.shared) == []


async def test_entries_that_go_while_they_are_read_are_another_compactions() -> None:
    async with rig() as broker, compacting(broker.shared, broker.objects) as compaction:
        await fill(broker)
        manifest = await broker.manifest()
        await broker.shared.write([DeleteRange(KEYS.index(0), KEYS.index(manifest.pending[0].base).path)])

        assert (await compaction.run(PARTITION)).ended is CompactionEnd.NOTHING_DUE
        assert await left_behind(broker.shared) == []


async def test_a_damaged_slice_becomes_no_segment() -> None:
    async with rig() as broker, compacting(broker.shared, broker.objects) as compaction:
        await fill(broker)
        manifest = await broker.manifest()
        key = object_key(manifest.pending[-1].object_id)
        position, length = manifest.pending[-1].batches[0]
        stored = bytearray(await broker.objects.get_range(key, 0, position + length))  # type: ignore[operator]
        stored[position + 70] ^= 1
        await broker.objects.delete_many([key])  # type: ignore[operator]
        await broker.objects.inner.put_if_absent(key, [stored])
        with pytest.raises(Corrupt, match=key):
            await compaction.run(PARTITION)

        assert await segment_keys(broker) == []
        assert (await broker.manifest()).compaction_cursor == 0


EFFECTS = 7
"""Claim, attempt, object, attempt, cursor, attempt, index; then attempt and claim go, in one write."""


@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", range(EFFECTS + 1))
async def test_a_compactor_that_dies_at_any_step_leaves_what_the_next_one_finishes(at: int, is_done: bool) -> None:
    async with rig() as broker:
        await fill(broker)
        before = await broker.read_all()
        counted = [0]
        stores = [Crashing(store, at=at, is_done=is_done, shared=counted) for store in (broker.shared, broker.objects)]
        with pytest.raises(Crash):
            async with compacting(*stores) as compaction:
                await compaction.run(PARTITION)
        assert counted[0] >= at + 1
    async with rig(shared=broker.shared, objects=broker.objects.inner, epoch=8) as other:
        assert await other.read_all() == before, "nobody has gone on with it yet"
        async with compacting(other.shared, other.objects) as compaction:
            results = [await compaction.run(PARTITION), await compaction.run(PARTITION)]
        manifest = await other.manifest()

        assert {result.ended for result in results} <= {CompactionEnd.COMPACTED, CompactionEnd.NOTHING_DUE}
        assert manifest.compaction_cursor == 80
        assert await index_ends(other.shared) == []
        assert await left_behind(other.shared) == []
    async with rig(shared=broker.shared, objects=broker.objects.inner, epoch=9) as third:
        assert await third.read_all() == before


async def test_a_finished_object_is_not_written_again_by_who_finds_the_attempt() -> None:
    async with rig() as broker:
        await fill(broker)
        with pytest.raises(Crash):
            async with compacting(Crashing(broker.shared, at=3, is_done=False, shared=[0]), broker.objects) as compaction:
                await compaction.run(PARTITION)
        (record,) = await broker.shared.get_many([KEYS.compaction])
        assert record is not None
        assert decode_attempt(record.value, path=record.path).state is CompactionState.COMMITTING
        async with compacting(broker.shared, broker.objects) as compaction:
            result = await compaction.run(PARTITION)

        assert (result.ended, result.recovered) == (CompactionEnd.COMPACTED, True)
        assert len(await segment_keys(broker)) == 1


@pytest.mark.parametrize("fault", ["request lost", "reply lost", "late", "refused"])
@pytest.mark.parametrize("at", range(EFFECTS))
async def test_a_write_without_an_answer_changes_nothing_of_the_log(at: int, fault: str) -> None:
    async with rig() as broker:
        await fill(broker)
        before = await broker.read_all()
        faulty = FaultyMetadata(broker.shared)
        async with compacting(faulty, broker.objects) as compaction:
            faulty.faults.extend(["none"] * at + [fault])
            ended: list[CompactionEnd] = []
            for _ in range(4):
                try:
                    ended.append((await compaction.run(PARTITION)).ended)
                except (Unavailable, OutcomeUnknown):
                    await faulty.deliver_late()
            await faulty.deliver_late()
            ended.append((await compaction.run(PARTITION)).ended)
        manifest = await broker.manifest()

        assert manifest.compaction_cursor == 80
        assert await left_behind(broker.shared) == []
    async with rig(shared=broker.shared, objects=broker.objects.inner, epoch=8) as other:
        assert await other.read_all() == before


OFTEN = LogLimits(early_age_s=0.001, early_delete_after_s=0.0, early_delete_pause_s=0.0)
"""Early objects are stored, and their pages go, while entries are compacted."""


async def test_a_compacted_log_equals_the_uncompacted_one_under_random_schedules() -> None:
    compacted = merged = trimmed = carried = 0
    for seed in range(12):
        chance = random.Random(seed)
        clock = SystemClock()
        shared, objects = MemoryMetadataStore(clock=clock, shards=1), MemoryObjectStore(clock=clock)
        policy = CompactionPolicy(entries_due=chance.randint(1, 20), segment_bytes=chance.choice([400, 4_000, 1 << 20]))
        expected = bytearray()
        early = EarlySettings(bytes_per_s=(0, 6_000, 20_000, 1 << 30)[seed % 4])
        async with (
            rig(shared=shared, objects=objects, early=early, limits=OFTEN) as one,
            rig(shared=shared, objects=objects, epoch=8, early=EarlySettings(bytes_per_s=(0, 1 << 30)[seed % 2])) as two,
        ):
            async with compacting(shared, objects, policy=policy) as compaction:
                for step in range(60):
                    match chance.randrange(4):
                        case 0 | 1:
                            count = chance.randint(1, DEFAULT_LIMITS.pending_entries_max)
                            await asyncio.gather(
                                *[chance.choice([one, two]).send(record_batch(b"%d.%d" % (step, n))) for n in range(count)]
                            )
                        case 2:
                            compacted += (await compaction.run(PARTITION)).ended is CompactionEnd.COMPACTED
                        case 3:
                            for reader in (one, two):
                                await check_reads(reader, chance)
                expected = bytearray(await two.read_all())
                carried += any(entry.is_early for entry in (await one.manifest()).pending)
            assert expected == await one.read_all()
            manifest = await one.manifest()
            merged += manifest.compaction_cursor > 0
            trimmed += manifest.compaction_cursor < manifest.sequence_counter
            assert expected.count(b"\x02") > 0

    assert compacted > 50
    assert carried > 2, "rings with early entries were compacted, too"
    assert merged == 12
    assert trimmed > 0


async def check_reads(reader: Rig, chance: random.Random) -> None:
    """A read of any offset brings the batch that holds it, from wherever it lies."""
    log = reader.parts.partitions.get(PARTITION)
    await reader.parts.manifest_reads.refresh([log])
    for _ in range(5):
        if log.seen.high_watermark <= 0:
            return
        offset = chance.randrange(log.seen.high_watermark)
        run = await reader.parts.reader.stored(log, offset, bytes_max=chance.choice([1, 1_000]))
        piece = run.from_offset(offset, 1, at_least_one=True)
        assert piece is not None
        assert int.from_bytes(piece[0][0][:8], "big") == offset, "batches of one record"


def test_names_of_segments_say_whose_they_are() -> None:
    object_id = ObjectId("01J00000000000000000000000")

    assert parse_segment_key(segment_key(PARTITION, object_id)) == (PARTITION, object_id)
    assert Manifest().compaction_cursor == 0


@pytest.mark.parametrize("early", [0, 1 << 30], ids=["objects", "early"])
async def test_what_is_not_due_says_when_it_will_be(early: int) -> None:
    shared, objects = MemoryMetadataStore(clock=SystemClock(), shards=1), MemoryObjectStore(clock=SystemClock())
    policy = CompactionPolicy(age_due_ms=1_000_000)
    async with (
        rig(shared=shared, objects=objects, early=EarlySettings(bytes_per_s=early)) as broker,
        compacting(shared, objects, policy=policy) as compaction,
    ):
        assert (await compaction.run(PARTITION)).due_ms is None
        await broker.send(record_batch(b"a"))
        result = await compaction.run(PARTITION)

    assert result.waiting_since_ms is not None
    assert result.due_ms == result.waiting_since_ms + policy.age_due_ms


async def test_a_segment_takes_no_more_of_what_entries_carry_than_memory_should_hold() -> None:
    shared, objects = MemoryMetadataStore(clock=SystemClock(), shards=1), MemoryObjectStore(clock=SystemClock())
    policy = CompactionPolicy(entries_due=1)
    async with rig(shared=shared, objects=objects) as broker:
        chunks = await put_inline(shared, [record_batch(b"%d" % number) for number in range(3 * DEFAULT_LIMITS.pending_entries_max)])
        before = await broker.read_all()
        async with compacting(shared, objects, policy=policy, limits=CompactorLimits(inline_bytes_read_max=1)) as compaction:
            segments = [(await compaction.run(PARTITION)).segment for _ in range(chunks)]
        after = await broker.read_all()

    assert [(one.base, one.last) for one in segments if one is not None] == [(0, 15), (16, 31), (32, 47)], "a page of the index at a time"
    assert after == before
