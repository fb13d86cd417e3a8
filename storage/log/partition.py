"""What one broker remembers about partitions, and which of them it forgets to make room. All of it can be lost."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final

from runtime.telemetry import Metric, Telemetry
from storage.formats.control import Control, LogState, control_bytes
from storage.log.lane import Lane
from storage.log.limits import DEFAULT_LIMITS, LogLimits
from storage.log.producers import AllStrangers, LostBatches, ProducerMemory
from storage.log.seen import NEVER_S, SeenControl
from storage.log.tail import Readers
from storage.log.traffic import TopicTraffic, Traffic
from storage.metadata.keys import PartitionKeys
from storage.vocabulary import PartitionId

LOG_BYTES: Final = 2_048
"""A log that knows nothing yet, with the dictionary entries that lead to it."""
PAGE_NAME_BYTES: Final = 100
COUNTED_EVERY: Final = 4
"""Entries that a record with few producers gains before its memory is counted again: up to three entries of FEW spans go uncounted."""
FEW: Final = 4
FORGOTTEN_BYTES: Final = 320
"""The version that outlives a forgotten log."""
LOOKED_AT_MAX: Final = 8
"""Logs examined, in search of one to forget, when a caller asks for another."""
GONE_LOOKED_FOR_EVERY: Final = 1_000
"""Partitions created between two searches for deleted ones."""

REMEMBERED: Final = Metric("forebay_partitions_remembered", "Partitions that this broker remembers", aggregation="sum")
REMEMBERED_BYTES: Final = Metric(
    "forebay_partitions_remembered_bytes",
    "Estimated memory of what is remembered of partitions; above 256 MiB those not in use are forgotten",
    aggregation="sum",
)
FORGOTTEN: Final = Metric("forebay_partitions_forgotten_total", "Partitions that were forgotten to make room, to be read again")
WAITING: Final = Metric(
    "forebay_producers_waiting",
    "Producers that a partition does not know and that wait for what comes before their batches",
    aggregation="sum",
)


class Remembered:
    """State that the logs of one broker share. `heard` is called with a forgotten log that has just read a newer record."""

    __slots__ = ("heard", "lost", "size_bytes", "waiting")

    def __init__(self, heard: "Callable[[PartitionLog], None] | None" = None, *, limits: LogLimits = DEFAULT_LIMITS) -> None:
        self.heard = heard or (lambda _log: None)
        self.size_bytes = 0
        self.lost = LostBatches(limits=limits)
        self.waiting = AllStrangers(limits=limits)


class PartitionLog:
    """One partition in one broker: four independent parts, each with one writer, and the steps that concern all of them.

    `seen` is the control record as last seen, `lane` the order of commits, `readers` the tail and the wake-ups, `producers` the producer
    memory beside the control record, `traffic` the figures of its topic. Records are taken over here, since readers wake and memory is
    counted when `seen` changes.
    `was_used` is set by each use and cleared by the search for logs to forget. `is_forgotten`: a caller that asks for the partition now
    gets another log.
    """

    __slots__ = (
        "__weakref__",
        "_counted_bytes",
        "_remembered",
        "is_forgotten",
        "keys",
        "lane",
        "partition",
        "producers",
        "readers",
        "seen",
        "traffic",
        "was_used",
    )

    def __init__(
        self, partition: PartitionId, *, version: int = -1, remembered: Remembered | None = None, traffic: Traffic | None = None
    ) -> None:
        self.partition = partition
        self.keys = PartitionKeys(partition)
        self.seen = SeenControl(version)
        self.lane = Lane()
        self.readers = Readers()
        self.traffic = traffic or Traffic()
        self._remembered = remembered or Remembered()
        self.producers = ProducerMemory(self._remembered.lost, self._remembered.waiting.of(partition))
        self._counted_bytes = 0
        self.is_forgotten = False
        self.was_used = False
        self._count()

    @property
    def is_idle(self) -> bool:
        """It may be forgotten: none of its batches is gathered, queued or undecided, and no reader waits."""
        return self.lane.is_empty and not self.readers.wakers

    def advance(self, control: Control, version: int, asked_s: float = NEVER_S) -> None:
        """Take over the record that this broker has just committed, by a write that began at `asked_s` (as in `SeenControl`)."""
        self.seen.advance(control, version, asked_s)
        pending = control.pending
        # Counting takes longer than the rest of this method, and a small record grows little from one commit to the next.
        if len(pending) % COUNTED_EVERY == 1 or len(control.producers) > FEW or (pending and len(pending[-1].batches) > FEW):
            self._count()
        self.readers.wake()

    def observe(self, control: Control, version: int, asked_s: float = NEVER_S) -> None:
        """Take over a record that a read found which began at `asked_s`, if it is news."""
        if not self.seen.observe(control, version, asked_s):
            return
        self._count()
        if self.is_forgotten:
            self._remembered.heard(self)
        self.readers.wake()

    def observe_absent(self) -> None:
        """The record does not exist, or did not when a deposed leader of its shard last heard."""
        if self.seen.observe_absent():
            self._count()
            self.readers.wake()

    def note_put_again(self, before: int, after: int | None, asked_s: float) -> None:
        """This broker put the record of version `before` once more, as it was, by a write that began at `asked_s`."""
        seen = self.seen
        if after is not None and seen.version == before and seen.control is not None:
            self.advance(seen.control, after, asked_s)

    def forget(self) -> None:
        """Stop counting its memory, even if a caller still holds it."""
        self.is_forgotten = True
        self.producers.forget_lost()
        self._remembered.size_bytes -= self._counted_bytes
        self._counted_bytes = 0

    def _count(self) -> None:
        if self.is_forgotten:
            return
        size_bytes = LOG_BYTES + control_bytes(self.seen.control) + PAGE_NAME_BYTES * len(self.producers.page_garbage)
        self._remembered.size_bytes += size_bytes - self._counted_bytes
        self._counted_bytes = size_bytes


class Partitions:
    """The partitions this broker has touched, bounded in number and in memory. Those not used lately are forgotten.

    A log with work is never forgotten: a second log of the partition would be a second lane (I6). Neither is one that a reader waits for.
    """

    def __init__(
        self,
        *,
        telemetry: Telemetry | None = None,
        traffic: TopicTraffic | None = None,
        limits: LogLimits = DEFAULT_LIMITS,
    ) -> None:
        self.refused: str | None = None
        """Why nothing may be answered from what is remembered; None while it may."""
        self._traffic = traffic or TopicTraffic()
        self._kept_max = limits.partitions_kept_max
        self._bytes_max = limits.partitions_bytes_max
        self._remembered = Remembered(self._hear, limits=limits)
        self._logs: OrderedDict[PartitionId, PartitionLog] = OrderedDict()
        self._by_control_path: dict[str, PartitionLog] = {}
        self._created = 0
        self._forgotten_versions: OrderedDict[PartitionId, int] = OrderedDict()
        telemetry = telemetry or Telemetry()
        self._forgotten = telemetry.counter(FORGOTTEN)
        telemetry.gauge(REMEMBERED).set_function(lambda: len(self._logs))
        telemetry.gauge(WAITING).set_function(lambda: len(self._remembered.waiting))
        telemetry.gauge(REMEMBERED_BYTES).set_function(lambda: self.size_bytes)

    @property
    def size_bytes(self) -> int:
        """Estimated memory."""
        return self._remembered.size_bytes + FORGOTTEN_BYTES * len(self._forgotten_versions)

    @property
    def is_crowded(self) -> bool:
        """Logs that cannot be forgotten take twice the memory meant for all: no fetch should wait for more partitions."""
        return self._remembered.size_bytes > 2 * self._bytes_max

    def get(self, partition: PartitionId) -> PartitionLog:
        if self._remembered.size_bytes > self._bytes_max:
            self._make_room()
        log = self._logs.get(partition)
        if log is not None:
            log.was_used = True
            if log.traffic.asks_again:
                log.traffic = self._traffic.of(partition.topic_id)
            return log
        self._created += 1
        if self._created % GONE_LOOKED_FOR_EVERY == 0:
            self._forget_gone()
        if len(self._logs) >= self._kept_max:
            self._make_room(1)
        version = self._forgotten_versions.pop(partition, -1)
        traffic = self._traffic.of(partition.topic_id)
        log = self._logs[partition] = PartitionLog(partition, version=version, remembered=self._remembered, traffic=traffic)
        self._by_control_path[log.keys.control.path] = log
        return log

    def by_control_path(self, path: str) -> PartitionLog | None:
        return self._by_control_path.get(path)

    def __iter__(self) -> Iterator[PartitionLog]:
        return iter(self._logs.values())

    def __len__(self) -> int:
        return len(self._logs)

    def _make_room(self, coming: int = 0) -> None:
        """Forget idle logs that were not used since the last look. One call looks at a few; the next call goes on from there."""
        for _ in range(min(LOOKED_AT_MAX, len(self._logs))):
            if len(self._logs) + coming <= self._kept_max and self._remembered.size_bytes <= self._bytes_max:
                return
            log = next(iter(self._logs.values()))
            if log.is_idle and (log.seen.is_gone or not log.was_used):
                self._forget(log)
                self._forgotten.inc()
            else:
                log.was_used = False
                self._logs.move_to_end(log.partition)

    def _forget_gone(self) -> None:
        for log in [log for log in self._logs.values() if log.seen.is_gone and log.is_idle]:
            self._forget(log)

    def _forget(self, log: PartitionLog) -> None:
        """Keep its version, so that a deposed leader cannot take back an answer. Tombstones need none: no client asks for them."""
        del self._logs[log.partition]
        del self._by_control_path[log.keys.control.path]
        log.forget()
        self._keep_version(log)

    def _hear(self, log: PartitionLog) -> None:
        """A caller that still holds a forgotten log has read a newer record through it, and may answer from that record."""
        known = self._logs.get(log.partition)
        if known is None:
            self._keep_version(log)
        elif log.seen.control is not None:
            known.observe(log.seen.control, log.seen.version, log.seen.asked_s)

    def _keep_version(self, log: PartitionLog) -> None:
        if log.seen.version < 0 or (log.seen.control is not None and log.seen.control.log_state is LogState.DELETED):
            return
        self._forgotten_versions[log.partition] = max(log.seen.version, self._forgotten_versions.get(log.partition, -1))
        while len(self._forgotten_versions) > self._kept_max:
            self._forgotten_versions.popitem(last=False)
