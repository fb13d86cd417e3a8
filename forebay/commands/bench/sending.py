"""Records handed to librdkafka in turns, and their acknowledgements, all on one thread.

Each producer gives a partition a turn of records, then the next one. What waits in a producer is bounded: records that a broker cannot take
yet wait here, and not in an ever longer queue.
"""

import contextlib
import functools
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from forebay.commands.bench.pacing import due_count, due_s
from forebay.commands.bench.payloads import PayloadMessages, Payloads
from forebay.commands.bench.waiting import POLL_LEAST_S, POLL_S, BrokerPatience, RecordsMoved
from forebay.kafka_client.connection import NO_ANSWER, ClusterConnection, exit_code_of, message_of
from forebay.kafka_client.failures import EXIT_USAGE, ClientFailed
from forebay.kafka_client.interrupts import interruptible
from runtime.clock import Clock

_PURGED_WITHIN_S: Final = 1.0


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
    """Sends records through all producers. `room` is the number of records that one of them has at a time."""

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
        patience = BrokerPatience(self._connection, self._clock)
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
                patience.heard()
            else:
                patience.check()
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
