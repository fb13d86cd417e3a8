"""Windows of flights: what is summed up, what is late, and that a driver may be killed (with Delta Lake; slow)."""

import io
import json
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from forebay.commands.demo.flights import flights as demo_flights
from spark.settings import Duration, WrongSettings, load
from tests.spark.flight_streams import DAY_MS, HOUR_MS, Flight, as_numbers, at, record, static, streamed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(900)

HOUR = Duration(3_600)
A_DAY = Duration(86_400)
NEEDED = ("--topics", "flights", "--table", "t", "--checkpoint", "c")


def by_window(rows: "list[Mapping[str, Any]]") -> dict[tuple[str, int], tuple[Any, ...]]:
    """As a table has them that rows are merged into: the last one of each key."""
    return {(row["carrier"], row["window_start"]): tuple(row.values())[3:] for row in rows}


def hourly(frame: "DataFrame", watermark: Duration = A_DAY) -> "DataFrame":
    from spark.jobs.windows import delays

    return delays(frame, HOUR, watermark)


def test_flights_are_summed_up_by_carrier_and_hour_of_the_scheduled_departure(spark: "SparkSession", tmp_path: Path) -> None:
    flights = [
        Flight(hours=0, dep_delay=-4),
        Flight(hours=0.99, dep_delay=30),
        Flight(hours=0.5, dep_delay=None),
        Flight(hours=1, dep_delay=7),
        Flight(hours=0.2, carrier="AA", dep_delay=None),
        Flight(hours=0.2, value=b"{"),
        Flight(hours=0.2, value=b'{"carrier": "AA", "origin": "JFK"}'),
    ]

    found = as_numbers(hourly(static(spark, tmp_path, *flights))).collect()

    assert found[0].asDict().keys() == {"carrier", "window_start", "window_end", "flights", "cancelled", "mean_delay", "max_delay"}
    assert {row.window_end - row.window_start for row in found} == {HOUR_MS}
    assert by_window([row.asDict() for row in found]) == {
        ("UA", at(0)): (3, 1, 13.0, 30),
        ("UA", at(1)): (1, 0, 7.0, 7),
        ("AA", at(0)): (1, 1, None, None),
    }


def test_a_window_becomes_a_record_whose_key_says_carrier_and_start(spark: "SparkSession", tmp_path: Path) -> None:
    from spark.jobs.windows import as_records

    (found,) = as_records(hourly(static(spark, tmp_path, Flight(hours=0.5, dep_delay=None)))).collect()

    assert found.key == "UA 2013-01-01T10:00:00Z"
    assert json.loads(found.value) == {
        "carrier": "UA",
        "window_start": "2013-01-01T10:00:00.000Z",
        "window_end": "2013-01-01T11:00:00.000Z",
        "flights": 1,
        "cancelled": 1,
        "mean_delay": None,
        "max_delay": None,
    }


def test_a_window_is_written_once_when_the_watermark_has_passed_it_and_what_comes_then_is_counted(
    spark: "SparkSession", tmp_path: Path
) -> None:
    from spark.jobs.windows import WindowsSettings, summary

    batches = [
        [Flight(hours=0), Flight(hours=1)],
        [Flight(hours=0.5), Flight(hours=30), Flight(hours=2, value=b"no flight")],
        [Flight(hours=31)],
        [Flight(hours=0.7), Flight(hours=0.8), Flight(hours=0.9, carrier="AA"), Flight(hours=32)],
    ]

    run = streamed(spark, tmp_path, [[one.as_record() for one in batch] for batch in batches], hourly, "append")

    assert by_window(run.rows) == {("UA", at(0)): (2, 0, 0.0, 0), ("UA", at(1)): (1, 0, 0.0, 0)}
    assert len(run.rows) == 2, "a window was written twice"
    assert (run.tally.records, run.tally.rejected, run.tally.state_rows) == (10, 1, 3)
    assert run.tally.late == 2, "of the three late flights, those of a carrier and hour are one sum"
    run.tally.written = len(run.rows)
    said = summary(run.tally, load(WindowsSettings, "windows", [*NEEDED, "--mode", "append"], {}))
    assert said.split("; ") == [
        "windows: 10 records, 2 windows written in t",
        "1 records were no flights, and are in no window",
        "3 windows are open and not in the table yet (the watermark is 2013-01-01T18:00:00.000Z",
        "later flights move it)",
        "2 sums of late flights were dropped (numRowsDroppedByWatermark), each of one flight or more of a carrier and window",
        "a longer --watermark keeps them",
    ]


@pytest.mark.slow
@pytest.mark.long
def test_the_default_watermark_loses_no_flight_of_the_demo_in_any_order(spark: "SparkSession", tmp_path: Path) -> None:
    """Its file has January, then October to December, then February on, and a partition may be read long before another: here the last
    flights of a carrier come first, and one carrier after the other."""
    from spark.jobs.windows import WindowsSettings

    flights = sorted(islice(demo_flights(), 0, None, 1_000), key=lambda one: (one.key, -one.timestamp_ms))
    records = [record(one.value, one.timestamp_ms) for one in flights]
    default = load(WindowsSettings, "windows", NEEDED, {}).watermark

    run = streamed(spark, tmp_path, [records[:100], records[100:150], records[150:]], lambda frame: hourly(frame, default), "update")

    assert sum(flights for flights, *_ in by_window(run.rows).values()) == len(records) == run.tally.records
    assert run.tally.late == 0


@pytest.mark.slow
@pytest.mark.long
def test_a_watermark_that_is_too_short_for_the_demo_says_so(spark: "SparkSession", tmp_path: Path) -> None:
    flights = list(islice(demo_flights(), 0, None, 2_000))
    december = max(range(len(flights)), key=lambda number: flights[number].timestamp_ms)
    records = [record(one.value, one.timestamp_ms) for one in flights]
    # A watermark is that of the batches before the last one: what comes with the next batch is not late yet.
    late = sum(one.timestamp_ms + HOUR_MS <= flights[december].timestamp_ms - 2 * DAY_MS for one in flights[december + 2 :])

    batches = [records[: december + 1], records[december + 1 : december + 2], records[december + 2 :]]
    run = streamed(spark, tmp_path, batches, lambda frame: hourly(frame, Duration(2 * 86_400)), "update")

    assert late > 50
    assert sum(flights for flights, *_ in by_window(run.rows).values()) == len(records) - late
    assert 0 < run.tally.late <= late


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--window", "0s"), "--window=0s: expected a millisecond or more"),
        (("--to-topic", "flights"), "--to-topic=flights: expected a topic that the job does not read"),
        (("--mode", "complete"), "--mode='complete': expected update or append"),
        (("--pattern", "x"), "expected either --topics or --pattern"),
        (("--checkpoint", "t/"), "--checkpoint=t/: expected another folder than the table's"),
    ],
)
def test_what_is_wrong_with_the_settings_is_said(given: tuple[str, ...], said: str) -> None:
    from spark.jobs.windows import WindowsSettings

    with pytest.raises(WrongSettings) as raised:
        load(WindowsSettings, "windows", [*NEEDED, *given], {})

    assert str(raised.value) == said


def test_windows_do_not_go_where_flights_come_from() -> None:
    from spark.jobs.windows import WindowsSettings

    with pytest.raises(WrongSettings, match="--to-topic=flights-hourly: expected a topic that the job does not read"):
        load(WindowsSettings, "windows", ["--pattern", "flights-.*", *NEEDED[2:], "--to-topic", "flights-hourly"], {})


def test_a_batch_is_counted_once_and_a_look_that_found_nothing_is_no_batch() -> None:
    """Spark gives such a look the number that the next batch will have, and tells of a batch as often as it is asked."""
    from spark.jobs.flights import Tally
    from spark.queries import QueryLine

    def progress(batch: int, rows: int, *phases: str) -> dict[str, Any]:
        return {
            "batchId": batch,
            "numInputRows": rows,
            "durationMs": dict.fromkeys(phases, 1),
            "processedRowsPerSecond": 1.0,
            "observedMetrics": {"flights": {"records": rows, "rejected": 1, "without_tailnum": 0}},
            "stateOperators": [{"numRowsDroppedByWatermark": 2, "numRowsTotal": rows}],
            "eventTime": {},
            "sources": [],
        }

    seen = [progress(0, 10, "addBatch"), progress(1, 0, "latestOffset"), progress(1, 20, "addBatch")]
    tally, line = Tally(), QueryLine("windows", out=io.StringIO())
    for recent in (seen[:1], seen[:2], seen[:2], seen, seen):
        tally.take(recent)
        line.show(recent)

    assert (tally.records, tally.rejected, tally.late, tally.state_rows, line.rows) == (30, 2, 4, 20, 30)
