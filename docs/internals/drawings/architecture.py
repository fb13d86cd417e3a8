"""Draws architecture.svg beside it: `python docs/internals/drawings/architecture.py`. A test compares the file with what this draws.

The page behind the drawing may be light or dark, so the drawing has a background of its own.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

DRAWING: Final = Path(__file__).with_name("architecture.svg")
WIDTH: Final = 940
HEIGHT: Final = 548
MIDDLE: Final = "middle"
START: Final = "start"
HEAD_LENGTH: Final = 12
HEAD_HALF_WIDTH: Final = 5
INK: Final = "#1f2937"
FAINT: Final = "#6b7280"
WRITE: Final = "#b45309"
READ: Final = "#1d4ed8"

TITLE: Final = "Forebay: clients, brokers, object store and metadata store"
DESCRIPTION: Final = (
    "A producer sends a batch to any broker. The broker puts the batches of all partitions into the object store as one object, then "
    "commits the manifest of each partition in Oxia, which assigns the offsets, and acknowledges. A consumer reads the "
    "partition through another broker, which looks at the manifest and reads the bytes from its memory or from the object store."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    left: int
    top: int
    width: int
    height: int
    fill: str
    heading: str
    lines: tuple[str, ...] = ()

    def drawn(self) -> Iterator[str]:
        middle = self.left + self.width // 2
        yield (
            f'<rect x="{self.left}" y="{self.top}" width="{self.width}" height="{self.height}" rx="8" '
            f'fill="{self.fill}" stroke="{INK}" stroke-width="1.2"/>'
        )
        yield text(middle, self.top + 26, self.heading, size=16, weight="600")
        for number, line in enumerate(self.lines):
            yield text(middle, self.top + 48 + 19 * number, line, colour=FAINT)


def text(x: int, y: int, words: str, *, size: int = 13, weight: str = "400", colour: str = INK, anchor: str = MIDDLE) -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}" font-weight="{weight}" fill="{colour}" text-anchor="{anchor}">{escape(words)}</text>'


def arrow(begin: tuple[int, int], end: tuple[int, int], *, colour: str, both: bool = False) -> Iterator[str]:
    """A line with a head at its end, or at both."""
    yield f'<line x1="{begin[0]}" y1="{begin[1]}" x2="{end[0]}" y2="{end[1]}" stroke="{colour}" stroke-width="2"/>'
    yield head(begin, end, colour)
    if both:
        yield head(end, begin, colour)


def head(begin: tuple[int, int], end: tuple[int, int], colour: str) -> str:
    """The triangle at the end of a line. Markers would do the same, but not every renderer turns them."""
    length = math.dist(begin, end)
    along = ((end[0] - begin[0]) / length, (end[1] - begin[1]) / length)
    corners = [end]
    for side in (-1, 1):
        x = end[0] - HEAD_LENGTH * along[0] - side * HEAD_HALF_WIDTH * along[1]
        y = end[1] - HEAD_LENGTH * along[1] + side * HEAD_HALF_WIDTH * along[0]
        corners.append((round(x), round(y)))
    points = " ".join(f"{x},{y}" for x, y in corners)
    return f'<polygon points="{points}" fill="{colour}"/>'


def step(x: int, y: int, number: int, words: str, *, colour: str) -> Iterator[str]:
    yield f'<circle cx="{x}" cy="{y}" r="11" fill="{colour}"/>'
    yield text(x, y + 5, str(number), weight="700", colour="#ffffff")
    yield text(x + 18, y + 5, words, colour=colour, anchor=START)


def drawing() -> str:
    """The whole SVG."""
    return "\n".join(_parts()) + "\n"


def _parts() -> Iterator[str]:
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img"'
    yield '     font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif">'
    yield f"<title>{escape(TITLE)}</title>"
    yield f"<desc>{escape(DESCRIPTION)}</desc>"
    yield f'<rect width="{WIDTH}" height="{HEIGHT}" rx="10" fill="#ffffff"/>'
    for box in _boxes():
        yield from box.drawn()
    yield from arrow((190, 94), (190, 174), colour=WRITE, both=True)
    yield from arrow((750, 174), (750, 94), colour=READ)
    yield from arrow((190, 268), (190, 424), colour=WRITE)
    yield from arrow((270, 268), (590, 424), colour=WRITE, both=True)
    yield from arrow((750, 424), (750, 268), colour=READ)
    yield from arrow((350, 424), (670, 268), colour=READ)
    yield from step(210, 120, 1, "produce, to any broker", colour=WRITE)
    yield from step(210, 148, 4, "acknowledge, with the offset", colour=WRITE)
    yield from step(50, 336, 2, "PUT one object", colour=WRITE)
    yield text(68, 360, "for all partitions", colour=WRITE, anchor=START)
    yield from step(356, 292, 3, "commit: compare and set", colour=WRITE)
    yield from step(770, 336, 5, "how far does", colour=READ)
    yield text(788, 360, "the log go?", colour=READ, anchor=START)
    yield from step(220, 396, 6, "GET, if not in memory", colour=READ)
    yield from step(770, 134, 7, "records", colour=READ)
    yield "</svg>"


def _boxes() -> Iterator[Box]:
    yield Box(left=70, top=24, width=240, height=70, fill="#fef3c7", heading="Producer", lines=("any Kafka client",))
    yield Box(left=630, top=24, width=240, height=70, fill="#dbeafe", heading="Consumer group", lines=("any Kafka client",))
    for left, name in ((70, "Broker 1"), (350, "Broker 2"), (630, "Broker 3")):
        lines = ("serves every partition,", "keeps nothing on disk")
        yield Box(left=left, top=174, width=240, height=94, fill="#f3f4f6", heading=name, lines=lines)
    objects = ("the bytes of all records: immutable objects,", "each with batches of many partitions")
    yield Box(left=70, top=424, width=360, height=104, fill="#ecfdf5", heading="Object store (S3, or a folder)", lines=objects)
    records = (
        "one manifest per partition: next offset,",
        "sequences of producers, which object holds what;",
        "topics, groups, committed offsets",
    )
    yield Box(left=510, top=424, width=360, height=104, fill="#ecfdf5", heading="Metadata store (Oxia, or SQLite)", lines=records)


if __name__ == "__main__":
    DRAWING.write_text(drawing(), encoding="utf-8")
