"""Stopping a job by SIGTERM or Ctrl-C. pyspark is not imported here: its import takes seconds, in which a signal may come."""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INTERRUPTED: Final = 130
"""The exit code of a job that was stopped before it was done."""
_LOOK_EVERY_S: Final = 0.25
_ANSWERED_WITHIN_S: Final = 10.0


class Stopping:
    """By SIGINT or SIGTERM: a query ends after the batch it is at, and Spark's work for any other job is cancelled. By a second signal the
    process ends at once, and the next run does the batch again.
    """

    def __init__(self) -> None:
        self._signal = ""
        self._is_asked = self._is_urgent = self._is_watched = self._is_cut_short = False

    @property
    def is_asked(self) -> bool:
        return self._is_asked

    @property
    def is_cut_short(self) -> bool:
        """Whether the job left something undone."""
        return self._is_cut_short

    @property
    def line(self) -> str:
        """For the user of a job that left something undone."""
        return f"stopped by {self._signal or 'request'} before it was done: run it again to go on"

    def wait(self, seconds: float) -> bool:
        """Until it is asked, or this long. Return whether it is.

        No lock is waited at: the handler of a signal, which asks, may run while this thread has it.
        """
        give_up_s = time.monotonic() + seconds
        while not self._is_asked and (left_s := give_up_s - time.monotonic()) > 0:
            time.sleep(min(left_s, _LOOK_EVERY_S))
        return self._is_asked

    def ask(self) -> None:
        self._is_asked = True

    def cut_short(self) -> None:
        self._is_cut_short = True

    @contextmanager
    def by_signals(self) -> Iterator[None]:
        """In the main thread, whose handlers are the former ones afterwards. pyspark sets one of its own when a session starts: enter this
        before, and once more after.
        """
        before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def watched(self, spark: "SparkSession", *, cancels: bool) -> Iterator[None]:
        """End the process at a second signal that comes inside the block. `cancels`: at the first, cancel all that Spark runs.

        A thread asks the JVM. A signal's handler would ask it between another question and its answer, and get that answer.
        """
        over = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(spark, over), kwargs={"cancels": cancels}, name="watch", daemon=True)
        self._is_watched = True
        watcher.start()
        try:
            yield
        finally:
            self._is_watched = False
            over.set()
            watcher.join(_ANSWERED_WITHIN_S)

    def _watch(self, spark: "SparkSession", over: threading.Event, *, cancels: bool) -> None:
        from py4j.protocol import Py4JError

        while not self.wait(_LOOK_EVERY_S):
            if over.is_set():
                return
        try:
            while not over.wait(_LOOK_EVERY_S):
                if cancels or self._is_urgent:
                    # No cancelled work is worth a stack.
                    spark.sparkContext.setLogLevel("OFF")
                if self._is_urgent:
                    self._end()
                if cancels:
                    spark.sparkContext.cancelAllJobs()
        except Py4JError as error:
            # The block is about to find out that its JVM is gone.
            sys.stderr.write(f"Spark's jobs could not be cancelled: {type(error).__name__}\n")

    def _on_signal(self, number: int, _: object) -> None:
        if self._is_urgent or (self._signal and not self._is_watched):
            self._end()
        self._is_urgent = bool(self._signal)
        self._signal = signal.Signals(number).name
        self.ask()

    def _end(self) -> None:
        os.write(sys.stderr.fileno(), f"{self.line}\n".encode())
        os._exit(INTERRUPTED)
