from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from broker.dispatch import Slow, SlowRequests
from broker.handlers.table import HANDLERS
from broker.handling.context import Context
from broker.limits import DEFAULT_BROKER_LIMITS, BrokerLimits
from broker.protocol.wire import Request
from runtime.logs import SAID_EVERY_S
from tests.kit.faulty_metadata import ManualClock
from tests.kit.record_batches import record_batch
from tests.unit.broker.test_dispatch import METADATA, FakeClient, desk, fetched, metadata, produced


class Timers:
    """`call_later` of a loop whose time a test moves."""

    def __init__(self) -> None:
        self.due: list[tuple[float, Callable[[], None]]] = []

    def later(self, delay_s: float, call: Callable[[], None]) -> "Timers":
        self.due.append((delay_s, call))
        return self

    def cancel(self) -> None:
        self.due.clear()

    def fire(self) -> None:
        due, self.due = self.due, []
        for _, call in due:
            call()


def slow(seconds: float, client_id: str = "app") -> Slow:
    return Slow(seconds, "Metadata", "NONE", "10.0.0.1", client_id)


def test_the_first_slow_request_is_said_at_once_and_of_the_next_ones_the_slowest() -> None:
    timers = Timers()
    requests = SlowRequests(later=timers.later)
    with capture_logs() as logged:
        requests.note(slow(6))
        for seconds in (7, 9.12345, 8):
            requests.note(slow(seconds, f"app-{seconds}"))
        assert [delay_s for delay_s, _ in timers.due] == [SAID_EVERY_S]
        timers.fire()
        timers.fire()

    assert [(line["event"], line["count"], line["slowest_s"], line["client_id"]) for line in logged] == [
        ("slow_requests", 1, 6, "app"),
        ("slow_requests", 3, 9.123, "app-9.12345"),
    ]


async def test_a_request_that_takes_long_is_said_with_its_api_and_client(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, real = ManualClock(), HANDLERS[METADATA]

    async def lagging(context: Context, request: Request[object]) -> object:
        clock.seconds += DEFAULT_BROKER_LIMITS.slow_request_s
        return await real(context, request)

    async with desk(clock=clock) as broker:
        with capture_logs() as logged:
            await broker.handle(metadata())
            assert not logged
            monkeypatch.setitem(HANDLERS, METADATA, lagging)
            await broker.handle(metadata())

    (line,) = logged
    assert (line["event"], line["api"], line["error"], line["client_id"]) == ("slow_requests", "Metadata", "NONE", "raw")


async def test_a_fetch_that_waited_as_long_as_it_asked_for_is_not_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    slow_s = 0.2
    clock = ManualClock()
    async with desk(clock=clock, limits=BrokerLimits(slow_request_s=slow_s)) as broker:
        await broker.node.create("t")
        handle = broker.node.fetch.handle

        async def late(*arguments: object, **named: object) -> object:
            clock.seconds += 2 * slow_s
            return await handle(*arguments, **named)  # type: ignore[arg-type]

        monkeypatch.setattr(broker.node.fetch, "handle", late)
        with capture_logs() as logged:
            await broker.handle(fetched("t", max_wait_ms=int(slow_s * 1_000) + 1))
            assert not logged
            await broker.handle(fetched("t"))

    assert [(line["event"], line["api"]) for line in logged] == [("slow_requests", "Fetch")]


async def test_a_produce_that_takes_long_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    async with desk(clock=clock) as broker:
        await broker.node.create("t")
        start = broker.node.produce.start

        def late(*arguments: object, **named: object) -> object:
            clock.seconds += DEFAULT_BROKER_LIMITS.slow_request_s
            return start(*arguments, **named)  # type: ignore[arg-type]

        monkeypatch.setattr(broker.node.produce, "start", late)
        broker.client = FakeClient(client_host="10.0.0.7")
        with capture_logs() as logged:
            await broker.produce(produced("t", record_batch(b"a")))

    assert [(line["event"], line["api"], line["client_host"]) for line in logged] == [("slow_requests", "Produce", "10.0.0.7")]
