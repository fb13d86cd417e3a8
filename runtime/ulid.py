"""ULIDs: 48 bits of milliseconds, 80 bits of chance, 26 characters of Crockford's base 32; ids sort as their times do."""

import re
from typing import Final

ULID_LENGTH: Final = 26
_ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS: Final = [high + low for high in _ALPHABET for low in _ALPHABET]
_ULID: Final = re.compile(f"[0-7][{_ALPHABET}]{{{ULID_LENGTH - 1}}}")
_AS_INT_READS: Final = str.maketrans(_ALPHABET, "0123456789abcdefghijklmnopqrstuv")
RANDOM_BITS: Final = 80


def encode_ulid(value: int) -> str:
    """128 bits as 26 characters, most significant first."""
    assert 0 <= value < 1 << 128
    return "".join([_PAIRS[value >> shift & 1023] for shift in range(120, -1, -10)])


def decode_ulid(text: str) -> int:
    """Raise ValueError if `text` is not a ULID."""
    if _ULID.fullmatch(text) is None:
        raise ValueError(f"not a ULID: {text!r}")
    return int(text.translate(_AS_INT_READS), 32)


def ulid_ms(text: str) -> int:
    """The milliseconds of a ULID, by the clock of whoever made it. Raise ValueError if `text` is not a ULID."""
    return decode_ulid(text) >> RANDOM_BITS
