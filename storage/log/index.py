"""Offset → entry (docs/internals/design/reading.md): below the cursor `rewritten`, `segment` or segments/; else `pending` or index/ (I4).

Entries are facts that never change, so a cached one is as good as a read one, until its object is found to be gone: then others have taken
its place. An answer that does not cover the offset is no answer. `entry_pages` goes through all entries of a partition in order.
"""

import asyncio
import contextlib
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterable
from typing import Final, NamedTuple

from runtime.lru import LruCache
from storage.errors import Corrupt, NotFound, OffsetOutOfRange, StorageError, Unavailable
from storage.formats.manifest import (
    Entry,
    EntrySource,
    IndexChunk,
    LogState,
    Manifest,
    SegmentEntry,
    decode_chunk,
    decode_segment,
    entries_bytes,
)
from storage.formats.segment import segment_key
from storage.formats.wal import object_key
from storage.log.fresh_reads import ManifestReads
from storage.log.limits import DEFAULT_LIMITS, LogLimits
from storage.log.partition import PartitionLog
from storage.metadata.keys import PartitionKeys
from storage.metadata.port import Key, MetadataStore, Record, children_of
from storage.vocabulary import PartitionId

CHUNK_BYTES: Final = 512
"""The memory of a chunk and its index, without its entries."""


class KeptChunks:
    """Chunks of indexes that were read, bounded over all partitions: facts that never change, so they may outlive what is known of a log.

    The chunk read longest ago is dropped first; the next reader fetches it again.
    """

    def __init__(self, *, limits: LogLimits = DEFAULT_LIMITS) -> None:
        self._kept_max, self._bytes_max = limits.chunks_kept_max, limits.chunks_bytes_max
        self._by_partition: dict[PartitionId, OrderedDict[int, IndexChunk]] = {}
        self._order: OrderedDict[tuple[PartitionId, int], int] = OrderedDict()
        self.size_bytes = 0
        """Estimated memory."""

    def __len__(self) -> int:
        return len(self._order)

    def of(self, partition: PartitionId) -> Iterable[IndexChunk]:
        chunks = self._by_partition.get(partition)
        return () if chunks is None else chunks.values()

    def add(self, partition: PartitionId, chunk: IndexChunk) -> None:
        last = chunk.entries[-1].last
        self._remove(partition, last)
        chunks = self._by_partition.setdefault(partition, OrderedDict())
        chunks[last] = chunk
        size_bytes = self._order[partition, last] = CHUNK_BYTES + entries_bytes(chunk.entries)
        self.size_bytes += size_bytes
        while len(chunks) > self._kept_max:
            self._remove(partition, next(iter(chunks)))
        while self.size_bytes > self._bytes_max:
            self._remove(*next(iter(self._order)))

    def drop(self, partition: PartitionId) -> None:
        """All of them: something read by them was not there."""
        for last in tuple(self._by_partition.get(partition, ())):
            self._remove(partition, last)

    def _remove(self, partition: PartitionId, last: int) -> None:
        size_bytes = self._order.pop((partition, last), None)
        if size_bytes is None:
            return
        self.size_bytes -= size_bytes
        chunks = self._by_partition[partition]
        del chunks[last]
        if not chunks:
            del self._by_partition[partition]


class KeptSegments:
    """Entries of segments that were read, bounded over all partitions.

    The segment found longest ago is dropped first; the next reader fetches it again.
    """

    def __init__(self, *, limits: LogLimits = DEFAULT_LIMITS) -> None:
        self._kept_max = limits.segments_kept_max
        self._by_partition: LruCache[PartitionId, tuple[SegmentEntry, ...]] = LruCache(limits.segment_partitions_kept_max)

    def __len__(self) -> int:
        """Partitions with a segment."""
        return len(self._by_partition)

    def find(self, partition: PartitionId, offset: int) -> SegmentEntry | None:
        for segment in self._by_partition.peek(partition) or ():
            if segment.base <= offset <= segment.last:
                return segment
        return None

    def add(self, partition: PartitionId, segment: SegmentEntry) -> None:
        """In place of those whose offsets it holds: readers do not go back behind a merge."""
        others = [kept for kept in self._by_partition.peek(partition) or () if kept.base < segment.base or segment.last < kept.last]
        self._by_partition.put(partition, (segment, *others)[: self._kept_max])

    def drop(self, partition: PartitionId) -> None:
        """All of its segments: something read by them was not there."""
        self._by_partition.pop(partition)


class EntryPlace(NamedTuple):
    """The key of the record that holds an entry, and where the entry's batches lie; `object_key` is None of an inline one."""

    index_key: str
    object_key: str | None
    byte_offset: int
    byte_length: int


class EntryIndex:
    def __init__(self, *, metadata: MetadataStore, manifest_reads: ManifestReads, limits: LogLimits = DEFAULT_LIMITS) -> None:
        self._read_timeout_s = limits.index_read_timeout_s
        self._metadata = metadata
        self._manifest_reads = manifest_reads
        self._chunks = KeptChunks(limits=limits)
        self._segments = KeptSegments(limits=limits)

    async def find(self, log: PartitionLog, offset: int) -> EntrySource:
        """The entry that covers `offset`, which must lie in [log_start, high watermark) as `log.seen.manifest` was last seen.

        Raises `OffsetOutOfRange` if a refresh shows that it no longer does, `Corrupt` if it does and no entry covers it.
        """
        entry = await self._look(log, offset)
        if entry is not None:
            return entry
        await self._manifest_reads.refresh([log])
        check_range(log, offset)
        entry = await self._look(log, offset)
        if entry is None:
            raise Corrupt(f"no entry covers a committed offset: partition={log.partition} offset={offset}")
        return entry

    async def locate(self, log: PartitionLog, offset: int) -> EntryPlace:
        """Where `offset` lies, as of a read of the manifest made for this question. Raises as `find`, and `StorageError`."""
        await self._manifest_reads.refresh([log])
        check_range(log, offset)
        entry = await self.find(log, offset)
        manifest = readable(log)
        if isinstance(entry, SegmentEntry):
            is_newest = entry in (manifest.segment, manifest.rewritten)
            key = log.keys.manifest if is_newest else log.keys.segment(entry.last)
            return EntryPlace(key.path, segment_key(log.partition, entry.object_id), 0, entry.size_bytes)
        known = self._known_entries(log, manifest, offset)
        if not known:
            raise Unavailable(f"the index is read faster than it can be told: partition={log.partition} offset={offset}")
        key = log.keys.manifest if known is manifest.pending else log.keys.index(known[-1].last)
        if isinstance(entry.batches, bytes):
            return EntryPlace(key.path, None, 0, len(entry.batches))
        start, end = entry.extent
        return EntryPlace(key.path, object_key(entry.object_id), start, end - start)

    def find_here(self, log: PartitionLog, offset: int) -> EntrySource | None:
        """The segment, or the entry that needs no object, that covers `offset`, if it is known. Raises what keeps the manifest from being
        read.
        """
        manifest = readable(log)
        if offset < manifest.compaction_cursor:
            return self._known_segment(log, manifest, offset)
        entry = self._known_entry(log, manifest, offset)
        return entry if entry is not None and (entry.is_inline or entry.is_early) else None

    def following_here(self, log: PartitionLog, offset: int, *, entries_max: int) -> list[Entry]:
        """The entries that are not compacted from the one that holds `offset` on, as far as they are known: at most `entries_max`."""
        found: list[Entry] = []
        manifest = log.seen.manifest
        if manifest is None or offset < manifest.compaction_cursor:
            return found
        while len(found) < entries_max:
            known = self._known_entries(log, manifest, offset)
            if not known:
                break
            first = bisect_left(known, offset, key=_last_of)
            found += known[first : first + entries_max - len(found)]
            offset = known[-1].last + 1
        return found

    async def look_ahead(self, log: PartitionLog, offset: int) -> None:
        """Have what holds `offset` be known, if an entry that is not compacted does. Raises `StorageError`."""
        await self._look(log, offset)

    def drop(self, log: PartitionLog) -> None:
        """Read what is asked for next."""
        self._chunks.drop(log.partition)
        self._segments.drop(log.partition)

    async def _look(self, log: PartitionLog, offset: int) -> EntrySource | None:
        manifest = readable(log)
        if offset < manifest.compaction_cursor:
            return await self._look_for_segment(log, manifest, offset)
        known = self._known_entry(log, manifest, offset)
        if known is not None or (manifest.pending and offset >= manifest.pending[0].base):
            return known
        record = await self._ceiling(log.keys.index(offset), within=log.keys.index_prefix)
        if record is None:
            return None
        chunk = decode_chunk(record.value, path=record.path)
        self._chunks.add(log.partition, chunk)
        return covering(chunk.entries, offset)

    def _known_entry(self, log: PartitionLog, manifest: Manifest, offset: int) -> Entry | None:
        return covering(self._known_entries(log, manifest, offset), offset)

    def _known_entries(self, log: PartitionLog, manifest: Manifest, offset: int) -> tuple[Entry, ...]:
        """The ring, or the chunk that was read, in which the entry that holds `offset` is; empty if that is not known."""
        if manifest.pending and offset >= manifest.pending[0].base:
            return manifest.pending if offset <= manifest.pending[-1].last else ()
        for chunk in self._chunks.of(log.partition):
            if chunk.entries[0].base <= offset <= chunk.entries[-1].last:
                return chunk.entries
        return ()

    def _known_segment(self, log: PartitionLog, manifest: Manifest, offset: int) -> SegmentEntry | None:
        merged = manifest.rewritten
        if merged is not None and merged.base <= offset <= merged.last:
            self._segments.add(log.partition, merged)
            return merged
        newest = manifest.segment
        if newest is not None and newest.base <= offset:
            return newest if offset <= newest.last else None
        return self._segments.find(log.partition, offset)

    async def _look_for_segment(self, log: PartitionLog, manifest: Manifest, offset: int) -> SegmentEntry | None:
        known = self._known_segment(log, manifest, offset)
        newest = manifest.segment
        if known is not None or (newest is not None and newest.base <= offset):
            return known
        record = await self._ceiling(log.keys.segment(offset), within=log.keys.segments_prefix)
        if record is None:
            return None
        segment = decode_segment(record.value, path=record.path)
        if not segment.base <= offset <= segment.last:
            return None
        self._segments.add(log.partition, segment)
        return segment

    async def _ceiling(self, key: Key, *, within: str) -> Record | None:
        try:
            async with asyncio.timeout(self._read_timeout_s):
                return await self._metadata.get_ceiling(key, within=within)
        except TimeoutError:
            raise Unavailable(f"metadata did not answer: op=get_ceiling after_s={self._read_timeout_s}") from None


def covering(entries: tuple[Entry, ...], offset: int) -> Entry | None:
    """The entry that holds `offset`, among consecutive ones."""
    index = bisect_left(entries, offset, key=_last_of)
    if index < len(entries) and entries[index].base <= offset:
        return entries[index]
    return None


def readable(log: PartitionLog) -> Manifest:
    """The manifest as last seen. Raise what keeps it from being read."""
    seen = log.seen
    if seen.broken is not None:
        raise seen.broken
    if seen.manifest is None:
        raise Unavailable(f"partition not read yet: {log.partition}")
    if seen.manifest.log_state is LogState.DELETED:
        raise NotFound(f"the partition was deleted: {log.partition}")
    return seen.manifest


def check_range(log: PartitionLog, offset: int) -> None:
    """Raise `OffsetOutOfRange` unless `offset` may be read or is the end of the log."""
    manifest = readable(log)
    if not manifest.log_start <= offset <= manifest.sequence_counter:
        raise out_of_range(manifest, offset)


def out_of_range(manifest: Manifest, offset: int) -> StorageError:
    return OffsetOutOfRange(
        f"offset out of range: offset={offset} log_start={manifest.log_start} high_watermark={manifest.sequence_counter}",
        log_start=manifest.log_start,
        high_watermark=manifest.sequence_counter,
    )


def _last_of(entry: Entry) -> int:
    return entry.last


class EntriesMoved(Exception):
    """Keys went while they were read: what they named was trimmed or compacted since `manifest` was read. Read that again."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"entries moved while they were read: offset={offset}")
        self.offset = offset


async def entry_pages(
    metadata: MetadataStore, keys: PartitionKeys, manifest: Manifest, offset: int, *, limits: LogLimits = DEFAULT_LIMITS
) -> AsyncGenerator[list[EntrySource], None]:
    """The entries from the one that holds `offset` on, as of `manifest`, without gaps. Each begins where the one before ends, or before
    that, if it has taken the place of that one, too.

    Raises `EntriesMoved`, `Corrupt`, `IncompatibleFormat`, `Unavailable`.
    """
    if offset < manifest.compaction_cursor:
        async with contextlib.aclosing(_segment_pages(metadata, keys, manifest, offset, limits)) as segments:
            async for found in segments:
                yield found
        offset = manifest.compaction_cursor
    async with contextlib.aclosing(uncompacted_pages(metadata, keys, manifest, offset, limits=limits)) as entries:
        async for page in entries:
            yield [*page]


async def uncompacted_pages(
    metadata: MetadataStore, keys: PartitionKeys, manifest: Manifest, offset: int, *, limits: LogLimits = DEFAULT_LIMITS
) -> AsyncGenerator[list[Entry], None]:
    """As `entry_pages`, from an offset that is not below the cursor."""
    pending = manifest.pending
    indexed_end = pending[0].base if pending else manifest.sequence_counter
    chunks = 0
    if offset < indexed_end:
        end = children_of(keys.index_prefix.removesuffix("/"))[1]
        async for record in metadata.range_scan(keys.index(offset), end):
            page: list[Entry] = []
            for entry in decode_chunk(record.value, path=record.path).entries:
                # Chunks of racing drains may overlap.
                if entry.base <= offset <= entry.last and entry.base < indexed_end:
                    page.append(entry)
                    offset = entry.last + 1
            if page:
                yield page
            if offset >= indexed_end:
                break
            chunks += 1
            if chunks % limits.chunks_per_turn == 0:
                await asyncio.sleep(0)
        if offset < indexed_end:
            raise EntriesMoved(offset)
    yield [entry for entry in pending if entry.last >= offset]


async def _segment_pages(
    metadata: MetadataStore, keys: PartitionKeys, manifest: Manifest, offset: int, limits: LogLimits
) -> AsyncGenerator[list[EntrySource], None]:
    newest, merged = manifest.segment, manifest.rewritten
    listed_end = manifest.compaction_cursor if newest is None else newest.base
    if merged is not None and merged.base <= offset <= merged.last:
        yield [merged]
        offset = merged.last + 1
    if offset < listed_end:
        end = children_of(keys.segments_prefix.removesuffix("/"))[1]
        segments = 0
        async for record in metadata.range_scan(keys.segment(offset), end):
            segment = decode_segment(record.value, path=record.path)
            # A merge has all keys of its sources, and what was passed is not met again.
            if segment.base <= offset <= segment.last:
                yield [segment]
                offset = segment.last + 1
            if merged is not None and merged.base <= offset <= merged.last:
                yield [merged]
                offset = merged.last + 1
            if offset >= listed_end:
                break
            segments += 1
            if segments % limits.segments_per_turn == 0:
                await asyncio.sleep(0)
        if offset < listed_end:
            raise EntriesMoved(offset)
    if newest is not None and offset <= newest.last:
        yield [newest]
