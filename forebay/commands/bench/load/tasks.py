"""The tasks of a load's clients, their reports, and the files that they leave. Files hold ranges, so memory grows with batches."""

import os
from collections.abc import Sequence
from typing import Final, Protocol

import msgspec
from confluent_kafka import KafkaError, Message

from forebay.commands.bench.load.reconcile import AckedRange, DoubtfulRange, LoadPartition
from forebay.commands.bench.load.records import sequence_of
from forebay.commands.bench.results import LatencyMs, latency_ms
from runtime.clock import SystemClock

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
