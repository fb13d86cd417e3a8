"""librdkafka as the load: payloads are made before the clock starts, and what was produced is compared with the end offsets."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench import wire
from bench.results import MIB
from runtime.clock import SystemClock

SETTLED_WITHIN_S: Final = 120.0
CONSUME_RECORDS_MAX: Final = 10_000
CONSUME_WAIT_S: Final = 1.0
QUEUED_RECORDS_MAX: Final = 400_000
QUEUED_BYTES_MAX: Final = 256 * MIB
POLL_S: Final = 0.005
POLL_LEAST_S: Final = 0.001
"""`poll` below a millisecond spins."""

Delivered = Callable[[KafkaError | None, Message], None]

_clock = SystemClock()


class Lost(Exception):
    """The counts do not agree: the figures of this run mean nothing."""


class TooSlow(Exception):
    """The load could not be offered at the rate asked for."""


class Latencies:
    """Seconds from the call of `produce` to the acknowledgement of each record, as librdkafka has them when it is polled."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def heard(self, error: KafkaError | None, message: Message) -> None:
        latency_s = message.latency()
        if error is None and latency_s is not None:
            self.seconds.append(latency_s)


@dataclass(frozen=True, slots=True)
class Load:
    """`records` values of `record_bytes`, to `partitions` in turns of `turn_records`, in batches of up to `batch_bytes`."""

    records: int
    record_bytes: int
    partitions: int
    turn_records: int
    batch_bytes: int = MIB
    linger_ms: int = 100

    @property
    def value_bytes(self) -> int:
        return self.records * self.record_bytes


def create_topic(bootstrap: str, name: str, partitions: int) -> None:
    create_topics(bootstrap, [name], partitions)


def create_topics(bootstrap: str, names: Sequence[str], partitions: int) -> None:
    """Each with this number of partitions."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics([NewTopic(name, partitions, 1) for name in names], request_timeout=SETTLED_WITHIN_S).values():
        made.result(SETTLED_WITHIN_S)


@contextlib.contextmanager
def producer(bootstrap: str, load: Load, *, on_delivery: Delivered | None = None) -> Iterator[Producer]:
    """Connected, uncompressed, acks=all. Turns are as long as a batch, so that batches are full though partitions take turns."""
    made = Producer(
        {
            **({"on_delivery": on_delivery} if on_delivery else {}),
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "compression.type": "none",
            "linger.ms": load.linger_ms,
            "batch.size": load.batch_bytes,
            "batch.num.messages": 1_000_000,
            "message.max.bytes": load.batch_bytes + 64 * 1024,
            "queue.buffering.max.messages": 2 * QUEUED_RECORDS_MAX,
            "queue.buffering.max.kbytes": 2 * QUEUED_BYTES_MAX // 1024,
        }
    )
    made.list_topics(timeout=SETTLED_WITHIN_S)
    try:
        yield made
    finally:
        made.purge()
        made.flush(SETTLED_WITHIN_S)


def produce(made: Producer, topic: str, load: Load, *, bytes_per_s: float | None = None) -> None:
    """As fast as it goes, or at a rate. Return when every record is acknowledged.

    Raise `Lost` when librdkafka gives up; errors show in the end offsets, too.
    """
    value = bytes(range(256)) * (load.record_bytes // 256 + 1)
    messages = [{"value": value[: load.record_bytes]}] * load.turn_records
    queued_max = max(load.turn_records, min(QUEUED_RECORDS_MAX, QUEUED_BYTES_MAX // load.record_bytes))
    partition = sent = 0
    began_s = _clock.monotonic_s()
    while sent < load.records:
        count = min(load.turn_records, load.records - sent)
        while bytes_per_s and (early_s := began_s + sent * load.record_bytes / bytes_per_s - _clock.monotonic_s()) > POLL_LEAST_S:
            made.poll(early_s)
        while len(made) + count > queued_max:
            made.poll(POLL_S)
        taken = made.produce_batch(topic, messages[:count], partition=partition)
        if taken != count:
            raise Lost(f"librdkafka took {taken} of {count} records")
        sent += count
        partition = (partition + 1) % load.partitions
    if left := made.flush(SETTLED_WITHIN_S):
        raise Lost(f"not acknowledged within {SETTLED_WITHIN_S} s: records={left}")


@contextlib.contextmanager
def consumer(bootstrap: str, topic: str, partitions: int) -> Iterator[Consumer]:
    """Reads every partition from its start. librdkafka pauses for a second when its queue is full, unless configured otherwise."""
    made = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "forebay-bench",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "fetch.queue.backoff.ms": 1,
            "fetch.wait.max.ms": 100,
            "queued.min.messages": 1_000_000,
            "queued.max.messages.kbytes": 1_000_000,
        }
    )
    made.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    try:
        yield made
    finally:
        made.close()


def consume(made: Consumer, records: int) -> None:
    """Return when this number of records has been read. Raise `Lost` if they do not come."""
    left = records
    deadline_s = _clock.monotonic_s() + SETTLED_WITHIN_S
    while left:
        # It waits for the whole number it was asked for: never ask for more than there are.
        for message in made.consume(min(left, CONSUME_RECORDS_MAX), timeout=CONSUME_WAIT_S):
            error: KafkaError | None = message.error()
            if error is not None:
                raise KafkaException(error)
            left -= 1
        if _clock.monotonic_s() > deadline_s:
            raise Lost(f"not read within {SETTLED_WITHIN_S} s: records={left} of {records}")


def end_offsets(bootstrap: str, topic: str, partitions: int) -> int:
    """The sum over the partitions, whose logs start at 0."""
    host, _, port = bootstrap.rpartition(":")
    driver = wire.Driver(host, int(port), connections=1)
    try:
        return sum(wire.listed_offsets(driver.ask(wire.list_offsets_request(0, topic, partitions)), topic))
    finally:
        driver.close()


def check_produced(bootstrap: str, topic: str, partitions: int, *, records: int) -> None:
    if (found := end_offsets(bootstrap, topic, partitions)) != records:
        raise Lost(f"end offsets say {found}, {records} were acknowledged: topic={topic}")
