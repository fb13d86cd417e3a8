"""Offsets by time: entries carry the running maximum of timestamps, so time is searched as offsets are; then one object is looked into.

The first entry whose running maximum reaches t is the first that holds a record at or after t; which record, its batches say. No object is
read unless a timestamp is asked for (DESIGN.md §6).
"""

from typing import Final

from storage.errors import Corrupt
from storage.formats.control import Entry
from storage.log.control_reads import ControlReads
from storage.log.index import EntryIndex, readable
from storage.log.partition import PartitionLog, Partitions
from storage.log.read import Reader
from storage.log.runs import BatchRun
from storage.log.timestamps import TimestampedOffset
from storage.recordbatch import parse_header
from storage.records import walk
from storage.vocabulary import PartitionId

READ_BYTES: Final = 1 << 20


class TimeSearch:
    """As the port `Timestamps` says."""

    def __init__(self, *, partitions: Partitions, control_reads: ControlReads, index: EntryIndex, reader: Reader) -> None:
        self._partitions = partitions
        self._control_reads = control_reads
        self._index = index
        self._reader = reader

    async def first_at_or_after(self, partition: PartitionId, timestamp_ms: int) -> TimestampedOffset | None:
        log = await self._fresh(partition)
        control = readable(log)
        if control.max_timestamp < timestamp_ms:
            return None
        offset, end = control.log_start, control.sequence_counter
        if offset < end:
            offset = max(offset, (await self._first_entry_reaching(log, timestamp_ms)).base)
        # The entry found reaches the time, but perhaps only below log_start: then later ones are looked into, up to the end.
        while offset < end:
            run = await self._reader.stored(log, offset, bytes_max=READ_BYTES)
            found = _first_in(run, timestamp_ms, from_offset=control.log_start)
            if found is not None:
                return found
            offset = run.last + 1
        return None

    async def of_maximum(self, partition: PartitionId) -> TimestampedOffset | None:
        log = await self._fresh(partition)
        control = readable(log)
        if control.log_start == control.sequence_counter:
            return None
        if control.max_timestamp_offset >= control.log_start:
            run = await self._reader.stored(log, control.max_timestamp_offset, bytes_max=1)
            return _first_in(run, control.max_timestamp, from_offset=control.log_start)
        return await self._maximum_by_reading(log, control.log_start, control.sequence_counter)

    async def _fresh(self, partition: PartitionId) -> PartitionLog:
        log = self._partitions.get(partition)
        await self._control_reads.refresh([log])
        return log

    async def _first_entry_reaching(self, log: PartitionLog, timestamp_ms: int) -> Entry:
        """By bisection over offsets: each step is one look-up in pending or one ceiling get."""
        control = readable(log)
        low, high = control.log_start, control.sequence_counter - 1
        best = await self._index.find(log, high)
        while low <= high:
            entry = await self._index.find(log, (low + high) // 2)
            if entry.running_max_timestamp >= timestamp_ms:
                best, high = entry, entry.base - 1
            else:
                low = entry.last + 1
        return best

    async def _maximum_by_reading(self, log: PartitionLog, start: int, end: int) -> TimestampedOffset | None:
        """The greatest timestamp went with the records below log_start: look at all that is left."""
        greatest: TimestampedOffset | None = None
        offset = start
        while offset < end:
            run = await self._reader.stored(log, offset, bytes_max=READ_BYTES)
            after = -1 if greatest is None else greatest.timestamp_ms
            while (found := _first_in(run, after + 1, from_offset=start)) is not None:
                greatest, after = found, found.timestamp_ms
            offset = run.last + 1
        return greatest


def _first_in(run: BatchRun, timestamp_ms: int, *, from_offset: int) -> TimestampedOffset | None:
    for index, (start, position) in enumerate(zip(run.starts, run.positions, strict=True)):
        end = run.positions[index + 1] if index + 1 < len(run.positions) else len(run.buffer)
        batch = run.buffer[position:end]
        header = parse_header(batch)
        if header.max_timestamp < timestamp_ms or start + header.last_offset_delta < from_offset:
            continue
        try:
            for record in walk(batch, header):
                if record.timestamp_ms >= timestamp_ms and start + record.offset_delta >= from_offset:
                    return TimestampedOffset(start + record.offset_delta, record.timestamp_ms)
        except Corrupt:
            # A producer may store records that do not decode: its batch is known by its header alone.
            return TimestampedOffset(max(start, from_offset), header.max_timestamp)
    return None
