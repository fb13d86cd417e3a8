"""The stores themselves, in the end: manifest, segments, index chunks and objects, read without the code under test."""

from collections.abc import Sequence
from typing import NamedTuple

from sim.batches import value_of
from sim.check import Log, Stored
from sim.history import BatchIdentity
from sim.objects import KeptObjects
from storage.errors import NotFound, StorageError
from storage.formats.manifest import Entry, EntrySource, LogState, Manifest, SegmentEntry, decode_chunk, decode_segment
from storage.formats.segment import HEADER_BYTES, decode_footer, decode_header, segment_key
from storage.formats.wal import object_key
from storage.metadata.keys import PartitionKeys
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import Key
from storage.objects.memory import MemoryObjectStore
from storage.recordbatch import parse_header, verify
from storage.vocabulary import PartitionId


class Floor(NamedTuple):
    """From offset `since` on no entry of `partition` may name an object at or below `object_id`."""

    partition: PartitionId
    since: int
    object_id: str


async def fsck(
    metadata: MemoryMetadataStore,
    objects: KeptObjects,
    partition: PartitionId,
    manifest: Manifest,
    *,
    place: str,
    floors: Sequence[Floor] = (),
    is_over: bool = True,
) -> tuple[Log, list[str]]:
    """The log as the stores have it, and what is wrong with it. Unless it `is_over`, a compaction or a merge may be under way."""
    wrong: list[str] = []
    entries: dict[int, Entry] = {}
    found: list[Entry] = []
    partition_keys = PartitionKeys(partition)
    async for record in metadata.range_scan(partition_keys.index(0), f"{partition_keys.index_prefix}~"):
        chunk = decode_chunk(record.value, path=record.path)
        if record.path != partition_keys.index(chunk.entries[-1].last).path:
            wrong.append(f"fsck: a chunk under the key of another: {record.path}")
        found += chunk.entries
    # Racing drains may leave overlapping chunks; they must say the same.
    wrong += [
        f"fsck: two entries for one offset: {partition} {entry} {entries[entry.base]}"
        for entry in (*found, *manifest.pending)
        if entries.setdefault(entry.base, entry) != entry
    ]
    cursor = manifest.compaction_cursor
    segments, about_segments = await _segments(metadata, partition_keys, manifest)
    wrong += [f"fsck: {text}: {partition}" for text in about_segments]
    sources: list[EntrySource] = [*segments, *(entries[base] for base in sorted(entries) if entries[base].last >= cursor)]
    sources = [source for source in sources if source.last >= manifest.log_start]  # the objects of others may be gone
    begin = sources[0].base if sources else manifest.log_start
    if begin > manifest.log_start:
        wrong.append(f"fsck: the log begins above its start: {partition} begin={begin} log_start={manifest.log_start}")
    following = begin
    running_max = -1
    batches: list[Stored] = []
    for source in sources:
        if source.base != following and not following < source.base <= manifest.log_start:
            wrong.append(f"fsck: entries are not contiguous: {partition} expected={following} found={source.base}")
        if source.base > following:  # what lay between had been deleted when what follows was compacted
            begin, batches, running_max = source.base, [], -1
        wrong += [
            f"fsck: a revoked object was committed: {source} {floor}"
            for floor in floors
            if floor.partition == partition
            and source.base >= floor.since
            and source.object_id <= floor.object_id
            and not _is_inline(source)
        ]
        running_max = max(running_max, source.max_timestamp)
        if source.running_max_timestamp < running_max or (not begin and source.running_max_timestamp != running_max):
            wrong.append(f"fsck: running maximum of timestamps: {partition} {source} expected={running_max}")
        following = source.last + 1
        try:
            try:
                batches += await _batches_in(objects, partition, source)
            except NotFound:
                if manifest.log_state is not LogState.DELETED:
                    raise
                batches += await _batches_in(objects.deleted, partition, source)
        except (StorageError, ValueError) as error:
            wrong.append(f"fsck: {partition} {source}: {error!r}")
    if following != manifest.sequence_counter:
        wrong.append(f"fsck: entries end elsewhere than the log: {partition} end={following} sequence_counter={manifest.sequence_counter}")
    undone = [one for one in await metadata.get_many([partition_keys.compaction, partition_keys.compactor_claim]) if one is not None]
    if is_over:
        wrong += [f"fsck: a compaction was left undone: {partition} {record.value!r}" for record in undone]
        wrong += [f"fsck: a merge was left undone: {partition} {merged}" for merged in (manifest.rewritten,) if merged is not None]
    return Log(place, partition.topic_id, batches, begin), wrong


async def named_objects(metadata: MemoryMetadataStore, partition: PartitionId, manifest: Manifest) -> set[str]:
    """The keys of objects that live entries of the partition name."""
    names = PartitionKeys(partition)
    entries = list(manifest.pending)
    async for record in metadata.range_scan(names.index(0), f"{names.index_prefix}~"):
        entries += decode_chunk(record.value, path=record.path).entries
    live_from = max(manifest.compaction_cursor, manifest.log_start)
    segments, _ = await _segments(metadata, names, manifest)
    return {object_key(one.object_id) for one in entries if one.last >= live_from and not one.is_inline} | {
        segment_key(partition, one.object_id) for one in segments if one.last >= manifest.log_start
    }


async def left_behind(metadata: MemoryMetadataStore, objects: MemoryObjectStore, partition: PartitionId, manifest: Manifest) -> list[str]:
    """What is wrong with a partition whose topic was deleted and purged."""
    wrong = [] if manifest.log_state is LogState.DELETED else [f"fsck: an open log that belongs to nobody: {partition}"]
    names = PartitionKeys(partition)
    found = [one.path for one in await metadata.get_many([names.compaction]) if one is not None]
    for prefix in (names.index_prefix, names.segments_prefix, names.producers_prefix):
        found += await metadata.list(Key(prefix, names.partition_key), f"{prefix}~")
    found += [one.key async for one in objects.list(f"segments/{partition.topic_id}/{partition.partition:05}/")]
    return wrong + [f"fsck: left behind by a deleted topic: {partition} {one}" for one in found]


async def _segments(metadata: MemoryMetadataStore, keys: PartitionKeys, manifest: Manifest) -> tuple[list[SegmentEntry], list[str]]:
    """The segments below the cursor, in order, each once, and what is wrong with their keys."""
    found: list[SegmentEntry] = []
    wrong = []
    merged = manifest.rewritten
    async for record in metadata.range_scan(keys.segment(0), f"{keys.segments_prefix}~"):
        segment = decode_segment(record.value, path=record.path)
        end = int(record.path.removeprefix(keys.segments_prefix))
        if not segment.base <= end <= segment.last:
            wrong.append(f"a segment under the key of another: {record.path} {segment}")
        if segment.last >= manifest.compaction_cursor:
            wrong.append(f"a segment above the cursor: {segment} cursor={manifest.compaction_cursor}")
        if merged is not None and merged.base <= segment.base and segment.last <= merged.last:
            segment = merged
        # Below the log start nothing is promised: a merge that it has passed may be under some of its keys, and gone.
        if segment.last >= manifest.log_start and segment not in found[-1:]:
            found.append(segment)
    newest = manifest.segment
    if newest is not None and newest not in found:
        found.append(newest)
    if (newest is None) != (manifest.compaction_cursor == 0) or (newest is not None and newest.last + 1 != manifest.compaction_cursor):
        wrong.append(f"the newest segment does not end at the cursor: {newest} cursor={manifest.compaction_cursor}")
    return found, wrong


def _is_inline(source: EntrySource) -> bool:
    return isinstance(source, Entry) and source.is_inline


async def _batches_in(objects: MemoryObjectStore, partition: PartitionId, source: EntrySource) -> list[Stored]:
    return await (_batches(objects, source) if isinstance(source, Entry) else _batches_of(objects, partition, source))


async def _batches_of(objects: MemoryObjectStore, partition: PartitionId, entry: SegmentEntry) -> list[Stored]:
    """Raises what is wrong with a segment."""
    key = segment_key(partition, entry.object_id)
    data = await objects.get_range(key, 0, entry.size_bytes)
    header, footer = decode_header(data, key=key), decode_footer(data, size_bytes=entry.size_bytes, key=key)
    if (header.base, header.object_id) != (entry.base, entry.object_id) or (footer.base, footer.last) != (entry.base, entry.last):
        raise ValueError(f"a segment covers other offsets than its entry: {footer.base}..{footer.last}")
    found: list[Stored] = []
    offset = entry.base
    body = memoryview(data)[HEADER_BYTES : HEADER_BYTES + footer.body_bytes]
    while len(body):
        about = parse_header(body)
        batch = body[: about.size_bytes]
        verify(batch, about, where=f"offset={offset}")
        if about.base_offset != offset:
            raise ValueError(f"a batch at another offset: expected={offset} found={about.base_offset}")
        identity = BatchIdentity(about.producer_id, about.producer_epoch, about.base_sequence)
        found.append(Stored(offset, about.record_count, value_of(batch), identity))
        offset += about.record_count
        body = body[about.size_bytes :]
    if offset != entry.last + 1 or len(found) != footer.batch_count:
        raise ValueError(f"a segment holds other batches than it says: end={offset} batches={len(found)} of {footer.batch_count}")
    return found


async def _batches(objects: MemoryObjectStore, entry: Entry) -> list[Stored]:
    """Raises what is wrong with them."""
    found: list[Stored] = []
    offset = entry.base
    if isinstance(entry.batches, bytes):
        slices = [memoryview(entry.batches)]
    else:
        name = object_key(entry.object_id)
        slices = [memoryview(await objects.get_range(name, position, position + length)) for position, length in entry.batches]
    for body in slices:
        while len(body):
            header = parse_header(body)
            batch = body[: header.size_bytes]
            verify(batch, header, where=f"offset={offset}")
            identity = BatchIdentity(header.producer_id, header.producer_epoch, header.base_sequence)
            found.append(Stored(offset, header.record_count, value_of(batch), identity))
            offset += header.record_count
            body = body[header.size_bytes :]
    if offset != entry.last + 1:
        raise ValueError(f"an entry holds other records than it says: end={offset}")
    return found
