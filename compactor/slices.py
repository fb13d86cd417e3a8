"""The batches of entries: fetched from WAL objects for many partitions at once, kept in a spool, checked and stamped when they are used.

Early entries whose object is not there have theirs in early pages: their broker has not stored it yet, or died before it could.

    GET object → not there → pages → not there → GET object → not there → [manifest, pages] in one read → not there → GET object → damage

Writers delete pages once the object is stored, so the object is asked for behind each look at them (storage/log/early_pages.py).

The spool holds bytes that wait for their turn, for one round of compactions: in memory up to a bound, else in files without names. Files
are written and read past the page cache (storage/objects/files.py): on a virtual machine its pages cost 2 CPU seconds per GiB.
"""

import asyncio
import contextlib
import itertools
import os
import tempfile
import time
from bisect import bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol, TypeVar

from compactor.limits import DEFAULT_LIMITS, CompactorLimits
from compactor.plan import RangeRead, Span, plan_reads
from compactor.records import side_by_side
from runtime.blocking import Blocking
from storage.cache.blocks import RangeSource
from storage.errors import Corrupt, NotFound, StorageError, Unavailable, without_frames
from storage.formats.manifest import Early, Entry, object_of
from storage.formats.wal import object_key
from storage.limits import EARLY_PAGE_BYTES_MAX
from storage.log.early_pages import EarlySlice, page_keys, read_pages_certainly, read_pages_of_all
from storage.log.scan import BatchRun, scan
from storage.metadata.keys import PartitionKeys
from storage.metadata.port import MetadataStore
from storage.objects.files import read_own_unbuffered, write_unbuffered
from storage.recordbatch import BatchHeader, parse_header, restamp, stamp_max_timestamp, verify
from storage.records import greatest_time, is_time_doubtful
from storage.vocabulary import Buffer, ObjectId, PartitionId

FILES_MAX: Final = 256
"""Chunks are larger where there would be more."""
GETS_TOGETHER: Final = 4
"""GETs under way, each of `get_bytes_max` at most; or reads of early pages."""

T = TypeVar("T")


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


class PartitionEntries(NamedTuple):
    """Entries of one partition, each of which its manifest of `version`, or an older one, has named."""

    keys: PartitionKeys
    version: int
    entries: Sequence[Entry]


class _Unstored(NamedTuple):
    """An early entry whose object was not there."""

    named_by: PartitionEntries
    entry: Entry

    @property
    def pages(self) -> range:
        """Where they begin in the object."""
        assert isinstance(self.entry.batches, Early)
        return range(self.entry.batches.start, self.entry.extent[1], EARLY_PAGE_BYTES_MAX)


class GatheredSlices:
    """`gather` once, then `read`."""

    def __init__(self, objects: RangeSource, spool: Spool, *, metadata: MetadataStore, limits: CompactorLimits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._objects = objects
        self._spool = spool
        self._metadata = metadata
        self._positions: dict[tuple[ObjectId, Span], int] = {}
        self._failed: dict[ObjectId, StorageError] = {}
        self._failed_entries: dict[tuple[ObjectId, Span], StorageError] = {}
        """Early entries by their first span: what is wrong with their pages."""
        self.objects = 0
        self.gets = 0
        self.read_bytes = 0
        self.entries_of_pages = 0

    async def gather(self, wanted: Sequence[PartitionEntries]) -> None:
        """Fetch the slices of all entries. What fails is raised by `read`, for the entries concerned."""
        await self._fetch_objects(itertools.chain.from_iterable(one.entries for one in wanted))
        unstored = [_Unstored(one, entry) for one in wanted for entry in one.entries if entry.is_early and self._is_unstored(entry)]
        if unstored:
            await self._fetch_unstored(unstored)
        self._spool.seal()

    async def read(self, entries: Sequence[Entry]) -> list[Sequence[Buffer]]:
        spans: list[Span] = []
        for entry in entries:
            for span in entry.spans:
                position = self._positions.get((entry.object_id, span))
                if position is None:
                    raise self._failed_entries.get((entry.object_id, entry.spans[0])) or self._failed[entry.object_id]
                spans.append((position, span[1]))
        parts = iter(await self._spool.read(spans))
        return [[entry.batches] if isinstance(entry.batches, bytes) else [next(parts) for _ in entry.spans] for entry in entries]

    async def _fetch_objects(self, entries: Iterable[Entry]) -> None:
        reads = plan_reads(entries, gap_bytes_max=self._limits.gap_bytes_max, get_bytes_max=self._limits.get_bytes_max)
        self.objects = self.objects or len({read.object_id for read in reads})
        await side_by_side(reads, self._fetch, together=GETS_TOGETHER)

    async def _fetch(self, read: RangeRead) -> None:
        if read.object_id in self._failed:
            return
        try:
            await self._get(read)
        except StorageError as error:
            self._failed[read.object_id] = without_frames(error)

    async def _get(self, read: RangeRead) -> None:
        data = await self._objects.get_range(object_key(read.object_id), read.begin, read.end)
        self.gets += 1
        self.read_bytes += len(data)
        view = memoryview(data)
        parts = [view[begin - read.begin : begin - read.begin + length] for begin, length in read.spans]
        await self._keep(read.object_id, read.spans, parts)

    async def _keep(self, object_id: ObjectId, spans: Sequence[Span], parts: Sequence[Buffer]) -> None:
        position = await self._spool.append(parts)
        for span in spans:
            self._positions[object_id, span] = position
            position += span[1]

    # Early entries

    def _is_missing(self, entry: Entry) -> bool:
        return any((entry.object_id, span) not in self._positions for span in entry.spans)

    def _is_unstored(self, entry: Entry) -> bool:
        return isinstance(self._failed.get(entry.object_id), NotFound) and self._is_missing(entry)

    async def _fetch_unstored(self, unstored: list[_Unstored]) -> None:
        unstored.sort(key=lambda one: (one.entry.object_id, one.pages.start))
        page_reads = _page_reads(unstored, pages_max=self._limits.early_pages_per_read)
        await side_by_side(page_reads, self._fetch_pages, together=GETS_TOGETHER)
        if left := [one for one in unstored if self._is_missing(one.entry)]:
            # They may have been stored meanwhile, and then their pages are gone.
            for object_id in {one.entry.object_id for one in left}:
                del self._failed[object_id]
            await self._fetch_objects([one.entry for one in left])
            by_partition: dict[str, list[_Unstored]] = {}
            for one in left:
                if self._is_unstored(one.entry):
                    by_partition.setdefault(one.named_by.keys.partition_key, []).append(one)
            await side_by_side(by_partition.values(), self._fetch_certainly, together=GETS_TOGETHER)

    async def _fetch_pages(self, unstored: Sequence[_Unstored]) -> None:
        try:
            asked = [(one.named_by.keys, one.entry) for one in unstored]
            found = await self._within(read_pages_of_all(self._metadata, asked))
        except StorageError as error:
            found = [without_frames(error)] * len(unstored)
        for one, value in zip(unstored, found, strict=True):
            if isinstance(value, StorageError):
                self._fail(one.entry, value)
            elif value is not None:
                try:
                    await self._keep_slice(one.entry, value)
                except StorageError as error:
                    self._fail(one.entry, error)

    async def _fetch_certainly(self, unstored: Sequence[_Unstored]) -> None:
        """Fetch what one partition needs. An entry that is lost, or of which nobody can say, ends it: no segment is made of the others."""
        for number, one in enumerate(unstored):
            try:
                if (failure := self._failed_entries.get((one.entry.object_id, one.entry.spans[0]))) is not None:
                    raise failure
                keys, version = one.named_by.keys, one.named_by.version
                found = await self._within(read_pages_certainly(self._metadata, keys, one.entry, known_version=version))
                if found is not None:
                    await self._keep_slice(one.entry, found)
                else:
                    await self._get_again(one)
            except StorageError as error:
                for other in unstored[number:]:
                    self._fail(other.entry, error)
                return

    async def _get_again(self, one: _Unstored) -> None:
        """Behind a look that has shown its pages to be gone."""
        try:
            for read in plan_reads([one.entry], gap_bytes_max=self._limits.gap_bytes_max, get_bytes_max=self._limits.get_bytes_max):
                await self._get(read)
        except NotFound as error:
            key, entry = page_keys(one.named_by.keys, one.entry)[0], one.entry
            raise NotFound(
                f"an early entry has neither its object nor its pages: object={object_key(entry.object_id)!r} page={key.path!r} "
                f"partition={key.partition_key} entry={entry.base}..{entry.last} cause={error}"
            ) from None

    async def _keep_slice(self, entry: Entry, found: EarlySlice) -> None:
        await self._keep(entry.object_id, entry.spans, found.batches_of(entry))
        self.entries_of_pages += 1

    def _fail(self, entry: Entry, error: StorageError) -> None:
        self._failed_entries.setdefault((entry.object_id, entry.spans[0]), without_frames(error))

    async def _within(self, call: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(self._limits.call_timeout_s):
                return await call
        except TimeoutError:
            raise Unavailable(f"metadata did not answer with early pages: after_s={self._limits.call_timeout_s}") from None


def _page_reads(unstored: Sequence[_Unstored], *, pages_max: int) -> Iterator[Sequence[_Unstored]]:
    """Runs of entries, by object and page, that name up to `pages_max` pages together. One that names more is a run by itself."""
    begin, pages = 0, set[tuple[ObjectId, int]]()
    for number, one in enumerate(unstored):
        named = {(one.entry.object_id, position) for position in one.pages}
        if number > begin and len(pages | named) > pages_max:
            yield unstored[begin:number]
            begin, pages = number, set()
        pages |= named
    if begin < len(unstored):
        yield unstored[begin:]


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
