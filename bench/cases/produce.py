"""Producing with librdkafka: at full speed (full batches, and many partitions with small ones), and at a steady rate.

At a steady rate librdkafka measures how long a record waits for its acknowledgement.
"""

import itertools
from dataclasses import replace
from typing import Final

from bench import clients, meter, processes, readings
from bench.cases.case import Case, Plan, answered, fresh_broker, metered
from bench.clients import Load
from bench.processes import DISK, NATIVE, Place, Target
from bench.readings import P50, P99, of_samples
from bench.results import KIB, CaseResult, Fact, Run, Work

WARM_UP: Final = 4
"""A part of the work, done before the clock starts: memory the broker keeps (its tail cache, above all) has been touched by then."""
FULL_LOAD_GOALS: Final = {"cpu_s_per_gib": 2.0, "puts_per_gib": 130.0, "oxia_write_ops_per_slice": 1.3}

_names = itertools.count()


def _run(plan: Plan, store: str, *, name: str, what: str, load: Load, goals: dict[str, float] | None = None) -> CaseResult:
    load = replace(load, records=plan.scaled(load.records))
    runs: list[Run] = []
    with fresh_broker(plan, store, {}) as (place, target), processes.null_broker(partitions=load.partitions) as null:
        _produced(place, target, replace(load, records=max(1, load.records // WARM_UP)))
        _produced_by_null(null, replace(load, records=max(1, load.records // WARM_UP)))
        for _ in range(plan.repeats):
            null_work = _produced_by_null(null, load)
            work, facts = _produced(place, target, load)
            runs.append(Run(work, null_work, meter.peak_rss_bytes(target.pid), facts))
    return CaseResult(name, store, what, settings_of(load), runs, (goals or {}) if store == NATIVE else {})


def settings_of(load: Load) -> dict[str, Fact]:
    return {
        "client": "librdkafka",
        "acks": "all",
        "compression": "none",
        "records": load.records,
        "record_bytes": load.record_bytes,
        "partitions": load.partitions,
        "turn_records": load.turn_records,
        "batch.size": load.batch_bytes,
        "linger.ms": load.linger_ms,
    }


def _produced(place: Place, target: Target, load: Load) -> tuple[Work, dict[str, Fact]]:
    topic = f"produced-{next(_names)}"
    clients.create_topic(target.bootstrap, topic, load.partitions)
    with clients.producer(target.bootstrap, load) as made:
        before = readings.read(place, [target])
        work = metered(target, lambda: clients.produce(made, topic, load), records=load.records, value_bytes=load.value_bytes)
        after = readings.read(place, [target])
    clients.check_produced(target.bootstrap, topic, load.partitions, records=load.records)
    work = replace(work, requests=answered(after.brokers, before.brokers, "Produce"))
    facts: dict[str, Fact] = {"batch_bytes_mean": work.value_bytes / work.requests}
    return work, facts | readings.costs(place, after, before, value_bytes=work.value_bytes)


def _produced_by_null(null: Target, load: Load) -> Work:
    with clients.producer(null.bootstrap, load) as made:
        return metered(null, lambda: clients.produce(made, "produced", load), records=load.records, value_bytes=load.value_bytes)


def _one_kib(plan: Plan, store: str) -> CaseResult:
    load = Load(records=512 * KIB, record_bytes=KIB, partitions=12, turn_records=1_000)
    what = "1 KiB records in batches of 1 MiB, acks=all"
    return _run(plan, store, name="produce-1kib", what=what, load=load, goals=FULL_LOAD_GOALS)


def _hundred_bytes(plan: Plan, store: str) -> CaseResult:
    load = Load(records=2_000_000, record_bytes=100, partitions=12, turn_records=9_000)
    return _run(plan, store, name="produce-100b", what="100 B records in batches of 1 MiB, acks=all", load=load)


def _many_partitions(plan: Plan, store: str) -> CaseResult:
    load = Load(records=256_000, record_bytes=KIB, partitions=500, turn_records=16, batch_bytes=16 * KIB, linger_ms=20)
    what = "1 KiB records in batches of about 16 KiB to 500 partitions, a request for each batch, as librdkafka does"
    return _run(plan, store, name="produce-500-partitions", what=what, load=load)


BYTES_PER_S: Final = 10_000_000
SECONDS: Final = 10
INTERVAL_MS: Final = 250
SLOWER_MAX: Final = 1.1
"""Times the planned seconds: a run that took longer was not one at that rate."""
GOALS: Final = {"produce_p50_ms": 300.0}


def _paced(plan: Plan, store: str) -> CaseResult:
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


CASES: Final = (
    Case("produce-1kib", (DISK, NATIVE), _one_kib),
    Case("produce-100b", (DISK,), _hundred_bytes),
    Case("produce-500-partitions", (DISK, NATIVE), _many_partitions),
    Case("produce-paced", (DISK, NATIVE), _paced),
)
