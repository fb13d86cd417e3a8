"""All the flights that the demo sends: reading them takes seconds."""

import json
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache

import msgspec
import pytest

from forebay.commands.demo.flights import FLIGHTS_TOTAL, FlightRecord, flights

EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - New York's local times are computed here by hand
SUMMER_TIME = (datetime(2013, 3, 10, 2), datetime(2013, 11, 3, 2))  # noqa: DTZ001


@cache
def scheduled_departure_ms(year: int, month: int, day: int, hour: int, minute: int) -> int:
    """From the columns of the local time, which the demo does not use: New York is 5 hours behind UTC, 4 in summer."""
    local = datetime(year, month, day, hour, minute)  # noqa: DTZ001
    hours_behind = 4 if SUMMER_TIME[0] <= local < SUMMER_TIME[1] else 5
    return (local + timedelta(hours=hours_behind) - EPOCH) // timedelta(milliseconds=1)


@dataclass
class Year:
    """What is asked of all flights, which are read once."""

    last: FlightRecord
    carriers: Counter[bytes] = field(default_factory=Counter)
    cancelled: int = 0
    wrong_times: int = 0


@pytest.fixture(scope="module")
def year() -> Year:
    decode = msgspec.json.Decoder().decode
    found = Year(FlightRecord(b"", b"", 0))
    for record in flights():
        flight = decode(record.value)
        scheduled_ms = scheduled_departure_ms(flight["year"], flight["month"], flight["day"], flight["hour"], flight["minute"])
        found.carriers[record.key] += 1
        found.cancelled += flight["dep_time"] is None
        found.wrong_times += scheduled_ms != record.timestamp_ms
        found.last = record
    return found


@pytest.mark.slow
def test_all_flights_of_the_year_are_there_with_the_time_they_were_to_leave(year: Year) -> None:
    assert year.carriers.total() == FLIGHTS_TOTAL
    assert len(year.carriers) == 16
    assert year.carriers.most_common(1) == [(b"UA", 58_665)]
    assert year.cancelled == 8_255
    assert year.wrong_times == 0


def test_the_last_flight_never_left(year: Year) -> None:
    last = year.last
    flight = json.loads(last.value)

    assert (last.key, last.timestamp_ms) == (b"MQ", 1_380_544_800_000)  # 2013-09-30T08:40:00-04:00
    assert [name for name, value in flight.items() if value is None] == ["dep_time", "dep_delay", "arr_time", "arr_delay", "air_time"]
    assert (flight["flight"], flight["tailnum"], flight["dest"]) == (3531, "N839MQ", "RDU")
