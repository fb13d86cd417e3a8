"""ULIDs: 48 bits of milliseconds, 80 bits of chance, 26 characters of Crockford's base 32; ids sort as their times do."""

from typing import Final

ULID_LENGTH: Final = 26
_ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_VALUE: Final = {character: value for value, character in enumerate(_ALPHABET)}
RANDOM_BITS: Final = 80


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


def ulid_ms(text: str) -> int:
    """The milliseconds of a ULID, by the clock of whoever made it. Raise ValueError if `text` is not a ULID."""
    return decode_ulid(text) >> RANDOM_BITS
