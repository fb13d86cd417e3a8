"""The watch on a running loop that is really held. How long is asked for with wide margins only: machines are busy."""

import asyncio
import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from structlog.testing import capture_logs

from broker.handlers.topics import metadata
from broker.handling.context import Context
from broker.protocol.apis import api_of_file
from process.loop_watch import BEAT_S, HELD, LoopWatch, Usage, own_usage, watching
from runtime.clock import SystemClock
from runtime.telemetry import Telemetry
from tests.unit.process.http.manual_clock import ManualClock

HOLD_S = 0.4
LONG_S = 25.0


@contextmanager
def logged() -> Iterator[list[dict[str, object]]]:
    with capture_logs() as lines:
        yield lines  # type: ignore[misc]


def counted(telemetry: Telemetry, api: str) -> float:
    return telemetry.registry.get_sample_value(f"{HELD.name}_count", {"api": api}) or 0.0


def compute(seconds: float) -> None:
    end_s = time.thread_time() + seconds
    while time.thread_time() < end_s:
        pass


@pytest.mark.parametrize("hold", [time.sleep, compute])
async def test_what_holds_the_loop_is_logged_with_its_api_and_its_stack(
    hold: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def live_and_listed(_context: Context) -> None:
        hold(HOLD_S)
        raise InterruptedError

    monkeypatch.setattr(metadata, "live_and_listed", live_and_listed)
    telemetry = Telemetry()
    with logged() as lines, watching(api_of_file=api_of_file, telemetry=telemetry, clock=SystemClock()):
        await asyncio.sleep(2 * BEAT_S)
        async with asyncio.timeout(LONG_S):
            # Again where a busy machine let the thread that looks sleep for as long as the loop was held.
            while not counted(telemetry, "Metadata"):
                with pytest.raises(InterruptedError):
                    await metadata.handle(None, Asked)  # type: ignore[arg-type]
                await asyncio.sleep(2 * BEAT_S)

    (line,) = [line for line in lines if line["event"] == "event_loop_blocked" and line["api"] == "Metadata"]
    assert isinstance(line["seconds"], float)
    assert HOLD_S / 2 < line["seconds"] <= line["late_seconds"]
    assert "test_watch.py" in str(line["stack"])
    assert "broker/handlers/topics/metadata.py" in str(line["stack"])


class Asked:
    body = None


async def test_a_loop_that_is_free_is_not_logged() -> None:
    telemetry = Telemetry()
    with logged() as lines, watching(api_of_file=api_of_file, telemetry=telemetry, clock=ManualClock()):
        await asyncio.sleep(3 * BEAT_S)

    assert lines == []
    assert counted(telemetry, "none") == 0


class Steps:
    """A watch whose beats a test makes: nothing runs by itself."""

    def __init__(self) -> None:
        self.clock, self.telemetry, self.cpu_s = ManualClock(), Telemetry(), 0.0
        self.watch = LoopWatch(api_of_file=api_of_file, telemetry=self.telemetry, clock=self.clock, usage=lambda: Usage(self.cpu_s, 0.0))

    def hold(self, seconds: float) -> None:
        """Of CPU, since the beat was due."""
        self.watch._expect_beat()
        self.clock.advance(BEAT_S + seconds)
        self.cpu_s += BEAT_S + seconds
        self.watch._beat()

    def close(self) -> None:
        assert self.watch._timer is not None
        self.watch._timer.cancel()


async def test_lines_are_rare_and_say_how_many_there_were_not_but_a_much_worse_turn_is_told_at_once() -> None:
    steps = Steps()
    with logged() as lines:
        steps.hold(0.2)
        steps.hold(0.21)
        steps.hold(0.22)
        steps.hold(0.5)
        steps.clock.advance(60.0)
        steps.hold(0.2)
    steps.close()

    assert [(line["seconds"], line["unlogged"]) for line in lines] == [(0.2, 0), (0.5, 2), (0.2, 0)]
    assert counted(steps.telemetry, "none") == 5


async def test_a_turn_that_is_short_is_counted_and_not_logged() -> None:
    steps = Steps()
    with logged() as lines:
        steps.hold(0.08)
    steps.close()

    assert lines == []
    assert counted(steps.telemetry, "none") == 1


async def test_a_collection_is_timed() -> None:
    steps = Steps()
    steps.watch._on_gc("stop", {})  # of one that began before
    steps.watch._on_gc("start", {})
    steps.clock.advance(0.25)
    steps.watch._on_gc("stop", {})
    steps.watch._on_gc("start", {})
    steps.clock.advance(0.25)
    steps.watch._on_gc("stop", {})

    assert steps.watch._read().gc_s == 0.5


async def test_it_leaves_nothing_behind() -> None:
    before = list(gc.callbacks)
    watch = LoopWatch(api_of_file=api_of_file, telemetry=Telemetry(), clock=SystemClock(), usage=lambda: Usage(0.0, 0.0))
    watch.start()
    watch.stop()

    assert gc.callbacks == before
    assert not watch._thread.is_alive()


def test_usage_is_cpu_and_not_sleep() -> None:
    with own_usage() as usage:
        before = usage()
        time.sleep(0.05)
        slept = usage()
        compute(0.05)
        after = usage()

    assert slept.cpu_s - before.cpu_s < 0.04
    assert after.cpu_s - slept.cpu_s > 0.04


def test_where_the_system_says_nothing_of_waits_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise FileNotFoundError

    monkeypatch.setattr("process.loop_watch.os.open", refuse)
    with own_usage() as usage:
        found = usage()

    assert found.cpu_s > 0
    assert found.waited_s == 0
