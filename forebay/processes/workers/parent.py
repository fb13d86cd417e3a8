"""The parent of the workers (forking.py), as the supervisor sees it."""

import asyncio
import dataclasses
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

from forebay.processes.workers.process import WorkerProcess
from process.settings.model import NOTHING_ACCEPTED, Accepted

COMMAND: Final = (sys.executable, "-m", "forebay.processes.workers.forking")
STARTED_WITHIN_S: Final = 60.0
"""To import all that a broker needs, and to fork."""
_READ_BYTES: Final = 64 * 1024


class WorkerParent:
    """Entered and left by the supervisor; the process begins with the first worker, and again if it was killed."""

    def __init__(self, *, environment: Mapping[str, str], command: Sequence[str] = COMMAND) -> None:
        self._environment = environment
        self._command = command
        self._process: asyncio.subprocess.Process | None = None
        self._control: socket.socket | None = None
        self._received = bytearray()
        self._started: asyncio.Future[int] | None = None
        self._ended: dict[int, asyncio.Future[int | None]] = {}
        self._one_at_a_time = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._close()
        if self._process is not None:
            await self._process.wait()

    async def start(self, assignments: Sequence[str], *, accepted: Accepted = NOTHING_ACCEPTED) -> WorkerProcess:
        """A worker with these settings. Raise OSError if there can be none."""
        async with self._one_at_a_time:
            if self._control is None:
                await self._open()
            assert self._control is not None
            ours, theirs = socket.socketpair()
            output, words = os.pipe()
            self._started = asyncio.get_running_loop().create_future()
            try:
                job = {"assignments": list(assignments), "accepted": dataclasses.asdict(accepted)}
                socket.send_fds(self._control, [json.dumps(job).encode()], [theirs.fileno(), words])
                async with asyncio.timeout(STARTED_WITHIN_S):
                    pid = await self._started
            except BaseException:
                ours.close()
                os.close(output)
                raise
            finally:
                theirs.close()
                os.close(words)
        return WorkerProcess(
            pid, ours, await _reader(output), wait=lambda: self._wait(pid), send_signal=lambda number: self._signal(pid, number)
        )

    async def _wait(self, pid: int) -> int | None:
        code = await self._ended[pid]
        if code is not None:
            del self._ended[pid]
        return code

    def _signal(self, pid: int, number: int) -> None:
        ended = self._ended.get(pid)
        if ended is not None and (not ended.done() or ended.result() is None):
            os.kill(pid, number)

    async def _open(self) -> None:
        ours, theirs = socket.socketpair()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdin=theirs.fileno(), stdout=asyncio.subprocess.DEVNULL, env=self._environment, start_new_session=True
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        self._control, self._received = ours, bytearray()
        asyncio.get_running_loop().add_reader(ours.fileno(), self._receive)

    def _receive(self) -> None:
        assert self._control is not None
        try:
            data = self._control.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            self._close()
            return
        self._received += data
        *lines, rest = bytes(self._received).split(b"\n")
        self._received[:] = rest
        for line in lines:
            self._take(json.loads(line))

    def _take(self, message: dict[str, Any]) -> None:
        if "started" in message:
            pid = message["started"]
            self._ended[pid] = asyncio.get_running_loop().create_future()
            if self._started is not None and not self._started.done():
                self._started.set_result(pid)
            else:
                os.kill(pid, signal.SIGKILL)  # nobody waits for it any more
            return
        ended = self._ended.get(message["ended"])
        if ended is not None and not ended.done():
            ended.set_result(message["code"])

    def _close(self) -> None:
        """Its workers live on, and nobody will say how they end but their links."""
        if self._control is None:
            return
        asyncio.get_running_loop().remove_reader(self._control.fileno())
        self._control.close()
        self._control = None
        if self._started is not None and not self._started.done():
            self._started.set_exception(ChildProcessError(0, "the parent of the workers ended"))
        for ended in self._ended.values():
            if not ended.done():
                ended.set_result(None)


async def _reader(descriptor: int) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", 0))
    return reader
