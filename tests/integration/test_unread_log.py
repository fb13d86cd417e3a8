"""A broker whose standard error is a pipe that nobody reads, and clients who give it much to say."""

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from kio.schema.create_topics.v5.request import CreatableTopic, CreateTopicsRequest

from runtime.clock import SystemClock
from runtime.log_lines import LINES_PER_WINDOW, WAITING_BYTES_MAX
from tests.integration.test_workers import free_ports
from tests.kit.raw_client import RawClient, body_of, frame_of, header, request_class
from tests.kit.serving import HOST, get

WITHIN_S = 30.0
ANSWERED_WITHIN_S = 30.0
BAD_REQUESTS = 2_000
TOPICS = 250
LONG_CLIENT_ID = "x" * 32_000
PIPE_BYTES = 2**16

clock = SystemClock()


@dataclass
class Unread:
    """`forebay serve` that writes JSON lines into a pipe which is full from the beginning; `read` is how a test begins to read."""

    kafka_port: int
    http_port: int
    process: subprocess.Popen[bytes]
    read_end: int

    def metric(self, name: str, **labels: str) -> float:
        series = json.loads(get(self.http_port, "/metrics.json")[1])["series"]
        return sum(sample["value"] for sample in series if sample["name"] == name and sample["labels"] == labels)

    def read(self) -> "Reading":
        return Reading(self.read_end)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WITHIN_S)


class Reading:
    """Reads on a thread until the end."""

    def __init__(self, descriptor: int) -> None:
        self._received = bytearray()
        self._descriptor = descriptor
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while data := os.read(self._descriptor, PIPE_BYTES):
            self._received += data

    def whole_lines(self) -> list[bytes]:
        return bytes(self._received).split(b"\n")[:-1]

    def to_the_end(self) -> bytes:
        self._thread.join(WITHIN_S)
        assert not self._thread.is_alive(), "the log never ended"
        return bytes(self._received)


@contextlib.contextmanager
def full_pipe() -> Iterator[tuple[int, int]]:
    """Both ends. What it is full of are ends of lines."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(write_end, b"\n" * PIPE_BYTES)
    os.set_blocking(write_end, True)
    try:
        yield read_end, write_end
    finally:
        os.close(read_end)


@contextlib.contextmanager
def unread(folder: Path, *options: str) -> Iterator[Unread]:
    kafka_port, http_port = free_ports()
    settings = {
        "storage.url": f"file://{folder}/objects",
        "metadata.url": f"sqlite:///{folder}/meta.db",
        "kafka.listeners": f"PLAINTEXT://{HOST}:{kafka_port}",
        "http.listen": f"{HOST}:{http_port}",
        "shutdown.drain": "0ms",
        "shutdown.deadline": "20s",
    }
    command = [sys.executable, "-m", "forebay", "serve", "--config", os.devnull, "--log-format", "json", *options]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("FOREBAY_", "KAFKA_"))}
    with full_pipe() as (read_end, write_end):
        process = subprocess.Popen(
            [*command, *(f"--set={key}={value}" for key, value in settings.items())],
            stdin=subprocess.DEVNULL,
            stderr=write_end,
            env=environment,
            cwd=folder,
        )
        os.close(write_end)
        with process:
            try:
                for port in range(http_port, http_port + (2 if "--workers" in options else 1)):
                    until(lambda port=port: is_ready(port))
                yield Unread(kafka_port, http_port, process, read_end)
            finally:
                process.kill()


def is_ready(http_port: int) -> bool:
    try:
        return get(http_port, "/readyz")[0] == HTTPStatus.OK
    except OSError:
        return False


def until(is_so: Callable[[], bool]) -> None:
    give_up_s = clock.monotonic_s() + WITHIN_S
    while not is_so():
        assert clock.monotonic_s() < give_up_s
        time.sleep(0.01)


def send_bad_request(port: int) -> None:
    """A Metadata request that ends too early, of a client whose name is long; its connection is closed."""
    frame = header(3, 1, client_id=LONG_CLIENT_ID) + b"\x00\x00\x00\x05"
    with socket.create_connection((HOST, port), timeout=ANSWERED_WITHIN_S) as client:
        client.sendall(struct.pack(">i", len(frame)) + frame)
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(1) == b""


def answers(port: int) -> bool:
    with RawClient(port) as client:
        client.send(frame_of(request_class(18, 0)()))
        return client.receive() is not None


def events_in(words: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in words.splitlines() if line]


def create_topics(port: int) -> None:
    topics = tuple(
        CreatableTopic(name=f"t-{number}", num_partitions=1, replication_factor=1, assignments=(), configs=()) for number in range(TOPICS)
    )
    with RawClient(port) as client:
        client.send(header(19, 5, client_id=LONG_CLIENT_ID) + body_of(CreateTopicsRequest(topics=topics)))
        assert client.receive() is not None


@pytest.mark.parametrize("options", [(), pytest.param(("--workers", "2"), marks=pytest.mark.slow)], ids=["one broker", "workers"])
def test_a_log_that_nobody_reads_stops_nobody_and_stays_small(tmp_path: Path, options: tuple[str, ...]) -> None:
    with unread(tmp_path, *options) as served:
        for _ in range(BAD_REQUESTS):
            send_bad_request(served.kafka_port)
        create_topics(served.kafka_port)

        assert served.metric("forebay_protocol_violations_total") == BAD_REQUESTS
        assert answers(served.kafka_port)
        assert get(served.http_port, "/healthz")[0] == HTTPStatus.OK
        until(lambda: served.metric("forebay_log_lines_dropped_total", reason="share") > 0)

        reading = served.read()
        until(lambda: any(b"log_lines_dropped" in line for line in reading.whole_lines()))
        code = served.stop()
        words = reading.to_the_end()

    assert code == 0
    assert len(words) < WAITING_BYTES_MAX, "and so is what a reader finds"
    assert words.endswith(b"\n")
    events = events_in(words)
    refused = [event for event in events if event["event"] == "protocol_violation"]
    created = [event for event in events if event["event"] == "topic_created"]
    left_out = [event for event in events if event["event"] == "log_lines_dropped"]
    assert sum(event["count"] for event in refused) == BAD_REQUESTS
    assert len(created) >= LINES_PER_WINDOW
    assert {(event["reason"], event["kind"]) for event in left_out} == {("share", "administration topic_created")}
    assert len(created) + sum(event["count"] for event in left_out) == TOPICS
    assert max(len(event["client_id"]) for event in created + refused) < 300


@pytest.mark.parametrize("options", [(), ("--workers", "2")], ids=["one broker", "workers"])
def test_a_log_that_nobody_reads_keeps_no_broker_from_ending_in_order(tmp_path: Path, options: tuple[str, ...]) -> None:
    with unread(tmp_path, *options) as served:
        assert served.stop() == 0


def test_a_broker_that_cannot_start_ends_though_nobody_reads_why(tmp_path: Path) -> None:
    with unread(tmp_path) as served, full_pipe() as (_, write_end):
        again = subprocess.run(
            [
                sys.executable,
                "-m",
                "forebay",
                "serve",
                "--log-format",
                "json",
                f"--set=kafka.listeners=PLAINTEXT://{HOST}:{served.kafka_port}",
            ],
            stdin=subprocess.DEVNULL,
            stderr=write_end,
            cwd=tmp_path,
            timeout=WITHIN_S,
            check=False,
        )
        os.close(write_end)

    assert again.returncode == 1


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full", "--workers 2 2>&-"])
def test_a_broker_with_nowhere_to_log_serves(tmp_path: Path, redirection: str) -> None:
    kafka_port, http_port = free_ports()
    settings = f"--set kafka.listeners=PLAINTEXT://{HOST}:{kafka_port} --set http.listen={HOST}:{http_port} --set shutdown.drain=0ms"
    command = f"exec {sys.executable} -m forebay serve {settings} {redirection}"
    process = subprocess.Popen(["/bin/sh", "-c", command], stdin=subprocess.DEVNULL, cwd=tmp_path)
    with process:
        try:
            for port in range(http_port, http_port + (2 if "--workers" in redirection else 1)):
                until(lambda port=port: is_ready(port))
            send_bad_request(kafka_port)
            assert answers(kafka_port)
            series = json.loads(get(http_port, "/metrics.json")[1])["series"]
            dropped = {one["labels"]["reason"]: one["value"] for one in series if one["name"] == "forebay_log_lines_dropped_total"}
            # A worker writes to its supervisor, which has nowhere to log.
            assert dropped.keys() == (set() if "--workers" in redirection else {"failed"})
            process.terminate()
            assert process.wait(WITHIN_S) == 0
        finally:
            process.kill()
