"""Producing with librdkafka: full batches, and many partitions with small ones."""

import itertools
from dataclasses import replace
from typing import Final

from bench import clients, meter, processes
from bench.cases.case import DISK, Case, Plan, answered, fresh_broker, grown, metered
from bench.clients import Load
from bench.processes import Target
from bench.results import CaseResult, Fact, Run, Work
from bench.units import KIB

PUT_BYTES: Final = "forebay_object_store_bytes_total{op=put}"
PUTS: Final = "forebay_object_store_requests_total{op=put,outcome=ok}"
WARM_UP: Final = 8
"""A part of the work, done before the clock starts: memory the broker keeps has been touched by then."""

_names = itertools.count()


def _run(plan: Plan, store: str, *, name: str, what: str, load: Load) -> CaseResult:
    load = replace(load, records=plan.scaled(load.records))
    runs: list[Run] = []
    with fresh_broker(plan, store, {}) as target, processes.null_broker(partitions=load.partitions) as null:
        _produced(target, replace(load, records=load.records // WARM_UP))
        _produced(null, replace(load, records=load.records // WARM_UP), is_checked=False)
        after = target.counters()
        for _ in range(plan.repeats):
            null_work = _produced(null, load, is_checked=False)
            before = after
            work = _produced(target, load)
            after = target.counters()
            work = replace(work, requests=answered(after, before, "Produce"))
            puts = grown(after, before, PUTS)
            facts = {
                "batch_bytes_mean": work.value_bytes / work.requests,
                "objects": puts,
                "object_bytes_mean": grown(after, before, PUT_BYTES) / puts,
            }
            runs.append(Run(work, null_work, meter.peak_rss_bytes(target.pid), facts))
    settings: dict[str, Fact] = {
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
    return CaseResult(name, store, what, settings, runs)


def _produced(target: Target, load: Load, *, is_checked: bool = True) -> Work:
    topic = f"produced-{next(_names)}"
    if is_checked:
        clients.create_topic(target.bootstrap, topic, load.partitions)
    with clients.producer(target.bootstrap, load) as made:
        work = metered(target, lambda: clients.produce(made, topic, load), records=load.records, value_bytes=load.value_bytes, requests=0)
    if is_checked:
        clients.check_produced(target.bootstrap, topic, load.partitions, records=load.records)
    return work


def _one_kib(plan: Plan, store: str) -> CaseResult:
    load = Load(records=512 * KIB, record_bytes=KIB, partitions=12, turn_records=1_000)
    return _run(plan, store, name="produce-1kib", what="1 KiB records in batches of 1 MiB, acks=all", load=load)


def _hundred_bytes(plan: Plan, store: str) -> CaseResult:
    load = Load(records=2_000_000, record_bytes=100, partitions=12, turn_records=9_000)
    return _run(plan, store, name="produce-100b", what="100 B records in batches of 1 MiB, acks=all", load=load)


def _many_partitions(plan: Plan, store: str) -> CaseResult:
    load = Load(records=256_000, record_bytes=KIB, partitions=500, turn_records=16, batch_bytes=16 * KIB, linger_ms=20)
    what = "1 KiB records in batches of about 16 KiB to 500 partitions, a request for each batch, as librdkafka does"
    return _run(plan, store, name="produce-500-partitions", what=what, load=load)


CASES: Final = (
    Case("produce-1kib", (DISK,), _one_kib),
    Case("produce-100b", (DISK,), _hundred_bytes),
    Case("produce-500-partitions", (DISK,), _many_partitions),
)
