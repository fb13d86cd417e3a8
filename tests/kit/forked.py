"""Brokers that tests start: forked by a process that has imported what a broker needs (tests/kit/forking.py), for a fifth of the CPU that
a process of their own takes.

A test whose subject is the process (its memory, what it imports when, limits that a shell gives it) asks for one that is made for it. Where
the environment could make imports come out otherwise than in the process that forks, there is one, too.
"""

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Final, Protocol

ROOT: Final = Path(__file__).parents[2]
STARTED_WITHIN_S: Final = 60.0
"""To import all that a broker needs, the first time, and to fork."""
ENDS_WITHIN_S: Final = 60.0
READ_LATER: Final = ("AWS_", "FOREBAY_", "KAFKA_", "PYTEST_CURRENT_TEST")
"""Beginnings of variables that are read when a broker starts, if at all, and not when its modules are imported."""
_ANSWER_BYTES_MAX: Final = 64


class Process(Protocol):
    """What tests do with a process, as `subprocess.Popen` has it."""

    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> int | None: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int, /) -> None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


class Forked:
    """A process that another one forked. Signals go through its pidfd, so that they never reach one that has got its id since."""

    def __init__(self, pid: int, pidfd: int, end: int) -> None:
        """`end` is where its exit code can be read when it has ended. Both descriptors are this object's own from now on."""
        self.pid = pid
        self.returncode: int | None = None
        self._pidfd = pidfd
        self._end = end
        self._one_reads = threading.Lock()

    def poll(self) -> int | None:
        self._wait(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._wait(timeout)
        if self.returncode is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(f"broker {self.pid}", timeout)
        return self.returncode

    def send_signal(self, sig: int, /) -> None:
        """Nothing happens if it has ended."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, sig)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _wait(self, within_s: float | None) -> None:
        if self.returncode is not None:
            return
        told = select.poll()
        told.register(self._end, select.POLLIN)
        if not told.poll(None if within_s is None else within_s * 1000):
            return
        with self._one_reads:
            if self.returncode is None:
                code = os.read(self._end, _ANSWER_BYTES_MAX)
                if not code:
                    raise ChildProcessError(0, f"nobody knows how broker {self.pid} ended: its parent is gone")
                self.returncode = int(code)

    def __del__(self) -> None:
        os.close(self._pidfd)
        os.close(self._end)


class Parent:
    """The process that forks. It ends, and so does all that it has forked, when this object is closed or this process has ended."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._owner = os.getpid()
        self._one_asks = threading.Lock()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(STARTED_WITHIN_S)
        command = [sys.executable, "-m", "tests.kit.forking"]
        with theirs:
            self._process = subprocess.Popen(command, stdin=theirs, stdout=subprocess.DEVNULL, env=environ, cwd=ROOT)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_usable(self) -> bool:
        """By this process: not by one that was forked from the one that made it."""
        return self._owner == os.getpid() and self._control.fileno() >= 0

    def fork(self, arguments: Sequence[str], *, environ: Mapping[str, str], cwd: Path, stdout: int, stderr: int) -> Forked:
        """`python -m forebay` with these arguments, the whole of its environment, and copies of the descriptors."""
        request = json.dumps({"arguments": list(arguments), "environ": dict(environ), "cwd": str(cwd.resolve())})
        end, told = os.pipe()
        try:
            with self._one_asks:
                socket.send_fds(self._control, [request.encode()], [stdout, stderr, told])
                answer, descriptors, _, _ = socket.recv_fds(self._control, _ANSWER_BYTES_MAX, 1)
            if not answer:
                raise ChildProcessError(0, f"who forks brokers has ended: exit code {self._process.wait(ENDS_WITHIN_S)}")
        except BaseException:
            os.close(end)
            self._control.close()  # who asks next would be given this answer
            raise
        finally:
            os.close(told)
        return Forked(int(answer), descriptors[0], end)

    def close(self) -> None:
        self._control.close()
        if self._owner == os.getpid():
            self._process.wait(ENDS_WITHIN_S)


_parents: dict[frozenset[tuple[str, str]], Parent] = {}
"""By the environment that they were started with, as far as imports may read it."""
_one_starts = threading.Lock()


def start(
    arguments: Sequence[str], *, environ: Mapping[str, str], cwd: Path, stdout: IO[bytes], stderr: IO[bytes], afresh: bool = False
) -> Process:
    """`python -m forebay` with these arguments and the whole of its environment. `afresh`: in a process that is made for it."""
    read = _read_by_imports(environ)
    if afresh or read != _read_by_imports(os.environ) or sys.platform != "linux":
        command = [sys.executable, "-m", "forebay", *arguments]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=environ, cwd=cwd)
    with _one_starts:
        parent = _parents.get(read)
        if parent is None or not parent.is_usable:
            parent = _parents[read] = Parent(environ)
            atexit.register(parent.close)
    return parent.fork(arguments, environ=environ, cwd=cwd, stdout=stdout.fileno(), stderr=stderr.fileno())


def run(arguments: Sequence[str], *, environ: Mapping[str, str], cwd: Path, timeout_s: float) -> "subprocess.CompletedProcess[str]":
    """`forebay serve` that ends by itself, and what it wrote. Raise TimeoutExpired, and kill it, if it does not end."""
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        process = start(arguments, environ=environ, cwd=cwd, stdout=stdout, stderr=stderr)
        try:
            code = process.wait(timeout_s)
        except BaseException:
            process.kill()
            process.wait(ENDS_WITHIN_S)
            raise
        stdout.seek(0)
        stderr.seek(0)
        return subprocess.CompletedProcess(["forebay", *arguments], code, stdout.read().decode(), stderr.read().decode())


def _read_by_imports(environ: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    return frozenset((name, value) for name, value in environ.items() if not name.startswith(READ_LATER))
