"""Virtual time: a loop that never sleeps, and clocks that read it. Equal programs with equal seeds take equal turns."""

import asyncio
import selectors
from collections.abc import Callable

EPOCH_MS = 1_700_000_000_000


class Deadlock(RuntimeError):
    """Nothing is runnable and nothing is scheduled, though somebody waits."""


class _TimeSelector(selectors.SelectSelector):
    """Where a loop would wait for sockets or the next timer, time passes instead."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.on_turn: Callable[[], None] = _nothing

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.on_turn()
        if timeout is None:
            raise Deadlock(f"nothing is runnable and nothing is scheduled: now_s={self.now_s:.6f}")
        if timeout > 0:
            self.now_s += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """No threads, no sockets, no signals: what is ready runs in its order, and then the clock jumps to the next timer."""

    def __init__(self) -> None:
        self._time = _TimeSelector()
        super().__init__(self._time)
        # Sums of floats miss their target by less than this; timers due within it run together.
        self._clock_resolution = 1e-9

    def watch(self, on_turn: Callable[[], None]) -> None:
        """Call it between every two turns, when nothing is running."""
        self._time.on_turn = on_turn

    def time(self) -> float:
        return self._time.now_s


def _nothing() -> None:
    pass


class VirtualClock:
    """The loop's time as a `Clock`. `skew_ms` sets the wall clock apart, and may change at any moment."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, skew_ms: int = 0) -> None:
        self._loop = loop
        self.skew_ms = skew_ms

    def monotonic_s(self) -> float:
        return self._loop.time()

    def now_ms(self) -> int:
        return EPOCH_MS + self.skew_ms + int(self._loop.time() * 1_000)
