"""Fetches that wait: what one collects of its partitions, when it has enough, and what wakes it. Wire types stay in the handler.

`DelayedFetch` collects the partitions of one fetch side by side and says when to answer. `Wait` lets the fetch sleep until one of them
moves. Own commits wake by themselves. `Waiters` learns of those of other brokers by hints, and by a poll where hints get lost (I10).
"""

import asyncio
import contextlib
from collections.abc import Callable, Generator, Sequence
from typing import Final, Self

from broker.limits import DEFAULT_FETCH_LIMITS, FetchLimits
from runtime.clock import Clock
from storage.errors import StorageError, without_frames
from storage.formats.manifest import Manifest
from storage.log.fresh_reads import ManifestReads, failure_of
from storage.log.index import check_range
from storage.log.partition import PartitionLog, Partitions
from storage.log.reader import Reader, StoredRead
from storage.log.scan import BatchRun, Elsewhere
from storage.metadata.port import MetadataStore

TRUSTED_POLL_S: Final = 1.0
OWN_HINT_S: Final = 0.005
"""How long a hint waits for the end of a commit of this broker that may explain it."""
BEGUN_PER_STEP: Final = 500
"""Partitions that one reader begins to wait for, between two steps."""


class FetchPartitionStatus:
    """What a fetch wants of one partition, and what there is of it. `error` is final; `is_cut`: there is more to read.

    It is pending while it has a `read` of its manifest or a `stored_read`, and `is_late` when that has taken too long. `held_bytes` are
    kept free for what it may bring. `is_queued`: it has to read, and others are before it. `is_too_large`: its first batch does not fit
    into `tried_bytes`. Its records pass `passed` offsets. Of its stored read, `runs_taken` runs are taken; the first one began at
    `reading_since_s`.
    """

    __slots__ = (
        "buffers",
        "bytes_max",
        "error",
        "held_bytes",
        "is_asked",
        "is_behind_barrier",
        "is_cut",
        "is_late",
        "is_queued",
        "is_too_large",
        "log",
        "manifest",
        "offset",
        "passed",
        "read",
        "reading_since_s",
        "runs",
        "runs_taken",
        "size_bytes",
        "stored_read",
        "tried_bytes",
    )

    def __init__(self, log: PartitionLog, offset: int, bytes_max: int) -> None:
        self.log = log
        self.offset = offset
        self.bytes_max = bytes_max
        self.buffers: list[memoryview] = []
        self.size_bytes = self.passed = 0
        self.held_bytes = 0
        self.tried_bytes = 0
        self.runs_taken = 0
        self.reading_since_s = float("inf")
        self.error: StorageError | None = None
        self.manifest: Manifest | None = None
        self.read: asyncio.Future[None] | None = None
        self.stored_read: StoredRead | None = None
        self.runs: list[BatchRun] = []
        self.is_asked = self.is_cut = self.is_late = self.is_behind_barrier = self.is_queued = self.is_too_large = False

    @property
    def is_pending(self) -> bool:
        return self.read is not None or self.stored_read is not None


class DelayedFetch:
    """One fetch. `look` as often as something may have changed (`wake` is called when a read has ended); `close` it in the end.

    Partitions have what they may take in the order of the request, as in Kafka, and the first with records at least one batch. What is in
    memory is taken at once. What must be read, of manifests or objects, is read beside the others: it holds the bytes it may bring,
    and for a small grace the response. Whoever takes longer is late. Late ones hold nothing back: they are answered empty, their read goes
    on, and the next fetch meets it (storage/log/reader.py). Only a fetch that has nothing at all to answer waits on for them.

    A response that is well filled waits a moment only: else a consumer of many partitions, some of whose records are always on their way,
    would wait for a GET with each of its fetches, though the others have what to send, and its network would lie idle meanwhile.

    A manifest that was not read in time is an error that clients repeat, never an older answer (promise 5).
    """

    def __init__(
        self,
        wanted: Sequence[FetchPartitionStatus],
        *,
        bytes_max: int | None,
        bytes_min: int,
        is_refused: bool,
        began_s: float,
        deadline_s: float,
        reader: Reader,
        manifest_reads: ManifestReads,
        wake: Callable[[], None],
        limits: FetchLimits = DEFAULT_FETCH_LIMITS,
    ) -> None:
        """`bytes_max` None: nothing is taken or read before `open`; until then it is only found out whether there is something.

        `began_s` is when the request came, `deadline_s` when the client wants its answer, with `bytes_min` or less.

        `is_refused`: others of the request were answered with errors, so it waits for no records.
        """
        self._wanted = wanted
        self.is_open = bytes_max is not None
        """Records may be taken."""
        self._may_exceed = self.is_open
        """One batch may be larger than what may be taken."""
        self._bytes_max = self._left_bytes = bytes_max or 0
        self._bytes_min = bytes_min
        self._is_refused = is_refused
        self._began_s = self._now_s = began_s
        self._deadline_s = deadline_s
        self._reader = reader
        self._manifest_reads = manifest_reads
        self._wake = wake
        self._limits = limits
        self._first: FetchPartitionStatus | None = None
        """The one that may take a batch that is larger than what is left."""
        self._runs_left = limits.stored_runs_max
        self._spared_left = 0
        self._reading: dict[FetchPartitionStatus, None] = {}
        self._moment_end_s = began_s
        self._joined: dict[StoredRead, int] = {}
        """With where the response goes on of what it brings."""
        self._asked: dict[asyncio.Future[None], None] = {}

    @property
    def wants_room(self) -> bool:
        """There is something to take, and it is not open."""
        return not self.is_open and any(wanted.is_cut for wanted in self._wanted)

    def open(self, bytes_max: int, *, is_strict: bool = False) -> None:
        """Take up to this many bytes from the next `look` on, or one batch that is larger, unless it `is_strict`."""
        self.is_open = True
        self._may_exceed = not is_strict
        self._bytes_max = self._left_bytes = bytes_max
        for wanted in self._wanted:
            wanted.manifest = None  # to be looked at again, though it has not moved

    def hurry(self) -> None:
        """The client wants its answer now, with what there is: wait for no more records."""
        self._deadline_s = self._began_s
        self._wake()

    def look(self, now_s: float) -> None:
        """Take what is there, and begin the reads that are needed and have room."""
        self._now_s = now_s
        self._spared_left = self._limits.spared_per_step
        for wanted in self._wanted:
            if wanted.error is None:
                self._look(wanted, now_s)
        self._look_again()

    def look_in_steps(self, now_s: float) -> Generator[None, None, None]:
        """As `look`, of many: iterated over to its end, it yields wherever a pause is in place."""
        self._now_s = now_s
        step = self._limits.looked_at_per_step
        for begin in range(0, len(self._wanted), step):
            self._spared_left = self._limits.spared_per_step
            for wanted in self._wanted[begin : begin + step]:
                if wanted.error is None:
                    self._look(wanted, now_s)
            yield
        self._look_again()

    def _look_again(self) -> None:
        now_s = self._now_s
        too_large = [wanted for wanted in self._wanted if wanted.is_too_large and wanted.error is None]
        if self._first is None and self._may_exceed:
            # Those before it, for which it had to make do with what was left, have nothing after all.
            for wanted in too_large:
                self._look(wanted, now_s)
        if not self._reading:
            # What others had kept free for their reads, and did not need, is there for those that found too little.
            for wanted in too_large:
                if wanted.error is None and wanted.is_too_large and min(self._left_bytes, wanted.bytes_max) > wanted.tried_bytes:
                    self._gather(wanted, now_s)

    def may_leave(self) -> bool:
        """Whether the response goes now, as of the last `look`."""
        now_s, timeout_end_s = self._now_s, self._began_s + self._limits.empty_timeout_s
        is_pending = is_something = is_enough = is_held = False
        size_bytes = 0
        for wanted in self._wanted:
            if wanted.read is not None or wanted.stored_read is not None or wanted.is_queued:
                if not (wanted.is_late or (wanted.is_queued and now_s >= timeout_end_s)):
                    if wanted.read is not None or (
                        wanted.stored_read is not None and wanted.stored_read.was_left and not wanted.runs_taken
                    ):
                        return False
                    is_held = True
                is_pending = True
            elif wanted.error is not None or wanted.is_cut:
                is_enough = True
            size_bytes += wanted.size_bytes
            is_something = is_something or wanted.size_bytes > 0 or wanted.error is not None
        if is_held and (size_bytes < self._well_filled_bytes or now_s < self._moment_end_s or not self._may_leave_reads()):
            return False
        is_something = is_something or self._is_refused
        is_enough = is_enough or self._is_refused or size_bytes >= self._bytes_min
        if now_s < self._deadline_s and not is_enough:
            return False
        return is_something or not is_pending or now_s >= max(self._deadline_s, timeout_end_s)

    def _late_s(self, wanted: FetchPartitionStatus) -> float:
        """The time from which its stored read is late. A partition with records has one limit for all its stored reads."""
        assert wanted.stored_read is not None, "it has no stored read"
        return (wanted.reading_since_s if wanted.size_bytes else wanted.stored_read.began_s) + self._limits.late_after_s

    def _may_leave_reads(self) -> bool:
        return self._reader.stored_reads.may_be_left([wanted.stored_read for wanted in self._reading if wanted.stored_read is not None])

    @property
    def _well_filled_bytes(self) -> float:
        return max(1.0, self._bytes_max * self._limits.well_filled_share)  # nothing is not well filled, where nothing may be taken yet

    @property
    def is_reading(self) -> bool:
        """Whether it waits for reads that are not late, rather than for the log to move."""
        return any((wanted.is_pending or wanted.is_queued) and not wanted.is_late for wanted in self._wanted)

    def left_s(self) -> float:
        """How long nothing changes unless `wake` is called or a log moves."""
        now_s = self._now_s
        ends = [end_s for end_s in (self._deadline_s, self._began_s + self._limits.empty_timeout_s) if end_s > now_s][:1]
        if self.is_reading:
            ends += [late_s for wanted in self._reading if (late_s := self._late_s(wanted)) > now_s]
            ends.append(now_s + self._limits.late_after_s)
            if self._moment_end_s > now_s:
                ends.append(self._moment_end_s)
        return max(0.001, min(ends, default=now_s) - now_s)

    def fail_in_steps(self) -> Generator[None, None, None]:
        """What `close` tells those whose manifest was not read in time, of many: a step is over wherever it yields."""
        step = self._limits.looked_at_per_step
        for begin in range(0, len(self._wanted), step):
            for wanted in self._wanted[begin : begin + step]:
                self._fail(wanted)
            yield

    def _fail(self, wanted: FetchPartitionStatus) -> None:
        if wanted.read is not None and wanted.error is None:
            wanted.error = failure_of(wanted.read, wanted.log)

    def close(self) -> None:
        """Reads that are under way go on. Whoever's manifest was not read in time has failed."""
        if not (self._asked or self._joined):
            return
        for read in self._asked:
            read.remove_done_callback(self._on_read)
        for stored_read, offset in self._joined.items():
            self._reader.stored_reads.leave(stored_read, self._wake, goes_on_at=offset)
        for wanted in self._wanted:
            self._fail(wanted)

    def _on_read(self, _read: asyncio.Future[None]) -> None:
        self._wake()

    def _look(self, wanted: FetchPartitionStatus, now_s: float) -> None:
        log = wanted.log
        if not wanted.is_asked:
            wanted.is_asked = True
            if needs_refresh(log, wanted.offset, now_s):
                self._await(wanted, self._manifest_reads.ask(log))
        if wanted.read is not None:
            if wanted.read.done():
                wanted.error, wanted.read = failure_of(wanted.read, log), None
                if wanted.error is not None:
                    return
            else:
                # Also when a commit of this broker covers the offset by now: it may be older than what others had acknowledged.
                wanted.is_late = self._manifest_reads.is_silent(log)
                return
            wanted.is_late = False
        manifest = log.seen.manifest
        if not wanted.is_behind_barrier and manifest is not None and wanted.offset > manifest.sequence_counter:
            # A deposed leader that has not heard of an offset is no reason to answer that it is behind the end.
            wanted.is_behind_barrier = True
            self._await(wanted, self._manifest_reads.read_barrier(log))
            return
        stored_read = wanted.stored_read
        if stored_read is not None:
            if not stored_read.is_done:
                if len(stored_read.runs) > wanted.runs_taken:
                    self._gather(wanted, now_s)
                if wanted.stored_read is stored_read and not wanted.is_late and now_s >= self._late_s(wanted):
                    self._give_up_room(wanted)
                return
        elif (
            not wanted.is_queued and wanted.manifest is manifest and not (wanted.is_too_large and self._first is None and self._may_exceed)
        ):
            return
        self._gather(wanted, now_s)

    def _await(self, wanted: FetchPartitionStatus, read: asyncio.Future[None]) -> None:
        wanted.read = read
        if read not in self._asked:
            self._asked[read] = None
            read.add_done_callback(self._on_read)

    def _give_up_room(self, wanted: FetchPartitionStatus) -> None:
        """A late one holds up nobody: what it brings must find room when it comes."""
        wanted.is_late = True
        self._left_bytes += wanted.held_bytes
        wanted.held_bytes = 0
        if self._first is wanted and not wanted.size_bytes:
            self._first = None

    def _gather(self, wanted: FetchPartitionStatus, now_s: float) -> None:
        """Take all again: from the tail cache, from what was read for it, and from what has come of a read; begin one where these end, and
        none is under way.
        """
        log, stored_read = wanted.log, wanted.stored_read
        if stored_read is not None:
            came = stored_read.runs[wanted.runs_taken :]
            wanted.runs += came
            self._runs_left -= len(came)
            wanted.runs_taken += len(came)
            if stored_read.is_done:
                wanted.stored_read, wanted.runs_taken = None, 0
                del self._reading[wanted]
        self._left_bytes += wanted.size_bytes + wanted.held_bytes
        wanted.held_bytes = 0
        wanted.is_late = wanted.is_queued = wanted.is_too_large = is_coming = False
        at_least_one = self._may_exceed and (self._first is None or self._first is wanted)
        room = wanted.tried_bytes = max(0, min(self._left_bytes, wanted.bytes_max))
        buffers: list[memoryview] = []
        taken_bytes = 0
        offset = wanted.offset
        try:
            check_range(log, offset)
            while offset < log.seen.high_watermark and (taken_bytes < room or (at_least_one and not buffers)):
                run = self._reader.cached(log, offset) or _run_at(wanted.runs, offset)
                if run is None and wanted.stored_read is not None and wanted.stored_read.end == offset:
                    is_coming = True
                    break
                if run is None and min(self._runs_left, self._spared_left) > 0:
                    here = self._reader.stored_reads.spare(
                        log, offset, bytes_max=room - taken_bytes, at_least_one=at_least_one and not buffers
                    )
                    if here is not Elsewhere.TO_BE_READ:
                        self._spared_left -= 1
                        if here is None:
                            break
                        run = here
                        wanted.runs.append(run)
                        self._runs_left -= 1
                if run is None:
                    if self._must_read(wanted, stored_read, offset, taken_bytes, at_least_one=at_least_one and not buffers, now_s=now_s):
                        break
                    if stored_read is not None and stored_read.end == offset and not buffers:
                        wanted.error = stored_read.error  # behind records it is for the next fetch to tell
                    break
                piece = run.from_offset(offset, room - taken_bytes, at_least_one=at_least_one and not buffers)
                if piece is None:
                    break
                views, offset = piece
                buffers += views
                taken_bytes += sum(map(len, views))
                if room - taken_bytes < run.following_bytes:
                    break
        except StorageError as error:
            wanted.error = without_frames(error)
            buffers, taken_bytes, offset = [], 0, wanted.offset
        if stored_read is not None:
            self._joined[stored_read] = offset
            if wanted.stored_read is stored_read and not is_coming:
                # It goes on, and what it brings is not waited for: there is no room for more, or an error.
                wanted.stored_read, wanted.runs_taken = None, 0
                del self._reading[wanted]
        wanted.buffers, wanted.size_bytes, wanted.passed = buffers, taken_bytes, offset - wanted.offset
        wanted.manifest = log.seen.manifest
        wanted.is_cut = wanted.error is None and offset < log.seen.high_watermark
        self._left_bytes -= taken_bytes
        is_reading = wanted.stored_read is not None
        if is_reading and not wanted.is_late:
            wanted.held_bytes = max(0, room - taken_bytes)
            self._left_bytes -= wanted.held_bytes
        wanted.is_too_large = wanted.is_cut and not buffers and not at_least_one and not is_reading and not wanted.is_queued
        if at_least_one:
            self._first = wanted if buffers or (is_reading and not wanted.is_late) else None
        if wanted.stored_read is not None and wanted.stored_read is not stored_read and wanted.stored_read.runs:
            self._gather(wanted, now_s)  # it was under way, for another

    def _must_read(
        self,
        wanted: FetchPartitionStatus,
        ended_read: StoredRead | None,
        offset: int,
        taken_bytes: int,
        *,
        at_least_one: bool,
        now_s: float,
    ) -> bool:
        """Whether `offset` is read now, or will be; False if `ended_read` says that there is no use, or the response has enough."""
        limits = self._limits
        bytes_max = wanted.tried_bytes - taken_bytes
        if ended_read is not None and ended_read.end == offset:
            # What was too large for the room that others had left it then may fit by now.
            is_too_large = ended_read.is_too_large and not at_least_one and bytes_max <= ended_read.left_bytes
            if ended_read.error is not None or is_too_large:
                return False
        if self._runs_left <= 0:
            return False
        worth_bytes = min(self._bytes_max * limits.worth_a_read_share, wanted.bytes_max)
        if self._first is not None and not at_least_one and self._left_bytes - taken_bytes < worth_bytes:
            return False
        if len(self._reading) >= limits.reads_under_way_max or sum(not other.is_late for other in self._reading) >= limits.reads_at_once:
            wanted.is_queued = True
            return True
        stored_read = self._reader.stored_reads.join(
            wanted.log,
            offset,
            bytes_max=bytes_max,
            runs_max=min(limits.runs_per_read, self._runs_left),
            at_least_one=at_least_one,
            wake=self._wake,
        )
        self._joined[stored_read] = offset
        self._moment_end_s = now_s + limits.moment_s
        wanted.stored_read, wanted.runs_taken = stored_read, 0
        wanted.reading_since_s = min(wanted.reading_since_s, stored_read.began_s)
        self._reading[wanted] = None
        wanted.is_late = now_s >= self._late_s(wanted)
        return True


def needs_refresh(log: PartitionLog, offset: int, now_s: float | None = None) -> bool:
    """Whether a read of `offset` must look at the manifest first: what is known may be older than what others acknowledged.

    `now_s` is taken after the request came; None: the loop's time, which is as old as its turn.
    """
    seen = log.seen
    manifest = seen.manifest
    if manifest is None or not manifest.log_start <= offset < manifest.sequence_counter:
        return True
    # Another broker may have deleted what is asked for (DeleteRecords).
    return seen.may_be_old(asyncio.get_running_loop().time() if now_s is None else now_s)


def _run_at(runs: Sequence[BatchRun], offset: int) -> BatchRun | None:
    return next((run for run in runs if run.base <= offset <= run.last), None)


class Waited:
    """The partitions that somebody waits for, with their shards."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self.shards: dict[PartitionLog, int] = {}

    def add(self, log: PartitionLog) -> None:
        if log not in self.shards:
            self.shards[log] = self._metadata.shard_of(log.keys.partition_key)

    def discard(self, log: PartitionLog) -> None:
        self.shards.pop(log, None)


class Wait:
    """One reader's wait for any of its partitions to move, or to be woken otherwise. Used by `with`, so that nobody wakes the dead."""

    __slots__ = ("_begun", "_has_moved", "_logs", "_turn", "_waited")

    def __init__(self, logs: Sequence[PartitionLog], waited: Waited) -> None:
        self._logs = logs
        self._waited = waited
        self._begun = 0
        self._has_moved = False
        self._turn: asyncio.Future[None] | None = None

    def wake(self) -> None:
        self._has_moved = True
        self._end_turn()

    def begin_in_steps(self) -> Generator[None, None, None]:
        """As `with` begins, of many: a step is over wherever it yields. Leave it as by `with`, even if it has not come to its end."""
        while self._begun < len(self._logs):
            self._begin(self._logs[self._begun : self._begun + BEGUN_PER_STEP])
            yield

    def __enter__(self) -> Self:
        self._begin(self._logs)
        return self

    def _begin(self, logs: Sequence[PartitionLog]) -> None:
        for log in logs:
            log.readers.wakers[self.wake] = None
            self._waited.add(log)
        self._begun += len(logs)

    def __exit__(self, *_: object) -> None:
        for log in self._logs:
            log.readers.wakers.pop(self.wake, None)
            if not log.readers.wakers:
                self._waited.discard(log)

    async def moved(self, timeout_s: float) -> bool:
        """True as soon as a partition has moved since the last call; False after `timeout_s`."""
        if not self._has_moved:
            loop = asyncio.get_running_loop()
            self._turn = loop.create_future()
            timer = loop.call_later(timeout_s, self._end_turn)  # `asyncio.timeout` costs each fetch twice as much
            try:
                await self._turn
            finally:
                timer.cancel()
                self._turn = None
        moved, self._has_moved = self._has_moved, False
        return moved

    def _end_turn(self) -> None:
        if self._turn is not None and not self._turn.done():
            self._turn.set_result(None)


class Waiters:
    """Keeps the manifests of partitions that somebody waits for up to date; a newer one wakes by itself.

    A poll is one read per shard, of all its partitions that somebody waits for; a shard that is silent holds up no other. Where that is
    wanted, hints of a shard are trusted from the first that arrived until a poll finds a change that no hint announced, and partitions of
    trusted shards are polled rarely. So a stream of hints that dries up costs one wait of up to `trusted_poll_s`, which ends the trust.
    """

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        partitions: Partitions,
        manifest_reads: ManifestReads,
        clock: Clock,
        trusted_poll_s: float | None = None,
        limits: FetchLimits = DEFAULT_FETCH_LIMITS,
    ) -> None:
        """`trusted_poll_s`: how often partitions are polled whose hints arrive; as often as all others if it is not given."""
        self._poll_s = limits.poll_s
        self._trusted_poll_s = limits.poll_s if trusted_poll_s is None else trusted_poll_s
        self._metadata = metadata
        self._partitions = partitions
        self._manifest_reads = manifest_reads
        self._clock = clock
        self._waited = Waited(metadata)
        self._trusted: set[int] = set()
        self._hinted: dict[PartitionLog, float] = {}
        """With the time of the hint."""
        self._looks_again = False
        self._asked: set[int] = set()
        self._has_hint = asyncio.Event()
        self.is_stopped = False
        """Nobody waits any more, or begins to."""

    def stop(self) -> None:
        """Wake everybody, to be answered with what there is."""
        self.is_stopped = True
        for log in tuple(self._waited.shards):
            log.readers.wake()

    def wait(self, logs: Sequence[PartitionLog]) -> Wait:
        return Wait(logs, self._waited)

    async def run(self) -> None:
        """Until cancelled."""
        subscription = self._metadata.subscribe(self._hear)
        poll_at_s = self._clock.monotonic_s() + self._poll_s
        poll_all_at_s = self._clock.monotonic_s() + self._trusted_poll_s
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(0.0, poll_at_s - self._clock.monotonic_s())):
                        await self._has_hint.wait()
                self._has_hint.clear()
                hinted = self._take_hinted()
                polled: dict[int, dict[PartitionLog, int]] = {}
                now_s = self._clock.monotonic_s()
                if now_s >= poll_at_s:
                    poll_at_s = now_s + self._poll_s
                    is_full = now_s >= poll_all_at_s or self._trusted_poll_s <= self._poll_s
                    for log, shard in self._waited.shards.items():
                        if shard in self._asked or log in hinted.get(shard, ()) or not (is_full or shard not in self._trusted):
                            continue
                        # The version of one that was forgotten is remembered, but nobody listened to its hints since.
                        polled.setdefault(shard, {})[log] = -1 if log.seen.manifest is None else log.seen.version
                    if is_full:
                        poll_all_at_s = now_s + self._trusted_poll_s
                for shard in {**hinted, **polled}:
                    self._ask(shard, hinted.get(shard, {}), polled.get(shard, {}))
        finally:
            subscription.cancel()

    def _take_hinted(self) -> dict[int, dict[PartitionLog, None]]:
        """What was hinted of shards that are not being read, by shard; the others wait for the end of that read.

        Most hints are of this broker's own commits, and tell nothing:

            our CAS applies … its hint … its answer: it is explained … what the hint asks for was read for nobody

        So a hint waits for a commit that is under way. Another broker's that comes meanwhile is late by OWN_HINT_S at most.
        """
        taken: dict[int, dict[PartitionLog, None]] = {}
        kept: dict[PartitionLog, float] = {}
        now_s = self._clock.monotonic_s()
        for log, hinted_s in self._hinted.items():
            shard = self._waited.shards.get(log)
            if shard is None:
                continue  # nobody waits for it any more
            if log.seen.manifest is not None and not log.seen.is_hinted:
                continue
            if shard in self._asked:
                kept[log] = hinted_s
            elif log.commit_queue.is_busy and now_s < hinted_s + OWN_HINT_S:
                kept[log] = hinted_s
                if not self._looks_again:
                    self._looks_again = True
                    asyncio.get_running_loop().call_later(OWN_HINT_S, self._look_again)
            else:
                taken.setdefault(shard, {})[log] = None
        self._hinted = kept
        return taken

    def _look_again(self) -> None:
        self._looks_again = False
        self._has_hint.set()

    def _ask(self, shard: int, hinted: dict[PartitionLog, None], polled: dict[PartitionLog, int]) -> None:
        """Have logs of one shard read. Nothing waits here: a silent shard holds up no other."""

        def ended(read: asyncio.Future[None]) -> None:
            self._asked.discard(shard)
            if self._hinted:
                self._has_hint.set()
            # Unreadable now: the next poll asks again, and a reader whose time is over reads for itself.
            if read.cancelled() or read.exception() is not None:
                return
            self._judge(polled)
            for log in (*hinted, *polled):
                if log.seen.manifest is None and log.seen.version >= 0:
                    log.readers.wake()  # it was there once: who waits for a deleted topic waits in vain

        # All are of one shard and asked for in one turn, so they share one read.
        (read,) = {self._manifest_reads.ask(log) for log in (*hinted, *polled)}
        self._asked.add(shard)
        read.add_done_callback(ended)

    def _hear(self, path: str, version: int | None) -> None:
        log = self._partitions.by_manifest_path(path)
        if log is None:
            return
        log.seen.note_hint(version, asyncio.get_running_loop().time())
        if log.readers.wakers:
            self._hinted.setdefault(log, self._clock.monotonic_s())
            self._has_hint.set()
            shard = self._waited.shards.get(log)
            if shard is not None:
                self._trusted.add(shard)

    def _judge(self, polled: dict[PartitionLog, int]) -> None:
        """What has moved without a hint (it may still come, and be trusted again)."""
        for log, version in polled.items():
            # A record that nobody had read when the poll began tells nothing.
            if version >= 0 and log.seen.version != version and log not in self._hinted and log.seen.version == log.seen.foreign_version:
                self._trusted.discard(self._waited.shards.get(log, -1))
