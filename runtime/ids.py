"""Names that are handed out: time-ordered ULIDs for objects and random UUIDs for topics and clusters.

One source never hands out an id that sorts at or below an earlier one of its own, whatever the wall clock does.
"""

import os
import uuid
from collections.abc import Callable
from typing import Final

from runtime.clock import Clock
from runtime.ulid import RANDOM_BITS, decode_ulid, encode_ulid

Entropy = Callable[[int], bytes]
"""n -> n random bytes."""

_STEP_MASK: Final = (1 << 64) - 1
"""A step has 64 random bits: two processes behind one floor must not make the same id."""


class IdSource:
    """Hands out ids of one process."""

    def __init__(self, *, clock: Clock, entropy: Entropy = os.urandom) -> None:
        self._clock = clock
        self._entropy = entropy
        self._last_ulid = 0

    def next_ulid(self, *, above: str = "") -> str:
        """A ULID greater than every earlier one of this source and than `above` (a `revoked_floor`, or empty).

        Dated by the clock, and never ahead of it, however many are asked for, unless `above` or an earlier reading of the clock is: then by
        that. Within a millisecond ids count up by random steps, so sources that begin at the same floor do not meet.
        """
        floor = max(self._last_ulid, decode_ulid(above) if above else 0)
        chance = int.from_bytes(self._entropy(RANDOM_BITS // 8), "big")
        # Half of the range is left for steps: 32,768 of them fit in a millisecond, whatever chance says.
        value = self._clock.now_ms() << RANDOM_BITS | chance >> 1
        if value <= floor:
            value = floor + 1 + (chance & _STEP_MASK)
        self._last_ulid = value
        return encode_ulid(value)

    def random_uuid(self) -> str:
        """A version 4 UUID in its canonical text form."""
        return str(uuid.UUID(bytes=self._entropy(16), version=4))
