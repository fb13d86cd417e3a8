"""A broker, a compactor or a program of others as a child of this process: it ends when this process does, however that ends."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from forebay.processes.link import SupervisorLink, refusal_in
from forebay.processes.plan import environment
from process.settings.errors import EXIT_FAILED, StartError
from runtime.clock import Clock

HOST: Final = "127.0.0.1"
STOP_WITHIN_S: Final = 20.0
TETHERED_ENDS_WITHIN_S: Final = 10.0
"""Shorter than a `ChildProcess` is waited for."""
_ASK_EVERY_S: Final = 0.05
_ANSWER_WITHIN_S: Final = 5.0
_LAST_LINES: Final = 5
_REFUSAL_BYTES_MAX: Final = 64 * 1024
_BY_SIGNAL: Final = 128


class ChildProcess:
    """A command that takes a `SupervisorLink` as its standard input. `name` begins messages; `log` is where its own words go."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        name: str,
        log: Path,
        clock: Clock,
        environ: Mapping[str, str] | None = None,
        stop_within_s: float = STOP_WITHIN_S,
    ) -> None:
        """`environ` is added to that of this process. After `stop_within_s` it is stopped by force."""
        self.name = name
        self.log = log
        self._command = list(command)
        self._clock = clock
        self._environ = environ or {}
        self._stop_within_s = stop_within_s
        self._process: subprocess.Popen[bytes] | None = None
        self._link: socket.socket | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def was_started(self) -> bool:
        """True once `start` was called, even if it failed."""
        return self._process is not None

    def start(self) -> None:
        """A session of its own: Ctrl-C reaches this process alone, which then stops the child in order."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        if self._link is not None:
            self._link.close()
        self._link, theirs = socket.socketpair()
        environ = environment({**os.environ, **self._environ})
        with theirs, self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own command line
                self._command, stdin=theirs.fileno(), stdout=log, stderr=log, env=environ, start_new_session=True
            )

    def stop(self) -> None:
        """In order, or by force after a while."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGCONT)
        self._process.terminate()
        try:
            self._process.wait(self._stop_within_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        finally:
            if self._link is not None:
                self._link.close()

    def wait_until(self, is_done: Callable[[], bool], what: str, *, within_s: float) -> None:
        """Raise `StartError` with the child's last words if it ends or takes too long."""
        give_up_s = self._clock.monotonic_s() + within_s
        while not is_done():
            if not self.is_running():
                raise self.failure(f"ended before it was {what}")
            if self._clock.monotonic_s() > give_up_s:
                raise self.failure(f"was not {what} within {within_s:.0f} s")
            time.sleep(_ASK_EVERY_S)

    def terminate(self) -> None:
        """Ask it to stop, without waiting. Harmless if it has ended."""
        assert self._process is not None
        self._process.terminate()

    def kill9(self) -> None:
        """No goodbye: as if its machine were gone."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        if self._link is not None:
            self._link.close()

    def pause(self) -> None:
        """It answers nothing until `resume`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def failure(self, what: str) -> StartError:
        """With the child's last words: what it reported, or the end of its log."""
        who = f"{self.name} {what}."
        refusal = self._refusal()
        if refusal:
            return StartError(f"{who} {refusal}", exit_code=EXIT_FAILED)
        lines = self.log.read_text(errors="replace").splitlines()[-_LAST_LINES:]
        words = "".join(f"\n  {line}" for line in lines)
        return StartError(f"{who} The end of its log {self.log}:{words}", exit_code=EXIT_FAILED)

    def _refusal(self) -> str:
        assert self._link is not None
        try:
            self._link.setblocking(False)
            return refusal_in(self._link.recv(_REFUSAL_BYTES_MAX))
        except OSError:
            # It never said anything.
            return ""


def is_ready(http_port: int) -> bool:
    """Whether /readyz says so."""
    try:
        return _get(f"{HOST}:{http_port}", "/readyz")[0] == http.client.OK
    except (OSError, http.client.HTTPException):
        # It does not listen yet.
        return False


def metrics_of(address: str) -> list[Mapping[str, Any]]:
    """The series of /metrics.json at `host:port`."""
    _, body = _get(address, "/metrics.json")
    series: list[Mapping[str, Any]] = json.loads(body)["series"]
    return series


def _get(address: str, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(address, timeout=_ANSWER_WITHIN_S)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def tethered(command: Sequence[str]) -> list[str]:
    """Return a command line that runs this one, of a program of others, which would not know a `SupervisorLink`."""
    return [sys.executable, "-m", "forebay.processes.child", *command]


def run_tethered(command: Sequence[str]) -> int:
    """Run the program until it ends. It is ended, in order and by force after a while, when the other end of standard input is gone, or
    SIGTERM or SIGINT comes. Return its exit code. Raise `OSError` if it cannot be started.
    """
    is_over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: is_over.set())
    program = subprocess.Popen(command, stdin=subprocess.DEVNULL)  # noqa: S603 - what our own command line names

    def wait() -> None:
        program.wait()
        is_over.set()

    waiting = threading.Thread(target=wait, name="program", daemon=True)
    waiting.start()
    SupervisorLink().watch(is_over.set)
    is_over.wait()
    program.terminate()
    waiting.join(TETHERED_ENDS_WITHIN_S)
    program.kill()
    waiting.join()
    return program.returncode if program.returncode >= 0 else _BY_SIGNAL - program.returncode


if __name__ == "__main__":
    sys.exit(run_tethered(sys.argv[1:]))
