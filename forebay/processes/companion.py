"""The compactor beside a broker, or beside the workers of a supervisor: a process of its own, started again when it dies.

It never keeps a broker from starting or serving. Its words are passed on; the broker's end is its end, however that comes.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import structlog

from forebay.processes import plan
from forebay.processes.worker import RestartBackoff, WorkerProcess, attribute_line
from process.settings.loading import Loaded
from process.settings.notation import is_memory
from runtime.clock import Clock
from runtime.logs import ProcessLog

FIRST_AFTER_S: Final = 5.0
"""A broker that lives shorter needs no upkeep, and one that starts has other things to do."""
STOP_WITHIN_S: Final = 5.0

_log = structlog.get_logger(__name__)


class Said(Protocol):
    def write_line(self, line: str) -> None: ...


def compactor_command(loaded: Loaded, *, log_format: str) -> list[str]:
    """`forebay compactor serve` with the settings of this process and no others, for as long as its standard input is open."""
    command = [sys.executable, "-m", "forebay", "compactor", "serve", "--supervised", "--config", os.devnull]
    for assignment in plan.assignments(loaded, {"log.format": log_format}):
        command += ["--set", assignment]
    return command


def companion_of(
    loaded: Loaded, log: ProcessLog, *, clock: Clock, environ: Mapping[str, str] = os.environ, first_after_s: float = FIRST_AFTER_S
) -> "Companion | None":
    """None where nobody wants one, or where it could not see the stores."""
    settings = loaded.settings
    if not settings.compactor.run:
        return None
    if is_memory(settings.storage.url) or is_memory(settings.metadata.url):
        _log.debug("no_compactor", why="what lives in the memory of this process cannot be compacted by another")
        return None
    log_format = "console" if log.is_console else "json"
    return Companion(
        compactor_command(loaded, log_format=log_format),
        plan.environment(environ),
        log,
        log_format,
        clock=clock,
        first_after_s=first_after_s,
    )


class Companion:
    """`run` as a task, then `stop`."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], log: Said, log_format: str, *, clock: Clock, first_after_s: float
    ) -> None:
        self._command = command
        self._environment = environment
        self._sink = log
        self._log_format = log_format
        self._clock = clock
        self._first_after_s = first_after_s
        self._process: WorkerProcess | None = None
        self._is_stopping = asyncio.Event()
        self._has_ended = asyncio.Event()

    async def run(self) -> None:
        """Life after life, until `stop`."""
        backoff = RestartBackoff()
        pause_s = self._first_after_s
        try:
            while not await self._is_asked_within(pause_s):
                began_s = self._clock.monotonic_s()
                manner, cause = await self._live()
                if self._is_stopping.is_set():
                    return
                pause_s = backoff.after(self._clock.monotonic_s() - began_s)
                _log.warning("compactor_died", manner=manner, restart_in_s=pause_s, **({"cause": cause} if cause else {}))
        finally:
            self._has_ended.set()

    async def stop(self) -> None:
        """End it, in order if it does so soon."""
        self._is_stopping.set()
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_WITHIN_S):
                await self._has_ended.wait()
        except TimeoutError:
            if self._process is not None:
                self._process.send_signal(signal.SIGKILL)

    async def _live(self) -> tuple[str, str]:
        """How it ended, and why if it said so."""
        try:
            process = self._process = await WorkerProcess.start(self._command, environment=self._environment)
        except OSError as error:
            return "it was not started", str(error.strerror)
        _log.info("compactor_started", pid=process.pid)
        if self._is_stopping.is_set():
            process.send_signal(signal.SIGTERM)
        try:
            ended = await process.run(said=self._pass_on, ready=lambda facts: _log.info("compactor_ready", **facts))
        finally:
            self._process = None
        return ended.manner, ended.refusal

    def _pass_on(self, line: str) -> None:
        self._sink.write_line(attribute_line(line, log_format=self._log_format, process="compactor"))

    async def _is_asked_within(self, within_s: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._is_stopping.wait()
        return self._is_stopping.is_set()
