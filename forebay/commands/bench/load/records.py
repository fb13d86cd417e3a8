"""The records of a load: run, producer and sequence, then bytes that follow from these. So whoever reads one knows whose it is, and whether
it is whole. An independent reader says with them what the log has."""

import hashlib
import struct
from collections.abc import Iterator, Mapping
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from forebay.commands.bench.load.reconcile import NOT_OURS, LoadPartition, PartitionEnds, StoredRun
from forebay.commands.bench.settings import reading_config
from runtime.clock import Clock

FILLERS_MAX: Final = 64
FILLERS_BYTES_MAX: Final = 4 * 1024 * 1024
HEADER_BYTES: Final = 12
ANSWER_WITHIN_S: Final = 60.0
_BATCH_RECORDS: Final = 1_000
_POLL_S: Final = 0.5
_HEADER: Final = struct.Struct(">IHHI")
_LOW_BITS: Final = 32


class ValueMaker:
    """The values of one producer, all of one size, and the check of values that claim to be its own."""

    def __init__(self, *, run: int, producer: int, size: int) -> None:
        self._run = run
        self._producer = producer
        left = size - HEADER_BYTES
        count = max(1, min(FILLERS_MAX, FILLERS_BYTES_MAX // size))
        random = hashlib.shake_256(f"{run}/{producer}".encode()).digest(count * left)
        self._fillers = [random[number * left : (number + 1) * left] for number in range(count)]

    def value(self, sequence: int) -> bytes:
        head = _HEADER.pack(self._run, self._producer, sequence >> _LOW_BITS, sequence & 0xFFFFFFFF)
        return head + self._fillers[sequence % len(self._fillers)]

    def is_whole(self, value: bytes, sequence: int) -> bool:
        return value[HEADER_BYTES:] == self._fillers[sequence % len(self._fillers)]


def sequence_of(value: bytes) -> int:
    """The number in a value of our own."""
    _, _, high, low = _HEADER.unpack_from(value)
    return int(high << _LOW_BITS | low)


class RunCollector:
    """Records as they are read → runs. Holds one run for each partition, and what `take` has not yet taken."""

    def __init__(self, *, run: int, makers: Mapping[int, ValueMaker]) -> None:
        self._run = run
        self._makers = makers
        self._open: dict[LoadPartition, StoredRun] = {}
        self._closed: list[StoredRun] = []

    def note(self, topic: str, partition: int, offset: int, value: bytes | None) -> None:
        producer, sequence = self._identified(value)
        place = topic, partition
        known = self._open.get(place)
        if known is not None:
            is_next = producer == known.producer and (producer == NOT_OURS or sequence == known.sequence + known.records)
            if offset == known.offset + known.records and is_next:
                self._open[place] = known._replace(records=known.records + 1)
                return
            self._closed.append(known)
        self._open[place] = StoredRun(topic, partition, offset, 1, producer, sequence)

    def take(self) -> list[StoredRun]:
        """All runs so far. The next record begins another."""
        found = [*self._closed, *self._open.values()]
        self._closed.clear()
        self._open.clear()
        return found

    def _identified(self, value: bytes | None) -> tuple[int, int]:
        if value is None or len(value) < HEADER_BYTES:
            return NOT_OURS, 0
        run, producer, high, low = _HEADER.unpack_from(value)
        sequence = high << _LOW_BITS | low
        maker = self._makers.get(producer)
        if run != self._run or maker is None or not maker.is_whole(value, sequence):
            return NOT_OURS, 0
        return producer, sequence


def read_bounds(bootstrap: str, topics: Mapping[str, int]) -> list[PartitionEnds]:
    """Where the log of each partition starts and ends. Raise `KafkaException` where no broker answers."""
    reader = Consumer({**reading_config(), "bootstrap.servers": bootstrap, "log_level": 0})
    try:
        found = []
        for topic, partitions in topics.items():
            for partition in range(partitions):
                start, end = reader.get_watermark_offsets(TopicPartition(topic, partition), timeout=ANSWER_WITHIN_S)
                found.append(PartitionEnds(topic, partition, start, end))
        return found
    finally:
        reader.close()


def read_stored(bootstrap: str, topics: Mapping[str, int], collector: RunCollector, *, clock: Clock) -> Iterator[StoredRun]:
    """Everything that all partitions have, from their starts to their ends, or as much as comes. Raise `KafkaException` for a refusal."""
    reader = Consumer({**reading_config(), "bootstrap.servers": bootstrap, "auto.offset.reset": "earliest", "log_level": 0})
    try:
        left = {(topic, partition) for topic, partitions in topics.items() for partition in range(partitions)}
        reader.assign([TopicPartition(topic, partition, 0) for topic, partition in sorted(left)])
        heard_s = clock.monotonic_s()
        while left:
            messages = reader.consume(_BATCH_RECORDS, _POLL_S)
            for message in messages:
                _note(message, collector, left)
            if messages:
                heard_s = clock.monotonic_s()
                yield from collector.take() if len(messages) == _BATCH_RECORDS else ()
            elif clock.monotonic_s() - heard_s > ANSWER_WITHIN_S:
                # What was not read is missed by whoever compares.
                break
        yield from collector.take()
    finally:
        reader.close()


def _note(message: Any, collector: RunCollector, left: set[LoadPartition]) -> None:
    error = message.error()
    if error is None:
        collector.note(message.topic(), message.partition(), message.offset(), message.value())
    elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
        left.discard((message.topic(), message.partition()))
    elif error.fatal() or not error.retriable():
        raise KafkaException(error)
