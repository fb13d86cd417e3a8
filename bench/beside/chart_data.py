"""What the chart shows, which is also written into it, so that a test can compare it with the report. Pure."""

from typing import Final

import msgspec

from bench.beside.loads import OURS, TARGETS, TITLES, LoadKind
from bench.beside.report import BesideReport, Spread, TargetReport

_DIGITS: Final = 6
"""Behind the point: with four, a ratio below 0.1 could read otherwise than in the table of the page."""


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """The ratio to Kafka."""

    target: str
    times_kafka: Spread


class BarGroup(msgspec.Struct, frozen=True, kw_only=True):
    load: str
    bars: list[Bar]


class LatencyLine(msgspec.Struct, frozen=True, kw_only=True):
    target: str
    p50_ms: Spread
    p99_ms: Spread


class ChartData(msgspec.Struct, frozen=True, kw_only=True):
    said: str
    groups: list[BarGroup]
    lines: list[LatencyLine]


def chart_data(report: BesideReport) -> ChartData:
    """What was not measured is left out."""
    groups = [
        BarGroup(load=load.title, bars=[_bar(target) for name in OURS if (target := load.target(name)) and "times_kafka" in target.summary])
        for load in report.loads
        if load.kind is not LoadKind.LATENCY
    ]
    lines = [
        LatencyLine(target=TITLES[name], p50_ms=_rounded(target.summary["p50_ms"]), p99_ms=_rounded(target.summary["p99_ms"]))
        for load in report.loads
        if load.kind is LoadKind.LATENCY
        for name in TARGETS
        if (target := load.target(name))
    ]
    said = (
        f"Apache Kafka {report.servers['kafka']} and Forebay on the same {report.machine['cpu_count']} cores, loads in turns, "
        f"{report.repeats} {'round' if report.repeats == 1 else 'rounds'}, {report.started_at[:10]}"
    )
    return ChartData(said=said, groups=[group for group in groups if group.bars], lines=lines)


def encoded(data: ChartData) -> str:
    """As it is written into the chart."""
    return msgspec.json.encode(data).decode()


def _bar(target: TargetReport) -> Bar:
    return Bar(target=TITLES[target.name], times_kafka=_rounded(target.summary["times_kafka"]))


def _rounded(found: Spread) -> Spread:
    return Spread(median=round(found.median, _DIGITS), min=round(found.min, _DIGITS), max=round(found.max, _DIGITS))
