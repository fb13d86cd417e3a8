"""A server process that a test may kill, pause and start again. It never outlives the process that started it.

`Server` is what a test sees; how the server runs (`Runs`) is a process here and a container in tests/kit/containers.py.
"""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from runtime.clock import SystemClock

READY_WITHIN_S: Final = 30.0
STOP_WITHIN_S: Final = 10.0
_ASK_EVERY_S: Final = 0.02
_LAST_LINES: Final = 20

_clock = SystemClock()

_WATCH: Final = 'read told || kill -s KILL -- "-$1" 2>/dev/null'
"""Reads from a pipe whose other end only this process holds: a line when the server is over, end of file when this process is."""


class ServerError(Exception):
    """A server did not become ready, or could not be reached by a signal. `str()` says why, with the end of its log."""


class Runs(Protocol):
    """Ways to treat a running server. All calls block; each ends within `READY_WITHIN_S` or raises."""

    @property
    def pid(self) -> int: ...
    def kill9(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...


class Server:
    """A server that was ready. All methods block until what they say has happened; `start` raises `ServerError`."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs

    @property
    def pid(self) -> int:
        """The process id of the last start."""
        return self._runs.pid

    def kill9(self) -> None:
        """SIGKILL: no goodbye. Data stays. Harmless when it is over."""
        self._runs.kill9()

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing answers."""
        self._runs.pause()

    def resume(self) -> None:
        """SIGCONT."""
        self._runs.resume()

    def start(self) -> None:
        """Again, on the same port and data; ready when this returns. Harmless when it runs."""
        self._runs.start()

    def stop(self) -> None:
        """In order: SIGTERM, and SIGKILL after `STOP_WITHIN_S`. Also ends a paused one. Harmless when it is over."""
        self._runs.stop()


@dataclass(slots=True)
class LocalProcess:
    """`command` in a process group of its own, what it says appended to `log`.

    `answers` is asked until it says yes: then the server is ready. It must come back within a second.
    """

    name: str
    command: Sequence[str]
    environ: Mapping[str, str]
    log: Path
    answers: Callable[[], bool]
    ready_within_s: float = READY_WITHIN_S
    _process: subprocess.Popen[bytes] | None = None
    _watch: subprocess.Popen[bytes] | None = None
    _paused: bool = field(default=False)

    @property
    def pid(self) -> int:
        assert self._process, f"{self.name} was never started"
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        if self.is_alive:
            return
        self._over()
        began_at = self.log.stat().st_size if self.log.exists() else 0
        try:
            with interrupts_deferred():
                self._process = spawn(self.command, self.environ, self.log)
                self._watch = subprocess.Popen(
                    ["/bin/sh", "-c", _WATCH, "sh", str(self._process.pid)], stdin=subprocess.PIPE, start_new_session=True
                )
            wait_ready(
                self._process,
                name=self.name,
                log=self.log,
                log_from=began_at,
                answers=self.answers,
                within_s=self.ready_within_s,
            )
        except BaseException:
            self.kill9()
            raise

    def kill9(self) -> None:
        self._signal(signal.SIGKILL)
        self._over()

    def pause(self) -> None:
        assert self.is_alive, f"{self.name} is not running"
        self._signal(signal.SIGSTOP)
        self._paused = True
        self._wait_stopped()

    def resume(self) -> None:
        self._signal(signal.SIGCONT)
        self._paused = False

    def stop(self) -> None:
        if self._paused:
            self.kill9()
            return
        self._signal(signal.SIGTERM)
        if self._process:
            try:
                self._process.wait(STOP_WITHIN_S)
            except subprocess.TimeoutExpired:
                self._signal(signal.SIGKILL)
        self._over()

    def _signal(self, number: signal.Signals) -> None:
        if self._process and self.is_alive:
            os.killpg(self._process.pid, number)

    def _wait_stopped(self) -> None:
        """Its threads stop one by one, and until the last has stopped it may still answer."""
        assert self._process is not None
        give_up_s = _clock.monotonic_s() + STOP_WITHIN_S
        while hasattr(os, "waitid") and not os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if _clock.monotonic_s() > give_up_s:
                raise ServerError(f"{self.name} (pid {self._process.pid}) did not stop within {STOP_WITHIN_S:.0f} s of SIGSTOP.")
            time.sleep(_ASK_EVERY_S)

    def _over(self) -> None:
        """Take leave of what has ended or been killed."""
        self._paused = False
        if self._process:
            self._process.wait(STOP_WITHIN_S)
        if self._watch:
            self._watch.communicate(b"over\n", timeout=STOP_WITHIN_S)
            self._watch = None


@contextlib.contextmanager
def interrupts_deferred() -> Iterator[None]:
    """SIGINT and SIGTERM that come meanwhile count at its end: an exception in the middle of `Popen` would leave a process that nobody
    knows.

    Outside the main thread there are none to defer.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {number: signal.signal(number, lambda number, _: came.append(number)) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for deferred, handler in before.items():
            signal.signal(deferred, handler or signal.SIG_DFL)
        for number in dict.fromkeys(came):
            signal.raise_signal(number)


def spawn(command: Sequence[str], environ: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """In a session of its own, so that Ctrl-C in a terminal does not reach it."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environ, start_new_session=True)


def wait_ready(
    process: subprocess.Popen[bytes],
    *,
    name: str,
    log: Path,
    log_from: int,
    answers: Callable[[], bool],
    within_s: float = READY_WITHIN_S,
) -> None:
    """Return when it answers. Raise `ServerError` when it ends before, or after `within_s`; the process is left as it is."""
    give_up_s = _clock.monotonic_s() + within_s
    while _clock.monotonic_s() < give_up_s:
        if process.poll() is not None:
            raise ServerError(f"{name} ended before it was ready: exit code {process.returncode}. {_end_of(log, log_from)}")
        if answers():
            return
        time.sleep(_ASK_EVERY_S)
    raise ServerError(f"{name} was not ready within {within_s:.0f} s. {_end_of(log, log_from)}")


def _end_of(log: Path, start: int) -> str:
    lines = log.read_bytes()[start:].decode(errors="replace").splitlines()[-_LAST_LINES:]
    return f"The end of {log}:\n" + "\n".join(lines) if lines else f"{log} is empty."
