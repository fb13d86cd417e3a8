"""Reads below the compaction cursor, and reads of what moves meanwhile."""

from collections.abc import Sequence

import msgspec
import pytest

from compactor.plan import CompactionPolicy
from storage.errors import Corrupt
from storage.formats.control import SegmentEntry, SegmentFact, encode
from storage.formats.segment import HEADER_BYTES, segment_key
from storage.formats.segment_writer import SegmentWriter
from storage.formats.wal import object_key
from storage.metadata.keys import PartitionKeys
from storage.metadata.port import Applied, DeleteRange, Put, children_of
from storage.recordbatch import parse_header, restamp
from storage.vocabulary import ObjectId
from tests.unit.broker.handlers.record_batches import record_batch
from tests.unit.compactor.compacting import compacting
from tests.unit.storage.log.rig import PARTITION, Rig, rig

KEYS = PartitionKeys(PARTITION)
IDS = [ObjectId(f"01J0000000000000000000000{number}") for number in range(5)]


def batch(offset: int, *, records: int = 1, size: int = 10) -> bytearray:
    made = record_batch(*[bytes(size)] * records)
    restamp(made, 0, offset)
    return made


async def put_segment(
    broker: Rig, object_id: ObjectId, batches: Sequence[bytearray], *, base: int, last: int, block_bytes: int = 1
) -> SegmentEntry:
    writer = SegmentWriter(PARTITION, object_id, base, block_bytes=block_bytes)
    for one in batches:
        writer.add(one)
    written = writer.finish(last)
    await broker.objects._inner.put_if_absent(written.key, written.parts)
    return SegmentEntry(base, last, object_id, written.size_bytes, 5, 5)


async def set_segments(broker: Rig, *segments: SegmentEntry) -> None:
    """They are all of the log."""
    (record,) = await broker.shared.get_many([KEYS.control])
    assert record is not None
    end = segments[-1].last + 1
    control = msgspec.structs.replace(await broker.control(), sequence_counter=end, compaction_cursor=end, segment=segments[-1])
    facts = [Put(KEYS.segment(one.last), encode(SegmentFact(entry=one)), None) for one in segments[:-1]]
    start, stop = children_of(KEYS.segments_prefix.removesuffix("/"))
    await broker.shared.write([DeleteRange(KEYS.segment(0)._replace(path=start), stop)])
    assert isinstance(await broker.shared.write([*facts, Put(KEYS.control, encode(control), record.version)]), Applied)


async def read(broker: Rig, offset: int, *, bytes_max: int = 1) -> list[int]:
    """The base offsets of the batches that a fetch of `offset` gets."""
    log = broker.parts.partitions.get(PARTITION)
    await broker.parts.control_reads.refresh([log])
    run = await broker.parts.reader.stored(log, offset, bytes_max=bytes_max)
    piece = run.from_offset(offset, bytes_max, at_least_one=True)
    assert piece is not None
    view, found = piece[0], []
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
        segments = [
            await put_segment(broker, IDS[0], [batch(0)], base=0, last=9),
            await put_segment(broker, IDS[1], [batch(12)], base=10, last=19),
            await put_segment(broker, IDS[2], [batch(29)], base=20, last=29),
        ]
        await set_segments(broker, *segments)

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
        await broker.parts.control_reads.refresh([log])

        assert await broker.parts.reader.stored_within(log, 0, bytes_max=100, at_least_one=False) is None


async def test_a_footer_is_read_once_and_a_small_segment_with_one_get() -> None:
    async with rig() as broker:
        await set_segments(broker, await put_segment(broker, IDS[0], [batch(offset) for offset in range(50)], base=0, last=49))
        gets: list[tuple[str, int, int]] = []
        get_range = broker.objects._inner.get_range

        async def counted(key: str, start: int, end: int) -> bytes:
            gets.append((key, start, end))
            return await get_range(key, start, end)

        broker.objects._inner.get_range = counted  # type: ignore[method-assign]
        assert [await read(broker, offset) for offset in range(50)] == [[offset] for offset in range(50)]

        assert len(gets) == 1


@pytest.mark.parametrize("position", [HEADER_BYTES, 100, -60, -9])
async def test_damage_is_named_and_never_served(position: int) -> None:
    async with rig() as broker:
        segment = await put_segment(broker, IDS[0], [batch(0), batch(1)], base=0, last=1)
        await set_segments(broker, segment)
        key = segment_key(PARTITION, segment.object_id)
        data = bytearray(await broker.objects._inner.get_range(key, 0, segment.size_bytes))
        data[position] ^= 1
        await broker.objects._inner.delete_many([key])
        await broker.objects._inner.put_if_absent(key, [data])

        with pytest.raises(Corrupt, match=key):
            await read(broker, 0)


async def test_a_segment_that_is_missing_is_an_alarm() -> None:
    async with rig() as broker:
        segment = await put_segment(broker, IDS[0], [batch(0)], base=0, last=0)
        await set_segments(broker, segment)
        await broker.objects._inner.delete_many([segment_key(PARTITION, segment.object_id)])

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
        await broker.objects._inner.delete_many([segment_key(PARTITION, one) for one in IDS[:2]])
        broker.parts.reader._blocks.drop(segment_key(PARTITION, IDS[0]))

        assert await read(broker, 0, bytes_max=1 << 20) == [0, 1]
        assert broker.telemetry.registry.get_sample_value("forebay_read_damage_total", {"cause": "missing"}) in (None, 0.0)


async def test_what_is_compacted_and_collected_while_it_is_read_is_read_all_the_same() -> None:
    async with rig() as broker, rig(shared=broker.shared, objects=broker.objects._inner, epoch=8) as other:
        for number in range(20):
            await broker.send(record_batch(b"%d" % number))
        assert await read(other, 3) == [3]
        wal = [stat.key async for stat in broker.objects.list("wal/")]  # type: ignore[operator]
        async with compacting(broker.shared, broker.objects, policy=CompactionPolicy(entries_due=1)) as compaction:
            await compaction.run(PARTITION)
        await broker.objects._inner.delete_many(wal)
        log = other.parts.partitions.get(PARTITION)
        run = await other.parts.reader.stored(log, 7, bytes_max=1)

        assert run.from_offset(7, 1, at_least_one=True) is not None
        assert object_key(IDS[0]) not in wal
