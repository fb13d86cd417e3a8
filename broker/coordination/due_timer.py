"""A timer for what is due next, which signs of life put off for nothing."""

import asyncio
from collections.abc import Callable
from typing import Final

from runtime.clock import Clock

TIMER_S_MIN: Final = 0.01
"""Between two looks at the clock: a loop's timer may be early by a millisecond."""


class DueTimer:
    """`set` makes it go off when something is due: never before, and only once. Where nothing is due, no timer is set.

    A timer that is too early looks again when it goes off. So whatever only puts off what is due need not tell anybody, and `set` asks
    `next_due_s` again only after `note_change`.
    """

    def __init__(self, next_due_s: Callable[[], float | None], on_due: Callable[[], None], *, clock: Clock) -> None:
        """`next_due_s`: when something is due, by the monotonic clock."""
        self._next_due_s = next_due_s
        self._on_due = on_due
        self._clock = clock
        self._handle: asyncio.TimerHandle | None = None
        self._handle_due_s = 0.0
        self._may_be_due_earlier = True

    @property
    def is_set(self) -> bool:
        return self._handle is not None

    def note_change(self) -> None:
        """Something may be due earlier than it was when the timer was set."""
        self._may_be_due_earlier = True

    def set(self) -> None:
        if self._handle is not None and not self._may_be_due_earlier:
            return
        self._may_be_due_earlier = False
        due_s = self._next_due_s()
        if due_s is None or (self._handle is not None and self._handle_due_s <= due_s):
            return
        self.stop()
        self._handle_due_s = due_s
        delay_s = max(due_s - self._clock.monotonic_s(), TIMER_S_MIN)
        self._handle = asyncio.get_running_loop().call_later(delay_s, self._look)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _look(self) -> None:
        self._handle = None
        due_s = self._next_due_s()
        if due_s is not None and due_s <= self._clock.monotonic_s():
            self._on_due()
        else:
            self.set()
