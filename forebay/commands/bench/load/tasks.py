"""Tasks of a load's clients, their reports, the files that they leave, and the records that they write and read.

Files hold ranges, so memory grows with batches. A record is run, producer and sequence, then bytes that follow from these: it tells whose
it is, and whether it is whole. `read_stored`, an independent reader, says with them what the log has.
"""

import hashlib
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from forebay.commands.bench.load.reconcile import NOT_OURS, AckedRange, DoubtfulRange, LoadPartition, PartitionEnds, StoredRun
from forebay.commands.bench.results import LatencyMs, latency_ms
from forebay.commands.bench.settings import reading_config
from runtime.clock import Clock, SystemClock

FILLERS_MAX: Final = 64
FILLERS_BYTES_MAX: Final = 4 * 1024 * 1024
HEADER_BYTES: Final = 12
ANSWER_WITHIN_S: Final = 60.0
_BATCH_RECORDS: Final = 1_000
_POLL_S: Final = 0.5
_HEADER: Final = struct.Struct(">IHHI")
_LOW_BITS: Final = 32
GIVE_UP_S: Final = 180.0
"""A producer that hears nothing for so long calls what is open unknown, and ends."""
LATENCIES_MAX: Final = 20_000
"""Latencies that a report is made of; of further ones none is kept."""
AUTO_COMMIT_MS: Final = 1_000
READ_RECORDS: Final = 500
_LINES_MAX: Final = 1_000

_clock = SystemClock()


class OwnerRouting(msgspec.Struct, frozen=True, kw_only=True):
    """As the scenario says it."""

    k: int
    pick: str
    seed: int


class ProducerTask(msgspec.Struct, frozen=True, kw_only=True, tag="producer"):
    """`until`: the records it may send for now. `phases`: seconds and factor of the rate. `brokers`: HTTP addresses of those that live, by
    number. `routing`: None where the client library, or one broker after the other, takes the records.
    """

    name: str
    number: int
    run: int
    bootstrap: str
    brokers: dict[int, str]
    routing: OwnerRouting | None
    topics: dict[str, int]
    records: int
    until: int
    producers: int
    rate: float | None
    phases: list[tuple[float, float]]
    size: int
    keys: str
    codec: str
    idempotent: bool
    linger_ms: int
    uses_http: bool
    file: str


class ConsumerTask(msgspec.Struct, frozen=True, kw_only=True, tag="consumer"):
    """`sizes`: of the values of each producer. `number`: its place in its group."""

    name: str
    number: int
    group: str
    run: int
    bootstrap: str
    http: list[str]
    topics: list[str]
    commits_each: bool
    uses_http: bool
    sizes: dict[int, int]
    file: str


class ClientReport(msgspec.Struct, frozen=True, kw_only=True):
    """`done`: records acknowledged, or read."""

    at: float
    name: str
    sent: int
    done: int
    doubtful: int
    bytes: int
    latency_ms: LatencyMs | None
    cpu_s: float
    is_over: bool


class Told(msgspec.Struct, frozen=True):
    """`until`: records that may have been sent. `is_over`: finish and end. `brokers`: those that live now."""

    until: int = 0
    is_over: bool = False
    brokers: dict[int, str] | None = None


class RangeFile:
    """Lines of JSON, written as a whole."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, lines: Sequence[Sequence[object]]) -> None:
        data = memoryview(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
        while data:
            data = data[os.write(self._descriptor, data) :]


class SendOutcomes:
    """Acknowledged and doubtful records, as ranges that are joined while they follow each other."""

    def __init__(self, file: RangeFile, producer: int) -> None:
        self._file = file
        self._producer = producer
        self._acked: dict[LoadPartition, AckedRange] = {}
        self._doubtful: dict[LoadPartition, DoubtfulRange] = {}
        self._lines: list[Sequence[object]] = []
        self._latencies_s: list[float] = []
        self.acked = self.doubtful = 0
        self.heard_s = _clock.monotonic_s()

    def delivered(self, error: KafkaError | None, message: Message) -> None:
        """As librdkafka reports it, for each record."""
        value, topic, partition = message.value(), message.topic(), message.partition()
        assert value is not None
        assert topic is not None
        assert partition is not None
        sequence = sequence_of(value)
        if error is not None:
            self.unknown(topic, partition, sequence, 1, str(error.name()))
            return
        offset = message.offset()
        self.stored(topic, partition, sequence, 1, -1 if offset is None else offset, message.latency() or 0.0)

    def stored(self, topic: str, partition: int, first: int, records: int, offset: int, latency_s: float) -> None:
        place = topic, partition
        self.acked += records
        self.heard_s = _clock.monotonic_s()
        if len(self._latencies_s) < LATENCIES_MAX:
            self._latencies_s.append(latency_s)
        known = self._acked.get(place)
        if known is not None:
            follows = known.offset + known.end - known.first == offset if known.offset >= 0 else offset < 0
            if known.end == first and follows:
                self._acked[place] = known._replace(end=first + records)
                return
            self._line("acked", known)
        self._acked[place] = AckedRange(self._producer, topic, partition, first, first + records, offset)

    def unknown(self, topic: str, partition: int, first: int, records: int, error: str) -> None:
        place = topic, partition
        self.doubtful += records
        known = self._doubtful.get(place)
        if known is not None:
            if (known.end, known.error) == (first, error):
                self._doubtful[place] = known._replace(end=first + records)
                return
            self._line("doubt", known)
        self._doubtful[place] = DoubtfulRange(self._producer, topic, partition, first, first + records, error)

    def take_latency(self) -> LatencyMs | None:
        """The latency of acknowledgements since the last call."""
        found = latency_ms(self._latencies_s)
        self._latencies_s.clear()
        return found

    def flush(self) -> None:
        for word, held in (("acked", self._acked), ("doubt", self._doubtful)):
            for known in held.values():
                self._line(word, known)
            held.clear()
        self._file.write(self._lines)
        self._lines.clear()

    def _line(self, word: str, known: AckedRange | DoubtfulRange) -> None:
        if isinstance(known, AckedRange):
            known = known._replace(at=_clock.monotonic_s())
        self._lines.append([word, *known])
        if len(self._lines) >= _LINES_MAX:
            self._file.write(self._lines)
            self._lines.clear()


class Outlet(Protocol):
    """A way to the brokers. SendOutcomes go to the `SendOutcomes` it was made with."""

    def room(self) -> int:
        """The number of records that it takes now."""

    def send(self, topic: str, partition: int, first: int, records: Sequence[tuple[bytes | None, bytes]]) -> None:
        """Keys and values, which are numbered from `first` on."""

    def poll(self, seconds: float) -> None: ...

    def give_up(self) -> None:
        """Take the outcome of all open records for unknown."""


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
