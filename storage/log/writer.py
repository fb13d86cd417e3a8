"""The appender: gather batches of all connections, seal them into WAL objects, upload, hand over to the committer.

    submit → open flush → (due) seal: object id, header, one Commit per partition into its commit queue → upload → Committer.run
           ↘ small, and nothing gathered before it: a Commit that carries it → Committer.run (storage/log/flush.py)

A flush that time alone made due, and whose slices are all small, is carried by its commits, too: it stores no object.

Uploads of later flushes run while earlier ones commit; a commit queue keeps the order of its partition. Admission bounds the bytes in
flight (broker/admission.py). `UploadPlaces` bounds the number of uploads. While all of them are busy, a flush that is due by time alone
goes on gathering instead of making a small object. An upload that takes long gives its place to another: a slow prefix of the bucket holds
up what it was sent, and no more.
"""

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final

from prometheus_client import Counter, Histogram

from runtime.clock import Clock
from runtime.ids import IdSource
from runtime.supervision import Nursery
from runtime.telemetry import Children, Metric, Telemetry
from storage.errors import AlreadyExists, NotFound, OutcomeUnknown, StorageError, Unavailable
from storage.formats.wal import Slice, encode_header, header_bytes, object_key
from storage.log.batch import Batch
from storage.log.commit import Committer, after_lost, enter, join, note_larger
from storage.log.flush import (
    CommitBudget,
    FlushSettings,
    InlineSettings,
    LastFlush,
    NotInlined,
    OpenFlush,
    Trigger,
    becomes_larger,
    had_no_room,
    joined,
    why_gathered,
)
from storage.log.inline_backlog import InlineBacklog
from storage.log.limits import DEFAULT_LIMITS, LogLimits
from storage.log.partition import BrokerEpoch, Commit, InFlight, PartitionLog
from storage.log.tracing import Tracing
from storage.objects.port import ObjectStore
from storage.objects.requests import CAUSE
from storage.objects.shared_blocks import SharedBlocks
from storage.vocabulary import Buffer, ObjectId

UPLOADS_MAX: Final = 4
FLUSH_INTERVAL: Final = Metric(
    "forebay_flush_interval_seconds", "Shortest time between the starts of two flushes: storage.flush_interval", aggregation="max"
)
FLUSH_LIMIT: Final = Metric("forebay_flush_limit_bytes", "Bytes that make a flush due at once: storage.flush_bytes", aggregation="max")
INLINE_LIMIT: Final = Metric(
    "forebay_inline_limit_bytes", "Bytes of a partition up to which no object is stored for them: storage.inline_bytes", aggregation="max"
)
FLUSHES: Final = Metric("forebay_flush_objects_total", "WAL objects sealed, by what made them due", ("trigger",))
INLINE_COMMITS: Final = Metric("forebay_inline_commits_total", "Commits that carry their batches: no object was stored for them")
INLINE_BYTES: Final = Metric("forebay_inline_bytes_total", "Bytes of batches that their commits carry")
NOT_INLINED: Final = Metric(
    "forebay_not_inlined_batches_total",
    "Batches that do not travel in a commit of their own, by the reason",
    ("reason",),
    former_name="forebay_gathered_batches_total",
)
FLUSH_BYTES: Final = Metric("forebay_flush_object_bytes_total", "Bytes of sealed WAL objects")
FLUSH_SECONDS: Final = Metric("forebay_flush_duration_seconds", "Stages of a flush", ("stage",))
BUFFERED_BYTES: Final = Metric(
    "forebay_produce_buffer_bytes",
    "Bytes of batches that are gathered or whose commit has no outcome yet, those that were answered meanwhile included",
    aggregation="sum",
)

TURNS_MAX: Final = 3
"""Turns of the loop that commits wait for others, while each brings some: requests of one client arrive in several, and each transaction of
the metadata store costs as much as several commits.
"""


class Uploader:
    """Uploads WAL objects: unique keys, put if absent, the same bytes on every try.

    A lost reply looks like a lost request. The key is ours alone, so "already exists" after a try that ended unknown means that the try
    succeeded; the size is compared to be sure of it.
    """

    def __init__(self, *, objects: ObjectStore, clock: Clock, chance: random.Random, limits: LogLimits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._objects = objects
        self._clock = clock
        self._chance = chance

    async def upload(self, key: str, parts: Sequence[Buffer], *, is_awaited: Callable[[], bool]) -> None:
        """Return when the object is durable. Raise `Unavailable` when it could not be made so in time; it may then be garbage.

        A try that failed is not repeated unless it `is_awaited`: `parts` keep in memory what was answered meanwhile.
        """
        deadline_s = self._clock.monotonic_s() + self._limits.upload_timeout_s
        tries = 0
        while True:
            tries += 1
            try:
                async with asyncio.timeout(self._limits.upload_try_timeout_s):
                    await self._objects.put_if_absent(key, parts)
                return
            except AlreadyExists:
                if await self._is_ours(key, sum(map(len, parts))):
                    return
                raise Unavailable(f"another object has the name of a WAL object: key={key!r}") from None
            except (Unavailable, OutcomeUnknown, TimeoutError) as error:
                pause_s = self._limits.upload_pause_s * 2 ** min(tries, 5) * (0.5 + self._chance.random() / 2)
                if self._clock.monotonic_s() + pause_s >= deadline_s or not is_awaited():
                    raise Unavailable(f"upload gave up: key={key!r} tries={tries} cause={error!r}") from error
            await asyncio.sleep(pause_s)

    async def _is_ours(self, key: str, size_bytes: int) -> bool:
        try:
            async with asyncio.timeout(self._limits.upload_try_timeout_s):
                return (await self._objects.stat(key)).size_bytes == size_bytes
        except (NotFound, Unavailable, TimeoutError):
            return False


class UploadPlaces:
    """Places for uploads: few at a time, so that a slow store makes large objects, not many small ones.

    An upload that takes long gives its place up and goes on without. `on_free` is called, on the loop, whenever a place has become free.
    """

    def __init__(self, *, on_free: Callable[[], None], limits: LogLimits = DEFAULT_LIMITS) -> None:
        self.slow_upload_s = limits.slow_upload_s
        self._slow_uploads_max = limits.slow_uploads_max
        self._on_free = on_free
        self._places = asyncio.Semaphore(UPLOADS_MAX)
        self._asked = 0
        self._slow = 0

    @property
    def are_taken(self) -> bool:
        """Whether a new upload has to wait."""
        return self._asked >= UPLOADS_MAX

    @property
    def has_spare(self) -> bool:
        """Whether another upload leaves a place to those that time makes due."""
        return self._asked < UPLOADS_MAX - 1

    def ask(self) -> "UploadPlace":
        """It counts from now on. Enter it to wait for it; it must be entered."""
        self._asked += 1
        return UploadPlace(self)

    async def take(self) -> None:
        try:
            await self._places.acquire()
        except BaseException:
            self._asked -= 1
            raise

    def give_back(self) -> None:
        self._asked -= 1
        self._places.release()
        self._on_free()

    def begin_slow(self) -> bool:
        """False: too many are slow already."""
        if self._slow >= self._slow_uploads_max:
            return False
        self._slow += 1
        return True

    def end_slow(self) -> None:
        self._slow -= 1


class UploadPlace:
    """Held while the upload runs, or until it turns out to be slow."""

    __slots__ = ("_is_slow", "_places", "_timer")

    def __init__(self, places: UploadPlaces) -> None:
        self._places = places
        self._timer: asyncio.TimerHandle | None = None
        self._is_slow = False

    async def __aenter__(self) -> None:
        await self._places.take()
        self._timer = asyncio.get_running_loop().call_later(self._places.slow_upload_s, self._turn_slow)

    def _turn_slow(self) -> None:
        if self._places.begin_slow():
            self._is_slow = True
            self._places.give_back()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        assert self._timer is not None
        self._timer.cancel()
        if self._is_slow:
            self._places.end_slow()
        else:
            self._places.give_back()


@dataclass(frozen=True, slots=True, eq=False)
class Flush:
    """A sealed object. `parts` are its bytes in order: the header and the batches where the socket put them. They are dropped once the
    object is durable, or nobody waits for it any more.
    """

    object_id: ObjectId
    parts: list[Buffer]
    commits: list[Commit]
    size_bytes: int
    opened_s: float

    def is_awaited(self) -> bool:
        return any(commit.is_awaited for commit in self.commits)


class Appender:
    def __init__(
        self,
        *,
        settings: FlushSettings,
        inline: InlineSettings,
        may_write_inline: Callable[[], bool],
        committer: Committer,
        sealer: "Sealer",
        uploader: Uploader,
        inline_backlog: InlineBacklog,
        clock: Clock,
        nursery: Nursery,
        telemetry: Telemetry,
        tracing: Tracing | None = None,
        limits: LogLimits = DEFAULT_LIMITS,
    ) -> None:
        """`may_write_inline`: whether every broker can read inline entries by now. `tracing` hears of flushes."""
        self._limits = limits
        self._inline_commits_at_once_max = limits.inline_commits_at_once_max
        self._commit_timeout_s = limits.commit_timeout_s
        self._overdue_check_s = limits.overdue_check_s
        self._quiet_bytes_min = limits.quiet_bytes_min
        self._tracing = tracing
        self._settings = settings
        self._inline = inline
        self._may_write_inline = may_write_inline
        self._budget = CommitBudget(inline.commits_per_s)
        self._larger_budget = CommitBudget(limits.larger_commits_per_s, kept_max=limits.larger_commits_kept_max)
        self._inline_backlog = inline_backlog
        self._inline_commits: list[Commit] = []
        self._begun_in_turn = 0
        self._committer = committer
        self.losses = committer.losses
        """Its `count` is for `Append.arrived`."""
        self._sealer = sealer
        self._uploader = uploader
        self._clock = clock
        self._nursery = nursery
        self._open: OpenFlush[PartitionLog] = OpenFlush()
        self._last = LastFlush()
        self._timer: asyncio.TimerHandle | None = None
        self._quiet_timer: asyncio.TimerHandle | None = None
        self._quiet_at_s = 0.0
        self._is_overdue = False
        self._is_stopped = False
        self._refused: str | None = None
        self._in_flight = sealer.in_flight
        self._overdue_check: asyncio.TimerHandle | None = None
        self._waiting: dict[Flush, None] = {}
        self._places = UploadPlaces(on_free=self._on_free_place, limits=limits)
        flushes = telemetry.counter(FLUSHES)
        self._flushes = Children[Trigger, Counter](lambda trigger: flushes.labels(trigger.value))
        self._flush_bytes = telemetry.counter(FLUSH_BYTES)
        seconds = telemetry.histogram(FLUSH_SECONDS)
        self._stage_s = Children[str, Histogram](seconds.labels)
        self._inline_commits_total, self._inline_bytes = telemetry.counter(INLINE_COMMITS), telemetry.counter(INLINE_BYTES)
        not_inlined = telemetry.counter(NOT_INLINED)
        self._not_inlined = Children[NotInlined, Counter](lambda reason: not_inlined.labels(reason.value))
        telemetry.gauge(FLUSH_INTERVAL).set(settings.interval_s)
        telemetry.gauge(FLUSH_LIMIT).set(settings.bytes_max)
        telemetry.gauge(INLINE_LIMIT).set(inline.bytes_max)
        telemetry.gauge(BUFFERED_BYTES).set_function(lambda: self.buffered_bytes)

    def submit(self, log: PartitionLog, batch: Batch, *, together: int = 1) -> None:
        """Take a checked batch, one of `together` that arrived in one request. Its result comes through `batch.append`: always, and within
        `commit_timeout_s` of being sealed.
        """
        if self._refused is not None:
            batch.settle(Unavailable(self._refused))
            return
        append, losses = batch.append, self.losses
        if append.arrived not in (-1, losses.count) and losses.are_ahead(append.arrived, log.partition, append.source):
            batch.settle(after_lost())
            return
        if self._inline.bytes_max:
            reason = self._commit_inline(log, batch, together)
            if reason is None:
                return
            self._not_inlined[reason].inc()
        log.commit_queue.gathered = self._open.add(log, batch, now_s=self._clock.monotonic_s())
        trigger = self._open.is_full(self._settings)
        if trigger is not None:
            self._seal(trigger)
            return
        if self._timer is None and not self._is_overdue:
            self._arm()
        self._arm_quiet()

    def _commit_inline(self, log: PartitionLog, batch: Batch, together: int) -> NotInlined | None:
        """Let a commit carry the batch, or say why it has to be gathered."""
        queue = log.commit_queue
        if together > self._inline_commits_at_once_max:
            return NotInlined.MANY  # the first of them in commits and the rest in an object would cost both
        last = joined(queue, batch, self._inline, self._limits)
        now_s = self._clock.monotonic_s()
        reason = why_gathered(queue, batch, last, self._inline, now_s, self._limits)
        if reason is not None:
            return reason
        if self._is_stopped or not self._may_write_inline():
            return NotInlined.OFF
        if self._inline_backlog.is_full:
            return NotInlined.UNCOMPACTED
        if last is None and self._begun_in_turn >= self._inline_commits_at_once_max:
            return NotInlined.MANY
        is_larger = becomes_larger(batch, last, self._inline)
        if (is_larger and not self._larger_budget.take(now_s)) or (last is None and not self._budget.take(now_s)):
            return NotInlined.BUDGET
        if is_larger:
            note_larger(queue, now_s)
        if last is not None:
            join(last, batch)
            self._inline_bytes.inc(batch.size_bytes)
            self._inline_backlog.add(log, batch.size_bytes)
            return None
        self._begin_inline([self._sealer.seal_inline(log, [batch], deadline_s=now_s + self._commit_timeout_s)])
        return None

    def _begin_inline(self, commits: list[Commit]) -> None:
        """Together with what else arrives in this turn of the loop, and in the next ones while they bring more; a lone one at once."""
        self._inline_commits_total.inc(len(commits))
        self._inline_bytes.inc(sum([commit.size_bytes for commit in commits]))
        for commit in commits:
            self._inline_backlog.add(commit.log, commit.size_bytes)
        if not self._inline_commits:
            is_lone = len(self._in_flight) == len(commits) == 1
            asyncio.get_running_loop().call_soon(self._run_inline, int(is_lone), TURNS_MAX)
        self._inline_commits += commits
        self._begun_in_turn += len(commits)

    def _run_inline(self, count_before: int, turns_left: int) -> None:
        self._begun_in_turn = 0
        if turns_left and count_before < len(self._inline_commits) < self._inline_commits_at_once_max:
            asyncio.get_running_loop().call_soon(self._run_inline, len(self._inline_commits), turns_left - 1)
            return
        commits, self._inline_commits = self._inline_commits, []
        if not (self._is_stopped or self._nursery.is_left):
            self._watch_overdue()
            self._nursery.spawn(self._commit(commits), name="commit-inline")

    async def _commit(self, commits: list[Commit]) -> None:
        began_s = self._clock.monotonic_s()
        await self._committer.run(commits)
        self._stage_s["commit"].observe(self._clock.monotonic_s() - began_s)

    def refuse(self, cause: str) -> None:
        """Nothing will ever be committed any more: answer all that waits, each as what is known of it says, and refuse what comes."""
        self._refused = cause
        if self._is_stopped:
            return
        if self._open.batches:
            self._seal(Trigger.DRAIN)
        for commit in self._in_flight.overdue(float("inf")):
            commit.cause = cause
            self._committer.give_up(commit)

    @property
    def buffered_bytes(self) -> int:
        """The size of batches that are gathered, or have no outcome yet."""
        return self._open.size_bytes + self._in_flight.size_bytes

    async def drain(self) -> None:
        """Flush what is gathered and return when every flush has its outcome."""
        if self._open.batches:
            self._seal(Trigger.DRAIN)
        await self._in_flight.wait_idle()

    def stop(self) -> None:
        """Begin no further flush: what is gathered and not sealed stays unanswered. For the end of a broker, after `drain`."""
        self._is_stopped = True
        for timer in (self._timer, self._quiet_timer, self._overdue_check):
            if timer is not None:
                timer.cancel()
        self._timer = self._quiet_timer = self._overdue_check = None

    def _arm(self) -> None:
        if self._is_stopped:
            return
        due_s = self._open.due_s(self._settings, self._last)
        delay_s = max(0.0, due_s - self._clock.monotonic_s())
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_time)

    def _arm_quiet(self) -> None:
        """Look again when the flush may have become due by quiet. One timer looks at many batches: it is set again only when it becomes due
        sooner, as an ack burst does.
        """
        quiet_s = self._open.quiet_s(self._settings, self._last, quiet_bytes_min=self._quiet_bytes_min)
        if quiet_s is None or self._timer is None:
            return
        if self._quiet_timer is not None:
            if quiet_s >= self._quiet_at_s:
                return
            self._quiet_timer.cancel()
        self._quiet_at_s = quiet_s
        self._quiet_timer = asyncio.get_running_loop().call_later(max(0.0, quiet_s - self._clock.monotonic_s()), self._on_quiet)

    def _on_quiet(self) -> None:
        self._quiet_timer = None
        quiet_s = self._open.quiet_s(self._settings, self._last, quiet_bytes_min=self._quiet_bytes_min)
        if quiet_s is None or self._timer is None:
            return
        if quiet_s > self._clock.monotonic_s():
            self._arm_quiet()
        elif self._places.has_spare:
            self._seal(Trigger.QUIET)

    def _on_time(self) -> None:
        self._timer = None
        if self._places.are_taken and not self._is_small(self._open):
            self._is_overdue = True
        else:
            self._seal(Trigger.TIME)

    def _on_free_place(self) -> None:
        if self._is_stopped:
            return
        if self._is_overdue:
            self._seal(Trigger.TIME)
        else:
            self._arm_quiet()

    def _seal(self, trigger: Trigger) -> None:
        for timer in (self._timer, self._quiet_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._quiet_timer = None
        self._is_overdue = False
        gathered, self._open = self._open, OpenFlush()
        now_s = self._last.began_s = self._clock.monotonic_s()
        if trigger is Trigger.TIME and self._is_small(gathered):
            if commits := self._sealer.seal_inline_all(gathered, deadline_s=now_s + self._commit_timeout_s):
                self._begin_inline(commits)
            return
        flush = self._sealer.seal(gathered, deadline_s=now_s + self._commit_timeout_s)
        if not flush.commits:
            return  # all of it was refused meanwhile
        self._flushes[trigger].inc()
        self._flush_bytes.inc(flush.size_bytes)
        self._stage_s["wait"].observe(now_s - gathered.opened_s)
        if not self._nursery.is_left:
            self._watch_overdue()
            self._last.begin(gathered)
            self._nursery.spawn(self._flush(flush, self._places.ask()), name="flush")

    def _is_small(self, gathered: OpenFlush[PartitionLog]) -> bool:
        slice_bytes_max, now_s = self._inline.bytes_max, self._clock.monotonic_s()
        return (
            # While S3 is slow or away, what needs none of it does not wait for it.
            (len(gathered.batches) <= self._inline_commits_at_once_max or self._places.are_taken)
            and gathered.size_bytes <= slice_bytes_max * len(gathered.batches)
            and self._may_write_inline()
            and not self._inline_backlog.is_full
            and all(
                sum([batch.size_bytes for batch in batches]) <= slice_bytes_max and not had_no_room(log.commit_queue, now_s)
                for log, batches in gathered.batches.items()
            )
        )

    def _watch_overdue(self) -> None:
        if self._overdue_check is None and not self._is_stopped:
            self._overdue_check = asyncio.get_running_loop().call_later(self._overdue_check_s, self._give_up_overdue)

    def _give_up_overdue(self) -> None:
        """By a timer of its own: what a commit waits for may not answer for longer than its clients wait."""
        self._overdue_check = None
        for commit in self._in_flight.overdue(self._clock.monotonic_s()):
            if commit in self._in_flight:
                self._committer.give_up(commit)
        for flush in self._waiting:
            if not flush.is_awaited():
                flush.parts.clear()  # it has no place yet, and will need none
        if len(self._in_flight) and not self._is_stopped:
            self._overdue_check = asyncio.get_running_loop().call_later(self._overdue_check_s, self._give_up_overdue)

    async def _flush(self, flush: Flush, place: UploadPlace) -> None:
        CAUSE.set("flush")
        began_s = self._clock.monotonic_s()
        if self._tracing is not None:
            self._tracing.note_sealed(flush.commits, object_key(flush.object_id), began_s)
        try:
            try:
                self._waiting[flush] = None
                async with place:
                    del self._waiting[flush]
                    if not flush.is_awaited():
                        raise Unavailable("its clients were answered while it waited for a place")
                    await self._uploader.upload(object_key(flush.object_id), flush.parts, is_awaited=flush.is_awaited)
            finally:
                self._waiting.pop(flush, None)
                flush.parts.clear()
            uploaded_s = self._clock.monotonic_s()
            if (committing := flush.commits[0].committing) is not None:
                committing.note_stored()
            del committing  # it holds the bytes, and goes with the commits
            self._stage_s["put"].observe(uploaded_s - began_s)
            if self._tracing is not None:
                self._tracing.note_stored(flush.commits, uploaded_s)
            await self._committer.run(flush.commits)
            self._stage_s["commit"].observe(self._clock.monotonic_s() - uploaded_s)
        except StorageError as error:
            self._committer.fail(flush.commits, error)
        finally:
            self._last.end(self._clock.monotonic_s())
            self._arm_quiet()  # what came before this may be an ack burst


class Sealer:
    """Lays out WAL objects and opens their commits. Synchronous: the order of commit queues is the order of sealing."""

    def __init__(self, *, ids: IdSource, epoch: BrokerEpoch, uploader: Uploader, shared: SharedBlocks | None = None) -> None:
        self._ids = ids
        self._epoch = epoch
        self._uploader = uploader
        self._shared = shared
        self._floor = ""
        self.in_flight = InFlight()

    def seal(self, gathered: OpenFlush[PartitionLog], *, deadline_s: float) -> Flush:
        object_id = ObjectId(self._ids.next_ulid(above=self._floor))
        commits = [Commit(log, waiting, object_id, deadline_s, self.in_flight) for log, waiting in _take(gathered)]
        parts, slices = self._lay_out(object_id, commits) if commits else ([], [])
        committing = self._shared.committing(object_key(object_id), parts, commits=len(commits)) if self._shared and commits else None
        for commit, placed in zip(commits, slices, strict=True):
            commit.size_bytes, commit.committing = placed.length, committing
            enter(commit)
        return Flush(object_id, parts, commits, sum(map(len, parts)), gathered.opened_s)

    def seal_inline(self, log: PartitionLog, batches: list[Batch], *, deadline_s: float) -> Commit:
        """A commit that carries `batches`, entered into its commit queue."""
        object_id = ObjectId(self._ids.next_ulid(above=self._floor))
        commit = Commit(log, [], object_id, deadline_s, self.in_flight, is_inline=True, is_uploaded=True)
        enter(commit)
        for batch in batches:
            join(commit, batch)
        return commit

    def seal_inline_all(self, gathered: OpenFlush[PartitionLog], *, deadline_s: float) -> list[Commit]:
        """As `seal`, of slices that are all small: no object is needed."""
        return [self.seal_inline(log, waiting, deadline_s=deadline_s) for log, waiting in _take(gathered)]

    async def upload_again(self, commit: Commit, floor: str) -> None:
        """Store the slice of one commit as an object of its own with an id above `floor`. Raises `Unavailable`.

        The first object may be collected at any time, so its bytes come from memory: they are kept until the commit has its outcome.
        """
        self._floor = max(self._floor, floor)
        object_id = ObjectId(self._ids.next_ulid(above=self._floor))
        parts, _ = self._lay_out(object_id, [commit])
        await self._uploader.upload(object_key(object_id), parts, is_awaited=lambda: commit.is_awaited)
        commit.object_id, commit.committing = object_id, None

    def _lay_out(self, object_id: ObjectId, commits: list[Commit]) -> tuple[list[Buffer], list[Slice]]:
        """The header, then the batches in place; each batch learns its position."""
        position = header_bytes(len(commits))
        slices: list[Slice] = []
        parts: list[Buffer] = [b""]
        for commit in commits:
            start = position
            for batch in commit.batches:
                batch.position = position
                position += batch.size_bytes
                parts.append(batch.view)
            slices.append(Slice(commit.log.partition, start, position - start))
        parts[0] = encode_header(object_id, self._epoch.current, slices)
        return parts, slices


def _take(gathered: OpenFlush[PartitionLog]) -> Iterator[tuple[PartitionLog, list[Batch]]]:
    """What of each log still waits for an answer: the commit queues have nothing gathered any more."""
    for log, batches in gathered.batches.items():
        log.commit_queue.gathered = []
        waiting = [batch for batch in batches if not batch.is_settled]
        if waiting:
            yield log, waiting
