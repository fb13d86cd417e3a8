"""Small writes, against Apache Kafka in turns: how many requests of one record fit in a second, and how long a record is on its way."""

import itertools
import struct
import threading
from collections.abc import Callable
from typing import Final

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from bench import clients, meter, processes, quantiles, wire
from bench.cases.case import Case, Plan, fresh_broker, metered
from bench.processes import HOST, Target
from bench.quantiles import P50, P99
from bench.results import CaseResult, Fact, Run
from bench.stores import DISK, NATIVE
from bench.units import KIB
from bench.wire import Driver, Sender
from runtime.clock import SystemClock

VALUE_BYTES: Final = 100
IN_FLIGHT: Final = 5
PARTITIONS: Final = 12
REQUESTS: Final = 6_000
REQUESTS_IN_FLUSHES: Final = 200
"""On S3 without inline entries: five in each flush of 250 ms."""
PACE_PER_S: Final = 200
PACED_S: Final = 10
WARM_UP: Final = 4
INLINE: Final[dict[str, Fact]] = {"storage.inline_bytes": KIB}
NOT_INLINE: Final[dict[str, Fact]] = {"storage.inline_bytes": 0}
TIMES_KAFKA: Final = 0.5
REQUESTS_PER_S: Final = 1_000.0
E2E_P50_MS: Final = {DISK: 1.0, NATIVE: 8.0}
_STAMP: Final = struct.Struct(">dI")

_names = itertools.count()
_producer_ids = itertools.count(2_000_000)
_clock = SystemClock()


def _one(plan: Plan, store: str, *, name: str, settings: dict[str, Fact]) -> CaseResult:
    """An idempotent record of 100 B in each request, one client with five under way, twelve partitions in turns."""
    count = plan.scaled(REQUESTS_IN_FLUSHES if store == NATIVE and settings == NOT_INLINE else REQUESTS)
    runs = []
    with fresh_broker(plan, store, settings) as (_, ours), processes.kafka(plan.folder) as kafka:
        for target in (kafka, ours):
            _drive(target, max(1, count // WARM_UP))
        for _ in range(plan.repeats):
            theirs, own = _drive(kafka, count), _drive(ours, count)
            facts: dict[str, Fact] = {
                "requests_per_s": own.broker.requests / own.broker.seconds,
                "kafka_requests_per_s": theirs.broker.requests / theirs.broker.seconds,
                "times_kafka": theirs.broker.seconds / own.broker.seconds,
            }
            runs.append(Run(own.broker, None, own.peak_rss_bytes, facts))
    least = {"times_kafka": TIMES_KAFKA} if store == DISK else {"requests_per_s": REQUESTS_PER_S}
    what = "one idempotent record of 100 B in each request, one client with five under way, twelve partitions in turns"
    return CaseResult(name, store, what, {"requests": count, "in_flight": IN_FLIGHT, **settings}, runs, least=least)


def _drive(target: Target, count: int) -> Run:
    topic = f"small-{next(_names)}"
    clients.create_served_topics(target.bootstrap, [topic], PARTITIONS)
    encoded, now_ms, sender = wire.records([b"x" * VALUE_BYTES]), wire.now_ms(), Sender(next(_producer_ids), 0)
    frames = [
        wire.produce_request(
            number,
            topic,
            [(number % PARTITIONS, wire.record_batch(encoded, 1, now_ms=now_ms, sender=sender, first_sequence=number // PARTITIONS))],
        )
        for number in range(count)
    ]
    answers: list[list[bytes]] = []
    driver = Driver(HOST, target.port, connections=1)
    try:
        work = metered(
            target,
            lambda: answers.extend(driver.run([frames], depth=IN_FLIGHT)),
            records=count,
            value_bytes=count * VALUE_BYTES,
            requests=count,
        )
    finally:
        driver.close()
    for number, answer in enumerate(answers[0]):
        if (found := wire.produced_offsets(answer, topic)) != [number // PARTITIONS]:
            raise clients.Lost(f"record {number} was given the offset {found}: topic={topic}")
    clients.check_produced(target.bootstrap, topic, PARTITIONS, records=count)
    return Run(work, None, meter.peak_rss_bytes(target.pid), {})


def _end_to_end(plan: Plan, store: str, *, name: str, settings: dict[str, Fact]) -> CaseResult:
    """From `produce` to the consumer that waits for it, 200 records a second to one partition, librdkafka without linger at both ends."""
    count = plan.scaled(PACE_PER_S * PACED_S)
    runs = []
    with fresh_broker(plan, store, settings) as (_, ours), processes.kafka(plan.folder) as kafka:
        for target in (kafka, ours):
            _passed_on(target, max(1, count // WARM_UP))
        for _ in range(plan.repeats):
            theirs_s = _passed_on(kafka, count)
            own_s: list[float] = []
            work = metered(ours, lambda own_s=own_s: own_s.extend(_passed_on(ours, count)), records=count, requests=count)  # type: ignore[misc]
            facts: dict[str, Fact] = {
                "e2e_p50_ms": 1e3 * quantiles.of_samples(own_s, P50),
                "e2e_p99_ms": 1e3 * quantiles.of_samples(own_s, P99),
                "kafka_e2e_p50_ms": 1e3 * quantiles.of_samples(theirs_s, P50),
                "kafka_e2e_p99_ms": 1e3 * quantiles.of_samples(theirs_s, P99),
            }
            runs.append(Run(work, None, meter.peak_rss_bytes(ours.pid), facts))
    what = "200 records of 100 B a second to one partition: from the call of produce to the consumer that waits for them"
    return CaseResult(name, store, what, {"records": count, **settings}, runs, {"e2e_p50_ms": E2E_P50_MS[store]})


def _passed_on(target: Target, count: int) -> list[float]:
    """Seconds that each record took. Raise `Lost` if one does not come, or comes in another place."""
    topic = f"passed-{next(_names)}"
    clients.create_served_topics(target.bootstrap, [topic], 1)
    seconds: list[float] = []
    reader = Consumer({"bootstrap.servers": target.bootstrap, "group.id": "small", "enable.auto.commit": False, "log_level": 3})
    reader.assign([TopicPartition(topic, 0, 0)])
    reading = threading.Thread(target=_hear, args=(reader, count, seconds))
    writer = Producer({"bootstrap.servers": target.bootstrap, "acks": "all", "linger.ms": 0, "on_delivery": _heard, "log_level": 3})
    writer.list_topics(timeout=clients.SETTLED_WITHIN_S)
    reading.start()
    try:
        began_s = _clock.monotonic_s()
        for number in range(count):
            while (early_s := began_s + number / PACE_PER_S - _clock.monotonic_s()) > 0:
                writer.poll(max(early_s, clients.POLL_LEAST_S))
            writer.produce(topic, _STAMP.pack(_clock.monotonic_s(), number) + bytes(VALUE_BYTES - _STAMP.size), partition=0)
            writer.poll(0)
        if left := writer.flush(clients.SETTLED_WITHIN_S):
            raise clients.Lost(f"not acknowledged within {clients.SETTLED_WITHIN_S} s: records={left}")
    finally:
        reading.join(clients.SETTLED_WITHIN_S)
    if len(seconds) != count:
        raise clients.Lost(f"{len(seconds)} of {count} records were read in their order: topic={topic}")
    return seconds


def _heard(error: KafkaError | None, _message: Message) -> None:
    if error is not None:
        raise clients.Lost(f"a record was not taken: {error}")


def _hear(reader: Consumer, count: int, seconds: list[float]) -> None:
    """Until all have come, one comes out of its order, or none comes."""
    while len(seconds) < count:
        message = reader.poll(clients.SETTLED_WITHIN_S)
        if message is None or message.error() is not None:
            break
        sent_s, number = _STAMP.unpack_from(message.value() or b"")
        if number != len(seconds):
            break
        seconds.append(_clock.monotonic_s() - sent_s)
    reader.close()


def _case(name: str, run: Callable[..., CaseResult], settings: dict[str, Fact]) -> Case:
    return Case(name, (DISK, NATIVE), lambda plan, store: run(plan, store, name=name, settings=settings))


CASES: Final = (
    _case("small-one", _one, NOT_INLINE),
    _case("small-one-inline", _one, INLINE),
    _case("small-e2e", _end_to_end, NOT_INLINE),
    _case("small-e2e-inline", _end_to_end, INLINE),
)
