import asyncio
import contextlib
import gc
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import pytest
import structlog.testing

from broker import server as server_module
from broker.admission import Admission
from broker.leaving import QUIET_S, Leaving
from broker.responses import Responses
from broker.server import CONNECTIONS, EVICTED, STALLED_S, VIOLATIONS, ConnectionLimits, Server
from broker.server import CONNECTIONS_MAX as CONNECTIONS_MAX_METRIC
from process.accepting import BACKLOG, REFUSED, bind
from runtime.supervision import Nursery
from runtime.telemetry import Telemetry
from storage.limits import MIB
from tests.unit.broker.connecting import FakeRequests, cost, framed, settle
from tests.unit.process.http.manual_clock import ManualClock

IDLE_S = 600.0
CONNECTIONS_MAX = 3
BUDGET_BYTES = 1 * MIB
LISTENER = "PLAINTEXT"
DEADLINE_S = 25.0
OK = framed(b"ok")


@dataclass
class Caller:
    """A client's end of a connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, *bodies: bytes) -> None:
        self.writer.write(framed(*bodies))

    async def receive(self, size: int) -> bytes:
        async with asyncio.timeout(DEADLINE_S):
            return await self.reader.readexactly(size)

    async def is_closed(self) -> bool:
        """Wait until the server ends the connection; what it sent before is passed over."""
        async with asyncio.timeout(DEADLINE_S):
            try:
                while await self.reader.read(1 << 16):
                    pass
            except ConnectionResetError:
                return True
        return self.reader.at_eof()

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


@dataclass
class Listening:
    server: Server
    requests: FakeRequests
    admission: Admission
    leaving: Leaving
    clock: ManualClock
    telemetry: Telemetry
    port: int
    closing: contextlib.AsyncExitStack

    async def connect(self) -> Caller:
        caller = Caller(*await asyncio.open_connection("127.0.0.1", self.port))
        self.closing.push_async_callback(caller.close)
        return caller

    @property
    def open_count(self) -> float:
        return self.telemetry.registry.get_sample_value(CONNECTIONS.name, {"listener": LISTENER}) or 0

    def count(self, name: str) -> float | None:
        return self.telemetry.registry.get_sample_value(name)

    async def has_open(self, count: int) -> bool:
        return await until(lambda: self.open_count == count)

    async def has_begun(self, count: int) -> bool:
        return await until(lambda: len(self.requests.begun) == count)


async def until(is_so: Callable[[], bool]) -> bool:
    async with asyncio.timeout(DEADLINE_S):
        while not is_so():  # noqa: ASYNC110 - the network does not tell when it has delivered
            await asyncio.sleep(0.001)
    return True


@contextlib.asynccontextmanager
async def listening() -> AsyncIterator[Listening]:
    requests, clock, telemetry = FakeRequests(), ManualClock(), Telemetry()
    soon = asyncio.get_running_loop().call_soon_threadsafe
    admission, leaving = (
        Admission(bytes_max=BUDGET_BYTES, telemetry=telemetry, soon=soon, later=asyncio.get_running_loop().call_later),
        Leaving(clock=clock),
    )
    async with Nursery() as nursery, contextlib.AsyncExitStack() as closing:
        server = Server(
            requests=requests,
            admission=admission,
            leaving=leaving,
            responses=Responses(bytes_max=BUDGET_BYTES, telemetry=telemetry, soon=soon),
            limits=ConnectionLimits(CONNECTIONS_MAX, IDLE_S),
            clock=clock,
            nursery=nursery,
            telemetry=telemetry,
        )
        bound = closing.enter_context(bind("127.0.0.1", 0))
        served = Listening(server, requests, admission, leaving, clock, telemetry, bound.getsockname()[1], closing)
        server.serve(LISTENER, bound)
        yield served
        await server.drain(drain_s=0.0)
        await served.has_open(0)


async def test_requests_are_answered_on_every_connection() -> None:
    async with listening() as served:
        served.requests.instant = b"ok"
        callers = [await served.connect() for _ in range(CONNECTIONS_MAX)]
        for caller in callers:
            caller.send(b"P1")
        answers = [await caller.receive(len(OK)) for caller in callers]

        assert answers == [OK] * CONNECTIONS_MAX
        assert served.open_count == CONNECTIONS_MAX
        for caller in callers:
            await caller.close()
        assert await served.has_open(0)


async def test_a_connection_above_the_number_allowed_is_closed_and_the_others_go_on() -> None:
    async with listening() as served:
        served.requests.instant = b"ok"
        callers = [await served.connect() for _ in range(CONNECTIONS_MAX)]
        await served.has_open(CONNECTIONS_MAX)
        one_too_many = await served.connect()
        is_closed = await one_too_many.is_closed()
        callers[0].send(b"P1")

        assert is_closed
        assert await callers[0].receive(len(OK)) == OK
        assert served.count(REFUSED.name) == 1
        assert served.count(CONNECTIONS_MAX_METRIC.name) == CONNECTIONS_MAX


async def test_of_many_that_come_at_once_as_many_are_served_as_there_may_be() -> None:
    async with listening() as served:
        served.requests.instant = b"ok"
        callers = await asyncio.gather(*(served.connect() for _ in range(4 * CONNECTIONS_MAX)))
        await until(lambda: served.count(REFUSED.name) == 3 * CONNECTIONS_MAX)
        await served.has_open(CONNECTIONS_MAX)
        kept = [caller for caller in callers if not caller.reader.at_eof()]
        for caller in kept:
            caller.send(b"P1")

        assert [await caller.receive(len(OK)) for caller in kept] == [OK] * CONNECTIONS_MAX


async def test_the_place_of_a_connection_that_ended_is_free_again() -> None:
    async with listening() as served:
        served.requests.instant = b"ok"
        callers = [await served.connect() for _ in range(CONNECTIONS_MAX)]
        await served.has_open(CONNECTIONS_MAX)
        await callers[0].close()
        await served.has_open(CONNECTIONS_MAX - 1)
        next_one = await served.connect()
        next_one.send(b"P1")

        assert await next_one.receive(len(OK)) == OK


async def test_a_connection_that_was_silent_for_too_long_is_closed() -> None:
    async with listening() as served:
        served.requests.instant = b"ok"
        silent, talking = await served.connect(), await served.connect()
        await served.has_open(2)
        served.clock.advance(IDLE_S)
        talking.send(b"P1")
        await talking.receive(len(OK))
        served.server.close_silent()
        await settle()
        too_early = served.open_count
        served.clock.advance(0.1)
        served.server.close_silent()

        assert await silent.is_closed()
        assert too_early == 2
        assert await served.has_open(1)


async def test_a_connection_whose_request_takes_long_is_not_idle() -> None:
    async with listening() as served:
        caller = await served.connect()
        caller.send(b"M1")
        await served.has_begun(1)
        served.clock.advance(10 * IDLE_S)
        served.server.close_silent()
        await settle()

        assert served.open_count == 1


async def test_a_connection_that_never_takes_its_replies_does_not_stay_for_ever() -> None:
    async with listening() as served:
        served.requests.instant = bytes(20 * MIB)
        caller = await served.connect()
        caller.reader._transport.pause_reading()  # type: ignore[attr-defined]
        caller.send(b"P1")
        await served.has_begun(1)
        served.clock.advance(IDLE_S + 1)
        served.server.close_silent()

        assert await served.has_open(0)


async def test_who_holds_memory_and_is_silent_is_cut_off_when_others_wait_for_it() -> None:
    async with listening() as served:
        holding, waiting = await served.connect(), await served.connect()
        large = BUDGET_BYTES * 5 // 8
        holding.writer.write(large.to_bytes(4, "big") + bytes(large - 1))
        waiting.send(b"M1")
        await until(lambda: served.admission.held_bytes == cost(large, 2))
        served.clock.advance(STALLED_S + 1)
        served.server.close_silent()
        await settle()
        while_there_is_room = served.open_count
        others = served.admission.admit(memoryview(bytes(BUDGET_BYTES // 4)))
        served.server.close_silent()

        assert while_there_is_room == 2
        assert await holding.is_closed()
        assert await served.has_open(1)
        assert served.admission.held_bytes == cost(len(others), len(b"M1"))


async def test_requests_that_only_refer_to_each_other_do_not_keep_everybody_from_reading() -> None:
    """Garbage in cycles waits for the collector, which waits for new objects, which wait for memory."""
    async with listening() as served:
        served.requests.instant = b"ok"
        gc.disable()
        try:
            knot: list[object] = [served.admission.admit(memoryview(bytes(BUDGET_BYTES * 7 // 8)))]
            knot.append(knot)
            del knot
            caller = await served.connect()
            caller.send(b"P1")
            await served.has_begun(1)
            caller.send(b"P2")
            served.server.collect_when_stuck()
            at_first = served.admission.is_over
            served.server.collect_when_stuck()
            await until(lambda: not served.admission.is_over)
        finally:
            gc.enable()

        assert at_first, "it may be under way still"
        assert await caller.receive(2 * len(OK)) == 2 * OK


async def test_a_violation_is_counted_and_closes_its_connection_only() -> None:
    async with listening() as served:
        served.requests.instant = b"ok"
        good, bad = await served.connect(), await served.connect()
        bad.writer.write(b"\xff\xff\xff\xff")
        is_closed = await bad.is_closed()
        good.send(b"P1")

        assert is_closed
        assert await good.receive(len(OK)) == OK
        assert served.count(VIOLATIONS.name) == 1


async def test_evicted_connections_are_counted_by_reason_and_logged_with_their_client() -> None:
    with structlog.testing.capture_logs() as logged:
        await evict_one()
    (line,) = [line for line in logged if line["event"] == "connection_evicted"]

    assert (line["count"], line["reason"], line["client_host"], line["client_id"]) == (1, "half_sent", "127.0.0.1", None)


async def evict_one() -> None:
    async with listening() as served:
        stopped, waiting, large = await served.connect(), await served.connect(), BUDGET_BYTES * 5 // 8
        stopped.writer.write(large.to_bytes(4, "big") + bytes(large - 1))
        await until(lambda: served.admission.held_bytes == cost(large))
        waiting.writer.write(large.to_bytes(4, "big") + b"P" + bytes(large - 1))

        assert await served.has_begun(1)
        assert await stopped.is_closed()
        assert served.telemetry.registry.get_sample_value(EVICTED.name, {"reason": "half_sent"}) == 1


async def test_draining_answers_what_is_under_way_and_closes_what_is_idle() -> None:
    async with listening() as served:
        idle, busy = await served.connect(), await served.connect()
        busy.send(b"P1")
        await served.has_begun(1)
        async with asyncio.TaskGroup() as group:
            group.create_task(served.server.drain(drain_s=DEADLINE_S))
            is_idle_closed = await idle.is_closed()
            await idle.close()
            busy.send(b"P2")
            await served.has_begun(2)
            served.requests.answer(b"P2", b"ok")
            served.requests.answer(b"P1", b"ok")
            answers = await busy.receive(2 * len(OK))
            is_busy_closed = await busy.is_closed()
            await busy.close()

        assert is_idle_closed
        assert answers == OK + OK
        assert is_busy_closed
        assert served.open_count == 0


async def test_while_clients_leave_new_connections_and_requests_are_served() -> None:
    async with listening() as served, asyncio.TaskGroup() as group:
        served.requests.instant = b"ok"
        first = await served.connect()
        await served.has_open(1)
        seeing_off = group.create_task(served.server.see_off(drain_s=IDLE_S))
        first.send(b"P1")
        assert await first.receive(len(OK)) == OK
        second = await served.connect()
        second.send(b"P2")
        assert await second.receive(len(OK)) == OK
        served.clock.advance(IDLE_S - 1)
        second.send(b"P3")
        assert await second.receive(len(OK)) == OK
        assert not seeing_off.done()
        served.clock.advance(2)
        await seeing_off

        assert served.open_count == 2


async def test_seeing_clients_off_ends_when_the_last_has_left() -> None:
    async with listening() as served, asyncio.TaskGroup() as group, asyncio.timeout(DEADLINE_S):
        caller = await served.connect()
        await served.has_open(1)
        seeing_off = group.create_task(served.server.see_off(drain_s=IDLE_S))
        await settle()
        assert not seeing_off.done()
        await caller.close()
        await seeing_off


async def test_producers_are_asked_to_leave_and_refused_from_the_middle_of_the_drain_on() -> None:
    async with listening() as served, asyncio.TaskGroup() as group:
        caller = await served.connect()
        await served.has_open(1)
        before = served.leaving.throttle_ms("a")
        seeing_off = group.create_task(served.server.see_off(drain_s=10.0))
        await until(lambda: served.leaving.throttle_ms("a") > 0)
        is_refusing_at_first = served.leaving.is_refusing
        served.clock.advance(5.1)
        await until(lambda: served.leaving.is_refusing)
        await caller.close()
        await seeing_off

        assert before == 0
        assert not is_refusing_at_first


async def test_who_was_asked_to_leave_is_closed_when_it_has_been_silent_and_who_was_not_stays() -> None:
    async with listening() as served, asyncio.TaskGroup() as group:
        asked = await served.connect()
        await served.has_open(1)
        (connection,) = served.server._connections
        other = await served.connect()
        await served.has_open(2)
        seeing_off = group.create_task(served.server.see_off(drain_s=100.0))
        await until(lambda: served.leaving.throttle_ms(connection) > 0)
        served.clock.advance(QUIET_S / 2)
        asked.send(b"P1")
        await served.has_begun(1)
        served.clock.advance(QUIET_S * 0.75)
        await asyncio.sleep(2 * server_module.LOOK_EVERY_S)
        was_open = not connection.has_parted
        served.requests.answer(b"P1", b"ok")
        served.clock.advance(QUIET_S / 2)

        assert await asked.receive(len(OK)) == OK
        assert await asked.is_closed()
        assert was_open
        assert served.open_count == 2
        await asked.close()
        await served.has_open(1)
        await other.close()
        await seeing_off


async def test_a_client_that_has_sent_half_a_request_does_not_hold_up_the_drain() -> None:
    async with listening() as served, asyncio.TaskGroup() as group, asyncio.timeout(DEADLINE_S):
        caller = await served.connect()
        caller.writer.write((100).to_bytes(4, "big") + b"P")
        await served.has_open(1)
        (connection,) = served.server._connections
        await until(lambda: connection._arena_filled > 0)
        draining = group.create_task(served.server.drain(drain_s=100.0))
        await asyncio.sleep(2 * server_module.LOOK_EVERY_S)
        was_open = not connection.has_parted
        served.clock.advance(server_module.STUCK_S + 0.1)

        assert await caller.is_closed()
        assert was_open
        await caller.close()
        await draining


async def test_a_client_that_takes_no_answers_does_not_hold_up_the_drain() -> None:
    async with listening() as served, asyncio.TaskGroup() as group, asyncio.timeout(DEADLINE_S):
        served.requests.instant = bytes(20 * MIB)
        caller = await served.connect()
        caller.reader._transport.pause_reading()  # type: ignore[attr-defined]
        caller.send(b"P1")
        await served.has_begun(1)
        (connection,) = served.server._connections
        await until(lambda: connection._is_writing_paused)
        draining = group.create_task(served.server.drain(drain_s=100.0))
        await settle()
        served.clock.advance(server_module.STUCK_S + 0.1)
        await draining

        assert served.open_count == 0


async def test_a_client_that_never_pauses_is_read_no_further_in_the_end_and_answered_what_it_sent() -> None:
    async with listening() as served, asyncio.TaskGroup() as group, asyncio.timeout(DEADLINE_S):
        caller = await served.connect()
        caller.send(b"P1")
        await served.has_begun(1)
        draining = group.create_task(served.server.drain(drain_s=100.0))
        await asyncio.sleep(2 * server_module.LOOK_EVERY_S)
        caller.send(b"P2")
        await served.has_begun(2)
        served.clock.advance(server_module.FINISH_S)
        (connection,) = served.server._connections
        await until(lambda: connection._is_draining)
        caller.send(b"P3")
        served.requests.answer(b"P1", b"ok")
        served.requests.answer(b"P2", b"ok")

        assert await caller.receive(2 * len(OK)) == OK + OK
        assert await caller.is_closed()
        assert served.requests.begun == [b"P1", b"P2"]
        await caller.close()
        await draining


async def test_a_connection_that_is_accepted_while_draining_is_closed() -> None:
    async with listening() as served:
        await served.connect()
        await served.has_open(1)
        served.server._is_draining = True  # as if it had been accepted a moment before
        late = await served.connect()

        assert await late.is_closed()
        assert served.open_count == 1


async def test_draining_cuts_off_what_is_not_answered_in_time_and_counts_its_bytes_until_it_is_done() -> None:
    async with listening() as served:
        caller = await served.connect()
        caller.send(b"P1")
        await served.has_begun(1)
        async with asyncio.TaskGroup() as group:
            draining = group.create_task(served.server.drain(drain_s=0.01))
            await settle()
            served.clock.advance(0.02)
            await draining
        is_closed = await caller.is_closed()
        await served.has_open(0)
        held = served.admission.held_bytes
        served.requests.answer(b"P1")

        assert is_closed
        assert held == cost(len(b"P1"))
        assert served.admission.held_bytes == 0


async def test_draining_without_connections_ends_at_once() -> None:
    async with listening() as served, asyncio.timeout(DEADLINE_S):
        await served.server.drain(drain_s=2 * DEADLINE_S)

        assert served.open_count == 0


async def test_the_check_for_silent_connections_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "IDLE_CHECK_S", 0.001)
    async with listening() as served, asyncio.TaskGroup() as group:
        checking = group.create_task(served.server.close_idle())
        caller = await served.connect()
        await served.has_open(1)
        served.clock.advance(IDLE_S + 1)

        assert await caller.is_closed()
        checking.cancel()


@pytest.mark.parametrize(("host", "family"), [("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)])
def test_a_socket_is_of_the_family_of_its_host(host: str, family: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(socket, "create_server", lambda address, **options: asked.append((address, options)))
    bind(host, 9092)

    assert asked == [((host, 9092), {"family": family, "backlog": BACKLOG})]
