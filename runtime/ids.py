"""Names that are handed out: time-ordered ULIDs for objects and random UUIDs for topics and clusters.

One source never hands out an id that sorts at or below an earlier one of its own, whatever the wall clock does.
"""

import os
import uuid
from collections.abc import Callable

from runtime.clock import Clock
from runtime.ulid import RANDOM_BITS, decode_ulid, encode_ulid

Entropy = Callable[[int], bytes]
"""n -> n random bytes."""


class IdSource:
    """Hands out ids of one process."""

    def __init__(self, *, clock: Clock, entropy: Entropy = os.urandom) -> None:
        self._clock = clock
        self._entropy = entropy
        self._last_ulid = 0

    def next_ulid(self, *, above: str = "") -> str:
        """A ULID greater than every earlier one of this source and than `above` (a `revoked_floor`, or empty)."""
        floor = max(self._last_ulid, decode_ulid(above) if above else 0)
        value = self._clock.now_ms() << RANDOM_BITS | int.from_bytes(self._entropy(10), "big")
        if value <= floor:
            # The wall clock is behind the floor: continue one millisecond above it, with fresh chance in the low bits.
            value = ((floor >> RANDOM_BITS) + 1) << RANDOM_BITS | value & ((1 << RANDOM_BITS) - 1)
        self._last_ulid = value
        return encode_ulid(value)

    def random_uuid(self) -> str:
        """A version 4 UUID in its canonical text form."""
        return str(uuid.UUID(bytes=self._entropy(16), version=4))
