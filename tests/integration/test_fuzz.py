"""More than 20,000 frames that chance has spoilt: each ends in a reply or a closed connection, the broker lives, others go on."""

import random
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from runtime.clock import SystemClock
from storage.limits import MIB
from tests.integration.mutations import Frame, may_wait, mutated, valid_frames
from tests.integration.raw_client import API_VERSIONS, RawClient, header, is_serving, prefixed
from tests.integration.serving import Served, serving

SEED = 20_261_121
FRAMES = 25_000
CONNECTIONS = 8
FUZZED_TOPIC = "fuzzed"
GOOD_TOPIC = "well-behaved"
RSS_BYTES_MAX = 160 * MIB
PROBE_ID = 0x5EED0000
clock = SystemClock()


class Line:
    """One of the connections that carry spoilt frames; opened again whenever the broker has closed it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._client = RawClient(port)
        self._probe = PROBE_ID
        self._waits = False

    def send(self, data: bytes, *, waits: bool) -> None:
        """The bytes, and a request behind them whose reply proves that they are done with."""
        self._probe += 1
        self._waits = waits
        probe = prefixed(header(API_VERSIONS, 0, correlation_id=self._probe))
        if not self._client.send_bytes(data + (b"" if waits else probe)):
            return
        if waits:
            # It may be in the middle of a frame, or in a long poll: what ends it is the end of the connection.
            self._client.finish_sending()

    def settle(self) -> str:
        """Wait for the reply, or for the connection to be closed. Raise TimeoutError if neither comes."""
        wanted = struct.pack(">i", self._probe)
        while (reply := self._client.receive()) is not None:
            if not self._waits and reply[:4] == wanted:
                return "answered"
        self._client.close()
        self._client = RawClient(self._port)
        return "closed after its end" if self._waits else "closed"

    def close(self) -> None:
        self._client.close()


class Bystander:
    """A producer and a consumer of the ordinary kind, at work all the time."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._stopping = threading.Event()
        self.failed: list[str] = []
        self.sent = 0
        self.read: list[int] = []
        self._threads = [threading.Thread(target=self._produce), threading.Thread(target=self._consume)]

    def __enter__(self) -> Self:
        create_topic(self._bootstrap, GOOD_TOPIC)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(60)

    def _produce(self) -> None:
        producer = Producer({"bootstrap.servers": self._bootstrap, "enable.idempotence": True, "linger.ms": 5, "log_level": 0})
        while not self._stopping.wait(0.005):
            producer.produce(GOOD_TOPIC, str(self.sent).encode(), on_delivery=self._heard)
            self.sent += 1
            producer.poll(0)
        assert producer.flush(30) == 0

    def _heard(self, error: object, _: object) -> None:
        if error is not None:
            self.failed.append(str(error))

    def _consume(self) -> None:
        consumer = Consumer({"bootstrap.servers": self._bootstrap, "group.id": "none", "enable.auto.commit": False, "log_level": 0})
        consumer.assign([TopicPartition(GOOD_TOPIC, 0, 0)])
        give_up_s = clock.monotonic_s() + 600
        while clock.monotonic_s() < give_up_s and not (self._stopping.is_set() and len(self.read) == self.sent):
            message = consumer.poll(0.1)
            if message is None:
                continue
            if message.error():
                self.failed.append(str(KafkaException(message.error())))
                continue
            self.read.append(int(message.value() or b"-1"))
            if self._stopping.is_set():
                give_up_s = min(give_up_s, clock.monotonic_s() + 30)
        consumer.close()


def create_topic(bootstrap: str, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    # On disk: what spoilt requests create is no part of its memory.
    with serving(tmp_path, settings={"kafka.auto_create_topics": "false"}) as broker:
        create_topic(broker.bootstrap, FUZZED_TOPIC)
        yield broker


def spoilt(chance: random.Random, frames: list[Frame]) -> tuple[bytes, bool]:
    """Bytes to send, and whether the broker may rightly wait for more of them, or for records."""
    frame = mutated(chance, frames)
    if chance.random() < 0.05:
        claimed = chance.choice((len(frame) + chance.choice((-1, 1, 1000)), chance.choice((0, 1, -1, 2**20, 2**26, 2**31 - 1))))
        return struct.pack(">i", claimed) + frame, True
    return prefixed(frame), may_wait(frame)


@pytest.mark.timeout(300)
def test_spoilt_frames_end_in_a_reply_or_a_closed_connection_and_harm_nobody(served: Served) -> None:
    chance = random.Random(SEED)
    frames = valid_frames(chance, FUZZED_TOPIC, rounds=3)
    outcomes: Counter[str] = Counter()
    peak_bytes = 0
    with Bystander(served.bootstrap) as bystander:
        lines = [Line(served.kafka_port) for _ in range(CONNECTIONS)]
        for turn in range(FRAMES // CONNECTIONS):
            sent = []
            for line in lines:
                data, waits = spoilt(chance, frames)
                line.send(data, waits=waits)
                sent.append(data)
            for line, data in zip(lines, sent, strict=True):
                try:
                    outcomes[line.settle()] += 1
                except TimeoutError:
                    pytest.fail(f"neither reply nor end: turn={turn} seed={SEED} frame={data[:2000].hex()}")
            if turn % 50 == 0:
                assert served.is_alive
                peak_bytes = max(peak_bytes, served.rss_bytes())
        for line in lines:
            line.close()

    assert outcomes.total() == FRAMES
    assert min(outcomes.values()) > FRAMES / 100, outcomes
    assert set(outcomes) == {"answered", "closed", "closed after its end"}
    assert max(peak_bytes, served.rss_bytes()) < RSS_BYTES_MAX
    assert is_serving(served.kafka_port)
    assert bystander.failed == []
    assert bystander.sent > 0
    assert bystander.read == list(range(bystander.sent))
    metrics = served.metrics()
    assert metrics["forebay_unexpected_errors_total"] == 0
    assert metrics["forebay_protocol_violations_total"] > 0
