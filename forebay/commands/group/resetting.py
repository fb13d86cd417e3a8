"""Where `forebay group reset-offsets` sends a group. Nothing here asks a broker.

As Kafka's own tool does it: an offset outside of its partition becomes the nearest inside, with a warning.
"""

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from forebay.commands.topic.starting import AtEnd, AtOffset, AtStart, AtTime, OffsetBounds
from forebay.kafka_client.connection import Partition
from forebay.kafka_client.failures import ClientFailed

_ROWS_MAX: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class ShiftedBy:
    """So many offsets on, or back if it is negative, from the committed one."""

    count: int


@dataclass(frozen=True, slots=True)
class AtCurrent:
    """At what is committed, or at the end where nothing is."""


@dataclass(frozen=True, slots=True)
class AtEach:
    """As a file says, partition by partition."""

    offsets: Mapping[Partition, int]


ResetTarget = AtStart | AtEnd | AtOffset | AtTime | ShiftedBy | AtCurrent | AtEach


class Scope(NamedTuple):
    """A topic, and which partitions of it; None for all."""

    topic: str
    partitions: tuple[int, ...] | None


class OffsetReset(msgspec.Struct, frozen=True, kw_only=True):
    """`old` is None if nothing was committed."""

    topic: str
    partition: int
    old: int | None
    new: int


class DeletedOffset(msgspec.Struct, frozen=True, kw_only=True):
    """It was committed, and is no more."""

    topic: str
    partition: int
    offset: int


def parse_scope(text: str) -> Scope:
    """`orders` or `orders:0,2`. Raise ValueError with a phrase."""
    topic, separator, numbers = text.partition(":")
    if not topic or (separator and not re.fullmatch(r"\d{1,9}(,\d{1,9})*", numbers, re.ASCII)):
        raise ValueError("is no topic: write orders, or orders:0,2 for some of its partitions")
    return Scope(topic, tuple(sorted({int(number) for number in numbers.split(",")})) if separator else None)


def parse_rows(lines: Iterable[str]) -> dict[Partition, int]:
    """Lines `topic,partition,offset`, as `--export` writes them. Raise ValueError with a phrase that names the line."""
    offsets: dict[Partition, int] = {}
    for number, row in enumerate(_rows(lines), start=1):
        if not row:
            continue
        if len(row) != 3 or not row[0] or not all(re.fullmatch(r"\d{1,18}", cell.strip(), re.ASCII) for cell in row[1:]):
            raise ValueError(f"line {number}: write topic,partition,offset")
        at = row[0].strip(), int(row[1])
        if at in offsets:
            raise ValueError(f"line {number}: {at[0]}/{at[1]} is given twice")
        if len(offsets) == _ROWS_MAX:
            raise ValueError(f"line {number}: more than {_ROWS_MAX:,} partitions")
        offsets[at] = int(row[2])
    if not offsets:
        raise ValueError("has no lines: write topic,partition,offset")
    return offsets


def _rows(lines: Iterable[str]) -> Iterator[list[str]]:
    try:
        yield from csv.reader(lines)
    except csv.Error as error:
        raise ValueError(f"cannot be read as rows: {error}") from error


def plan_resets(
    target: ResetTarget, committed: Mapping[Partition, int], bounds: Mapping[Partition, OffsetBounds], *, at_time: Mapping[Partition, int]
) -> tuple[list[OffsetReset], list[str]]:
    """What to commit for each partition of `bounds`, by topic and number, and warnings. `at_time` has -1 for no such record.

    Raise `ClientFailed` if it cannot be said.
    """
    resets: list[OffsetReset] = []
    warnings: list[str] = []
    for at, within in sorted(bounds.items()):
        wanted = _wanted(target, at, committed.get(at), within, at_time, warnings)
        new = min(max(wanted, within.start), within.end)
        if new != wanted:
            side = "before the earliest" if wanted < within.start else "beyond the latest"
            warnings.append(f"Offset {wanted} is {side} of {at[0]}/{at[1]}: {new} is taken.")
        resets.append(OffsetReset(topic=at[0], partition=at[1], old=committed.get(at), new=new))
    return resets, warnings


def _wanted(
    target: ResetTarget, at: Partition, current: int | None, within: OffsetBounds, at_time: Mapping[Partition, int], warnings: list[str]
) -> int:
    match target:
        case AtStart():
            return within.start
        case AtEnd():
            return within.end
        case AtOffset(offset):
            return offset
        case AtEach(offsets):
            return offsets[at]
        case AtCurrent():
            return within.end if current is None else current
        case ShiftedBy(count):
            if current is None:
                raise ClientFailed(f"The offset of {at[0]}/{at[1]} cannot be shifted: none is committed. Choose another --to-….")
            return current + count
        case AtTime():
            if at_time[at] < 0:
                warnings.append(f"{at[0]}/{at[1]} has no record that new: its end is taken.")
                return within.end
            return at_time[at]
