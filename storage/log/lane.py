"""A partition's commits in this broker, in order; one is open at a time (I6)."""

from dataclasses import dataclass, field

from storage.errors import StorageError, Unavailable
from storage.log.batch import Batch
from storage.log.decide import Decision
from storage.log.partition import PartitionLog
from storage.vocabulary import ObjectId


@dataclass(slots=True, eq=False)
class Commit:
    """The slice of one flush for one partition on its way into the log.

    All attempts carry the same batches under one `commit_seq`. `unsure`: an attempt ended unknown, so every later read of the control
    record is asked for our number first (DESIGN.md §5, model F-conflict). `is_abandoned`: the clients were told that the outcome is
    unknown; what is left is to make sure that no attempt can still land.
    """

    log: PartitionLog
    batches: list[Batch]
    object_id: ObjectId
    deadline_s: float
    is_uploaded: bool = False
    epoch: int = -1
    commit_seq: int = -1
    attempt: int = 0
    unsure: bool = False
    unsure_version: int = -1
    unsure_decisions: dict[int, Decision] = field(default_factory=dict)
    is_abandoned: bool = False
    must_drain: bool = False

    @property
    def has_begun(self) -> bool:
        return self.commit_seq >= 0

    def begin(self, epoch: int) -> None:
        """Take a number, once. The number stays, whatever epoch the broker has later."""
        if not self.has_begun:
            self.epoch = epoch
            self.log.commit_seq += 1
            self.commit_seq = self.log.commit_seq
        self.attempt += 1

    def settle_all(self, error: StorageError) -> None:
        for batch in self.batches:
            if batch.has_sequence and not batch.is_settled:
                self.log.lose(batch.producer_id, batch.first_seq)
            batch.settle(error)


def take(commit: Commit) -> bool:
    """Open the commit if it is its lane's turn."""
    log = commit.log
    if log.lane_busy or not commit.is_uploaded or not log.lane or log.lane[0] is not commit:
        return False
    log.lane_busy = True
    return True


def release(commit: Commit) -> Commit | None:
    """Close the open commit and open the next one of its lane if that is uploaded."""
    log = commit.log
    assert log.lane_busy, f"released twice: {log.partition}"
    assert log.lane[0] is commit, f"not the open commit: {log.partition}"
    log.lane.popleft()
    log.lane_busy = False
    if log.lane and take(log.lane[0]):
        return log.lane[0]
    return None


def refuse_followers(commit: Commit, error: StorageError) -> None:
    """An earlier batch of these sources was lost before it was committed: what follows it in the lane must not be appended before its
    retry. (`decide` would refuse most followers with a sequence by itself, but not those of a producer it has never seen.)
    """
    sources = {id(batch.append.source) for batch in commit.batches}
    for follower in commit.log.lane:
        if follower is commit or follower.has_begun:
            continue
        for batch in follower.batches:
            if id(batch.append.source) in sources:
                batch.settle(error)


def expire_followers(log: PartitionLog, now_s: float) -> None:
    """Answer commits that waited too long behind an open one; nothing of them was sent, so they are dropped for good."""
    for follower in log.lane:
        if not follower.has_begun and follower.deadline_s <= now_s:
            follower.settle_all(Unavailable(f"gave up waiting for an earlier commit: partition={log.partition}"))
