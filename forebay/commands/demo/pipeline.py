"""Spark beside the demo: a driver in a process of its own puts the flights into tables while they come (spark/jobs/pipeline.py)."""

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from rich.console import Console

from forebay.commands.demo.flights import FlightRecord
from forebay.commands.demo.own_topic import PREFIX
from process.settings.errors import EXIT_FAILED, EXIT_USAGE, StartError
from runtime.clock import Clock
from spark.errors import SparkUnavailable
from spark.requirements import found_java, found_pyspark
from spark.session import kept_jars

RECORDS_PER_S: Final = 6_000
"""A pace that one can watch."""
FOLDER: Final = "pipeline"
PICTURE: Final = "delays.png"
_READING: Final = "reading "
_STEP: Final = 200
_READY_WITHIN_S: Final = 180.0
_DONE_WITHIN_S: Final = 600.0
_STOP_WITHIN_S: Final = 20.0
_LOOK_EVERY_S: Final = 0.1
_LAST_LINES: Final = 12
_NOISE: Final = "WARNING: Using incubator modules"
"""What every JVM says that Spark starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelinePlace:
    """Where the tables of a run go. Those of the run before are deleted."""

    folder: Path

    @property
    def picture(self) -> Path:
        return self.folder / PICTURE

    def tables(self, topic: str) -> Path:
        return self.folder / topic

    def clear(self) -> None:
        for earlier in self.folder.glob(f"{PREFIX}-*"):
            shutil.rmtree(earlier)


def check_spark() -> None:
    """Raise `StartError` with what is missing."""
    try:
        found_pyspark()
        found_java()
        kept_jars()
    except SparkUnavailable as error:
        raise StartError(str(error), exit_code=EXIT_USAGE) from error
    if importlib.util.find_spec("matplotlib") is None:
        raise StartError(
            "The delays are drawn by matplotlib, which is not installed. In a clone: uv tool install --force '.[pipeline]', or "
            "make setup-dev.",
            exit_code=EXIT_USAGE,
        )


def paced(records: Iterable[FlightRecord], clock: Clock) -> Iterator[FlightRecord]:
    """`RECORDS_PER_S` of them a second, from the first one on."""
    began_s = clock.monotonic_s()
    for number, record in enumerate(records):
        if number % _STEP == 0:
            time.sleep(max(0.0, began_s + number / RECORDS_PER_S - clock.monotonic_s()))
        yield record


class SparkProcess:
    """Runs while the `with` block does. What it says is passed on, each line after `spark`."""

    def __init__(self, place: PipelinePlace, *, bootstrap: Sequence[str], topic: str, console: Console, clock: Clock) -> None:
        self._place = place
        self._command = [
            *(sys.executable, "-m", "spark.jobs", "pipeline", "--topic", topic, "--bootstrap-servers", ",".join(bootstrap)),
            *("--folder", str(place.tables(topic)), "--picture", str(place.picture)),
        ]
        self._console = console
        self._clock = clock
        self._is_reading = threading.Event()
        self._last: deque[str] = deque(maxlen=_LAST_LINES)
        self._process: subprocess.Popen[str] | None = None
        self._passing_on: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._place.clear()
        # A session of its own: Ctrl-C reaches the demo alone, which then ends it, and its JVM with it.
        self._process = subprocess.Popen(  # noqa: S603 - our own command line
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._passing_on = threading.Thread(target=self._pass_on, name="spark", daemon=True)
        self._passing_on.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(_STOP_WITHIN_S)

    def wait_reading(self) -> None:
        """Until the queries run. Raise `StartError` with its last words if it ends or takes too long."""
        give_up_s = self._clock.monotonic_s() + _READY_WITHIN_S
        while not self._is_reading.wait(_LOOK_EVERY_S):
            if self._clock.monotonic_s() > give_up_s:
                raise self._failure(f"did not start within {_READY_WITHIN_S:.0f} s")
            self.check()

    def check(self) -> None:
        """Raise `StartError` with its last words if it has ended."""
        assert self._process is not None
        if self._process.poll() is not None:
            raise self._failure("ended by itself")

    def finish(self) -> None:
        """No more comes: it reads the rest, compares and draws. Raise `StartError` if the table is not what the log is."""
        assert self._process is not None
        self.check()
        self._process.terminate()
        try:
            code = self._process.wait(_DONE_WITHIN_S)
        except subprocess.TimeoutExpired as error:
            raise self._failure(f"was not done within {_DONE_WITHIN_S:.0f} s") from error
        self._wait_passed_on()
        if code != 0:
            raise self._failure("found differences, or could not go on")

    def _pass_on(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            words = line.rstrip()
            if words.startswith(_NOISE):
                continue
            self._last.append(words)
            self._console.print(f"spark     {words}" if words else "")
            if words.startswith(_READING):
                self._is_reading.set()

    def _wait_passed_on(self) -> None:
        assert self._passing_on is not None
        self._passing_on.join(_STOP_WITHIN_S)

    def _failure(self, what: str) -> StartError:
        self._wait_passed_on()
        words = "".join(f"\n  {line}" for line in self._last)
        return StartError(f"Spark {what}. Its last words:{words}", exit_code=EXIT_FAILED)
