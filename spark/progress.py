"""How far a query is: one line that is written over on a terminal, a line every ten seconds elsewhere."""

import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TextIO

LINE_EVERY_S: Final = 10.0
_BACK: Final = "\r\x1b[K"


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
