"""What brokers, and the servers behind them, counted between two moments: for each GiB, and for each slice."""

import asyncio
import http.client
import math
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from bench import meter, processes
from bench.processes import HOST, MEMORY, Place, Target
from bench.results import GIB, Fact
from runtime.clock import SystemClock
from runtime.ids import IdSource
from runtime.telemetry import Telemetry
from storage.formats.wal import read_header
from storage.objects.port import ObjectStore
from storage.opening import open_stores

T = TypeVar("T")

PUTS: Final = "forebay_object_store_requests_total{op=put,outcome=ok}"
PUT_BYTES: Final = "forebay_object_store_bytes_total{op=put}"
METADATA_REQUESTS: Final = "forebay_metadata_requests_total"
CONFLICTS: Final = "forebay_commit_conflicts_total"
FLUSH_SECONDS: Final = "forebay_flush_duration_seconds"
PUT_SECONDS: Final = "forebay_object_store_request_duration_seconds"
METADATA_SECONDS: Final = "forebay_metadata_request_duration_seconds"
OXIA_WRITE_OPS: Final = ("oxia_server_db_puts_total", "oxia_server_db_deletes_total")
"""Counted over all shards; Oxia counts an op whose condition failed, too. Range deletes are none of them: produce makes none."""
OXIA_GETS: Final = "oxia_server_db_gets_total"

WAL_PREFIX: Final = "wal/"
P50: Final = 0.5
P99: Final = 0.99
_SAMPLE: Final = re.compile(r"^(\w+)(?:\{.*\})? (\S+)$", re.MULTILINE)


class NoMetrics(Exception):
    """The server does not say what it counted."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Counters at one moment: the sums over the brokers, the sums over Oxia's shards, CPU seconds of servers, the last WAL object."""

    brokers: Mapping[str, float]
    oxia: Mapping[str, float]
    server_cpu_s: Mapping[str, float]
    last_object: str


def read(place: Place, targets: Sequence[Target]) -> Reading:
    """Takes a second. Nothing should be under way."""
    brokers: dict[str, float] = defaultdict(float)
    for counters in processes.counters_of(targets):
        for series, count in counters.items():
            brokers[series] += count
    return Reading(
        brokers=brokers,
        oxia=_oxia_counters(place.servers["oxia"]) if "oxia" in place.servers else {},
        server_cpu_s={name: meter.used(pid).total_s for name, pid in place.servers.items()},
        last_object="" if place.store == MEMORY else last_wal_object(place),
    )


def costs(place: Place, after: Reading, before: Reading, *, value_bytes: int) -> dict[str, Fact]:
    """Facts about a stretch of producing. Those nobody can know of this store are left out.

    A slice is what a flush has of one partition, so an amount per slice is one per partition per flush.
    """
    gib = value_bytes / GIB
    put_count = _grown(after, before, PUTS)
    writes = _grown(after, before, f"{METADATA_REQUESTS}{{op=write,outcome=ok}}")
    facts: dict[str, Fact] = {
        "objects": put_count,
        "object_bytes_mean": _grown(after, before, PUT_BYTES) / put_count,
        "puts_per_gib": put_count / gib,
        "metadata_writes_per_gib": writes / gib,
        "metadata_reads_per_gib": _grown(after, before, f"{METADATA_REQUESTS}{{op=get_many,outcome=ok}}") / gib,
    }
    for name, histogram, labels in (
        ("wait", FLUSH_SECONDS, "stage=wait"),
        ("put", PUT_SECONDS, "op=put"),
        ("metadata_write", METADATA_SECONDS, "op=write"),
        ("commit", FLUSH_SECONDS, "stage=commit"),
    ):
        facts |= _spread_ms(name, after.brokers, before.brokers, histogram, labels)
    if place.store != MEMORY:
        slices = slices_after(place, before.last_object)
        facts |= {
            "slices_per_object": slices / put_count,
            "conflicts_per_slice": _grown(after, before, CONFLICTS) / slices,
        }
        if after.oxia:
            ops = sum(after.oxia.get(series, 0.0) - before.oxia.get(series, 0.0) for series in OXIA_WRITE_OPS)
            facts["oxia_write_ops_per_slice"] = ops / slices
            facts["oxia_gets_per_slice"] = (after.oxia.get(OXIA_GETS, 0.0) - before.oxia.get(OXIA_GETS, 0.0)) / slices
    for server, cpu_s in after.server_cpu_s.items():
        facts[f"{server}_cpu_s_per_gib"] = (cpu_s - before.server_cpu_s[server]) / gib
    return facts


def _grown(after: Reading, before: Reading, series: str) -> float:
    return after.brokers.get(series, 0.0) - before.brokers.get(series, 0.0)


def _spread_ms(name: str, after: Mapping[str, float], before: Mapping[str, float], histogram: str, labels: str) -> dict[str, Fact]:
    seconds = {
        "mean": mean_of(after, before, histogram, labels),
        "p50": quantile_of(after, before, histogram, labels, P50),
        "p99": quantile_of(after, before, histogram, labels, P99),
    }
    return {f"{name}_{which}_ms": value * 1e3 for which, value in seconds.items() if value is not None}


def _oxia_counters(pid: int) -> dict[str, float]:
    """Sums over the shards of every series of the server's metrics, which it serves on one of the ports it listens on."""
    for port in meter.listening_ports(pid):
        text = _metrics_text(port)
        if "oxia_server_" in text:
            sums: dict[str, float] = defaultdict(float)
            for name, value in _SAMPLE.findall(text):
                sums[name] += float(value)
            return sums
    raise NoMetrics(f"no port of the server serves its metrics: pid={pid}")


def _metrics_text(port: int) -> str:
    connection = http.client.HTTPConnection(HOST, port, timeout=10.0)
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        return answer.read().decode(errors="replace") if answer.status == 200 else ""
    except (http.client.HTTPException, OSError):
        return ""  # it speaks something else
    finally:
        connection.close()


def of_samples(samples: Sequence[float], quantile: float) -> float:
    """Return the least sample that is not exceeded by `quantile` of them (nearest rank). There must be one."""
    assert samples, "no samples"
    return sorted(samples)[max(0, math.ceil(quantile * len(samples)) - 1)]


def quantile_of(after: Mapping[str, float], before: Mapping[str, float], name: str, labels: str, quantile: float) -> float | None:
    """As Prometheus' histogram_quantile: linear within a bucket, so no finer than the buckets are. None if nothing was observed.

    `labels` as in the series' name, sorted: "op=put".
    """
    cumulated = sorted(
        (math.inf if edge == "+Inf" else float(edge), count - before.get(series, 0.0))
        for series, count in after.items()
        if (edge := _edge(series, name, labels)) is not None
    )
    if not cumulated or not cumulated[-1][1]:
        return None
    wanted = quantile * cumulated[-1][1]
    lower_edge = lower_count = 0.0
    for upper_edge, count in cumulated:
        if count >= wanted:
            if upper_edge == math.inf:
                break
            return lower_edge + (upper_edge - lower_edge) * (wanted - lower_count) / (count - lower_count)
        lower_edge, lower_count = upper_edge, count
    return lower_edge


def mean_of(after: Mapping[str, float], before: Mapping[str, float], name: str, labels: str) -> float | None:
    """Return the exact mean of a histogram, from its sum and its count; None if nothing was observed."""
    total, count = (after.get(series, 0.0) - before.get(series, 0.0) for series in (f"{name}_sum{{{labels}}}", f"{name}_count{{{labels}}}"))
    return total / count if count else None


def _edge(series: str, name: str, labels: str) -> str | None:
    """The `le` of a bucket of the histogram with these other labels."""
    head, _, rest = series.partition("{")
    if head != f"{name}_bucket":
        return None
    pairs = rest.removesuffix("}").split(",")
    edges = [pair.removeprefix("le=") for pair in pairs if pair.startswith("le=")]
    others = ",".join(pair for pair in pairs if not pair.startswith("le="))
    return edges[0] if edges and others == labels else None


def last_wal_object(place: Place) -> str:
    """The greatest key of a WAL object, empty if there is none."""
    return max(_with_stores(place, lambda objects: _wal_keys(objects, after="")), default="")


def slices_after(place: Place, key: str) -> int:
    """Slices in all WAL objects above a key, as their headers say: one for each partition of each flush."""
    return _with_stores(place, lambda objects: _slices(objects, after=key))


async def _wal_keys(objects: ObjectStore, *, after: str) -> list[str]:
    return [stat.key async for stat in objects.list(WAL_PREFIX, start_after=after)]


async def _slices(objects: ObjectStore, *, after: str) -> int:
    count = 0
    async for stat in objects.list(WAL_PREFIX, start_after=after):
        header = await read_header(partial(objects.get_range, stat.key), key=stat.key, size_bytes=stat.size_bytes)
        count += len(header.slices)
    return count


def _with_stores(place: Place, work: Callable[[ObjectStore], Awaitable[T]]) -> T:
    """Do the work on the object store of a case, opened as a broker opens it."""
    return asyncio.run(_with_objects(place, work))


async def _with_objects(place: Place, work: Callable[[ObjectStore], Awaitable[T]]) -> T:
    clock = SystemClock()
    async with open_stores(
        storage_url=place.storage_url, metadata_url="memory://", clock=clock, ids=IdSource(clock=clock), telemetry=Telemetry()
    ) as stores:
        return await work(stores.objects)
