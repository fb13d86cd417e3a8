"""The HTTP side of a process: health for orchestrators, metrics for Prometheus, facts for people. It runs on the process's own loop.

GET /healthz            the process lives: the loop ran lately; touches no store
GET /readyz             send clients here, or not (503) and why
GET /metrics            Prometheus' text format; /metrics/prometheus is the same
GET /metrics.json       the same series as JSON
GET /api/v1/cost        requests to the object store and what they cost
GET /api/v1/broker      id, cluster, listeners, version, uptime; /api/v1/compactor of a compactor

A broker serves its log beside these (broker/http). What comes by the port and is no HTTP is counted, and said once in ten seconds: aiohttp
logs a traceback for each, so that anybody who reaches the port could fill the log. `LoopLag` measures how late the loop runs.
"""

import asyncio
import logging
import platform
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal, Protocol

import msgspec
import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from prometheus_client import GCCollector, PlatformCollector, ProcessCollector

from process.accepting import HTTP_CONNECTIONS_MAX, Acceptor, bind
from process.http.health import Health
from process.http.scrape import JSON, TEXT, MetricsPage, render_json, render_text
from process.settings.notation import HttpAddress
from process.settings.ports import cannot_listen
from runtime.blocking import Blocking
from runtime.clock import Clock
from runtime.logs import Rarely
from runtime.supervision import Nursery
from runtime.telemetry import Metric, Telemetry, run_token

HttpHandler = Callable[[web.Request], Awaitable[web.StreamResponse]]

UNREADABLE = Metric("forebay_http_unreadable_total", "Requests of the HTTP port that were no HTTP; each was answered with 400, or closed")
_SERVER_LOG = "aiohttp.server"
PERIOD_S: Final = 0.25
LOOP_LAG: Final = Metric("forebay_event_loop_lag_seconds", "How late the event loop ran a call-back, asked four times a second")
BUILD_INFO: Final = Metric(
    "forebay_build_info",
    "Always 1; the labels say what runs: kind is broker or compactor, run a random token of the process",
    ("version", "python", "kind", "broker_id", "cluster_id", "run"),
    aggregation="max",
)
LABELS_INFO: Final = Metric("forebay_labels_info", "Always 1; with the labels of metrics.labels, if there are any", aggregation="max")
READY: Final = Metric("forebay_ready", "1 while /readyz answers 200", aggregation="sum")
BEAT_AGE_MAX_S: Final = 5.0
FIRST_REQUEST_WITHIN_S: Final = 10.0
KEPT_ALIVE_S: Final = 75.0
LOOK_EVERY_S: Final = 1.0
PATH_CHARS_SAID: Final = 200
_STOP_WITHIN_S: Final = 1.0

_log = structlog.get_logger("http")


class UnreadableRequests(logging.Filter):
    """Made on the loop. `stop` says what is left to say."""

    def __init__(self, telemetry: Telemetry) -> None:
        super().__init__()
        self._count = telemetry.counter(UNREADABLE)
        self._rarely = Rarely(self._say, later=asyncio.get_running_loop().call_later)
        self._client_host = self._cause = ""

    def logger(self) -> logging.Logger:
        """For aiohttp. What is not unreadable goes where aiohttp's own would go."""
        logger = logging.Logger(_SERVER_LOG)
        logger.parent = logging.getLogger(_SERVER_LOG)
        logger.addFilter(self)
        return logger

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, ConnectionError):
            return False  # who asked has left before the answer: nobody is to know
        if not isinstance(error, HttpProcessingError):
            return True
        self._client_host = str(record.args[0]) if isinstance(record.args, tuple) and record.args else ""
        self._cause = f"{type(error).__name__}: {' '.join(error.message.split())}"
        self._count.inc()
        self._rarely.happened()
        return False

    def stop(self) -> None:
        self._rarely.stop()

    def _say(self, count: int) -> None:
        _log.warning("http_unreadable", count=count, client_host=self._client_host, cause=self._cause)


class LoopLag:
    """A call-back that meets itself every quarter of a second. Between `start` and `stop`."""

    def __init__(self, *, telemetry: Telemetry, clock: Clock) -> None:
        self._lag = telemetry.histogram(LOOP_LAG)
        self._clock = clock
        self._beat_s = clock.monotonic_s()
        self._due: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._beat_s = self._clock.monotonic_s()
        self._due = asyncio.get_running_loop().call_later(PERIOD_S, self._beat)

    def stop(self) -> None:
        if self._due is not None:
            self._due.cancel()

    def beat_age_s(self) -> float:
        """Seconds since the loop last ran the call-back."""
        return self._clock.monotonic_s() - self._beat_s

    def _beat(self) -> None:
        self._lag.observe(max(0.0, self.beat_age_s() - PERIOD_S))
        self.start()


class HasHealth(Protocol):
    def sum_up(self) -> Health: ...


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """What `GET path` tells, and `forebay_build_info` of it. `setting` is the one that names the address; `labels` are the operator's."""

    path: str
    version: str
    facts: Callable[[], Mapping[str, object]]
    setting: str = "http.listen"
    kind: Literal["broker", "compactor"] = "broker"
    labels: Sequence[tuple[str, str]] = ()
    cost: Callable[[], Mapping[str, object]] = dict
    """What `GET /api/v1/cost` tells."""

    def build_info(self) -> tuple[str, ...]:
        """The labels of `BUILD_INFO`, as things are now: a broker that is registered again may have another id."""
        facts = self.facts()
        known = [str(facts.get(name, "")) for name in ("broker_id", "cluster_id")]
        return (self.version, platform.python_version(), self.kind, *known, run_token())


class HttpServer:
    """Between `start` and `stop`; stop it also if it did not start. `blocking` renders metrics and stays the caller's."""

    def __init__(
        self,
        about: ProcessFacts,
        *,
        readiness: HasHealth,
        telemetry: Telemetry,
        blocking: Blocking,
        clock: Clock,
        routes: Sequence[web.RouteDef] = (),
        connections_max: int = HTTP_CONNECTIONS_MAX,
    ) -> None:
        """`routes` are served beside those that every process has."""
        self._about = about
        self._routes = routes
        self._connections_max = connections_max
        self._silent: dict[web.RequestHandler, float] = {}
        self._busy: set[web.RequestHandler] = set()
        self._readiness = readiness
        self._clock = clock
        self._began_s, self._began_ms = clock.monotonic_s(), clock.now_ms()
        self._lag = LoopLag(telemetry=telemetry, clock=clock)
        self._text = MetricsPage(render_text, telemetry.registry, blocking=blocking, clock=clock)
        self._json = MetricsPage(render_json, telemetry.registry, blocking=blocking, clock=clock)
        self._telemetry = telemetry
        self._nursery = Nursery()
        self._acceptor: Acceptor[asyncio.BaseProtocol] | None = None
        self._unreadable = UnreadableRequests(telemetry)
        self._runner = web.AppRunner(
            self._application(),
            handle_signals=False,
            access_log=None,
            logger=self._unreadable.logger(),
            shutdown_timeout=_STOP_WITHIN_S,
            keepalive_timeout=KEPT_ALIVE_S,
            auto_decompress=False,
        )
        telemetry.table(BUILD_INFO, lambda: [(about.build_info(), 1.0)])
        if about.labels:
            names, values = zip(*about.labels, strict=True)
            telemetry.table(LABELS_INFO, lambda: [(values, 1.0)], labels=names)
        telemetry.gauge(READY).set_function(lambda: float(readiness.sum_up().is_ready))
        ProcessCollector(registry=telemetry.registry)
        PlatformCollector(registry=telemetry.registry)
        GCCollector(registry=telemetry.registry)

    async def start(self, address: HttpAddress) -> HttpAddress:
        """Listen; the address that was bound. Raise `StartError` if it cannot be had."""
        try:
            bound = bind(address.host, address.port)
        except OSError as error:
            fix = f"--set {self._about.setting}={address._replace(port=address.port + 1)}"
            raise cannot_listen(error, host=address.host, port=address.port, fix=fix) from error
        port = bound.getsockname()[1]
        await self._runner.setup()
        server = self._runner.server
        assert server is not None, "set up"
        await self._nursery.__aenter__()
        acceptor = self._acceptor = Acceptor(
            "HTTP",
            bound,
            make=lambda _: self._make(server),
            has_room=lambda: len(_open(server)) + len(acceptor.arriving) < self._connections_max,
            make_room=lambda _: _close_oldest(_open(server), self._busy, acceptor.note_refused),
            fix=f"find the client that opens more than {self._connections_max} connections to {self._about.setting}",
            nursery=self._nursery,
            telemetry=self._telemetry,
        )
        acceptor.start()
        self._lag.start()
        self._nursery.spawn(self._close_silent(), name="close-silent-http")
        return address._replace(port=port)

    def _make(self, server: web.Server) -> web.RequestHandler:
        handler = server()
        self._silent[handler] = self._clock.monotonic_s()
        return handler

    async def _close_silent(self) -> None:
        """Close connections whose first request does not come: aiohttp waits for it without end."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            now_s = self._clock.monotonic_s()
            for handler in [one for one, since_s in self._silent.items() if now_s - since_s > FIRST_REQUEST_WITHIN_S]:
                del self._silent[handler]
                handler.force_close()

    @web.middleware
    async def _note_spoken(self, request: web.Request, handler: HttpHandler) -> web.StreamResponse:
        self._silent.pop(request.protocol, None)
        self._busy.add(request.protocol)
        try:
            return await handler(request)
        finally:
            self._busy.discard(request.protocol)

    async def stop(self) -> None:
        """Close the listener, answer what is under way for at most a second."""
        self._lag.stop()
        if self._acceptor is not None:
            self._acceptor.stop()
            await self._nursery.__aexit__(None, None, None)
        await self._runner.cleanup()
        self._unreadable.stop()

    def _application(self) -> web.Application:
        application = web.Application(middlewares=[self._note_spoken, _errors_as_json])
        application.add_routes(self._routes)
        application.add_routes(
            [
                web.get("/healthz", self._healthz),
                web.get("/readyz", self._readyz),
                web.get("/metrics", self._metrics),
                web.get("/metrics/prometheus", self._metrics),
                web.get("/metrics.json", self._metrics_json),
                web.get(self._about.path, self._facts),
                web.get("/api/v1/cost", self._cost),
            ]
        )
        return application

    async def _healthz(self, _: web.Request) -> web.Response:
        beat_age_s = self._lag.beat_age_s()
        if beat_age_s < BEAT_AGE_MAX_S:
            return _json(200, {"status": "alive"})
        return _json(503, {"status": "stalled", "error": f"the event loop stood still for {beat_age_s:.1f} s"})

    async def _readyz(self, _: web.Request) -> web.Response:
        health = self._readiness.sum_up()
        checks = {name: {"ok": check.ok, "error": check.error, "since": _stamp(check.since_ms)} for name, check in health.checks.items()}
        roles = {name: told for name, told in self._about.facts().items() if name == "roles"}
        return _json(200 if health.is_ready else 503, {"status": health.status, **roles, "checks": checks})

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=await self._text.body(), headers={"Content-Type": TEXT})

    async def _metrics_json(self, _: web.Request) -> web.Response:
        return web.Response(body=await self._json.body(), headers={"Content-Type": JSON})

    async def _cost(self, _: web.Request) -> web.Response:
        return _json(200, self._about.cost())

    async def _facts(self, _: web.Request) -> web.Response:
        uptime_s = round(self._clock.monotonic_s() - self._began_s, 3)
        facts = {"version": self._about.version, "started_at": _stamp(self._began_ms), "uptime_s": uptime_s}
        return _json(200, dict(self._about.facts()) | facts)


@web.middleware
async def _errors_as_json(request: web.Request, handler: HttpHandler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPNotFound:
        return _json(404, {"error_type": "NotFound", "error": f"no such path: {request.path[:PATH_CHARS_SAID]}"})
    except web.HTTPMethodNotAllowed as error:
        return _json(
            405,
            {"error_type": "MethodNotAllowed", "error": f"{request.method} is not allowed here"},
            allow=", ".join(sorted(error.allowed_methods)),
        )


def _open(server: web.Server) -> list[web.RequestHandler]:
    """Oldest first, without those that are being closed."""
    return [one for one in server.connections if one.transport is not None]


def _close_oldest(open_ones: list[web.RequestHandler], busy: set[web.RequestHandler], note: Callable[[], None]) -> bool:
    """Close an idle one of the address with the most connections. aiohttp waits without end for the first request of a connection: silent
    ones would fill the bound and keep probes out for good.
    """
    found = [one for one in open_ones if one not in busy]
    if not found:
        return False
    hosts = [_host_of(one) for one in found]
    busiest = max(hosts, key=hosts.count)
    found[hosts.index(busiest)].force_close()
    note()
    return True


def _host_of(handler: web.RequestHandler) -> str:
    peer = handler.transport.get_extra_info("peername") if handler.transport is not None else None
    return str(peer[0]) if peer else ""


def _json(status: int, body: object, *, allow: str = "") -> web.Response:
    headers = {"Content-Type": JSON} | ({"Allow": allow} if allow else {})
    return web.Response(status=status, body=msgspec.json.encode(body) + b"\n", headers=headers)


def _stamp(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
