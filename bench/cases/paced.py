"""Producing at a steady rate: how long a record waits for its acknowledgement, as librdkafka measures it."""

import itertools
from dataclasses import replace
from typing import Final

from bench import clients, meter, readings
from bench.cases.case import Case, Plan, answered, fresh_broker, metered
from bench.cases.produce import settings_of
from bench.clients import Load
from bench.processes import Target
from bench.readings import P50, P99, of_samples
from bench.results import CaseResult, Fact, Run, Work
from bench.stores import DISK, NATIVE, Place
from bench.units import KIB

BYTES_PER_S: Final = 10_000_000
SECONDS: Final = 10
INTERVAL_MS: Final = 250
SLOWER_MAX: Final = 1.1
"""Times the planned seconds: a run that took longer was not one at that rate."""
GOALS: Final = {"produce_p50_ms": 300.0}

_names = itertools.count()


def _run(plan: Plan, store: str) -> CaseResult:
    load = Load(records=plan.scaled(SECONDS * BYTES_PER_S // KIB), record_bytes=KIB, partitions=12, turn_records=10, linger_ms=5)
    settings: dict[str, Fact] = {"storage.flush_interval": f"{INTERVAL_MS}ms"}
    runs: list[Run] = []
    with fresh_broker(plan, store, settings) as (place, target):
        measured(place, target, replace(load, records=BYTES_PER_S // KIB))
        for _ in range(plan.repeats):
            work, facts = measured(place, target, load)
            runs.append(Run(work, None, meter.peak_rss_bytes(target.pid), facts))
    what = f"1 KiB records at {BYTES_PER_S / 1e6:g} MB/s; produce: from the call of the client to the acknowledgement"
    return CaseResult("produce-paced", store, what, {**settings_of(load), **settings}, runs, GOALS if store == NATIVE else {})


def measured(place: Place, target: Target, load: Load) -> tuple[Work, dict[str, Fact]]:
    """Produce `load` at BYTES_PER_S to a topic of its own: what the broker spent, and how long acknowledgements took."""
    topic = f"paced-{next(_names)}"
    clients.create_topic(target.bootstrap, topic, load.partitions)
    latencies = clients.Latencies()
    planned_s = load.value_bytes / BYTES_PER_S
    with clients.producer(target.bootstrap, load, on_delivery=latencies.heard) as made:
        before = readings.read(place, [target])
        work = metered(
            target,
            lambda: clients.produce(made, topic, load, bytes_per_s=BYTES_PER_S),
            records=load.records,
            value_bytes=load.value_bytes,
        )
        after = readings.read(place, [target])
    clients.check_produced(target.bootstrap, topic, load.partitions, records=load.records)
    if len(latencies.seconds) != load.records:
        raise clients.Lost(f"acknowledged records={len(latencies.seconds)} of {load.records}")
    if work.seconds > planned_s * SLOWER_MAX + INTERVAL_MS / 1e3:
        raise clients.TooSlow(f"took_s={work.seconds:.1f} planned_s={planned_s:.1f}")
    work = replace(work, requests=answered(after.brokers, before.brokers, "Produce"))
    facts: dict[str, Fact] = {
        "batch_bytes_mean": work.value_bytes / work.requests,
        "produce_p50_ms": 1e3 * of_samples(latencies.seconds, P50),
        "produce_p99_ms": 1e3 * of_samples(latencies.seconds, P99),
        "produce_max_ms": 1e3 * max(latencies.seconds),
    }
    return work, facts | readings.costs(place, after, before, value_bytes=work.value_bytes)


CASES: Final = (Case("produce-paced", (DISK, NATIVE), _run),)
