"""A job that kills itself: `python -m tests.spark.flight_driver JOB POINT BATCH SETTINGS…`, with all its processes, as `kill -9` does.

    planned    the batch's offsets are noted, and nothing else of it
    computed   its state is written, its rows are not
    written    its rows are in the table, and nothing says that it is done

At the point `never` it ends by itself, and prints each row of its table, as JSON.
"""

import dataclasses
import importlib
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Final
from unittest.mock import patch

from pyspark.sql import DataFrame, SparkSession

from spark.jobs.flights import FlightBatches, FlightQuery, FlightSettings, Tally, run_flights
from spark.session import open_session
from spark.settings import load
from spark.stopping import Stopping
from spark.tables import TableBatch
from tests.spark.flight_streams import as_numbers

_write_batch: Final = FlightBatches.write


def main(arguments: Sequence[str]) -> int:
    name, point, batch, *given = arguments
    module = importlib.import_module(f"spark.jobs.{name}")
    settings = load(module.JOB.settings, name, given, {})

    def plan(batches: FlightBatches, rows: DataFrame, number: int) -> None:
        die_if(point == "planned" and number == int(batch))
        _write_batch(batches, rows, number)

    def run_mortal(session: SparkSession, settings: FlightSettings, stopping: Stopping, query: FlightQuery) -> Tally:
        return run_flights(session, settings, stopping, dataclasses.replace(query, write=dying(query.write, point, int(batch))))

    with (
        open_session(dataclasses.replace(settings.session(name), is_brief=True)) as session,
        patch.object(FlightBatches, "write", plan),
        patch.object(module, "run_flights", run_mortal),
    ):
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
