"""The results of a run: JSON for machines, and a table for people. Ratios are those of one round. Pure."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from bench.beside.loads import TARGETS, WORKERS, BesideLoad, LoadKind, load_words
from bench.processes import KAFKA
from bench.results import GIB, lined_up

SCHEMA: Final = 1
RATES: Final[Mapping[LoadKind, str]] = {LoadKind.VOLUME: "mb_per_s", LoadKind.REQUESTS: "requests_per_s"}
"""The figure whose ratio to Kafka's is `times_kafka`."""
COSTS: Final = ("cpu_s_per_gib", "cpu_s_per_1000", "dollars_per_gib", "conflicts_per_gib", "conflicts_per_1000", "peak_rss_mib")
UNITS: Final[Mapping[str, str]] = {"mb_per_s": "MB/s", "requests_per_s": "requests/s", "p50_ms": "ms", "p99_ms": "ms"}


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    median: float
    min: float
    max: float


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """`raw` is what `forebay bench --json` wrote. `cpu_s` and `conflicts` of commits are those of all brokers; `peak_rss_mib` is of the one
    that has had most since it was started. `dollars` for requests to S3; None where there is no S3.
    """

    round: int
    cpu_s: float
    dollars: float | None
    raw: dict[str, Any]
    conflicts: float | None = None
    peak_rss_mib: float | None = None


class TargetReport(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    arguments: list[str]
    runs: list[RunReport]
    summary: dict[str, Spread]


class LoadReport(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    title: str
    kind: LoadKind
    targets: list[TargetReport]

    def target(self, name: str) -> TargetReport | None:
        """None if it was not measured."""
        return next((one for one in self.targets if one.name == name and one.runs), None)


class FailureReport(msgspec.Struct, frozen=True, kw_only=True):
    """`load` is None where the target did not start."""

    load: str | None
    target: str
    error: str

    def __str__(self) -> str:
        return f"{self.load} on {self.target}: {self.error}" if self.load else f"{self.target} did not start: {self.error}"


class BesideReport(msgspec.Struct, frozen=True, kw_only=True):
    schema: int
    command: str
    started_at: str
    commit: str | None
    machine: dict[str, Any]
    servers: dict[str, str]
    scale: float
    repeats: int
    failure: FailureReport | None
    loads: list[LoadReport]


def load_report(load: BesideLoad, runs: Mapping[str, Sequence[RunReport]], scale: float) -> LoadReport:
    """From the runs by target."""
    kafkas = {run.round: figures(load.kind, run) for run in runs.get(KAFKA, ())}
    targets = [
        TargetReport(
            name=name,
            arguments=load_words(load, name, scale),
            runs=list(runs[name]),
            summary=_summary([_beside(load.kind, figures(load.kind, run), kafkas.get(run.round)) for run in runs[name]]),
        )
        for name in (*TARGETS, *WORKERS)
        if name in runs
    ]
    return LoadReport(name=load.name, title=load.title, kind=load.kind, targets=targets)


def figures(kind: LoadKind, run: RunReport) -> dict[str, float]:
    """The result of a run. CPU and dollars are those of the client's own warm-up, too, so its records count there."""
    raw = run.raw
    records = raw["records"] + raw["settings"]["warm_up"]
    if kind is LoadKind.VOLUME:
        gib = records * raw["bytes"] / raw["records"] / GIB
        found = {"mb_per_s": raw["mb_per_s"], "cpu_s_per_gib": run.cpu_s / gib}
        if run.dollars is not None:
            found["dollars_per_gib"] = run.dollars / gib
        if run.conflicts is not None:
            found["conflicts_per_gib"] = run.conflicts / gib
    else:
        found = {"p50_ms": raw["latency_ms"]["p50"], "p99_ms": raw["latency_ms"]["p99"], "cpu_s_per_1000": 1_000 * run.cpu_s / records}
        if kind is LoadKind.REQUESTS:
            found["requests_per_s"] = raw["records_per_s"]
        if run.conflicts is not None:
            found["conflicts_per_1000"] = 1_000 * run.conflicts / records
    if run.peak_rss_mib is not None:
        found["peak_rss_mib"] = run.peak_rss_mib
    return found


def table(loads: Iterable[LoadReport]) -> str:
    """Medians, with the least and the greatest."""
    head = (
        "load",
        "target",
        "measured",
        "times Kafka",
        "CPU s/GiB",
        "CPU s/1,000",
        "$/GiB",
        "conflicts/GiB",
        "conflicts/1,000",
        "peak MiB",
    )
    rows = [
        (load.name, target.name, *cells) for load in loads for target in load.targets if target.runs for cells in _cells(load.kind, target)
    ]
    return lined_up([head, *rows])


def number(value: float) -> str:
    """Three digits that say something, two below 1, and all those before the point."""
    if not value:
        return "0"
    digits = 3 if abs(value) >= 1 else 2
    whole = math.floor(math.log10(abs(float(f"{value:.{digits}g}")))) + 1
    return f"{value:,.{max(0, digits - whole)}f}"


def spread(found: Spread, *, before: str = "", after: str = "") -> str:
    """`1.3 (1.2–1.5)`; without the brackets if there is one figure only."""
    median = f"{before}{number(found.median)}{after}"
    return median if found.min == found.max else f"{median} ({number(found.min)}–{number(found.max)})"


def _beside(kind: LoadKind, own: Mapping[str, float], kafkas: Mapping[str, float] | None) -> dict[str, float]:
    rate = RATES.get(kind)
    return {**own, "times_kafka": own[rate] / kafkas[rate]} if rate and kafkas else dict(own)


def _summary(found: Sequence[Mapping[str, float]]) -> dict[str, Spread]:
    """The spread of each figure that all runs have."""
    names = [name for name in found[0] if all(name in one for one in found)] if found else []
    return {name: _spread_of([one[name] for one in found]) for name in names}


def _spread_of(values: Sequence[float]) -> Spread:
    return Spread(median=statistics.median(values), min=min(values), max=max(values))


def _cells(kind: LoadKind, target: TargetReport) -> list[tuple[str, ...]]:
    """A row for each measured figure."""
    costs = tuple(_cell(target, name) for name in COSTS)
    if kind is LoadKind.LATENCY:
        return [
            (spread(target.summary["p50_ms"], before="p50 ", after=" ms"), "-", *costs),
            (spread(target.summary["p99_ms"], before="p99 ", after=" ms"), "-", *("" for _ in COSTS)),
        ]
    rate = RATES[kind]
    return [(spread(target.summary[rate], after=f" {UNITS[rate]}"), _cell(target, "times_kafka"), *costs)]


def _cell(target: TargetReport, name: str) -> str:
    return spread(target.summary[name]) if name in target.summary else "-"
