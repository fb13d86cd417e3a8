"""Fetching with librdkafka: from the tail cache, behind a producer, and what has left memory."""

from typing import Final

from bench import clients, meter, processes
from bench.cases.case import Case, Plan, answered, fresh_broker, grown, metered
from bench.clients import Load
from bench.processes import DISK, NATIVE, Target, fresh
from bench.results import KIB, CaseResult, Run, Work
from bench.threads import at_once

PARTITIONS: Final = 12
READ_BYTES: Final = "forebay_object_store_bytes_total{op=get}"
TAIL_RECORDS: Final = 96 * KIB
"""96 MiB: three quarters of the tail cache a broker has by default."""
PASSES: Final = 6


def _load(records: int) -> Load:
    return Load(records=records, record_bytes=KIB, partitions=PARTITIONS, turn_records=1_000)


def _tail(plan: Plan, store: str) -> CaseResult:
    """Produce what the tail cache holds, then read it several times over with the clock running."""
    load = _load(min(plan.scaled(TAIL_RECORDS), TAIL_RECORDS))
    passes = plan.scaled(PASSES)
    runs: list[Run] = []
    with (
        fresh_broker(plan, store, {}) as (_, target),
        processes.null_broker(partitions=PARTITIONS, records_per_partition=load.records // PARTITIONS, record_bytes=KIB) as null,
    ):
        _fill(target, "tail", load)
        _read(target, "tail", passes=1)
        _read(null, "tail", passes=1)
        after = target.counters()
        for _ in range(plan.repeats):
            null_work = _read(null, "tail", passes=passes)
            before = after
            work = _read(target, "tail", passes=passes)
            after = target.counters()
            runs.append(_fetched(work, null_work, target, after, before))
    what = f"{passes} reads of {load.records} records of 1 KiB that the tail cache holds"
    return CaseResult("fetch-tail", store, what, _settings(load), runs)


def _catch_up(plan: Plan, store: str) -> CaseResult:
    """Read what an earlier broker process wrote, with a fresh one for each repetition: its caches are empty."""
    load = _load(plan.scaled(512 * KIB))
    runs: list[Run] = []
    with fresh(store, plan.folder) as place:
        with processes.broker(place, {}) as writer:
            _fill(writer, "old", load)
        for _ in range(plan.repeats):
            with processes.broker(place, {}) as target:
                before = target.counters()
                work = _read(target, "old", passes=1)
                runs.append(_fetched(work, None, target, target.counters(), before))
    return CaseResult(
        "fetch-catch-up", store, "the whole log, from the object store, by a broker that has just started", _settings(load), runs
    )


def _follow(plan: Plan, store: str) -> CaseResult:
    """Produce alone, then the same with a consumer that keeps up. What the second takes more is taken for the cost of fetching."""
    load = _load(plan.scaled(384 * KIB))
    runs: list[Run] = []
    with fresh_broker(plan, store, {}) as (_, target):
        _fill(target, "warm-up", _load(load.records // 8))
        after = target.counters()
        for number in range(plan.repeats):
            alone = _produced(target, f"alone-{number}", load)
            before = target.counters()
            both = _followed(target, f"followed-{number}", load)
            after = target.counters()
            more = Work(
                both.records,
                both.value_bytes,
                answered(after, before, "Fetch"),
                both.seconds,
                max(0.0, both.user_s - alone.user_s),
                max(0.0, both.system_s - alone.system_s),
                max(0.0, both.loop_s - alone.loop_s),
            )
            facts = {
                "produce_alone_cpu_s": alone.cpu_s,
                "with_consumer_cpu_s": both.cpu_s,
                "object_bytes_read": grown(after, before, READ_BYTES),
            }
            runs.append(Run(more, None, meter.peak_rss_bytes(target.pid), facts))
    what = "a consumer beside a producer; figures are the difference to the producer alone"
    return CaseResult("fetch-follow", store, what, _settings(load), runs)


def _fill(target: Target, topic: str, load: Load) -> None:
    clients.create_topic(target.bootstrap, topic, PARTITIONS)
    with clients.producer(target.bootstrap, load) as made:
        clients.produce(made, topic, load)
    clients.check_produced(target.bootstrap, topic, PARTITIONS, records=load.records)


def _produced(target: Target, topic: str, load: Load) -> Work:
    return metered(target, lambda: _fill(target, topic, load), records=load.records, value_bytes=load.value_bytes)


def _followed(target: Target, topic: str, load: Load) -> Work:
    def produce() -> None:
        with clients.producer(target.bootstrap, load) as made:
            clients.produce(made, topic, load)

    def both() -> None:
        clients.create_topic(target.bootstrap, topic, PARTITIONS)
        with clients.consumer(target.bootstrap, topic, PARTITIONS) as reader:
            at_once([produce, lambda: clients.consume(reader, load.records)])
        clients.check_produced(target.bootstrap, topic, PARTITIONS, records=load.records)

    return metered(target, both, records=load.records, value_bytes=load.value_bytes)


def _read(target: Target, topic: str, *, passes: int) -> Work:
    """Read all there is, a number of times."""
    records = clients.end_offsets(target.bootstrap, topic, PARTITIONS)

    def read() -> None:
        for _ in range(passes):
            with clients.consumer(target.bootstrap, topic, PARTITIONS) as reader:
                clients.consume(reader, records)

    return metered(target, read, records=records * passes, value_bytes=records * passes * KIB)


def _fetched(work: Work, null: Work | None, target: Target, after: dict[str, float], before: dict[str, float]) -> Run:
    requests = answered(after, before, "Fetch")
    facts = {"bytes_per_fetch": work.value_bytes / requests, "object_bytes_read": grown(after, before, READ_BYTES)}
    counted = Work(work.records, work.value_bytes, requests, work.seconds, work.user_s, work.system_s, work.loop_s)
    return Run(counted, null, meter.peak_rss_bytes(target.pid), facts)


def _settings(load: Load) -> dict[str, int | str]:
    return {
        "client": "librdkafka",
        "records": load.records,
        "record_bytes": load.record_bytes,
        "partitions": load.partitions,
        "fetch.queue.backoff.ms": 1,
        "fetch.wait.max.ms": 100,
        "max.partition.fetch.bytes": 1_048_576,
    }


CASES: Final = (
    Case("fetch-tail", (DISK, NATIVE), _tail),
    Case("fetch-follow", (DISK,), _follow),
    Case("fetch-catch-up", (DISK, NATIVE), _catch_up),
)
