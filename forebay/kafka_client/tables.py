"""Rows as aligned columns, as wide as they need to be, whatever the terminal's width: `cut` and `awk` read them, too."""

from collections.abc import Sequence
from typing import Final

from forebay.kafka_client.text import printable

NOTHING: Final = "-"
"""Stands where there is no value."""


def aligned(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Numbers to the right, the rest to the left; no space at the end of a line."""
    numeric = [
        any(isinstance(row[n], int) for row in rows) and all(isinstance(row[n], int) or row[n] == NOTHING for row in rows)
        for n in range(len(header))
    ]
    cells = [list(header), *([printable(str(cell)) for cell in row] for row in rows)]
    widths = [max(len(row[n]) for row in cells) for n in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width) for cell, width, right in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in cells
    )


def facts(rows: Sequence[tuple[str, object]]) -> str:
    """A name and a value per line."""
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name.ljust(width)}  {printable(str(value))}".rstrip() for name, value in rows)
