"""Which batches travel in their commit, so that no object has to be stored for them, pure (docs/design/commit.md#inline-entries).

A commit writes the control record anyway: a small slice costs it a few bytes more, and its producer no PUT and no wait for the flush. What
that costs the metadata store is bounded by a budget of commits. A batch stays behind what was gathered of its partition before: it never
overtakes.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from storage.limits import INLINE_BYTES_MAX, INLINE_UNCOMPACTED_BYTES_MAX
from storage.log.batch import Batch
from storage.log.lane import Commit, Lane
from storage.log.limits import LogLimits

BURST_S: Final = 0.25
"""How much unused budget is kept, to be spent at once."""
CONFLICTS_MAX: Final = 0.5
"""The share of conflicts, among the last commits of a partition, above which its batches are gathered."""
FULL_S: Final = 10.0
"""How long the batches of a partition are gathered after its control record had no room: for an object it needs less."""


@dataclass(frozen=True, slots=True)
class InlineSettings:
    """A slice of at most `bytes_max` travels in its commit; 0: none does. At most `commits_per_s` commits of a broker begin without having
    gathered; None: any number. None begins while `uncompacted_bytes_max` are not compacted.
    """

    bytes_max: int
    commits_per_s: float | None = None
    uncompacted_bytes_max: int = INLINE_UNCOMPACTED_BYTES_MAX

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
    """The next commit of its partition has as much as it may carry, or the control record had no room."""
    CONFLICTS = "conflicts"
    """Another broker commits to the partition at the same time."""
    BUDGET = "budget"
    UNCOMPACTED = "uncompacted"
    """Too much of what commits carried lies in the metadata store."""
    MANY = "many"
    """As many commits that carry batches begin already as may at once."""


class CommitBudget:
    """A bucket of tokens: `per_s` of them come in a second, and `kept_max` are kept, by default as many as come in BURST_S."""

    def __init__(self, per_s: float | None, *, kept_max: float | None = None) -> None:
        self._per_s = per_s
        self._kept_max = max(1.0, (per_s or 0.0) * BURST_S) if kept_max is None else kept_max
        self._kept = self._kept_max
        self._at_s = 0.0

    def take(self, now_s: float) -> bool:
        if self._per_s is None:
            return True
        self._kept = min(self._kept_max, self._kept + max(0.0, now_s - self._at_s) * self._per_s)
        self._at_s = now_s
        if self._kept < 1.0:
            return False
        self._kept -= 1.0
        return True


def joined(lane: Lane, batch: Batch, settings: InlineSettings, limits: LogLimits) -> Commit | None:
    """The commit that the batch would join; None: it would begin one of its own.

    It joins the last one of its lane while that waits for its turn: one that is open may be reading the record that it will decide on,
    which would be older than the batch. A small batch begins a commit behind one that has no room for it, as long as the lane is short:
    producers that write at the same moment would wait for a flush for that alone.
    """
    commits = lane.commits
    if not commits:
        return None
    last = commits[-1]
    if not last.is_inline or last.is_open or last.is_given_up:
        return None
    bytes_max = settings.bytes_max if last.size_bytes <= settings.bytes_max else limits.larger_commit_bytes_max
    is_full = last.size_bytes + batch.size_bytes > bytes_max
    return None if is_full and batch.size_bytes <= settings.bytes_max and len(commits) < limits.lane_commits_max else last


def becomes_larger(batch: Batch, last: Commit | None, settings: InlineSettings) -> bool:
    """Whether the batch makes a commit larger than those that carry batches at any time: `last`, or one of its own."""
    if last is None:
        return batch.size_bytes > settings.bytes_max
    return last.size_bytes <= settings.bytes_max < last.size_bytes + batch.size_bytes


def why_gathered(
    lane: Lane, batch: Batch, last: Commit | None, settings: InlineSettings, now_s: float, limits: LogLimits
) -> Gathers | None:
    """None if the batch may travel in a commit: in `last`, which it has `joined`, or in one of its own, as far as budgets go."""
    is_due = not becomes_larger(batch, last, settings) or now_s - lane.larger_s >= limits.larger_commit_every_s
    size_bytes = batch.size_bytes + (last.size_bytes if last is not None else 0)
    if size_bytes > max(limits.larger_commit_bytes_max, settings.bytes_max) or not is_due:
        return Gathers.LARGE if batch.size_bytes > settings.bytes_max else Gathers.FULL
    if lane.gathered:
        return Gathers.QUEUED
    if had_no_room(lane, now_s):
        return Gathers.FULL
    return Gathers.CONFLICTS if last is None and lane.conflict_share > CONFLICTS_MAX else None


def had_no_room(lane: Lane, now_s: float) -> bool:
    """Whether batches of the partition are better stored as an object."""
    return now_s - lane.full_s < FULL_S
