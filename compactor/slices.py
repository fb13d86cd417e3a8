"""The batches of entries: fetched from WAL objects for many partitions at once, kept in a spool, checked and stamped when they are used."""

import asyncio
import contextlib
import time
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from compactor.limits import DEFAULT_LIMITS, CompactorLimits
from compactor.plan import RangeRead, Span, plan_reads
from compactor.spool import Spool
from storage.cache.blocks import RangeSource
from storage.errors import Corrupt, StorageError, without_frames
from storage.formats.control import Entry, object_of
from storage.formats.wal import object_key
from storage.log.scan import BatchRun, scan
from storage.recordbatch import BatchHeader, parse_header, restamp, stamp_max_timestamp, verify
from storage.records import greatest_time, is_time_doubtful
from storage.vocabulary import Buffer, ObjectId, PartitionId

GETS_TOGETHER: Final = 4
"""GETs under way, each of `get_bytes_max` at most."""


class Slices(Protocol):
    async def read(self, entries: Sequence[Entry]) -> list[Sequence[Buffer]]:
        """For each entry its batches, in order. Raises why an object could not be read."""
        ...


class GatheredSlices:
    """`gather` once, then `read`."""

    def __init__(self, objects: RangeSource, spool: Spool, *, limits: CompactorLimits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._objects = objects
        self._spool = spool
        self._positions: dict[tuple[ObjectId, Span], int] = {}
        self._failed: dict[ObjectId, StorageError] = {}
        self.objects = 0
        self.gets = 0
        self.read_bytes = 0

    async def gather(self, entries: Iterable[Entry]) -> None:
        """Fetch the slices of all `entries`. What fails is raised by `read`, for the entries concerned."""
        reads = plan_reads(entries, gap_bytes_max=self._limits.gap_bytes_max, get_bytes_max=self._limits.get_bytes_max)
        self.objects = len({read.object_id for read in reads})
        waiting = iter(reads)

        async def work() -> None:
            for read in waiting:
                await self._fetch(read)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(GETS_TOGETHER):
                tasks.create_task(work())
        self._spool.seal()

    async def read(self, entries: Sequence[Entry]) -> list[Sequence[Buffer]]:
        spans: list[Span] = []
        for entry in entries:
            if isinstance(entry.batches, bytes):
                continue
            if (failure := self._failed.get(entry.object_id)) is not None:
                raise failure
            spans += [(self._positions[entry.object_id, span], span[1]) for span in entry.batches]
        parts = iter(await self._spool.read(spans))
        return [[entry.batches] if isinstance(entry.batches, bytes) else [next(parts) for _ in entry.batches] for entry in entries]

    async def _fetch(self, read: RangeRead) -> None:
        if read.object_id in self._failed:
            return
        try:
            data = await self._objects.get_range(object_key(read.object_id), read.begin, read.end)
            self.gets += 1
            self.read_bytes += len(data)
            view = memoryview(data)
            position = await self._spool.append([view[begin - read.begin : begin - read.begin + length] for begin, length in read.spans])
        except StorageError as error:
            self._failed[read.object_id] = without_frames(error)
            return
        for span in read.spans:
            self._positions[read.object_id, span] = position
            position += span[1]


def stamp(entry: Entry, parts: Sequence[Buffer], partition: PartitionId) -> BatchRun:
    """The batches of `entry`, stamped where they are if that is one part that may be written to. Raise `Corrupt` for what is not what was
    written: no segment is made of it.
    """
    where = f"object={object_of(entry, partition)!r} partition={partition} entry={entry.base}..{entry.last}"
    only = memoryview(parts[0]) if len(parts) == 1 else None
    buffer = bytearray().join(parts) if only is None or only.readonly else only
    found = scan([memoryview(buffer)], base=entry.base, wanted=entry.base, bytes_max=len(buffer), where=where)
    if found.end_position != len(buffer) or found.end_offset != entry.last + 1:
        raise Corrupt(
            f"a slice has other batches than its entry says: {where} bytes={len(buffer)} "
            f"batches_end_at={found.end_position} next_offset={found.end_offset}"
        )
    view = memoryview(buffer)
    ends = (*found.positions[1:], len(buffer))
    for start, position, end in zip(found.starts, found.positions, ends, strict=True):
        batch = view[position:end]
        verify(batch, parse_header(batch), where=f"{where} offset={start}")
        restamp(view, position, start)
    return BatchRun(entry.base, entry.last, (view,), tuple(found.starts), tuple(found.positions))


def doubtful_batches(run: BatchRun) -> list[tuple[memoryview, BatchHeader]]:
    """The batches whose header is a reason to read the times of their records."""
    view = run.buffer
    ends = (*run.positions[1:], len(view))
    batches = [view[position:end] for position, end in zip(run.positions, ends, strict=True)]
    return [(batch, header) for batch in batches if is_time_doubtful(batch, header := parse_header(batch))]


def correct_times(batches: Iterable[tuple[memoryview, BatchHeader]]) -> None:
    """Give each batch the greatest time of its records. One whose records cannot be read stays as it is. Runs in a thread."""
    for batch, header in batches:
        with contextlib.suppress(Corrupt):
            greatest_ms = greatest_time(batch, header, breathe=_breathe)
            if greatest_ms != header.max_timestamp:
                stamp_max_timestamp(batch, greatest_ms)


def _breathe() -> None:
    """Lets others have the interpreter now and then."""
    time.sleep(0)
