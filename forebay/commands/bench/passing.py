"""Records at a fixed rate through one partition, to a consumer that waits for them: how long each is on its way.

A record counts from the moment it was due. A client that is late, or a broker that makes it so, is charged for all records that wait.
"""

import itertools
import threading
import time
from array import array
from collections.abc import Sequence
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from forebay.commands.bench.pacing import due_s
from forebay.commands.bench.results import Measured
from forebay.commands.bench.sending import Acknowledgements, not_stored
from forebay.commands.bench.settings import NUMBER_BYTES, STAMP_BYTES, TOKEN_BYTES
from forebay.commands.bench.waiting import POLL_LEAST_S, POLL_S, BrokerPatience, RecordsMoved
from forebay.commands.topic.consuming import judge
from forebay.kafka_client.connection import ClusterConnection
from forebay.kafka_client.failures import ClientFailed
from runtime.clock import Clock

PARTITION: Final = 0
_NOT_YET: Final = -1.0


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


class _Progress:
    """What has come since it was looked at last, for whoever watches, and for those whose patience ends."""

    def __init__(
        self, arrivals: Arrivals, acknowledgements: Acknowledgements, record_bytes: int, patience: BrokerPatience, moved: RecordsMoved
    ) -> None:
        self._arrivals = arrivals
        self._acknowledgements = acknowledgements
        self._record_bytes = record_bytes
        self._patience = patience
        self._moved = moved
        self._came = self._acknowledged = 0

    def look(self, sent: int) -> None:
        """Raise `ClientFailed` after a long silence."""
        fresh = self._arrivals.count - self._came
        acknowledged = len(self._acknowledgements.latencies_s)
        is_all_there = sent > 0 and self._came == acknowledged == sent
        if fresh or acknowledged > self._acknowledged or is_all_there:
            self._patience.heard()
        else:
            self._patience.check()
        self._came += fresh
        self._acknowledged = acknowledged
        if fresh:
            self._moved(fresh, fresh * self._record_bytes)


class Passage:
    """Sends records at their rate. `values` are made before, and each record begins with its stamp in place of theirs."""

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
        progress = _Progress(arrivals, self._acknowledgements, self._record_bytes, BrokerPatience(self._connection, self._clock), moved)
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
        patience = BrokerPatience(self._connection, self._clock)
        self._hand_over(bytes(STAMP_BYTES) + self._rests[0])
        while not self._acknowledgements.latencies_s:
            self._producer.poll(POLL_S)
            self._check_acknowledgements()
            patience.check()
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
