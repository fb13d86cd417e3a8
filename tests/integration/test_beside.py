"""`python -m bench.beside` on Apache Kafka and a broker, and the proxy that moves an S3 server away."""

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

import pytest

from bench import processes
from runtime.clock import SystemClock

pytestmark = pytest.mark.timeout(600)  # the jars are fetched once

ROOT: Final = Path(__file__).parents[2]
WITHIN_S: Final = 300.0
DELAY_MS: Final = 50.0
BODY_BYTES: Final = 5 * 2**20

_clock = SystemClock()


class Keeper(BaseHTTPRequestHandler):
    """Takes one body and gives it back. `clients` are the connections."""

    protocol_version = "HTTP/1.1"
    kept = b""
    clients: Final[set[tuple[str, int]]] = set()

    def do_PUT(self) -> None:
        Keeper.clients.add(self.client_address)
        Keeper.kept = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(b"")

    def do_GET(self) -> None:
        Keeper.clients.add(self.client_address)
        self._answer(Keeper.kept)

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Keeper) as listening:
        serving = threading.Thread(target=listening.serve_forever)
        serving.start()
        try:
            yield f"127.0.0.1:{listening.server_port}"
        finally:
            listening.shutdown()
            serving.join(WITHIN_S)


def asked(connection: http.client.HTTPConnection, method: str, body: bytes | None = None) -> tuple[bytes, float]:
    """The body of the answer, and the seconds until it was there."""
    began_s = _clock.monotonic_s()
    connection.request(method, "/object", body)
    answer = connection.getresponse().read()
    return answer, _clock.monotonic_s() - began_s


def test_answers_through_the_proxy_are_late_and_whole(server: str) -> None:
    body = os.urandom(BODY_BYTES)
    with processes.latency_proxy(server, DELAY_MS) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WITHIN_S)
        _, put_s = asked(connection, "PUT", body)
        answers = [asked(connection, "GET") for _ in range(3)]
        connection.close()

    assert all(answer == body for answer, _ in answers)
    assert min(put_s, *(seconds for _, seconds in answers)) >= DELAY_MS / 1e3
    assert len(Keeper.clients) == 1


def test_a_connection_through_the_proxy_to_nobody_is_closed() -> None:
    with processes.latency_proxy("127.0.0.1:1", DELAY_MS) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WITHIN_S)
        with pytest.raises(OSError):
            asked(connection, "GET")
        connection.close()


def beside(tmp_path: Path, *words: str) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "bench.beside",
        "--only",
        "requests",
        "--targets",
        "files",
        "files-2",
        "--scale",
        "0.01",
        "--repeats",
        "1",
    ]
    return subprocess.Popen(
        [*command, "--out", str(tmp_path / "out"), "--folder", str(tmp_path), *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def report_in(tmp_path: Path) -> dict[str, object]:
    (file,) = (tmp_path / "out").glob("beside-*.json")
    found: dict[str, object] = json.loads(file.read_text())
    return found


def left(tmp_path: Path) -> list[str]:
    """Commands of processes that still use the folder."""
    commands = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                commands.append((process / "cmdline").read_bytes().decode(errors="replace"))
            except OSError:
                continue  # it has ended
    return [command for command in commands if str(tmp_path) in command]


@pytest.mark.slow
def test_a_load_is_measured_on_kafka_on_a_broker_and_on_two_workers(tmp_path: Path) -> None:
    said, talk = (process := beside(tmp_path)).communicate(timeout=WITHIN_S)

    assert process.returncode == 0, talk
    report = report_in(tmp_path)
    assert report["failure"] is None
    ((load,),) = (report["loads"],)
    assert [(target["name"], len(target["runs"])) for target in load["targets"]] == [("kafka", 1), ("files", 1), ("files-2", 1)]
    assert load["targets"][1]["summary"]["times_kafka"]["median"] > 0
    assert [target["runs"][0]["conflicts"] is None for target in load["targets"]] == [True, False, False]
    assert all(target["runs"][0]["raw"]["load"] == "requests" for target in load["targets"])
    assert [line.split()[:2] for line in said.splitlines()[1:4]] == [["requests", name] for name in ("kafka", "files", "files-2")]
    assert "requests 1/1 files: " in talk
    assert left(tmp_path) == []


def test_an_interrupted_run_leaves_a_report_and_no_process(tmp_path: Path) -> None:
    process = beside(tmp_path)
    assert process.stderr is not None
    assert process.stderr.readline() == "starting kafka\n"
    process.send_signal(signal.SIGINT)
    _, talk = process.communicate(timeout=WITHIN_S)

    assert process.returncode == 1
    assert "kafka did not start: interrupted" in talk
    assert report_in(tmp_path)["failure"] == {"load": None, "target": "kafka", "error": "interrupted"}
    assert left(tmp_path) == []
