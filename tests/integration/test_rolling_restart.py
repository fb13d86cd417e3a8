"""Three broker processes are restarted one after the other while producers that must not retry send to them."""

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from runtime.clock import SystemClock
from tests.kit.serving import ANSWER_WITHIN_S, HOST, Served, get, serving

TOPIC = "orders"
PARTITIONS = 3
PRODUCERS = 3
PAUSE_S = 0.01
WITHIN_S = 60.0
QUIET = {"log_level": 0, "socket.timeout.ms": 10_000}
SETTINGS = {"shutdown.drain": "10s", "kafka.auto_create_topics": "false", "http.allow_writes": "true"}

_clock = SystemClock()


class OneShot:
    """A producer whose every error is final, and which always has requests under way."""

    def __init__(self, bootstrap: str, number: int) -> None:
        self.errors: list[str] = []
        self.acked = 0
        self._stop = threading.Event()
        self._number = number
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "retries": 0, "enable.idempotence": False, "linger.ms": 1, "client.id": f"one-shot-{number}"}
            | QUIET
        )
        self._thread = threading.Thread(target=self._run, name=f"one-shot-{number}")
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(2 * WITHIN_S)

    def _run(self) -> None:
        count = 0
        while not self._stop.is_set():
            self._producer.produce(TOPIC, b"%d" % count, partition=(self._number + count) % PARTITIONS, on_delivery=self._delivered)
            self._producer.poll(0)
            count += 1
            self._stop.wait(PAUSE_S)
        left = self._producer.flush(WITHIN_S)
        if left:
            self.errors.append(f"{left} records were neither acknowledged nor refused")

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is None:
            self.acked += 1
        else:
            self.errors.append(str(error))


def test_a_rolling_restart_is_no_error_to_producers_that_do_not_retry(tmp_path: Path) -> None:
    with contextlib.ExitStack() as closing:
        lives = [closing.enter_context(contextlib.ExitStack()) for _ in range(3)]
        brokers = [life.enter_context(serving(tmp_path, settings=SETTINGS)) for life in lives]
        bootstrap = ",".join(broker.bootstrap for broker in brokers)
        create(bootstrap)
        producers = [OneShot(bootstrap, number) for number in range(PRODUCERS)]
        try:
            until(lambda: all(producer.acked for producer in producers))
            for number, life in enumerate(lives):
                leave(brokers[number], by_http=number == 0)
                life.close()
                brokers[number] = life.enter_context(serving(tmp_path, kafka_port=brokers[number].kafka_port, settings=SETTINGS))
                acked = [producer.acked for producer in producers]
                until(lambda acked=acked: all(producer.acked > before for producer, before in zip(producers, acked, strict=True)))  # type: ignore[misc]
        finally:
            for producer in producers:
                producer.stop()

        assert [producer.errors for producer in producers] == [[]] * PRODUCERS
        assert stored_count(brokers[0].bootstrap) == sum(producer.acked for producer in producers)


def leave(broker: Served, *, by_http: bool) -> None:
    """SIGTERM, or a request to drain; while it drains it says that it does, and names the others to a client that connects only now."""
    # It stops at once when nobody is connected, as may be when no producer's leader is this broker.
    with socket.create_connection(("127.0.0.1", broker.kafka_port)):
        until(lambda: broker.metrics()['forebay_connections{listener="PLAINTEXT"}'] > 0)
        if by_http:
            assert drain(broker) == "draining"
        else:
            broker.process.terminate()
        until(lambda: get(broker.http_port, "/readyz")[0] == 503)
        until(lambda: broker.kafka_port not in named_by(broker))
    if by_http:
        until(lambda: drain(broker) == "drained")
        assert broker.is_alive
        until(lambda: not broker.metrics()['forebay_connections{listener="PLAINTEXT"}'])


def drain(broker: Served) -> str:
    broker_id = json.loads(get(broker.http_port, "/api/v1/broker")[1])["broker_id"]
    connection = http.client.HTTPConnection(HOST, broker.http_port, timeout=ANSWER_WITHIN_S)
    with contextlib.closing(connection):
        connection.request("POST", f"/api/v1/brokers/{broker_id}/drain", b"{}", {"content-type": "application/json"})
        return str(json.loads(connection.getresponse().read())["status"])


def named_by(broker: Served) -> set[int]:
    """The ports that it names to a client that connects now. Its registration ends a moment after it has said that it drains."""
    asked = AdminClient({"bootstrap.servers": broker.bootstrap} | QUIET).list_topics(TOPIC, timeout=WITHIN_S)
    named = {node.port for node in asked.brokers.values()} | {
        asked.brokers[one.leader].port for one in asked.topics[TOPIC].partitions.values()
    }
    assert named
    return named


def create(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap} | QUIET)
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(WITHIN_S)


def stored_count(bootstrap: str) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "nobody"} | QUIET)
    try:
        return sum(
            high - low
            for low, high in (consumer.get_watermark_offsets(TopicPartition(TOPIC, number), WITHIN_S) for number in range(PARTITIONS))
        )
    finally:
        consumer.close()


def until(is_so: Callable[[], bool]) -> None:
    give_up_s = _clock.monotonic_s() + WITHIN_S
    while not is_so():
        assert _clock.monotonic_s() < give_up_s
        time.sleep(0.01)
