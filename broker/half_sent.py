"""Requests that have not arrived whole: what each holds of the budget, and which of them must go when others wait for it.

Who sends half a request and stops costs nobody anything as long as there is room. When somebody waits, those are evicted that would not be
whole within FINISH_S at the speed of the last second, those first that would need longest, and no more of them than are in the way. So a
slow client is never cut for its slowness alone, and clients that share a slow line are finished one after the other.

A large request claims its whole length before it grows beyond SMALL_BYTES; claims are given up to half of the budget, and to one at a time
beyond it. What is admitted so can always be finished, and the other half is for everybody else: when that is short, those go that are
queued for a claim.

Speeds are seen by looks at what has arrived: a loop that was held up sees one late look, after which it reads what came meanwhile.
"""

import math
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from storage.limits import MIB

LOOK_S: Final = 0.25
BEHIND_LOOKS_MIN: Final = 4
FINISH_S: Final = 10.0
SMALL_BYTES: Final = 2 * MIB
"""Twice what a producer sends in one request by its defaults."""
CLAIMS_SHARE: Final = 2
WATCHED_SHARE: Final = 8
"""From an eighth of the budget on, looks are taken also while nobody waits: later waiters need not wait for them."""


class Sender(Protocol):
    """A connection that has received a part of a request."""

    @property
    def arrived_bytes(self) -> int: ...

    @property
    def whole_bytes(self) -> int:
        """What the length before the request says."""
        ...

    @property
    def is_starved(self) -> bool:
        """It does not read on because there is no room: no fault of its client's."""
        ...

    def evict(self, reason: str) -> None:
        """Let go of what was received, and close the connection."""
        ...


@dataclass(slots=True)
class Part:
    """`behind_looks`: how many looks in a row found that it came too slowly. `behind_bytes`: what came meanwhile."""

    room_bytes: int
    claimed_bytes: int = 0
    seen_bytes: int = 0
    behind_looks: int = 0
    behind_bytes: int = 0


def is_behind(*, arrived_bytes: int, progress_bytes: int, whole_bytes: int) -> bool:
    """Whether what is missing would take longer than FINISH_S if each look found as much progress as this one."""
    return progress_bytes * FINISH_S < (whole_bytes - arrived_bytes) * LOOK_S


def in_the_way(parts: Iterable[tuple[Sender, Part]], short_bytes: int, queued: Container[Sender] = ()) -> Sequence[Sender]:
    """The senders to evict so that `short_bytes` become free: of those behind those that would take longest, the largest first; then of
    those `queued`, which hold memory and cannot go on, the largest and, of equal ones, those that came last. All if they do not do.

    Where honest clients share a line that is too slow for all, those that are nearly done are finished: else none would ever be.
    """
    chosen: list[Sender] = []
    if short_bytes <= 0:
        return chosen
    found = [
        (part.behind_looks >= BEHIND_LOOKS_MIN, left_looks(sender, part), part.room_bytes, sender)
        for sender, part in parts
        if part.behind_looks >= BEHIND_LOOKS_MIN or sender in queued
    ]
    found.reverse()
    for _, _, room_bytes, sender in sorted(found, key=lambda one: one[:3], reverse=True):
        if short_bytes <= 0:
            break
        chosen.append(sender)
        short_bytes -= room_bytes
    return chosen


def left_looks(sender: Sender, part: Part) -> float:
    """How long what is missing would take at the speed that it has had since it is behind; 0 if it is not."""
    if not part.behind_looks:
        return 0.0
    missing_bytes = sender.whole_bytes - sender.arrived_bytes
    return missing_bytes * part.behind_looks / part.behind_bytes if part.behind_bytes else math.inf


class HalfSent:
    """All that is half received by one broker."""

    def __init__(self, *, bytes_max: int) -> None:
        self._claims_bytes_max = bytes_max // CLAIMS_SHARE
        self._parts: dict[Sender, Part] = {}
        self.held_bytes = 0
        self._claimed_bytes = 0

    def claim_bytes(self, sender: Sender, room_bytes: int) -> int:
        """What `sender` has to claim before it takes a buffer of this size."""
        part = self._parts.get(sender)
        return 0 if room_bytes <= SMALL_BYTES or (part is not None and part.claimed_bytes) else sender.whole_bytes

    def may_claim(self, claim_bytes: int) -> bool:
        return not claim_bytes or not self._claimed_bytes or self._claimed_bytes + claim_bytes <= self._claims_bytes_max

    def claims_short_bytes(self, claim_bytes: int) -> int:
        """How many bytes of claims are in the way of this one."""
        return 0 if self.may_claim(claim_bytes) else self._claimed_bytes + claim_bytes - self._claims_bytes_max

    def note(self, sender: Sender, room_bytes: int, *, claim_bytes: int) -> None:
        """It holds a buffer of `room_bytes`, in place of the one it had."""
        part = self._parts.get(sender)
        if part is None:
            part = self._parts[sender] = Part(0)
        self.held_bytes += room_bytes - part.room_bytes
        part.room_bytes = room_bytes
        part.claimed_bytes += claim_bytes
        self._claimed_bytes += claim_bytes

    def end(self, sender: Sender) -> None:
        """Its request is whole, or given up."""
        part = self._parts.pop(sender)
        self.held_bytes -= part.room_bytes
        self._claimed_bytes -= part.claimed_bytes

    def look(self) -> None:
        for sender, part in self._parts.items():
            arrived_bytes = sender.arrived_bytes
            progress_bytes, part.seen_bytes = arrived_bytes - part.seen_bytes, arrived_bytes
            if not sender.is_starved and is_behind(
                arrived_bytes=arrived_bytes, progress_bytes=progress_bytes, whole_bytes=sender.whole_bytes
            ):
                part.behind_looks += 1
                part.behind_bytes += progress_bytes
            else:
                part.behind_looks = part.behind_bytes = 0

    def in_the_way(self, short_bytes: int, queued: Container[Sender]) -> Sequence[Sender]:
        return in_the_way(self._parts.items(), short_bytes, queued)

    def in_the_way_of_claims(self, short_bytes: int) -> Sequence[Sender]:
        claims = [(sender, part) for sender, part in self._parts.items() if part.claimed_bytes]
        return in_the_way([(sender, replace(part, room_bytes=part.claimed_bytes)) for sender, part in claims], short_bytes)

    @property
    def are_all_starved(self) -> bool:
        """Nobody who could finish is left."""
        return all(sender.is_starved for sender in self._parts)

    @property
    def count(self) -> int:
        return len(self._parts)

    def has_claimed(self, sender: Sender) -> bool:
        part = self._parts.get(sender)
        return part is not None and bool(part.claimed_bytes)

    def crowding(self, short_bytes: int) -> Sequence[Sender]:
        """When they wait for each other: the senders to evict so that `short_bytes` become free; first those that claimed nothing."""
        unclaimed = {sender for sender, part in self._parts.items() if not part.claimed_bytes}
        return in_the_way(self._parts.items(), short_bytes, unclaimed or self._parts)
