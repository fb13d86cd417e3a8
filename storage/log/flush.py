"""The rules of when a flush is due, and which batches go early instead, pure (docs/internals/design/commit.md).

`Appender` (writer.py) applies them, and beside them what it alone knows: early objects that wait, the format level, commits under way.

An open flush is due on bytes, partitions, quiet or time; time is a leading-edge limit (#the-parts). What goes early waits for no object:
its commit gives it a place in one that is stored later (#early-slices). A budget of bytes bounds what that costs the metadata store, and a
load that is beyond it is better off with objects. A batch stays behind what was gathered of its partition before: it never overtakes.
"""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from storage.limits import EARLY_SLICE_BYTES_MAX, FLUSH_PARTITIONS_MAX, KIB, MIB
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
KEPT_FOR_SMALL: Final = 1 / 4
"""The part of what is kept that only small slices may take."""
SMALL_BYTES: Final = 32 * KIB
"""Room for the `batch.size` of Java's producer, 16 KiB, and what the commit of a batch costs: one that sends as fast as it may is held by
the budget then. As objects its five batches under way would be a tenth of that.
"""
COMMIT_COST_BYTES: Final = 2 * KIB
"""What a commit costs the metadata store beside its bytes: it writes the manifest again."""
GATHERS_S: Final = 0.5
"""How long a partition gathers that the budget had no room for; twice as long each time in a row, up to GATHERS_S_MAX."""
GATHERS_S_MAX: Final = 8.0
GATHERS_FORGOTTEN_S: Final = 10.0
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
class EarlySettings:
    """Bytes of early slices that a broker commits in a second, each commit counted as COMMIT_COST_BYTES more; 0: none. One whose turn comes
    within `wait_max_s` waits for it.
    """

    bytes_per_s: float
    wait_max_s: float = 0.1

    def __post_init__(self) -> None:
        assert self.bytes_per_s >= 0, f"a negative budget: {self.bytes_per_s}"


NO_EARLY: Final = EarlySettings(bytes_per_s=0)
ON_OXIA: Final = EarlySettings(bytes_per_s=4 * MIB, wait_max_s=0.1)
ON_SQLITE: Final = EarlySettings(bytes_per_s=32 * MIB, wait_max_s=0.02)


def early_settings(bytes_per_s: int | None, *, is_shared: bool) -> EarlySettings:
    """The budget that `storage.early_bytes_per_second` says; None: what suits the metadata store, which several machines may share."""
    usual = ON_OXIA if is_shared else ON_SQLITE
    return usual if bytes_per_s is None else replace(usual, bytes_per_s=bytes_per_s)


class Gathered(StrEnum):
    """Why a batch is gathered for a flush instead of going early."""

    OFF = "off"
    """The format level in force does not allow it yet, or the broker stops."""
    LARGE = "large"
    QUEUED = "queued"
    """Others of its partition are gathered already."""
    FULL = "full"
    """The next commit of its partition has as much as it may have, or the manifest had no room."""
    CONFLICTS = "conflicts"
    """Another broker commits to the partition at the same time."""
    BUDGET = "budget"
    UNSTORED = "unstored"
    """Too much of what went early waits for the object store."""


class ByteBudget:
    """Bytes that go early, spread evenly: each slice has its turn behind those before it, and what was not used for BURST_S is kept.

    Above a quarter of what is kept all have their turn. Below it those that are not small have none: a bulk load leaves it to small ones.
    """

    def __init__(self, settings: EarlySettings) -> None:
        self._per_s = settings.bytes_per_s
        self._wait_max_s = settings.wait_max_s
        self._free_s = float("-inf")
        """When all that has its turn will have had it."""

    def take(self, size_bytes: int, now_s: float) -> float | None:
        """The seconds until the turn of `size_bytes` comes; None: more than they may wait."""
        free_s = max(self._free_s, now_s - BURST_S)
        behind_s = free_s + size_bytes / self._per_s
        if size_bytes > SMALL_BYTES and behind_s > now_s - BURST_S * KEPT_FOR_SMALL:
            return None
        # What is larger than all that is kept has its turn when that is whole.
        wait_s = max(0.0, behind_s - now_s)
        if wait_s > self._wait_max_s and free_s > now_s - BURST_S:
            return None
        self._free_s = behind_s
        return wait_s if free_s > now_s - BURST_S else 0.0


def joined(queue: "CommitQueue", batch: Batch, limits: LogLimits) -> "Commit | None":
    """The commit that the batch would join; None: it would begin one of its own.

    It joins the last one of its commit queue while that waits for its turn: one that is open may be reading the record that it will decide
    on, which would be older than the batch. A batch begins a commit behind one that has no room for it, as long as the commit queue is
    short: producers that write at the same moment would wait for a flush for that alone.
    """
    commits = queue.commits
    if not commits:
        return None
    last = commits[-1]
    if not last.is_early or last.has_begun or last.is_open or last.is_given_up:
        return None
    is_full = last.size_bytes + batch.size_bytes > EARLY_SLICE_BYTES_MAX
    return None if is_full and len(commits) < limits.queued_commits_max else last


def why_gathered(queue: "CommitQueue", batch: Batch, last: "Commit | None", now_s: float) -> Gathered | None:
    """None if the batch may go early: in `last`, which it has `joined`, or in a commit of its own, as far as the budget goes."""
    if batch.size_bytes > EARLY_SLICE_BYTES_MAX:
        return Gathered.LARGE
    if last is not None and last.size_bytes + batch.size_bytes > EARLY_SLICE_BYTES_MAX:
        return Gathered.FULL
    if queue.gathered:
        return Gathered.QUEUED
    if now_s < queue.gathers_until_s:
        return Gathered.BUDGET
    if now_s - queue.full_s < FULL_S:
        return Gathered.FULL
    return Gathered.CONFLICTS if last is None and queue.conflict_share > CONFLICTS_MAX else None
