"""Sending traces: nobody waits for the collector, and what became of them is counted."""

import sys
import threading
from collections.abc import Sequence

import pytest
from structlog.testing import capture_logs

from process.settings.errors import StartError
from process.tracing import SPANS, STOP_WITHIN_S, TRACES_WAITING_MAX, TraceSender, sending_traces
from runtime.telemetry import Telemetry
from storage.log.tracing import BatchTrace

WITHIN_S = 30.0
SPANS_OF_EACH = 3


def trace() -> BatchTrace:
    return BatchTrace(
        topic="t", partition=0, records=1, size_bytes=70, parent="", wall_s=0, began_s=1, submitted_s=1, settled_s=2, answered_s=2
    )


class Collecting:
    """Answers each call with the next cause, the last one for ever; waits while it is not `open`."""

    def __init__(self, *causes: str, is_open: bool = True) -> None:
        self._causes = list(causes)
        self.got: list[BatchTrace] = []
        self.calls = threading.Semaphore(0)
        self.open = threading.Event()
        if is_open:
            self.open.set()

    def send(self, traces: Sequence[BatchTrace]) -> str:
        self.calls.release()
        self.open.wait(WITHIN_S)
        self.got += traces
        return self._causes.pop(0) if len(self._causes) > 1 else self._causes[0]

    def close(self) -> None:
        self.open.set()


def spans(telemetry: Telemetry, outcome: str) -> float | None:
    return telemetry.registry.get_sample_value(SPANS.name, {"outcome": outcome})


async def test_traces_that_wait_are_sent_when_it_stops() -> None:
    collecting, telemetry = Collecting(""), Telemetry()
    sender = TraceSender(collecting, endpoint="http://c", telemetry=telemetry)
    sender.start()
    given = [trace() for _ in range(300)]
    for one in given:
        sender.put(one)
    await sender.stop()

    assert collecting.got == given
    assert spans(telemetry, "sent") == 300 * SPANS_OF_EACH
    assert spans(telemetry, "dropped") == spans(telemetry, "failed") == 0


async def test_more_traces_than_may_wait_are_dropped_and_a_silent_collector_does_not_hold_up_the_end() -> None:
    collecting, telemetry = Collecting("", is_open=False), Telemetry()
    sender = TraceSender(collecting, endpoint="http://c", telemetry=telemetry)
    sender.start()
    sender.put(trace())
    assert collecting.calls.acquire(timeout=WITHIN_S)
    for _ in range(TRACES_WAITING_MAX + 7):
        sender.put(trace())
    assert spans(telemetry, "dropped") == 7 * SPANS_OF_EACH

    await sender.stop()

    assert STOP_WITHIN_S < WITHIN_S
    assert spans(telemetry, "dropped") == (TRACES_WAITING_MAX + 7) * SPANS_OF_EACH


async def test_a_collector_that_takes_nothing_is_said_once_and_counted_and_that_it_takes_them_again_is_said_too() -> None:
    collecting, telemetry = Collecting("refused", "refused", ""), Telemetry()
    with capture_logs() as logged:
        sender = TraceSender(collecting, endpoint="http://c", telemetry=telemetry)
        sender.start()
        for _ in range(3):
            sender.put(trace())
            assert collecting.calls.acquire(timeout=WITHIN_S)
        await sender.stop()

    said = [(event["event"], event["endpoint"]) for event in logged]
    assert said == [("traces_not_sent", "http://c"), ("traces_sent_again", "http://c")]
    assert (logged[0]["cause"], "tracing.endpoint" in logged[0]["fix"]) == ("refused", True)
    assert (spans(telemetry, "failed"), spans(telemetry, "sent")) == (2 * SPANS_OF_EACH, SPANS_OF_EACH)


async def test_without_an_endpoint_there_is_nothing_to_send_to() -> None:
    telemetry = Telemetry()
    async with sending_traces(None, version="1", telemetry=telemetry) as send:
        assert send is None
    assert spans(telemetry, "sent") is None


async def test_an_endpoint_without_the_extra_is_an_error_that_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "process.otel", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)

    with pytest.raises(StartError, match=r"tracing\.endpoint is set.*\n?.*uv tool install --force '\.\[otel\]'"):
        async with sending_traces("http://127.0.0.1:4318", version="1", telemetry=Telemetry()):
            pass
