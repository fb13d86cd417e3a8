"""A clock for tests: the system's, which a test may push ahead."""

from runtime.clock import SystemClock


class SteppingClock:
    def __init__(self) -> None:
        self._system = SystemClock()
        self._ahead_s = 0.0

    def monotonic_s(self) -> float:
        return self._system.monotonic_s() + self._ahead_s

    def now_ms(self) -> int:
        return self._system.now_ms() + int(self._ahead_s * 1_000)

    def advance(self, seconds: float) -> None:
        self._ahead_s += seconds
