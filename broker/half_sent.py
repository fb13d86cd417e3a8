"""Requests that have not arrived whole: what each holds of the budget, and which of them must go when others wait for it.

A large request sets its whole length aside when it begins, so what has begun can always be finished. A client that stops half way
costs nobody anything as long as there is room. When somebody waits, those are evicted that would not be whole within FINISH_S at the speed
of the last second, those first that would need longest, and no more of them than are in the way. So a slow client is never cut for its
slowness alone, and clients that share a slow line are finished one after the other.

Speeds are seen by looks at what has arrived: a loop that was held up sees one late look, after which it reads what came meanwhile.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import nlargest
from typing import Final, Protocol

from runtime.frames import Account

LOOK_S: Final = 0.25
BEHIND_LOOKS_MIN: Final = 4
LOOKED_AT_PER_STEP: Final = 256
"""Requests that are looked at in one turn of the loop."""
RANKED_MAX: Final = 256
"""How many of those behind may be evicted until the next look: the slowest."""
FINISH_S: Final = 10.0
WATCHED_SHARE: Final = 8
"""From an eighth of the budget on, looks are taken also while nobody waits: later waiters need not wait for them."""


class Sender(Protocol):
    """A connection that sends requests."""

    @property
    def address(self) -> Account: ...

    @property
    def arrived_bytes(self) -> int:
        """Bytes that are here of a large request that has not arrived whole."""
        ...

    @property
    def whole_bytes(self) -> int:
        """The length before that request."""
        ...

    @property
    def is_resting(self) -> bool:
        """There may be more of it that is not read yet: others have their turn."""
        ...

    @property
    def unanswered_bytes(self) -> int:
        """Bytes of requests that have arrived whole and have no answer."""
        ...

    def evict(self, reason: str) -> None:
        """Let go of what was received, and close the connection."""
        ...


@dataclass(slots=True)
class Part:
    """`room_bytes`: its buffer. `behind_looks`: how many looks in a row found that it came too slowly. `behind_bytes`: what came
    meanwhile.
    """

    room_bytes: int
    seen_bytes: int = 0
    behind_looks: int = 0
    behind_bytes: int = 0


def is_behind(*, arrived_bytes: int, progress_bytes: int, whole_bytes: int) -> bool:
    """Whether what is missing would take longer than FINISH_S if each look found as much progress as this one."""
    return progress_bytes * FINISH_S < (whole_bytes - arrived_bytes) * LOOK_S


def left_looks(sender: Sender, part: Part) -> float:
    """How long what is missing would take at the speed that it has had since it is behind."""
    missing_bytes = sender.whole_bytes - sender.arrived_bytes
    return missing_bytes * part.behind_looks / part.behind_bytes if part.behind_bytes else math.inf


class HalfSent:
    """All that is half received by one broker."""

    def __init__(self) -> None:
        self._parts: dict[Sender, Part] = {}
        self._slowest: dict[Sender, None] = {}
        """Senders that were behind at the last look, in the order of eviction."""
        self.whole_bytes = 0
        """Bytes that all of it will hold when it has arrived."""

    def note(self, sender: Sender, room_bytes: int) -> None:
        """It holds a buffer of `room_bytes`, in place of the one it had."""
        part = self._parts.get(sender)
        if part is None:
            part = self._parts[sender] = Part(0)
            self.whole_bytes += sender.whole_bytes
            sender.address.set_aside(sender.whole_bytes)
        sender.address.set_aside(part.room_bytes - room_bytes)
        part.room_bytes = room_bytes

    def end(self, sender: Sender) -> None:
        """Its request is whole, or given up."""
        part = self._parts.pop(sender)
        self._slowest.pop(sender, None)
        self.whole_bytes -= sender.whole_bytes
        sender.address.set_aside(part.room_bytes - sender.whole_bytes)

    def look_in_steps(self) -> Iterator[None]:
        """See what has arrived since the last look. Yields where others may have a turn of the loop."""
        slowest: list[tuple[float, int, Sender, Part]] = []
        parts = list(reversed(self._parts.items()))
        for begin in range(0, len(parts), LOOKED_AT_PER_STEP):
            if begin:
                yield
            for sender, part in parts[begin : begin + LOOKED_AT_PER_STEP]:
                if self._parts.get(sender) is not part:
                    continue  # it was whole meanwhile
                arrived_bytes = sender.arrived_bytes
                progress_bytes, part.seen_bytes = arrived_bytes - part.seen_bytes, arrived_bytes
                if not sender.is_resting and is_behind(
                    arrived_bytes=arrived_bytes, progress_bytes=progress_bytes, whole_bytes=sender.whole_bytes
                ):
                    part.behind_looks += 1
                    part.behind_bytes += progress_bytes
                else:
                    part.behind_looks = part.behind_bytes = 0
                if part.behind_looks >= BEHIND_LOOKS_MIN:
                    slowest.append((left_looks(sender, part), sender.whole_bytes, sender, part))
            slowest = nlargest(RANKED_MAX, slowest, key=lambda one: one[:2])
        self._slowest = {sender: None for _, _, sender, part in slowest if self._parts.get(sender) is part}

    def in_the_way(self, short_bytes: int, address: Account) -> Sequence[Sender]:
        """Choose the senders to evict so that `short_bytes` become free for `address`; all that may be evicted, if they do not do.

        Those behind that would take longest come first, the largest of them before others, and none of an address that claims less. Where
        honest clients share a line that is too slow for all, those that are nearly done are finished: else none would ever be.
        """
        chosen: list[Sender] = []
        for sender in self._slowest:
            if short_bytes <= 0:
                break
            if sender.address.claimed_bytes >= address.claimed_bytes:
                chosen.append(sender)
                short_bytes -= sender.whole_bytes
        return chosen
