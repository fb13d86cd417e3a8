"""Producers that a partition does not know, while what comes before their batches may still be on its way (ADR 9)."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final, NamedTuple

STRANGERS_KEPT_MAX: Final = 1_024


class Stranger(NamedTuple):
    """`first_seq`: the lowest sequence that it was refused. Times are monotonic seconds of the first and of the last refusal."""

    first_seq: int
    since_s: float
    last_s: float


class Strangers:
    """Of one partition, as this broker refused them. When there are too many, more do not begin to wait before one of these has begun."""

    __slots__ = ("refused",)

    def __init__(self) -> None:
        self.refused: OrderedDict[int, Stranger] = OrderedDict()
        """By producer, the one refused first ahead. Read by those to whom an empty one must cost nothing; written here alone."""

    def make_wait(self, producer_id: int, first_seq: int, now_s: float, *, wait_s: float) -> None:
        """A batch was refused. Who was not refused for twice `wait_s` before begins to wait anew: it was known meanwhile, or went away."""
        before = self.refused.get(producer_id)
        if before is not None and before.last_s >= now_s - 2 * wait_s:
            self.refused[producer_id] = Stranger(min(first_seq, before.first_seq), before.since_s, now_s)
            return
        self.forget(producer_id)
        self._forget_gone(now_s - 2 * wait_s)
        if len(self.refused) < STRANGERS_KEPT_MAX:
            self.refused[producer_id] = Stranger(first_seq, now_s, now_s)

    def forget(self, producer_id: int) -> None:
        """Something else was answered to it."""
        self.refused.pop(producer_id, None)

    def begin_at(self, now_s: float, *, wait_s: float) -> Mapping[int, int]:
        """Those that were refused for `wait_s`, each with the sequence up to which it may begin: the lowest that it was refused.

        It may have been refused the first of several batches a moment before its time was over. The others wait until that is sent again:
        appended before it, they would turn it into one that is out of order.
        """
        gone_before_s = now_s - 2 * wait_s
        self._forget_gone(gone_before_s)
        return {
            producer_id: refused.first_seq
            for producer_id, refused in self.refused.items()
            if refused.since_s <= now_s - wait_s and refused.last_s >= gone_before_s
        }

    def _forget_gone(self, before_s: float) -> None:
        """Those refused first; others when these have begun, or have gone, too."""
        while self.refused and next(iter(self.refused.values())).last_s < before_s:
            self.refused.popitem(last=False)
