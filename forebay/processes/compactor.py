"""`forebay compactor serve`: one compactor and its HTTP side, until a signal stops it.

With a link it runs beside a broker (`forebay serve`), or under a supervisor of brokers, and stops when that is gone.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from typing import Any, Final

import structlog

from compactor.assembly import Compactor, open_compactor
from forebay.opening import check_there
from forebay.processes.link import SupervisorLink
from forebay.processes.serve import Stages
from process import event_loop, malloc
from process.exit_codes import explain, flushed, say_cannot_serve
from process.http.server import HttpServer, ProcessFacts
from process.settings.errors import EXIT_FAILED, StartError
from process.settings.loading import Loaded
from process.settings.model import Settings
from process.settings.notation import HttpAddress
from process.settings.reference import SETTINGS
from process.stopping import EXIT_INTERRUPTED, Deadline, ExitNow, StopRequest
from runtime import logs
from runtime.blocking import ThreadBlocking
from runtime.clock import SystemClock
from runtime.supervision import Nursery
from runtime.version import forebay_version

PORTS_ABOVE_HTTP: Final = 100
NICE: Final = 10
"""Beside a broker: whatever the broker wants to do comes first."""

_log = structlog.get_logger(__name__)


def serve(loaded: Loaded, *, link: SupervisorLink | None = None, exit_now: ExitNow = os._exit) -> int:
    """Until SIGTERM or SIGINT. The exit code: 0, 130 when interrupted before ready, else why it ended."""
    log = logs.configure(format=loaded.settings.log.format, level=loaded.settings.log.level)
    logs.log_uncaught()
    exit_now = flushed(exit_now, log)
    stages = Stages(SystemClock())
    given = {key: SETTINGS[key].show(loaded.settings) for key in SETTINGS if key in loaded.given}
    stages.announce("config", {"version": forebay_version(), "malloc_tuned": malloc.tune(), **given})
    deadline = Deadline(lambda: exit_now(EXIT_FAILED))
    if link is not None:
        os.nice(NICE)
        link.watch(lambda: _stop(deadline, loaded.settings.shutdown.deadline.total_seconds()))
    try:
        check_there(loaded.settings)
        return event_loop.run(_until_stopped(loaded.settings, stages, deadline, link, exit_now))
    except Exception as error:  # noqa: BLE001 - the last line of defence of a process says why it ends
        explanation = explain(error)
        if explanation is None:
            _log.exception("failed")
            return EXIT_FAILED
        if link is not None:
            link.refused(explanation.message)
        say_cannot_serve(log, explanation.message, exit_code=explanation.exit_code)
        return explanation.exit_code
    finally:
        deadline.cancel()


async def _until_stopped(settings: Settings, stages: Stages, deadline: Deadline, link: SupervisorLink | None, exit_now: ExitNow) -> int:
    stop = StopRequest(exit_now=exit_now)
    stop.install()
    try:
        async with open_compactor(settings) as compactor, _http(settings, compactor, stages):
            stop.started()
            facts = {"compactor": compactor.upkeep.name}
            stages.announce("ready", facts)
            if link is not None:
                link.ready(facts)
            async with Nursery() as nursery:
                nursery.spawn(compactor.run(), name="upkeep")
                nursery.spawn(compactor.cost.run(), name="cost")
                await stop.wait()
                deadline.start(settings.shutdown.deadline.total_seconds())
                compactor.health.is_draining = True
                stages.announce("stopping", {"signal": stop.signal_name})
                # What it is at is finished by another, or by its next life.
    except asyncio.CancelledError:
        if not stop.is_asked:
            raise
        _log.warning("interrupted_while_starting", signal=stop.signal_name)
        return EXIT_INTERRUPTED
    stages.announce("stopped", {})
    return 0


@contextlib.asynccontextmanager
async def _http(settings: Settings, compactor: Compactor, stages: Stages) -> AsyncIterator[None]:
    async with contextlib.AsyncExitStack() as closing:
        blocking = ThreadBlocking(threads=1, name="metrics")
        closing.callback(blocking.close)
        wanted = settings.compactor.listen
        server = _server(settings, compactor, blocking)
        closing.push_async_callback(server.stop)
        try:
            address = await server.start(wanted or beside(settings.http.listen))
        except StartError as error:
            if wanted is not None:
                raise
            # Somebody else's compactor, most likely: upkeep is worth more than a port that nobody chose.
            _log.warning("compactor_port_taken", cause=str(error), fix="--set compactor.listen=HOST:PORT")
            address = await server.start(settings.http.listen._replace(port=0))
        compactor.address = str(address)
        stages.announce("http listening", {"address": compactor.address})
        yield


def beside(http: HttpAddress) -> HttpAddress:
    """The address of a compactor beside a broker's."""
    return http._replace(port=http.port + PORTS_ABOVE_HTTP if http.port else 0)


def _server(settings: Settings, compactor: Compactor, blocking: ThreadBlocking) -> HttpServer:
    def facts() -> dict[str, Any]:
        return {"compactor": compactor.upkeep.name, "cluster_id": compactor.upkeep.cluster_id, "pid": os.getpid()}

    return HttpServer(
        ProcessFacts(
            "/api/v1/compactor",
            forebay_version(),
            facts,
            setting="compactor.listen",
            kind="compactor",
            labels=settings.metrics.labels,
            cost=compactor.cost.facts,
        ),
        readiness=compactor.health,
        telemetry=compactor.telemetry,
        blocking=blocking,
        clock=SystemClock(),
    )


def _stop(deadline: Deadline, deadline_s: float) -> None:
    # Called beside the event loop, which may hang: hence a deadline that does not wait for it.
    _log.warning("supervisor_gone")
    os.kill(os.getpid(), signal.SIGTERM)
    deadline.start(deadline_s)
