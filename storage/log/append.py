"""The appender: gather batches of all connections, seal them into WAL objects, upload, hand over to the committer.

    submit → open flush → (due) seal: object id, header, one Commit per partition into its lane → upload → Committer.run

Uploads of later flushes run while earlier ones commit; a lane keeps the order of its partition. Bytes in flight are bounded by whoever
admits requests (broker/admission.py); the number of uploads is bounded here, and while all of them are busy a flush that is due by time
alone goes on gathering instead of making a small object.
"""

import asyncio
from dataclasses import dataclass
from typing import Final

from runtime.clock import Clock
from runtime.ids import IdSource
from runtime.supervision import Nursery
from runtime.telemetry import Metric, Telemetry
from storage.errors import StorageError
from storage.formats.wal import Slice, encode_header, header_bytes, object_key
from storage.log.batch import Batch
from storage.log.batcher import FlushSettings, OpenFlush, Trigger
from storage.log.broker_epoch import BrokerEpoch
from storage.log.commit import Committer
from storage.log.lane import Commit
from storage.log.partition import PartitionLog
from storage.log.upload import Uploader
from storage.vocabulary import Buffer, ObjectId

FLUSHES: Final = Metric("forebay_flush_objects_total", "WAL objects sealed, by what made them due", ("trigger",))
FLUSH_BYTES: Final = Metric("forebay_flush_object_bytes_total", "Bytes of sealed WAL objects")
FLUSH_SECONDS: Final = Metric("forebay_flush_duration_seconds", "Stages of a flush", ("stage",))
BUFFERED_BYTES: Final = Metric("forebay_produce_buffer_bytes", "Bytes of batches received and not yet committed or refused")

UPLOADS_MAX: Final = 4
COMMIT_TIMEOUT_S: Final = 30.0
"""From sealing on; the default request.timeout.ms of Java producers."""


@dataclass(frozen=True, slots=True)
class Flush:
    """A sealed object. `parts` are its bytes in order: the header and the batches where the socket put them."""

    object_id: ObjectId
    parts: list[Buffer]
    commits: list[Commit]
    size_bytes: int
    opened_s: float


class Appender:
    def __init__(
        self,
        *,
        settings: FlushSettings,
        committer: Committer,
        sealer: "Sealer",
        uploader: Uploader,
        clock: Clock,
        nursery: Nursery,
        telemetry: Telemetry,
    ) -> None:
        self._settings = settings
        self._committer = committer
        self._sealer = sealer
        self._uploader = uploader
        self._clock = clock
        self._nursery = nursery
        self._open: OpenFlush[PartitionLog] = OpenFlush()
        self._last_began_s = float("-inf")
        self._timer: asyncio.TimerHandle | None = None
        self._is_overdue = False
        self._is_stopped = False
        self._uploading = 0
        self._in_flight = 0
        self._buffered_bytes = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._slots = asyncio.Semaphore(UPLOADS_MAX)
        flushes = telemetry.counter(FLUSHES)
        self._flushes = {trigger: flushes.labels(trigger.value) for trigger in Trigger}
        self._flush_bytes = telemetry.counter(FLUSH_BYTES)
        seconds = telemetry.histogram(FLUSH_SECONDS)
        self._wait_s, self._put_s, self._commit_s = (seconds.labels(stage) for stage in ("wait", "put", "commit"))
        telemetry.gauge(BUFFERED_BYTES).set_function(lambda: self._buffered_bytes)

    def submit(self, log: PartitionLog, batch: Batch) -> None:
        """Take a checked batch. Its result comes through `batch.append`: always, and within COMMIT_TIMEOUT_S of being sealed."""
        self._open.add(log, batch, now_s=self._clock.monotonic_s())
        self._buffered_bytes += batch.size_bytes
        trigger = self._open.is_full(self._settings)
        if trigger is not None:
            self._seal(trigger)
        elif self._timer is None and not self._is_overdue:
            self._arm()

    async def drain(self) -> None:
        """Flush what is gathered and return when every flush has its outcome."""
        if self._open.batches:
            self._seal(Trigger.DRAIN)
        await self._idle.wait()

    def stop(self) -> None:
        """Begin no further flush: what is gathered and not sealed stays unanswered. For the end of a broker, after `drain`."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        if self._is_stopped:
            return
        due_s = self._open.due_s(self._settings, last_began_s=self._last_began_s)
        delay_s = max(0.0, due_s - self._clock.monotonic_s())
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        if self._uploading < UPLOADS_MAX:
            self._seal(Trigger.TIME)
        else:
            self._is_overdue = True

    def _seal(self, trigger: Trigger) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._is_overdue = False
        gathered, self._open = self._open, OpenFlush()
        now_s = self._last_began_s = self._clock.monotonic_s()
        flush = self._sealer.seal(gathered, deadline_s=now_s + COMMIT_TIMEOUT_S)
        self._flushes[trigger].inc()
        self._flush_bytes.inc(flush.size_bytes)
        self._wait_s.observe(now_s - gathered.opened_s)
        self._uploading += 1
        self._in_flight += 1
        self._idle.clear()
        self._nursery.spawn(self._flush(flush, gathered.size_bytes), name="flush")

    async def _flush(self, flush: Flush, buffered_bytes: int) -> None:
        began_s = self._clock.monotonic_s()
        try:
            try:
                async with self._slots:
                    await self._uploader.upload(object_key(flush.object_id), flush.parts)
            finally:
                self._uploading -= 1
                flush.parts.clear()
            uploaded_s = self._clock.monotonic_s()
            self._put_s.observe(uploaded_s - began_s)
            if self._is_overdue:
                self._seal(Trigger.TIME)
            await self._committer.run(flush.commits)
            self._commit_s.observe(self._clock.monotonic_s() - uploaded_s)
        except StorageError as error:
            self._refuse_gathered(flush, error)
            if self._is_overdue:
                self._seal(Trigger.TIME)
            await self._committer.fail(flush.commits, error)
        finally:
            self._buffered_bytes -= buffered_bytes
            self._in_flight -= 1
            if not self._in_flight:
                self._idle.set()

    def _refuse_gathered(self, flush: Flush, error: StorageError) -> None:
        """What the same sources sent to these partitions since, and is not sealed yet, must not overtake the retry of what was lost."""
        for commit in flush.commits:
            sources = {id(batch.append.source) for batch in commit.batches}
            for batch in self._open.batches.get(commit.log, ()):
                if id(batch.append.source) in sources:
                    batch.settle(error)


class Sealer:
    """Lays out WAL objects and opens their commits. Synchronous: the order of lanes is the order of sealing."""

    def __init__(self, *, ids: IdSource, epoch: BrokerEpoch, uploader: Uploader) -> None:
        self._ids = ids
        self._epoch = epoch
        self._uploader = uploader
        self._floor = ""

    def seal(self, gathered: OpenFlush[PartitionLog], *, deadline_s: float) -> Flush:
        object_id = ObjectId(self._ids.next_ulid(above=self._floor))
        commits = [Commit(log, batches, object_id, deadline_s) for log, batches in gathered.batches.items()]
        parts = self._lay_out(object_id, commits)
        for commit in commits:
            commit.log.lane.append(commit)
        return Flush(object_id, parts, commits, sum(map(len, parts)), gathered.opened_s)

    async def upload_again(self, commit: Commit, floor: str) -> None:
        """Store the slice of one commit as an object of its own with an id above `floor`. Raises `Unavailable`.

        The first object may be collected at any time, so its bytes come from memory: they are kept until the commit has its outcome.
        """
        self._floor = max(self._floor, floor)
        object_id = ObjectId(self._ids.next_ulid(above=self._floor))
        parts = self._lay_out(object_id, [commit])
        await self._uploader.upload(object_key(object_id), parts)
        commit.object_id = object_id

    def _lay_out(self, object_id: ObjectId, commits: list[Commit]) -> list[Buffer]:
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
        return parts
