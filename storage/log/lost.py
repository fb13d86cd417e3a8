"""When producers lost batches, of all partitions (ADR 9): what each partition knows of them is in `PartitionLog.lost`."""

from collections import OrderedDict
from typing import Final, Protocol

LOST_KEPT_MAX: Final = 1_024
"""Producers of one partition."""
LOST_OF_ALL_KEPT_MAX: Final = 32_768
"""Producers of all partitions, 400 bytes of memory each."""


class LosesBatches(Protocol):
    """The part of a `PartitionLog` that this needs: the lowest sequence that was lost by producer, who lost one last behind."""

    @property
    def lost(self) -> dict[int, int]: ...


class LostBatches:
    """Above a bound what was lost first is forgotten. It is of use to nobody after seconds, and safety rests on the control record alone:
    who was forgotten waits, as a stranger, instead of being refused.
    """

    def __init__(self) -> None:
        self._at_s: OrderedDict[tuple[LosesBatches, int], float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._at_s)

    def note(self, log: LosesBatches, producer_id: int, first_seq: int, now_s: float) -> None:
        log.lost[producer_id] = min(first_seq, log.lost.pop(producer_id, first_seq))
        self._at_s[log, producer_id] = now_s
        self._at_s.move_to_end((log, producer_id))
        if len(log.lost) > LOST_KEPT_MAX:
            self._forget(log, next(iter(log.lost)))
        if len(self._at_s) > LOST_OF_ALL_KEPT_MAX:
            self._forget(*next(iter(self._at_s)))

    def forget_before(self, log: LosesBatches, before_s: float) -> None:
        """Those of one partition."""
        while log.lost and self._at_s[log, producer_id := next(iter(log.lost))] < before_s:
            self._forget(log, producer_id)

    def forget(self, log: LosesBatches) -> None:
        """All of one partition."""
        for producer_id in tuple(log.lost):
            self._forget(log, producer_id)

    def _forget(self, log: LosesBatches, producer_id: int) -> None:
        del self._at_s[log, producer_id], log.lost[producer_id]
