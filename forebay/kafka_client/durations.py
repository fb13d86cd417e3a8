"""Lengths of time as options write them: `500ms`, `1.5h`, and ISO 8601 (`P1DT2H`), as Kafka's own tools do.

The settings' notation reads the first form, too; but no command of a client should wait for the brokers' modules.
"""

import re
from fractions import Fraction
from typing import Final

MILLISECONDS: Final = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
MILLISECONDS_MAX: Final = 2**53

_NUMBER_AND_UNIT: Final = re.compile(r"(-?\d{1,18}(?:\.\d{1,9})?)([a-zA-Z]*)", re.ASCII)
_ISO_8601: Final = re.compile(
    r"P(?=.)(?:(\d{1,9})D)?(?:T(?=.)(?:(\d{1,9})H)?(?:(\d{1,9})M)?(?:(\d{1,9}(?:\.\d{1,9})?)S)?)?", re.ASCII | re.IGNORECASE
)


def parse_duration_ms(text: str) -> int:
    """Raise ValueError with a phrase for what is no duration."""
    if iso := _ISO_8601.fullmatch(text):
        parts = zip(("d", "h", "m", "s"), iso.groups(), strict=True)
        return _whole(sum((Fraction(number) * MILLISECONDS[unit] for unit, number in parts if number is not None), Fraction(0)))
    plain = _NUMBER_AND_UNIT.fullmatch(text.strip())
    if plain is None:
        raise ValueError("is not a duration: write for example 250ms, 5s or 10m")
    number, unit = plain.groups()
    if not unit and Fraction(number) != 0:
        raise ValueError(f"needs a unit: write for example {number}ms or {number}s")
    if unit and unit not in MILLISECONDS:
        raise ValueError(f"has an unknown unit {unit!r}: use {', '.join(reversed(MILLISECONDS))}")
    return _whole(Fraction(number) * MILLISECONDS[unit or "ms"])


def _whole(milliseconds: Fraction) -> int:
    if milliseconds % 1:
        raise ValueError("is finer than a millisecond")
    if abs(milliseconds) > MILLISECONDS_MAX:
        raise ValueError("is longer than any clock runs")
    return int(milliseconds)
