"""Rows as aligned columns: as wide as they need to be where `cut` and `awk` may read them, and on a terminal with long names cut."""

import os
import sys
from collections.abc import Sequence
from typing import Final

from forebay.kafka_client.text import printable

NOTHING: Final = "-"
"""Stands where there is no value."""


_GAP: Final = "  "
_NAME_MIN: Final = 8


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
