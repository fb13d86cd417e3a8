"""A partition's commits in this broker, in order; one is open at a time (I6)."""

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from storage.errors import StorageError
from storage.log.batch import Batch
from storage.log.decide import UnknownAttempts
from storage.log.producer_pages import NO_PAGES, Pages
from storage.log.producers import PermittedStart
from storage.log.writers import BrokerEpoch
from storage.objects.shared_blocks import CommittedObject
from storage.vocabulary import ObjectId, PartitionId

if TYPE_CHECKING:
    from storage.log.partition import PartitionLog

LOSSES_KEPT_MAX: Final = 1_000
"""A batch that arrived before as many losses is refused: nobody knows whether one of them was ahead of it."""
CONFLICT_MEMORY: Final = 0.75
"""How much of the share of conflicts the next commit leaves: four conflicts in a row make it two thirds."""

Sources = frozenset[int]
"""Connections, by identity."""


class Lane:
    """One partition's commits, in the order in which they were sealed. Written by the functions below, but for `gathered`.

    `is_busy`: the first of `commits` is open. `committed_epoch` is the last broker epoch under which one of them was applied.
    `gathered` are the batches that wait to be sealed: written by storage/log/append.py. `conflict_share` of the last commits, the newest
    counting most, lost their first CAS to another broker. `larger_s`: when one of them was last larger than those that carry batches at
    any time (storage/log/inline.py). `full_s`: when the control record last had no room for one of them.
    """

    __slots__ = ("commits", "committed_epoch", "conflict_share", "full_s", "gathered", "is_busy", "larger_s")

    def __init__(self) -> None:
        self.commits: list[Commit] = []
        self.is_busy = False
        self.committed_epoch = -1
        self.gathered: list[Batch] = []
        self.conflict_share = 0.0
        self.larger_s = float("-inf")
        self.full_s = float("-inf")

    @property
    def is_empty(self) -> bool:
        return not (self.gathered or self.commits or self.is_busy)


class InFlight:
    """The commits of this broker that have no outcome yet, oldest first, and the bytes of their batches."""

    def __init__(self) -> None:
        self._commits: dict[Commit, None] = {}
        self.size_bytes = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def add(self, commit: "Commit") -> None:
        if not self._commits:
            self._idle.clear()
        self._commits[commit] = None
        self.size_bytes += commit.size_bytes

    def grow(self, commit: "Commit", size_bytes: int) -> None:
        """`commit` has more batches."""
        commit.size_bytes += size_bytes
        self.size_bytes += size_bytes

    def split(self, commit: "Commit", rest: "Commit") -> None:
        """Some of the batches of `commit` went to `rest`."""
        commit.size_bytes -= rest.size_bytes
        self._commits[rest] = None

    def remove(self, commit: "Commit") -> None:
        del self._commits[commit]
        self.size_bytes -= commit.size_bytes
        if not self._commits:
            self._idle.set()

    def __contains__(self, commit: "Commit") -> bool:
        return commit in self._commits

    def __len__(self) -> int:
        return len(self._commits)

    def overdue(self, now_s: float) -> Iterator["Commit"]:
        """The commits past their deadline, except a carried one, which is found once the commits sealed before it was carried have gone."""
        for commit in tuple(self._commits):
            if commit.deadline_s > now_s:
                return
            yield commit

    async def wait_idle(self) -> None:
        await self._idle.wait()


@dataclass(slots=True, eq=False)
class Commit:
    """The slice of one flush for one partition on its way into the log.

    All attempts carry the same batches under one `commit_seq`, unless every attempt before is known to have failed. `unknown`: attempts had
    no answer, so every later read of the control record is asked for our number first, until one shows that none can apply any more
    (storage/log/decide.py). `is_sent`: an attempt is on its way. `is_given_up`: the clients were answered; what is left is to make sure
    that no attempt can still land.
    """

    log: "PartitionLog"
    batches: list[Batch]
    object_id: ObjectId
    deadline_s: float
    in_flight: InFlight
    size_bytes: int = 0
    """What it counts in `in_flight`."""
    is_inline: bool = False
    """It carries its batches: there is no object of its `object_id`."""
    is_uploaded: bool = False
    epoch: int = -1
    commit_seq: int = -1
    attempt: int = 0
    is_sent: bool = False
    unknown: UnknownAttempts | None = None
    is_given_up: bool = False
    must_drain: bool = False
    cause: str = ""
    """What kept the last attempt from its outcome, in words."""
    pages: Pages = field(default_factory=dict)
    unreadable: StorageError | None = None
    """Why a page that it needs could not be read, though it was there."""
    unknown_producers: tuple[Batch, ...] = ()
    """Batches that may not be appended unless it is proved that nothing of their producers is on its way."""
    begin_at: Mapping[int, PermittedStart] | None = None
    """By producer, with which sequence it may begin by such a proof; None while none was looked for."""
    committing: CommittedObject | None = None
    """Its object, where others of the machine are to find it once it is applied."""

    @property
    def has_begun(self) -> bool:
        return self.commit_seq >= 0

    @property
    def is_awaited(self) -> bool:
        """Somebody has no answer yet."""
        return any(not batch.is_settled for batch in self.batches)

    @property
    def is_open(self) -> bool:
        lane = self.log.lane
        return lane.is_busy and lane.commits[0] is self

    def begin(self, epoch: BrokerEpoch) -> None:
        """Take a number, once. The number stays, whatever epoch the broker has later."""
        if not self.has_begun:
            self.epoch = epoch.current
            self.commit_seq = epoch.next_commit_seq()
        self.attempt += 1

    def settle_all(self, error: StorageError, now_s: float) -> Sources:
        """Answer those that wait. Returns whose batches these were: what they sent behind them is for `refuse_behind`.

        Not those that were answered before: what is behind them by now is, or comes after, their retry.
        """
        waiting = [batch for batch in self.batches if not batch.is_settled]
        for batch in waiting:
            if batch.has_sequence:
                self.log.producers.lose(batch.producer_id, batch.first_seq, now_s)
            batch.settle(error)
        return frozenset([id(batch.append.source) for batch in waiting])


def enter(commit: Commit) -> None:
    commit.log.lane.commits.append(commit)
    commit.in_flight.add(commit)


def carry(commit: Commit, count: int) -> None:
    """Leave the batches from the `count`-th on to a commit of their own, right behind this one."""
    assert 0 < count < len(commit.batches)
    batches = commit.batches[count:]
    size_bytes = sum([batch.size_bytes for batch in batches])
    rest = Commit(
        commit.log,
        batches,
        commit.object_id,
        commit.deadline_s,
        commit.in_flight,
        size_bytes,
        is_inline=commit.is_inline,
        is_uploaded=True,
        committing=commit.committing,
    )
    if commit.committing is not None:
        commit.committing.note_split()
    commit.batches = commit.batches[:count]
    commit.log.lane.commits.insert(1, rest)
    commit.in_flight.split(commit, rest)


def take(commit: Commit) -> bool:
    """Open the commit if it is its lane's turn."""
    lane = commit.log.lane
    if lane.is_busy or not commit.is_uploaded or not lane.commits or lane.commits[0] is not commit:
        return False
    lane.is_busy = True
    return True


def note_applied(commit: Commit) -> None:
    """`writers` has had an entry of its epoch since."""
    lane = commit.log.lane
    lane.committed_epoch = commit.epoch
    if commit.committing is not None:
        commit.committing.note_applied()
        commit.committing = None
    if commit.attempt == 1:
        lane.conflict_share *= CONFLICT_MEMORY


def note_conflict(commit: Commit) -> None:
    if commit.attempt == 1:
        lane = commit.log.lane
        lane.conflict_share = lane.conflict_share * CONFLICT_MEMORY + (1 - CONFLICT_MEMORY)


def note_larger(lane: Lane, now_s: float) -> None:
    """A commit has become larger than those that carry batches at any time."""
    lane.larger_s = now_s


def note_full(lane: Lane, now_s: float) -> None:
    """A commit came to nothing because the control record would have been too large."""
    lane.full_s = now_s


def join(commit: Commit, batch: Batch) -> None:
    """Add a batch to an inline commit that has not begun."""
    assert commit.is_inline, f"its batches lie in an object: {commit.log.partition}"
    assert not commit.has_begun, f"begun: {commit.log.partition}"
    batch.carried = bytes(batch.view)
    commit.batches.append(batch)
    commit.in_flight.grow(commit, batch.size_bytes)


def release(commit: Commit) -> Commit | None:
    """End the open commit and open the next one of its lane if that is uploaded."""
    lane = commit.log.lane
    assert lane.is_busy, f"released twice: {commit.log.partition}"
    assert lane.commits[0] is commit, f"not the open commit: {commit.log.partition}"
    del lane.commits[0]
    lane.is_busy = False
    return _end(commit)


def leave(commit: Commit) -> Commit | None:
    """End a commit that was answered before it was opened; open the one behind it if it was in its way."""
    assert not commit.is_open, f"open: {commit.log.partition}"
    commit.log.lane.commits.remove(commit)
    return _end(commit)


def _end(commit: Commit) -> Commit | None:
    waiting = commit.log.lane.commits
    commit.in_flight.remove(commit)
    commit.batches = []
    commit.pages, commit.unknown, commit.committing = NO_PAGES, None, None
    if waiting and take(waiting[0]):
        return waiting[0]
    return None


def refuse_behind(commit: Commit, sources: Sources, error: StorageError) -> None:
    """A batch of these `sources` was lost before it was committed: what follows it in the lane, or is gathered, must not be appended before
    its retry. (`decide` would refuse most followers with a sequence by itself, but not those of a stranger that may begin late: ADR 9.)
    """
    if not sources:
        return
    lane = commit.log.lane
    is_behind = False
    for follower in lane.commits:
        if is_behind:
            _refuse(follower.batches, sources, error)
        is_behind = is_behind or follower is commit
    _refuse(lane.gathered, sources, error)


class Losses:
    """The losses of this broker, numbered. A batch may have arrived behind a lost one without being in its lane: its topic was looked up,
    or it was read or recompressed in a thread. `refuse_behind` does not find it there; by the number that it arrived under it is known.
    """

    def __init__(self) -> None:
        self.count = 0
        self._last: deque[tuple[int, PartitionId, Sources]] = deque(maxlen=LOSSES_KEPT_MAX)

    def note(self, partition: PartitionId, sources: Sources) -> None:
        """Batches of these sources were lost."""
        if sources:
            self.count += 1
            self._last.append((self.count, partition, sources))

    def are_ahead(self, arrived: int, partition: PartitionId, source: object) -> bool:
        """Whether a batch of that source and partition was lost since `arrived`, which is a `count`. True as well where too many were."""
        if arrived == self.count:
            return False
        if self._last[0][0] > arrived + 1:
            return True
        return any(number > arrived and lost == partition and id(source) in sources for number, lost, sources in self._last)


def _refuse(batches: list[Batch], sources: Sources, error: StorageError) -> None:
    for batch in batches:
        if id(batch.append.source) in sources:
            batch.settle(error)
