"""What a load comes to: one JSON object whose names stay, or a few lines for people."""

import math
from array import array
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

import msgspec

from forebay.commands.bench.settings import ConsumeLoad, EndToEndLoad, ProduceLoad, RequestsLoad
from forebay.kafka_client.text import NOTHING, facts

_MICROSECONDS: Final = 3
"""Digits behind the point of milliseconds."""

BenchLoad = ProduceLoad | ConsumeLoad | EndToEndLoad | RequestsLoad
_NAMES: Final = {ProduceLoad: "produce", ConsumeLoad: "consume", EndToEndLoad: "e2e", RequestsLoad: "requests"}


class Measured(NamedTuple):
    """`cpu_s` is that of this process, all its threads, during these `seconds`."""

    records: int
    size_bytes: int
    seconds: float
    cpu_s: float
    latencies_s: "array[float] | None" = None


class LatencyMs(msgspec.Struct, frozen=True, kw_only=True):
    p50: float
    p95: float
    p99: float
    max: float


class BenchReport(msgspec.Struct, frozen=True, kw_only=True):
    load: str
    bootstrap: str
    topic: str
    settings: BenchLoad
    seconds: float
    records: int
    bytes: int
    records_per_s: float
    mb_per_s: float
    latency_ms: LatencyMs | None
    cpu_s: float


def bench_report(load: BenchLoad, measured: Measured, *, bootstrap: str, topic: str) -> BenchReport:
    return BenchReport(
        load=_NAMES[type(load)],
        bootstrap=bootstrap,
        topic=topic,
        settings=load,
        seconds=round(measured.seconds, 6),
        records=measured.records,
        bytes=measured.size_bytes,
        records_per_s=round(measured.records / measured.seconds, 1),
        mb_per_s=round(measured.size_bytes / measured.seconds / 1e6, 3),
        latency_ms=latency_ms(measured.latencies_s or ()),
        cpu_s=round(measured.cpu_s, 3),
    )


def report_table(report: BenchReport) -> str:
    is_of_requests = isinstance(report.settings, RequestsLoad)
    latency = report.latency_ms
    return facts(
        [
            ("load", report.load),
            ("topic", report.topic),
            ("records", f"{report.records:,} with {report.bytes:,} bytes in {report.seconds:,.2f} s"),
            ("rate", f"{report.records_per_s:,.0f} {'requests' if is_of_requests else 'records'}/s, {report.mb_per_s:,.2f} MB/s"),
            ("latency", NOTHING if latency is None else _latency_line(latency)),
            ("client", f"{report.cpu_s:,.2f} s of CPU"),
        ]
    )


def latency_ms(seconds: Collection[float]) -> LatencyMs | None:
    """None without samples."""
    if not seconds:
        return None
    ordered = sorted(seconds)
    return LatencyMs(
        p50=_milliseconds(nearest_rank(ordered, 50)),
        p95=_milliseconds(nearest_rank(ordered, 95)),
        p99=_milliseconds(nearest_rank(ordered, 99)),
        max=_milliseconds(ordered[-1]),
    )


def nearest_rank(ordered: Sequence[float], percent: int) -> float:
    """The least sample that is not exceeded by this percentage of them. There must be one."""
    assert ordered, "no samples"
    return ordered[max(0, math.ceil(percent * len(ordered) / 100) - 1)]


def _milliseconds(seconds: float) -> float:
    return round(1e3 * seconds, _MICROSECONDS)


def _latency_line(latency: LatencyMs) -> str:
    named = (("p50", latency.p50), ("p95", latency.p95), ("p99", latency.p99), ("max", latency.max))
    return ", ".join(f"{name} {value:,.2f} ms" for name, value in named)
