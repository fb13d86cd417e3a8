"""How late the event loop runs what was due: the first figure to look at when a broker is slow for no visible reason."""

import asyncio
from typing import Final

from runtime.clock import Clock
from runtime.telemetry import Metric, Telemetry

PERIOD_S: Final = 0.25
LOOP_LAG: Final = Metric("forebay_event_loop_lag_seconds", "How late the event loop ran a call-back, asked four times a second")


class LoopLag:
    """A call-back that meets itself every quarter of a second. Between `start` and `stop`."""

    def __init__(self, *, telemetry: Telemetry, clock: Clock) -> None:
        self._lag = telemetry.histogram(LOOP_LAG)
        self._clock = clock
        self._beat_s = clock.monotonic_s()
        self._due: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._beat_s = self._clock.monotonic_s()
        self._due = asyncio.get_running_loop().call_later(PERIOD_S, self._beat)

    def stop(self) -> None:
        if self._due is not None:
            self._due.cancel()

    def beat_age_s(self) -> float:
        """Seconds since the loop last ran the call-back."""
        return self._clock.monotonic_s() - self._beat_s

    def _beat(self) -> None:
        self._lag.observe(max(0.0, self.beat_age_s() - PERIOD_S))
        self.start()
