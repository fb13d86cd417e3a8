"""Running a streaming query to its end: by itself, by a signal, or by an error, of which the user reads the cause.

Its progress is one line that is written over on a terminal, a line every ten seconds elsewhere.
"""

import json
import re
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TextIO

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from spark.errors import JobFailed
from spark.settings import Duration
from spark.stopping import Stopping

LINE_EVERY_S: Final = 10.0
_BACK: Final = "\r\x1b[K"
_LOOK_EVERY_S: Final = 0.25
_ASK_EVERY_S: Final = 0.005
_COMMITTED_WITHIN_S: Final = 10.0
_LINES_MAX: Final = 6
_STACK: Final = "\n\tat "
_FAILED_IN_A_WORKER: Final = re.compile(r"spark\.errors\.JobFailed: (.*)")
_CAUSES: Final = re.compile(r"^Caused by: (?:[\w$]+\.)*([\w$]+: .*)", re.MULTILINE)
_CALLED: Final = re.compile(r"An error occurred while calling o\d+\.")
_HINTS: Final = {
    "Some data may have been lost": "Records that were next are gone: retention or DeleteRecords was faster, or the topic was made again. "
    "`--fail-on-data-loss false` goes on with what is left.",
    "UnknownTopicOrPartition": "There is no such topic. Create it, or name another.",
    "DELTA_CONCURRENT": "Somebody else wrote to the table meanwhile. Nothing of this batch was written: start again.",
    "DELTA_FAILED_TO_MERGE_FIELDS": "A column has another type in the table. Name a new table, or change the schema back.",
}


class QueryLine:
    def __init__(self, name: str, *, out: TextIO | None = None, now_s: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._out = out or sys.stderr
        self._now_s = now_s
        self._said_s = now_s()
        self._batch = -1
        self._rows = 0
        self._last = ""
        self._written = ""

    @property
    def rows(self) -> int:
        """All that this run of the query has read."""
        return self._rows

    def show(self, recent: Sequence[Any]) -> None:
        """What `StreamingQuery.recentProgress` is, in which much is the same as before."""
        if not recent:
            return
        done = batches_after(self._batch, recent)
        self._rows += sum(one["numInputRows"] for one in done)
        self._batch = max([self._batch, *(one["batchId"] for one in done)])
        progress = recent[-1]
        self._last = f"{self._name}: {line_of(progress, rows=self._rows)}"
        if self._out.isatty():
            self._out.write(f"{_BACK}{self._last}")
            self._out.flush()
        elif self._last != self._written and self._now_s() - self._said_s >= LINE_EVERY_S:
            self._said_s = self._now_s()
            self._written = self._last
            self._out.write(f"{self._last}\n")
            self._out.flush()

    def end(self) -> None:
        """The last line stays."""
        if self._last and self._out.isatty():
            self._out.write("\n")
        elif self._last and self._last != self._written:
            self._out.write(f"{self._last}\n")
        self._out.flush()


def batches_after(batch: int, recent: Sequence[Any]) -> list[Any]:
    """A look that found nothing is none of them: it is reported under the number that the next batch will have."""
    return [one for one in recent if one["batchId"] > batch and "addBatch" in one["durationMs"]]


def line_of(progress: Any, *, rows: int) -> str:
    duration_ms = progress["durationMs"].get("triggerExecution", 0)
    rate = progress["processedRowsPerSecond"] or 0.0
    behind = behind_of(progress)
    late = sum(int(one["numRowsDroppedByWatermark"]) for one in progress["stateOperators"])
    parts = [
        f"batch {progress['batchId']:,}",
        f"{rows:,} rows",
        f"{rate:,.0f} rows/s",
        f"{duration_ms / 1000:.1f} s a batch",
        *([] if behind is None else [f"{behind:,.0f} offsets behind"]),
        *([f"{late:,} rows too late"] if late else []),
    ]
    return " · ".join(parts)


def behind_of(progress: Any) -> float | None:
    """Records between what a query has read and the ends of its partitions; None where Spark does not say."""
    found = [float(source["metrics"]["avgOffsetsBehindLatest"]) * _partitions(source) for source in progress["sources"] if _says(source)]
    return sum(found) if found else None


def _says(source: Any) -> bool:
    return "avgOffsetsBehindLatest" in (source["metrics"] or {})


def _partitions(source: Any) -> int:
    ends = source["endOffset"]
    by_topic = json.loads(ends) if isinstance(ends, str) else ends or {}
    return sum(len(numbers) for numbers in by_topic.values())


def run_query(
    rows: DataFrame,
    write: Callable[[DataFrame, int], None],
    *,
    name: str,
    checkpoint: str,
    interval: Duration | None,
    stopping: Stopping,
    output_mode: str = "append",
    on_start: Callable[[StreamingQuery], None] | None = None,
    on_progress: Callable[[Sequence[Any]], None] | None = None,
) -> int:
    """Hand each batch of `rows` to `write`, with its number, until a signal comes; without an interval, until all there is was read.

    `on_progress` is handed what Spark keeps of its progress, again and again. Return how many rows it read. Raise `JobFailed` with the
    cause, and what to do where it is known.
    """
    trigger: dict[str, Any] = {"availableNow": True} if interval is None else {"processingTime": interval.for_spark}
    line = QueryLine(name)
    writing = BatchWriting(write)
    started = rows.writeStream.foreachBatch(writing).outputMode(output_mode).queryName(name)
    query = started.option("checkpointLocation", checkpoint).trigger(**trigger).start()

    def show() -> None:
        recent = query.recentProgress
        line.show(recent)
        if on_progress is not None:
            on_progress(recent)

    try:
        if on_start is not None:
            on_start(query)
        while not query.awaitTermination(_LOOK_EVERY_S):  # type: ignore[arg-type]  # its JVM waits for milliseconds
            show()
            if stopping.is_asked:
                if interval is None:
                    stopping.cut_short()
                _stop(query, writing)
        show()
        return line.rows
    except Exception as error:
        if isinstance(writing.error, _NoMoreBatches):
            show()
            return line.rows
        raise JobFailed(explain(writing.error or error)) from error
    finally:
        query.stop()
        line.end()


class _NoMoreBatches(Exception):
    """Ends a query in place of a batch."""


class BatchWriting:
    """`write` for `foreachBatch`, as long as batches are wanted.

    Keeps what ended it: Spark's own error has it among the stacks of two languages.
    """

    def __init__(self, write: Callable[[DataFrame, int], None]) -> None:
        self._write = write
        self._at_a_batch = threading.Lock()
        self._is_over = False
        self.error: Exception | None = None
        self.last = -1
        """The batch that was written last."""

    def __call__(self, rows: DataFrame, number: int) -> None:
        with self._at_a_batch:
            try:
                if self._is_over:
                    raise _NoMoreBatches
                self._write(rows, number)
                self.last = number
            except Exception as error:
                self.error = error
                raise

    def end(self) -> None:
        """When the batch that is being written is done."""
        self._is_over = True
        with self._at_a_batch:
            pass


def _stop(query: StreamingQuery, writing: BatchWriting) -> None:
    """Between two batches: Spark interrupts one that is under way, and gets lost in the stack that Python then hands it."""
    writing.end()
    give_up_s = time.monotonic() + _COMMITTED_WITHIN_S
    # What is written still has to be noted in the checkpoint, or it is done once more. Then the next batch is planned, which may be
    # interrupted; should it get as far as `write`, it is refused there.
    while query.isActive and not _is_noted(query, writing.last) and time.monotonic() < give_up_s:
        time.sleep(_ASK_EVERY_S)
    query.stop()


def _is_noted(query: StreamingQuery, number: int) -> bool:
    return number < 0 or bool(batches_after(number - 1, query.recentProgress))


def explain(error: BaseException) -> str:
    """The cause in a few lines, and what to do where it is known."""
    if isinstance(error, JobFailed):
        return str(error)
    said = str(error)
    if in_a_worker := _FAILED_IN_A_WORKER.search(said):
        return in_a_worker[1]
    lines = [line for line in said.partition(_STACK)[0].splitlines() if line.strip() and not _CALLED.match(line)]
    causes = [cause for cause in _CAUSES.findall(said)[-1:] if not any(cause in line for line in lines)]
    hints = [hint for sign, hint in _HINTS.items() if sign in said]
    return "\n".join([*lines[:_LINES_MAX], *causes, *hints])
