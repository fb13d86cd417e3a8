"""An aircraft's days: what is a day, what is late, what state is left, and that a driver may be killed (with Delta Lake; slow)."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from spark.flights import Leg, chains, day_of, is_closed
from spark.settings import Duration, WrongSettings, load
from tests.spark.flight_streams import HOUR_MS, Flight, at, streamed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming.tws_tester import TwsTester

pytestmark = pytest.mark.timeout(900)

PROVIDER: Final = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
GAP: Final = Duration(8 * 3_600)
GAP_MS: Final = 8 * HOUR_MS
NEEDED = ("--topics", "flights", "--table", "t", "--checkpoint", "c")


def leg(hours: float, *, offset: int = 0, partition: int = 0, origin: str = "EWR", dest: str = "IAH", dep_delay: int | None = 0) -> Leg:
    return Leg(at(hours), "flights", partition, offset, origin, dest, dep_delay)


def test_legs_belong_together_as_long_as_no_gap_between_them_is_longer() -> None:
    found = chains([leg(0), leg(8), leg(16.001), leg(17)], GAP_MS)

    assert [[one.departure_ms for one in chain] for chain in found] == [[at(0), at(8)], [at(16.001), at(17)]]


def test_a_leg_that_comes_late_joins_what_lies_before_it_and_after_it() -> None:
    assert len(chains([leg(0), leg(10)], GAP_MS)) == 2
    assert len(chains([leg(0), leg(10), leg(5)], GAP_MS)) == 1


def test_a_day_says_where_the_aircraft_was_and_how_late_it_departed() -> None:
    legs = [
        leg(3, origin="ORD", dest="EWR", dep_delay=-5, offset=1),
        leg(0, origin="EWR", dest="ORD", dep_delay=12, offset=2),
        leg(6, origin="JFK", dest="LAX", dep_delay=None, offset=3),
    ]
    (chain,) = chains(legs, GAP_MS)

    assert day_of(chain)._asdict() == {
        "start_ms": at(0),
        "end_ms": at(6),
        "legs": 3,
        "cancelled": 1,
        "airports": ["EWR", "ORD", "EWR", "JFK", "LAX"],
        "total_delay": 7,
        "out_of_order": 1,
    }


def test_legs_are_out_of_order_within_their_partition_alone() -> None:
    assert day_of([leg(0, offset=9), leg(1, offset=8), leg(2, offset=7)]).out_of_order == 2
    assert day_of([leg(0, offset=9), leg(1, offset=8, partition=1), leg(2, offset=7, partition=2)]).out_of_order == 0
    assert day_of([leg(1, offset=0), leg(1, offset=1)]).out_of_order == 0


def test_days_are_the_same_in_whatever_order_their_legs_are_given() -> None:
    chance = random.Random(7)
    legs = [leg(chance.uniform(0, 90), offset=offset, partition=offset % 2) for offset in range(40)]
    expected = [day_of(chain) for chain in chains(legs, GAP_MS)]

    for _ in range(20):
        assert [day_of(chain) for chain in chains(chance.sample(legs, len(legs)), GAP_MS)] == expected
    assert 1 < len(expected) < len(legs)


def test_a_day_is_closed_when_every_leg_that_could_join_it_is_too_late() -> None:
    assert not is_closed([leg(0)], GAP_MS, at(8) - 1)
    assert is_closed([leg(0)], GAP_MS, at(8))


@pytest.fixture
def aircraft() -> "TwsTester":
    """The processor alone, with a state in memory."""
    from pyspark.sql.streaming.tws_tester import TwsTester

    from spark.jobs.sessions import AircraftDays

    return TwsTester(AircraftDays(GAP_MS), timeMode="EventTime", eventTimeExtractor=lambda row: row.departure_ms)


def rows(*legs: Leg) -> "list[Row]":
    from pyspark.sql import Row

    return [Row(**one._asdict()) for one in legs]


def state(aircraft: "TwsTester", tailnum: str = "N1") -> tuple[int, list[int]]:
    """How many legs there are, and for when it has a timer."""
    aircraft.handle.setGroupingKey(tailnum)
    return len(aircraft.peekListState("legs", tailnum)), list(aircraft.handle.listTimers())


def test_a_day_is_given_once_and_nothing_is_left_of_it(aircraft: "TwsTester") -> None:
    assert aircraft.test("N1", rows(leg(1), leg(0))) == []
    assert aircraft.setWatermark(at(9) - 1) == []
    assert state(aircraft) == (2, [at(9)])

    (found,) = aircraft.setWatermark(at(9))

    assert (found.tailnum, found.start_ms, found.end_ms, found.legs) == ("N1", at(0), at(1), 2)
    assert state(aircraft) == (0, [])
    assert aircraft.setWatermark(at(100)) == []


def test_days_that_are_open_stay_when_one_before_them_is_closed(aircraft: "TwsTester") -> None:
    aircraft.test("N1", rows(leg(20), leg(0), leg(21)))

    assert [found.legs for found in aircraft.setWatermark(at(8))] == [1]
    assert state(aircraft) == (2, [at(29)])
    aircraft.test("N1", rows(leg(22)))
    assert [found.legs for found in aircraft.setWatermark(at(30))] == [3]
    assert state(aircraft) == (0, [])


def test_an_aircraft_has_one_timer_at_its_first_day_that_may_end(aircraft: "TwsTester") -> None:
    aircraft.test("N1", rows(leg(20)))
    aircraft.test("N1", rows(leg(30)))
    assert state(aircraft) == (2, [at(28)])

    aircraft.test("N1", rows(leg(2)))

    assert state(aircraft) == (3, [at(10)])
    assert [found.start_ms for found in aircraft.setWatermark(at(50))] == [at(2), at(20), at(30)]


@pytest.fixture
def rocksdb(spark: "SparkSession") -> Iterator[None]:
    spark.conf.set(PROVIDER, ROCKSDB)
    yield
    spark.conf.unset(PROVIDER)


def a_day_late(frame: "DataFrame") -> "DataFrame":
    from spark.jobs.sessions import aircraft_days

    return aircraft_days(frame, GAP, Duration(86_400))


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.usefixtures("rocksdb")
def test_a_query_puts_late_flights_in_their_place_closes_days_and_keeps_no_state_of_them(spark: "SparkSession", tmp_path: Path) -> None:
    from spark.jobs.sessions import SessionsSettings, summary

    batches = [
        [Flight(hours=0, offset=0, dep_delay=5), Flight(hours=10, offset=1), Flight(hours=1, tailnum="N2", offset=2, dep_delay=None)],
        [Flight(hours=5, offset=3), Flight(hours=6, tailnum=None), Flight(hours=6, tailnum=""), Flight(hours=6, value=b"{")],
        [Flight(hours=60, tailnum="N3", offset=4)],
        [Flight(hours=61, tailnum="N3", offset=5)],
        [Flight(hours=2, offset=6), Flight(hours=3, offset=7, tailnum="N2"), Flight(hours=62, tailnum="N3", offset=8)],
    ]

    run = streamed(spark, tmp_path, [[one.as_record() for one in batch] for batch in batches], a_day_late, "append")

    assert sorted((row["tailnum"], row["start"], row["end"], row["legs"], row["cancelled"], row["out_of_order"]) for row in run.rows) == [
        ("N1", at(0), at(10), 3, 0, 1),
        ("N2", at(1), at(1), 1, 1, 0),
    ]
    (first,) = (row for row in run.rows if row["tailnum"] == "N1")
    assert (first["airports"], first["total_delay"]) == (["EWR", "IAH", "EWR", "IAH", "EWR", "IAH"], 5)
    assert run.tally.state_rows == 1, "only N3 has a day that is open"
    assert (run.tally.records, run.tally.rejected, run.tally.without_tailnum, run.tally.late) == (12, 1, 2, 2)
    run.tally.written = len(run.rows)
    said = summary(run.tally, load(SessionsSettings, "sessions", NEEDED, {}))
    assert said.split("; ") == [
        "sessions: 12 records, 2 days written to t",
        "1 records were no flights, and are in no day",
        "2 flights have no tailnum, and are in no day",
        "1 aircraft have days that are open and not in the table yet (the watermark is 2013-01-03T00:00:00.000Z",
        "later flights move it)",
        "2 flights were too late and dropped (numRowsDroppedByWatermark)",
        "a longer --watermark keeps them",
    ]


def test_a_gap_of_no_time_is_refused() -> None:
    from spark.jobs.sessions import SessionsSettings

    with pytest.raises(WrongSettings, match="--gap=0s: expected a millisecond or more"):
        load(SessionsSettings, "sessions", [*NEEDED, "--gap", "0s"], {})
