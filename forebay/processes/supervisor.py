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
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import structlog

from forebay.processes import plan
from forebay.processes.companion import companion_of
from forebay.processes.link import SupervisorLink
from forebay.processes.worker import SIGNALLED, Ended, RestartBackoff, WorkerParent, WorkerProcess, attribute_line
from process import preflight
from process.exit_codes import flushed, say_cannot_serve
from process.settings.errors import EXIT_FAILED, StartError
from process.settings.loading import Loaded
from process.settings.model import NOTHING_ACCEPTED, Accepted
from process.settings.reference import SETTINGS
from process.stopping import EXIT_INTERRUPTED, ExitNow
from runtime import logs
from runtime.clock import Clock, SystemClock
from runtime.supervision import Nursery
from runtime.version import forebay_version

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


Command = Callable[[Sequence[str]], Sequence[str]]
"""The assignments of a worker → its command line."""


def broker_command(assignments: Sequence[str], *, accepted: Accepted = NOTHING_ACCEPTED) -> list[str]:
    """`forebay serve` with these settings and no others, under whoever holds the other end of its standard input."""
    command = [sys.executable, "-m", "forebay", "serve", "--supervised", "--config", os.devnull]
    command += accepted.options()
    for assignment in assignments:
        command += ["--set", assignment]
    return command


def serve_workers(
    loaded: Loaded,
    *,
    workers: int,
    command: Command | None = None,
    environ: Mapping[str, str] = os.environ,
    accepted: Accepted = NOTHING_ACCEPTED,
    link: SupervisorLink | None = None,
) -> int:
    """Until SIGTERM or SIGINT, or until the other end of `link` is gone. The worst exit code of the workers, or why they could not start.

    Workers are forked from a parent that has imported what they need. With a `command` each is a program of its own: in tests; and where a
    process without exec is not safe, as on macOS.
    """
    settings = loaded.settings
    log = logs.configure(format=settings.log.format, level=settings.log.level)
    log_format = "console" if log.is_console else "json"
    given = {key: SETTINGS[key].show(settings) for key in SETTINGS if key in loaded.given}
    _log.info("supervisor_config", version=forebay_version(), workers=workers, pid=os.getpid(), **given)
    for line in loaded.advice:
        _log.warning("advice", message=line)
    try:
        plan.check(settings, workers=workers)
        # Buffers and caches are those of each worker, the memory is that of all.
        preflight.check_memory(settings, limit_bytes=preflight.memory_limit_bytes() // workers)
    except StartError as error:
        say_cannot_serve(log, str(error), exit_code=error.exit_code)
        return error.exit_code

    def said(worker: int, line: str) -> None:
        log.write_line(attribute_line(line, worker=worker, log_format=log_format))

    def failed(worker: int, words: str, exit_code: int) -> None:
        say_cannot_serve(log, words, exit_code=exit_code, worker=worker)

    own_command = command if command is not None or sys.platform == "linux" else partial(broker_command, accepted=accepted)

    async def supervise() -> int:
        async with WorkerParent(environment=plan.environment(environ)) as parent:

            def start(number: int) -> Awaitable[WorkerProcess]:
                assignments = plan.of_worker(loaded, number, log_format=log_format)
                if own_command is None:
                    return parent.start(assignments, accepted=accepted)
                return WorkerProcess.start(own_command(assignments), environment=plan.environment(environ))

            supervisor = Supervisor(
                workers=workers,
                start=start,
                deadline_s=settings.shutdown.deadline.total_seconds(),
                said=said,
                failed=failed,
                clock=SystemClock(),
                exit_now=flushed(os._exit, log),
            )
            companion = companion_of(loaded, log, clock=SystemClock(), environ=environ)
            if companion is None:
                return await supervisor.run()
            async with Nursery() as beside:
                beside.spawn(companion.run(), name="compactor")
                code = await supervisor.run()
                await companion.stop()
                return code

    logs.log_uncaught()
    if link is not None:
        link.watch(lambda: os.kill(os.getpid(), signal.SIGTERM))
    try:
        return asyncio.run(supervise())
    except Exception:  # noqa: BLE001 - the last line of defence of a process says why it ends
        _log.exception("failed")
        return EXIT_FAILED
