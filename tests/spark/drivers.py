"""Drivers in processes of their own, which a test may kill."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.kit.serving import ROOT
from tests.spark.reading import FINISHED_WITHIN_S


@contextlib.contextmanager
def driver(module: str, *arguments: str, folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """`python -m MODULE …`, killed with its JVM in the end. What it logs is added to driver.log in the folder."""
    with (folder / "driver.log").open("a") as log:
        running = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=ROOT,
            start_new_session=True,
        )
    try:
        yield running
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.communicate(timeout=FINISHED_WITHIN_S)
