"""What members of a group did and what was seen of it, in the order of its happening, and the judgement of that.

A commit and a look have two times: between them it happened. Times are those of a monotonic clock that all threads share.
"""

import itertools
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from runtime.clock import SystemClock

_clock = SystemClock()


class Assigned(NamedTuple):
    """A member got its share of a generation."""

    member: str
    generation: int
    partitions: frozenset[int]
    at_s: float


class Processed(NamedTuple):
    """A member was handed a record, and has since when it got the partition."""

    member: str
    partition: int
    offset: int
    number: int
    assigned_s: float
    at_s: float


class AcknowledgedCommit(NamedTuple):
    """A commit that was acknowledged: the next offset to read."""

    member: str
    partition: int
    offset: int
    began_s: float
    at_s: float


class Tried(NamedTuple):
    """A commit that was not refused, acknowledged or not. `at_s`: when its member was answered or gave up; infinite if it may go on."""

    member: str
    partition: int
    offset: int
    began_s: float
    at_s: float


class FetchedOffsets(NamedTuple):
    """What one OffsetFetch of broker `port` answered, by partition; -1 where nothing was committed."""

    port: int
    offsets: Mapping[int, int]
    began_s: float
    at_s: float


@dataclass
class GroupHistory:
    """Appended to by many threads; judged when they have ended."""

    assigned: list[Assigned] = field(default_factory=list)
    processed: list[Processed] = field(default_factory=list)
    committed: list[AcknowledgedCommit] = field(default_factory=list)
    tried: list[Tried] = field(default_factory=list)
    seen: list[FetchedOffsets] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, *facts: Assigned | Processed | AcknowledgedCommit | Tried | FetchedOffsets) -> None:
        with self._lock:
            for fact in facts:
                match fact:
                    case Assigned():
                        self.assigned.append(fact)
                    case Processed():
                        self.processed.append(fact)
                    case AcknowledgedCommit():
                        self.committed.append(fact)
                    case Tried():
                        self.tried.append(fact)
                    case FetchedOffsets():
                        self.seen.append(fact)

    @property
    def processed_count(self) -> int:
        with self._lock:
            return len({(fact.partition, fact.offset) for fact in self.processed})

    def resumed_s(self, since_s: float) -> float | None:
        """After how long a commit that began after `since_s` was acknowledged; None: not yet."""
        with self._lock:
            ended = [fact.at_s for fact in self.committed if fact.began_s >= since_s]
        return min(ended) - since_s if ended else None

    def recovered_s(self, since_s: float, partitions: int) -> float | None:
        """After how long every partition had an acknowledged commit that began after `since_s`; None: not yet."""
        with self._lock:
            first: dict[int, float] = {}
            for fact in self.committed:
                if fact.began_s >= since_s:
                    first.setdefault(fact.partition, fact.at_s)
        return max(first.values()) - since_s if len(first) == partitions else None


def backwards(history: GroupHistory) -> list[str]:
    """Every look that showed less than an earlier look had shown, or than an earlier commit was acknowledged for."""
    facts = [(fact.began_s, fact.at_s, fact.partition, fact.offset, f"a commit of {fact.member}") for fact in history.committed]
    looks: list[tuple[float, float, int, int, str]] = []
    for look in history.seen:
        looks += [(look.began_s, look.at_s, partition, offset, f"a look at {look.port}") for partition, offset in look.offsets.items()]
    # In the order of their ends, so that all that ended before a look began has been taken in when the look is judged.
    ended = sorted(facts + looks, key=lambda fact: fact[1])
    found: list[str] = []
    highest: dict[int, tuple[int, str]] = {}
    position = 0
    for began_s, _, partition, offset, what in sorted(looks):
        while position < len(ended) and ended[position][1] < began_s:
            _, _, its_partition, its_offset, its_what = ended[position]
            if its_offset > highest.get(its_partition, (-1, ""))[0]:
                highest[its_partition] = its_offset, its_what
            position += 1
        if partition in highest and offset < highest[partition][0]:
            before, who = highest[partition]
            found.append(f"partition {partition}: {what} saw {offset} after {who} had {before}")
    return found


def shown_from_nowhere(history: GroupHistory) -> list[str]:
    """Offsets that a look showed though nobody was committing them: every such attempt had ended when an earlier look showed another.

    A commit whose outcome its member never heard may have applied, but the first look after it settles that. For histories with `tried`.
    """
    found: list[str] = []
    ended = sorted(history.seen, key=lambda look: look.at_s)
    before: FetchedOffsets | None = None
    position = 0
    for look in sorted(history.seen, key=lambda look: look.began_s):
        while position < len(ended) and ended[position].at_s < look.began_s:
            if before is None or ended[position].began_s > before.began_s:
                before = ended[position]
            position += 1
        if before is None:
            continue
        for partition, offset in look.offsets.items():
            if offset == before.offsets[partition]:
                continue
            attempts = [one for one in history.tried if (one.partition, one.offset) == (partition, offset)]
            if not any(one.began_s <= look.at_s and one.at_s >= before.began_s for one in attempts):
                found.append(
                    f"partition {partition}: a look at {look.at_s:.3f} s saw {offset} after one at {before.began_s:.3f} s saw "
                    f"{before.offsets[partition]} and nobody committed it meanwhile"
                )
    return found


def reread_below_a_commit(history: GroupHistory) -> list[str]:
    """Records that a member got again although a commit past them had been acknowledged before it got the partition."""
    commits = sorted(history.committed, key=lambda commit: commit.at_s)
    found: list[str] = []
    high: dict[int, int] = {}
    position = 0
    for fact in sorted(history.processed, key=lambda fact: fact.assigned_s):
        while position < len(commits) and commits[position].at_s < fact.assigned_s:
            high[commits[position].partition] = max(high.get(commits[position].partition, -1), commits[position].offset)
            position += 1
        if fact.offset < high.get(fact.partition, -1):
            found.append(f"partition {fact.partition}: {fact.member} got {fact.offset} again below {high[fact.partition]}")
    return found


def committed_unprocessed(history: GroupHistory) -> list[str]:
    """Commits of offsets up to which not all records had been processed."""
    offsets: defaultdict[int, list[tuple[float, int]]] = defaultdict(list)
    for fact in history.processed:
        offsets[fact.partition].append((fact.at_s, fact.offset))
    commits: defaultdict[int, list[AcknowledgedCommit]] = defaultdict(list)
    for commit in history.committed:
        commits[commit.partition].append(commit)
    found: list[str] = []
    for partition, its_commits in commits.items():
        done: set[int] = set()
        whole = position = 0
        its_records = sorted(offsets[partition])
        for commit in sorted(its_commits, key=lambda commit: commit.began_s):
            while position < len(its_records) and its_records[position][0] <= commit.began_s:
                done.add(its_records[position][1])
                position += 1
            while whole in done:
                whole += 1
            if commit.offset > whole:
                found.append(f"partition {partition}: {commit.member} committed {commit.offset} and {whole} was the first not processed")
    return found


def generations_with_two_assignments(history: GroupHistory) -> list[str]:
    """A generation in which a partition went to two members, or one member got two different shares."""
    shares: dict[int, dict[str, frozenset[int]]] = {}
    found: list[str] = []
    for fact in history.assigned:
        others = shares.setdefault(fact.generation, {})
        if others.setdefault(fact.member, fact.partitions) != fact.partitions:
            found.append(f"generation {fact.generation}: {fact.member} got {set(others[fact.member])} and {set(fact.partitions)}")
        for other, partitions in others.items():
            if other != fact.member and partitions & fact.partitions:
                found.append(f"generation {fact.generation}: {other} and {fact.member} both got {set(partitions & fact.partitions)}")
    return found


def unprocessed(history: GroupHistory, acked: Mapping[tuple[int, int], int]) -> dict[tuple[int, int], int]:
    """(partition, offset) → number of acknowledged records that no member got, or got as another record."""
    got = {(fact.partition, fact.offset): fact.number for fact in history.processed}
    return {place: number for place, number in acked.items() if got.get(place) != number}


def longest_pause_s(times_s: Iterable[float]) -> float:
    """Between two peers."""
    ordered = sorted(times_s)
    return max((later - earlier for earlier, later in itertools.pairwise(ordered)), default=0.0)


def now_s() -> float:
    """The clock of all histories."""
    return _clock.monotonic_s()
