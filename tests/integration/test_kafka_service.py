"""Apache Kafka as `services.kafka` runs it: what it promises tests, and what `make kafka` promises people."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from services.kafka import KafkaServer, kafka_answers, properties, running_kafka
from services.ports import HOST, free_port
from services.process import ServerError

pytestmark = pytest.mark.timeout(600)  # the jars are fetched once

ROOT: Final = Path(__file__).parents[2]
WITHIN_S: Final = 30.0
TOPIC: Final = "kept"


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    with running_kafka(tmp_path_factory.mktemp("kafka"), settings={"num.partitions": "7"}, is_measured=False) as server:
        yield server


def admin_of(server: KafkaServer) -> AdminClient:
    return AdminClient({"bootstrap.servers": server.bootstrap})


def create(server: KafkaServer, topic: str) -> None:
    admin = admin_of(server)
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(WITHIN_S)


def produce(server: KafkaServer, topic: str, value: str) -> None:
    producer = Producer({"bootstrap.servers": server.bootstrap})
    producer.produce(topic, value)
    assert producer.flush(WITHIN_S) == 0


def values(server: KafkaServer, topic: str) -> list[str]:
    """All of its first partition."""
    consumer = Consumer({"bootstrap.servers": server.bootstrap, "group.id": "nobody", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    read = []
    while (message := consumer.poll(WITHIN_S)) is not None and message.error() is None:
        read.append(message.value().decode())
    consumer.close()
    assert message is not None
    assert message.error().code() == KafkaError._PARTITION_EOF
    return read


def test_it_is_one_broker_at_the_address_it_is_said_to_be_at(kafka: KafkaServer) -> None:
    brokers = admin_of(kafka).list_topics(timeout=WITHIN_S).brokers

    assert [f"{broker.host}:{broker.port}" for broker in brokers.values()] == [kafka.bootstrap]
    assert kafka_answers(kafka.port)


def test_topics_are_made_by_those_who_ask_for_them_only(kafka: KafkaServer) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "allow.auto.create.topics": True, "message.timeout.ms": 3000})
    failed: list[KafkaError] = []
    producer.produce("nowhere", "value", on_delivery=lambda error, _: failed.append(error))
    producer.flush(WITHIN_S)

    assert [error.code() for error in failed if error] in ([KafkaError._UNKNOWN_TOPIC], [KafkaError._MSG_TIMED_OUT])
    assert "nowhere" not in admin_of(kafka).list_topics(timeout=WITHIN_S).topics


def test_settings_are_stronger_than_the_defaults(kafka: KafkaServer) -> None:
    resource = ConfigResource(ResourceType.BROKER, "1")
    admin = admin_of(kafka)
    configs = admin.describe_configs([resource])[resource].result(WITHIN_S)

    assert configs["num.partitions"].value == "7"
    assert configs["group.initial.rebalance.delay.ms"].value == "0"
    assert properties(
        Path(), port=1, inside=2, controller=3, advertised="", settings={"group.initial.rebalance.delay.ms": "5"}
    )["group.initial.rebalance.delay.ms"] == "5"  # fmt: skip


@pytest.mark.slow
def test_data_outlive_a_stop(tmp_path: Path) -> None:
    with running_kafka(tmp_path, is_measured=False) as kafka:
        create(kafka, TOPIC)
        produce(kafka, TOPIC, "before")
        kafka.stop()
        answered = kafka_answers(kafka.port)
        kafka.start()
        read = values(kafka, TOPIC)

    assert not answered
    assert read == ["before"]


@pytest.mark.slow
@pytest.mark.long
def test_data_outlive_a_kill(tmp_path: Path) -> None:
    with running_kafka(tmp_path, is_measured=False) as kafka:
        create(kafka, TOPIC)
        produce(kafka, TOPIC, "before")
        kafka.kill9()
        kafka.start()
        read = values(kafka, TOPIC)

    assert read == ["before"]


@pytest.mark.slow
@pytest.mark.long
def test_clients_are_sent_to_the_address_that_is_advertised(tmp_path: Path) -> None:
    with running_kafka(tmp_path, advertised="localhost:1", is_measured=False) as kafka:
        brokers = admin_of(kafka).list_topics(timeout=WITHIN_S).brokers

    assert [(broker.host, broker.port) for broker in brokers.values()] == [("localhost", 1)]


def test_a_setting_that_is_refused_is_shown(tmp_path: Path) -> None:
    with (
        pytest.raises(ServerError, match=r"cannot be formatted: .*server\.properties is refused:\n[\s\S]*num\.partitions"),
        running_kafka(tmp_path, settings={"num.partitions": "many"}),
    ):
        pass


@pytest.mark.slow
def test_in_the_foreground_it_says_its_address_and_ends_with_its_command(tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "-m", "services.kafka", "--port", str(port), "--folder", str(tmp_path / "kafka")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        answered = kafka_answers(port)
        process.send_signal(signal.SIGTERM)
        code = process.wait(WITHIN_S)

    assert said.startswith(f"Apache Kafka on {HOST}:{port}, pid ")
    assert answered
    assert code == os.EX_OK
    assert not kafka_answers(port)


@pytest.mark.slow
def test_in_the_foreground_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-m", "services.kafka", "--port", str(port), "--folder", str(tmp_path)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )

    assert done.returncode == os.EX_UNAVAILABLE
    assert done.stderr == f"Port {port} on {HOST} is in use: Apache Kafka cannot start. Choose another.\n"
