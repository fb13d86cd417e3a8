"""The results of a sweep, and what is said of them. Pure."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from bench.beside.loads import TITLES
from bench.results import lined_up

RECORD_BYTES: Final = 1024
LEAST_MB_PER_S: Final = 0.1
MOST_MB_PER_S: Final = 50.0
STEP: Final = 1.5
"""Times the load before."""
REACHED: Final = 0.9
"""The share of a load that has to be taken. From the first that is not on, nothing is measured: latencies would be those of a queue."""
JUMP: Final = 2.0
"""A latency that grows by more than this from one load to the next is a step."""


class SweepPoint(msgspec.Struct, frozen=True, kw_only=True):
    """Offered, and taken; the latencies are those of acknowledgements."""

    mb_per_s: float
    reached_mb_per_s: float
    p50_ms: float
    p99_ms: float


class SweepCurve(msgspec.Struct, frozen=True, kw_only=True):
    target: str
    partitions: int
    points: list[SweepPoint]

    @property
    def title(self) -> str:
        return f"{TITLES[self.target]}, {self.partitions} partition{'' if self.partitions == 1 else 's'}"


class SweepReport(msgspec.Struct, frozen=True, kw_only=True):
    command: str
    started_at: str
    commit: str | None
    machine: dict[str, Any]
    seconds: float
    curves: list[SweepCurve]


def loads_mb_per_s() -> Iterator[float]:
    load = LEAST_MB_PER_S
    while load <= MOST_MB_PER_S:
        yield round(load, 3)
        load *= STEP


def jumps(points: Sequence[SweepPoint], figure: str) -> list[float]:
    """The loads to which the latency grows by more than JUMP from the load before. `figure` is a field of a point."""
    found = itertools.pairwise(points)
    return [after.mb_per_s for before, after in found if getattr(after, figure) > JUMP * getattr(before, figure)]


def table(curves: Sequence[SweepCurve]) -> str:
    rows: list[tuple[str, ...]] = [("load", "MB/s", "reached", "p50 ms", "p99 ms")]
    for curve in curves:
        for point in curve.points:
            figures = (point.mb_per_s, point.reached_mb_per_s, point.p50_ms, point.p99_ms)
            rows.append((curve.title, *(f"{figure:.3g}" for figure in figures)))
    return lined_up(rows)


def encoded(report: SweepReport) -> str:
    """The curves, as they are written into the drawing."""
    return msgspec.json.encode(report.curves).decode()
