"""How a query ends: by itself, between two batches when it is told to, and with what a batch has raised."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from spark.errors import JobFailed
from spark.settings import Duration

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(900)

ENDED_WITHIN_S: Final = 60.0
FULL: Final = "the table is full"
OFTEN: Final = Duration(0.01)


def run(spark: "SparkSession", folder: Path, write: "Callable[[DataFrame, int], None]", stopping: Any, **given: Any) -> int:
    from spark.queries import run_query

    rows = spark.readStream.format("rate").option("rowsPerSecond", 1_000).load()
    usual: dict[str, Any] = {"name": folder.name, "checkpoint": str(folder), "interval": OFTEN, "stopping": stopping}
    return run_query(rows, write, **usual | given)


def committed(folder: Path) -> set[int]:
    return {int(one.name) for one in (folder / "commits").iterdir() if one.name.isdigit()}


def test_a_query_that_is_told_to_stop_ends_after_the_batch_it_is_at(spark: "SparkSession", tmp_path: Path) -> None:
    from spark.stopping import Stopping

    stopping = Stopping()
    written: list[int] = []

    def write(rows: "DataFrame", number: int) -> None:
        if number == 2:
            stopping.ask()
        rows.count()
        written.append(number)

    run(spark, tmp_path, write, stopping)

    assert written[:3] == [0, 1, 2]
    assert committed(tmp_path) == set(written), "what was written is noted, and nothing else"


def test_a_query_that_has_nothing_to_read_ends_when_it_is_told_to(spark: "SparkSession", tmp_path: Path) -> None:
    from spark.stopping import Stopping

    stopping = Stopping()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run, spark, tmp_path, lambda *_: None, stopping, interval=Duration(3_600))
        stopping.ask()
        running.result(ENDED_WITHIN_S)


@pytest.mark.parametrize(
    "error", [JobFailed("the table is full"), ZeroDivisionError("the table is full")], ids=lambda one: type(one).__name__
)
def test_what_a_batch_raises_is_what_the_query_ends_with(spark: "SparkSession", tmp_path: Path, error: Exception) -> None:
    from spark.stopping import Stopping

    def write(rows: "DataFrame", number: int) -> None:
        raise error

    with pytest.raises(JobFailed, match=f"^{FULL}$"):
        run(spark, tmp_path, write, Stopping())

    assert not (tmp_path / "commits").exists() or committed(tmp_path) == set()
