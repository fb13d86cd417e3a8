"""The metrics as pages. Rendering thousands of series takes a tenth of a second, so it happens off the loop and at most once a second."""

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from runtime.blocking import Blocking
from runtime.clock import Clock

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


def render_text(registry: CollectorRegistry) -> bytes:
    """Prometheus' text format."""
    return generate_latest(registry)


def render_json(registry: CollectorRegistry) -> bytes:
    """`{"series": [{"name": …, "labels": {…}, "value": …}]}`; a value JSON cannot write (NaN, infinity) is null."""
    series = [
        {"name": sample.name, "labels": sample.labels, "value": sample.value} for family in registry.collect() for sample in family.samples
    ]
    return msgspec.json.encode({"series": series})
