"""Records of chosen partitions, by assignment, as fast as they come; consumers and counts are on one thread."""

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from forebay.commands.bench.waiting import POLL_LEAST_S, POLL_S, BrokerPatience, RecordsMoved
from forebay.commands.topic.consuming import judge
from forebay.kafka_client.connection import ClusterConnection
from forebay.kafka_client.failures import ClientFailed
from forebay.kafka_client.interrupts import interruptible
from runtime.clock import Clock

TOGETHER_RECORDS: Final = 10_000


@dataclass(slots=True)
class Reading:
    """What was read. `ended` has the partitions of which the end was seen."""

    records: int = 0
    size_bytes: int = 0
    ended: set[int] = field(default_factory=set)

    def take(self, batch: Sequence[Message]) -> list[Message]:
        """Count the records among these, and return them. Raise `ClientFailed` for an error that will not pass by itself."""
        # One call of C for all: a record costs a microsecond here.
        records = [message for message in batch if message.error() is None] if any(map(Message.error, batch)) else list(batch)
        if len(records) < len(batch):
            for message in batch:
                self._note(message)
        self.records += len(records)
        self.size_bytes += sum(map(len, records))
        return records

    def _note(self, message: Message) -> None:
        error, partition = message.error(), message.partition()
        if error is None:
            return
        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
            assert partition is not None, "a partition has a number"
            self.ended.add(partition)
        elif error.code() in {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}:  # noqa: SLF001
            raise ClientFailed(f"The next records of {message.topic()}/{partition} were deleted while they were read. Run it again.")
        else:
            judge(error, message.topic() or "", partition)


def read(
    connection: ClusterConnection,
    consumers: Sequence[Consumer],
    topic: str,
    offsets: Mapping[int, int],
    count: int,
    *,
    moved: RecordsMoved,
    clock: Clock,
    positions: dict[int, int] | None = None,
) -> Reading:
    """Read this number of records from these offsets on, or what there is before the ends of the partitions.

    `positions` has the offsets behind what was read.
    """
    reading = Reading()
    patience = BrokerPatience(connection, clock)
    partitions = sorted(offsets)
    for number, consumer in enumerate(consumers):
        consumer.assign([TopicPartition(topic, partition, offsets[partition]) for partition in partitions[number :: len(consumers)]])
    waits = 0
    while reading.records < count and len(reading.ended) < len(offsets):
        before, before_bytes = reading.records, reading.size_bytes
        for consumer in consumers:
            _take(reading, consumer.consume(min(TOGETHER_RECORDS, count - reading.records), 0), positions)
            if reading.records == count:
                break
        if reading.records == before:
            waits += 1
            message = consumers[waits % len(consumers)].poll(POLL_S if len(consumers) == 1 else POLL_LEAST_S)
            _take(reading, [] if message is None else [message], positions)
        if reading.records == before:
            patience.check()
        else:
            patience.heard()
            moved(reading.records - before, reading.size_bytes - before_bytes)
    return reading


def _take(reading: Reading, batch: Sequence[Message], positions: dict[int, int] | None) -> None:
    records = reading.take(batch) if batch else ()
    if positions is not None:
        for record in records:
            partition, offset = record.partition(), record.offset()
            assert partition is not None, "a record is in a partition"
            assert offset is not None, "a record has an offset"
            positions[partition] = offset + 1


@contextlib.contextmanager
def opened_consumers(connection: ClusterConnection, config: Mapping[str, Any], topic: str, *, count: int) -> Iterator[list[Consumer]]:
    """Consumers that know the topic, and are assigned nothing."""
    made = [connection.consumer(config) for _ in range(count)]
    try:
        with connection.answers_awaited():
            for one in made:
                interruptible(functools.partial(one.list_topics, topic, timeout=connection.timeout_s))
        yield made
    finally:
        for one in made:
            one.close()
