"""Sends traces of produced batches to a collector, by a thread of its own: OpenTelemetry, where `tracing.endpoint` asks for it.

Nobody waits for the collector. Traces that find no room are dropped, and what it does not take is not sent again; both are counted.
"""

import contextlib
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, Protocol

import structlog

from process.settings.errors import EXIT_USAGE, StartError
from runtime.blocking import ThreadBlocking
from runtime.telemetry import Metric, Telemetry
from storage.log.tracing import BatchTrace

SPANS: Final = Metric(
    "forebay_tracing_spans_total",
    "Spans of produced batches: sent; dropped, because 1,024 traces waited; failed, because the collector did not take them",
    ("outcome",),
)
TRACES_WAITING_MAX: Final = 1_024
TRACES_TOGETHER_MAX: Final = 128
SEND_EVERY_S: Final = 0.5
SEND_WITHIN_S: Final = 5.0
STOP_WITHIN_S: Final = 2.0

log = structlog.get_logger("tracing")


class TakesTraces(Protocol):
    """Where traces go; called by one thread."""

    def send(self, traces: Sequence[BatchTrace]) -> str:
        """Send, within SEND_WITHIN_S. Empty, or why they were not taken."""
        ...

    def close(self) -> None:
        """Give up what is being sent, from any thread."""
        ...


class TraceSender:
    """Between `start` and `stop`."""

    def __init__(self, collector: TakesTraces, *, endpoint: str, telemetry: Telemetry) -> None:
        self._collector = collector
        self._endpoint = endpoint
        spans = telemetry.counter(SPANS)
        self._sent, self._dropped, self._failed = (spans.labels(outcome) for outcome in ("sent", "dropped", "failed"))
        self._waiting: deque[BatchTrace] = deque()
        self._is_failing = False
        self._stopping, self._given_up = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name="tracing", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, trace: BatchTrace) -> None:
        """Take a trace, or drop it. Never waits."""
        if len(self._waiting) >= TRACES_WAITING_MAX:
            self._dropped.inc(_spans_of([trace]))
        else:
            self._waiting.append(trace)

    async def stop(self) -> None:
        """Send what waits, for STOP_WITHIN_S at most, and end."""
        self._stopping.set()
        joining = ThreadBlocking(threads=1, name="stop-tracing")
        await joining.run(lambda: self._thread.join(STOP_WITHIN_S))
        self._given_up.set()
        self._collector.close()
        joining.close()
        self._dropped.inc(_spans_of(list(self._waiting)))

    def _work(self) -> None:
        while not self._stopping.wait(SEND_EVERY_S) or self._waiting:
            if self._given_up.is_set():
                return
            together = [self._waiting.popleft() for _ in range(min(len(self._waiting), TRACES_TOGETHER_MAX))]
            if together:
                self._send(together)

    def _send(self, traces: Sequence[BatchTrace]) -> None:
        try:
            cause = self._collector.send(traces)
        except Exception as error:  # noqa: BLE001 - no trace is worth the thread
            cause = repr(error)
        (self._failed if cause else self._sent).inc(_spans_of(traces))
        if cause and not self._is_failing:
            log.warning("traces_not_sent", endpoint=self._endpoint, cause=cause, fix="start the collector, or correct tracing.endpoint")
        elif self._is_failing and not cause:
            log.info("traces_sent_again", endpoint=self._endpoint)
        self._is_failing = bool(cause)


def _spans_of(traces: Sequence[BatchTrace]) -> int:
    return sum(1 + len(trace.stages()) for trace in traces)


@contextlib.asynccontextmanager
async def sending_traces(endpoint: str | None, *, version: str, telemetry: Telemetry) -> AsyncIterator[Callable[[BatchTrace], None] | None]:
    """Yield a function that takes traces; None without an endpoint. Raise `StartError` if the extra that sends them is not installed."""
    if endpoint is None:
        yield None
        return
    try:
        from process.otel import OtlpCollector
    except ModuleNotFoundError as error:
        raise StartError(
            f"tracing.endpoint is set, and the extra that sends traces is not installed ({error.name} is missing). In a clone: "
            "uv tool install --force '.[otel]'. Or leave tracing.endpoint empty.",
            exit_code=EXIT_USAGE,
        ) from error
    collector = OtlpCollector(endpoint, version=version, run=telemetry.run, timeout_s=SEND_WITHIN_S)
    sender = TraceSender(collector, endpoint=endpoint, telemetry=telemetry)
    sender.start()
    try:
        yield sender.put
    finally:
        await sender.stop()
