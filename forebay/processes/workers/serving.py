"""Settings → a supervisor that runs workers on them."""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

import structlog

from forebay.processes.companion import companion_of
from forebay.processes.workers import plan
from forebay.processes.workers.lines import attribute_line
from forebay.processes.workers.link import SupervisorLink
from forebay.processes.workers.parent import WorkerParent
from forebay.processes.workers.process import WorkerProcess
from forebay.processes.workers.supervisor import Supervisor
from process import preflight
from process.last_words import flushed, say_cannot_serve
from process.settings.errors import EXIT_FAILED, StartError
from process.settings.keys import SETTINGS
from process.settings.loading import Loaded
from process.settings.model import NOTHING_ACCEPTED, Accepted
from runtime import logs
from runtime.clock import SystemClock
from runtime.supervision import Nursery
from runtime.version import forebay_version

_log = structlog.get_logger(__name__)

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
