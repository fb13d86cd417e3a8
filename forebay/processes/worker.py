"""Workers as the supervisor sees them: each a process, and the parent that forks them (forking.py).

The words of a worker are cut into lines that say whose they are. A worker that died waits before it is started again: twice as long each
time, up to a limit.
"""

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from process.settings.errors import EXIT_FAILED
from process.settings.model import NOTHING_ACCEPTED, Accepted

LINE_BYTES_MAX: Final = 1024 * 1024
"""A longer line is passed on in parts."""
LAST_WORDS_WITHIN_S: Final = 2.0
"""What a process wrote is read for at most this long after its end: a child of its own may hold the pipe."""
_READ_BYTES: Final = 64 * 1024
SIGNALLED: Final = 128
RESTART_FIRST_S: Final = 0.5
RESTART_MAX_S: Final = 30.0
FORGOTTEN_AFTER_S: Final = 60.0
"""One that ran this long before it died is as good as new."""
COMMAND: Final = (sys.executable, "-m", "forebay.processes.forking")
STARTED_WITHIN_S: Final = 60.0
"""To import all that a broker needs, and to fork."""


class LineCutter:
    """Bytes as they come → whole lines without their ends."""

    def __init__(self, *, bytes_max: int = LINE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._begun = bytearray()

    def feed(self, data: bytes) -> list[str]:
        self._begun += data
        *whole, rest = bytes(self._begun).split(b"\n")
        while len(rest) > self._bytes_max:
            whole.append(rest[: self._bytes_max])
            rest = rest[self._bytes_max :]
        self._begun[:] = rest
        return [line.decode(errors="replace") for line in whole]

    def rest(self) -> list[str]:
        """The last line, if it was never ended."""
        rest = bytes(self._begun)
        self._begun.clear()
        return [rest.decode(errors="replace")] if rest else []


def attribute_line(line: str, *, log_format: str, **whose: int | str) -> str:
    """The line as the supervisor prints it. `whose`: the kind of process, and its number or name."""
    ((kind, name),) = whose.items()
    if log_format != "json":
        return f"{kind} {name}  {line}"
    if line.startswith('{"') and _is_json(line):
        return f'{{"{kind}": {json.dumps(name)}, {line[1:]}'
    return json.dumps({kind: name, "event": f"{kind}_said", "line": line}, ensure_ascii=False)


def _is_json(line: str) -> bool:
    """It may be the end of a line, the beginning of which was lost with its worker."""
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


@dataclass(frozen=True, slots=True)
class Ended:
    """`exit_code` is 128 + the signal for one that was killed; `refusal` is what the worker said of why it could not start, or empty."""

    exit_code: int
    refusal: str
    was_ready: bool

    @property
    def manner(self) -> str:
        if self.exit_code > SIGNALLED:
            with contextlib.suppress(ValueError):
                return f"killed by {signal.Signals(self.exit_code - SIGNALLED).name}"
        return f"exit code {self.exit_code}"


class WorkerProcess:
    def __init__(
        self,
        pid: int,
        link: socket.socket,
        output: asyncio.StreamReader,
        *,
        wait: Callable[[], Awaitable[int | None]],
        send_signal: Callable[[int], None],
    ) -> None:
        """`wait` ends with the process: its exit code, -signal, or None if nobody knows; then the end of the link is its end."""
        self.pid = pid
        self._link = link
        self._output = output
        self._wait = wait
        self._send_signal = send_signal
        self._refusal = ""
        self._is_ready = False

    @classmethod
    async def start(cls, command: Sequence[str], *, environment: Mapping[str, str]) -> Self:
        """Raise OSError if there can be no such process."""
        ours, theirs = socket.socketpair()
        try:
            # A session of its own: a terminal's Ctrl-C reaches the supervisor alone, which then stops its workers in order.
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=theirs.fileno(),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        assert process.stdout is not None
        return cls(process.pid, ours, process.stdout, wait=process.wait, send_signal=process.send_signal)

    def send_signal(self, number: int) -> None:
        """Harmless when it has ended."""
        with contextlib.suppress(ProcessLookupError):
            self._send_signal(number)

    async def run(self, *, said: Callable[[str], None], ready: Callable[[Mapping[str, Any]], None]) -> Ended:
        """Until it ends; `said` gets each line it writes. Cancelled, it closes the link, which ends a worker that watches it."""
        reader, writer = await asyncio.open_connection(sock=self._link)
        try:
            async with asyncio.TaskGroup() as tasks:
                listening = [tasks.create_task(self._pass_on(said)), tasks.create_task(self._listen(reader, ready))]
                code = await self._wait()
                if code is None:
                    await asyncio.wait(listening[1:])
                    code = EXIT_FAILED
                await asyncio.wait(listening, timeout=LAST_WORDS_WITHIN_S)
                for task in listening:
                    task.cancel()
        finally:
            writer.close()
        return Ended(code if code >= 0 else SIGNALLED - code, self._refusal, self._is_ready)

    async def _pass_on(self, said: Callable[[str], None]) -> None:
        cutter = LineCutter()
        while data := await self._output.read(_READ_BYTES):
            for line in cutter.feed(data):
                said(line)
        for line in cutter.rest():
            said(line)

    async def _listen(self, reader: asyncio.StreamReader, ready: Callable[[Mapping[str, Any]], None]) -> None:
        # A process that is killed may reset the socket.
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                message = json.loads(line)
                if "ready" in message:
                    self._is_ready = True
                    ready(message["ready"])
                self._refusal = message.get("refused", self._refusal)


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


class RestartBackoff:
    def __init__(
        self, *, first_s: float = RESTART_FIRST_S, max_s: float = RESTART_MAX_S, forgotten_after_s: float = FORGOTTEN_AFTER_S
    ) -> None:
        assert 0 < first_s <= max_s
        self._first_s = first_s
        self._max_s = max_s
        self._forgotten_after_s = forgotten_after_s
        self._next_s = first_s

    def after(self, ran_s: float) -> float:
        """Seconds to wait, after a life of `ran_s`."""
        if ran_s >= self._forgotten_after_s:
            self._next_s = self._first_s
        pause_s = self._next_s
        self._next_s = min(2 * pause_s, self._max_s)
        return pause_s
