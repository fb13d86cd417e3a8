"""A job that kills itself: `python -m tests.spark.flight_driver JOB POINT BATCH SETTINGS…`, with all its processes, as `kill -9` does.

planned    the batch's offsets are noted, and nothing else of it
computed   its state is written, its rows are not
written    its rows are in the table, and nothing says that it is done
never      the job ends by itself, and each row of its table is printed, as JSON
"""

import dataclasses
import importlib
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from pyspark.sql import DataFrame

import spark.jobs.flights
from spark.queries import Stopping
from spark.session import open_session
from spark.settings import load
from spark.tables import TableBatch
from tests.spark.flight_streams import as_numbers

POINTS: Final = ("planned", "computed", "written")
_run_flights = spark.jobs.flights.run_flights
_write_batch = spark.jobs.flights.FlightBatches.write


def main(arguments: Sequence[str]) -> int:
    name, point, batch, *given = arguments
    module = importlib.import_module(f"spark.jobs.{name}")
    settings = load(module.JOB.settings, name, given, {})

    def plan(batches: Any, rows: DataFrame, number: int) -> None:
        die_if(point == "planned" and number == int(batch))
        _write_batch(batches, rows, number)

    def run_flights(spark: Any, settings: Any, stopping: Stopping, query: Any) -> Any:
        mortal = dataclasses.replace(query, write=dying(query.write, point, int(batch)))
        return _run_flights(spark, settings, stopping, mortal)

    spark.jobs.flights.FlightBatches.write = plan  # type: ignore[method-assign]
    module.run_flights = run_flights
    with open_session(dataclasses.replace(settings.session(name), is_brief=True)) as session:
        code: int = module.JOB.run(session, settings, Stopping())
        for row in as_numbers(settings.output.read(session)).collect():
            print(json.dumps(row.asDict(recursive=True)))
    return code


def dying(write: Callable[[DataFrame, TableBatch], None], point: str, number: int) -> Callable[[DataFrame, TableBatch], None]:
    def written(rows: DataFrame, batch: TableBatch) -> None:
        die_if(point == "computed" and batch.number == number)
        write(rows, batch)
        die_if(point == "written" and batch.number == number)

    return written


def die_if(is_time: bool) -> None:
    if is_time:
        os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
