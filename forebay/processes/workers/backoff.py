"""How long a worker that died waits before it is started again: twice as long each time, up to a limit."""

from typing import Final

FIRST_S: Final = 0.5
MAX_S: Final = 30.0
FORGOTTEN_AFTER_S: Final = 60.0
"""One that ran this long before it died is as good as new."""


class RestartBackoff:
    def __init__(self, *, first_s: float = FIRST_S, max_s: float = MAX_S, forgotten_after_s: float = FORGOTTEN_AFTER_S) -> None:
        assert 0 < first_s <= max_s
        self._first_s = first_s
        self._max_s = max_s
        self._forgotten_after_s = forgotten_after_s
        self._next_s = first_s

    def after(self, ran_s: float) -> float:
        """Seconds to wait, after a life of `ran_s`."""
        if ran_s >= self._forgotten_after_s:
            self._next_s = self._first_s
        pause_s = self._next_s
        self._next_s = min(2 * pause_s, self._max_s)
        return pause_s
