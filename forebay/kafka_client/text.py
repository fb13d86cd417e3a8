"""Text for terminals: control characters in names and values of others are shown and not obeyed, rows become aligned columns.

Progress is records on one line, with their number, size and rate, or steps of a long task: a bar on a terminal, and a line every ten
seconds elsewhere. `--help` reads this file, so it imports neither rich nor asyncio: the bar does.
"""

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, Protocol, TextIO

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from runtime.clock import Clock

# C0, DEL, C1, marks that turn the direction of writing, and bytes of an argument that are no text.
_UNSEEN: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_OBEYED: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\udc80-\udcff]")
_UNSEEN_IN_JSON: Final = re.compile("[\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
NOTHING: Final = "-"
"""Stands where there is no value."""
_GAP: Final = "  "
_NAME_MIN: Final = 8
SHOWN_AFTER_S: Final = 0.5
DRAWN_EVERY_S: Final = 0.1
BAR_CELLS: Final = 20
_WIDTH: Final = 80
_ERASED: Final = "\r\x1b[K"
LINE_EVERY_S: Final = 10.0

Advance = Callable[[int], None]
"""So many more are done."""


def printable(text: str) -> str:
    r"""One line that stays one, written as Python would write it: `\x1b`, `\n`."""
    return _UNSEEN.sub(_shown, text)


def printable_record(written: bytes) -> bytes:
    r"""For a terminal: lines and tabs stay, what else would steer it becomes `\x1b`, and so does what is no UTF-8 text."""
    return _OBEYED.sub(_shown, written.decode(errors="surrogateescape")).encode()


def printable_json(document: str) -> str:
    """The same document. JSON lets characters stand for themselves that terminals obey."""
    return _UNSEEN_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", document)


def check_name(given: str | None) -> str | None:
    """For arguments and options that are names. Raise `BadParameter` for what no cluster has; the library would end the process."""
    if given is None:
        return None
    if not given:
        raise typer.BadParameter("a name is not empty")
    return check_text(given)


def check_names(given: list[str]) -> list[str]:
    for one in given:
        check_name(one)
    return given


def check_text(given: str, *, option: str = "") -> str:
    """Raise `BadParameter` for bytes that are no UTF-8 text."""
    try:
        given.encode()
    except UnicodeEncodeError as error:
        raise typer.BadParameter(f'{option} "{printable(given)}" is not UTF-8 text'.lstrip()) from error
    return given


def _shown(found: re.Match[str]) -> str:
    character = found[0]
    if "\udc80" <= character <= "\udcff":
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape", "surrogatepass").decode()


def align(header: Sequence[str], rows: Sequence[Sequence[object]], *, columns: int | None = None) -> str:
    """Numbers to the right, the rest to the left; no space at the end of a line.

    `columns` is the width of a line; by default that of the terminal behind stdout, or unbounded. Numbers and headers are never
    cut, and no name to fewer than eight characters: then lines are too long.
    """
    numeric = [
        any(isinstance(row[n], int) for row in rows) and all(isinstance(row[n], int) or row[n] == NOTHING for row in rows)
        for n in range(len(header))
    ]
    cells = [list(header), *([printable(str(cell)) for cell in row] for row in rows)]
    widths = [max(len(row[n]) for row in cells) for n in range(len(header))]
    columns = terminal_columns() if columns is None else columns
    if columns is not None:
        least = [width if right else max(len(name), _NAME_MIN) for name, width, right in zip(header, widths, numeric, strict=True)]
        widths = _fitting(widths, least, columns)
        cells = [[_cut(cell, width) for cell, width in zip(row, widths, strict=True)] for row in cells]
    return "\n".join(
        _GAP.join(
            cell.rjust(width) if right else cell.ljust(width) for cell, width, right in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in cells
    )


def terminal_columns() -> int | None:
    """The width of the terminal behind stdout; None if there is none."""
    try:
        if sys.stdout is None or not sys.stdout.isatty():
            return None
        return os.get_terminal_size(sys.stdout.fileno()).columns or None
    except (OSError, ValueError):
        return None


def _fitting(widths: Sequence[int], least: Sequence[int], columns: int) -> list[int]:
    """The widest gives way first, as far as it may."""
    fitting = list(widths)
    for _ in range(sum(widths) + len(_GAP) * (len(widths) - 1) - columns):
        widest = max(range(len(fitting)), key=lambda n: (fitting[n] > least[n], fitting[n]))
        if fitting[widest] <= least[widest]:
            break
        fitting[widest] -= 1
    return fitting


def _cut(cell: str, width: int) -> str:
    return cell if len(cell) <= width else f"{cell[: width - 1]}…"


def facts(rows: Sequence[tuple[str, object]]) -> str:
    """A name and a value per line."""
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name.ljust(width)}  {printable(str(value))}".rstrip() for name, value in rows)


class Progress(Protocol):
    def moved(self, records: int, size_bytes: int) -> None:
        """So many more, and so large they are."""


class Silent:
    """Where nobody looks."""

    def moved(self, records: int, size_bytes: int) -> None:
        pass


class ProgressLine:
    """`whole` is what there will be, counted as `of` says: records, or bytes. What is done within half a second is not talked about."""

    def __init__(self, stream: TextIO, *, whole: int | None, in_bytes: bool, clock: "Clock") -> None:
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
def progress(*, quiet: bool, whole: int | None = None, in_bytes: bool = False, clock: "Clock") -> Iterator[Progress]:
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
def step_progress(console: "Console", label: str, *, total: int, clock: "Clock") -> Iterator[Advance]:
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
    def __init__(self, console: "Console", label: str, total: int, clock: "Clock") -> None:
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
