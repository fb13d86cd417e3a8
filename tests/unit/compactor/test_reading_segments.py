"""Reads below the compaction cursor, and reads of what moves meanwhile."""

import msgspec
import pytest

from compactor.plan import CompactionPolicy
from storage.errors import Corrupt, Unavailable
from storage.formats.manifest import SegmentEntry, SegmentFact, encode, with_rewritten
from storage.formats.segment import FOOTER_READ_BYTES, HEADER_BYTES, segment_key
from storage.formats.wal import object_key
from storage.limits import BLOCK_BYTES, MIB
from storage.log.index import entry_pages
from storage.log.limits import LogLimits
from storage.metadata.port import Applied, Delete, Put
from storage.recordbatch import parse_header
from tests.kit.record_batches import record_batch
from tests.unit.compactor.compacting import compacting
from tests.unit.storage.log.made_segments import IDS, KEYS, batch, counted_gets, put_segment, set_segments
from tests.unit.storage.log.rig import PARTITION, Rig, rig


async def read(broker: Rig, offset: int, *, bytes_max: int = 1) -> list[int]:
    """The base offsets of the batches that a fetch of `offset` gets."""
    log = broker.parts.partitions.get(PARTITION)
    await broker.parts.manifest_reads.refresh([log])
    run = await broker.parts.reader.stored(log, offset, bytes_max=bytes_max)
    piece = run.from_offset(offset, bytes_max, at_least_one=True)
    assert piece is not None
    view, found = memoryview(b"".join(piece[0])), []
    while len(view):
        header = parse_header(view)
        found.append(header.base_offset)
        view = view[header.size_bytes :]
    return found


@pytest.mark.parametrize("block_bytes", [1, 150, 1 << 20])
async def test_an_offset_in_a_gap_reads_the_first_batch_behind_it(block_bytes: int) -> None:
    async with rig() as broker:
        batches = [batch(3, records=2), batch(9), batch(20, records=5)]
        await set_segments(broker, await put_segment(broker, IDS[0], batches, base=0, last=30, block_bytes=block_bytes))
        found = {offset: await read(broker, offset) for offset in (0, 3, 4, 5, 8, 9, 10, 19, 20, 24)}

        assert found == {0: [3], 3: [3], 4: [3], 5: [9], 8: [9], 9: [9], 10: [20], 19: [20], 20: [20], 24: [20]}
        assert await read(broker, 0, bytes_max=1 << 20) == [3, 9, 20]


async def test_a_gap_at_the_end_of_a_segment_leads_to_the_next() -> None:
    async with rig() as broker:
        three = [
            await put_segment(broker, IDS[0], [batch(0)], base=0, last=9),
            await put_segment(broker, IDS[1], [batch(12)], base=10, last=19),
            await put_segment(broker, IDS[2], [batch(29)], base=20, last=29),
        ]
        await set_segments(broker, *three)

        assert [await read(broker, offset) for offset in (0, 1, 9, 10, 12, 13, 20, 29)] == [[0], [12], [12], [12], [12], [29], [29], [29]]


async def test_a_large_read_takes_several_blocks_and_a_small_one_part_of_a_block() -> None:
    async with rig() as broker:
        batches = [batch(offset, size=100) for offset in range(20)]
        size = len(batches[0])
        await set_segments(broker, await put_segment(broker, IDS[0], batches, base=0, last=19, block_bytes=3 * size))

        assert await read(broker, 4, bytes_max=1) == [4]
        assert await read(broker, 4, bytes_max=2 * size) == [4, 5]
        assert await read(broker, 4, bytes_max=8 * size) == [4, 5, 6, 7, 8]
        assert await read(broker, 4, bytes_max=9 * size) == [4, 5, 6, 7, 8, 9, 10, 11]


async def test_a_batch_that_does_not_fit_is_not_read_without_need() -> None:
    async with rig() as broker:
        await set_segments(broker, await put_segment(broker, IDS[0], [batch(0, size=1_000)], base=0, last=0))
        log = broker.parts.partitions.get(PARTITION)
        await broker.parts.manifest_reads.refresh([log])

        assert await broker.parts.reader.stored_within(log, 0, bytes_max=100, at_least_one=False) is None


async def test_a_batch_whose_damaged_header_says_that_it_is_larger_than_its_block_is_damage_also_where_it_need_not_be_read() -> None:
    async with rig() as broker:
        segment = await put_segment(broker, IDS[0], [batch(0, size=1_000)], base=0, last=0)
        await set_segments(broker, segment)
        key = segment_key(PARTITION, segment.object_id)
        data = bytearray(await broker.objects.inner.get_range(key, 0, segment.size_bytes))
        data[HEADER_BYTES + 9] ^= 1  # of four bytes of length, the second
        await broker.objects.inner.delete_many([key])
        await broker.objects.inner.put_if_absent(key, [data])
        log = broker.parts.partitions.get(PARTITION)
        await broker.parts.manifest_reads.refresh([log])

        with pytest.raises(Corrupt, match=key):
            await broker.parts.reader.stored_within(log, 0, bytes_max=100, at_least_one=False)


async def test_a_footer_is_read_once_and_a_small_segment_with_one_get() -> None:
    async with rig() as broker:
        await set_segments(broker, await put_segment(broker, IDS[0], [batch(offset) for offset in range(50)], base=0, last=49))
        gets = await counted_gets(broker)
        assert [await read(broker, offset) for offset in range(50)] == [[offset] for offset in range(50)]

        assert len(gets) == 1


@pytest.mark.parametrize("position", [HEADER_BYTES, 100, -60, -9])
async def test_damage_is_named_and_never_served(position: int) -> None:
    async with rig() as broker:
        segment = await put_segment(broker, IDS[0], [batch(0), batch(1)], base=0, last=1)
        await set_segments(broker, segment)
        key = segment_key(PARTITION, segment.object_id)
        data = bytearray(await broker.objects.inner.get_range(key, 0, segment.size_bytes))
        data[position] ^= 1
        await broker.objects.inner.delete_many([key])
        await broker.objects.inner.put_if_absent(key, [data])

        with pytest.raises(Corrupt, match=key):
            await read(broker, 0)


async def test_a_segment_that_is_missing_is_an_alarm() -> None:
    async with rig() as broker:
        segment = await put_segment(broker, IDS[0], [batch(0)], base=0, last=0)
        await set_segments(broker, segment)
        await broker.objects.inner.delete_many([segment_key(PARTITION, segment.object_id)])

        with pytest.raises(Corrupt, match="object of a live entry is missing"):
            await read(broker, 0)


async def test_a_segment_that_another_has_replaced_is_read_from_that_one() -> None:
    async with rig() as broker:
        first = await put_segment(broker, IDS[0], [batch(0)], base=0, last=0)
        second = await put_segment(broker, IDS[1], [batch(1)], base=1, last=1)
        newest = await put_segment(broker, IDS[2], [batch(2)], base=2, last=2)
        await set_segments(broker, first, second, newest)
        assert [await read(broker, offset) for offset in range(3)] == [[0], [1], [2]]
        merged = await put_segment(broker, IDS[3], [batch(0), batch(1)], base=0, last=1)
        await set_segments(broker, merged, newest)
        await broker.objects.inner.delete_many([segment_key(PARTITION, one) for one in IDS[:2]])
        broker.parts.reader._blocks.drop(segment_key(PARTITION, IDS[0]))

        assert await read(broker, 0, bytes_max=1 << 20) == [0, 1]
        assert broker.telemetry.registry.get_sample_value("forebay_read_damage_total", {"cause": "missing"}) in (None, 0.0)


async def set_rewritten(broker: Rig, merged: SegmentEntry | None) -> None:
    (record,) = await broker.shared.get_many([KEYS.manifest])
    assert record is not None
    manifest = with_rewritten(await broker.manifest(), merged)
    assert isinstance(await broker.shared.write([Put(KEYS.manifest, encode(manifest), record.version)]), Applied)


async def pages_from(broker: Rig, offset: int) -> list[tuple[int, int]]:
    manifest = await broker.manifest()
    return [(one.base, one.last) async for page in entry_pages(broker.shared, KEYS, manifest, offset) for one in page]


async def three_and_a_merge(broker: Rig) -> tuple[list[SegmentEntry], SegmentEntry]:
    """Four segments of two offsets, and one of the second and the third."""
    segments = [await put_segment(broker, IDS[n], [batch(2 * n), batch(2 * n + 1)], base=2 * n, last=2 * n + 1) for n in range(4)]
    merged = await put_segment(broker, IDS[4], [batch(offset) for offset in range(2, 6)], base=2, last=5)
    await set_segments(broker, *segments)
    return segments, merged


async def test_a_merge_that_the_manifest_names_goes_before_the_keys_of_its_sources() -> None:
    async with rig() as broker:
        segments, merged = await three_and_a_merge(broker)
        await set_rewritten(broker, merged)
        await broker.objects.inner.delete_many([segment_key(PARTITION, one.object_id) for one in segments[1:3]])

        assert [await read(broker, offset) for offset in range(8)] == [[offset] for offset in range(8)]
        assert await read(broker, 2, bytes_max=1 << 20) == [2, 3, 4, 5]


@pytest.mark.parametrize("keys", [(), (3,), (5,), (3, 5)])
@pytest.mark.parametrize("is_named", [True, False])
async def test_entries_are_gone_through_once_wherever_a_merge_has_got_to(keys: tuple[int, ...], is_named: bool) -> None:
    if not is_named and keys != (3, 5):
        return
    async with rig() as broker:
        _, merged = await three_and_a_merge(broker)
        await broker.shared.write([Put(KEYS.segment(key), encode(SegmentFact(entry=merged)), None) for key in keys])
        await set_rewritten(broker, merged if is_named else None)
        found = {offset: await pages_from(broker, offset) for offset in range(9)}

        whole = [(0, 1), (2, 5), (6, 7)]
        assert found == {offset: whole[index:] for offset, index in enumerate((0, 0, 1, 1, 1, 1, 2, 2, 3))}
        assert [await read(broker, offset) for offset in range(8)] == [[offset] for offset in range(8)]


async def test_the_keys_of_a_merge_that_lie_below_the_log_start_are_not_missed() -> None:
    async with rig() as broker:
        _, merged = await three_and_a_merge(broker)
        await broker.shared.write([Put(KEYS.segment(key), encode(SegmentFact(entry=merged)), None) for key in (3, 5)])
        await broker.parts.trimmer.trim(PARTITION, 4)
        await broker.shared.write([Delete(KEYS.segment(key)) for key in (1, 3)])

        assert [await read(broker, offset) for offset in range(4, 8)] == [[4], [5], [6], [7]]
        assert await pages_from(broker, 4) == [(2, 5), (6, 7)]


async def test_a_reader_that_has_read_a_merge_does_not_go_back_behind_it() -> None:
    async with rig() as broker:
        _, merged = await three_and_a_merge(broker)
        assert await read(broker, 3) == [3]
        await set_rewritten(broker, merged)
        assert await read(broker, 3) == [3]
        await set_rewritten(broker, None)
        log = broker.parts.partitions.get(PARTITION)
        await broker.parts.manifest_reads.refresh([log])

        assert await broker.parts.reader._index.find(log, 3) == merged


async def test_what_is_compacted_and_collected_while_it_is_read_is_read_all_the_same() -> None:
    async with rig() as broker, rig(shared=broker.shared, objects=broker.objects.inner, epoch=8) as other:
        for number in range(20):
            await broker.send(record_batch(b"%d" % number))
        assert await read(other, 3) == [3]
        wal = [stat.key async for stat in broker.objects.list("wal/")]  # type: ignore[operator]
        async with compacting(broker.shared, broker.objects, policy=CompactionPolicy(entries_due=1)) as compaction:
            await compaction.run(PARTITION)
        await broker.objects.inner.delete_many(wal)
        log = other.parts.partitions.get(PARTITION)
        run = await other.parts.reader.stored(log, 7, bytes_max=1)

        assert run.from_offset(7, 1, at_least_one=True) is not None
        assert object_key(IDS[0]) not in wal


async def test_a_large_segment_has_its_footer_read_apart_and_its_blocks_as_they_are_needed() -> None:
    async with rig(cache_bytes=16 * MIB) as broker:
        batches = [batch(offset, size=MIB) for offset in range(6)]
        segment = await put_segment(broker, IDS[0], batches, base=0, last=5)
        await set_segments(broker, segment)
        gets = await counted_gets(broker)
        assert [await read(broker, offset, bytes_max=MIB) for offset in range(6)] == [[offset] for offset in range(6)]

        assert gets[0] == (segment.size_bytes - FOOTER_READ_BYTES, segment.size_bytes)
        assert len(gets) <= 1 + -(-segment.size_bytes // BLOCK_BYTES), "at most one for each 4 MiB"
        assert segment.size_bytes > BLOCK_BYTES


async def test_a_footer_of_many_blocks_is_read_in_two_steps() -> None:
    async with rig() as broker:
        count = FOOTER_READ_BYTES // 40 + 10
        segment = await put_segment(broker, IDS[0], [batch(offset) for offset in range(count)], base=0, last=count - 1)
        await set_segments(broker, segment)

        assert [await read(broker, offset) for offset in (0, count - 1)] == [[0], [count - 1]]


async def test_footers_beyond_the_memory_for_them_are_read_again() -> None:
    limits = LogLimits(footers_bytes_max=3_000)
    async with rig(limits=limits) as broker:
        entries = [await put_segment(broker, IDS[number], [batch(number)], base=number, last=number) for number in range(5)]
        await set_segments(broker, *entries)
        for _ in range(2):
            assert [await read(broker, offset) for offset in range(5)] == [[offset] for offset in range(5)]
        kept = broker.parts.reader.segments

        assert len(kept._footers) == 2
        assert kept._footers.total_cost <= limits.footers_bytes_max


async def test_an_entry_that_contradicts_its_segment_is_damage() -> None:
    async with rig() as broker:
        segment = await put_segment(broker, IDS[0], [batch(0), batch(1)], base=0, last=1)
        await set_segments(broker, msgspec.structs.replace(segment, last=2))

        with pytest.raises(Corrupt, match="covers other offsets than its entry says"):
            await read(broker, 0)


async def test_a_log_whose_entries_go_all_the_time_is_refused_for_now() -> None:
    async with rig(limits=LogLimits(read_sources_max=2)) as broker:
        entries = [
            await put_segment(broker, IDS[number], [batch(10 * number)], base=10 * number, last=10 * number + 9) for number in range(2)
        ]
        await set_segments(broker, *entries)

        assert await read(broker, 9) == [10]
        async with rig(shared=broker.shared, objects=broker.objects.inner, limits=LogLimits(read_sources_max=1)) as other:
            with pytest.raises(Unavailable, match="compacted faster"):
                await read(other, 9)


@pytest.mark.parametrize("position", [HEADER_BYTES + 10, -60], ids=["a batch", "the footer"])
async def test_what_came_damaged_once_is_read_once_more_and_nobody_hears_of_it(position: int) -> None:
    async with rig() as broker:
        await set_segments(broker, await put_segment(broker, IDS[0], [batch(0), batch(1)], base=0, last=1))
        get_range = broker.objects.inner.get_range
        damages = [position]

        async def damaged_once(key: str, start: int, end: int) -> bytes:
            data = bytearray(await get_range(key, start, end))
            if damages:
                data[damages.pop()] ^= 1
            return bytes(data)

        broker.objects.inner.get_range = damaged_once  # type: ignore[method-assign]

        assert [await read(broker, offset) for offset in (0, 1)] == [[0], [1]]
        assert not damages
