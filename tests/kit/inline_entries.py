"""Logs as releases before format level 5 left them: entries that carry their batches. Nothing writes these any more."""

from storage.formats.manifest import Entry, IndexChunk, Manifest, encode
from storage.log.limits import DEFAULT_LIMITS
from storage.metadata import keys
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import Put
from storage.recordbatch import parse_header
from storage.vocabulary import ObjectId, PartitionId, TopicId

PARTITION = PartitionId(TopicId("00000000-0000-4000-8000-000000000001"), 0)


async def put_inline(metadata: MemoryMetadataStore, batches: list[bytearray], partition: PartitionId = PARTITION) -> int:
    """Make the log of `partition` one of these batches, each in an entry of its own. Returns how many rings of entries they are: all but
    the last lie in the index.
    """
    entries: list[Entry] = []
    offset = 0
    for number, batch in enumerate(batches):
        header = parse_header(memoryview(batch))
        object_id = ObjectId(f"01J0000000000000000000{number:04}")
        last = offset + header.record_count - 1
        entries.append(Entry(offset, last, object_id, bytes(batch), header.max_timestamp, header.max_timestamp))
        offset = last + 1
    of = keys.PartitionKeys(partition)
    together = DEFAULT_LIMITS.pending_entries_max
    rings = [tuple(entries[start : start + together]) for start in range(0, len(entries), together)]
    for ring in rings[:-1]:
        await metadata.write([Put(of.index(ring[-1].last), encode(IndexChunk(entries=ring)), None)])
    manifest = Manifest(
        sequence_counter=offset,
        pending=rings[-1],
        bytes_total=sum(entry.size_bytes for entry in entries),
        max_timestamp=entries[-1].running_max_timestamp,
    )
    await metadata.write([Put(of.manifest, encode(manifest), None)])
    return len(rings)
