"""Where `forebay topic consume` begins, and where it ends with --until. Nothing here asks a broker."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from forebay.kafka_client.failures import EXIT_NOT_FOUND, ClientFailed
from forebay.kafka_client.options import parse_duration_ms

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TIME_EXPECTED: Final = "2026-11-21T08:00Z, milliseconds, or -10m for ten minutes ago"
_EXPECTED: Final = f"start, end, an offset, -N (the last N), or @TIME ({_TIME_EXPECTED})"
_EXPECTED_STOP: Final = f"end, an offset, -N (N before the end), or @TIME ({_TIME_EXPECTED})"
_OFFSET_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class AtStart:
    """At the first record there is."""


@dataclass(frozen=True, slots=True)
class AtEnd:
    """Behind the last record there is."""


@dataclass(frozen=True, slots=True)
class AtOffset:
    offset: int


@dataclass(frozen=True, slots=True)
class BeforeEnd:
    """So many offsets before the end, in each partition, or at the start if there are fewer."""

    count: int


@dataclass(frozen=True, slots=True)
class AtTime:
    """At the first record with this timestamp or a later one; behind the last one if there is none."""

    timestamp_ms: int


Stop = AtEnd | AtOffset | BeforeEnd | AtTime
StartingPoint = AtStart | Stop


class OffsetBounds(NamedTuple):
    """Offsets of a partition: from `start`, before `end`."""

    start: int
    end: int


def parse_start(text: str, *, now_ms: int) -> StartingPoint:
    """Raise ValueError with a phrase."""
    found = AtStart() if text == "start" else _place(text, now_ms=now_ms)
    if found is None:
        raise ValueError(f"is no place to start: expected {_EXPECTED}")
    return found


def parse_stop(text: str, *, now_ms: int) -> Stop:
    """Raise ValueError with a phrase."""
    found = _place(text, now_ms=now_ms)
    if found is None:
        raise ValueError(f"is no place to end: expected {_EXPECTED_STOP}")
    return found


def _place(text: str, *, now_ms: int) -> Stop | None:
    if text == "end":
        return AtEnd()
    if text.startswith("@"):
        return AtTime(parse_time_ms(text[1:], now_ms=now_ms))
    if not re.fullmatch(r"-?\d{1,19}", text, re.ASCII) or abs(int(text)) > _OFFSET_MAX:
        return None
    return BeforeEnd(-int(text)) if text.startswith("-") else AtOffset(int(text))


def offsets(start: StartingPoint, topic: str, bounds: Mapping[int, OffsetBounds], *, at_time: Mapping[int, int]) -> dict[int, int]:
    """The first offset to read, by partition; `at_time` has the answers for `AtTime`, -1 for none.

    Raise `ClientFailed` for an offset that a partition does not have; its end is allowed, because the next record will be there.
    """
    match start:
        case AtStart():
            return {partition: found.start for partition, found in bounds.items()}
        case AtEnd():
            return {partition: found.end for partition, found in bounds.items()}
        case BeforeEnd(count):
            return {partition: max(found.start, found.end - count) for partition, found in bounds.items()}
        case AtTime():
            return {partition: found.end if at_time[partition] < 0 else at_time[partition] for partition, found in bounds.items()}
        case AtOffset(offset):
            for partition, found in bounds.items():
                if not found.start <= offset <= found.end:
                    only = " Choose one partition with -p." if len(bounds) > 1 else ""
                    raise ClientFailed(
                        f"Offset {offset} is not in {topic}/{partition}, which starts at {found.start} and ends before {found.end}."
                        f"{only} From the first record there is: -o start",
                        exit_code=EXIT_NOT_FOUND,
                    )
            return dict.fromkeys(bounds, offset)


def stops(stop: Stop, bounds: Mapping[int, OffsetBounds], *, at_time: Mapping[int, int]) -> dict[int, int]:
    """The first offset that is not read any more, by partition: of what there is now, except for an offset that is still to come."""
    match stop:
        case AtEnd():
            return {partition: found.end for partition, found in bounds.items()}
        case BeforeEnd(count):
            return {partition: max(found.start, found.end - count) for partition, found in bounds.items()}
        case AtTime():
            return {partition: found.end if at_time[partition] < 0 else at_time[partition] for partition, found in bounds.items()}
        case AtOffset(offset):
            return dict.fromkeys(bounds, offset)


def parse_time_ms(text: str, *, now_ms: int) -> int:
    """ISO 8601, milliseconds, or `-10m` for ten minutes ago. Raise ValueError with a phrase."""
    if re.fullmatch(r"\d{1,18}", text, re.ASCII):
        return int(text)
    if text.startswith("-"):
        try:
            return max(0, now_ms - parse_duration_ms(text[1:]))
        except ValueError as error:
            raise ValueError(f"is no time: {text[1:]} {error}") from error
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"is no time: write for example {_TIME_EXPECTED}") from error
    # Without a zone it is UTC: a script has the same result wherever it runs.
    return max(0, ((at if at.tzinfo else at.replace(tzinfo=UTC)) - _EPOCH) // timedelta(milliseconds=1))
