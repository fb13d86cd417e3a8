"""A clock that stands still until a test moves it."""


class ManualClock:
    def __init__(self, *, now_ms: int = 1_700_000_000_000) -> None:
        self._elapsed_s = 0.0
        self._began_ms = now_ms

    def monotonic_s(self) -> float:
        return 1000.0 + self._elapsed_s

    def now_ms(self) -> int:
        return self._began_ms + int(self._elapsed_s * 1000)

    def advance(self, seconds: float) -> None:
        self._elapsed_s += seconds
