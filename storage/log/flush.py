"""The rules of when a flush is due, and which batches may travel in their commit instead, pure (docs/internals/design/commit.md).

`Appender` (writer.py) applies them, and beside them what it alone knows: the budget, the backlog, the format level, commits under way.

An open flush is due on bytes, partitions, quiet or time; time is a leading-edge limit (#the-parts). A commit writes the manifest
anyway: a small slice costs it a few bytes more, and its producer no PUT and no wait for the flush (#inline-entries). A budget of commits
bounds what that costs the metadata store. A batch stays behind what was gathered of its partition before: it never overtakes.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from storage.limits import FLUSH_PARTITIONS_MAX, INLINE_BYTES_MAX, INLINE_UNCOMPACTED_BYTES_MAX, MIB
from storage.log.batch import Batch
from storage.log.limits import LogLimits

if TYPE_CHECKING:
    from storage.log.partition import Commit, CommitQueue


L = TypeVar("L")
"""What identifies a partition to the caller; only hashed here."""

GATHER_S: Final = 0.005
"""How long a flush that comes after a pause waits for company."""


QUIET_S: Final = 0.02
"""When nothing has arrived for this long, producers have all under way that they may have: no more comes until a flush."""
QUIET_PER_INTERVAL: Final = 4
ACK_BURST_S: Final = 0.005
"""As QUIET_S, of an ack burst: no flush is under way whose answer could make anyone send more."""
ACK_BURST_BEGINS_S: Final = 0.01
"""Producers that waited for an answer send again within this: their way to the broker and back, and the time to make a request. They may
begin ACK_BURST_S before the flush has ended: its shards answer one after the other.
"""
ACK_BURST_SHARE: Final = 3 / 4
"""When this part of the bytes that were answered has come again, few producers are missing."""
ACK_BURST_QUIETS_MIN: Final = 2
"""Times what is worth a PUT. A smaller ack burst is paced: producers that are held by a rate, too, would make ever smaller ones."""
ACK_BURST_GROWS_MAX: Final = 1.5
"""A larger one, in ratio to what was answered, is what was made meanwhile: once it is gone, little would come for the next flush."""
ACK_BURST_PACED_PARTS: Final = 2
"""A paced ack burst may be half of what is worth a PUT otherwise: its producers wait as those of the large one before it did."""
BURST_S: Final = 0.25
"""How much unused budget is kept, to be spent at once."""
CONFLICTS_MAX: Final = 0.5
"""The share of conflicts, among the last commits of a partition, above which its batches are gathered."""
FULL_S: Final = 10.0
"""How long the batches of a partition are gathered after its manifest had no room: for an object it needs less."""


class Trigger(StrEnum):
    BYTES = "bytes"
    QUIET = "quiet"
    PARTITIONS = "partitions"
    TIME = "time"
    DRAIN = "drain"


@dataclass(frozen=True, slots=True)
class FlushSettings:
    """`interval_s` bounds the PUTs of a broker from above at 1 / interval_s, unless bytes force more, or producers that wait."""

    interval_s: float = 0.25
    bytes_max: int = 8 * MIB
    partitions_max: int = FLUSH_PARTITIONS_MAX
    gather_s: float = GATHER_S

    def __post_init__(self) -> None:
        assert self.interval_s >= 0, f"negative interval: {self.interval_s}"
        assert self.bytes_max > 0, f"empty flushes: {self.bytes_max}"


@dataclass(slots=True)
class LastFlush:
    """What the pace of the next flush depends on: the one sealed last, and when the last of those under way ended."""

    began_s: float = float("-inf")
    size_bytes: int = 0
    batch_count: int = 0
    under_way: int = 0
    ended_s: float = float("-inf")

    def begin(self, flush: "OpenFlush[L]") -> None:
        self.size_bytes, self.batch_count = flush.size_bytes, flush.batch_count
        self.under_way += 1

    def end(self, now_s: float) -> None:
        self.under_way -= 1
        self.ended_s = now_s


@dataclass(slots=True)
class OpenFlush(Generic[L]):
    """The flush that gathers now. Plain state: no awaits, no clock of its own."""

    batches: dict[L, list[Batch]] = field(default_factory=dict)
    size_bytes: int = 0
    batch_count: int = 0
    opened_s: float = 0.0
    added_s: float = 0.0

    def add(self, log: L, batch: Batch, *, now_s: float) -> list[Batch]:
        """Returns what is gathered for `log` now, this batch included."""
        if not self.batches:
            self.opened_s = now_s
        self.added_s = now_s
        gathered = self.batches.get(log)
        if gathered is None:
            gathered = self.batches[log] = [batch]
        else:
            gathered.append(batch)
        self.size_bytes += batch.size_bytes
        self.batch_count += 1
        return gathered

    def is_full(self, settings: FlushSettings) -> Trigger | None:
        if self.size_bytes >= settings.bytes_max:
            return Trigger.BYTES
        if len(self.batches) >= settings.partitions_max:
            return Trigger.PARTITIONS
        return None

    def is_ack_burst(self, last: LastFlush) -> bool:
        """Whether producers that all waited for the last flush have sent again, most of them at least. A load that does not wait for
        answers sends while a flush is under way, so it makes none.
        """
        return (
            last.under_way == 0
            and -ACK_BURST_S <= self.opened_s - last.ended_s <= ACK_BURST_BEGINS_S
            and (self.size_bytes >= ACK_BURST_SHARE * last.size_bytes or self.batch_count >= last.batch_count)
        )

    def quiet_s(self, settings: FlushSettings, last: LastFlush, *, quiet_bytes_min: int) -> float | None:
        """When it is due if nothing else arrives; None: not before time makes it due.

        `quiet_bytes_min`: what is worth a PUT then. Bursts make QUIET_PER_INTERVAL flushes at most. A large ack burst waits for no
        interval, and if it is whole hardly for more to come.
        """
        is_ack_burst = self.size_bytes >= quiet_bytes_min // ACK_BURST_PACED_PARTS and self.is_ack_burst(last)
        if is_ack_burst and ACK_BURST_QUIETS_MIN * quiet_bytes_min <= self.size_bytes <= ACK_BURST_GROWS_MAX * last.size_bytes:
            is_whole = self.size_bytes >= last.size_bytes or self.batch_count >= last.batch_count
            return self.added_s + (ACK_BURST_S if is_whole else QUIET_S)
        if is_ack_burst or self.size_bytes >= quiet_bytes_min:
            return max(self.added_s + QUIET_S, last.began_s + settings.interval_s / QUIET_PER_INTERVAL)
        return None

    def due_s(self, settings: FlushSettings, last: LastFlush) -> float:
        """When time alone makes it due: at once (after the gather time) if the last flush began an interval ago, else when that is over."""
        return max(self.opened_s + settings.gather_s, last.began_s + settings.interval_s)


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


class NotInlined(StrEnum):
    """Why a batch is gathered instead."""

    OFF = "off"
    """The format level in force does not allow it yet, or the broker stops."""
    LARGE = "large"
    QUEUED = "queued"
    """Others of its partition are gathered already."""
    FULL = "full"
    """The next commit of its partition has as much as it may carry, or the manifest had no room."""
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


def joined(queue: "CommitQueue", batch: Batch, settings: InlineSettings, limits: LogLimits) -> "Commit | None":
    """The commit that the batch would join; None: it would begin one of its own.

    It joins the last one of its commit queue while that waits for its turn: one that is open may be reading the record that it will decide
    on, which would be older than the batch. A small batch begins a commit behind one that has no room for it, as long as the commit queue
    is short: producers that write at the same moment would wait for a flush for that alone.
    """
    commits = queue.commits
    if not commits:
        return None
    last = commits[-1]
    if not last.is_inline or last.is_open or last.is_given_up:
        return None
    bytes_max = settings.bytes_max if last.size_bytes <= settings.bytes_max else limits.larger_commit_bytes_max
    is_full = last.size_bytes + batch.size_bytes > bytes_max
    return None if is_full and batch.size_bytes <= settings.bytes_max and len(commits) < limits.queued_commits_max else last


def becomes_larger(batch: Batch, last: "Commit | None", settings: InlineSettings) -> bool:
    """Whether the batch makes a commit larger than those that carry batches at any time: `last`, or one of its own."""
    if last is None:
        return batch.size_bytes > settings.bytes_max
    return last.size_bytes <= settings.bytes_max < last.size_bytes + batch.size_bytes


def why_gathered(
    queue: "CommitQueue", batch: Batch, last: "Commit | None", settings: InlineSettings, now_s: float, limits: LogLimits
) -> NotInlined | None:
    """None if the batch may travel in a commit: in `last`, which it has `joined`, or in one of its own, as far as budgets go."""
    is_due = not becomes_larger(batch, last, settings) or now_s - queue.larger_s >= limits.larger_commit_every_s
    size_bytes = batch.size_bytes + (last.size_bytes if last is not None else 0)
    if size_bytes > max(limits.larger_commit_bytes_max, settings.bytes_max) or not is_due:
        return NotInlined.LARGE if batch.size_bytes > settings.bytes_max else NotInlined.FULL
    if queue.gathered:
        return NotInlined.QUEUED
    if had_no_room(queue, now_s):
        return NotInlined.FULL
    return NotInlined.CONFLICTS if last is None and queue.conflict_share > CONFLICTS_MAX else None


def had_no_room(queue: "CommitQueue", now_s: float) -> bool:
    """Whether batches of the partition are better stored as an object."""
    return now_s - queue.full_s < FULL_S
