"""Offset → entry (docs/design/reading.md): below the cursor `rewritten`, `segment`, else segments/; from it on `pending`, else index/ (I4).

Entries are facts that never change, so a cached one is as good as a read one, until its object is found to be gone: then others have taken
its place. An answer that does not cover the offset is no answer.
"""

import asyncio
from bisect import bisect_left
from typing import NamedTuple

from storage.errors import Corrupt, NotFound, OffsetOutOfRange, StorageError, Unavailable
from storage.formats.control import Control, Entry, EntrySource, LogState, SegmentEntry, decode_chunk, decode_segment
from storage.formats.segment import segment_key
from storage.formats.wal import object_key
from storage.log.control_reads import ControlReads
from storage.log.kept_chunks import KeptChunks
from storage.log.kept_segments import KeptSegments
from storage.log.limits import DEFAULT_LIMITS, LogLimits
from storage.log.partition import PartitionLog
from storage.metadata.port import Key, MetadataStore, Record


class EntryPlace(NamedTuple):
    """The key of the record that holds an entry, and where the entry's batches lie; `object_key` is None of an inline one."""

    index_key: str
    object_key: str | None
    byte_offset: int
    byte_length: int


class EntryIndex:
    def __init__(self, *, metadata: MetadataStore, control_reads: ControlReads, limits: LogLimits = DEFAULT_LIMITS) -> None:
        self._read_timeout_s = limits.index_read_timeout_s
        self._metadata = metadata
        self._control_reads = control_reads
        self._chunks = KeptChunks(limits=limits)
        self._segments = KeptSegments(limits=limits)

    async def find(self, log: PartitionLog, offset: int) -> EntrySource:
        """The entry that covers `offset`, which must lie in [log_start, high watermark) as `log.seen.control` was last seen.

        Raises `OffsetOutOfRange` if a refresh shows that it no longer does, `Corrupt` if it does and no entry covers it.
        """
        entry = await self._look(log, offset)
        if entry is not None:
            return entry
        await self._control_reads.refresh([log])
        check_range(log, offset)
        entry = await self._look(log, offset)
        if entry is None:
            raise Corrupt(f"no entry covers a committed offset: partition={log.partition} offset={offset}")
        return entry

    async def locate(self, log: PartitionLog, offset: int) -> EntryPlace:
        """Where `offset` lies, as of a read of the control record made for this question. Raises as `find`, and `StorageError`."""
        await self._control_reads.refresh([log])
        check_range(log, offset)
        entry = await self.find(log, offset)
        control = readable(log)
        if isinstance(entry, SegmentEntry):
            is_newest = entry in (control.segment, control.rewritten)
            key = log.keys.control if is_newest else log.keys.segment(entry.last)
            return EntryPlace(key.path, segment_key(log.partition, entry.object_id), 0, entry.size_bytes)
        known = self._known_entries(log, control, offset)
        if not known:
            raise Unavailable(f"the index is read faster than it can be told: partition={log.partition} offset={offset}")
        key = log.keys.control if known is control.pending else log.keys.index(known[-1].last)
        if isinstance(entry.batches, bytes):
            return EntryPlace(key.path, None, 0, len(entry.batches))
        start, end = entry.extent
        return EntryPlace(key.path, object_key(entry.object_id), start, end - start)

    def find_here(self, log: PartitionLog, offset: int) -> EntrySource | None:
        """The segment, or the inline entry, that covers `offset`, if it is known. Raises what keeps the control record from being read."""
        control = readable(log)
        if offset < control.compaction_cursor:
            return self._known_segment(log, control, offset)
        entry = self._known_entry(log, control, offset)
        return entry if entry is not None and entry.is_inline else None

    def following_here(self, log: PartitionLog, offset: int, *, entries_max: int) -> list[Entry]:
        """The entries that are not compacted from the one that holds `offset` on, as far as they are known: at most `entries_max`."""
        found: list[Entry] = []
        control = log.seen.control
        if control is None or offset < control.compaction_cursor:
            return found
        while len(found) < entries_max:
            known = self._known_entries(log, control, offset)
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
        control = readable(log)
        if offset < control.compaction_cursor:
            return await self._look_for_segment(log, control, offset)
        known = self._known_entry(log, control, offset)
        if known is not None or (control.pending and offset >= control.pending[0].base):
            return known
        record = await self._ceiling(log.keys.index(offset), within=log.keys.index_prefix)
        if record is None:
            return None
        chunk = decode_chunk(record.value, path=record.path)
        self._chunks.add(log.partition, chunk)
        return covering(chunk.entries, offset)

    def _known_entry(self, log: PartitionLog, control: Control, offset: int) -> Entry | None:
        return covering(self._known_entries(log, control, offset), offset)

    def _known_entries(self, log: PartitionLog, control: Control, offset: int) -> tuple[Entry, ...]:
        """The ring, or the chunk that was read, in which the entry that holds `offset` is; empty if that is not known."""
        if control.pending and offset >= control.pending[0].base:
            return control.pending if offset <= control.pending[-1].last else ()
        for chunk in self._chunks.of(log.partition):
            if chunk.entries[0].base <= offset <= chunk.entries[-1].last:
                return chunk.entries
        return ()

    def _known_segment(self, log: PartitionLog, control: Control, offset: int) -> SegmentEntry | None:
        merged = control.rewritten
        if merged is not None and merged.base <= offset <= merged.last:
            self._segments.add(log.partition, merged)
            return merged
        newest = control.segment
        if newest is not None and newest.base <= offset:
            return newest if offset <= newest.last else None
        return self._segments.find(log.partition, offset)

    async def _look_for_segment(self, log: PartitionLog, control: Control, offset: int) -> SegmentEntry | None:
        known = self._known_segment(log, control, offset)
        newest = control.segment
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


def readable(log: PartitionLog) -> Control:
    """The control record as last seen. Raise what keeps it from being read."""
    seen = log.seen
    if seen.broken is not None:
        raise seen.broken
    if seen.control is None:
        raise Unavailable(f"partition not read yet: {log.partition}")
    if seen.control.log_state is LogState.DELETED:
        raise NotFound(f"the partition was deleted: {log.partition}")
    return seen.control


def check_range(log: PartitionLog, offset: int) -> None:
    """Raise `OffsetOutOfRange` unless `offset` may be read or is the end of the log."""
    control = readable(log)
    if not control.log_start <= offset <= control.sequence_counter:
        raise out_of_range(control, offset)


def out_of_range(control: Control, offset: int) -> StorageError:
    return OffsetOutOfRange(
        f"offset out of range: offset={offset} log_start={control.log_start} high_watermark={control.sequence_counter}",
        log_start=control.log_start,
        high_watermark=control.sequence_counter,
    )


def _last_of(entry: Entry) -> int:
    return entry.last
