"""Reading: tail cache, then block cache, then object store; whole batches, checked and stamped (DESIGN.md §6).

offset → entry (index) → window of its span (blocks) → scan → copy once → CRC of each batch → base offsets → bytes
"""

import asyncio
from typing import Final

from storage.cache.blocks import BlockCache
from storage.errors import Corrupt, NotFound, Unavailable
from storage.formats.control import Entry
from storage.formats.wal import object_key
from storage.limits import KIB
from storage.log.control_reads import ControlReads
from storage.log.index import EntryIndex, check_range
from storage.log.partition import HINTS_KEPT_MAX, PartitionLog
from storage.log.readplan import Window, scan
from storage.log.runs import BatchRun
from storage.recordbatch import parse_header, restamp, verify

WINDOW_BYTES_MIN: Final = 256 * KIB
"""The least that is scanned at once: many small batches are passed over in one go."""
READ_TIMEOUT_S: Final = 20.0


class Reader:
    """Reads runs of batches. Which offsets may be read is the caller's business: `log.control` must have been seen to cover them."""

    def __init__(self, *, index: EntryIndex, blocks: BlockCache, control_reads: ControlReads) -> None:
        self._index = index
        self._blocks = blocks
        self._control_reads = control_reads

    def cached(self, log: PartitionLog, offset: int) -> BatchRun | None:
        """The run that holds `offset`, if the tail cache has it."""
        return log.tail.find(offset)

    async def stored(self, log: PartitionLog, offset: int, *, bytes_max: int) -> BatchRun:
        """Batches from the one that holds `offset` on, about `bytes_max` of them and at least one, from the object store.

        Raises `OffsetOutOfRange`, `NotFound` (the partition is gone), `Unavailable`, and `Corrupt` where a committed batch is missing or
        not what was written: never a skip.
        """
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                entry = await self._index.find(log, offset)
                try:
                    return await self._read(log, entry, offset, bytes_max)
                except NotFound as error:
                    # Compaction or retention may have moved on since the control record was read.
                    log.chunks.clear()
                    await self._control_reads.refresh([log])
                    check_range(log, offset)
                    if await self._index.find(log, offset) == entry:
                        raise Corrupt(f"object of a live entry is missing: partition={log.partition} offset={offset} {error}") from error
                    raise Unavailable(f"the log was compacted meanwhile: partition={log.partition} offset={offset}") from error
        except TimeoutError:
            raise Unavailable(f"read timed out: partition={log.partition} offset={offset} after_s={READ_TIMEOUT_S}") from None

    async def _read(self, log: PartitionLog, entry: Entry, offset: int, bytes_max: int) -> BatchRun:
        key = object_key(entry.object_id)
        span, position, base = _start(log, entry, offset)
        window_bytes = max(WINDOW_BYTES_MIN, bytes_max)
        while span < len(entry.spans):
            span_start, length = entry.spans[span]
            span_end = span_start + length
            if position < 0:
                position = span_start
            if position >= span_end:
                span, position = span + 1, -1
                continue
            views = await self._blocks.read(key, position, min(span_end, position + window_bytes), object_size=span_end)
            window = views[0] if len(views) == 1 else memoryview(b"".join(views))
            where = f"object={key!r} partition={log.partition} entry={entry.base}..{entry.last} window={position}"
            found = scan(window, base=base, wanted=offset, bytes_max=bytes_max, where=where)
            if found.starts:
                following = found.end_offset, entry.base, span, position + found.end_position
                return _stamp(log, window, found, where, following, entry)
            if found.missing_bytes and position + len(window) >= span_end:
                raise Corrupt(f"a batch ends outside its slice: {where} missing_bytes={found.missing_bytes}")
            window_bytes = max(window_bytes, len(window) - found.end_position + found.missing_bytes)
            position += found.end_position
            base = found.end_offset
        raise Corrupt(f"an entry has fewer records than it says: object={key!r} partition={log.partition} entry={entry.base}..{entry.last}")


def _start(log: PartitionLog, entry: Entry, offset: int) -> tuple[int, int, int]:
    """Span, position (-1: its start) and offset to scan from: where the last read of this log ended, if it ended at `offset`."""
    hint = log.hints.get(offset)
    if hint is not None and hint[0] == entry.base:
        return hint[1], hint[2], offset
    return 0, -1, entry.base


def _stamp(
    log: PartitionLog, window: memoryview, found: Window, where: str, following: tuple[int, int, int, int], entry: Entry
) -> BatchRun:
    """Copy the kept batches, check each, give each its offset."""
    origin = found.positions[0]
    buffer = bytearray(window[origin : found.end_position])
    view = memoryview(buffer)
    positions = [position - origin for position in found.positions]
    for index, (start, position) in enumerate(zip(found.starts, positions, strict=True)):
        end = positions[index + 1] if index + 1 < len(positions) else len(buffer)
        batch = view[position:end]
        verify(batch, parse_header(batch), where=f"{where} offset={start}")
        restamp(view, position, start)
    end_offset = following[0]
    if end_offset - 1 > entry.last:
        raise Corrupt(f"an entry has more records than it says: {where} end_offset={end_offset}")
    log.hints[end_offset] = following[1:]
    while len(log.hints) > HINTS_KEPT_MAX:
        log.hints.popitem(last=False)
    return BatchRun(found.starts[0], end_offset - 1, view.toreadonly(), tuple(found.starts), tuple(positions))
