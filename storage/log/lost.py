"""When producers lost batches, of all partitions (ADR 9): what each partition knows of them is in `ProducerMemory.lost`."""

from collections import OrderedDict
from typing import Protocol

from storage.log.limits import DEFAULT_LIMITS, LogLimits


class LosesBatches(Protocol):
    """The part of a `ProducerMemory` that this needs: the lowest sequence that was lost by producer, who lost one last behind."""

    @property
    def lost(self) -> dict[int, int]: ...


class LostBatches:
    """Above a bound what was lost first is forgotten. It is of use to nobody after seconds, and safety rests on the control record alone:
    who was forgotten waits, as a stranger, instead of being refused.
    """

    def __init__(self, *, limits: LogLimits = DEFAULT_LIMITS) -> None:
        self._kept_max, self._of_all_kept_max = limits.lost_kept_max, limits.lost_of_all_kept_max
        self._at_s: OrderedDict[tuple[LosesBatches, int], float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._at_s)

    def note(self, producers: LosesBatches, producer_id: int, first_seq: int, now_s: float) -> None:
        producers.lost[producer_id] = min(first_seq, producers.lost.pop(producer_id, first_seq))
        self._at_s[producers, producer_id] = now_s
        self._at_s.move_to_end((producers, producer_id))
        if len(producers.lost) > self._kept_max:
            self._forget(producers, next(iter(producers.lost)))
        if len(self._at_s) > self._of_all_kept_max:
            self._forget(*next(iter(self._at_s)))

    def forget_before(self, producers: LosesBatches, before_s: float) -> None:
        """Forget the lost batches of one partition."""
        while producers.lost and self._at_s[producers, producer_id := next(iter(producers.lost))] < before_s:
            self._forget(producers, producer_id)

    def forget(self, producers: LosesBatches) -> None:
        """All of one partition."""
        for producer_id in tuple(producers.lost):
            self._forget(producers, producer_id)

    def _forget(self, producers: LosesBatches, producer_id: int) -> None:
        del self._at_s[producers, producer_id], producers.lost[producer_id]
