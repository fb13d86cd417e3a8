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
from broker.cluster.registration import QUIET_S, ControlledShutdown
from broker.connection import STOPPED_S
from broker.responses import UNREAD_S, Responses
from broker.server import CONNECTIONS, EVICTED, STALLED_S, VIOLATIONS, ConnectionLimits, Server
from broker.server import CONNECTIONS_MAX as CONNECTIONS_MAX_METRIC
from process.accepting import BACKLOG, REFUSED, bind
from runtime.supervision import Nursery
from runtime.telemetry import Telemetry
from runtime.turns import in_turns
from storage.limits import KIB, MIB
from tests.unit.broker.connecting import FakeRequests, cost, framed, occupied, settle
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
    controlled_shutdown: ControlledShutdown
    responses: Responses
    clock: ManualClock
    telemetry: Telemetry
    port: int
    closing: contextlib.AsyncExitStack

    async def connect(self, *, from_host: str = "127.0.0.1") -> Caller:
        caller = Caller(*await asyncio.open_connection("127.0.0.1", self.port, local_addr=(from_host, 0)))
        self.closing.push_async_callback(caller.close)
        return caller

    @property
    def open_count(self) -> float:
        return self.telemetry.registry.get_sample_value(CONNECTIONS.name, {"listener": LISTENER}) or 0

    def evicted(self, reason: str) -> float | None:
        return self.telemetry.registry.get_sample_value(EVICTED.name, {"reason": reason})

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
async def listening(*, idle_check_s: float = 15.0) -> AsyncIterator[Listening]:
    requests, clock, telemetry = FakeRequests(), ManualClock(), Telemetry()
    soon = asyncio.get_running_loop().call_soon_threadsafe
    admission, controlled_shutdown = (
        Admission(bytes_max=BUDGET_BYTES, telemetry=telemetry, soon=soon, later=asyncio.get_running_loop().call_later),
        ControlledShutdown(clock=clock),
    )
    responses = Responses(bytes_max=BUDGET_BYTES, telemetry=telemetry, soon=soon)
    async with Nursery() as nursery, contextlib.AsyncExitStack() as closing:
        server = Server(
            requests=requests,
            admission=admission,
            controlled_shutdown=controlled_shutdown,
            responses=responses,
            limits=ConnectionLimits(CONNECTIONS_MAX, IDLE_S, idle_check_s=idle_check_s),
            clock=clock,
            nursery=nursery,
            telemetry=telemetry,
        )
        bound = closing.enter_context(bind("127.0.0.1", 0))
        served = Listening(server, requests, admission, controlled_shutdown, responses, clock, telemetry, bound.getsockname()[1], closing)
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


async def in_use(served: Listening, *, from_host: str = "127.0.0.1") -> Caller:
    """A client whose request is under way, and appends something."""
    began = len(served.requests.begun)
    caller = await served.connect(from_host=from_host)
    caller.send(b"P%d" % began)
    await served.has_begun(began + 1)
    return caller


async def is_served(served: Listening, caller: Caller) -> bool:
    served.requests.instant = b"ok"
    caller.send(b"P-served")
    return await caller.receive(len(OK)) == OK


async def test_a_connection_above_the_number_allowed_is_closed_while_all_are_in_use_and_the_others_go_on() -> None:
    async with listening() as served:
        callers = [await in_use(served) for _ in range(CONNECTIONS_MAX)]
        one_too_many = await served.connect()
        is_closed = await one_too_many.is_closed()
        served.requests.answer(b"P0", b"ok")

        assert is_closed
        assert await callers[0].receive(len(OK)) == OK
        assert served.count(REFUSED.name) == 1
        assert served.evicted("idle") is None
        assert served.count(CONNECTIONS_MAX_METRIC.name) == CONNECTIONS_MAX


async def test_connections_that_say_nothing_keep_nobody_out_whose_address_it_may_be() -> None:
    with structlog.testing.capture_logs() as logged:
        async with listening() as served:
            served.requests.instant = b"ok"
            speaking = await served.connect()
            assert await is_served(served, speaking)
            for _ in range(10 * CONNECTIONS_MAX):
                await served.connect()
            await until(lambda: served.evicted("idle") == 9 * CONNECTIONS_MAX + 1)
            newcomer = await served.connect()

            assert await is_served(served, newcomer)
            assert await is_served(served, speaking), "those that never asked for anything go first"
            assert served.count(REFUSED.name) == 0
            assert served.open_count <= CONNECTIONS_MAX + 1
    lines = [line for line in logged if line["event"] == "connection_evicted"]
    assert [(line["reason"], line["count"]) for line in lines[:1]] == [("idle", 1)]
    assert "kafka.max_connections" in lines[0]["fix"]


async def test_a_burst_of_connections_takes_no_place_of_one_that_has_spoken() -> None:
    async with listening() as served:
        before = await served.connect()
        assert await is_served(served, before)
        with contextlib.ExitStack() as closing:
            for _ in range(20 * CONNECTIONS_MAX):  # all of them in the backlog, before the loop has its turn
                closing.enter_context(socket.create_connection(("127.0.0.1", served.port)))
            assert await until(lambda: served.evicted("idle") == 20 * CONNECTIONS_MAX + 1 - CONNECTIONS_MAX)

            assert await is_served(served, before)
            assert served.count(REFUSED.name) == 0


async def test_of_those_that_have_spoken_the_one_that_was_idle_for_longest_goes() -> None:
    async with listening() as served:
        callers = [await served.connect() for _ in range(CONNECTIONS_MAX)]
        for caller in [*callers, callers[0]]:
            served.clock.advance(1.0)
            assert await is_served(served, caller)
        served.clock.advance(1.0)
        newcomers = [await served.connect() for _ in range(2)]
        for newcomer in newcomers:
            assert await is_served(served, newcomer)

        assert await callers[1].is_closed()
        assert await callers[2].is_closed()
        assert await is_served(served, callers[0])


async def test_the_address_with_the_most_connections_gives_one_up_for_another_and_keeps_those_that_append() -> None:
    async with listening() as served:
        crowd = [await in_use(served, from_host="127.0.0.2") for _ in range(CONNECTIONS_MAX - 1)]
        polling = await served.connect(from_host="127.0.0.2")
        polling.send(b"Fetch")
        await served.has_begun(CONNECTIONS_MAX)
        of_the_crowd = await served.connect(from_host="127.0.0.2")
        is_refused = await of_the_crowd.is_closed()
        newcomer = await served.connect(from_host="127.0.0.3")

        assert is_refused, "all of its address are in use, and another address has none"
        assert await is_served(served, newcomer)
        assert await polling.is_closed()
        assert served.evicted("idle") == 1
        served.requests.answer(b"P0", b"ok")
        assert await crowd[0].receive(len(OK)) == OK


async def test_a_lone_client_of_an_address_is_not_closed_for_one_that_has_many() -> None:
    async with listening() as served:
        served.requests.instant = b"ok"
        lone = await served.connect(from_host="127.0.0.3")
        assert await is_served(served, lone)
        for _ in range(5 * CONNECTIONS_MAX):
            assert await is_served(served, await served.connect(from_host="127.0.0.2"))

        assert await is_served(served, lone)


async def with_half_a_request(served: Listening) -> tuple[Caller, bytes]:
    """A client that sent as much of a request as gets a buffer, beside others that use all the places left; and the rest of it."""
    for _ in range(CONNECTIONS_MAX - 1):
        await in_use(served)
    held_bytes = served.admission.held_bytes
    slow = await served.connect()
    whole = framed(b"P" + bytes(100_000))
    slow.writer.write(whole[:50_000])
    await until(lambda: served.admission.held_bytes > held_bytes)
    return slow, whole[50_000:]


async def test_half_a_request_keeps_a_place_for_as_long_as_its_client_goes_on_with_it() -> None:
    async with listening() as served:
        slow, rest = await with_half_a_request(served)
        newcomer = await served.connect()
        is_closed = await newcomer.is_closed()
        slow.writer.write(rest)

        assert is_closed
        assert await served.has_begun(CONNECTIONS_MAX)


async def test_half_a_request_that_goes_no_further_gives_its_place_up() -> None:
    async with listening() as served:
        slow, _ = await with_half_a_request(served)
        newcomer = await served.connect()
        while not served.evicted("idle"):
            served.clock.advance(STOPPED_S + 1)
            newcomer = await served.connect()
            await until(lambda newcomer=newcomer: newcomer.reader.at_eof() or served.evicted("idle"))  # type: ignore[misc]

        assert await slow.is_closed()
        assert await is_served(served, newcomer)


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
        await served.server.close_silent()
        await settle()
        too_early = served.open_count
        served.clock.advance(0.1)
        await served.server.close_silent()

        assert await silent.is_closed()
        assert too_early == 2
        assert await served.has_open(1)


async def test_a_connection_whose_request_takes_long_is_not_idle() -> None:
    async with listening() as served:
        caller = await served.connect()
        caller.send(b"M1")
        await served.has_begun(1)
        served.clock.advance(10 * IDLE_S)
        await served.server.close_silent()
        await settle()

        assert served.open_count == 1


async def test_a_connection_that_never_takes_its_replies_does_not_stay_for_ever() -> None:
    async with listening() as served:
        served.requests.instant = bytes(20 * MIB)
        caller = await served.connect()
        caller.reader._transport.pause_reading()  # type: ignore[attr-defined]
        caller.send(b"P1")
        await served.has_begun(1)

        async with asyncio.timeout(DEADLINE_S):
            while served.open_count:  # what its system took in the beginning was some progress
                served.clock.advance(IDLE_S + 1)
                await served.server.close_silent()
                await asyncio.sleep(0.001)


async def test_who_keeps_what_it_sent_from_being_begun_is_cut_off_when_others_wait_for_the_memory() -> None:
    async with listening() as served:
        holding, waiting = await served.connect(), await served.connect()
        holding.send(b"M1")
        await served.has_begun(1)
        holding.send(b"P" + bytes(1000))
        others = occupied(served.admission, BUDGET_BYTES - 100 * KIB)
        await until(lambda: served.admission.held_bytes > cost(len(others), 1000))
        served.clock.advance(STALLED_S + 1)
        await served.server.close_silent()
        await settle()
        while_nobody_waits = served.open_count
        waiting.send(b"P" + bytes(50 * KIB))
        await until(lambda: served.admission.is_short)
        await served.server.close_silent()

        assert while_nobody_waits == 2
        assert await holding.is_closed()
        assert await served.has_open(1)
        assert served.evicted("held_up") == 1


async def test_a_slow_reader_goes_on_for_as_long_as_it_takes_something_and_one_that_takes_nothing_goes_when_others_wait() -> None:
    async with listening() as served:
        served.requests.instant = bytes(40 * MIB)
        slow, stopped = await served.connect(), await served.connect()
        for caller in (slow, stopped):
            caller.send(b"P1")
        await served.has_begun(2)
        waiting = asyncio.get_running_loop().create_task(served.responses.room().to_send(4 * MIB))
        for _ in range(2 * int(UNREAD_S)):
            await slow.receive(1 * MIB)
            served.clock.advance(1.0)
            await in_turns(served.responses.look_in_steps(served.clock.monotonic_s()))
        is_waiting = not waiting.done()
        waiting.cancel()

        assert is_waiting, "the other one is still in the way, and stays"
        assert await stopped.is_closed()
        assert served.evicted("unread") == 1
        assert served.open_count == 1


async def test_requests_that_only_refer_to_each_other_do_not_keep_others_waiting() -> None:
    """Garbage in cycles waits for the collector, which waits for new objects, which wait for memory."""
    async with listening() as served:
        served.requests.instant = b"ok"
        gc.disable()
        try:
            knot: list[object] = [occupied(served.admission, BUDGET_BYTES * 7 // 8)]
            knot.append(knot)
            del knot
            caller = await served.connect()
            caller.send(b"P" + bytes(50 * KIB))
            await until(lambda: served.admission.is_short)
            served.server.collect_when_stuck()
            at_first = served.admission.is_short
            served.server.collect_when_stuck()
            await until(lambda: not served.admission.is_short)
        finally:
            gc.enable()

        assert at_first, "it may be under way still"
        assert await caller.receive(len(OK)) == OK


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
        before = served.controlled_shutdown.throttle_ms("a")
        seeing_off = group.create_task(served.server.see_off(drain_s=10.0))
        await until(lambda: served.controlled_shutdown.throttle_ms("a") > 0)
        is_refusing_at_first = served.controlled_shutdown.is_refusing
        served.clock.advance(5.1)
        await until(lambda: served.controlled_shutdown.is_refusing)
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
        await until(lambda: served.controlled_shutdown.throttle_ms(connection) > 0)
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


async def test_the_check_for_silent_connections_repeats() -> None:
    async with listening(idle_check_s=0.001) as served, asyncio.TaskGroup() as group:
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
