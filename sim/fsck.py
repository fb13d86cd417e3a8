"""The stores themselves, in the end: manifest, segments, index chunks, objects and early pages, read without the code under test."""

import struct
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from sim.batches import value_of
from sim.check import Log, Stored
from sim.history import BatchIdentity
from sim.objects import KeptObjects
from storage.errors import NotFound, StorageError
from storage.formats.early_page import decode_page
from storage.formats.manifest import Early, Entry, EntrySource, LogState, Manifest, SegmentEntry, decode_chunk, decode_segment
from storage.formats.segment import HEADER_BYTES, decode_footer, decode_header, segment_key
from storage.formats.wal import object_key
from storage.limits import EARLY_PAGE_BYTES_MAX
from storage.metadata.keys import PartitionKeys, early_page, early_pages, place_of_page, shard_keys
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
    pages: Mapping[str, bytes] = MappingProxyType({}),
    is_over: bool = True,
) -> tuple[Log, list[str]]:
    """The log as the stores have it, and what is wrong with it. Unless it `is_over`, a compaction or a merge may be under way.

    `pages`: by path, early pages that were deleted since. They count where deleted objects do, for a log that is deleted.
    """
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
            is_early = isinstance(source, Entry) and source.is_early
            try:
                early = await _early(metadata, partition_keys, source) if is_early else None
                wrong += await _differing(objects, early)
                batches += await _batches_in(objects, partition, source, early)
            except NotFound:
                if manifest.log_state is not LogState.DELETED:
                    raise
                early = _kept(pages, partition_keys, source) if is_early else None
                batches += await _batches_in(objects.deleted, partition, source, early)
        except (StorageError, ValueError, AssertionError, struct.error) as error:
            wrong.append(f"fsck: {partition} {source}: {error!r}")
    if following != manifest.sequence_counter:
        wrong.append(f"fsck: entries end elsewhere than the log: {partition} end={following} sequence_counter={manifest.sequence_counter}")
    undone = [one for one in await metadata.get_many([partition_keys.compaction, partition_keys.compactor_claim]) if one is not None]
    if is_over:
        wrong += [f"fsck: a compaction was left undone: {partition} {record.value!r}" for record in undone]
        wrong += [f"fsck: a merge was left undone: {partition} {merged}" for merged in (manifest.rewritten,) if merged is not None]
    return Log(place, partition.topic_id, batches, begin), wrong


async def named_objects(metadata: MemoryMetadataStore, partition: PartitionId, manifest: Manifest) -> set[str]:
    """The keys of objects that live entries of the partition name, but for those whose bytes early pages have."""
    names = PartitionKeys(partition)
    entries = list(manifest.pending)
    async for record in metadata.range_scan(names.index(0), f"{names.index_prefix}~"):
        entries += decode_chunk(record.value, path=record.path).entries
    live_from = max(manifest.compaction_cursor, manifest.log_start)
    segments, _ = await _segments(metadata, names, manifest)
    live = [one for one in entries if one.last >= live_from and not one.is_inline]
    named = {object_key(one.object_id) for one in live if not one.is_early or await _early(metadata, names, one) is None}
    return named | {segment_key(partition, one.object_id) for one in segments if one.last >= manifest.log_start}


async def unlike_their_objects(pages: Mapping[str, bytes], objects: KeptObjects) -> list[str]:
    """What is wrong with early pages, of all that were ever put: an object that was stored has the bytes of each at its place (E1, E3)."""
    wrong = []
    for path, value in pages.items():
        place = place_of_page(path)
        if place is None:
            wrong.append(f"fsck: an early page whose key names no place: {path}")
            continue
        page = _Pages(object_key(place[0]), place[1], bytes(decode_page(value, path=path).data))
        for where in (objects, objects.deleted):
            wrong += await _differing(where, page)
    return wrong


async def pages_left(metadata: MemoryMetadataStore) -> list[str]:
    """The early pages that are there when all partitions are compacted and all is collected: nobody reads or deletes them any more."""
    listed = [await metadata.list(*early_pages(key)) for key in shard_keys(metadata.shard_of)]
    return [f"fsck: an early page is left behind: {path}" for paths in listed for path in paths]


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


class _Pages(NamedTuple):
    """What lies in the early pages of an entry: the bytes of object `name` from `start` on."""

    name: str
    start: int
    data: bytes


def _page_keys(keys: PartitionKeys, entry: Entry) -> list[Key]:
    assert isinstance(entry.batches, Early)
    positions = range(entry.batches.start, entry.extent[1], EARLY_PAGE_BYTES_MAX)
    return [early_page(entry.object_id, position, keys.partition_key) for position in positions]


async def _early(metadata: MemoryMetadataStore, keys: PartitionKeys, entry: EntrySource) -> _Pages | None:
    """What is in the early pages of an entry; None unless all of them are there. Raises what is wrong with one."""
    assert isinstance(entry, Entry)
    records = await metadata.get_many(_page_keys(keys, entry))
    return _joined(entry, {record.path: record.value for record in records if record is not None}, count=len(records))


def _kept(pages: Mapping[str, bytes], keys: PartitionKeys, entry: EntrySource) -> _Pages | None:
    """As `_early`, of pages that may be gone."""
    assert isinstance(entry, Entry)
    paths = [key.path for key in _page_keys(keys, entry)]
    return _joined(entry, {path: pages[path] for path in paths if path in pages}, count=len(paths))


def _joined(entry: Entry, values: Mapping[str, bytes], *, count: int) -> _Pages | None:
    if len(values) < count:
        return None
    parts = [bytes(decode_page(value, path=path).data) for path, value in values.items()]
    if any(len(part) != EARLY_PAGE_BYTES_MAX for part in parts[:-1]):
        raise ValueError(f"an early page is cut short, and another follows it: {list(values)}")
    assert isinstance(entry.batches, Early)
    return _Pages(object_key(entry.object_id), entry.batches.start, b"".join(parts))


async def _differing(objects: MemoryObjectStore, early: _Pages | None) -> list[str]:
    """Early pages have the bytes that their object gets (E1): what is wrong where both are there."""
    if early is None:
        return []
    end = early.start + len(early.data)
    try:
        size_bytes = (await objects.stat(early.name)).size_bytes
    except NotFound:
        return []
    if size_bytes >= end and await objects.get_range(early.name, early.start, end) == early.data:
        return []
    return [f"fsck: an early page has other bytes than its object: {early.name} bytes [{early.start}, {end}) of {size_bytes}"]


async def _batches_in(objects: MemoryObjectStore, partition: PartitionId, source: EntrySource, early: _Pages | None) -> list[Stored]:
    return await (_batches(objects, source, early) if isinstance(source, Entry) else _batches_of(objects, partition, source))


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


async def _batches(objects: MemoryObjectStore, entry: Entry, early: _Pages | None) -> list[Stored]:
    """Read its object, or else its early pages. Raises what is wrong with the batches."""
    found: list[Stored] = []
    offset = entry.base
    if isinstance(entry.batches, bytes):
        slices = [memoryview(entry.batches)]
    else:
        slices = await _slices(objects, entry, early)
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


async def _slices(objects: MemoryObjectStore, entry: Entry, early: _Pages | None) -> list[memoryview]:
    name = object_key(entry.object_id)
    try:
        return [memoryview(await objects.get_range(name, position, position + length)) for position, length in entry.spans]
    except NotFound:
        if early is None:
            raise
    for position, length in entry.spans:
        if position < early.start or position + length > early.start + len(early.data):
            raise ValueError(f"early pages are shorter than their entry says: bytes [{position}, {position + length})")
    return [memoryview(early.data)[position - early.start : position - early.start + length] for position, length in entry.spans]
