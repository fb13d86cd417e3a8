"""Running a streaming query to its end: by itself, by a signal, or by an error, of which the user reads the cause and not the stack."""

import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from spark.errors import JobFailed
from spark.progress import QueryLine
from spark.settings import Duration

_LOOK_EVERY_S: Final = 0.25
_LINES_MAX: Final = 6
_STACK: Final = "\n\tat "
_CALLED: Final = re.compile(r"An error occurred while calling o\d+\.")
_HINTS: Final = {
    "Some data may have been lost": "Records that were next are gone: retention or DeleteRecords was faster, or the topic was made again. "
    "`--fail-on-data-loss false` goes on with what is left.",
    "UnknownTopicOrPartition": "There is no such topic. Create it, or name another.",
    "ConcurrentAppend": "Somebody else wrote to the table meanwhile. Nothing of this batch was written: start again.",
    "DELTA_FAILED_TO_MERGE_FIELDS": "A column has another type in the table. Name a new table, or change the schema back.",
}


class Stopping:
    """Set by SIGINT and SIGTERM: a query ends between two batches, or gives up the one it is at, which the next run does again."""

    def __init__(self) -> None:
        self._asked = threading.Event()

    @property
    def is_asked(self) -> bool:
        return self._asked.is_set()

    def ask(self, *_: object) -> None:
        self._asked.set()

    @contextmanager
    def by_signals(self) -> Iterator[None]:
        """In the main thread. pyspark sets a handler of its own when a session starts: this comes after."""
        before = {number: signal.signal(number, self.ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """As by Ctrl-C: pyspark cancels what runs, and raises `KeyboardInterrupt`."""
    before = signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def run_query(
    rows: DataFrame,
    write: Callable[[DataFrame, int], None],
    *,
    name: str,
    checkpoint: str,
    interval: Duration | None,
    stopping: Stopping,
    on_start: Callable[[StreamingQuery], None] | None = None,
) -> int:
    """Hand each batch of `rows` to `write`, with its number, until a signal comes; without an interval, until all there is was read.

    Return how many rows it read. Raise `JobFailed` with the cause, and what to do where it is known.
    """
    trigger: dict[str, Any] = {"availableNow": True} if interval is None else {"processingTime": interval.for_spark}
    line = QueryLine(name)
    writing = BatchWriting(write)
    query = rows.writeStream.foreachBatch(writing).queryName(name).option("checkpointLocation", checkpoint).trigger(**trigger).start()
    try:
        if on_start is not None:
            on_start(query)
        while not query.awaitTermination(_LOOK_EVERY_S):  # type: ignore[arg-type]  # its JVM waits for milliseconds
            line.show(query.recentProgress)
            if stopping.is_asked:
                query.stop()
        line.show(query.recentProgress)
        return line.rows
    except Exception as error:
        raise JobFailed(explain(writing.error or error)) from error
    finally:
        query.stop()
        line.end()


class BatchWriting:
    """`write` for `foreachBatch`. Keeps what ended it: Spark's own error has it among the stacks of two languages."""

    def __init__(self, write: Callable[[DataFrame, int], None]) -> None:
        self._write = write
        self.error: Exception | None = None

    def __call__(self, rows: DataFrame, number: int) -> None:
        try:
            self._write(rows, number)
        except Exception as error:
            self.error = error
            raise


def explain(error: BaseException) -> str:
    """The cause in a few lines, and what to do where it is known."""
    if isinstance(error, JobFailed):
        return str(error)
    said = str(error)
    lines = [line for line in said.partition(_STACK)[0].splitlines() if line.strip() and not _CALLED.match(line)]
    hints = [hint for sign, hint in _HINTS.items() if sign in said]
    return "\n".join([*lines[:_LINES_MAX], *hints])
