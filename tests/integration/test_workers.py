"""`forebay serve --workers 2`: two brokers of one cluster, over stores on this machine and over Oxia and S3."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from runtime.clock import SystemClock
from runtime.ids import IdSource
from services.oxia import OxiaServer
from services.ports import free_port
from services.versitygw import S3Server

COMMAND = [sys.executable, "-m", "forebay", "serve", "--log-format", "json"]
HOST = "127.0.0.1"
WITHIN_S = 60.0
PORTS_APART = 2
QUIET = {"log_level": 2, "socket.timeout.ms": 10_000}

clock = SystemClock()

Stores = Mapping[str, str]
"""Environment variables."""


class Supervised:
    """`forebay serve --workers`, with the lines that were read."""

    def __init__(self, folder: Path, stores: Stores, *assignments: str, workers: int = 2) -> None:
        self.events: list[dict[str, Any]] = []
        command = [*COMMAND, "--workers", str(workers)]
        for assignment in ("shutdown.drain=0ms", "shutdown.deadline=20s", *assignments):
            command += ["--set", assignment]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
        self.process = subprocess.Popen(command, cwd=folder, env=environment | dict(stores), stderr=subprocess.PIPE, text=True)

    def read_until(self, event: str, **facts: object) -> dict[str, Any]:
        assert self.process.stderr is not None
        for line in iter(self.process.stderr.readline, ""):
            self.events.append(json.loads(line))
            if {"event": event, **facts}.items() <= self.events[-1].items():
                return self.events[-1]
        raise AssertionError(f"{event} {facts} never came; before it {self.events[-5:]}")

    def read_until_each(self, *events: str, since: int, **facts: object) -> None:
        """Until a line of each event has come behind the first `since`, in any order: lines of several processes have none."""
        while missing := set(events) - {one["event"] for one in self.events[since:] if facts.items() <= one.items()}:
            self.read_until(missing.pop(), **facts)

    def said(self, event: str, **facts: object) -> dict[str, Any]:
        """The last such line that was read, or else the next."""
        found = next((one for one in reversed(self.events) if {"event": event, **facts}.items() <= one.items()), None)
        return found or self.read_until(event, **facts)

    def bootstrap(self, worker: int) -> str:
        return str(self.said("kafka listening", worker=worker)["advertised"]).removeprefix("PLAINTEXT://")


Serve = Callable[..., AbstractContextManager[Supervised]]


@pytest.fixture(params=["embedded", "oxia and s3"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Stores:
    if request.param == "embedded":
        return {"FOREBAY_METADATA__URL": f"sqlite:///{tmp_path}/meta.db", "FOREBAY_STORAGE__URL": f"file://{tmp_path}/objects"}
    oxia: OxiaServer = request.getfixturevalue("oxia_server")
    s3: S3Server = request.getfixturevalue("s3_server")
    return {"FOREBAY_METADATA__URL": oxia.url, "FOREBAY_STORAGE__URL": s3.url(), "FOREBAY_STORAGE__FLUSH_INTERVAL": "20ms", **s3.environ}


@pytest.fixture
def serve(tmp_path: Path, stores: Stores) -> Serve:
    @contextlib.contextmanager
    def serving(*assignments: str) -> Iterator[Supervised]:
        supervised = Supervised(tmp_path, stores, *assignments)
        assert supervised.process.stderr is not None
        with supervised.process, supervised.process.stderr:
            try:
                supervised.read_until("all_workers_ready")
                yield supervised
            finally:
                supervised.process.kill()

    return serving


@pytest.fixture
def topic() -> str:
    return f"orders-{IdSource(clock=clock).next_ulid()}"


def wait_until_seen(bootstrap: str, wanted: set[tuple[int, str]]) -> None:
    """A worker hears of the other a moment after that one is ready."""
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    give_up_s = clock.monotonic_s() + WITHIN_S
    seen: set[tuple[int, str]] = set()
    while not wanted <= seen:
        assert clock.monotonic_s() < give_up_s, f"{bootstrap} names {seen} and not all of {wanted}"
        seen = {(broker.id, f"{broker.host}:{broker.port}") for broker in admin.list_topics(timeout=WITHIN_S).brokers.values()}


def create(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(WITHIN_S)


def produce(bootstrap: str, topic: str, values: list[bytes]) -> list[int]:
    """The offsets that were acknowledged."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, **QUIET})
    offsets: list[int] = []

    def acked(error: object, message: Message) -> None:
        assert error is None
        offset = message.offset()
        assert offset is not None
        offsets.append(offset)

    for value in values:
        producer.produce(topic, value, partition=0, on_delivery=acked)
    assert producer.flush(WITHIN_S) == 0
    return offsets


def read(bootstrap: str, topic: str, count: int) -> list[bytes | None]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "workers", "enable.auto.commit": False, **QUIET})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        found: list[bytes | None] = []
        while len(found) < count:
            messages = consumer.consume(count - len(found), timeout=WITHIN_S)
            assert messages, f"{len(found)} of {count} records came"
            for message in messages:
                error = message.error()
                if error is not None:
                    raise KafkaException(error)
                found.append(message.value())
        return found
    finally:
        consumer.close()


def free_ports() -> tuple[int, int]:
    """For Kafka and HTTP, each with the next one free as well, as far as one can know."""
    while True:
        kafka, http = free_port(), free_port()
        if abs(kafka - http) >= PORTS_APART and kafka + 1 == free_port_at(kafka + 1) and http + 1 == free_port_at(http + 1):
            return kafka, http


def free_port_at(port: int) -> int:
    """`port` if nobody has it, 0 otherwise."""
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return 0
        return port


def test_a_client_finds_both_workers_and_what_one_took_the_other_gives(serve: Serve, topic: str) -> None:
    kafka, http = free_ports()
    with serve(f"kafka.listeners=PLAINTEXT://{HOST}:{kafka}", f"http.listen={HOST}:{http}", "broker.id=70") as served:
        for worker in range(2):
            wait_until_seen(served.bootstrap(worker), {(70, f"{HOST}:{kafka}"), (71, f"{HOST}:{kafka + 1}")})
        create(served.bootstrap(0), topic)
        offsets = produce(served.bootstrap(0), topic, [b"a", b"b"]) + produce(served.bootstrap(1), topic, [b"c"])
        values = [read(served.bootstrap(worker), topic, 3) for worker in range(2)]

        served.process.send_signal(signal.SIGTERM)
        served.read_until("supervisor_stopped")
        code = served.process.wait(WITHIN_S)

    assert offsets == [0, 1, 2]
    assert values == [[b"a", b"b", b"c"]] * 2
    assert served.said("http listening", worker=1)["address"] == f"{HOST}:{http + 1}"
    assert code == 0


def test_a_worker_that_is_killed_comes_back_and_has_everything_meanwhile_taken_by_the_other(serve: Serve, topic: str) -> None:
    with serve(f"kafka.listeners=PLAINTEXT://{HOST}:0", f"http.listen={HOST}:0") as served:
        create(served.bootstrap(1), topic)
        before = produce(served.bootstrap(1), topic, [b"a"])

        since = len(served.events)
        os.kill(served.said("worker_started", worker=1)["pid"], signal.SIGKILL)
        served.read_until("worker_died", worker=1)
        meanwhile = produce(served.bootstrap(0), topic, [b"b"])
        served.read_until_each("worker_ready", "kafka listening", since=since, worker=1)  # on another port
        values = read(served.bootstrap(1), topic, 2)

        served.process.send_signal(signal.SIGTERM)
        served.read_until("supervisor_stopped")

    assert before + meanwhile == [0, 1]
    assert values == [b"a", b"b"]


@pytest.mark.parametrize("stores", ["embedded"], indirect=True)
def test_workers_are_forked_from_a_parent_that_has_loaded_what_they_need(serve: Serve) -> None:
    with serve(f"kafka.listeners=PLAINTEXT://{HOST}:0", f"http.listen={HOST}:0") as served:
        workers = [served.said("worker_started", worker=worker)["pid"] for worker in range(2)]
        (parent,) = {parent_of(pid) for pid in workers}
        cpu_of_worker, cpu_of_parent = cpu_ns(workers[1]), cpu_ns(parent)

    assert parent != served.process.pid
    assert cpu_of_worker < cpu_of_parent / 2


@pytest.mark.parametrize("stores", ["embedded"], indirect=True)
def test_workers_live_on_when_their_parent_is_killed_and_one_that_dies_then_is_started_by_another(serve: Serve, topic: str) -> None:
    with serve(f"kafka.listeners=PLAINTEXT://{HOST}:0", f"http.listen={HOST}:0") as served:
        create(served.bootstrap(0), topic)
        first = served.said("worker_started", worker=1)["pid"]
        os.kill(parent_of(first), signal.SIGKILL)
        before = produce(served.bootstrap(1), topic, [b"a"])
        since = len(served.events)
        os.kill(first, signal.SIGKILL)
        served.read_until_each("worker_started", "worker_ready", "kafka listening", since=since, worker=1)
        after = produce(served.bootstrap(1), topic, [b"b"])
        pids = [served.said("worker_started", worker=worker)["pid"] for worker in range(2)]

        served.process.send_signal(signal.SIGTERM)
        served.read_until("worker_stopped", worker=0)
        served.read_until("supervisor_stopped")

    assert before + after == [0, 1]
    assert pids[1] != first
    assert not any(is_running(pid) for pid in pids)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def is_running(pid: int) -> bool:
    """An orphan that has ended may be a zombie until somebody collects it."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def cpu_ns(pid: int) -> int:
    """Of all its threads, so far."""
    return sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir())


def test_a_port_in_use_stops_both_with_one_message(tmp_path: Path) -> None:
    port = free_ports()[0]
    with socket.create_server((HOST, port + 1)):
        ended = subprocess.run(
            [*COMMAND, "--workers", "2", "--set", f"kafka.listeners=PLAINTEXT://{HOST}:{port}", "--set", f"http.listen={HOST}:0"],
            check=False,
            cwd=tmp_path,
            env={name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")},
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
        )

    assert ended.returncode == 1
    told = [event for event in map(json.loads, ended.stderr.splitlines()) if event["event"] == "cannot_serve"]
    assert [event["worker"] for event in told] == [1], ended.stderr
    assert told[0]["message"].startswith(f"Port {port + 1} on {HOST} is in use")
    assert ended.stderr.count("is in use") == 1
