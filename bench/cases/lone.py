"""A lone producer that waits for each answer, against the PUT and the commit behind the answer.

The pauses between requests are longer than the flush interval, so that each finds a flush that may begin at once. In each pause a peer
(this process, on the same stores) puts an object of the same size and, where metadata is a server, writes a record of about the same size.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from bench import clients, meter, peers, quantiles, readings, wire
from bench.cases.case import Case, Plan, fresh_broker
from bench.processes import HOST, Target
from bench.quantiles import P50, P99
from bench.results import CaseResult, Fact, Run, Work
from bench.stores import DISK, NATIVE, Place
from bench.units import KIB
from bench.wire import Driver
from runtime.clock import SystemClock
from storage.opening import Stores

TOPIC: Final = "lone"
REQUESTS: Final = 40
WARM_UP_REQUESTS: Final = 3
VALUE_BYTES: Final = KIB
INTERVAL_MS: Final = 250
PAUSE_S: Final = 1.2 * INTERVAL_MS / 1e3
CONTROL_BYTES: Final = KIB
"""About what a control record has."""
GOALS: Final = {"over_put_p50_ms": 15.0}

_clock = SystemClock()


@dataclass(frozen=True, slots=True)
class Seconds:
    """What each request, and each request of the peer, took."""

    round_trips: list[float] = field(default_factory=list)
    puts: list[float] = field(default_factory=list)
    writes: list[float] = field(default_factory=list)


def _run(plan: Plan, store: str) -> CaseResult:
    count = plan.scaled(REQUESTS)
    with fresh_broker(plan, store, {"storage.flush_interval": f"{INTERVAL_MS}ms"}) as (place, target):
        clients.create_topic(target.bootstrap, TOPIC, 1)
        runs = [_measured(place, target, count) for _ in range(plan.repeats)]
    settings: dict[str, Fact] = {
        "client": "raw socket",
        "requests": count,
        "record_bytes": VALUE_BYTES,
        "storage.flush_interval": f"{INTERVAL_MS}ms",
        "pause_s": PAUSE_S,
    }
    what = "one record, and the answer, before the next; PUT and write: a peer in the same pauses on the same stores"
    return CaseResult("produce-lone", store, what, settings, runs, GOALS if store == NATIVE else {})


def _measured(place: Place, target: Target, count: int) -> Run:
    before_records = clients.end_offsets(target.bootstrap, TOPIC, 1)
    before = target.counters()
    used, began_s = meter.used(target.pid), _clock.monotonic_s()
    seconds = peers.with_stores(place, lambda stores: _alternate(stores, place, target, count))
    took_s = _clock.monotonic_s() - began_s
    spent = meter.used(target.pid) - used
    after = target.counters()
    clients.check_produced(target.bootstrap, TOPIC, 1, records=before_records + WARM_UP_REQUESTS + count)
    facts: dict[str, Fact] = {
        **_spread_ms("round_trip", seconds.round_trips),
        **_spread_ms("put", seconds.puts),
        "over_put_p50_ms": 1e3 * (quantiles.of_samples(seconds.round_trips, P50) - quantiles.of_samples(seconds.puts, P50)),
    }
    if seconds.writes:
        facts |= _spread_ms("metadata_write", seconds.writes)
    for stage in ("wait", "put", "commit"):
        mean_s = quantiles.mean(after, before, readings.FLUSH_SECONDS, f"stage={stage}")
        if mean_s is not None:
            facts[f"broker_{stage}_mean_ms"] = 1e3 * mean_s
    requests = WARM_UP_REQUESTS + count
    work = Work(requests, requests * VALUE_BYTES, requests, took_s, spent.user_s, spent.system_s, spent.loop_s)
    return Run(work, None, meter.peak_rss_bytes(target.pid), facts)


async def _alternate(stores: Stores, place: Place, target: Target, count: int) -> Seconds:
    """A request, a PUT, a write, a pause, and again. The broker has had its answer before the peer begins."""
    now_ms = wire.now_ms()
    batch = wire.record_batch(wire.records([bytes(VALUE_BYTES)]), 1, now_ms=now_ms)
    frame = wire.produce_request(1, TOPIC, [(0, batch)])
    seconds = Seconds()
    driver = Driver(HOST, target.port, connections=1)
    try:
        for number in range(-WARM_UP_REQUESTS, count):
            await asyncio.sleep(PAUSE_S)
            sample = await _sample(stores, place, driver, frame)
            if number >= 0:
                for kept, taken in zip((seconds.round_trips, seconds.puts, seconds.writes), sample, strict=False):
                    kept.append(taken)
    finally:
        driver.close()
    return seconds


async def _sample(stores: Stores, place: Place, driver: Driver, frame: bytes) -> Sequence[float]:
    began_s = _clock.monotonic_s()
    answer = driver.ask(frame)
    round_trip_s = _clock.monotonic_s() - began_s
    wire.produced_offsets(answer, TOPIC)
    put_s = await peers.put_s(stores, size_bytes=len(frame))
    if place.store != NATIVE:
        return round_trip_s, put_s
    return round_trip_s, put_s, await peers.write_s(stores, value_bytes=CONTROL_BYTES)


def _spread_ms(name: str, samples_s: Sequence[float]) -> dict[str, Fact]:
    return {
        f"{name}_p50_ms": 1e3 * quantiles.of_samples(samples_s, P50),
        f"{name}_p99_ms": 1e3 * quantiles.of_samples(samples_s, P99),
    }


CASES: Final = (Case("produce-lone", (DISK, NATIVE), _run),)
