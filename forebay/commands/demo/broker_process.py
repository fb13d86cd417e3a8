"""A broker in a process of its own, as a child of this one: it ends when this one does, however that ends."""

import http.client
import json
import os
import socket
import subprocess
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from forebay.commands.demo.stores import DemoStores
from forebay.processes.workers.link import refusal_in
from forebay.processes.workers.plan import environment
from forebay.processes.workers.serving import broker_command
from process.settings.errors import EXIT_FAILED, EXIT_USAGE, StartError
from runtime.clock import Clock

HOST: Final = "127.0.0.1"
READY_WITHIN_S: Final = 30.0
STOP_WITHIN_S: Final = 20.0
PORTS_TRIED_MAX: Final = 200
_ASK_EVERY_S: Final = 0.05
_ANSWER_WITHIN_S: Final = 5.0
_LAST_LINES: Final = 5
_REFUSAL_BYTES_MAX: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class DemoPlace:
    """`log` is where the broker's own words go."""

    kafka_port: int
    http_port: int
    stores: DemoStores
    log: Path

    @property
    def address(self) -> str:
        return f"{HOST}:{self.kafka_port}"

    def assignments(self) -> list[str]:
        """A later one is stronger than an earlier one."""
        return [
            *self.stores.assignments,
            f"kafka.listeners=PLAINTEXT://{HOST}:{self.kafka_port}",
            f"kafka.advertised_listeners=PLAINTEXT://{HOST}:{self.kafka_port}",
            f"http.listen={HOST}:{self.http_port}",
            "log.format=json",
            "shutdown.drain=0ms",
            "shutdown.deadline=10s",
        ]


def free_port(first: int, *, promised: Collection[int] = ()) -> int:
    """The first port from `first` on that nobody listens on or was promised. Raise `StartError` when there is none."""
    for port in range(first, min(first + PORTS_TRIED_MAX, 65_536)):
        if port in promised:
            continue
        with socket.socket() as probe:
            # As the broker will bind it: a port whose last owner only just left counts as free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    raise StartError(f"No free port from {first} on. Choose another first one with --port.", exit_code=EXIT_USAGE)


class BrokerProcess:
    """Runs while the `with` block does; leaving stops it."""

    def __init__(self, place: DemoPlace, *, clock: Clock) -> None:
        self.place = place
        self._clock = clock
        self._process: subprocess.Popen[bytes] | None = None
        self._link: socket.socket | None = None

    def __enter__(self) -> Self:
        command = broker_command(self.place.assignments())
        self.place.log.parent.mkdir(parents=True, exist_ok=True)
        self._link, theirs = socket.socketpair()
        with theirs, self.place.log.open("wb") as log:
            # A session of its own: Ctrl-C reaches the demo alone, which then stops the broker in order.
            self._process = subprocess.Popen(  # noqa: S603 - our own command line
                command, stdin=theirs.fileno(), stdout=log, stderr=log, env=environment(os.environ), start_new_session=True
            )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        assert self._process is not None
        assert self._link is not None
        self._process.terminate()
        try:
            self._process.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        finally:
            self._link.close()

    def wait_ready(self) -> None:
        """Until /readyz says so. Raise `StartError` with the broker's last words if it ends or takes too long."""
        give_up_s = self._clock.monotonic_s() + READY_WITHIN_S
        while not self._is_ready():
            if not self.is_running():
                raise self.failure("ended before it was ready")
            if self._clock.monotonic_s() > give_up_s:
                raise self.failure(f"was not ready within {READY_WITHIN_S:.0f} s")
            time.sleep(_ASK_EVERY_S)

    def terminate(self) -> None:
        """Ask it to stop, without waiting; leaving the `with` block waits. Harmless if it has ended."""
        assert self._process is not None
        self._process.terminate()

    def kill9(self) -> None:
        """No goodbye: as if its machine were gone."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def metrics(self) -> list[Mapping[str, Any]]:
        """The series of /metrics.json."""
        _, body = self._get("/metrics.json")
        series: list[Mapping[str, Any]] = json.loads(body)["series"]
        return series

    def failure(self, what: str) -> StartError:
        """With the broker's last words: what it reported, or the end of its log."""
        who = f"The broker on {self.place.address} {what}."
        refusal = self._refusal()
        if refusal:
            return StartError(f"{who} {refusal}", exit_code=EXIT_FAILED)
        lines = self.place.log.read_text(errors="replace").splitlines()[-_LAST_LINES:]
        words = "".join(f"\n  {line}" for line in lines)
        return StartError(f"{who} The end of its log {self.place.log}:{words}", exit_code=EXIT_FAILED)

    def _refusal(self) -> str:
        assert self._link is not None
        self._link.setblocking(False)
        try:
            return refusal_in(self._link.recv(_REFUSAL_BYTES_MAX))
        except OSError:
            # It never said anything.
            return ""

    def _is_ready(self) -> bool:
        try:
            return self._get("/readyz")[0] == http.client.OK
        except (OSError, http.client.HTTPException):
            # It does not listen yet.
            return False

    def _get(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(HOST, self.place.http_port, timeout=_ANSWER_WITHIN_S)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()
