"""The bytes that a broker holds, compared at every turn of the loop with those it owes an answer for (I11).

Between two turns no function is running, so what keeps a frame alive is a future, a task or a collection: whatever the broker still holds
then of a request that it has answered is held for nothing, unless a store is sending it, or is about to be asked again.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from runtime.clock import Clock
from runtime.frames import Account, Frame, make_frame

LINGER_S: Final = 3.2
"""The longest pause between two tries of an upload, which nothing cuts short (storage/log/writer.py)."""


class Accounts:
    """`buffered_bytes`: what the broker reports, once it has a log. It may count what was refused until that leaves its queue."""

    def __init__(self, name: str, clock: Clock, complain: Callable[[str], None]) -> None:
        self.buffered_bytes: Callable[[], int] | None = None
        self._requests = Account()
        self._name = name
        self._clock = clock
        self._complain = complain
        self._owed_bytes = 0
        self._begun_bytes = 0
        self._sent_bytes = 0
        self._too_much_since_s: float | None = None
        self._has_complained = False

    def receive(self, batch: bytes) -> Frame:
        frame = make_frame(bytearray(batch), self._requests)
        self._owed_bytes += frame.cost_bytes
        return frame

    def begin(self, size_bytes: int) -> None:
        """The log was asked to append it."""
        self._begun_bytes += size_bytes

    def answer(self, size_bytes: int) -> None:
        self._begun_bytes -= size_bytes

    def let_go(self, cost_bytes: int) -> None:
        """It is answered, or never will be."""
        self._owed_bytes -= cost_bytes

    def begin_put(self, cost_bytes: int) -> None:
        self._sent_bytes += cost_bytes

    def end_put(self, cost_bytes: int) -> None:
        """It may be tried again, for those of its clients that still wait."""
        asyncio.get_running_loop().call_later(LINGER_S, self._let_go_of_put, cost_bytes)

    def _let_go_of_put(self, cost_bytes: int) -> None:
        self._sent_bytes -= cost_bytes

    def check(self) -> None:
        held_bytes = self._requests.held_bytes
        if held_bytes <= self._owed_bytes + self._sent_bytes:
            self._too_much_since_s = None
        elif self._too_much_since_s is None:
            self._too_much_since_s = self._clock.monotonic_s()
        elif self._clock.monotonic_s() - self._too_much_since_s > LINGER_S:
            self._say(f"holds {held_bytes} bytes of requests, owes answers for {self._owed_bytes}, is sending {self._sent_bytes}")
        if self._begun_bytes > 0 and self.buffered_bytes is not None and self.buffered_bytes() < self._begun_bytes:
            self._say(f"reports {self.buffered_bytes()} bytes buffered, owes answers for {self._begun_bytes}")

    def _say(self, what: str) -> None:
        if not self._has_complained:
            self._has_complained = True
            self._complain(f"bytes: {self._name} {what}")
