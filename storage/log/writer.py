"""The appender: gather batches of all connections, seal them into WAL objects, upload, hand over to the committer.

    submit → open flush → (due) seal: object id, header, one Commit per partition into its commit queue → upload → Committer.run
           ↘ not large, and nothing gathered before it: early, in a Commit of its own → Committer.run (storage/log/flush.py)

Uploads of later flushes run while earlier ones commit; a commit queue keeps the order of its partition. Admission bounds the bytes in
flight (broker/admission.py). `UploadPlaces` bounds the number of uploads. While all of them are busy, a flush that is due by time alone
goes on gathering instead of making a small object. An upload that takes long gives its place to another: a slow prefix of the bucket holds
up what it was sent, and no more.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from prometheus_client import Counter, Histogram

from runtime.clock import Clock
from runtime.ids import IdSource
from runtime.supervision import Nursery
from runtime.telemetry import Children, Metric, Telemetry
from storage.errors import StorageError, Unavailable
from storage.formats.wal import Slice, encode_header, header_bytes, object_key
from storage.log.batch import Batch
from storage.log.commit import Committer, after_lost, enter, join, note_over_budget
from storage.log.early_objects import EarlyObjects
from storage.log.flush import (
    COMMIT_COST_BYTES,
    ByteBudget,
    EarlySettings,
    FlushSettings,
    Gathered,
    LastFlush,
    OpenFlush,
    Trigger,
    joined,
    why_gathered,
)
from storage.log.limits import DEFAULT_LIMITS, LogLimits
from storage.log.partition import BrokerEpoch, Commit, InFlight, PartitionLog
from storage.log.tracing import Tracing
from storage.log.uploads import Uploader, UploadPlace, UploadPlaces
from storage.objects.requests import CAUSE
from storage.objects.shared_blocks import SharedBlocks
from storage.vocabulary import Buffer, ObjectId

FLUSH_INTERVAL: Final = Metric(
    "forebay_flush_interval_seconds", "Shortest time between the starts of two flushes: storage.flush_interval", aggregation="max"
)
FLUSH_LIMIT: Final = Metric("forebay_flush_limit_bytes", "Bytes that make a flush due at once: storage.flush_bytes", aggregation="max")
EARLY_LIMIT: Final = Metric(
    "forebay_early_limit_bytes",
    "Bytes that may be committed in a second before their object is stored: storage.early_bytes_per_second",
    aggregation="max",
)
FLUSHES: Final = Metric("forebay_flush_objects_total", "WAL objects sealed, by what made them due", ("trigger",))
EARLY_COMMITS: Final = Metric("forebay_early_commits_total", "Commits that did not wait for their object to be stored")
GATHERED: Final = Metric(
    "forebay_gathered_batches_total", "Batches that wait for an object to be stored before they are committed, by the reason", ("reason",)
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
        early: EarlySettings,
        may_write_early: Callable[[], bool],
        committer: Committer,
        sealer: "Sealer",
        uploader: Uploader,
        early_objects: EarlyObjects,
        clock: Clock,
        nursery: Nursery,
        telemetry: Telemetry,
        tracing: Tracing | None = None,
        limits: LogLimits = DEFAULT_LIMITS,
    ) -> None:
        """`may_write_early`: whether every broker can read early entries by now. `tracing` hears of flushes."""
        self._limits = limits
        self._early_commits_at_once_max = limits.early_commits_at_once_max
        self._commit_timeout_s = limits.commit_timeout_s
        self._overdue_check_s = limits.overdue_check_s
        self._quiet_bytes_min = limits.quiet_bytes_min
        self._tracing = tracing
        self._settings = settings
        self._budget = ByteBudget(early)
        self._may_go_early = early.bytes_per_s > 0
        self._may_write_early = may_write_early
        self._early_objects = early_objects
        self._early_commits: list[Commit] = []
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
        self._early_commits_total = telemetry.counter(EARLY_COMMITS)
        gathered = telemetry.counter(GATHERED)
        self._gathered = Children[Gathered, Counter](lambda reason: gathered.labels(reason.value))
        telemetry.gauge(FLUSH_INTERVAL).set(settings.interval_s)
        telemetry.gauge(FLUSH_LIMIT).set(settings.bytes_max)
        telemetry.gauge(EARLY_LIMIT).set(early.bytes_per_s)
        telemetry.gauge(BUFFERED_BYTES).set_function(lambda: self.buffered_bytes)

    def submit(self, log: PartitionLog, batch: Batch) -> None:
        """Take a checked batch. Its result comes through `batch.append`: always, and within `commit_timeout_s` of being sealed."""
        if self._refused is not None:
            batch.settle(Unavailable(self._refused))
            return
        append, losses = batch.append, self.losses
        if append.arrived not in (-1, losses.count) and losses.are_ahead(append.arrived, log.partition, append.source):
            batch.settle(after_lost())
            return
        if self._may_go_early:
            reason = self._commit_early(log, batch)
            if reason is None:
                return
            self._gathered[reason].inc()
        log.commit_queue.gathered = self._open.add(log, batch, now_s=self._clock.monotonic_s())
        trigger = self._open.is_full(self._settings)
        if trigger is not None:
            self._seal(trigger)
            return
        if self._timer is None and not self._is_overdue:
            self._arm()
        self._arm_quiet()

    def _commit_early(self, log: PartitionLog, batch: Batch) -> Gathered | None:
        """Let the batch go early, or say why it has to be gathered."""
        queue = log.commit_queue
        last = joined(queue, batch, self._limits)
        now_s = self._clock.monotonic_s()
        reason = why_gathered(queue, batch, last, now_s)
        if reason is not None:
            return reason
        if self._is_stopped or not self._may_write_early():
            return Gathered.OFF
        if self._early_objects.is_full:
            return Gathered.UNSTORED
        wait_s = self._budget.take(batch.size_bytes + (COMMIT_COST_BYTES if last is None else 0), now_s)
        if wait_s is None:
            note_over_budget(queue, now_s)
            return Gathered.BUDGET
        if last is not None:
            join(last, batch)
            return None
        commit = self._sealer.seal_early(log, batch, deadline_s=now_s + self._commit_timeout_s)
        if wait_s:
            # It keeps its place in its queue, and takes along what arrives meanwhile.
            commit.is_uploaded = False
            asyncio.get_running_loop().call_later(wait_s, self._begin_early, commit)
        else:
            self._begin_early(commit)
        return None

    def _begin_early(self, commit: Commit) -> None:
        """Together with what else arrives in this turn of the loop, and in the next ones while they bring more; a lone one at once."""
        self._early_commits_total.inc()
        if not self._early_commits:
            is_lone = len(self._in_flight) == 1
            asyncio.get_running_loop().call_soon(self._run_early, int(is_lone), TURNS_MAX)
        self._early_commits.append(commit)

    def _run_early(self, count_before: int, turns_left: int) -> None:
        if turns_left and count_before < len(self._early_commits) < self._early_commits_at_once_max:
            asyncio.get_running_loop().call_soon(self._run_early, len(self._early_commits), turns_left - 1)
            return
        commits, self._early_commits = self._early_commits, []
        if not (self._is_stopped or self._nursery.is_left):
            self._watch_overdue()
            self._nursery.spawn(self._commit(commits), name="commit-early")

    async def _commit(self, commits: list[Commit]) -> None:
        began_s = self._clock.monotonic_s()
        await self._committer.run(commits)
        self._stage_s["commit"].observe(self._clock.monotonic_s() - began_s)

    def refuse(self, cause: str) -> None:
        """Nothing will ever be committed any more: answer all that waits, each as what is known of it says, and refuse what comes."""
        self._refused = cause
        self._early_objects.stop()  # its pages are what the metadata have: nothing of them is to change
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
        """Flush what is gathered and return when every flush has its outcome. After `refuse` all are answered already."""
        if self._open.batches:
            self._seal(Trigger.DRAIN)
        if self._refused is None:
            await self._in_flight.wait_idle()

    async def store_early(self) -> None:
        """Store early objects, behind `drain`, and return when their pages are gone. Cancelled: those that are left stay in the metadata
        store, where they are read until they are compacted.
        """
        await self._early_objects.leave()

    def stop(self) -> None:
        """Begin no further flush: what is gathered and not sealed stays unanswered. For the end of a broker, after `drain`."""
        self._is_stopped = True
        for timer in (self._timer, self._quiet_timer, self._overdue_check):
            if timer is not None:
                timer.cancel()
        self._timer = self._quiet_timer = self._overdue_check = None
        self._early_objects.stop()

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
        if self._places.are_taken:
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

    def seal_early(self, log: PartitionLog, batch: Batch, *, deadline_s: float) -> Commit:
        """A commit that takes its place in an early object when it begins, entered into its commit queue."""
        commit = Commit(log, [], ObjectId(""), deadline_s, self.in_flight, is_early=True, is_uploaded=True)
        enter(commit)
        join(commit, batch)
        return commit

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
