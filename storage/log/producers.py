"""The producers of a partition, as one broker remembers them beside the manifest (ADR 9).

Unknown producers are those that the partition does not know: they wait while what comes before their batches may still be on its way. Lost
batches were answered with an error while later ones may follow. Safety rests on none of it: all of it can be lost.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final, NamedTuple

from storage.log.limits import DEFAULT_LIMITS, LogLimits
from storage.vocabulary import PartitionId

PAGE_GARBAGE_MAX: Final = 64


class PermittedStart(NamedTuple):
    """A producer that nobody knows may begin, under this epoch, with sequences up to this one."""

    producer_epoch: int
    first_seq: int


class UnknownProducer(NamedTuple):
    """`start`: its epoch and the lowest sequence that it was refused. Times are monotonic seconds: when it began to wait, and when that
    sequence was refused last.
    """

    start: PermittedStart
    since_s: float
    last_s: float


class AllWaitingProducers:
    """The unknown producers of all partitions of one broker, those refused longest ago ahead. They outlive what else is known of their
    partition: else those of a partition that is forgotten again and again would never begin.
    """

    def __init__(self, *, limits: LogLimits = DEFAULT_LIMITS) -> None:
        self.kept_of_one_max, self._kept_max = limits.unknown_producers_max, limits.unknown_producers_of_all_max
        self._last_s: OrderedDict[tuple[WaitingProducers, int], float] = OrderedDict()
        self._not_empty: dict[PartitionId, WaitingProducers] = {}

    def __len__(self) -> int:
        return len(self._last_s)

    def of(self, partition: PartitionId) -> "WaitingProducers":
        return self._not_empty.get(partition) or WaitingProducers(self, partition)

    def note(self, waiting: "WaitingProducers", producer_id: int, now_s: float) -> None:
        self._not_empty[waiting.partition] = waiting
        self._last_s[waiting, producer_id] = now_s
        self._last_s.move_to_end((waiting, producer_id))

    def drop(self, waiting: "WaitingProducers", producer_id: int) -> None:
        del self._last_s[waiting, producer_id]
        if not waiting.refused:
            self._not_empty.pop(waiting.partition, None)

    def has_room(self, waiting: "WaitingProducers", gone_before_s: float) -> bool:
        """For one more of these. If there are too many, those that went away make room, then one of a partition that has more of them: so a
        crowd at some partitions keeps nobody out of the others.
        """
        while len(self._last_s) >= self._kept_max:
            (others, producer_id), last_s = next(iter(self._last_s.items()))
            if last_s >= gone_before_s and len(others.refused) <= len(waiting.refused) + 1:
                return False
            others.forget(producer_id)
        return True


class WaitingProducers:
    """The unknown producers of one partition, as this broker refused them. When full, it takes one only after another has begun."""

    __slots__ = ("_waiting", "partition", "refused")

    def __init__(self, waiting: AllWaitingProducers, partition: PartitionId) -> None:
        self.partition = partition
        self._waiting = waiting
        self.refused: dict[int, UnknownProducer] = {}
        """By producer, the one refused first ahead. Read by those to whom an empty one must cost nothing; written here alone."""

    def make_wait(self, producer_id: int, producer_epoch: int, first_seq: int, now_s: float, *, wait_s: float) -> None:
        """A batch was refused. Whose lowest sequence was not refused for twice `wait_s` before waits again: it was known meanwhile,
        went away, or gave that batch up. So does a newer epoch: what comes before its batches was not sent while the older one waited.
        """
        start = PermittedStart(producer_epoch, first_seq)
        before = self.refused.get(producer_id)
        if before is not None and before.start.producer_epoch >= producer_epoch and before.last_s >= now_s - 2 * wait_s:
            if before.start.producer_epoch == producer_epoch and first_seq <= before.start.first_seq:
                self.refused[producer_id] = UnknownProducer(start, before.since_s, now_s)
                self._waiting.note(self, producer_id, now_s)
            return
        self.forget(producer_id)
        self._forget_gone(now_s - 2 * wait_s)
        if len(self.refused) < self._waiting.kept_of_one_max and self._waiting.has_room(self, now_s - 2 * wait_s):
            self.refused[producer_id] = UnknownProducer(start, now_s, now_s)
            self._waiting.note(self, producer_id, now_s)

    def forget(self, producer_id: int) -> None:
        """It was appended, so it is known."""
        if self.refused.pop(producer_id, None) is not None:
            self._waiting.drop(self, producer_id)

    def permitted_starts(self, now_s: float, *, wait_s: float) -> Mapping[int, PermittedStart]:
        """The unknown producers that were refused for `wait_s`, each with the sequence up to which it may begin: the lowest refused one.

        It may have been refused the first of several batches a moment before its time was over. The others wait until that is sent again:
        appended before it, they would turn it into one that is out of order.
        """
        gone_before_s = now_s - 2 * wait_s
        self._forget_gone(gone_before_s)
        return {
            producer_id: refused.start
            for producer_id, refused in self.refused.items()
            if refused.since_s <= now_s - wait_s and refused.last_s >= gone_before_s
        }

    def _forget_gone(self, before_s: float) -> None:
        """Forget the unknown producers refused first; others when these have begun, or have gone, too."""
        while self.refused and self.refused[producer_id := next(iter(self.refused))].last_s < before_s:
            self.forget(producer_id)


class LostBatches:
    """When producers lost batches, of all partitions: what each partition knows of them is in `ProducerMemory.lost`.

    Above a bound what was lost first is forgotten. It is of use to nobody after seconds, and safety rests on the manifest alone:
    who was forgotten waits, as an unknown producer, instead of being refused.
    """

    def __init__(self, *, limits: LogLimits = DEFAULT_LIMITS) -> None:
        self._kept_max, self._of_all_kept_max = limits.lost_kept_max, limits.lost_of_all_kept_max
        self._at_s: OrderedDict[tuple[ProducerMemory, int], float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._at_s)

    def note(self, producers: "ProducerMemory", producer_id: int, first_seq: int, now_s: float) -> None:
        producers.lost[producer_id] = min(first_seq, producers.lost.pop(producer_id, first_seq))
        self._at_s[producers, producer_id] = now_s
        self._at_s.move_to_end((producers, producer_id))
        if len(producers.lost) > self._kept_max:
            self._forget(producers, next(iter(producers.lost)))
        if len(self._at_s) > self._of_all_kept_max:
            self._forget(*next(iter(self._at_s)))

    def forget_before(self, producers: "ProducerMemory", before_s: float) -> None:
        """Forget the lost batches of one partition."""
        while producers.lost and self._at_s[producers, producer_id := next(iter(producers.lost))] < before_s:
            self._forget(producers, producer_id)

    def forget(self, producers: "ProducerMemory") -> None:
        """All of one partition."""
        for producer_id in tuple(producers.lost):
            self._forget(producers, producer_id)

    def _forget(self, producers: "ProducerMemory", producer_id: int) -> None:
        del self._at_s[producers, producer_id], producers.lost[producer_id]


class ProducerMemory:
    """`lost` holds, by producer, the lowest sequence that was answered with an error though the producer may have sent more behind it:
    written by `LostBatches`, which counts those of all partitions.
    `waiting` are unknown producers that wait for what comes before their batches.
    `page_garbage` names pages of producer states to be deleted with the next commit.
    """

    __slots__ = ("_lost_of_all", "_sweep_at_s", "lost", "page_garbage", "waiting")

    def __init__(self, lost_of_all: LostBatches, waiting: WaitingProducers) -> None:
        self._lost_of_all = lost_of_all
        self._sweep_at_s = float("-inf")
        self.lost: dict[int, int] = {}
        self.waiting = waiting
        self.page_garbage: list[str] = []

    def lose(self, producer_id: int, first_seq: int, now_s: float) -> None:
        """A batch was answered with an error; what its producer sent behind it may still be on its way here."""
        self._lost_of_all.note(self, producer_id, first_seq, now_s)

    def lost_since(self, since_s: float) -> Mapping[int, int]:
        """The lowest sequence by producer of those lost since then. What was sent behind older ones is not on its way any more."""
        self._lost_of_all.forget_before(self, since_s)
        return self.lost

    def forget_lost(self) -> None:
        self._lost_of_all.forget(self)

    def discard_pages(self, names: Iterable[str]) -> None:
        """No manifest can name them any more. What is too much is left to a sweep."""
        self.page_garbage += islice(names, max(0, PAGE_GARBAGE_MAX - len(self.page_garbage)))

    def forget_page_garbage(self) -> None:
        """It is deleted with what is sent now. If that fails, it is left to a sweep."""
        self.page_garbage = []

    def is_sweep_due(self, now_s: float, *, every_s: float) -> bool:
        """True once in `every_s`: then the caller removes the pages that nothing names."""
        if now_s < self._sweep_at_s:
            return False
        self._sweep_at_s = now_s + every_s
        return True
