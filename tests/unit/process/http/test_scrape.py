import asyncio
import math
from collections.abc import Callable
from typing import TypeVar

import msgspec
import pytest
from prometheus_client import CollectorRegistry, Gauge

from process.http.scrape import AGE_MAX_S, MetricsPage, render_json, render_text
from runtime.blocking import InlineBlocking
from runtime.telemetry import SERIES_IN_A_STEP
from tests.unit.process.http.manual_clock import ManualClock

T = TypeVar("T")


class SlowBlocking(InlineBlocking):
    """Lets others run before the call does, as a pool would."""

    async def run(self, call: Callable[[], T]) -> T:
        await asyncio.sleep(0)
        return call()


def registry_with(value: float) -> CollectorRegistry:
    registry = CollectorRegistry()
    Gauge("forebay_test_bytes", "A gauge", ("kind",), registry=registry).labels("a").set(value)
    return registry


def test_text_is_what_prometheus_reads() -> None:
    assert b'forebay_test_bytes{kind="a"} 7.0\n' in render_text(registry_with(7))


def test_json_has_one_object_per_series_and_null_for_what_it_cannot_write() -> None:
    seven, nan = render_json(registry_with(7)), render_json(registry_with(math.nan))

    assert msgspec.json.decode(seven) == {"series": [{"name": "forebay_test_bytes", "labels": {"kind": "a"}, "value": 7.0}]}
    assert msgspec.json.decode(nan)["series"][0]["value"] is None


@pytest.mark.parametrize("render", [render_text, render_json])
def test_rendering_many_series_pauses_after_each_step_of_them(render: Callable[[CollectorRegistry, Callable[[], None]], bytes]) -> None:
    registry, pauses = CollectorRegistry(), 0
    for name in ("one", "two"):
        gauge = Gauge(name, "A gauge", ("number",), registry=registry)
        for number in range(2 * SERIES_IN_A_STEP - 1):
            gauge.labels(str(number)).set(1)

    def pausing() -> None:
        nonlocal pauses
        pauses += 1

    render(registry, pausing)

    assert pauses == 3


async def test_a_page_is_rendered_at_most_once_a_second_and_concurrent_readers_share_it() -> None:
    rendered = 0
    clock = ManualClock()

    def render(registry: CollectorRegistry) -> bytes:
        nonlocal rendered
        rendered += 1
        return b"%d" % rendered

    page = MetricsPage(render, CollectorRegistry(), blocking=SlowBlocking(), clock=clock)

    together = list(await asyncio.gather(page.body(), page.body(), page.body()))
    clock.advance(AGE_MAX_S - 0.01)
    young = await page.body()
    clock.advance(0.01)
    old = await page.body()

    assert together == [b"1"] * 3
    assert (young, old) == (b"1", b"2")
