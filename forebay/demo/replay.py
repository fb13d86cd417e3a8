"""Sends records through a broker and reads them back, as an ordinary Kafka client.

The partition of a key is chosen here, so that the ledger knows what is at which offset before the broker says so;
the broker's own word (the offset in each delivery report) must then agree.
"""

import zlib
from collections.abc import Callable, Iterable
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from forebay.demo.flights import FlightRecord
from forebay.demo.ledger import Ledger
from forebay.demo.progress import Advance
from runtime.clock import Clock

ANSWER_WITHIN_S: Final = 30.0
REPORT_EVERY: Final = 2_000
_READ_AT_ONCE: Final = 5_000
_READ_WAIT_S: Final = 0.2
_RECREATE_ATTEMPTS_MAX: Final = 50
_RECREATE_PAUSE_S: Final = 0.1

_QUIET: Final = {"log_level": 2}


class ReplayError(Exception):
    """The records did not come through; the message says how far they came."""


def recreate_topic(bootstrap: str, topic: str, *, partition_count: int, sleep: Callable[[float], None]) -> bool:
    """An empty topic of that name. Whether there was one before, which is gone now with all its records."""
    admin = AdminClient({"bootstrap.servers": bootstrap, **_QUIET})
    existed = _answer(admin.delete_topics([topic], operation_timeout=ANSWER_WITHIN_S)[topic], KafkaError.UNKNOWN_TOPIC_OR_PART)
    for _ in range(_RECREATE_ATTEMPTS_MAX):
        new = NewTopic(topic, num_partitions=partition_count, replication_factor=1)
        if _answer(admin.create_topics([new])[topic], KafkaError.TOPIC_ALREADY_EXISTS):
            return existed
        # The broker has agreed to delete it but is not done yet.
        sleep(_RECREATE_PAUSE_S)
    raise ReplayError(f"topic {topic} was deleted but its name did not become free")


def _answer(future: Any, expected: int) -> bool:
    """True for success, False for the error code `expected`."""
    try:
        future.result(timeout=ANSWER_WITHIN_S)
    except KafkaException as error:
        if error.args[0].code() == expected:
            return False
        raise ReplayError(f"the broker refused: {error.args[0].str()}") from error
    return True


class _Deliveries:
    """Checks each delivery report: per partition, offsets must count up from 0 without a gap."""

    def __init__(self, partition_count: int, advance: Advance) -> None:
        self._next = [0] * partition_count
        self._advance = advance
        self._unreported = 0
        self.error: str | None = None

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.error = self.error or f"a record was not delivered: {error.str()}"
            return
        partition, offset = message.partition(), message.offset()
        assert partition is not None, "a delivery without a partition"
        if offset != self._next[partition]:
            self.error = self.error or f"partition {partition}: offset {self._next[partition]} was due, the broker said {offset}"
        self._next[partition] += 1
        self._unreported += 1
        if self._unreported == REPORT_EVERY:
            self._advance(REPORT_EVERY)
            self._unreported = 0


def send(bootstrap: str, topic: str, records: Iterable[FlightRecord], *, partition_count: int, advance: Advance) -> Ledger:
    """Produce them all and wait for every acknowledgement. Raise `ReplayError`."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 20,
            "batch.size": 1024 * 1024,
            "compression.type": "lz4",
            **_QUIET,
        }
    )
    sent = Ledger(partition_count)
    deliveries = _Deliveries(partition_count, advance)
    for number, (key, value, timestamp_ms) in enumerate(records):
        partition = zlib.crc32(key) % partition_count
        _enqueue(producer, topic, partition, key, value, timestamp_ms, deliveries)
        sent.note(partition, key, value, timestamp_ms)
        if number % REPORT_EVERY == 0:
            producer.poll(0)
            if deliveries.error is not None:
                break
    left = producer.flush(ANSWER_WITHIN_S)
    if deliveries.error is not None:
        raise ReplayError(deliveries.error)
    if left:
        raise ReplayError(f"{left} of {sent.record_count} records were not acknowledged within {ANSWER_WITHIN_S:.0f} s")
    return sent


def _enqueue(producer: Producer, topic: str, partition: int, key: bytes, value: bytes, timestamp_ms: int, deliveries: _Deliveries) -> None:
    while deliveries.error is None:
        try:
            producer.produce(topic, value, key, partition, on_delivery=deliveries, timestamp=timestamp_ms)
            return
        except BufferError:
            # The client's queue is full: let it work until something was acknowledged or has timed out.
            producer.poll(1.0)


def read_back(bootstrap: str, topic: str, counts: list[int], *, advance: Advance, clock: Clock) -> Ledger:
    """Read every partition from its beginning to its end. Raise `ReplayError` if the broker says more or less is there than `counts`,
    if an offset is skipped or repeated, or if nothing comes for a while. Partitions are assigned by hand: no group is needed.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "forebay-demo",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "check.crcs": True,
            "fetch.queue.backoff.ms": 10,
            "fetch.wait.max.ms": 100,
            **_QUIET,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(len(counts))])
        read = _drain(consumer, counts, advance, clock)
        # Questions queue behind the fetches of a connection; without partitions there are none.
        consumer.unassign()
        for partition, count in enumerate(counts):
            end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=ANSWER_WITHIN_S)[1]
            if end != count:
                raise ReplayError(f"partition {partition}: {count} records were sent, the broker says it ends at {end}")
    except KafkaException as error:
        raise ReplayError(f"reading failed: {error.args[0].str()}") from error
    finally:
        consumer.close()
    return read


def _drain(consumer: Consumer, counts: list[int], advance: Advance, clock: Clock) -> Ledger:
    read = Ledger(len(counts))
    due = [0] * len(counts)
    expected = sum(counts)
    last_s = clock.monotonic_s()
    while read.record_count < expected:
        messages = consumer.consume(_READ_AT_ONCE, timeout=_READ_WAIT_S)
        for message in messages:
            error = message.error()
            if error is not None:
                raise ReplayError(f"reading failed: {error.str()}")
            partition, offset = message.partition(), message.offset()
            assert partition is not None, "a message without a partition"
            if offset != due[partition]:
                raise ReplayError(f"partition {partition}: offset {due[partition]} was due, {offset} came")
            due[partition] += 1
            read.note(partition, message.key() or b"", message.value() or b"", message.timestamp()[1])
        if messages:
            last_s = clock.monotonic_s()
            advance(len(messages))
        elif clock.monotonic_s() - last_s > ANSWER_WITHIN_S:
            raise ReplayError(f"{read.record_count} of {expected} records came, then nothing for {ANSWER_WITHIN_S:.0f} s")
    return read
