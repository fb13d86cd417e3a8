"""Reading: tail cache, then block cache, then object store; whole batches, checked and stamped (docs/internals/design/reading.md).

offset → entry (index) → window of its span (blocks) → scan → CRC of each batch → base offsets → bytes

Bytes that come back otherwise than they were written are read once more before a client hears of it: the pieces they came from leave the
cache, the manifest is read again, and so is the object. Only bytes that are damaged twice are an alarm (`CorruptReads`). A read of the
object store is a `StoredRead`, which outlives the fetch that asked for it.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Final, Literal, NamedTuple, Protocol

import msgspec
import structlog

from runtime.clock import Clock
from runtime.lru import LruCache
from runtime.supervision import Nursery
from runtime.telemetry import Metric, Telemetry
from storage.cache.blocks import BlockCache, RangeSource
from storage.errors import Corrupt, EndsEarly, NotFound, StorageError, Unavailable, without_frames
from storage.formats.manifest import Entry, EntrySource, SegmentEntry, Spans, object_of
from storage.formats.wal import object_key
from storage.limits import KIB
from storage.log.early_pages import EarlyPages
from storage.log.fresh_reads import ManifestReads
from storage.log.index import EntryIndex, check_range
from storage.log.limits import DEFAULT_LIMITS, LogLimits
from storage.log.partition import PartitionLog
from storage.log.prefetch import EntriesAhead, Range, ReadAhead
from storage.log.scan import BatchRun, Elsewhere, Gap, check_passed, scan, stamp
from storage.log.segments import SegmentReader
from storage.objects.requests import CAUSE, caused_by
from storage.vocabulary import PartitionId

LOOK_AGAIN_S: Final = 10.0
"""How long a reader is refused from memory what was found damaged twice."""
TELL_AGAIN_S: Final = 300.0
"""How long nothing more is logged of the same partition in the same object."""
LINES_MAX: Final = 10
"""Lines in LINES_PER_S: a store that lost everything is logged, but not once per partition."""
LINES_PER_S: Final = 60.0

CORRUPT_READS: Final = Metric(
    "forebay_corrupt_reads_total",
    "Reads of the object store that did not give what was written: corrupt, missing or short. Each is repeated once, past the cache.",
    ("cause",),
)
RECOVERED_READS: Final = Metric(
    "forebay_recovered_reads_total",
    "Reads that did not give what was written, and did when they were repeated. What is left is an alarm.",
    former_name="forebay_healed_reads_total",
)

Cause = Literal["corrupt", "missing", "short"]
CAUSES: Final[tuple[Cause, ...]] = ("corrupt", "missing", "short")

_log: Final = structlog.get_logger()
READ_TIMEOUT_S: Final = 20.0
PASSED_BYTES_MAX: Final = 16 * KIB
"""A larger entry that is entered in its middle is checked in a task, not in the turn that answers many partitions."""


class CorruptReads:
    """Corrupt reads of one broker: counted, logged once, and not read again at once.

    A corrupt read is repeated once. What is corrupt the second time, too, is remembered for a while, so that clients which keep
    asking cost neither GETs nor log lines.
    """

    def __init__(self, *, clock: Clock, telemetry: Telemetry, limits: LogLimits = DEFAULT_LIMITS) -> None:
        self._clock = clock
        self._confirmed: LruCache[tuple[PartitionId, int], tuple[float, str]] = LruCache(limits.corrupt_reads_kept_max)
        self._told_s: LruCache[tuple[str, PartitionId], float] = LruCache(limits.corrupt_reads_kept_max)
        self._lines_since_s = -LINES_PER_S
        self._lines = self._untold = 0
        reads = telemetry.counter(CORRUPT_READS)
        self._reads = {cause: reads.labels(cause) for cause in CAUSES}
        self._recovered = telemetry.counter(RECOVERED_READS)

    def check(self, partition: PartitionId, offset: int) -> None:
        """Raise what the last reads of `offset` ended with, if it was damage, and not long ago."""
        if not len(self._confirmed):
            return
        known = self._confirmed.peek((partition, offset))
        if known is not None and self._clock.monotonic_s() < known[0]:
            raise Corrupt(known[1])

    def note(self, cause: Cause) -> None:
        """A read gave what was not written."""
        self._reads[cause].inc()

    def recovered(self, partition: PartitionId, offset: int, *, key: str, first: StorageError) -> None:
        """The second read gave what was written."""
        self._recovered.inc()
        self._confirmed.pop((partition, offset))
        if self._is_news(key, partition):
            untold = self._take_untold()
            found = {"object": key, "partition": str(partition), "offset": offset, "cause": str(first)}
            _log.warning("read_recovered", former_event="data_healed", **found, **untold)

    def confirm(self, partition: PartitionId, offset: int, *, key: str, cause: Cause, what: str) -> None:
        """So did the second read: an operator has to look."""
        self._confirmed.put((partition, offset), (self._clock.monotonic_s() + LOOK_AGAIN_S, what))
        if self._is_news(key, partition):
            _log.error(
                "data_missing" if cause == "missing" else "data_damaged",
                object=key,
                partition=str(partition),
                offset=offset,
                cause=what,
                meaning="committed records cannot be read: Fetch of them is answered with KAFKA_STORAGE_ERROR",
                fix="bring the object back, or correct storage.url; if it is lost, delete the records up to there",
                **self._take_untold(),
            )

    def _take_untold(self) -> dict[str, int]:
        """How often there was no line for what would have been news, since the line before."""
        untold, self._untold = self._untold, 0
        return {"untold": untold} if untold else {}

    def _is_news(self, key: str, partition: PartitionId) -> bool:
        now_s = self._clock.monotonic_s()
        told_s = self._told_s.peek((key, partition))
        if told_s is not None and now_s < told_s + TELL_AGAIN_S:
            return False
        if now_s >= self._lines_since_s + LINES_PER_S:
            self._lines_since_s, self._lines = now_s, 0
        if self._lines == LINES_MAX:
            self._untold += 1
            return False
        self._lines += 1
        self._told_s.put((key, partition), now_s)
        return True


class Reads(Protocol):
    """The part of a `Reader` that stored reads need."""

    def cached(self, log: PartitionLog, offset: int) -> BatchRun | None: ...

    def stored_here(
        self, log: PartitionLog, offset: int, *, bytes_max: int, at_least_one: bool, is_in_order: bool
    ) -> BatchRun | Elsewhere | None: ...

    async def stored_within(
        self,
        log: PartitionLog,
        offset: int,
        *,
        bytes_max: int,
        at_least_one: bool,
        is_in_order: bool,
        is_awaited: Callable[[], bool],
    ) -> BatchRun | None: ...


class StoredRead:
    """Runs from `offset` on, in order, as they come. When it `is_done`, `error` is what ended it, and `is_too_large` says that the batch
    behind the last run does not fit into the `left_bytes`. `was_left`: an earlier read was left here, and has ended since then.
    """

    __slots__ = (
        "began_s",
        "bytes_max",
        "error",
        "is_done",
        "is_too_large",
        "left_bytes",
        "left_offset",
        "log",
        "offset",
        "runs",
        "task",
        "wakers",
        "was_left",
    )

    def __init__(self, log: PartitionLog, offset: int, bytes_max: int, began_s: float) -> None:
        self.log = log
        self.offset = offset
        self.bytes_max = self.left_bytes = bytes_max
        self.began_s = began_s
        self.runs: list[BatchRun] = []
        self.error: StorageError | None = None
        self.is_done = False
        self.is_too_large = self.was_left = False
        self.left_offset = offset
        """Where the last one that left it goes on."""
        self.wakers: dict[Callable[[], None], None] = {}
        self.task: asyncio.Task[None] | None = None

    @property
    def end(self) -> int:
        """The offset behind what was read so far."""
        return self.runs[-1].last + 1 if self.runs else self.offset


class StoredReads:
    """Reads of the object store that outlive the fetch that asked: one that leaves without a slow read finds it under way next time.

    A fetch that wants what is being read joins that stored read, and may take the runs that have come before the others come. A stored read
    that no fetch waits for reads the run it is at, which the block cache keeps, and ends. The number of these is bounded, and the one that
    was left first makes room. A read that begins again where one was left says so.
    """

    def __init__(self, reads: Reads, *, nursery: Nursery, clock: Clock, limits: LogLimits = DEFAULT_LIMITS) -> None:
        self._unattended_max, self._unattended_bytes_max = limits.unattended_max, limits.unattended_bytes_max
        self._reads = reads
        self._nursery = nursery
        self._clock = clock
        self._ends = LruCache[tuple[PartitionId, int], None](limits.fetch_places_kept_max)
        """Where fetches ended: one that begins there is in order."""
        self._left = LruCache[tuple[PartitionId, int], None](limits.fetch_places_kept_max)
        """Where fetches left a read that went on, and has ended."""
        self._stored_reads: dict[tuple[PartitionLog, int, bool], StoredRead] = {}
        self._unattended: OrderedDict[StoredRead, int] = OrderedDict()
        """With what each may still bring."""
        self._unattended_bytes = 0

    def __len__(self) -> int:
        """Reads under way."""
        return len(self._stored_reads)

    def may_be_left(self, stored_reads: Collection[StoredRead]) -> bool:
        """Whether all of them may be left without ending one that others have left."""
        size_bytes = sum([stored_read.left_bytes for stored_read in stored_reads])
        return (
            len(self._unattended) + len(stored_reads) <= self._unattended_max
            and self._unattended_bytes + size_bytes <= self._unattended_bytes_max
        )

    @property
    def unattended(self) -> int:
        """How many of these nobody waits for."""
        return len(self._unattended)

    def spare(self, log: PartitionLog, offset: int, *, bytes_max: int, at_least_one: bool) -> BatchRun | Elsewhere | None:
        """What a read of `offset` would bring first, if that is in memory: nobody has to wait for it. None if the batch is too large."""
        run = self._reads.stored_here(
            log,
            offset,
            bytes_max=bytes_max,
            at_least_one=at_least_one,
            is_in_order=(log.partition, offset) in self._ends,
        )
        if isinstance(run, BatchRun):
            self._ends.put((log.partition, run.last + 1), None)
        return run

    def join(
        self, log: PartitionLog, offset: int, *, bytes_max: int, runs_max: int, at_least_one: bool, wake: Callable[[], None]
    ) -> StoredRead:
        """The read of `offset` that is under way, or a new one of at most `bytes_max` bytes, but for a first batch that is larger if
        `at_least_one`, and `runs_max` runs. `wake` is called when a run has come, and when it is done. Leave it in the end.
        """
        key = log, offset, at_least_one
        stored_read = self._stored_reads.get(key)
        if stored_read is None:
            stored_read = self._stored_reads[key] = StoredRead(log, offset, bytes_max, self._clock.monotonic_s())
            is_under_way = (log, offset, not at_least_one) in self._stored_reads
            stored_read.was_left = (log.partition, offset) in self._left and not is_under_way
            stored_read.task = self._nursery.spawn(self._run_stored_read(stored_read, runs_max, at_least_one), name="stored-read")
        elif stored_read in self._unattended:
            self._attend(stored_read)
        stored_read.wakers[wake] = None
        return stored_read

    def leave(self, stored_read: StoredRead, wake: Callable[[], None], *, goes_on_at: int = -1) -> None:
        """`goes_on_at`: the offset behind what was taken of it, if something was."""
        stored_read.wakers.pop(wake, None)
        if stored_read.is_done:
            return
        stored_read.left_offset = max(stored_read.offset, goes_on_at)
        if goes_on_at > stored_read.offset:
            self._ends.put((stored_read.log.partition, goes_on_at), None)
        if stored_read.wakers:
            return
        self._unattended[stored_read] = stored_read.left_bytes
        self._unattended_bytes += stored_read.left_bytes
        while len(self._unattended) > self._unattended_max or self._unattended_bytes > self._unattended_bytes_max:
            oldest = next(iter(self._unattended))
            self._attend(oldest)
            assert oldest.task is not None
            oldest.task.cancel()

    def _attend(self, stored_read: StoredRead) -> None:
        self._unattended_bytes -= self._unattended.pop(stored_read, 0)

    async def _run_stored_read(self, stored_read: StoredRead, runs_max: int, at_least_one: bool) -> None:
        CAUSE.set("fetch")
        log = stored_read.log
        goes_on = (log.partition, stored_read.offset) in self._ends
        try:
            while True:
                left_bytes = stored_read.left_bytes
                run = await self._reads.stored_within(
                    log,
                    stored_read.end,
                    bytes_max=left_bytes,
                    at_least_one=at_least_one and not stored_read.runs,
                    # Several runs of one fetch follow each other wherever its consumer goes next.
                    is_in_order=goes_on and bool(stored_read.wakers),
                    is_awaited=lambda: bool(stored_read.wakers),
                )
                if run is None:
                    stored_read.is_too_large = True
                    break
                stored_read.runs.append(run)
                stored_read.left_bytes = max(0, left_bytes - run.size_bytes)
                end = stored_read.end
                if not stored_read.left_bytes or len(stored_read.runs) >= runs_max or not stored_read.wakers:
                    break
                if stored_read.left_bytes < run.following_bytes:
                    stored_read.is_too_large = True
                    break
                if end >= log.seen.high_watermark or self._reads.cached(log, end) is not None:
                    break
                for wake in stored_read.wakers:
                    wake()
        except StorageError as error:
            stored_read.error = without_frames(error)
        finally:
            if stored_read.runs:
                self._ends.put((log.partition, stored_read.end), None)
            stored_read.is_done = True
            del self._stored_reads[log, stored_read.offset, at_least_one]
            if stored_read.wakers:
                self._left.pop((log.partition, stored_read.offset))
            else:
                self._left.put((log.partition, stored_read.left_offset), None)
            self._attend(stored_read)
            for wake in stored_read.wakers:
                wake()


class ReadPlace(NamedTuple):
    """`position`, in the object, is in the span of that number of the entry that begins at `entry_base`."""

    entry_base: int
    span: int
    position: int


class _Where(NamedTuple):
    """What was read, for those who find damage in it. It becomes text when somebody does."""

    key: str
    partition: PartitionId
    entry: EntrySource
    window: int

    def __str__(self) -> str:
        return f"object={self.key!r} partition={self.partition} entry={self.entry.base}..{self.entry.last} window={self.window}"


def _always() -> bool:
    return True


class _Terms(NamedTuple):
    """What a read asks for, whichever source has it."""

    bytes_max: int
    at_least_one: bool
    is_in_order: bool
    is_awaited: Callable[[], bool] = _always


class Reader:
    """Reads runs of batches. Which offsets may be read is the caller's business: `log.seen.manifest` must have been seen to cover them."""

    def __init__(
        self,
        *,
        index: EntryIndex,
        objects: RangeSource,
        blocks: BlockCache,
        manifest_reads: ManifestReads,
        corrupt_reads: CorruptReads,
        early: EarlyPages,
        clock: Clock,
        nursery: Nursery,
        telemetry: Telemetry,
        limits: LogLimits = DEFAULT_LIMITS,
    ) -> None:
        self._limits = limits
        self._index = index
        self._blocks = blocks
        self._manifest_reads = manifest_reads
        self._corrupt_reads = corrupt_reads
        self._early = early
        self._places = LruCache[tuple[PartitionId, int], ReadPlace](limits.read_places_kept_max)
        """Where reads ended, by the offset that comes next: a reader that goes on from there skips what comes before it in its entry."""
        self._nursery = nursery
        self._read_ahead = ReadAhead(blocks, clock=clock, nursery=nursery, telemetry=telemetry, limits=limits)
        self._entries_ahead = EntriesAhead(blocks, self._read_ahead, clock=clock, limits=limits)
        self._looking_ahead: set[PartitionLog] = set()
        """Whose index is read for what comes next."""
        self.segments = SegmentReader(objects=objects, blocks=blocks, read_ahead=self._read_ahead, limits=limits)
        self.stored_reads = StoredReads(self, nursery=nursery, clock=clock, limits=limits)

    def cached(self, log: PartitionLog, offset: int) -> BatchRun | None:
        """The run that holds `offset`, if the tail cache has it."""
        return log.readers.tail.find(offset)

    def stored_here(
        self, log: PartitionLog, offset: int, *, bytes_max: int, at_least_one: bool, is_in_order: bool
    ) -> BatchRun | Elsewhere | None:
        """As `stored_within`, of a segment, or of an entry whose bytes are at hand, if all that it takes is in memory, and well. What is
        damaged is for that to tell.
        """
        entry = self._index.find_here(log, offset)
        if entry is None:
            return Elsewhere.TO_BE_READ
        if isinstance(entry, Entry):
            try:
                views = self._at_hand(entry)
                if views is None or self._passes_much(log, entry, offset):
                    return Elsewhere.TO_BE_READ
                return self._run_of(log, entry, views, offset, bytes_max=bytes_max, at_least_one=at_least_one)
            except Corrupt:
                return Elsewhere.TO_BE_READ
        return self.segments.read_here(
            log.partition, entry, offset, bytes_max=bytes_max, at_least_one=at_least_one, is_in_order=is_in_order
        )

    def _passes_much(self, log: PartitionLog, entry: Entry, offset: int) -> bool:
        """Whether a read has to check so much in front of `offset` that it is worth a task: many of these may be in one turn."""
        is_from_start = offset == entry.base or (log.partition, offset) in self._places
        return not is_from_start and entry.size_bytes > PASSED_BYTES_MAX

    async def stored(self, log: PartitionLog, offset: int, *, bytes_max: int) -> BatchRun:
        """Batches from the one that holds `offset` on, about `bytes_max` of them and at least one, from the object store.

        Raises `OffsetOutOfRange`, `NotFound` (the partition is gone), `Unavailable`, and `Corrupt` where a committed batch is missing or
        not what was written, also the second time: never a skip.
        """
        run = await self.stored_within(log, offset, bytes_max=bytes_max, at_least_one=True)
        assert run is not None, "at least one"
        return run

    async def stored_within(
        self,
        log: PartitionLog,
        offset: int,
        *,
        bytes_max: int,
        at_least_one: bool,
        is_in_order: bool = False,
        is_awaited: Callable[[], bool] = _always,
    ) -> BatchRun | None:
        """As `stored`, but without `at_least_one` it is None, as soon as that is seen, if the first batch is larger than `bytes_max`.

        `is_in_order`: the reader goes through the log, and will want what follows. `is_awaited`: whether anybody still takes what was read
        when that has ended; what nobody takes will be read again.
        """
        self._corrupt_reads.check(log.partition, offset)
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                return await self._stored_at(log, offset, _Terms(bytes_max, at_least_one, is_in_order, is_awaited))
        except TimeoutError:
            raise Unavailable(f"read timed out: partition={log.partition} offset={offset} after_s={READ_TIMEOUT_S}") from None

    async def _stored_at(self, log: PartitionLog, offset: int, terms: _Terms) -> BatchRun | None:
        at = offset
        source = await self._index.find(log, at)
        for _ in range(self._limits.read_sources_max):
            failed: NotFound | EndsEarly | Corrupt | None = None
            try:
                run = await self._read_source(log, source, at, terms)
            except (NotFound, EndsEarly, Corrupt) as error:
                failed = without_frames(error)  # they hold what was read, and this frame would hold them
            if failed is not None:
                moved = await self._find_again(log, source, at)
                if moved != source:
                    source = moved
                    continue
                run = await self._read_again(log, source, at, terms, failed)
            if isinstance(run, Gap):
                at = source.last + 1
                source = await self._index.find(log, at)
                continue
            if run is not None and at > offset:
                run = msgspec.structs.replace(run, base=offset)
            return run
        raise Unavailable(f"the log is compacted faster than it is read: partition={log.partition} offset={offset}")

    async def _find_again(self, log: PartitionLog, source: EntrySource, offset: int) -> EntrySource:
        """What holds `offset` by now, when a read gave what was not written: compaction or retention may have moved on."""
        self._index.drop(log)
        self._places.pop((log.partition, offset))
        if isinstance(source, SegmentEntry):
            self.segments.drop(source.object_id)
        else:
            self._early.drop(source)
        await self._manifest_reads.refresh([log])
        check_range(log, offset)
        return await self._index.find(log, offset)

    async def _read_again(
        self, log: PartitionLog, source: EntrySource, offset: int, terms: _Terms, first: NotFound | EndsEarly | Corrupt
    ) -> BatchRun | Gap | None:
        """The second look, after the first gave what was not written."""
        key = object_of(source, log.partition)
        self._corrupt_reads.note(_cause(first))
        try:
            with caused_by("repair"):
                run = await self._read_source(log, source, offset, terms)
        except (NotFound, EndsEarly, Corrupt) as second:
            self._corrupt_reads.note(_cause(without_frames(second)))
            if isinstance(second, NotFound):
                await self._check_still_named(log, source, offset)
            confirmed = _confirmed(second, log, offset)
            self._corrupt_reads.confirm(log.partition, offset, key=key, cause=_cause(second), what=confirmed)
            raise Corrupt(confirmed) from None
        self._corrupt_reads.recovered(log.partition, offset, key=key, first=first)
        return run

    async def _check_still_named(self, log: PartitionLog, source: EntrySource, offset: int) -> None:
        """Raise `Unavailable` unless the newest manifest still names the object that is not there.

        Objects go when nothing names them any more, and a deposed leader may not have heard of that (model `F-early-proof`):

            an entry … it is compacted … its object is collected … a deposed leader answers with the entry … no object: damage?
        """
        await asyncio.shield(self._manifest_reads.read_barrier(log))
        self._index.drop(log)
        check_range(log, offset)
        if await self._index.find(log, offset) != source:
            raise Unavailable(f"what was read was replaced meanwhile: partition={log.partition} offset={offset}")

    async def _read_source(self, log: PartitionLog, source: EntrySource, offset: int, terms: _Terms) -> BatchRun | Gap | None:
        self._entries_ahead.forget_old()
        if isinstance(source, Entry):
            if source.is_early:
                return await self._read_early(log, source, offset, terms)
            if isinstance(source.batches, bytes):
                views = [memoryview(source.batches)]
                return self._run_of(log, source, views, offset, bytes_max=terms.bytes_max, at_least_one=terms.at_least_one)
            return await self._read_object(log, source, offset, terms)
        return await self.segments.read(
            log.partition,
            source,
            offset,
            bytes_max=terms.bytes_max,
            at_least_one=terms.at_least_one,
            is_in_order=terms.is_in_order,
            is_awaited=terms.is_awaited,
        )

    async def _read_early(self, log: PartitionLog, entry: Entry, offset: int, terms: _Terms) -> BatchRun | None:
        """From memory, pages or object, in the order of storage/log/early_pages.py, and from the other where one is damaged. Raises as
        `SegmentReader.read` does.
        """
        failed: Corrupt | Unavailable | None = None
        try:
            views = self._at_hand(entry)
            if views is None and not self._early.is_object_first(entry):
                following = self._index.following_here(log, entry.last + 1, entries_max=self._limits.early_entries_per_read)
                found = await self._early.fetch(log.keys, entry, following)
                views = None if found is None else found.batches_of(entry)
            if views is not None:
                return self._run_of(log, entry, views, offset, bytes_max=terms.bytes_max, at_least_one=terms.at_least_one)
        except (Corrupt, Unavailable) as error:
            self._early.drop(entry)
            failed = without_frames(error)  # its object has the same bytes, if it is there by now
        try:
            run = await self._read_object(log, entry, offset, terms)
        except NotFound:
            if failed is not None:
                raise failed from None
            self._early.note_unstored(entry.object_id)
        except (Corrupt, Unavailable) as error:
            if failed is not None:
                raise
            failed = without_frames(error)  # its pages have the same bytes, if they are there still
        else:
            self._early.note_stored(entry.object_id)
            return run
        found = await self._early.fetch_certainly(log.keys, entry, known_version=log.seen.version)
        if found is None:
            if failed is not None:
                raise failed
            # Its pages went because it is stored, though it was not when it was asked for.
            return await self._read_object(log, entry, offset, terms)
        run = self._run_of(log, entry, found.batches_of(entry), offset, bytes_max=terms.bytes_max, at_least_one=terms.at_least_one)
        if isinstance(failed, Corrupt | EndsEarly):
            self._corrupt_reads.note(_cause(failed))
            self._corrupt_reads.recovered(log.partition, offset, key=object_key(entry.object_id), first=failed)
        return run

    def _at_hand(self, entry: Entry) -> list[memoryview] | None:
        """The batches of an entry that carries them, or of an early one that is in memory. Raises `Corrupt`."""
        if isinstance(entry.batches, bytes):
            return [memoryview(entry.batches)]
        found = self._early.find(entry)
        return None if found is None else found.batches_of(entry)

    def _run_of(
        self, log: PartitionLog, entry: Entry, views: list[memoryview], offset: int, *, bytes_max: int, at_least_one: bool
    ) -> BatchRun | None:
        """As `stored_within`, of an entry whose batches are `views`, whole. Raises `Corrupt`."""
        where = _Where(object_of(entry, log.partition), log.partition, entry, 0)
        span, position, base = _start(self._places.peek((log.partition, offset)), entry, offset)
        begins = [begin for begin, _ in entry.spans] or [0]
        if position < 0:
            position = begins[span]
        else:
            views = [views[span][position - begins[span] :], *views[span + 1 :]]
        found = scan(views, base=base, wanted=offset, bytes_max=bytes_max, where=where)
        check_passed(views, found, where)
        if not at_least_one and found.first_bytes > bytes_max:
            return None
        if not found.starts:
            raise Corrupt(f"an entry has fewer records than it says: {where}")
        run, end = stamp(views, found, where, entry, join_below_bytes=self._limits.join_below_bytes)
        for view in views:
            if end <= len(view):
                break
            end -= len(view)
            span += 1
            position = begins[span]
        self._places.put((log.partition, run.last + 1), ReadPlace(entry.base, span, position + end))
        return run

    async def _read_object(self, log: PartitionLog, source: Entry, offset: int, terms: _Terms) -> BatchRun | None:
        if not terms.is_in_order:
            return await self._read(log, source, source.spans, offset, terms)
        is_here = self._blocks.is_here(object_key(source.object_id), *source.extent)
        run = await self._read(log, source, source.spans, offset, terms)
        is_through = run is not None and run.last == source.last and terms.is_awaited()
        self._look_ahead(log, source, is_through=is_through, has_waited=not is_here)
        return run

    def _look_ahead(self, log: PartitionLog, source: Entry, *, is_through: bool, has_waited: bool) -> None:
        if is_through and not has_waited and self._entries_ahead.pass_on(log.partition, source):
            return
        entries_max = self._entries_ahead.entries_max(source)
        found = self._index.following_here(log, source.last + 1, entries_max=entries_max)
        following = [entry for entry in found if not entry.is_early or self._early.is_object_first(entry)]
        if following or (log.partition, source.base) in self._entries_ahead.said:
            self._entries_ahead.follow(log.partition, source, following, is_through=is_through, has_waited=has_waited)
        end = (found[-1] if found else source).last + 1
        if len(found) < entries_max and end < log.seen.high_watermark and log not in self._looking_ahead:
            self._looking_ahead.add(log)
            self._nursery.spawn(self._look_at_index(log, end, entries_max - len(found)), name="index-ahead")

    async def _look_at_index(self, log: PartitionLog, offset: int, entries_max: int) -> None:
        try:
            while entries_max > 0:
                await self._index.look_ahead(log, offset)
                found = self._index.following_here(log, offset, entries_max=entries_max)
                if not found:
                    break
                entries_max -= len(found)
                offset = found[-1].last + 1
        except StorageError:
            self._read_ahead.fail()
        finally:
            self._looking_ahead.discard(log)

    async def _read(self, log: PartitionLog, entry: Entry, spans: Spans, offset: int, terms: _Terms) -> BatchRun | None:
        bytes_max = terms.bytes_max
        key = object_key(entry.object_id)
        span, position, base = _start(self._places.peek((log.partition, offset)), entry, offset)
        window_bytes = max(self._limits.read_window_bytes_min, bytes_max)
        views: list[memoryview] = []
        try:
            while span < len(spans):
                span_start, length = spans[span]
                span_end = span_start + length
                if position < 0:
                    position = span_start
                if position >= span_end:
                    span, position = span + 1, -1
                    continue
                end = min(span_end, position + window_bytes)
                floor, ceiling = 0, span_end  # whoever else reads the object may begin before it
                is_wanted = terms.is_in_order and key in self._entries_ahead.wanted
                brings = is_wanted and self._blocks.missing_from(key, position, end) < end
                if brings:
                    floor, ceiling = self._entries_ahead.together(key, Range(span_start, span_end))
                views = await self._blocks.read(key, position, end, floor=floor, object_size=ceiling, is_history=_is_history(log, entry))
                if brings:
                    self._entries_ahead.claim(key, Range(floor, ceiling))
                window_size = sum(map(len, views))
                where = _Where(key, log.partition, entry, position)
                found = scan(views, base=base, wanted=offset, bytes_max=bytes_max, where=where)
                check_passed(views, found, where)
                if not terms.at_least_one and found.first_bytes > bytes_max:
                    return None
                if found.starts:
                    run, end_position = stamp(views, found, where, entry, join_below_bytes=self._limits.join_below_bytes)
                    self._places.put((log.partition, run.last + 1), ReadPlace(entry.base, span, position + end_position))
                    return run
                if found.missing_bytes and position + window_size >= span_end:
                    raise Corrupt(f"a batch ends outside its slice: {where} missing_bytes={found.missing_bytes}")
                window_bytes = max(window_bytes, window_size - found.end_position + found.missing_bytes)
                position += found.end_position
                base = found.end_offset
            short = f"object={key!r} partition={log.partition} entry={entry.base}..{entry.last}"
            raise Corrupt(f"an entry has fewer records than it says: {short}")
        except Corrupt:
            self._blocks.drop_damaged(key, views)
            raise


def _start(place: ReadPlace | None, entry: Entry, offset: int) -> tuple[int, int, int]:
    """Span, position (-1: its start) and offset to scan from: where a read of this log ended, if one ended at `offset`."""
    if place is not None and place.entry_base == entry.base:
        return place.span, place.position, offset
    return 0, -1, entry.base


def _is_history(log: PartitionLog, entry: Entry) -> bool:
    """Whether the ring of pending entries has moved on: a consumer that keeps up with the log reads no such entry."""
    manifest = log.seen.manifest
    return manifest is not None and (not manifest.pending or entry.base < manifest.pending[0].base)


def _cause(error: NotFound | EndsEarly | Corrupt) -> Cause:
    return "missing" if isinstance(error, NotFound) else "short" if isinstance(error, EndsEarly) else "corrupt"


def _confirmed(error: NotFound | EndsEarly | Corrupt, log: PartitionLog, offset: int) -> str:
    if isinstance(error, Corrupt):
        return str(error)
    what = "missing" if isinstance(error, NotFound) else "shorter than the entry says"
    return f"object of a live entry is {what}: partition={log.partition} offset={offset} {error}"
