"""Offset → entry: `pending`, else a ceiling get on index/ (docs/design/reading.md). There are no segments yet.

Entries are facts that never change, so a cached one is as good as a read one; an answer that does not cover the offset is no answer.
"""

import asyncio
from bisect import bisect_left
from collections import OrderedDict
from typing import Final

from storage.errors import Corrupt, NotFound, OffsetOutOfRange, StorageError, Unavailable
from storage.formats.control import Control, Entry, IndexChunk, LogState, decode_chunk
from storage.log.control_reads import ControlReads
from storage.log.partition import CHUNKS_KEPT_MAX, PartitionLog
from storage.metadata.port import MetadataStore

READ_TIMEOUT_S: Final = 10.0
CHUNKS_OF_ALL_KEPT_MAX: Final = 2_048
"""Over all partitions; a chunk takes 7 KiB of memory. One that was dropped is read again when it is asked for."""


class KeptChunks:
    """The chunks in the `chunks` of all logs, those read longest ago first. A log of which some were dropped otherwise may have fewer."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[PartitionLog, int], None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, log: PartitionLog, chunk: IndexChunk) -> None:
        last = chunk.entries[-1].last
        log.chunks[last] = chunk
        self._kept[log, last] = None
        self._kept.move_to_end((log, last))
        while len(log.chunks) > CHUNKS_KEPT_MAX:
            oldest, _ = log.chunks.popitem(last=False)
            self._kept.pop((log, oldest), None)
        while len(self._kept) > CHUNKS_OF_ALL_KEPT_MAX:
            (others, oldest), _ = self._kept.popitem(last=False)
            others.chunks.pop(oldest, None)


class EntryIndex:
    def __init__(self, *, metadata: MetadataStore, control_reads: ControlReads) -> None:
        self._metadata = metadata
        self._control_reads = control_reads
        self._chunks = KeptChunks()

    async def find(self, log: PartitionLog, offset: int) -> Entry:
        """The entry that covers `offset`, which must lie in [log_start, high watermark) as `log.control` was last seen.

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

    async def _look(self, log: PartitionLog, offset: int) -> Entry | None:
        control = readable(log)
        if control.pending and offset >= control.pending[0].base:
            return covering(control.pending, offset)
        for chunk in log.chunks.values():
            if chunk.entries[0].base <= offset <= chunk.entries[-1].last:
                return covering(chunk.entries, offset)
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                record = await self._metadata.get_ceiling(log.keys.index(offset), within=log.keys.index_prefix)
        except TimeoutError:
            raise Unavailable(f"metadata did not answer: op=get_ceiling after_s={READ_TIMEOUT_S}") from None
        if record is None:
            return None
        chunk = decode_chunk(record.value, path=record.path)
        self._chunks.add(log, chunk)
        return covering(chunk.entries, offset)


def covering(entries: tuple[Entry, ...], offset: int) -> Entry | None:
    """The entry that holds `offset`, among consecutive ones."""
    index = bisect_left(entries, offset, key=_last_of)
    if index < len(entries) and entries[index].base <= offset:
        return entries[index]
    return None


def readable(log: PartitionLog) -> Control:
    """The control record as last seen. Raise what keeps it from being read."""
    if log.broken is not None:
        raise log.broken
    if log.control is None:
        raise Unavailable(f"partition not read yet: {log.partition}")
    if log.control.log_state is LogState.DELETED:
        raise NotFound(f"the partition was deleted: {log.partition}")
    return log.control


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
