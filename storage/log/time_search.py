"""Offsets by time: entries carry timestamps, so they are searched first; then one object is looked into (docs/internals/design/reading.md).

Entries carry the running maximum of timestamps as well, so time is bisected as offsets are, as long as what was trimmed does not reach the
time that is looked for. It is bisected in segments first, then in the entries above them: compaction may have corrected times of segments,
which then reach later ones than the manifest and the entries above them know of. Where what was trimmed reaches the time, entries are
gone through from log_start on, a page at a time: linear in entries, and `EntryTimes` remembers what was gone through, so that the next
question goes on from there. Entries and batches never change, so what was found in them is remembered, too. Records are walked off the
event loop, a bounded number of each batch.
"""

import asyncio
import contextlib
from bisect import bisect_left
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from functools import partial
from itertools import islice
from typing import Final, NamedTuple, Protocol, TypeVar

from runtime.blocking import Blocking
from runtime.lru import LruCache
from runtime.singleflight import SingleFlight
from storage.errors import Corrupt, EndsEarly, NotFound, OffsetOutOfRange, Unavailable
from storage.formats.manifest import EntrySource, Manifest, SegmentEntry
from storage.log.fresh_reads import ManifestReads
from storage.log.index import EntriesMoved, EntryIndex, entry_pages, readable
from storage.log.limits import DEFAULT_LIMITS, LogLimits
from storage.log.partition import PartitionLog, Partitions
from storage.log.reader import Reader
from storage.log.scan import BatchRun
from storage.metadata.port import MetadataStore
from storage.objects.requests import caused_by
from storage.recordbatch import CODEC_MASK, NO_TIMESTAMP, BatchHeader, parse_header
from storage.records import walk
from storage.vocabulary import Buffer, PartitionId

READ_BYTES: Final = 1 << 20
SCANS_AT_ONCE: Final = 4
GREATEST: Final = -2
"""As the time of a question: the greatest there is."""
WALKED_HERE_BYTES_MAX: Final = 4_096
"""Uncompressed batches up to this size are walked where they are: a thread costs more."""

T = TypeVar("T")

_Question = tuple[PartitionId, int, int, int, bool]
"""Partition, the first offset that counts, the end of the batches that do, the time looked for, and whether that is in a segment: what is
compacted may have other times than before.
"""


class EntryTimes:
    """The timestamps of the entries that cover the offsets from `start` up to `end` (exclusive).

    `_falling`: base, last offset and timestamp of entries that no later one exceeds, oldest first: the first is the greatest, and when it
    is trimmed the next one is. Entries without room are dropped, except for their greatest timestamp.
    `_rising`: some entries that exceed all before them: none before such an entry, nor it itself, reaches a later time.
    """

    __slots__ = ("_falling", "_kept_max", "_left_out", "_rising", "_top", "end", "start")

    def __init__(self, start: int, *, kept_max: int) -> None:
        self._kept_max = kept_max
        self._falling: deque[tuple[int, int, int]] = deque()
        self._rising: list[tuple[int, int]] = []
        self.begin_at(start)

    def begin_at(self, start: int) -> None:
        """Nothing is known from `start` on."""
        self.start = self.end = start
        self._falling.clear()
        self._rising.clear()
        self._left_out: int | None = None
        self._top = -2  # of all that was added, trimmed or not

    def add(self, entry: EntrySource) -> None:
        """The one that holds `end`, from `start` on. It may have taken the place of entries that were added before."""
        assert self.start <= entry.base <= self.end <= entry.last, f"not the next entry: {entry} start={self.start} end={self.end}"
        if entry.base < self.end:
            # What is forgotten with them is in `entry`, too.
            while self._falling and self._falling[-1][0] >= entry.base:
                self._falling.pop()
            while self._rising and self._rising[-1][0] >= entry.base:
                self._rising.pop()
        self.end = entry.last + 1
        timestamp = entry.max_timestamp
        while self._falling and self._falling[-1][2] < timestamp:
            self._falling.pop()
        if self._left_out is not None and timestamp > self._left_out:
            self._left_out = None
        if self._left_out is None and len(self._falling) < self._kept_max:
            self._falling.append((entry.base, entry.last, timestamp))
        else:
            self._left_out = timestamp if self._left_out is None else self._left_out
        if timestamp > self._top:
            self._top = timestamp
            self._rising.append((entry.base, timestamp))
            if len(self._rising) > self._kept_max:
                del self._rising[1::2]

    def trim(self, start: int) -> None:
        """The entries before `start` are gone. If it begins none of those that are known, nothing is known any more."""
        if not self.start <= start <= self.end:
            self.begin_at(start)
            return
        self.start = start
        while self._falling and self._falling[0][1] < start:
            self._falling.popleft()
        if self._falling and self._falling[0][0] < start:
            self.begin_at(start)
            return
        if self._rising and self._rising[0][0] < start:
            del self._rising[: bisect_left(self._rising, (start, -1))]

    def greatest(self) -> tuple[int, int] | None:
        """Base and timestamp of the first entry with the greatest timestamp; None if there is no entry, or it is not known any more."""
        if not self._falling:
            return None
        base, _, timestamp = self._falling[0]
        return base, timestamp

    def base_before(self, timestamp_ms: int) -> int:
        """The base of an entry, or `start`, before which no entry reaches the time."""
        index = bisect_left(self._rising, timestamp_ms, key=lambda rising: rising[1])
        return self._rising[index - 1][0] if index else self.start


class TimestampedOffset(NamedTuple):
    offset: int
    timestamp_ms: int


class Timestamps(Protocol):
    async def first_at_or_after(self, partition: PartitionId, timestamp_ms: int) -> TimestampedOffset | None:
        """The first readable record whose timestamp is >= `timestamp_ms`; None if there is none. Raises `StorageError`."""
        ...

    async def of_maximum(self, partition: PartitionId) -> TimestampedOffset | None:
        """The first record that carries the greatest timestamp; None for an empty log. Raises `StorageError`."""
        ...


def first_reaching(
    batch: Buffer, header: BatchHeader, start: int, timestamp_ms: int, from_offset: int, *, records_max: int
) -> TimestampedOffset | None:
    """The first record at or after a time, from `from_offset` on, of the batch at offset `start` whose header reaches that time.

    Slow, by record: call it off the event loop. Differs from Apache Kafka: at most `records_max` records of a batch are looked at. The
    header alone tells of those behind them, so the answer is then the first offset behind them with the batch's greatest timestamp: never
    an offset behind the right one.
    """
    try:
        for record in islice(walk(batch, header), records_max):
            if record.timestamp_ms >= timestamp_ms and start + record.offset_delta >= from_offset:
                return TimestampedOffset(start + record.offset_delta, record.timestamp_ms)
    except Corrupt:
        # A producer may store records that do not decode: its batch is known by its header alone.
        return TimestampedOffset(max(start, from_offset), header.max_timestamp)
    if header.record_count > records_max:
        return TimestampedOffset(max(start + records_max, from_offset), header.max_timestamp)
    return None


def greatest_from(batch: Buffer, header: BatchHeader, start: int, from_offset: int, *, records_max: int) -> TimestampedOffset | None:
    """The first record with the greatest timestamp, from `from_offset` on, of the batch at offset `start`. Slow, as `first_reaching` is."""
    best: TimestampedOffset | None = None
    try:
        for record in islice(walk(batch, header), records_max):
            offset = start + record.offset_delta
            if offset >= from_offset and record.timestamp_ms > (-1 if best is None else best.timestamp_ms):
                best = TimestampedOffset(offset, record.timestamp_ms)
    except Corrupt:
        return TimestampedOffset(from_offset, header.max_timestamp)
    if header.record_count > records_max and (best is None or header.max_timestamp > best.timestamp_ms):
        return TimestampedOffset(max(start + records_max, from_offset), header.max_timestamp)
    return best


class TimeSearch:
    """As the port `Timestamps` says. What `walking` runs holds at most one batch decompressed per thread."""

    def __init__(
        self,
        *,
        partitions: Partitions,
        manifest_reads: ManifestReads,
        index: EntryIndex,
        reader: Reader,
        metadata: MetadataStore,
        walking: Blocking,
        limits: LogLimits = DEFAULT_LIMITS,
    ) -> None:
        self._limits = limits
        self._partitions = partitions
        self._manifest_reads = manifest_reads
        self._index = index
        self._reader = reader
        self._metadata = metadata
        self._walking = walking
        self._scans = asyncio.Semaphore(SCANS_AT_ONCE)
        self._times: LruCache[PartitionId, tuple[EntryTimes, asyncio.Lock]] = LruCache(limits.logs_timed_max)
        self._answers: LruCache[_Question, tuple[TimestampedOffset | None]] = LruCache(limits.time_answers_kept_max)
        self._asking: SingleFlight[_Question, TimestampedOffset | None] = SingleFlight()

    async def first_at_or_after(self, partition: PartitionId, timestamp_ms: int) -> TimestampedOffset | None:
        return await self._untrimmed(partition, lambda: self._first_at_or_after(partition, timestamp_ms))

    async def of_maximum(self, partition: PartitionId) -> TimestampedOffset | None:
        return await self._untrimmed(partition, lambda: self._of_maximum(partition))

    async def greatest_around(self, partition: PartitionId, offset: int) -> int | None:
        """The greatest time of the index entry that holds a readable offset, NO_TIMESTAMP if none of its records has one; None of an offset
        that cannot be read. Reads no object. Raises `StorageError`.
        """

        async def search() -> int | None:
            log = await self._fresh(partition)
            manifest = readable(log)
            if not manifest.log_start <= offset < manifest.sequence_counter:
                return None
            return (await self._index.find(log, offset)).max_timestamp

        return await self._untrimmed(partition, search)

    async def _untrimmed(self, partition: PartitionId, search: Callable[[], Awaitable[T]]) -> T:
        """Entries may be trimmed or compacted during a search, which then begins again."""
        for _ in range(self._limits.trims_met_max):
            try:
                with caused_by("time_search"):
                    return await search()
            except (OffsetOutOfRange, EntriesMoved):
                continue
        raise Unavailable(f"the log is trimmed or compacted faster than it is searched: partition={partition}")

    async def _first_at_or_after(self, partition: PartitionId, timestamp_ms: int) -> TimestampedOffset | None:
        log = await self._fresh(partition)
        manifest = readable(log)
        if _greatest_known(manifest) < timestamp_ms or manifest.log_start == manifest.sequence_counter:
            return None
        first = await self._index.find(log, manifest.log_start)
        entry: EntrySource | None = first
        if first.max_timestamp < timestamp_ms:
            entry = await self._next_reaching(log, manifest, first, first.last + 1, timestamp_ms)
        # An entry may reach the time with records that are trimmed, or by the word of a header alone: then the next one is looked for.
        while entry is not None:
            begin = await self._first_block(log, entry, max(entry.base, manifest.log_start), timestamp_ms)
            found = None if begin is None else await self._first_in(log, begin, entry.last + 1, timestamp_ms)
            if found is not None:
                return found
            entry = await self._next_reaching(log, manifest, first, entry.last + 1, timestamp_ms)
        return None

    async def _of_maximum(self, partition: PartitionId) -> TimestampedOffset | None:
        log = await self._fresh(partition)
        manifest = readable(log)
        if manifest.log_start == manifest.sequence_counter:
            return None
        found = await self._of_greatest(log, manifest)
        if found is None:
            # As in Kafka: where no record has a time, it is the first without one.
            first = await self._first_in(log, manifest.log_start, manifest.log_start + 1, NO_TIMESTAMP)
            found = first if first is not None and first.timestamp_ms == NO_TIMESTAMP else None
        return found

    async def _of_greatest(self, log: PartitionLog, manifest: Manifest) -> TimestampedOffset | None:
        if _greatest_known(manifest) < 0:
            return None
        base, log_start = manifest.max_timestamp_offset, manifest.log_start
        if base >= log_start and _greatest_known(manifest) == manifest.max_timestamp:
            found = await self._first_in(log, base, base + 1, manifest.max_timestamp)
            if found is not None:
                return found
        # The batch with the greatest timestamp was trimmed, or cut, or its time was corrected.
        first = await self._index.find(log, log_start)
        rest = await self._greatest_entry(log, manifest, first)
        cut: TimestampedOffset | None = None
        if rest is None or first.max_timestamp >= rest[1]:
            cut = await self._greatest_in(log, first, log_start)
        if rest is not None and rest[1] > (-1 if cut is None else cut.timestamp_ms):
            return await self._first_of(log, manifest, rest[0], rest[1])
        return cut

    async def _first_of(self, log: PartitionLog, manifest: Manifest, offset: int, timestamp_ms: int) -> TimestampedOffset | None:
        """The first record that reaches the time, in the entry that holds `offset`."""
        entry = await self._index.find(log, offset)
        begin = await self._first_block(log, entry, max(entry.base, manifest.log_start), timestamp_ms)
        return None if begin is None else await self._first_in(log, begin, entry.last + 1, timestamp_ms)

    async def _fresh(self, partition: PartitionId) -> PartitionLog:
        log = self._partitions.get(partition)
        await self._manifest_reads.refresh([log])
        return log

    # Entries

    async def _next_reaching(
        self, log: PartitionLog, manifest: Manifest, first: EntrySource, offset: int, timestamp_ms: int
    ) -> EntrySource | None:
        """The first entry from the one at `offset` on that reaches the time. `first` is the one that holds log_start."""
        if offset >= manifest.sequence_counter:
            return None
        before = await self._index.find(log, offset - 1)
        if before.running_max_timestamp < timestamp_ms:
            segment, end = manifest.segment, manifest.sequence_counter
            if segment is not None and offset <= segment.last:
                if segment.running_max_timestamp >= timestamp_ms:
                    return await self._first_running(log, offset, segment.last, timestamp_ms)
                offset = segment.last + 1
            found = await self._first_running(log, offset, end - 1, timestamp_ms) if offset < end else None
            if readable(log).segment != segment:
                raise EntriesMoved(offset)  # what lies above the segment is in another one by now, perhaps corrected
            return found
        # Something before it does, so the running maximum of what follows says nothing.
        times = await self._times_of(log, manifest, first.last + 1)
        begin = max(offset, times.base_before(timestamp_ms))
        async with self._scanning(log, begin, manifest.sequence_counter), contextlib.aclosing(self._pages(log, manifest, begin)) as pages:
            async for page in pages:
                for entry in page:
                    if entry.max_timestamp >= timestamp_ms:
                        return entry
        return None

    async def _first_running(self, log: PartitionLog, low: int, high: int, timestamp_ms: int) -> EntrySource | None:
        """By bisection over offsets: each step is one look-up in pending or one ceiling get."""
        best: EntrySource | None = None
        while low <= high:
            entry = await self._index.find(log, (low + high) // 2)
            if entry.running_max_timestamp >= timestamp_ms:
                best, high = entry, entry.base - 1
            else:
                low = entry.last + 1
        return best

    async def _greatest_entry(self, log: PartitionLog, manifest: Manifest, first: EntrySource) -> tuple[int, int] | None:
        """Base and timestamp of the first entry behind `first` that holds the greatest timestamp; None if there is no entry."""
        while first.last + 1 < manifest.sequence_counter:
            times = await self._times_of(log, manifest, first.last + 1)
            found = times.greatest()
            if found is not None:
                return found
            times.begin_at(first.last + 1)  # more were trimmed than it remembers
        return None

    async def _times_of(self, log: PartitionLog, manifest: Manifest, offset: int) -> EntryTimes:
        """What is known of the entries from `offset` on, which begins one, up to the end that `manifest` says."""
        found = self._times.get(log.partition)
        if found is None:
            found = EntryTimes(offset, kept_max=self._limits.entries_timed_max), asyncio.Lock()
            self._times.put(log.partition, found)
        times, lock = found
        async with lock:  # a question from before a trim must not meet one from after it
            times.trim(offset)
            if times.end < manifest.sequence_counter:
                begin, end = times.end, manifest.sequence_counter
                async with self._scanning(log, begin, end), contextlib.aclosing(self._pages(log, manifest, begin)) as pages:
                    async for page in pages:
                        for entry in page:
                            if entry.base < offset:
                                # What is remembered of the entry before `offset` is older: that one is in a merge by now.
                                self._index.drop(log)
                                raise EntriesMoved(offset)
                            times.add(entry)
        return times

    @contextlib.asynccontextmanager
    async def _scanning(self, log: PartitionLog, begin: int, end: int) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._limits.scan_s), self._scans:
                yield
        except TimeoutError:
            text = f"too many entries for one search by time, ask again: partition={log.partition} offsets={begin}..{end}"
            raise Unavailable(text) from None

    async def _pages(self, log: PartitionLog, manifest: Manifest, offset: int) -> AsyncGenerator[list[EntrySource], None]:
        """The entries from `offset` on, as of `manifest`, without gaps."""
        try:
            async with contextlib.aclosing(entry_pages(self._metadata, log.keys, manifest, offset, limits=self._limits)) as pages:
                async for page in pages:
                    yield page
        except EntriesMoved as moved:
            # If that is because they were trimmed, a look for the entry says so.
            await self._index.find(log, moved.offset)
            raise

    # Batches

    async def _first_block(self, log: PartitionLog, entry: EntrySource, offset: int, timestamp_ms: int) -> int | None:
        """Where to begin, from `offset` on, to look for a time: a segment says it by its footer. None: nothing in `entry` reaches it."""
        if not isinstance(entry, SegmentEntry):
            return offset
        try:
            footer = await self._reader.segments.footer(log.partition, entry)
        except (NotFound, EndsEarly, Corrupt):
            return offset  # whoever reads the records finds out what became of them
        first = footer.find(offset)
        block = None if first is None else footer.first_reaching(timestamp_ms, start=first)
        return None if block is None else max(offset, footer.firsts[block])

    async def _first_in(self, log: PartitionLog, offset: int, end: int, timestamp_ms: int) -> TimestampedOffset | None:
        """The first record from `offset` on that reaches the time, of the batches that begin before `end`."""

        records_max = self._limits.records_walked_max

        async def search() -> TimestampedOffset | None:
            at = offset
            while at < end:
                run = await self._reader.stored(log, at, bytes_max=READ_BYTES if end - at > 1 else 1)
                for start, header, batch in _batches(run):
                    if header.max_timestamp < timestamp_ms or start + header.last_offset_delta < offset:
                        continue
                    found = await self._walk(
                        partial(first_reaching, batch, header, start, timestamp_ms, offset, records_max=records_max), header
                    )
                    if found is not None:
                        return found
                at = run.last + 1
            return None

        return await self._remembered((log.partition, offset, end, timestamp_ms, _is_compacted(log, offset)), search)

    async def _promising(self, log: PartitionLog, entry: EntrySource, from_offset: int) -> list[tuple[int, int]]:
        """Ranges of offsets, ends inclusive. One has the greatest timestamp from `from_offset` on: in a segment the block that holds that
        offset, which is cut, or the greatest block behind it.
        """
        whole = [(from_offset, entry.last)]
        if not isinstance(entry, SegmentEntry):
            return whole
        try:
            footer = await self._reader.segments.footer(log.partition, entry)
        except (NotFound, EndsEarly, Corrupt):
            return whole
        first = footer.find(from_offset)
        if first is None:
            return []
        greatest = max(range(first + 1, len(footer.lasts)), key=footer.max_timestamps.__getitem__, default=None)
        cut = [(from_offset, footer.lasts[first])]
        return cut if greatest is None else [*cut, (footer.firsts[greatest], footer.lasts[greatest])]

    async def _greatest_in(self, log: PartitionLog, entry: EntrySource, from_offset: int) -> TimestampedOffset | None:
        """The first record with the greatest timestamp of those that trimming has left of `entry`."""

        records_max = self._limits.records_walked_max

        async def search() -> TimestampedOffset | None:
            best: TimestampedOffset | None = None
            for begin, last in await self._promising(log, entry, from_offset):
                at = begin
                while at <= last:
                    run = await self._reader.stored(log, at, bytes_max=READ_BYTES)
                    for start, header, batch in _batches(run):
                        if header.max_timestamp <= (-1 if best is None else best.timestamp_ms):
                            continue
                        if start >= from_offset:
                            best = TimestampedOffset(start, header.max_timestamp)  # which record it is, is looked for in the end
                        else:
                            best = await self._walk(
                                partial(greatest_from, batch, header, start, from_offset, records_max=records_max), header
                            )
                    at = run.last + 1
            if best is None or best.offset < from_offset:
                return best
            return await self._first_in(log, best.offset, best.offset + 1, best.timestamp_ms) or best

        return await self._remembered((log.partition, from_offset, entry.last + 1, GREATEST, _is_compacted(log, from_offset)), search)

    async def _walk(self, call: Callable[[], TimestampedOffset | None], header: BatchHeader) -> TimestampedOffset | None:
        if not header.attributes & CODEC_MASK and header.size_bytes <= WALKED_HERE_BYTES_MAX:
            return call()
        return await self._walking.run(call)

    async def _remembered(self, question: _Question, search: Callable[[], Awaitable[TimestampedOffset | None]]) -> TimestampedOffset | None:
        if (known := self._answers.get(question)) is not None:
            return known[0]
        found = await self._asking.run(question, search)
        self._answers.put(question, (found,))
        return found


def _is_compacted(log: PartitionLog, offset: int) -> bool:
    return offset < readable(log).compaction_cursor


def _greatest_known(manifest: Manifest) -> int:
    """No record of the log has a later time, as far as headers are right."""
    segment = manifest.segment
    return manifest.max_timestamp if segment is None else max(manifest.max_timestamp, segment.running_max_timestamp)


def _batches(run: BatchRun) -> list[tuple[int, BatchHeader, memoryview]]:
    buffer = run.buffer
    ends = (*run.positions[1:], len(buffer))
    return [
        (start, parse_header(buffer, position), buffer[position:end])
        for start, position, end in zip(run.starts, run.positions, ends, strict=True)
    ]
