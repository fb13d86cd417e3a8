"""A driver that is killed at a named moment: `python -m tests.spark.dying "after merge 2" JOB …` runs a job of spark.jobs until then.

The moment is before or after the call of a function of the job's module, by its number, from 1. `kill -9` takes its JVM, too.
"""

import importlib
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from spark.jobs.__main__ import run_named


def main(arguments: Sequence[str]) -> int:
    moment, job, *others = arguments
    when, name, number = moment.split()
    module = importlib.import_module(f"spark.jobs.{job}")
    does = getattr(module, name)
    calls = 0

    def dies(*args: Any, **given: Any) -> Any:
        nonlocal calls
        calls += 1
        is_time = calls == int(number)
        if is_time and when == "before":
            die()
        done = does(*args, **given)
        if is_time:
            die()
        return done

    setattr(module, name, dies)
    return run_named([job, *others])


def die() -> None:
    """With all that is in its group, which has to be its own."""
    assert os.getpgrp() == os.getpid(), "others would die, too"
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
