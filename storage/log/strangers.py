"""Producers that a partition does not know, while what comes before their batches may still be on its way (ADR 9)."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final, NamedTuple

STRANGERS_KEPT_MAX: Final = 1_024


class Start(NamedTuple):
    """A producer that nobody knows may begin, under this epoch, with sequences up to this one."""

    producer_epoch: int
    first_seq: int


class Stranger(NamedTuple):
    """`start`: its epoch and the lowest sequence that it was refused. Times are monotonic seconds: when it began to wait, and when that
    sequence was refused last.
    """

    start: Start
    since_s: float
    last_s: float


class Strangers:
    """Of one partition, as this broker refused them. When there are too many, more do not begin to wait before one of these has begun."""

    __slots__ = ("refused",)

    def __init__(self) -> None:
        self.refused: OrderedDict[int, Stranger] = OrderedDict()
        """By producer, the one refused first ahead. Read by those to whom an empty one must cost nothing; written here alone."""

    def make_wait(self, producer_id: int, producer_epoch: int, first_seq: int, now_s: float, *, wait_s: float) -> None:
        """A batch was refused. Whose lowest sequence was not refused for twice `wait_s` before begins to wait anew: it was known meanwhile,
        went away, or gave that batch up. So does a newer epoch: what comes before its batches was not sent while the older one waited.
        """
        start = Start(producer_epoch, first_seq)
        before = self.refused.get(producer_id)
        if before is not None and before.start.producer_epoch >= producer_epoch and before.last_s >= now_s - 2 * wait_s:
            if before.start.producer_epoch == producer_epoch and first_seq <= before.start.first_seq:
                self.refused[producer_id] = Stranger(start, before.since_s, now_s)
            return
        self.forget(producer_id)
        self._forget_gone(now_s - 2 * wait_s)
        if len(self.refused) < STRANGERS_KEPT_MAX:
            self.refused[producer_id] = Stranger(start, now_s, now_s)

    def forget(self, producer_id: int) -> None:
        """It was appended, so it is known."""
        self.refused.pop(producer_id, None)

    def begin_at(self, now_s: float, *, wait_s: float) -> Mapping[int, Start]:
        """Those that were refused for `wait_s`, each with the sequence up to which it may begin: the lowest that it was refused.

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
        """Those refused first; others when these have begun, or have gone, too."""
        while self.refused and next(iter(self.refused.values())).last_s < before_s:
            self.refused.popitem(last=False)
