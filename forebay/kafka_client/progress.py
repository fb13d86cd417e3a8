"""Progress of a command: records on one line of a terminal, with their number, size and rate, or the steps of a long task.

Steps are a bar on a terminal, and a line every ten seconds elsewhere. rich is imported for that bar alone.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, Protocol, TextIO

from runtime.clock import Clock

if TYPE_CHECKING:
    from rich.console import Console

SHOWN_AFTER_S: Final = 0.5
DRAWN_EVERY_S: Final = 0.1
BAR_CELLS: Final = 20
_WIDTH: Final = 80
_ERASED: Final = "\r\x1b[K"
LINE_EVERY_S: Final = 10.0

Advance = Callable[[int], None]
"""So many more are done."""


class Progress(Protocol):
    def moved(self, records: int, size_bytes: int) -> None:
        """So many more, and so large they are."""


class Silent:
    """Where nobody looks."""

    def moved(self, records: int, size_bytes: int) -> None:
        pass


class ProgressLine:
    """`whole` is what there will be, counted as `of` says: records, or bytes. What is done within half a second is not talked about."""

    def __init__(self, stream: TextIO, *, whole: int | None, in_bytes: bool, clock: Clock) -> None:
        self._stream = stream
        self._whole = whole
        self._in_bytes = in_bytes
        self._clock = clock
        self._began_s = clock.monotonic_s()
        self._drawn_s = self._began_s + SHOWN_AFTER_S - DRAWN_EVERY_S
        self._records = 0
        self._size_bytes = 0
        self._is_shown = False

    def moved(self, records: int, size_bytes: int) -> None:
        self._records += records
        self._size_bytes += size_bytes
        now_s = self._clock.monotonic_s()
        if now_s - self._drawn_s >= DRAWN_EVERY_S:
            self._drawn_s = now_s
            self._is_shown = True
            self._stream.write(f"{_ERASED}{self._drawn(now_s - self._began_s)[: _columns(self._stream) - 1]}")
            self._stream.flush()

    def erased(self) -> None:
        if self._is_shown:
            self._stream.write(_ERASED)
            self._stream.flush()

    def _drawn(self, elapsed_s: float) -> str:
        parts = [f"{self._records:,} records", f"{self._size_bytes / 1e6:,.1f} MB", f"{self._records / elapsed_s:,.0f}/s"]
        if self._whole:
            share = min(1.0, (self._size_bytes if self._in_bytes else self._records) / self._whole)
            full = int(share * BAR_CELLS)
            parts.insert(0, f"[{'#' * full}{'-' * (BAR_CELLS - full)}] {int(share * 100):3d}%")
        return "  ".join(parts)


@contextlib.contextmanager
def progress(*, quiet: bool, whole: int | None = None, in_bytes: bool = False, clock: Clock) -> Iterator[Progress]:
    """On stderr, if that is a terminal and may be talked to."""
    if quiet or sys.stderr is None or not sys.stderr.isatty():
        yield Silent()
        return
    line = ProgressLine(sys.stderr, whole=whole, in_bytes=in_bytes, clock=clock)
    try:
        yield line
    finally:
        line.erased()


def _columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or _WIDTH
    except (OSError, ValueError):
        return _WIDTH


@contextlib.contextmanager
def step_progress(console: "Console", label: str, *, total: int, clock: Clock) -> Iterator[Advance]:
    if console.is_terminal:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Bars(*columns, console=console, transient=True) as bars:
            task = bars.add_task(label, total=total)
            yield lambda done: bars.advance(task, done)
    else:
        yield _StepLines(console, label, total, clock).advance


class _StepLines:
    def __init__(self, console: "Console", label: str, total: int, clock: Clock) -> None:
        self._console = console
        self._label = label
        self._total = total
        self._clock = clock
        self._done = 0
        self._last_s = clock.monotonic_s()

    def advance(self, done: int) -> None:
        self._done += done
        now_s = self._clock.monotonic_s()
        if now_s - self._last_s >= LINE_EVERY_S:
            self._last_s = now_s
            self._console.print(f"{self._label}: {self._done:,} of {self._total:,}")
