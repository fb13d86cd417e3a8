import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FAKE = Path(__file__).parent / "serve_fake.py"
IN_MEMORY = ("storage.url=memory://", "metadata.url=memory://", "http.listen=127.0.0.1:0", "log.format=json")


class Served:
    """`forebay serve` in a process of its own; `events` are its log lines so far."""

    def __init__(self, act: str, folder: Path, *assignments: str, supervisor: socket.socket | None = None) -> None:
        self.events: list[dict[str, Any]] = []
        self.process = subprocess.Popen(
            [sys.executable, str(FAKE), act, *IN_MEMORY, *assignments],
            cwd=folder,
            stdin=supervisor.fileno() if supervisor else subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")},
        )

    def lines(self) -> Iterator[str]:
        assert self.process.stderr is not None
        return iter(self.process.stderr.readline, "")

    def read_until(self, event: str) -> dict[str, Any]:
        for line in self.lines():
            self.events.append(json.loads(line))
            if self.events[-1]["event"] == event:
                return self.events[-1]
        raise AssertionError(f"{event} never came; before it {self.events}")

    def read_to_the_end(self) -> str:
        return "".join(self.lines())

    def exit_code(self) -> int:
        return self.process.wait(30)


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Any]:
    started: list[Served] = []

    def start(act: str, *assignments: str, supervisor: socket.socket | None = None) -> Served:
        started.append(Served(act, tmp_path, *assignments, supervisor=supervisor))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.wait()
        assert one.process.stderr is not None
        one.process.stderr.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_every_stage_is_one_line_up_and_down(serving: Any, number: int) -> None:
    served = serving("behave")
    served.read_until("ready")

    served.process.send_signal(number)
    served.read_until("stopped")

    assert served.exit_code() == 0
    assert [event["event"] for event in served.events] == [
        "config",
        "stores opened",
        "http listening",
        "ready",
        "stopping",
        "drained",
        "broker closed",
        "stopped",
    ]
    assert all(isinstance(event["seconds"], float) for event in served.events)
    assert served.events[0]["storage.url"] == "memory://"
    assert served.events[4]["signal"] == signal.Signals(number).name


def test_a_served_broker_answers_on_http(serving: Any) -> None:
    served = serving("behave")
    host, port = served.read_until("http listening")["address"].split(":")
    served.read_until("ready")

    connection = http.client.HTTPConnection(host, int(port), timeout=10)
    connection.request("GET", "/readyz")
    status = connection.getresponse().status
    connection.close()

    assert status == 200


def test_a_second_interrupt_ends_it_at_once(serving: Any) -> None:
    served = serving("drain for ever")
    served.read_until("ready")

    served.process.send_signal(signal.SIGTERM)
    served.read_until("stopping")
    served.process.send_signal(signal.SIGTERM)
    served.process.send_signal(signal.SIGINT)

    assert served.exit_code() == 130


def test_a_shutdown_that_hangs_is_ended_by_its_deadline(serving: Any) -> None:
    served = serving("drain for ever", "shutdown.deadline=1s")
    served.read_until("ready")

    served.process.send_signal(signal.SIGTERM)
    served.read_until("shutdown_deadline_passed")

    assert served.exit_code() == 1


def test_an_interrupted_start_leaves(serving: Any) -> None:
    served = serving("start for ever")
    served.read_until("stores opened")

    served.process.send_signal(signal.SIGINT)
    served.read_until("interrupted_while_starting")

    assert served.exit_code() == 130


REFUSALS = [
    ("refuse", "Port 9092 on 127.0.0.1 is in use.", 1),
    ("unreachable", "the folder is on fire", 3),
    ("newer", "This data directory was written by format 3; nothing was changed.", 2),
]


@pytest.mark.parametrize("log_format", ["json", "auto"])
@pytest.mark.parametrize(("act", "message", "exit_code"), REFUSALS)
def test_what_the_operator_must_fix_is_one_event_and_an_exit_code(
    serving: Any, act: str, message: str, exit_code: int, log_format: str
) -> None:
    served = serving(act, f"log.format={log_format}")
    served.read_until("stores opened")

    (line,) = served.read_to_the_end().splitlines()
    assert {"event": "cannot_serve", "level": "error", "message": message, "exit_code": exit_code}.items() <= json.loads(line).items()
    assert served.exit_code() == exit_code


@pytest.mark.parametrize(("act", "message", "exit_code"), REFUSALS)
def test_on_a_console_what_the_operator_must_fix_is_a_line_of_plain_text(serving: Any, act: str, message: str, exit_code: int) -> None:
    served = serving(act, "log.format=console")

    assert served.read_to_the_end().splitlines()[-1] == message
    assert served.exit_code() == exit_code


def test_a_part_that_falls_over_takes_the_process_with_it_and_leaves_a_trace(serving: Any) -> None:
    served = serving("fall over")

    failed = served.read_until("failed")

    assert "a part of the broker fell over" in failed["exception"]
    assert served.exit_code() == 1


def test_an_http_port_in_use_is_said_so(serving: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        served = serving("behave", f"http.listen=127.0.0.1:{port}")
        words = served.read_until("cannot_serve")["message"]

    assert words.startswith(f"Port {port} on 127.0.0.1 is in use")
    assert words.endswith(f"--set http.listen=127.0.0.1:{port + 1}.")
    assert served.exit_code() == 1


def test_advice_is_logged(serving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_LISTENERS", "PLAINTEXT://:9092")

    served = serving("behave")

    assert "FOREBAY_KAFKA__LISTENERS" in served.read_until("advice")["message"]


def test_a_listener_for_others_is_warned_of_once(serving: Any) -> None:
    served = serving("behave", "kafka.listeners=PLAINTEXT://0.0.0.0:0")

    assert "no authentication" in served.read_until("advice")["message"]
    served.read_until("ready")
    assert [one["event"] for one in served.events].count("advice") == 1


@pytest.fixture
def supervisor() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Its end of the link, with a deadline, and the worker's."""
    ours, theirs = socket.socketpair()
    ours.settimeout(30)
    with ours, theirs:
        yield ours, theirs


def test_a_supervisor_is_told_when_the_broker_is_ready(serving: Any, supervisor: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = supervisor
    serving("behave", supervisor=theirs)

    assert json.loads(ours.recv(1000)) == {"ready": {"broker_id": 1, "cluster_id": "c-1"}}


def test_a_worker_leaves_advice_to_its_supervisor(serving: Any, supervisor: tuple[socket.socket, socket.socket]) -> None:
    served = serving("behave", "kafka.listeners=PLAINTEXT://0.0.0.0:0", supervisor=supervisor[1])

    served.read_until("ready")

    assert "advice" not in {one["event"] for one in served.events}


def test_a_supervisor_is_told_why_the_broker_cannot_start_and_nobody_else(
    serving: Any, supervisor: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = supervisor
    served = serving("unreachable", supervisor=theirs)

    assert json.loads(ours.recv(1000)) == {"refused": "the folder is on fire"}
    assert served.exit_code() == 3
    assert "on fire" not in served.read_to_the_end()


def test_a_broker_whose_supervisor_is_gone_stops_in_order(serving: Any, supervisor: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = supervisor
    served = serving("behave", supervisor=theirs)
    served.read_until("ready")

    theirs.close()
    ours.close()
    served.read_until("supervisor_gone")
    served.read_until("stopped")

    assert served.exit_code() == 0


def test_a_broker_that_hangs_when_its_supervisor_is_gone_is_ended_by_the_deadline(
    serving: Any, supervisor: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = supervisor
    served = serving("hang", "shutdown.deadline=1s", supervisor=theirs)
    served.read_until("ready")

    theirs.close()
    ours.close()
    served.read_until("shutdown_deadline_passed")

    assert served.exit_code() == 1
