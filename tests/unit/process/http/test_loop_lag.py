import asyncio

from process.http.server import PERIOD_S, LoopLag
from runtime.telemetry import Telemetry
from tests.unit.process.http.manual_clock import ManualClock


def observed(telemetry: Telemetry) -> tuple[float, float]:
    read = telemetry.registry.get_sample_value
    count, total = read("forebay_event_loop_lag_seconds_count"), read("forebay_event_loop_lag_seconds_sum")
    assert count is not None
    assert total is not None
    return count, total


async def test_lateness_is_what_goes_beyond_the_period() -> None:
    clock, telemetry = ManualClock(), Telemetry()
    lag = LoopLag(telemetry=telemetry, clock=clock)
    lag.start()

    clock.advance(PERIOD_S + 0.5)
    age_s = lag.beat_age_s()
    lag._beat()
    clock.advance(PERIOD_S)
    lag._beat()
    lag.stop()

    assert age_s == PERIOD_S + 0.5
    assert observed(telemetry) == (2.0, 0.5)


async def test_it_beats_by_itself_until_it_is_stopped() -> None:
    clock, telemetry = ManualClock(), Telemetry()
    lag = LoopLag(telemetry=telemetry, clock=clock)
    lag.start()

    async with asyncio.timeout(25):
        while observed(telemetry)[0] == 0:  # noqa: ASYNC110 - a beat tells nobody that it happened
            await asyncio.sleep(PERIOD_S / 5)
    lag.stop()

    assert lag._due is not None
    assert lag._due.cancelled()


def test_stopping_what_never_started_is_harmless() -> None:
    LoopLag(telemetry=Telemetry(), clock=ManualClock()).stop()
