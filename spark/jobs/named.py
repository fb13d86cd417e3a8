"""The jobs by their names. pyspark is imported when one runs, and no sooner: whoever has not got it reads in a sentence what to install."""

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Final

from spark.errors import SparkUnavailable
from spark.requirements import found_pyspark
from spark.stopping import Stopping

JOBS: Final = {
    "materialize": "Write topics to a table, each record once.",
    "windows": "Sum delays up by carrier and hour, as event time has it.",
    "sessions": "Put the flights of an aircraft together to its days.",
    "changelog": "Keep a table of the last value of each key of a topic.",
    "audit": "Compare a table with the log, record by record.",
    "replay": "Write a table back to a topic.",
    "offsets": "Commit the progress of a query to a consumer group.",
    "pipeline": "Do what `forebay demo --pipeline` has Spark do.",
    "upkeep": "Merge small files of a table, and delete old versions.",
}

_USAGE: Final = 2


def run_named(arguments: Sequence[str]) -> int:
    """Run the job that the first of them names, with the others; without any, list the jobs. Return the exit code of `spark.jobs.job`."""
    if not arguments or arguments[0] in {"--help", "-h"}:
        width = max(map(len, JOBS))
        sys.stdout.write("\n".join(f"{name:<{width}}  {summary}" for name, summary in JOBS.items()) + "\n")
        return 0
    name, *others = arguments
    if name not in JOBS:
        sys.stderr.write(f"There is no job {name}. There are: {', '.join(JOBS)}.\n")
        return _USAGE
    try:
        found_pyspark()
    except SparkUnavailable as error:
        sys.stderr.write(f"{error}\n")
        return os.EX_UNAVAILABLE
    stopping = Stopping()
    with stopping.by_signals():
        from spark.jobs.job import main

        return main(importlib.import_module(f"spark.jobs.{name}").JOB, others, stopping)
