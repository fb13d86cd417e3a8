"""What one broker remembers of a partition: the control record as last seen, its lane, its tail. All of it can be lost."""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Final

from storage.errors import StorageError
from storage.formats.control import Control, IndexChunk, LogState
from storage.log.strangers import Strangers
from storage.log.tail import Tail
from storage.metadata.keys import PartitionKeys
from storage.vocabulary import PartitionId

if TYPE_CHECKING:
    from storage.log.batch import Batch
    from storage.log.lane import Commit

PARTITIONS_KEPT_MAX: Final = 100_000
CHUNKS_KEPT_MAX: Final = 64
HINTS_KEPT_MAX: Final = 64
LOST_KEPT_MAX: Final = 1_024
OWED_HINTS_MAX: Final = 4
PAGE_GARBAGE_MAX: Final = 64
GONE_LOOKED_FOR_EVERY: Final = 1_000
"""Partitions touched between two looks for those that were deleted."""


class PartitionLog:
    """`control` is None until read (or after the partition was seen gone); it only ever moves to newer versions.

    `broken` says why the record, though there, could not be read (`Corrupt`, `IncompatibleFormat`).
    `foreign_version` is the version of the last record that was read rather than committed here.
    `lost` holds, by producer, the lowest sequence that was answered with an error though the producer may have sent more behind it.
    `unexplained_hints` counts hints that the control record changed, less the changes that are known: above 0, somebody else wrote it.
    `strangers` are producers that nobody knew and that were told to wait for what comes before their batches.
    `committed_epoch` is the last broker epoch under which a commit of this lane was applied.
    `gathered` are the batches that wait to be sealed. `page_garbage` names pages of producer states to be deleted with the next commit.
    """

    __slots__ = (
        "_lost_at",
        "_was_absent",
        "broken",
        "chunks",
        "committed_epoch",
        "control",
        "foreign_version",
        "gathered",
        "hints",
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
    )

    def __init__(self, partition: PartitionId, *, version: int = -1) -> None:
        self.partition = partition
        self.keys = PartitionKeys(partition)
        self.control: Control | None = None
        self.version = version
        self._was_absent = False
        self.broken: StorageError | None = None
        self.foreign_version = -1
        self.unexplained_hints = 0
        self.lane: deque[Commit] = deque()
        self.lane_busy = False
        self.lost: dict[int, int] = {}
        self._lost_at: OrderedDict[int, float] = OrderedDict()
        self.strangers = Strangers()
        self.committed_epoch = -1
        self.gathered: list[Batch] = []
        self.page_garbage: list[str] = []
        self.sweep_at_s = float("-inf")
        self.tail = Tail()
        self.chunks: OrderedDict[int, IndexChunk] = OrderedDict()
        self.hints: OrderedDict[int, tuple[int, int, int]] = OrderedDict()
        self.wakers: set[Callable[[], None]] = set()

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
        self.wake()

    def observe_absent(self) -> None:
        """The record does not exist, or did not when a deposed leader of its shard last heard."""
        self._was_absent = True
        if self.control is not None:
            self.control = None
            self.wake()

    def lose(self, producer_id: int, first_seq: int, now_s: float) -> None:
        """A batch was answered with an error; what its producer sent behind it may still be on its way here."""
        self.lost[producer_id] = min(first_seq, self.lost.get(producer_id, first_seq))
        self._lost_at[producer_id] = now_s
        self._lost_at.move_to_end(producer_id)
        while len(self.lost) > LOST_KEPT_MAX:
            self._forget_lost()

    def lost_since(self, since_s: float) -> Mapping[int, int]:
        """The lowest sequence by producer of those lost since then. What was sent behind older ones is not on its way any more."""
        while self.lost and next(iter(self._lost_at.values())) < since_s:
            self._forget_lost()
        return self.lost

    def _forget_lost(self) -> None:
        producer_id, _ = self._lost_at.popitem(last=False)
        del self.lost[producer_id]

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


class Partitions:
    """The partitions this broker has touched, bounded. One with work is never forgotten: a second log of it would be a second lane (I6)."""

    def __init__(self, *, kept_max: int = PARTITIONS_KEPT_MAX) -> None:
        self._kept_max = kept_max
        self._logs: dict[PartitionId, PartitionLog] = {}
        self._by_control_path: dict[str, PartitionLog] = {}
        self._created = 0
        self._forgotten_versions: OrderedDict[PartitionId, int] = OrderedDict()

    def get(self, partition: PartitionId) -> PartitionLog:
        log = self._logs.get(partition)
        if log is None:
            self._created += 1
            if len(self._logs) >= self._kept_max or self._created % GONE_LOOKED_FOR_EVERY == 0:
                self._forget()
            log = self._logs[partition] = PartitionLog(partition, version=self._forgotten_versions.pop(partition, -1))
            self._by_control_path[log.keys.control.path] = log
        return log

    def by_control_path(self, path: str) -> PartitionLog | None:
        return self._by_control_path.get(path)

    def __iter__(self) -> Iterator[PartitionLog]:
        return iter(self._logs.values())

    def __len__(self) -> int:
        return len(self._logs)

    def _forget(self) -> None:
        """Forget the idle logs of deleted partitions, and at the bound a tenth of the others, those first touched longest ago.

        Versions are kept, but for tombstones, which nobody asks for: else a deposed leader could take back what was answered here before.
        """
        idle = [log for log in self._logs.values() if log.is_idle]
        gone = [log for log in idle if log.is_gone]
        wanted = max(1, self._kept_max // 10) if len(self._logs) >= self._kept_max else 0
        others = islice((log for log in idle if not log.is_gone), max(0, wanted - len(gone)))
        for log in (*gone, *others):
            del self._logs[log.partition]
            del self._by_control_path[log.keys.control.path]
            if log.version >= 0 and (log.control is None or log.control.log_state is not LogState.DELETED):
                self._forgotten_versions[log.partition] = log.version
        while len(self._forgotten_versions) > self._kept_max:
            self._forgotten_versions.popitem(last=False)
