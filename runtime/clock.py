"""Time, handed in: nothing else in the project may ask the operating system what time it is."""

import time
from typing import Protocol


class Clock(Protocol):
    """Two times: one that never goes back, for waiting and measuring, and the wall's, for people and record metadata (I10)."""

    def monotonic_s(self) -> float: ...

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch. It may jump; no decision may depend on it (I10)."""
        ...


class SystemClock:
    """The operating system's clocks."""

    def monotonic_s(self) -> float:
        return time.monotonic()  # noqa: TID251

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000
