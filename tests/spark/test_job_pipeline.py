"""What `forebay demo --pipeline` shows: sums of delays, a picture of them, and an audit; a broker is killed on the way."""

import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(900)

RECORDS: Final = 30_000
ENDED_WITHIN_S: Final = 600.0
PNG: Final = b"\x89PNG\r\n\x1a\n"
COLUMNS: Final = "carrier string, window_start timestamp, flights long, cancelled long, mean_delay double, max_delay int"


def windows(spark: "SparkSession", *rows: tuple[Any, ...]) -> "DataFrame":
    return spark.createDataFrame(
        [(carrier, datetime(2013, 1, day, hour, tzinfo=UTC), *rest) for carrier, day, hour, *rest in rows], COLUMNS
    )


def test_means_of_windows_are_weighted_by_flights_that_departed(spark: "SparkSession") -> None:
    from spark.jobs.pipeline import by_carrier

    given = windows(spark, ("UA", 1, 10, 3, 1, 10.0, 15), ("UA", 1, 11, 8, 0, 0.0, 4), ("AA", 1, 10, 1, 1, None, None))

    found = [tuple(row) for row in by_carrier(given).collect()]

    assert found == [("UA", 11, 1, 2.0, 15, 5), ("AA", 1, 1, None, None, None)]


def test_an_hour_is_new_yorks(spark: "SparkSession") -> None:
    from spark.jobs.pipeline import by_carrier_and_hour

    given = windows(spark, ("UA", 1, 10, 2, 0, 10.0, 15), ("UA", 2, 10, 1, 0, 40.0, 40), ("UA", 2, 3, 1, 1, None, None))

    found = sorted((row.hour, row.flights, row.mean_delay) for row in by_carrier_and_hour(given).collect())

    assert found == [(5, 3, 20.0), (22, 1, None)]


def test_a_picture_is_drawn_of_whatever_there_is(tmp_path: Path) -> None:
    from spark.drawing import HourlyDelay, draw_delays

    picture = tmp_path / "new" / "delays.png"

    for found in (
        [],
        [HourlyDelay(carrier="United", hour=22, flights=1, mean_delay=None)],
        [HourlyDelay(carrier=name, hour=hour, flights=50, mean_delay=hour - 10.0) for name in ("United", "Delta") for hour in range(5, 24)],
    ):
        draw_delays(found, picture)
        assert picture.read_bytes().startswith(PNG)

    assert [one.name for one in picture.parent.iterdir()] == ["delays.png"]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_demo_with_its_pipeline_ends_with_a_clean_audit_and_a_picture(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "forebay", "demo", "--pipeline", "--exit", "--records", str(RECORDS)]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ENDED_WITHIN_S, check=False, env=environ, cwd=tmp_path
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^killed    the broker on ", done.stdout, re.MULTILINE)
    assert f"audit: {RECORDS} of {RECORDS} records, no gap, no duplicate" in done.stdout
    assert re.search(r"^spark     United +[\d,]+ +\d+ +\d+ min", done.stdout, re.MULTILINE)
    assert "on S3 Standard these requests would have cost $" in done.stdout
    assert "Exception" not in done.stdout + done.stderr
    assert (tmp_path / "forebay-data" / "pipeline" / "delays.png").read_bytes().startswith(PNG)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--in-memory",), "--pipeline keeps tables in the data folder, so it cannot run with --in-memory."),
        ((), "Spark needs Java, and JAVA_HOME is /nowhere, and there is no bin/java in it. "),
    ],
)
def test_what_the_pipeline_needs_is_said_before_a_broker_is_started(arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "forebay", "demo", "--pipeline", "--data", str(tmp_path), *arguments]
    environ = {**os.environ} | ({} if arguments else {"JAVA_HOME": "/nowhere"})
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60.0, check=False, env=environ)

    assert done.returncode == 2
    assert done.stdout.startswith(said), done.stdout
    assert list(tmp_path.iterdir()) == []
