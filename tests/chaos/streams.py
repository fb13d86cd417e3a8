"""Producers that send numbered records while a test breaks things, and the judgement of what is in the log afterwards."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from runtime.clock import SystemClock

PARTITIONS = 3
READ_WITHIN_S = 60.0
FLUSH_WITHIN_S = 200.0
BATCH_RECORDS = 50
BURST_RECORDS = 5 * BATCH_RECORDS
"""As many batches as an idempotent producer of librdkafka has in flight; while it has more to send, it takes a whole processor to wait."""
NOT_INLINE_BYTES = 200
"""A whole batch of values of this size is more than any commit may carry (8 KiB)."""

_clock = SystemClock()


@dataclass
class Stream:
    """One producer that sends numbered records until told to stop, and remembers what was acknowledged where.

    One that is idempotent sends bursts: five batches, all to one partition or to each in turn, and the next five when these are answered.
    Another sends single records round robin.
    """

    bootstrap: str
    topic: str
    idempotent: bool
    settings: dict[str, str | int | float | bool] = field(default_factory=dict)
    value_bytes: int = 1
    """At least this long; enough of them in a batch make it too large for its commit to carry."""
    pace_s: float = 0.001
    """Between bursts, or between twenty single records."""
    acked: dict[tuple[int, int], int] = field(default_factory=dict)
    """(partition, offset) → number."""
    failed: list[str] = field(default_factory=list)
    sent: int = 0
    answered: int = 0
    stopping: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        settings: dict[str, str | int | float | bool] = {
            "bootstrap.servers": self.bootstrap,
            "enable.idempotence": self.idempotent,
            "acks": "all",
            "linger.ms": 20 if self.idempotent else 2,  # a burst's batches go when they are full
            "batch.num.messages": BATCH_RECORDS,
            "queue.buffering.max.messages": 1_000,  # as many as are answered within seconds at one flush per 250 ms
            "message.timeout.ms": 400_000,  # on a busy machine most of it is spent in the queue
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
            "retry.backoff.ms": 20,
            "log_level": 0,
        }
        if not self.idempotent:
            settings["max.in.flight"] = 1
        producer = Producer(settings | self.settings)
        while not self.stopping.is_set():
            number = self.sent
            if self.idempotent and number % BURST_RECORDS == 0 and self.answered < number:
                producer.poll(0.05)
                continue
            partition = self.partition_of(number)
            try:
                producer.produce(
                    self.topic, b"%0*d" % (self.value_bytes, number), partition=partition, on_delivery=self._heard(number, partition)
                )
            except BufferError:
                producer.poll(0.05)
                continue
            self.sent += 1
            producer.poll(0)
            if number % (BURST_RECORDS if self.idempotent else 20) == 0:
                time.sleep(self.pace_s)
        assert producer.flush(FLUSH_WITHIN_S) == 0, "records were neither acknowledged nor refused"

    def partition_of(self, number: int) -> int:
        if not self.idempotent:
            return number % PARTITIONS
        burst = number // BURST_RECORDS
        return (burst // 2 if burst % 2 else number // BATCH_RECORDS) % PARTITIONS

    def _heard(self, number: int, partition: int) -> Callable[[object, Message], None]:
        def heard(error: object, message: Message) -> None:
            self.answered += 1
            if error is not None:
                self.failed.append(f"{number}: {error}")
            else:
                self.acked[partition, message.offset()] = number

        return heard


def create_topics(bootstrap: str, *names: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for future in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in names]).values():
        future.result(20)


@contextmanager
def running(streams: Sequence[Stream]) -> Iterator[None]:
    """They send while the context is open. Leaving it waits until each record has its answer, so the brokers must be there again."""
    threads = [threading.Thread(target=stream.run) for stream in streams]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for stream in streams:
            stream.stopping.set()
        for thread in threads:
            thread.join()


def wait_for_progress(streams: Sequence[Stream], *, within_s: float) -> None:
    """Return when each stream has had another acknowledgement."""
    began_s = _clock.monotonic_s()
    acked_before = [len(stream.acked) for stream in streams]
    while any(len(stream.acked) == before for stream, before in zip(streams, acked_before, strict=True)):
        assert _clock.monotonic_s() - began_s < within_s, f"a producer got no acknowledgement for {within_s} s"
        time.sleep(0.005)


def _end_of(consumer: Consumer, topic: str, partition: int, give_up_s: float) -> int:
    """The high watermark. A broker that leaves Metadata takes what librdkafka has on its way to it along: that is asked again."""
    while True:
        try:
            return int(consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=20)[1])
        except KafkaException as error:
            if error.args[0].code() != KafkaError._DESTROY_BROKER or _clock.monotonic_s() >= give_up_s:
                raise


def read_all(bootstrap: str, topic: str) -> dict[int, list[tuple[int, int]]]:
    """Per partition: (offset, number) of every record, as a consumer gets them."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False, "log_level": 0})
    give_up_s = _clock.monotonic_s() + READ_WITHIN_S
    ends = {p: _end_of(consumer, topic, p, give_up_s) for p in range(PARTITIONS)}
    consumer.assign([TopicPartition(topic, p, 0) for p in ends])
    found: dict[int, list[tuple[int, int]]] = {p: [] for p in ends}
    while any(len(found[p]) < ends[p] for p in ends):
        assert _clock.monotonic_s() < give_up_s, "not every record below the high watermark could be read"
        for message in consumer.consume(1000, 0.5):
            if message.error():
                raise KafkaException(message.error())
            found[message.partition()].append((message.offset(), int(message.value())))
    consumer.close()
    return found


def judge(stream: Stream, bootstrap: str) -> None:
    """Acked is there, offsets are dense; idempotent: each record once and in the order sent, plain: each at least once."""
    assert stream.failed == []
    assert stream.acked
    for partition, records in read_all(bootstrap, stream.topic).items():
        assert [offset for offset, _ in records] == list(range(len(records))), "offsets are dense"
        at = dict(records)
        lost = {offset: n for (p, offset), n in stream.acked.items() if p == partition and at.get(offset) != n}
        assert lost == {}, "an acknowledged record is at its offset"
        numbers = [number for _, number in records]
        sent = [number for number in range(stream.sent) if stream.partition_of(number) == partition]
        if stream.idempotent:
            assert numbers == sent, "each once, in the order sent"
        else:
            assert sorted(set(numbers)) == sent, "each at least once"
