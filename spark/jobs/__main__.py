"""`python -m spark.jobs NAME …`: run a job. Without a name, list them."""

import importlib
import sys
from collections.abc import Sequence
from typing import Final

from spark.errors import SparkUnavailable
from spark.requirements import found_pyspark

JOBS: Final = {
    "materialize": "Write topics to a table, each record once.",
    "windows": "Sum delays up by carrier and hour, as event time has it.",
    "sessions": "Put the flights of an aircraft together to its days.",
    "changelog": "Keep a table of the last value of each key of a topic.",
    "audit": "Compare a table with the log, record by record.",
    "replay": "Write a table back to a topic.",
    "offsets": "Commit the progress of a query to a consumer group.",
    "upkeep": "Put small files of a table together, and delete what no version needs.",
}


def run_named(arguments: Sequence[str]) -> int:
    """The exit code. Every job has `--help`."""
    if not arguments or arguments[0] in {"--help", "-h"}:
        width = max(map(len, JOBS))
        sys.stdout.write("\n".join(f"{name:<{width}}  {summary}" for name, summary in JOBS.items()) + "\n")
        return 0
    name, *others = arguments
    if name not in JOBS:
        sys.stderr.write(f"There is no job {name}. There are: {', '.join(JOBS)}.\n")
        return 2
    try:
        found_pyspark()
    except SparkUnavailable as error:
        sys.stderr.write(f"{error}\n")
        return 69
    from spark.jobs.job import main

    return main(importlib.import_module(f"spark.jobs.{name}").JOB, others)


if __name__ == "__main__":
    sys.exit(run_named(sys.argv[1:]))
