import asyncio
import contextlib
import logging
import platform
import socket
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web
from structlog.testing import capture_logs

from process.accepting import HTTP_CONNECTIONS_MAX
from process.http.health import Readiness
from process.http.server import FIRST_REQUEST_WITHIN_S, UNREADABLE, HttpServer, ProcessFacts
from process.settings.errors import StartError
from process.settings.notation import HttpAddress
from runtime.blocking import ThreadBlocking
from runtime.telemetry import Telemetry, run_token
from storage.outcomes import StoreOutcomes
from tests.unit.process.http.manual_clock import ManualClock

LISTENERS = [{"name": "PLAINTEXT", "host": "127.0.0.1", "port": 9092}]
LABELS = (("team", "payments"), ("scenario", "nightly"))
FACTS = ProcessFacts("/api/v1/broker", "0.1.0", lambda: {"broker_id": 3, "cluster_id": "c-1", "listeners": LISTENERS}, labels=LABELS)
LOCAL = HttpAddress("127.0.0.1", 0)


class Running:
    """A server on a free port, and a client of it."""

    def __init__(
        self,
        client: aiohttp.ClientSession,
        clock: ManualClock,
        readiness: Readiness,
        outcomes: StoreOutcomes,
        server: HttpServer,
        address: HttpAddress,
        telemetry: Telemetry,
    ) -> None:
        self.server = server
        self.address = address
        self.telemetry = telemetry
        self.client = client
        self.clock = clock
        self.readiness = readiness
        self.outcomes = outcomes

    async def get(self, path: str) -> tuple[int, object]:
        async with self.client.get(path) as response:
            return response.status, await response.json()


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    clock, blocking = ManualClock(), ThreadBlocking(threads=1, name="metrics")
    telemetry = Telemetry()
    outcomes = StoreOutcomes(clock=clock, telemetry=telemetry)
    readiness = Readiness(outcomes=outcomes, clock=clock)
    server = HttpServer(FACTS, readiness=readiness, telemetry=telemetry, blocking=blocking, clock=clock)
    address = await server.start(LOCAL)
    async with aiohttp.ClientSession(f"http://{address}") as client:
        yield Running(client, clock, readiness, outcomes, server, address, telemetry)
    await server.stop()
    blocking.close()


async def test_what_is_no_http_is_one_line_of_the_log_without_a_traceback_however_often_it_comes(running: Running) -> None:
    with capture_logs() as logged:
        for _ in range(3):
            reader, writer = await asyncio.open_connection(running.address.host, running.address.port)
            writer.write(b"GET / HTTP/1.1\r\n: no name\r\n\r\n")
            assert b"400" in await reader.readline()
            writer.close()
            await writer.wait_closed()
        running.server._unreadable.stop()

    assert [(line["event"], line["count"]) for line in logged] == [("http_unreadable", 1), ("http_unreadable", 2)]
    assert logged[0]["client_host"] == "127.0.0.1"
    assert "Invalid header token" in str(logged[0]["cause"])
    assert running.telemetry.registry.get_sample_value(UNREADABLE.name) == 3


async def test_liveness_asks_the_loop_and_nothing_else(running: Running) -> None:
    alive = await running.get("/healthz")
    running.clock.advance(6.0)
    stalled = await running.get("/healthz")

    assert alive == (200, {"status": "alive"})
    assert stalled == (503, {"status": "stalled", "error": "the event loop stood still for 6.0 s"})


async def test_readiness_names_the_check_that_fails_with_cause_and_time(running: Running) -> None:
    running.readiness.note_listening()
    now_s = running.clock.monotonic_s()
    running.outcomes.writes.ok(now_s)
    running.outcomes.puts.ok(now_s)
    running.outcomes.puts.failed("no space left on device", began_s=now_s, now_s=now_s)
    since = "2023-11-14T22:13:20.000Z"

    running.clock.advance(5.0)
    degraded = await running.get("/readyz")
    running.outcomes.puts.ok(running.clock.monotonic_s())
    good = await running.get("/readyz")
    running.readiness.note_draining()
    draining = await running.get("/readyz")

    assert degraded == (
        503,
        {
            "status": "degraded",
            "checks": {
                "listeners": {"ok": True, "error": None, "since": since},
                "metadata": {"ok": True, "error": None, "since": since},
                "object_store": {"ok": False, "error": "no space left on device", "since": since},
                "draining": {"ok": True, "error": None, "since": since},
            },
        },
    )
    assert good[0] == 200
    assert draining[0] == 503


async def test_metrics_are_served_as_text_and_as_json(running: Running) -> None:
    async with running.client.get("/metrics") as response:
        content_type, text = response.headers["Content-Type"], await response.text()
    _, document = await running.get("/metrics.json")

    assert content_type.startswith("text/plain; version=0.0.4")
    identity = f'broker_id="3",cluster_id="c-1",kind="broker",python="{platform.python_version()}",run="{run_token()}",version="0.1.0"'
    assert f"\nforebay_build_info{{{identity}}} 1.0\n" in text
    assert '\nforebay_labels_info{scenario="nightly",team="payments"} 1.0\n' in text
    assert f"\nforebay_metrics_series {sum(not line.startswith('#') for line in text.splitlines())}.0\n" in text
    assert "\nforebay_ready 0.0\n" in text
    assert "\nforebay_event_loop_lag_seconds_count" in text
    assert "\nprocess_resident_memory_bytes" in text
    assert "\npython_gc_collections_total" in text
    assert isinstance(document, dict)
    assert {"name": "forebay_ready", "labels": {}, "value": 0.0} in document["series"]


async def test_facts_of_the_broker(running: Running) -> None:
    running.clock.advance(1.5)

    assert await running.get("/api/v1/broker") == (
        200,
        {
            "broker_id": 3,
            "cluster_id": "c-1",
            "version": "0.1.0",
            "listeners": [{"name": "PLAINTEXT", "host": "127.0.0.1", "port": 9092}],
            "started_at": "2023-11-14T22:13:20.000Z",
            "uptime_s": 1.5,
        },
    )


async def test_an_unknown_path_and_a_wrong_method_are_answered_as_json(running: Running) -> None:
    missing = await running.get("/nowhere")
    async with running.client.post("/readyz") as response:
        wrong = response.status, response.headers["Allow"], await response.json()

    assert missing == (404, {"error_type": "NotFound", "error": "no such path: /nowhere"})
    assert wrong == (405, "GET, HEAD", {"error_type": "MethodNotAllowed", "error": "POST is not allowed here"})


async def test_an_address_that_is_taken_is_said_so_with_the_setting_to_change() -> None:
    blocking = ThreadBlocking(threads=1, name="metrics")
    clock, telemetry = ManualClock(), Telemetry()
    readiness = Readiness(outcomes=StoreOutcomes(clock=clock, telemetry=telemetry), clock=clock)
    server = HttpServer(FACTS, readiness=readiness, telemetry=telemetry, blocking=blocking, clock=clock)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        with pytest.raises(StartError, match=rf"Port {port} on 127\.0\.0\.1 is in use .*--set http\.listen=127\.0\.0\.1:{port + 1}\."):
            await server.start(HttpAddress("127.0.0.1", port))
    await server.stop()
    blocking.close()


async def test_a_client_that_left_before_its_answer_is_no_error(running: Running) -> None:
    logger = running.server._unreadable.logger()
    gone = logging.LogRecord("aiohttp.server", logging.ERROR, "", 0, "Error handling request from %s", ("::1",), None)
    bug = logging.LogRecord("aiohttp.server", logging.ERROR, "", 0, "Error handling request from %s", ("::1",), None)
    gone.exc_info = (ConnectionResetError, ConnectionResetError("Cannot write to closing transport"), None)
    bug.exc_info = (ZeroDivisionError, ZeroDivisionError("a bug"), None)

    assert not logger.filter(gone)
    assert logger.filter(bug)


async def test_a_connection_whose_first_request_does_not_come_is_closed(running: Running) -> None:
    silent, writer = await asyncio.open_connection(running.address.host, running.address.port)
    assert (await running.get("/healthz"))[0] == 200

    running.clock.advance(FIRST_REQUEST_WITHIN_S + 1)

    async with asyncio.timeout(25):
        assert await silent.read() == b""
    writer.close()
    assert (await running.get("/readyz"))[0] == 503


async def test_a_connection_with_a_request_under_way_keeps_its_place() -> None:
    clock, blocking, telemetry = ManualClock(), ThreadBlocking(threads=1, name="metrics"), Telemetry()
    readiness = Readiness(outcomes=StoreOutcomes(clock=clock, telemetry=telemetry), clock=clock)
    let_go, entered = asyncio.Event(), asyncio.Semaphore(0)

    async def slow(_: web.Request) -> web.Response:
        entered.release()
        await let_go.wait()
        return web.Response(text="done")

    routes = [web.get("/slow", slow)]
    server = HttpServer(FACTS, readiness=readiness, telemetry=telemetry, blocking=blocking, clock=clock, routes=routes, connections_max=2)
    address = await server.start(LOCAL)
    try:
        writers = []
        for number in range(3):
            reader, writer = await asyncio.open_connection(address.host, address.port)
            writer.write(b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n")
            writers.append((reader, writer))
            if number < 2:
                await entered.acquire()
        async with asyncio.timeout(25):
            ended = [asyncio.ensure_future(reader.read(1)) for reader, _ in writers]  # noqa: TID251 - whichever ends first
            await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
            assert [one.done() for one in ended] == [False, False, True], "the third is one too many, and no other is idle"
            let_go.set()
            assert [await one for one in ended] == [b"H", b"H", b""]
        for _, writer in writers:
            writer.close()
    finally:
        await server.stop()
        blocking.close()


async def test_connections_that_say_nothing_do_not_keep_probes_out(running: Running) -> None:
    """Those of scrapers that vanished, say: aiohttp waits for their first request for ever."""
    address = ("127.0.0.1", int(str(running.client._base_url).rsplit(":", 1)[1].strip("/")))
    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as silent:
        callers = [silent.enter_context(socket.create_connection(address)) for _ in range(HTTP_CONNECTIONS_MAX + 8)]
        async with asyncio.timeout(25):
            alive = await running.get("/healthz")
            callers[0].setblocking(False)
            first = await loop.sock_recv(callers[0], 1)

    assert alive == (200, {"status": "alive"})
    assert first == b"", "the oldest made room"
