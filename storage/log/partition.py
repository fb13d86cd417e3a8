"""What one broker remembers of a partition: the control record as last seen, its lane, its tail. All of it can be lost."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Final

from runtime.telemetry import Metric, Telemetry
from storage.errors import StorageError
from storage.formats.control import Control, LogState
from storage.limits import MIB
from storage.log.lost import LostBatches
from storage.log.sizes import control_bytes
from storage.log.strangers import Waiting
from storage.log.tail import Tail
from storage.metadata.keys import PartitionKeys
from storage.vocabulary import PartitionId

if TYPE_CHECKING:
    from storage.log.batch import Batch
    from storage.log.lane import Commit

PARTITIONS_KEPT_MAX: Final = 100_000
PARTITIONS_BYTES_MAX: Final = 256 * MIB
"""Of memory, estimated: 30,000 to 60,000 partitions with full or half-full rings of entries, 2,000 of the largest records there are."""
LOG_BYTES: Final = 2_048
"""Of a log that knows nothing yet, and of what finds it."""
PAGE_NAME_BYTES: Final = 100
FORGOTTEN_BYTES: Final = 320
"""Of what is kept of a log that was forgotten."""
LOOKED_AT_MAX: Final = 8
"""Logs that are looked at for one to forget when another one is asked for."""
OWED_HINTS_MAX: Final = 4
PAGE_GARBAGE_MAX: Final = 64
GONE_LOOKED_FOR_EVERY: Final = 1_000
"""Partitions touched between two looks for those that were deleted."""

REMEMBERED: Final = Metric("forebay_partitions_remembered", "Partitions that this broker remembers")
REMEMBERED_BYTES: Final = Metric(
    "forebay_partitions_remembered_bytes",
    "Estimated memory of what is remembered of partitions; above 256 MiB those not in use are forgotten",
)
FORGOTTEN: Final = Metric("forebay_partitions_forgotten_total", "Partitions that were forgotten to make room, to be read again")
WAITING: Final = Metric(
    "forebay_producers_waiting", "Producers that a partition does not know and that wait for what comes before their batches"
)


class Remembered:
    """What the logs of one broker have in common. `heard` is told what a log hears that was forgotten meanwhile."""

    __slots__ = ("heard", "lost", "size_bytes", "waiting")

    def __init__(self, heard: "Callable[[PartitionLog], None] | None" = None) -> None:
        self.heard = heard or (lambda _log: None)
        self.size_bytes = 0
        self.lost = LostBatches()
        self.waiting = Waiting()


class PartitionLog:
    """`control` is None until read (or after the partition was seen gone); it only ever moves to newer versions.

    `broken` says why the record, though there, could not be read (`Corrupt`, `IncompatibleFormat`).
    `foreign_version` is the version of the last record that was read rather than committed here.
    `lost` holds, by producer, the lowest sequence that was answered with an error though the producer may have sent more behind it.
    `unexplained_hints` counts hints that the control record changed, less the changes that are known: above 0, somebody else wrote it.
    `strangers` are producers that nobody knew and that were told to wait for what comes before their batches.
    `committed_epoch` is the last broker epoch under which a commit of this lane was applied.
    `gathered` are the batches that wait to be sealed. `page_garbage` names pages of producer states to be deleted with the next commit.
    `was_used`: since somebody looked for logs to forget. `is_forgotten`: who asks for the partition now gets another log.
    """

    __slots__ = (
        "__weakref__",
        "_counted_bytes",
        "_remembered",
        "_was_absent",
        "broken",
        "committed_epoch",
        "control",
        "foreign_version",
        "gathered",
        "is_forgotten",
        "keys",
        "lane",
        "lane_busy",
        "lost",
        "page_garbage",
        "partition",
        "strangers",
        "sweep_at_s",
        "tail",
        "unexplained_hints",
        "version",
        "wakers",
        "was_used",
    )

    def __init__(self, partition: PartitionId, *, version: int = -1, remembered: Remembered | None = None) -> None:
        self.partition = partition
        self._remembered = remembered or Remembered()
        self._counted_bytes = 0
        self.is_forgotten = False
        self.was_used = False
        self.keys = PartitionKeys(partition)
        self.control: Control | None = None
        self.version = version
        self._was_absent = False
        self.broken: StorageError | None = None
        self.foreign_version = -1
        self.unexplained_hints = 0
        self.lane: list[Commit] = []
        self.lane_busy = False
        self.lost: dict[int, int] = {}
        self.strangers = self._remembered.waiting.of(partition)
        self.committed_epoch = -1
        self.gathered: list[Batch] = []
        self.page_garbage: list[str] = []
        self.sweep_at_s = float("-inf")
        self.tail = Tail()
        self.wakers: set[Callable[[], None]] = set()
        self._count()

    @property
    def is_idle(self) -> bool:
        """Nothing of it is gathered, queued or undecided, and nobody waits for it: it may be forgotten."""
        return not (self.gathered or self.lane or self.lane_busy or self.wakers)

    @property
    def is_gone(self) -> bool:
        """The partition was there, as far as anybody asked, and is not any more."""
        control = self.control
        return control.log_state is LogState.DELETED if control is not None else self._was_absent

    @property
    def is_behind(self) -> bool:
        """Nothing as new as what was known before this log was forgotten has been read yet."""
        return self.control is None and self.version >= 0 and not self._was_absent

    @property
    def high_watermark(self) -> int:
        """As last seen; -1 if never."""
        return -1 if self.control is None else self.control.sequence_counter

    def advance(self, control: Control, version: int) -> None:
        """Take over a record this broker has just committed."""
        assert version > self.version, f"control went back: {self.partition} {self.version} -> {version}"
        self.control, self.version = control, version
        self._count()
        self.wake()

    def is_news(self, version: int) -> bool:
        """Whether `observe` would take over a record of this version: most reads find what is known, and need not decode it.

        One that is older than what is known is ignored, so that reads never go back (promise 5). The same version is news after
        `observe_absent`: a deposed leader of the shard may have answered that, from before the creation.
        """
        return version > self.version or (version == self.version and self.control is None)

    def observe(self, control: Control, version: int) -> None:
        """Take over a record that was read, if it is news."""
        if not self.is_news(version):
            return
        self.control, self.version, self.broken = control, version, None
        self.foreign_version = version
        self._count()
        if self.is_forgotten:
            self._remembered.heard(self)
        self.wake()

    def observe_absent(self) -> None:
        """The record does not exist, or did not when a deposed leader of its shard last heard."""
        self._was_absent = True
        if self.control is not None:
            self.control = None
            self._count()
            self.wake()

    def lose(self, producer_id: int, first_seq: int, now_s: float) -> None:
        """A batch was answered with an error; what its producer sent behind it may still be on its way here."""
        self._remembered.lost.note(self, producer_id, first_seq, now_s)

    def lost_since(self, since_s: float) -> Mapping[int, int]:
        """The lowest sequence by producer of those lost since then. What was sent behind older ones is not on its way any more."""
        self._remembered.lost.forget_before(self, since_s)
        return self.lost

    def note_hint(self) -> None:
        """Somebody wrote the control record, perhaps this broker."""
        self.unexplained_hints += 1

    def explain_hint(self) -> None:
        """This broker wrote it. The hint may come before or after, or never: so few are owed at a time."""
        self.unexplained_hints = max(self.unexplained_hints - 1, -OWED_HINTS_MAX)

    def note_put_again(self, before: int, after: int | None) -> None:
        """This broker put the record of version `before` once more, as it was."""
        self.explain_hint()
        if after is not None and self.version == before and self.control is not None:
            self.advance(self.control, after)

    def discard_pages(self, names: Iterable[str]) -> None:
        """No control record can name them any more. What is too much is left to a sweep."""
        self.page_garbage += islice(names, max(0, PAGE_GARBAGE_MAX - len(self.page_garbage)))

    def wake(self) -> None:
        for waker in tuple(self.wakers):
            waker()

    def forget(self) -> None:
        """It counts no more, whoever holds it still."""
        self.is_forgotten = True
        self._remembered.lost.forget(self)
        self._remembered.size_bytes -= self._counted_bytes
        self._counted_bytes = 0

    def _count(self) -> None:
        if self.is_forgotten:
            return
        size_bytes = LOG_BYTES + control_bytes(self.control) + PAGE_NAME_BYTES * len(self.page_garbage)
        self._remembered.size_bytes += size_bytes - self._counted_bytes
        self._counted_bytes = size_bytes


class Partitions:
    """The partitions this broker has touched, bounded in number and in memory. Those that were not used lately are forgotten.

    One with work is never forgotten: a second log of it would be a second lane (I6). Neither is one that somebody waits for.
    """

    def __init__(
        self, *, kept_max: int = PARTITIONS_KEPT_MAX, bytes_max: int = PARTITIONS_BYTES_MAX, telemetry: Telemetry | None = None
    ) -> None:
        self._kept_max = kept_max
        self._bytes_max = bytes_max
        self._remembered = Remembered(self._hear)
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
        """What cannot be forgotten takes twice the memory that there is for all: nobody should wait for more partitions."""
        return self._remembered.size_bytes > 2 * self._bytes_max

    def get(self, partition: PartitionId) -> PartitionLog:
        if self._remembered.size_bytes > self._bytes_max:
            self._make_room()
        log = self._logs.get(partition)
        if log is not None:
            log.was_used = True
            return log
        self._created += 1
        if self._created % GONE_LOOKED_FOR_EVERY == 0:
            self._forget_gone()
        if len(self._logs) >= self._kept_max:
            self._make_room(1)
        version = self._forgotten_versions.pop(partition, -1)
        log = self._logs[partition] = PartitionLog(partition, version=version, remembered=self._remembered)
        self._by_control_path[log.keys.control.path] = log
        return log

    def by_control_path(self, path: str) -> PartitionLog | None:
        return self._by_control_path.get(path)

    def __iter__(self) -> Iterator[PartitionLog]:
        return iter(self._logs.values())

    def __len__(self) -> int:
        return len(self._logs)

    def _make_room(self, coming: int = 0) -> None:
        """Forget idle logs that were not used since they were looked at last. Few are looked at in one call: the next one goes on."""
        for _ in range(min(LOOKED_AT_MAX, len(self._logs))):
            if len(self._logs) + coming <= self._kept_max and self._remembered.size_bytes <= self._bytes_max:
                return
            log = next(iter(self._logs.values()))
            if log.is_idle and (log.is_gone or not log.was_used):
                self._forget(log)
                self._forgotten.inc()
            else:
                log.was_used = False
                self._logs.move_to_end(log.partition)

    def _forget_gone(self) -> None:
        for log in [log for log in self._logs.values() if log.is_gone and log.is_idle]:
            self._forget(log)

    def _forget(self, log: PartitionLog) -> None:
        """Its version is kept, but for tombstones, which nobody asks for: else a deposed leader could take back what was answered here."""
        del self._logs[log.partition]
        del self._by_control_path[log.keys.control.path]
        log.forget()
        self._keep_version(log)

    def _hear(self, log: PartitionLog) -> None:
        """Whoever held a log that was forgotten has read a newer record by it, and may tell what that says."""
        known = self._logs.get(log.partition)
        if known is None:
            self._keep_version(log)
        elif log.control is not None:
            known.observe(log.control, log.version)

    def _keep_version(self, log: PartitionLog) -> None:
        if log.version < 0 or (log.control is not None and log.control.log_state is LogState.DELETED):
            return
        self._forgotten_versions[log.partition] = max(log.version, self._forgotten_versions.get(log.partition, -1))
        while len(self._forgotten_versions) > self._kept_max:
            self._forgotten_versions.popitem(last=False)
