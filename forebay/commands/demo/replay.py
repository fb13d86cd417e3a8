"""Records of the demo through a broker and back, as an ordinary Kafka client, and a ledger of either way: count, order and content.

The partition of a key is chosen here, so that the ledger knows what is at which offset before the broker says so;
the broker's own word (the offset in each delivery report) must then agree.
"""

import json
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from forebay.commands.demo.flights import FlightRecord
from forebay.kafka_client.text import Advance
from runtime.clock import Clock

ANSWER_WITHIN_S: Final = 30.0
REPORT_EVERY: Final = 2_000
_READ_AT_ONCE: Final = 5_000
_READ_WAIT_S: Final = 0.2
_ACK_WAIT_S: Final = 0.1
_STATISTICS_EVERY_MS: Final = 100
_PREPARE_STEPS: Final = 20
QUIET: Final[Mapping[str, str | int | float]] = {"log_level": 2}
"""For every client of the demo: what goes wrong is said by us."""


def record_checksum(key: bytes, value: bytes, timestamp_ms: int) -> int:
    """CRC-32 over timestamp, length of the key, key and value."""
    head = timestamp_ms.to_bytes(8, "big", signed=True) + len(key).to_bytes(4, "big")
    return zlib.crc32(value, zlib.crc32(key, zlib.crc32(head)))


class Ledger:
    """A checksum per record, at the index that is its offset: a fresh topic counts from 0 and leaves no gap."""

    def __init__(self, partition_count: int) -> None:
        self._checksums = [array("I") for _ in range(partition_count)]

    @property
    def record_count(self) -> int:
        return sum(map(len, self._checksums))

    def counts(self) -> list[int]:
        """Records by partition: the offset the next one would have."""
        return [len(checksums) for checksums in self._checksums]

    def note(self, partition: int, key: bytes, value: bytes, timestamp_ms: int) -> None:
        self._checksums[partition].append(record_checksum(key, value, timestamp_ms))

    def at(self, partition: int) -> Sequence[int]:
        return self._checksums[partition]


def differences(sent: Ledger, read: Ledger) -> Iterator[str]:
    """One line per partition that is not the same on both sides."""
    for partition, expected in enumerate(sent.counts()):
        ours, theirs = sent.at(partition), read.at(partition)
        first = next((offset for offset, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), None)
        if first is not None:
            yield f"partition {partition}: the record at offset {first} is not the one that was sent there"
        elif len(theirs) != expected:
            yield f"partition {partition}: {expected} records were sent, {len(theirs)} were read"


class ReplayError(Exception):
    """The records did not come through; the message says how far they came."""


class Routes:
    """Which brokers a client takes for the leaders of the topic, as it says in its statistics."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self.address = ""
        """The address of the broker that leads most partitions now; empty before the client knows."""
        self.addresses: list[str] = []
        """All that ever did, in the order in which they came."""
        self.heard_count = 0
        """How often the client has said so."""

    def __call__(self, statistics: str) -> None:
        self.heard_count += 1
        told = json.loads(statistics)
        names = {broker["nodeid"]: broker["nodename"] for broker in told["brokers"].values()}
        partitions = told["topics"].get(self._topic, {}).get("partitions", {})
        leaders = Counter(names[one["leader"]] for one in partitions.values() if one["leader"] in names and one["leader"] >= 0)
        if leaders:
            self.address = leaders.most_common(1)[0][0]
            if self.address not in self.addresses:
                self.addresses.append(self.address)


class Mishap(Protocol):
    """Something that happens to the broker a producer sends to, once, between two records."""

    @property
    def acked_min(self) -> int:
        """Strike only after this many records were acknowledged."""
        ...

    @property
    def sent_max(self) -> int:
        """Hand no more than this many to the client before the strike; it waits for the acknowledgements."""
        ...

    def prepare(self, address: str) -> None: ...

    def strike(self, address: str) -> None: ...

    def struck(self, *, acked: int, open_count: int) -> None:
        """Called right after: how many had been acknowledged, and how many handed to the client beyond that."""
        ...


class _Deliveries:
    """Checks each delivery report: per partition, offsets must count up from 0 without a gap."""

    def __init__(self, partition_count: int, advance: Advance) -> None:
        self._next = [0] * partition_count
        self._advance = advance
        self._unreported = 0
        self.count = 0
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
        self.count += 1
        self._unreported += 1
        if self._unreported == REPORT_EVERY:
            self._advance(REPORT_EVERY)
            self._unreported = 0


def send(
    bootstrap: str,
    topic: str,
    records: Iterable[FlightRecord],
    *,
    partition_count: int,
    advance: Advance,
    clock: Clock,
    routes: Routes | None = None,
    mishap: Mishap | None = None,
    answer_within_s: float = ANSWER_WITHIN_S,
    client: Mapping[str, str | int | float] = QUIET,
) -> Ledger:
    """Produce them all and wait for every acknowledgement, for `answer_within_s` from one to the next. A mishap needs routes. `client` are
    settings of librdkafka. Raise `ReplayError`.
    """
    routes = routes or Routes(topic)
    deliveries = _Deliveries(partition_count, advance)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 20,
            "batch.size": 1024 * 1024,
            "compression.type": "lz4",
            "statistics.interval.ms": _STATISTICS_EVERY_MS if mishap else 0,
            "stats_cb": routes,
            **client,
        }
    )
    stage = _Stage(mishap, producer, deliveries, routes, clock, answer_within_s) if mishap else None
    report_every = min(REPORT_EVERY, max(1, mishap.sent_max // _PREPARE_STEPS)) if mishap else REPORT_EVERY
    sent = Ledger(partition_count)
    for number, (key, value, timestamp_ms) in enumerate(records):
        partition = zlib.crc32(key) % partition_count
        _enqueue(producer, topic, partition, key, value, timestamp_ms, deliveries)
        sent.note(partition, key, value, timestamp_ms)
        if number % report_every == 0:
            if stage is not None:
                stage.play(number + 1)
            producer.poll(0)
            if deliveries.error is not None:
                break
    if stage is not None:
        stage.play_at_last(sent.record_count)
    _wait_acked(producer, deliveries, lambda: deliveries.count >= sent.record_count, clock, answer_within_s)
    if deliveries.error is not None:
        raise ReplayError(deliveries.error)
    if deliveries.count < sent.record_count:
        left = sent.record_count - deliveries.count
        raise ReplayError(f"{left} of {sent.record_count} records were not acknowledged, and for {answer_within_s:g} s none was")
    if mishap:
        hear_statistics(producer, routes, clock)
    return sent


def hear_statistics(producer: Producer, routes: Routes, clock: Clock) -> None:
    """Listen until statistics have come that were taken after the last acknowledgement: they name the last leader. The first that come may
    be older.
    """
    until = routes.heard_count + 2
    give_up_s = clock.monotonic_s() + 20 * _STATISTICS_EVERY_MS / 1000
    while routes.heard_count < until and (left_s := give_up_s - clock.monotonic_s()) > 0:
        producer.poll(left_s)  # it ends with the first thing that it hears of


def _wait_acked(producer: Producer, deliveries: _Deliveries, done: Callable[[], bool], clock: Clock, within_s: float) -> None:
    """Until `done`, an error, or `within_s` without an acknowledgement."""
    count, since_s = deliveries.count, clock.monotonic_s()
    while not done() and deliveries.error is None:
        producer.poll(_ACK_WAIT_S)
        if deliveries.count != count:
            count, since_s = deliveries.count, clock.monotonic_s()
        elif clock.monotonic_s() - since_s > within_s:
            return


class _Stage:
    """Brings a mishap about: prepared when enough was acknowledged, it strikes a little later, with records under way."""

    def __init__(
        self, mishap: Mishap, producer: Producer, deliveries: _Deliveries, routes: Routes, clock: Clock, answer_within_s: float
    ) -> None:
        self._mishap = mishap
        self._producer = producer
        self._deliveries = deliveries
        self._routes = routes
        self._clock = clock
        self._answer_within_s = answer_within_s
        self._target = ""
        self._is_over = False

    def play(self, sent: int) -> None:
        if self._is_over:
            return
        if self._target:
            self._is_over = True
            self._mishap.strike(self._target)
            # Reports of what had been acknowledged by then are still waiting.
            self._producer.poll(0)
            self._mishap.struck(acked=self._deliveries.count, open_count=sent - self._deliveries.count)
            return
        if sent >= self._mishap.sent_max:
            # Too far ahead of the acknowledgements to wait for them among further records.
            _wait_acked(self._producer, self._deliveries, self._is_due, self._clock, self._answer_within_s)
        if self._is_due():
            self._target = self._routes.address
            self._mishap.prepare(self._target)

    def play_at_last(self, sent: int) -> None:
        """Even if there were too few records for it to happen among them: once to prepare, once to strike."""
        _wait_acked(self._producer, self._deliveries, self._is_due, self._clock, self._answer_within_s)
        for _ in range(2):
            self.play(sent)

    def _is_due(self) -> bool:
        return self._deliveries.count >= self._mishap.acked_min and bool(self._routes.address)


def _enqueue(producer: Producer, topic: str, partition: int, key: bytes, value: bytes, timestamp_ms: int, deliveries: _Deliveries) -> None:
    while deliveries.error is None:
        try:
            producer.produce(topic, value, key, partition, on_delivery=deliveries, timestamp=timestamp_ms)
            return
        except BufferError:
            # The client's queue is full: let it work until something was acknowledged or has timed out.
            producer.poll(1.0)


def read_back(
    bootstrap: str,
    topic: str,
    counts: list[int],
    *,
    advance: Advance,
    clock: Clock,
    routes: Routes | None = None,
    answer_within_s: float = ANSWER_WITHIN_S,
) -> Ledger:
    """Read every partition from its beginning to its end. Raise `ReplayError` if the broker says more or less is there than `counts`,
    if an offset is skipped or repeated, or if nothing comes for `answer_within_s`. Partitions are assigned by hand: no group is needed.
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
            "statistics.interval.ms": _STATISTICS_EVERY_MS if routes else 0,
            "stats_cb": routes or Routes(topic),
            **QUIET,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(len(counts))])
        read = _drain(consumer, counts, advance, clock, answer_within_s)
        # Questions queue behind the fetches of a connection; without partitions there are none.
        consumer.unassign()
        for partition, count in enumerate(counts):
            end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=answer_within_s)[1]
            if end != count:
                raise ReplayError(f"partition {partition}: {count} records were sent, the broker says it ends at {end}")
    except KafkaException as error:
        raise ReplayError(f"reading failed: {error.args[0].str()}") from error
    finally:
        consumer.close()
    return read


def _drain(consumer: Consumer, counts: list[int], advance: Advance, clock: Clock, within_s: float) -> Ledger:
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
        elif clock.monotonic_s() - last_s > within_s:
            raise ReplayError(f"{read.record_count} of {expected} records came, then nothing for {within_s:g} s")
    return read
