"""`forebay serve`: one broker and its HTTP side, until a signal stops it. Logs one line per stage, going up and coming down.

With a link it runs under a supervisor: it tells it when it is ready or why it cannot start, and stops in order when it is gone.
"""

import asyncio
import contextlib
import gc
import os
import signal
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import structlog

from broker.protocol.apis import api_of_file
from forebay.processes.companion import Companion, companion_of
from forebay.processes.link import SupervisorLink
from process import descriptors, malloc, preflight
from process.cost.meter import CostMeter
from process.descriptors import peers_of_http
from process.event_loop import loop_factory
from process.exit_codes import explain, flushed, say_cannot_serve
from process.http.health import Readiness
from process.loop_watch import watching
from process.settings.errors import EXIT_FAILED
from process.settings.loading import Loaded
from process.settings.model import Settings
from process.settings.notation import HttpAddress, Listener
from process.settings.reference import SETTINGS
from process.stopping import EXIT_INTERRUPTED, Deadline, ExitNow, StopRequest
from runtime import logs
from runtime.blocking import ThreadBlocking
from runtime.clock import Clock, SystemClock
from runtime.logs import ProcessLog
from runtime.supervision import Nursery
from runtime.telemetry import Telemetry
from runtime.version import forebay_version
from storage.catalog.brokers import Role

if TYPE_CHECKING:
    from broker.assembly import Announce
    from broker.http.parts import HttpParts


GC_THRESHOLDS: Final = (25_000, 1, 1_000)
"""The young are 25,000 objects, the next generation up to 75,000, and to look for cycles among these holds the event loop for up to 50 ms
of CPU; with 50,000 and up to 200,000 it held it for up to 120 ms. All there is is looked through as seldom as with 50,000, 20 and 50.
Producing to 500 partitions pays 2 % of its CPU for it (bench case produce-500-in-one)."""
TRIMMED_BELOW_BYTES: Final = 32 * 2**20
"""As much before the bound of a broker's memory is reached, freed memory is given back to the system."""

_log = structlog.get_logger(__name__)


class ServedBroker(Protocol):
    """What `broker.assembly.open_broker` yields: a broker that listens."""

    @property
    def broker_id(self) -> int: ...
    @property
    def cluster_id(self) -> str: ...
    @property
    def listeners(self) -> Sequence[Listener]: ...
    @property
    def readiness(self) -> Readiness: ...
    @property
    def telemetry(self) -> Telemetry: ...
    @property
    def http(self) -> "HttpParts | None":
        """None: its log is not served by HTTP."""
        ...

    @property
    def cost(self) -> CostMeter: ...
    @property
    def roles(self) -> Collection[Role]: ...

    async def drain(self, *, drain_s: float) -> None: ...

    async def aclose(self) -> None: ...


class OpenBroker(Protocol):
    def __call__(self, settings: Settings, *, announce: "Announce") -> AbstractAsyncContextManager[ServedBroker]: ...


class Stages:
    """Logs a line per stage, with the seconds since the one before."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_s = clock.monotonic_s()

    def announce(self, stage: str, facts: dict[str, Any]) -> None:
        now_s = self._clock.monotonic_s()
        _log.info(stage, **facts, seconds=round(now_s - self._last_s, 3))
        self._last_s = now_s


def serve(loaded: Loaded, *, open_broker: OpenBroker, link: SupervisorLink | None = None, exit_now: ExitNow = os._exit) -> int:
    """Until SIGTERM or SIGINT. The exit code: 0 after a drain, 130 when interrupted before ready, else why it ended."""
    log = logs.configure(format=loaded.settings.log.format, level=loaded.settings.log.level)
    logs.log_uncaught()
    exit_now = flushed(exit_now, log)
    stages = Stages(SystemClock())
    given = {key: SETTINGS[key].show(loaded.settings) for key in SETTINGS if key in loaded.given}
    stages.announce("config", {"version": forebay_version(), "malloc_tuned": malloc.tune(), **given})
    # A supervisor has said it for all its workers.
    for line in loaded.advice if link is None else ():
        _log.warning("advice", message=line)
    deadline, orphaned = Deadline(lambda: _give_up(exit_now)), Deadline(lambda: _give_up(exit_now))
    if link is not None:
        link.watch(lambda: _stop_orphaned(orphaned, loaded.settings.shutdown.deadline.total_seconds()))
    try:
        preflight.check(loaded.settings)
        settings = descriptors.fit_connections(loaded.settings)
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            # A supervisor has one for all its workers.
            companion = companion_of(loaded, log, clock=SystemClock()) if link is None else None
            stopped = _until_stopped(settings, open_broker, stages, deadline, link, exit_now, log, companion)
            return runner.run(stopped)
    except Exception as error:  # noqa: BLE001 - the last line of defence of a process says why it ends
        explanation = explain(error)
        if explanation is None:
            _log.exception("failed")
            return EXIT_FAILED
        if link is not None:
            link.refused(explanation.message)
        else:
            say_cannot_serve(log, explanation.message, exit_code=explanation.exit_code)
        return explanation.exit_code
    finally:
        deadline.cancel()
        orphaned.cancel()


async def _until_stopped(
    settings: Settings,
    open_broker: OpenBroker,
    stages: Stages,
    deadline: Deadline,
    link: SupervisorLink | None,
    exit_now: ExitNow,
    log: ProcessLog,
    companion: Companion | None,
) -> int:
    stop = StopRequest(exit_now=exit_now)
    stop.install()
    try:
        async with (
            open_broker(settings, announce=stages.announce) as broker,
            http_side(settings, broker, announce=stages.announce),
            _trimming(settings),
            Nursery() as beside,
            contextlib.AsyncExitStack() as watched,
        ):
            log.count_with(broker.telemetry)
            # What lives now lives until the end: the collector need not look at it again.
            gc.collect()
            gc.freeze()
            # A flush makes tens of thousands of objects that all live until its commit: looking for cycles among them more often takes an
            # eighth of the CPU of producing to 500 partitions, and finds none.
            gc.set_threshold(*GC_THRESHOLDS)
            stop.started()
            watched.enter_context(watching(api_of_file=api_of_file, telemetry=broker.telemetry, clock=SystemClock()))
            facts = {"broker_id": broker.broker_id, "cluster_id": broker.cluster_id}
            stages.announce("ready", facts)
            if link is not None:
                link.ready(facts)
            if companion is not None:
                beside.spawn(companion.run(), name="compactor")
            await stop.wait()
            deadline.start(settings.shutdown.deadline.total_seconds())
            stages.announce("stopping", {"signal": stop.signal_name})
            broker.readiness.note_draining()
            ending = beside.spawn(companion.stop(), name="stop-compactor") if companion is not None else None
            await broker.drain(drain_s=settings.shutdown.drain.total_seconds())
            stages.announce("drained", {})
            await broker.aclose()
            stages.announce("broker closed", {})
            if ending is not None:
                await asyncio.wait({ending})
    except asyncio.CancelledError:
        if not stop.is_asked:
            raise
        _log.warning("interrupted_while_starting", signal=stop.signal_name)
        return EXIT_INTERRUPTED
    stages.announce("stopped", {})
    return 0


@contextlib.asynccontextmanager
async def http_side(settings: Settings, broker: ServedBroker, *, announce: "Announce") -> AsyncIterator[HttpAddress]:
    """Health, metrics and the HTTP API of a broker; the address that was bound."""
    async with contextlib.AsyncExitStack() as closing:
        blocking = ThreadBlocking(threads=1, name="metrics")
        closing.callback(blocking.close)
        # Beside the loop, which serves Kafka's clients already: the HTTP server is a third of all that a start imports.
        http, log_api = await blocking.run(_imported_http)
        packing = ThreadBlocking(threads=1, name="http")
        closing.callback(packing.close)
        parts, is_ready = broker.http, lambda: broker.readiness.sum_up().is_ready
        server = http.HttpServer(
            http.ProcessFacts(
                "/api/v1/broker", forebay_version(), partial(facts_of, broker), labels=settings.metrics.labels, cost=broker.cost.facts
            ),
            readiness=broker.readiness,
            telemetry=broker.telemetry,
            blocking=blocking,
            clock=SystemClock(),
            routes=() if parts is None else log_api.routes_of(parts, settings, blocking=packing, is_ready=is_ready),
            connections_max=settings.http.max_connections + peers_of_http(settings),
        )
        closing.push_async_callback(server.stop)
        address = await server.start(settings.http.listen)
        announce("http listening", {"address": str(address)})
        yield address


def facts_of(broker: ServedBroker) -> dict[str, Any]:
    """What `/api/v1/broker` tells. The listeners are those that were bound."""
    listeners = [{"name": name, "host": host, "port": port} for name, host, port in broker.listeners]
    roles = [role.value for role in Role if role in broker.roles]
    return {"broker_id": broker.broker_id, "cluster_id": broker.cluster_id, "roles": roles, "listeners": listeners}


def _imported_http() -> tuple[Any, Any]:
    import broker.http.routes
    import process.http.server

    return process.http.server, broker.http.routes


@contextlib.asynccontextmanager
async def _trimming(settings: Settings) -> AsyncIterator[None]:
    blocking = ThreadBlocking(threads=1, name="malloc")
    bytes_max = preflight.memory_bytes_max(settings, connections=0) - TRIMMED_BELOW_BYTES
    try:
        async with Nursery() as nursery:
            nursery.spawn(malloc.Trimming(bytes_max=bytes_max, blocking=blocking).run(), name="malloc-trim")
            yield
    finally:
        blocking.close()


def _give_up(exit_now: ExitNow) -> None:
    # What was not acknowledged is the client's to send again.
    _log.error("shutdown_deadline_passed")
    exit_now(EXIT_FAILED)


def _stop_orphaned(deadline: Deadline, deadline_s: float) -> None:
    # Called beside the event loop, which may hang: hence a second deadline, that does not wait for it.
    _log.warning("supervisor_gone")
    os.kill(os.getpid(), signal.SIGTERM)
    deadline.start(deadline_s)
