"""The batches of entries: fetched from WAL objects for many partitions at once, kept in a spool, checked and stamped when they are used.

The spool holds bytes that wait for their turn, for one round of compactions: in memory up to a bound, else in files without names. Files
are written and read past the page cache (storage/objects/files.py): on a virtual machine its pages cost 2 CPU seconds per GiB.
"""

import asyncio
import contextlib
import os
import tempfile
import time
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, Protocol

from compactor.limits import DEFAULT_LIMITS, CompactorLimits
from compactor.plan import RangeRead, Span, plan_reads
from runtime.blocking import Blocking
from storage.cache.blocks import RangeSource
from storage.errors import Corrupt, StorageError, Unavailable, without_frames
from storage.formats.manifest import Entry, object_of
from storage.formats.wal import object_key
from storage.log.scan import BatchRun, scan
from storage.objects.files import read_own_unbuffered, write_unbuffered
from storage.recordbatch import BatchHeader, parse_header, restamp, stamp_max_timestamp, verify
from storage.records import greatest_time, is_time_doubtful
from storage.vocabulary import Buffer, ObjectId, PartitionId

FILES_MAX: Final = 256
"""Chunks are larger where there would be more."""
GETS_TOGETHER: Final = 4
"""GETs under way, each of `get_bytes_max` at most."""


class Spool:
    """What `open_spool` opens. `append` any number of times, then `seal`, then `read`. Calls may overlap."""

    def __init__(
        self, blocking: Blocking, *, chunk_bytes: int, unbuffered_from_bytes: int, folder: Path | None, closing: contextlib.ExitStack
    ) -> None:
        self._blocking = blocking
        self._chunk_bytes = chunk_bytes
        self._unbuffered_from_bytes = unbuffered_from_bytes
        self._folder = folder
        self._closing = closing
        self._starts: list[int] = []
        self._chunks: list[int | bytes] = []
        """Descriptors of files, and the bytes of a chunk that is in memory."""
        self._open: list[Buffer] = []
        self._open_start = 0
        self._end = 0

    async def append(self, parts: Sequence[Buffer]) -> int:
        """Keep the parts behind what is there. Return the position of the first. Raises `Unavailable`: there is no room."""
        position, size_bytes = self._end, sum(map(len, parts))
        if 3 * memoryview(memoryview(parts[0]).obj).nbytes > 4 * size_bytes:
            parts = [b"".join(parts)]  # they are a small part of what was read
        self._open += parts
        self._end += size_bytes
        if self._end - self._open_start >= self._chunk_bytes:
            number = self._begin_chunk()
            parts, self._open = self._open, []
            await self._run(lambda: self._write(number, parts))
        return position

    def seal(self) -> None:
        """All has been appended."""
        if self._open:
            number = self._begin_chunk()
            self._chunks[number] = b"".join(self._open)
            self._open = []

    async def read(self, spans: Sequence[tuple[int, int]]) -> list[Buffer]:
        """The bytes at each position, of that length. What may be written to is the caller's alone."""
        assert not self._open, "seal it first"
        return await self._blocking.run(lambda: [self._read(position, length) for position, length in spans])

    def _begin_chunk(self) -> int:
        self._starts.append(self._open_start)
        self._chunks.append(b"")
        self._open_start = self._end
        return len(self._chunks) - 1

    async def _run(self, call: Callable[[], None]) -> None:
        try:
            await self._blocking.run(call)
        except OSError as error:
            raise Unavailable(
                f"compaction cannot keep slices: folder={str(self._folder or tempfile.gettempdir())!r} cause={error.strerror!r}: "
                "make room, or name another folder with compactor.spool_dir"
            ) from error

    def _write(self, number: int, parts: Sequence[Buffer]) -> None:
        file = self._closing.enter_context(tempfile.TemporaryFile(buffering=0, dir=self._folder))  # noqa: SIM115 - closed with the round
        descriptor = file.fileno()
        if not write_unbuffered(descriptor, parts):
            for part in parts:
                rest = memoryview(part)
                while len(rest):
                    rest = rest[os.write(descriptor, rest) :]
        self._chunks[number] = descriptor

    def _read(self, position: int, length: int) -> Buffer:
        number = bisect_right(self._starts, position) - 1
        chunk, start = self._chunks[number], position - self._starts[number]
        if isinstance(chunk, bytes):
            data: Buffer = memoryview(chunk)[start : start + length]
        else:
            found = read_own_unbuffered(chunk, start, start + length, worthwhile_bytes=self._unbuffered_from_bytes)
            data = os.pread(chunk, length, start) if found is None else found
        assert len(data) == length, f"never written: {position=} {length=}"
        return data


@contextlib.asynccontextmanager
async def open_spool(
    blocking: Blocking, *, bytes_max: int, folder: Path | None = None, limits: CompactorLimits = DEFAULT_LIMITS
) -> AsyncIterator[Spool]:
    """For about `bytes_max`. `blocking` runs one call at a time. `folder`: of the files; None for the system's."""
    with contextlib.ExitStack() as closing:
        yield Spool(
            blocking,
            chunk_bytes=max(limits.spool_chunk_bytes, bytes_max // FILES_MAX),
            unbuffered_from_bytes=limits.spool_unbuffered_from_bytes,
            folder=folder,
            closing=closing,
        )


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


class ByteRoom:
    """Whoever wants more than there is waits for all of it, and then works alone."""

    def __init__(self, bytes_max: int) -> None:
        assert bytes_max > 0
        self._bytes_max = bytes_max
        self._taken_bytes = 0
        self._less = asyncio.Condition()

    @contextlib.asynccontextmanager
    async def take(self, size_bytes: int) -> AsyncIterator[None]:
        """Wait until there is room for `size_bytes`; it is taken inside."""
        wanted_bytes = min(size_bytes, self._bytes_max)
        async with self._less:
            await self._less.wait_for(lambda: self._taken_bytes + wanted_bytes <= self._bytes_max)
            self._taken_bytes += wanted_bytes
        try:
            yield
        finally:
            async with self._less:
                self._taken_bytes -= wanted_bytes
                self._less.notify_all()


def _breathe() -> None:
    """Lets others have the interpreter now and then."""
    time.sleep(0)
