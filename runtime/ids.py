"""Names that are handed out: time-ordered ULIDs for objects and random UUIDs for topics and clusters.

ULID: 48 bits of milliseconds, 80 bits of chance, 26 characters of Crockford's base 32; ids sort as their times do.
One source never hands out an id that sorts at or below an earlier one of its own, whatever the wall clock does.
"""

import os
import uuid
from collections.abc import Callable

from runtime.clock import Clock

Entropy = Callable[[int], bytes]
"""n -> n random bytes."""

ULID_LENGTH = 26
_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_VALUE = {character: value for value, character in enumerate(_ALPHABET)}
_RANDOM_BITS = 80


def encode_ulid(value: int) -> str:
    """128 bits as 26 characters, most significant first."""
    assert 0 <= value < 1 << 128
    return "".join(_ALPHABET[(value >> shift) & 31] for shift in range(125, -1, -5))


def decode_ulid(text: str) -> int:
    """Raise ValueError if `text` is not a ULID."""
    if len(text) != ULID_LENGTH or not all(character in _VALUE for character in text) or text[0] > "7":
        raise ValueError(f"not a ULID: {text!r}")
    value = 0
    for character in text:
        value = value << 5 | _VALUE[character]
    return value


class IdSource:
    """Hands out ids of one process."""

    def __init__(self, *, clock: Clock, entropy: Entropy = os.urandom) -> None:
        self._clock = clock
        self._entropy = entropy
        self._last_ulid = 0

    def next_ulid(self, *, above: str = "") -> str:
        """A ULID greater than every earlier one of this source and than `above` (a `revoked_floor`, or empty)."""
        floor = max(self._last_ulid, decode_ulid(above) if above else 0)
        value = self._clock.now_ms() << _RANDOM_BITS | int.from_bytes(self._entropy(10), "big")
        if value <= floor:
            # The wall clock stands behind the floor: continue one millisecond above it, with fresh chance in the low bits.
            value = ((floor >> _RANDOM_BITS) + 1) << _RANDOM_BITS | value & ((1 << _RANDOM_BITS) - 1)
        self._last_ulid = value
        return encode_ulid(value)

    def random_uuid(self) -> str:
        """A version 4 UUID in its canonical text form."""
        return str(uuid.UUID(bytes=self._entropy(16), version=4))
