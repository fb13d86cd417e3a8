"""How many batches may be under way: each takes a KiB beside its bytes, and a request of 64 KiB can bring nearly a thousand."""

import asyncio
from collections import deque
from typing import Final

from runtime.telemetry import Metric, Telemetry

BATCHES_MAX: Final = 40_000
"""What takes two seconds to begin and 40 MiB to hold."""
UNDER_WAY: Final = Metric(
    "forebay_produce_batches",
    "Batches of Produce requests that were begun and are not answered; above 40,000 others wait",
    aggregation="sum",
)


class BatchRoom:
    """Grants room in order; a batch of any size gets it when no other has any. On the loop."""

    def __init__(self, *, telemetry: Telemetry, batches_max: int = BATCHES_MAX) -> None:
        self._batches_max = batches_max
        self._held = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        telemetry.gauge(UNDER_WAY).set_function(lambda: self._held)

    def take_now(self, batches: int) -> bool:
        """False if there is no room now, or others wait for some."""
        held = self._held
        if self._waiting or (held and held + batches > self._batches_max):
            return False
        self._held = held + batches
        return True

    async def take(self, batches: int) -> None:
        """Wait for room. Cancelled: none was taken."""
        if self.take_now(batches):
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((batches, granted))
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.give_back(batches)  # it came in the same turn
            else:
                self._waiting.remove((batches, granted))
                self._grant()
            raise

    def give_back(self, batches: int) -> None:
        self._held -= batches
        if self._waiting:
            self._grant()

    def _fits(self, batches: int) -> bool:
        return not self._held or self._held + batches <= self._batches_max

    def _grant(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            batches, granted = self._waiting.popleft()
            if not granted.done():
                self._held += batches
                granted.set_result(None)
