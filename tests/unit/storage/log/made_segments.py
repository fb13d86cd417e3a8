"""Logs of segments for tests of reading: a rig whose manifest says that all of it was compacted."""

from collections.abc import Sequence

import msgspec

from storage.formats.manifest import SegmentEntry, SegmentFact, encode
from storage.formats.segment import SegmentWriter
from storage.metadata.keys import PartitionKeys
from storage.metadata.port import Applied, DeleteRange, Put, children_of
from storage.recordbatch import restamp
from storage.vocabulary import ObjectId
from tests.kit.record_batches import record_batch
from tests.unit.storage.log.rig import PARTITION, Rig

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
    await broker.objects.inner.put_if_absent(written.key, written.parts)
    return SegmentEntry(base, last, object_id, written.size_bytes, 5, 5)


async def set_segments(broker: Rig, *segments: SegmentEntry) -> None:
    """They are all of the log."""
    (record,) = await broker.shared.get_many([KEYS.manifest])
    assert record is not None
    end = segments[-1].last + 1
    manifest = msgspec.structs.replace(await broker.manifest(), sequence_counter=end, compaction_cursor=end, segment=segments[-1])
    facts = [Put(KEYS.segment(one.last), encode(SegmentFact(entry=one)), None) for one in segments[:-1]]
    start, stop = children_of(KEYS.segments_prefix.removesuffix("/"))
    await broker.shared.write([DeleteRange(KEYS.segment(0)._replace(path=start), stop)])
    assert isinstance(await broker.shared.write([*facts, Put(KEYS.manifest, encode(manifest), record.version)]), Applied)


async def counted_gets(broker: Rig) -> list[tuple[int, int]]:
    gets: list[tuple[int, int]] = []
    get_range = broker.objects.inner.get_range

    async def counted(key: str, start: int, end: int) -> bytes:
        gets.append((start, end))
        return await get_range(key, start, end)

    broker.objects.inner.get_range = counted  # type: ignore[method-assign]
    return gets
