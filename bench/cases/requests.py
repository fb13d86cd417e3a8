"""Small requests over raw sockets, pipelined: what a request costs, whatever it carries."""

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from bench import clients, meter, processes, wire
from bench.cases.case import Case, Plan, fresh_broker, metered
from bench.processes import DISK, HOST, KAFKA, MEMORY, NATIVE, Target
from bench.results import CaseResult, Fact, Run
from bench.wire import Driver, Sender

DEPTH: Final = 5
"""max.in.flight.requests.per.connection of an idempotent producer."""
TOPIC: Final = "requests"
VALUE_BYTES: Final = 100
PARTITIONS: Final = 500
MANY_CLIENTS: Final = 32
RECORDS_PER_BATCH: Final = 10
WARM_UP: Final = 8

_METADATA, _API_VERSIONS = 3, 18
_next_producer_id = itertools.count(1_000_000)

Frames = list[list[bytes]]
Check = Callable[[Sequence[Sequence[bytes]]], None]


def _run(
    plan: Plan,
    store: str,
    *,
    name: str,
    what: str,
    connections: int,
    partitions: int,
    records_per_request: int,
    make: Callable[[Target, int, bool], tuple[Frames, Check]],
    requests: int,
    has_null: bool = True,
) -> CaseResult:
    """`make(target, requests per connection, is_null)` builds the frames of each connection and the check of their answers."""
    per_connection = plan.scaled(requests) // connections or 1
    runs: list[Run] = []

    def drive(target: Target, count: int, *, is_null: bool = False) -> Run:
        frames, check = make(target, count, is_null)
        driver = Driver(HOST, target.port, connections=connections)
        answers: list[list[bytes]] = []
        try:
            work = metered(
                target,
                lambda: answers.extend(driver.run(frames, depth=DEPTH)),
                records=count * connections * records_per_request,
                value_bytes=count * connections * records_per_request * VALUE_BYTES,
                requests=count * connections,
            )
        finally:
            driver.close()
        check(answers)
        return Run(work, None, meter.peak_rss_bytes(target.pid), {"us_per_request": work.cpu_s * 1e6 / work.requests})

    with fresh_broker(plan, store, {}) as (_, target), processes.null_broker(partitions=partitions) as null:
        clients.create_topic(target.bootstrap, TOPIC, partitions)
        drive(target, max(1, per_connection // WARM_UP))
        for _ in range(plan.repeats):
            null_work = drive(null, per_connection, is_null=True).broker if has_null else None
            run = drive(target, per_connection)
            runs.append(Run(run.broker, null_work, run.peak_rss_bytes, run.facts))
    settings: dict[str, Fact] = {
        "client": "raw socket",
        "connections": connections,
        "in_flight": DEPTH,
        "requests": per_connection * connections,
    }
    return CaseResult(name, store, what, settings, runs)


def _producing(target: Target, count: int, is_null: bool, *, connections: int, partitions: int, records: int) -> tuple[Frames, Check]:
    """Producers, one per connection, that write a batch to each partition with every request."""
    now_ms = wire.now_ms()
    encoded = wire.records([b"x" * VALUE_BYTES] * records)
    work: Frames = []
    for _ in range(connections):
        sender = Sender(next(_next_producer_id), 0)
        frames = []
        for number in range(count):
            batch = wire.record_batch(encoded, records, now_ms=now_ms, sender=sender, first_sequence=number * records)
            frames.append(wire.produce_request(number, TOPIC, [(partition, batch) for partition in range(partitions)]))
        work.append(frames)
    before = 0 if is_null else clients.end_offsets(target.bootstrap, TOPIC, partitions)

    def check(answers: Sequence[Sequence[bytes]]) -> None:
        if is_null:
            return
        for lane in answers:
            bases = [wire.produced_offsets(answer, TOPIC) for answer in lane]
            for partition in range(partitions):
                offsets = [base[partition] for base in bases]
                if offsets != sorted(set(offsets)):
                    raise clients.Lost(f"offsets of one producer do not grow: partition={partition}")
        expected = before + connections * count * partitions * records
        clients.check_produced(target.bootstrap, TOPIC, partitions, records=expected)

    return work, check


def _produce_one(plan: Plan, store: str) -> CaseResult:
    return _run(
        plan,
        store,
        name="produce-one",
        what="idempotent Produce of one 100 B record, one client with five requests in flight, one partition",
        connections=1,
        partitions=1,
        records_per_request=1,
        requests=4_000,
        make=lambda target, count, is_null: _producing(target, count, is_null, connections=1, partitions=1, records=1),
    )


def _produce_one_by_many(plan: Plan, store: str) -> CaseResult:
    return _run(
        plan,
        store,
        name=f"produce-one-{MANY_CLIENTS}-clients",
        what=f"idempotent Produce of one 100 B record by {MANY_CLIENTS} clients at once, five in flight each, one partition",
        connections=MANY_CLIENTS,
        partitions=1,
        records_per_request=1,
        requests=48_000,
        make=partial(_producing, connections=MANY_CLIENTS, partitions=1, records=1),
    )


def _produce_everywhere(plan: Plan, store: str) -> CaseResult:
    return _run(
        plan,
        store,
        name="produce-500-in-one",
        what=f"Produce with a batch of {RECORDS_PER_BATCH} records of 100 B to each of {PARTITIONS} partitions, as Java clients do",
        connections=1,
        partitions=PARTITIONS,
        records_per_request=PARTITIONS * RECORDS_PER_BATCH,
        requests=120,
        make=lambda target, count, is_null: _producing(
            target, count, is_null, connections=1, partitions=PARTITIONS, records=RECORDS_PER_BATCH
        ),
    )


def _asking(
    plan: Plan,
    store: str,
    *,
    name: str,
    what: str,
    frame: Callable[[int], bytes],
    fill: Callable[[Target], None] | None = None,
    answer_bytes_min: int = 1,
) -> CaseResult:
    def make(target: Target, count: int, is_null: bool) -> tuple[Frames, Check]:
        if fill is not None and not is_null:
            fill(target)

        def check(answers: Sequence[Sequence[bytes]]) -> None:
            sizes = {len(answer) for answer in answers[0]}
            if not is_null and min(sizes) < answer_bytes_min:
                raise clients.Lost(f"an answer is shorter than what it was to hold: bytes={min(sizes)} expected={answer_bytes_min}")
            if len(sizes) != 1:
                raise clients.Lost(f"the same question was answered in different lengths: bytes={sorted(sizes)}")

        return [[frame(number) for number in range(count)]], check

    return _run(
        plan,
        store,
        name=name,
        what=what,
        connections=1,
        partitions=1,
        records_per_request=0,
        requests=10_000,
        make=make,
    )


def _api_versions(plan: Plan, store: str) -> CaseResult:
    body = wire.compact_string("forebay-bench") + wire.compact_string("1") + b"\x00"
    return _asking(
        plan, store, name="api-versions", what="ApiVersions v3", frame=lambda number: wire.request(_API_VERSIONS, 3, number, body)
    )


def _metadata(plan: Plan, store: str) -> CaseResult:
    body = b"\x02" + bytes(16) + wire.compact_string(TOPIC) + b"\x00" + b"\x00\x00\x00"
    what = "Metadata v12 of one topic with one partition"
    return _asking(plan, store, name="metadata", what=what, frame=lambda number: wire.request(_METADATA, 12, number, body))


def _fetch(plan: Plan, store: str) -> CaseResult:
    what = "Fetch v12 of one batch of one record that the tail cache holds"
    batch = wire.record_batch(wire.records([b"x" * VALUE_BYTES]), 1, now_ms=wire.now_ms())

    def fill(target: Target) -> None:
        driver = Driver(HOST, target.port, connections=1)
        try:
            wire.produced_offsets(driver.ask(wire.produce_request(0, TOPIC, [(0, batch)])), TOPIC)
        finally:
            driver.close()

    return _asking(
        plan,
        store,
        name="fetch-one",
        what=what,
        frame=lambda number: wire.fetch_request(number, TOPIC, 0, 0),
        fill=fill,
        answer_bytes_min=len(batch),
    )


def _list_offsets(plan: Plan, store: str) -> CaseResult:
    what = "ListOffsets v7, the latest of one partition"
    return _asking(plan, store, name="list-offsets", what=what, frame=lambda number: wire.list_offsets_request(number, TOPIC, 1))


CASES: Final = (
    Case("produce-one", (MEMORY, DISK), _produce_one),
    Case("produce-one-32-clients", (MEMORY, DISK), _produce_one_by_many),
    Case("produce-500-in-one", (MEMORY, DISK, NATIVE), _produce_everywhere),
    Case("api-versions", (MEMORY,), _api_versions),
    Case("metadata", (MEMORY, DISK, NATIVE), _metadata),
    Case("fetch-one", (MEMORY, DISK), _fetch),
    Case("list-offsets", (MEMORY, DISK, NATIVE, KAFKA), _list_offsets),
)
