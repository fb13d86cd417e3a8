"""How far a long step is: a bar on a terminal, a line every ten seconds elsewhere."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from runtime.clock import Clock

LINE_EVERY_S: Final = 10.0

Advance = Callable[[int], None]
"""So many more are done."""


@contextlib.contextmanager
def progress(console: Console, label: str, *, total: int, clock: Clock) -> Iterator[Advance]:
    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True) as bars:
            task = bars.add_task(label, total=total)
            yield lambda done: bars.advance(task, done)
    else:
        yield _Lines(console, label, total, clock).advance


class _Lines:
    def __init__(self, console: Console, label: str, total: int, clock: Clock) -> None:
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
