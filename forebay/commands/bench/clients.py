"""Clients of a load: records sent in turns, read by assignment, or passed one by one from a producer to a consumer that waits for them.

Sending and reading are on one thread, with their acknowledgements and counts. Values are random bytes, so that no compression makes a load
smaller than it is, and made before any clock starts. At a fixed rate the first record is due at once.
"""

import contextlib
import functools
import itertools
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from forebay.commands.bench.results import Measured
from forebay.commands.bench.settings import BATCH_BYTES, BATCH_RECORDS, NUMBER_BYTES, STAMP_BYTES, TOKEN_BYTES
from forebay.commands.topic.consuming import judge
from forebay.kafka_client.connection import NO_ANSWER, ClusterConnection, exit_code_of, interruptible, message_of
from forebay.kafka_client.failures import EXIT_USAGE, ClientFailed
from runtime.clock import Clock

VALUES_MIN: Final = 1_000
VALUES_MAX: Final = 2 * BATCH_RECORDS
VALUES_BYTES_MAX: Final = 64 * 1024 * 1024
_BATCHES: Final = 2
POLL_S: Final = 0.1
POLL_LEAST_S: Final = 0.001
"""The library counts whole milliseconds: below one it does not wait at all."""
_PURGED_WITHIN_S: Final = 1.0
TOGETHER_RECORDS: Final = 10_000
PARTITION: Final = 0
_NOT_YET: Final = -1.0

PayloadMessages = list[dict[str, Any]]

RecordsMoved = Callable[[int, int], object]
"""It hears how many more records there are, and how many bytes they have."""


def due_count(elapsed_s: float, *, per_s: float) -> int:
    """The number of records that are due by now."""
    return int(elapsed_s * per_s) + 1


def due_s(number: int, *, per_s: float) -> float:
    """The seconds after the start at which a record is due, counted from 0."""
    return number / per_s


def value_count(record_bytes: int) -> int:
    """The number of values of this size: at least two batches of them, unless they are huge."""
    wanted = max(VALUES_MIN, min(VALUES_MAX, -(-_BATCHES * BATCH_BYTES // record_bytes)))
    return max(1, min(wanted, VALUES_BYTES_MAX // record_bytes))


def random_values(record_bytes: int, *, entropy: Callable[[int], bytes]) -> list[bytes]:
    return [entropy(record_bytes) for _ in range(value_count(record_bytes))]


class Payloads:
    """The values in turn, as the library takes many records at a time. Each sequence of records to a partition has one of these.

    The same values come again and again. There are more of them than a batch has room for, so that no batch has one twice.
    """

    def __init__(self, messages: "PayloadMessages") -> None:
        self._messages = messages
        self._at = 0

    def next(self, count_max: int) -> "PayloadMessages":
        """One record at least; fewer than asked for where the values begin again."""
        taken = self._messages[self._at : self._at + count_max]
        self._at += len(taken)
        if self._at == len(self._messages):
            self._at = 0
        return taken


class BrokerTimeout:
    """It ends when nothing that was waited for has come for as long as the connection's timeout."""

    def __init__(self, connection: ClusterConnection, clock: Clock) -> None:
        self._connection = connection
        self._clock = clock
        self._heard_s = clock.monotonic_s()

    def heard(self) -> None:
        self._heard_s = self._clock.monotonic_s()

    def check(self) -> None:
        """Raise `ClientFailed` with the cause of the silence when it has lasted too long."""
        if self._clock.monotonic_s() - self._heard_s > self._connection.timeout_s:
            raise self._connection.failure(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001


class Acknowledgements:
    """What the library reports while it is polled: the latency of each record that was stored, and the first error of one that was not."""

    __slots__ = ("latencies_s", "refused")

    def __init__(self) -> None:
        self.latencies_s = array("d")
        """From the call that handed the record over."""
        self.refused: KafkaError | None = None

    def heard(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            latency_s = message.latency()
            assert latency_s is not None, "what was delivered was handed over"
            self.latencies_s.append(latency_s)
        elif self.refused is None:
            self.refused = error


class _SendingLane:
    """A producer, and whose turn it is."""

    def __init__(self, producer: Producer, topic: str, messages: PayloadMessages, partitions: int, *, first: int) -> None:
        self.producer = producer
        self._topic = topic
        self._payloads = [Payloads(messages) for _ in range(partitions)]
        self._partition = first % partitions

    def hand_over(self, count_max: int) -> int:
        """The number of records that the next partition was given, one at least. Raise `KafkaException` for one that is refused."""
        messages = self._payloads[self._partition].next(count_max)
        if self.producer.produce_batch(self._topic, messages, partition=self._partition) < len(messages):
            raise KafkaException(next(message["_error"] for message in messages if "_error" in message))
        self._partition = (self._partition + 1) % len(self._payloads)
        return len(messages)


class LoadSender:
    """Sends records through all producers. `room` is the number of records that one of them has at a time.

    Each producer gives a partition a turn of records, then the next one. What waits in a producer is bounded: records that a broker cannot
    take yet wait here, and not in an ever longer queue.
    """

    def __init__(
        self,
        connection: ClusterConnection,
        producers: Sequence[Producer],
        topic: str,
        values: Sequence[bytes],
        acknowledgements: Acknowledgements,
        *,
        partitions: int,
        turn_records: int,
        room: int,
        clock: Clock,
    ) -> None:
        messages = [{"value": value} for value in values]
        self._lanes = [_SendingLane(one, topic, messages, partitions, first=number) for number, one in enumerate(producers)]
        self._connection = connection
        self._acknowledgements = acknowledgements
        self._record_bytes = len(values[0])
        self._turn_records = turn_records
        self._room = room
        self._clock = clock
        self._waits = 0

    def send(self, records: int, *, per_s: float | None, moved: RecordsMoved) -> "array[float]":
        """Return the latency of each record in seconds when all are acknowledged. Raise `ClientFailed` for one that was not."""
        latencies_s = self._acknowledgements.latencies_s = array("d")
        timeout = BrokerTimeout(self._connection, self._clock)
        began_s = self._clock.monotonic_s()
        sent = acknowledged = 0
        while acknowledged < records:
            due = records if per_s is None else min(records, due_count(self._clock.monotonic_s() - began_s, per_s=per_s))
            handed_over = self._handed_over(due - sent)
            sent += handed_over
            if self._acknowledgements.refused is not None:
                raise not_stored(self._connection, self._acknowledgements.refused, self._record_bytes)
            fresh = len(latencies_s) - acknowledged
            if fresh:
                acknowledged += fresh
                moved(fresh, fresh * self._record_bytes)
            if fresh or sent == acknowledged:
                timeout.heard()
            else:
                timeout.check()
            if not handed_over and not fresh:
                is_early = sent == due < records
                # The library wakes us for a report; for the next record that is due nobody does.
                self._wait(began_s + due_s(sent, per_s=per_s) - self._clock.monotonic_s() if is_early and per_s is not None else POLL_S)
        if acknowledged != sent:
            raise ClientFailed(f"{acknowledged:,} acknowledgements came for {sent:,} records: the result means nothing.")
        return latencies_s

    def _handed_over(self, count_max: int) -> int:
        count = 0
        for lane in self._lanes:
            lane.producer.poll(0)
            allowed = min(count_max - count, self._turn_records, self._room - len(lane.producer))
            if allowed > 0:
                try:
                    count += lane.hand_over(allowed)
                except KafkaException as error:
                    raise not_stored(self._connection, error.args[0], self._record_bytes) from error
        return count

    def _wait(self, seconds: float) -> None:
        """For as long at most, or until something is acknowledged: of several producers each is looked at in turn."""
        if seconds < POLL_LEAST_S:
            time.sleep(max(0.0, seconds))
            return
        self._waits += 1
        lane = self._lanes[self._waits % len(self._lanes)]
        lane.producer.poll(min(seconds, POLL_S) if len(self._lanes) == 1 else POLL_LEAST_S)


@contextlib.contextmanager
def opened_producers(connection: ClusterConnection, config: Mapping[str, Any], topic: str, *, count: int = 1) -> Iterator[list[Producer]]:
    """Producers that know the topic. What they still have at the end is given up."""
    made = [connection.producer(config) for _ in range(count)]
    try:
        with connection.answers_awaited():
            for one in made:
                interruptible(functools.partial(one.list_topics, topic, timeout=connection.timeout_s))
        yield made
    finally:
        for one in made:
            one.purge()
            one.flush(_PURGED_WITHIN_S)


def not_stored(connection: ClusterConnection, error: KafkaError, record_bytes: int) -> ClientFailed:
    """Why a record was not acknowledged."""
    if error.code() in NO_ANSWER:
        return connection.failure(error)
    if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
        return ClientFailed(
            f"A record of {record_bytes:,} bytes is larger than the topic takes: give a smaller --record-bytes, or create the topic with "
            "a larger -c max.message.bytes.",
            exit_code=EXIT_USAGE,
        )
    return ClientFailed(f"A record was not stored: {message_of(error)}", exit_code=exit_code_of(error))


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


def read_records(
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
    timeout = BrokerTimeout(connection, clock)
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
            timeout.check()
        else:
            timeout.heard()
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


class Arrivals:
    """When each record came. `token` begins the records of this run: the topic may have others."""

    def __init__(self, token: bytes, count: int) -> None:
        self._token = token
        self.came_s = array("d", itertools.repeat(_NOT_YET, count))
        self.count = 0
        self.repeated = 0

    def take(self, value: bytes, now_s: float) -> None:
        if len(value) < STAMP_BYTES or not value.startswith(self._token):
            return
        number = int.from_bytes(value[TOKEN_BYTES:STAMP_BYTES], "big")
        if self.came_s[number] != _NOT_YET:
            self.repeated += 1
            return
        self.came_s[number] = now_s
        self.count += 1


class WaitingConsumer:
    """A consumer that waits at an offset, on a thread of its own. `failure` is why it gave up."""

    def __init__(self, consumer: Consumer, topic: str, offset: int, arrivals: Arrivals, clock: Clock) -> None:
        self._consumer = consumer
        self._topic = topic
        self._arrivals = arrivals
        self._clock = clock
        self.failure: ClientFailed | None = None
        self.is_waiting = threading.Event()
        self._is_over = threading.Event()
        consumer.assign([TopicPartition(topic, PARTITION, offset)])
        self._thread = threading.Thread(target=self._run, name="bench-consumer", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()
        self._consumer.close()

    def _run(self) -> None:
        poll, take, monotonic_s = self._consumer.poll, self._arrivals.take, self._clock.monotonic_s
        while not self._is_over.is_set():
            message = poll(POLL_S)
            now_s = monotonic_s()
            if message is None:
                continue
            error = message.error()
            if error is None:
                take(message.value() or b"", now_s)
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
                self.is_waiting.set()
            else:
                try:
                    judge(error, self._topic, PARTITION)
                except ClientFailed as failed:
                    self.failure = failed
                    return


class _PassageProgress:
    """The records that came since the last look, for progress lines and for the timeout."""

    def __init__(
        self, arrivals: Arrivals, acknowledgements: Acknowledgements, record_bytes: int, timeout: BrokerTimeout, moved: RecordsMoved
    ) -> None:
        self._arrivals = arrivals
        self._acknowledgements = acknowledgements
        self._record_bytes = record_bytes
        self._timeout = timeout
        self._moved = moved
        self._came = self._acknowledged = 0

    def look(self, sent: int) -> None:
        """Raise `ClientFailed` after a long silence."""
        fresh = self._arrivals.count - self._came
        acknowledged = len(self._acknowledgements.latencies_s)
        is_all_there = sent > 0 and self._came == acknowledged == sent
        if fresh or acknowledged > self._acknowledged or is_all_there:
            self._timeout.heard()
        else:
            self._timeout.check()
        self._came += fresh
        self._acknowledged = acknowledged
        if fresh:
            self._moved(fresh, fresh * self._record_bytes)


class Passage:
    """Sends records at their rate. `values` are made before, and each record begins with its stamp in place of theirs.

    A record counts from the moment it was due. A client that is late, or a broker that makes it so, is charged for all records that wait.
    """

    def __init__(
        self,
        connection: ClusterConnection,
        producer: Producer,
        topic: str,
        values: Sequence[bytes],
        acknowledgements: Acknowledgements,
        *,
        token: bytes,
        clock: Clock,
    ) -> None:
        self._connection = connection
        self._producer = producer
        self._topic = topic
        self._rests = [value[STAMP_BYTES:] for value in values]
        self._record_bytes = len(values[0])
        self._acknowledgements = acknowledgements
        self._token = token
        self._clock = clock

    def pass_on(self, consumer: WaitingConsumer, arrivals: Arrivals, *, per_s: float, warm_up: int, moved: RecordsMoved) -> Measured:
        """Measure what is behind the warm-up. Raise `ClientFailed` unless each record is acknowledged and comes once."""
        total = len(arrivals.came_s)
        self._introduce()
        progress = _PassageProgress(
            arrivals, self._acknowledgements, self._record_bytes, BrokerTimeout(self._connection, self._clock), moved
        )
        while not consumer.is_waiting.wait(POLL_S):
            self._check(consumer)
            progress.look(0)
        began_s, began_cpu_s = self._clock.monotonic_s(), time.process_time()
        for number in range(total):
            self._wait_until(began_s + due_s(number, per_s=per_s))
            if number == warm_up:
                began_cpu_s = time.process_time()
            self._send(number)
            self._producer.poll(0)
            self._check(consumer)
            progress.look(number + 1)
        while arrivals.count < total or len(self._acknowledgements.latencies_s) < total:
            self._producer.poll(POLL_LEAST_S)
            self._check(consumer)
            progress.look(total)
        used_s = time.process_time() - began_cpu_s
        if arrivals.repeated:
            raise ClientFailed(f"{arrivals.repeated:,} records came more than once: the result means nothing.")
        latencies_s = array("d", (arrivals.came_s[number] - began_s - due_s(number, per_s=per_s) for number in range(warm_up, total)))
        return Measured(
            records=len(latencies_s),
            size_bytes=len(latencies_s) * self._record_bytes,
            seconds=max(arrivals.came_s) - began_s - due_s(warm_up, per_s=per_s),
            cpu_s=used_s,
            latencies_s=latencies_s,
        )

    def _introduce(self) -> None:
        """Send a record without a stamp. A new producer may wait a second for its id, and records that are due would wait with it."""
        timeout = BrokerTimeout(self._connection, self._clock)
        self._hand_over(bytes(STAMP_BYTES) + self._rests[0])
        while not self._acknowledgements.latencies_s:
            self._producer.poll(POLL_S)
            self._check_acknowledgements()
            timeout.check()
        del self._acknowledgements.latencies_s[:]

    def _send(self, number: int) -> None:
        self._hand_over(self._token + number.to_bytes(NUMBER_BYTES, "big") + self._rests[number % len(self._rests)])

    def _hand_over(self, value: bytes) -> None:
        try:
            self._producer.produce(self._topic, value, partition=PARTITION)
        except BufferError as error:
            raise ClientFailed("The broker is too slow for this --rate: the client's queue is full.") from error
        except KafkaException as error:
            raise not_stored(self._connection, error.args[0], self._record_bytes) from error

    def _check(self, consumer: WaitingConsumer) -> None:
        self._check_acknowledgements()
        if consumer.failure is not None:
            raise consumer.failure

    def _check_acknowledgements(self) -> None:
        if self._acknowledgements.refused is not None:
            raise not_stored(self._connection, self._acknowledgements.refused, self._record_bytes)

    def _wait_until(self, moment_s: float) -> None:
        """The library's wait is in whole milliseconds, and what is left is slept."""
        while (early_s := moment_s - self._clock.monotonic_s()) > 0:
            if early_s > 2 * POLL_LEAST_S:
                self._producer.poll(min(early_s - POLL_LEAST_S, POLL_S))
            else:
                time.sleep(early_s)
