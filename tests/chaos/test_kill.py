"""kill -9 of the broker in the middle of a produce run, again and again: acked is there, offsets are dense, idempotence appends once."""

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.integration.serving import serving

KILLS = 20
PARTITIONS = 3
SEED = 20_130_101
READ_WITHIN_S = 60.0


@dataclass
class Stream:
    """One producer that sends numbered records round robin until told to stop, and remembers what was acknowledged where."""

    bootstrap: str
    topic: str
    idempotent: bool
    acked: dict[tuple[int, int], int] = field(default_factory=dict)
    """(partition, offset) → number."""
    failed: list[str] = field(default_factory=list)
    sent: int = 0
    stopping: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        settings: dict[str, str | int | float | bool] = {
            "bootstrap.servers": self.bootstrap,
            "enable.idempotence": self.idempotent,
            "acks": "all",
            "linger.ms": 2,
            "batch.num.messages": 50,
            "message.timeout.ms": 120_000,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
            "retry.backoff.ms": 20,
            "log_level": 0,
        }
        if not self.idempotent:
            settings["max.in.flight"] = 1
        producer = Producer(settings)
        while not self.stopping.is_set():
            number = self.sent
            partition = number % PARTITIONS
            try:
                producer.produce(self.topic, str(number).encode(), partition=partition, on_delivery=self._heard(number, partition))
            except BufferError:
                producer.poll(0.05)
                continue
            self.sent += 1
            producer.poll(0)
            if number % 20 == 0:
                time.sleep(0.001)
        assert producer.flush(60) == 0, "records were neither acknowledged nor refused"

    def _heard(self, number: int, partition: int) -> Callable[[object, Message], None]:
        def heard(error: object, message: Message) -> None:
            if error is not None:
                self.failed.append(f"{number}: {error}")
            else:
                self.acked[partition, message.offset()] = number

        return heard


def read_all(bootstrap: str, topic: str) -> dict[int, list[tuple[int, int]]]:
    """Per partition: (offset, number) of every record, as a consumer gets them."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False, "log_level": 0})
    ends = {p: consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=20)[1] for p in range(PARTITIONS)}
    consumer.assign([TopicPartition(topic, p, 0) for p in ends])
    found: dict[int, list[tuple[int, int]]] = {p: [] for p in ends}
    give_up = time.monotonic() + READ_WITHIN_S  # noqa: TID251
    while any(len(found[p]) < ends[p] for p in ends):
        assert time.monotonic() < give_up, "not every record below the high watermark could be read"  # noqa: TID251
        for message in consumer.consume(1000, 0.5):
            if message.error():
                raise KafkaException(message.error())
            found[message.partition()].append((message.offset(), int(message.value())))
    consumer.close()
    return found


@pytest.mark.timeout(300)
def test_twenty_kills_lose_no_acked_record_and_append_no_idempotent_one_twice(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    port = None
    with serving(tmp_path) as first:
        port = first.kafka_port
        admin = AdminClient({"bootstrap.servers": first.bootstrap})
        for future in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in ("idempotent", "plain")]).values():
            future.result(20)
        first.kill9()
    bootstrap = f"127.0.0.1:{port}"
    streams = [Stream(bootstrap, "idempotent", idempotent=True), Stream(bootstrap, "plain", idempotent=False)]
    threads = [threading.Thread(target=stream.run) for stream in streams]
    for thread in threads:
        thread.start()
    try:
        for _ in range(KILLS):
            acked_before = [len(stream.acked) for stream in streams]
            with serving(tmp_path, kafka_port=port) as served:
                give_up = time.monotonic() + 30  # noqa: TID251
                while any(len(stream.acked) == before for stream, before in zip(streams, acked_before, strict=True)):
                    assert time.monotonic() < give_up, "producers do not go on after a restart"  # noqa: TID251
                    time.sleep(0.005)
                time.sleep(chance.uniform(0, 0.3))  # the moment of the kill is what is drawn by chance
                served.kill9()
    finally:
        for stream in streams:
            stream.stopping.set()
    with serving(tmp_path, kafka_port=port):
        for thread in threads:
            thread.join()
        for stream in streams:
            found = read_all(bootstrap, stream.topic)
            assert stream.failed == []
            assert len(stream.acked) >= KILLS
            for partition, records in found.items():
                assert [offset for offset, _ in records] == list(range(len(records))), "offsets are dense"
                at = dict(records)
                lost = {offset: n for (p, offset), n in stream.acked.items() if p == partition and at.get(offset) != n}
                assert lost == {}, "an acknowledged record is at its offset"
                numbers = [number for _, number in records]
                if stream.idempotent:
                    assert numbers == list(range(partition, stream.sent, PARTITIONS)), "each once, in the order sent"
                else:
                    assert sorted(set(numbers)) == list(range(partition, stream.sent, PARTITIONS))
