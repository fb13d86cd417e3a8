"""Starts workers, starts them again when they die, and stops them together. It opens no store and serves nobody.

Worker 0 starts alone, so that what is wrong with all of them is said once; when it is ready the others start together.
A worker that ends before it was ever ready stops everything, with its exit code and its words. Later deaths are followed by a restart.
The first SIGTERM or SIGINT is passed on as SIGTERM, which drains; the second ends everything at once.
A supervisor that is killed takes its workers along: they see the end of their standard input and stop in order.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import structlog

from forebay.processes.workers.backoff import RestartBackoff
from forebay.processes.workers.process import SIGNALLED, Ended, WorkerProcess
from process.settings.errors import EXIT_FAILED
from process.stopping import EXIT_INTERRUPTED, ExitNow
from runtime.clock import Clock

STOP_MARGIN_S: Final = 5.0
"""Workers end by themselves at their shutdown.deadline; after this much more they are killed."""

_INTERRUPTED_STARTS: Final = (EXIT_INTERRUPTED, SIGNALLED + signal.SIGTERM)
"""Exit codes of a worker stopped while it started; very early, SIGTERM ends a process by itself."""

_log = structlog.get_logger(__name__)


class Supervisor:
    """Made and run once, on the main thread. `start`: worker number → its process, or OSError; `said` gets every line a worker writes;
    `failed`, with number, words and exit code, the one that stops all because it could not start.
    """

    def __init__(
        self,
        *,
        workers: int,
        start: Callable[[int], Awaitable[WorkerProcess]],
        deadline_s: float,
        said: Callable[[int, str], None],
        failed: Callable[[int, str, int], None],
        clock: Clock,
        make_backoff: Callable[[], RestartBackoff] = RestartBackoff,
        exit_now: ExitNow = os._exit,
    ) -> None:
        assert workers > 0
        self._workers = workers
        self._start = start
        self._deadline_s = deadline_s
        self._said = said
        self._failed = failed
        self._clock = clock
        self._make_backoff = make_backoff
        self._exit_now = exit_now
        self._running: dict[int, WorkerProcess] = {}
        self._were_ready: set[int] = set()
        self._stopping = asyncio.Event()
        self._signalled = False
        self._exit_codes: list[int] = []
        self._failure: tuple[int, Ended] | None = None

    async def run(self) -> int:
        """Until every worker has ended. The worst of their exit codes."""
        loop = asyncio.get_running_loop()
        for one in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(one, self._receive, one)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep(0, tasks), name="worker-0")
        if self._failure is not None:
            number, ended = self._failure
            words = ended.refusal or f"It ended before it was ready ({ended.manner}); its lines above say more."
            exit_code = ended.exit_code or EXIT_FAILED
            self._failed(number, words, exit_code)
            return exit_code
        code = max(self._exit_codes, default=0)
        _log.info("supervisor_stopped", exit_code=code)
        return code

    async def _keep(self, number: int, tasks: asyncio.TaskGroup) -> None:
        """One worker, life after life."""
        backoff = self._make_backoff()
        while not self._stopping.is_set():
            began_s = self._clock.monotonic_s()
            ended = await self._live(number, tasks)
            if self._stopping.is_set():
                self._exit_codes.append(self._code_when_stopping(number, ended))
                _log.info("worker_stopped", worker=number, manner=ended.manner)
                return
            if number not in self._were_ready:
                self._failure = (number, ended)
                self._stop_all()
                return
            pause_s = backoff.after(self._clock.monotonic_s() - began_s)
            last = {"cause": ended.refusal} if ended.refusal else {}
            _log.warning("worker_died", worker=number, manner=ended.manner, restart_in_s=pause_s, **last)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stopping.wait()

    async def _live(self, number: int, tasks: asyncio.TaskGroup) -> Ended:
        try:
            process = await self._start(number)
        except OSError as error:
            return Ended(EXIT_FAILED, f"no process can be started ({error.strerror}).", was_ready=False)
        self._running[number] = process
        _log.info("worker_started", worker=number, pid=process.pid)
        if self._stopping.is_set():
            process.send_signal(signal.SIGTERM)
        try:
            return await process.run(
                said=lambda line: self._said(number, line),
                ready=lambda facts: self._note_ready(number, facts, tasks),
            )
        finally:
            del self._running[number]

    def _note_ready(self, number: int, facts: Mapping[str, Any], tasks: asyncio.TaskGroup) -> None:
        _log.info("worker_ready", worker=number, **facts)
        if number in self._were_ready:
            return
        self._were_ready.add(number)
        if number == 0 and not self._stopping.is_set():
            for other in range(1, self._workers):
                tasks.create_task(self._keep(other, tasks), name=f"worker-{other}")
        if len(self._were_ready) == self._workers:
            _log.info("all_workers_ready", workers=self._workers)

    def _code_when_stopping(self, number: int, ended: Ended) -> int:
        if ended.was_ready or ended.exit_code not in _INTERRUPTED_STARTS:
            return ended.exit_code
        # One that was being started again had not begun to serve: nothing is lost by the interruption.
        return 0 if number in self._were_ready else EXIT_INTERRUPTED

    def _receive(self, number: int) -> None:
        if self._signalled:
            self._kill_all()
            self._exit_now(EXIT_INTERRUPTED)
            return
        self._signalled = True
        _log.info("supervisor_stopping", signal=signal.Signals(number).name)
        self._stop_all()

    def _stop_all(self) -> None:
        self._stopping.set()
        for process in self._running.values():
            process.send_signal(signal.SIGTERM)
        asyncio.get_running_loop().call_later(self._deadline_s + STOP_MARGIN_S, self._give_up)

    def _give_up(self) -> None:
        if self._running:
            _log.error("shutdown_deadline_passed", workers=sorted(self._running))
            self._kill_all()

    def _kill_all(self) -> None:
        for process in self._running.values():
            process.send_signal(signal.SIGKILL)
