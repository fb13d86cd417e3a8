"""Which batches travel in their commit, so that no object has to be stored for them, pure (docs/design/commit.md#inline-entries).

A commit writes the control record anyway: a small slice costs it a few bytes more, and its producer no PUT and no wait for the flush. What
that costs the metadata store is bounded by a budget of commits. A batch stays behind what was gathered of its partition before: it never
overtakes.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from storage.limits import INLINE_BYTES_MAX
from storage.log.batch import Batch
from storage.log.lane import Commit, Lane

BURST_S: Final = 0.25
"""How much unused budget is kept, to be spent at once."""
CONFLICTS_MAX: Final = 0.5
"""The share of conflicts, among the last commits of a partition, above which its batches are gathered."""
CARRIED_AT_ONCE_MAX: Final = 32
"""Commits that carry batches, of those that begin in one turn of the loop, and of those of one flush. For more partitions one object costs
less: what a control record carries is written again by each commit until it leaves."""
LARGER_BYTES_MAX: Final = INLINE_BYTES_MAX
"""What a commit carries now and then, above what commits carry at any time."""
LARGER_EVERY_S: Final = 1.0
"""A batch of a partition that is larger than those that commits always carry is carried, too, this long after the last. So a producer
that batched during a pause is answered as soon as before it, and goes on with small batches. If it waited for a PUT, it would batch as
much again meanwhile, and the next batch would wait, too, for ever:

    a record every 5 ms … a pause of 0.2 s … a batch of 40 records waits 0.35 s for its object … the next batch has 70 records …
"""


@dataclass(frozen=True, slots=True)
class InlineSettings:
    """A slice of at most `bytes_max` travels in its commit; 0: none does. At most `commits_per_s` commits of a broker begin without having
    gathered, a larger one in place of as many as would carry its bytes; None: any number.
    """

    bytes_max: int
    commits_per_s: float | None = None

    def __post_init__(self) -> None:
        assert 0 <= self.bytes_max <= INLINE_BYTES_MAX, f"inline slices are too large: {self.bytes_max}"


NO_INLINE: Final = InlineSettings(bytes_max=0)


class Gathers(StrEnum):
    """Why a batch is gathered instead."""

    OFF = "off"
    """The format level in force does not allow it yet, or the broker stops."""
    LARGE = "large"
    QUEUED = "queued"
    """Others of its partition are gathered already."""
    FULL = "full"
    """The next commit of its partition has as much as it may carry."""
    CONFLICTS = "conflicts"
    """Another broker commits to the partition at the same time."""
    BUDGET = "budget"
    MANY = "many"
    """As many commits that carry batches begin already as may at once."""


class CommitBudget:
    """A bucket of tokens: `per_s` of them come in a second, and as many as come in BURST_S are kept."""

    def __init__(self, per_s: float | None) -> None:
        self._per_s = per_s
        self._kept_max = max(1.0, (per_s or 0.0) * BURST_S)
        self._kept = self._kept_max
        self._at_s = 0.0

    def take(self, now_s: float, count: float = 1.0) -> bool:
        """`count` of them, unless there are fewer."""
        if self._per_s is None:
            return True
        self._kept = min(self._kept_max, self._kept + max(0.0, now_s - self._at_s) * self._per_s)
        self._at_s = now_s
        if self._kept < count:
            return False
        self._kept -= count
        return True


def joinable(lane: Lane) -> Commit | None:
    """The last commit of a lane, while it may take more batches: it waits for its turn.

    One that is open may be reading the record that it will decide on, which would be older than the batch.
    """
    if not lane.commits:
        return None
    last = lane.commits[-1]
    return last if last.is_inline and not last.is_open and not last.is_given_up else None


def why_gathered(lane: Lane, batch: Batch, last: Commit | None, settings: InlineSettings, now_s: float) -> Gathers | None:
    """None if the batch may travel in its commit: in `last`, which is `joinable`, or in one of its own, as far as the budget goes."""
    size_bytes = batch.size_bytes
    if size_bytes > settings.bytes_max and not _may_carry_larger(lane, size_bytes, now_s):
        return Gathers.LARGE
    if lane.gathered:
        return Gathers.QUEUED
    if last is not None:
        size_bytes += last.size_bytes
        return None if size_bytes <= settings.bytes_max or _may_become_larger(lane, batch, last, settings) else Gathers.FULL
    return Gathers.CONFLICTS if lane.conflict_share > CONFLICTS_MAX else None


def _may_carry_larger(lane: Lane, size_bytes: int, now_s: float) -> bool:
    """Not behind a commit that waits for its object: it would wait, too."""
    return size_bytes <= LARGER_BYTES_MAX and now_s - lane.larger_s >= LARGER_EVERY_S and not lane.waits_for_object


def _may_become_larger(lane: Lane, batch: Batch, last: Commit, settings: InlineSettings) -> bool:
    """What arrives behind a larger batch, or while an object is stored, would make its producers wait for the next object if it had to be
    gathered: they would be where LARGER_EVERY_S keeps them from.
    """
    if last.size_bytes + batch.size_bytes > LARGER_BYTES_MAX:
        return False
    return max(batch.size_bytes, last.size_bytes) > settings.bytes_max or lane.waits_for_object
