"""One worker's process, as the supervisor sees it."""

import asyncio
import contextlib
import json
import signal
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from forebay.processes.workers.lines import LineCutter
from process.settings.errors import EXIT_FAILED

LAST_WORDS_WITHIN_S: Final = 2.0
"""What a process wrote is read for at most this long after its end: a child of its own may hold the pipe."""

_READ_BYTES: Final = 64 * 1024
SIGNALLED: Final = 128


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
