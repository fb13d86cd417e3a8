"""The metrics as pages. Rendering thousands of series takes a tenth of a second, so it happens off the loop and at most once a second.

A thread that computes keeps the interpreter from the loop for 5 ms at a time, and longer where a busy machine takes the processor from it:
it pauses after each SERIES_IN_A_STEP series.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from runtime.blocking import Blocking
from runtime.clock import Clock
from runtime.telemetry import SERIES_IN_A_STEP, pause

AGE_MAX_S: Final = 1.0
TEXT: Final = CONTENT_TYPE_PLAIN_0_0_4
JSON: Final = "application/json"


class MetricsPage:
    """One rendering of a registry, kept for a second; concurrent readers share it."""

    def __init__(
        self, render: Callable[[CollectorRegistry], bytes], registry: CollectorRegistry, *, blocking: Blocking, clock: Clock
    ) -> None:
        self._render = lambda: render(registry)
        self._blocking = blocking
        self._clock = clock
        self._one_at_a_time = asyncio.Lock()
        self._body = b""
        self._at_s: float | None = None

    async def body(self) -> bytes:
        async with self._one_at_a_time:
            now_s = self._clock.monotonic_s()
            if self._at_s is None or now_s - self._at_s >= AGE_MAX_S:
                self._body = await self._blocking.run(self._render)
                self._at_s = self._clock.monotonic_s()
            return self._body


class _InSteps(Collector):
    """Pauses after each step of series that are taken from it."""

    def __init__(self, registry: CollectorRegistry, pausing: Callable[[], None]) -> None:
        self._registry = registry
        self._pausing = pausing
        self._taken = 0

    def collect(self) -> Iterator[Family]:
        for family in self._registry.collect():
            family.samples = _Taken(family.samples, self._take)
            yield family

    def _take(self) -> None:
        self._taken += 1
        if self._taken % SERIES_IN_A_STEP == 0:
            self._pausing()


class _Taken(list[Sample]):
    def __init__(self, samples: list[Sample], take: Callable[[], None]) -> None:
        super().__init__(samples)
        self._take = take

    def __iter__(self) -> Iterator[Sample]:
        for sample in super().__iter__():
            self._take()
            yield sample


def render_text(registry: CollectorRegistry, pausing: Callable[[], None] = pause) -> bytes:
    """Prometheus' text format. `pausing` is called after each SERIES_IN_A_STEP series."""
    return generate_latest(_InSteps(registry, pausing))


def render_json(registry: CollectorRegistry, pausing: Callable[[], None] = pause) -> bytes:
    """`{"series": [{"name": …, "labels": {…}, "value": …}]}`; a value JSON cannot write (NaN, infinity) is null."""
    series = [
        {"name": sample.name, "labels": sample.labels, "value": sample.value}
        for family in _InSteps(registry, pausing).collect()
        for sample in family.samples
    ]
    return msgspec.json.encode({"series": series})
