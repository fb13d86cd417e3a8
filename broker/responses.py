"""The budget of readers: replies that clients have not taken yet, and what is read for them (I11).

Fetch takes room before it reads: less of it when there is little, and it waits when there is none. So that clients that take nothing cannot
keep all others from reading, one reader at a time goes on beyond the budget, with one batch. Other large replies wait for room when they
have been made, a few at a time. What small ones leave in sockets is counted, too.

Frames that the tail cache drops while somebody holds them count here until they have gone.
"""

import asyncio
import contextlib
from typing import Final

from runtime.frames import Account, Soon
from runtime.telemetry import Metric, Telemetry
from storage.limits import BATCH_BYTES_DEFAULT_MAX, KIB, MIB

RESPONSE_BYTES: Final = Metric(
    "forebay_response_bytes", "Bytes of replies that clients have not taken, of reads for them, and of frames they hold that no cache has"
)
SHORTAGES: Final = Metric("forebay_response_waits_total", "Times a reply waited because the budget of replies was used up")

READ_FACTOR: Final = 2
"""While a byte is read, it is in the piece it came in and in a copy, or it keeps other bytes of that piece alive."""
GRANT_BYTES_MIN: Final = READ_FACTOR * BATCH_BYTES_DEFAULT_MAX
"""What a read may take whatever it asked for, as it returns at least one batch."""
GRANT_SHARE_MAX: Final = 4
"""A reader takes at most a quarter of the room that is left, so that the next finds some, too."""
BYTES_MIN: Final = 4 * GRANT_BYTES_MIN
LARGE_REPLY_BYTES: Final = 64 * KIB
"""A reply to anything but Fetch and Produce that is larger takes room."""

assert LARGE_REPLY_BYTES < 1 * MIB


class Responses(Account):
    """`bytes_max` is taken to be at least BYTES_MIN."""

    __slots__ = ("_bytes_max", "_freed", "_has_beyond", "_is_called", "_shortages", "_soon", "_turn", "_waiting")

    def __init__(self, *, bytes_max: int, telemetry: Telemetry, soon: Soon) -> None:
        super().__init__()
        self._bytes_max = max(bytes_max, BYTES_MIN)
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._freed = asyncio.Event()
        self._has_beyond = False
        self._is_called = False
        self._soon = soon
        self._shortages = telemetry.counter(SHORTAGES)
        telemetry.gauge(RESPONSE_BYTES).set_function(lambda: self.held_bytes)

    @property
    def is_short(self) -> bool:
        """Somebody waits, or one at a time goes on."""
        return self._waiting > 0 or self._has_beyond

    def room(self) -> "Room":
        return Room(self)

    def grant_now(self, wanted_bytes: int, least_bytes: int) -> int | None:
        """At least `least_bytes`, or 0 for one who may go on beyond the budget; None if others wait, or it has to."""
        return None if self._waiting else self._grant(wanted_bytes, least_bytes)

    def _grant(self, wanted_bytes: int, least_bytes: int) -> int | None:
        free_bytes = self._bytes_max - self.held_bytes
        if free_bytes >= least_bytes:
            granted_bytes = max(least_bytes, min(wanted_bytes, free_bytes // GRANT_SHARE_MAX))
            self.held_bytes += granted_bytes
            return granted_bytes
        if self._has_beyond:
            return None
        self._has_beyond = True
        return 0

    async def grant(self, wanted_bytes: int, least_bytes: int) -> int:
        """As `grant_now`, after a wait for it, in the order of asking."""
        self._shortages.inc()
        self._waiting += 1
        try:
            async with self._turn:
                while True:
                    # Watched before it is looked: frames leave in any thread.
                    self.is_watched = True
                    self._freed.clear()
                    if (granted_bytes := self._grant(wanted_bytes, least_bytes)) is not None:
                        self.is_watched = False
                        return granted_bytes
                    await self._freed.wait()
        finally:
            self._waiting -= 1

    def end_beyond(self) -> None:
        self._has_beyond = False
        if self.is_watched:
            self.on_less()

    def on_less(self) -> None:
        if not self._is_called:
            self._is_called = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._soon(self._wake)

    def _wake(self) -> None:
        self._is_called = False
        self._freed.set()


class Room:
    """What one reply holds of the budget, until `give_back`."""

    __slots__ = ("_held_bytes", "_is_beyond", "_responses")

    def __init__(self, responses: Responses) -> None:
        self._responses = responses
        self._held_bytes = 0
        self._is_beyond = False

    async def to_read(self, wanted_bytes: int, timeout_s: float) -> int:
        """How many bytes of records may be read now of those that are wanted; 1 for one batch; 0 if no room came in time.

        The bytes taken count twice while they are read: `settle` when it has been.
        """
        if readable_bytes := self.to_read_now(wanted_bytes):
            return readable_bytes
        try:
            async with asyncio.timeout(timeout_s):
                granted_bytes = await self._responses.grant(max(READ_FACTOR * wanted_bytes, GRANT_BYTES_MIN), GRANT_BYTES_MIN)
        except TimeoutError:
            return 0
        return self._note_read(wanted_bytes, granted_bytes)

    def to_read_now(self, wanted_bytes: int) -> int:
        """As `to_read`; 0 if there is a wait for it."""
        granted_bytes = self._responses.grant_now(max(READ_FACTOR * wanted_bytes, GRANT_BYTES_MIN), GRANT_BYTES_MIN)
        return 0 if granted_bytes is None else self._note_read(wanted_bytes, granted_bytes)

    def _note_read(self, wanted_bytes: int, granted_bytes: int) -> int:
        self._held_bytes += granted_bytes
        if granted_bytes >= READ_FACTOR * wanted_bytes > 0:
            return wanted_bytes
        self._is_beyond |= not granted_bytes
        return min(max(wanted_bytes, 1), granted_bytes // READ_FACTOR) or 1

    async def to_send(self, size_bytes: int) -> None:
        """Wait until a reply that has been made may wait for its client. Sets no deadline."""
        granted_bytes = self._responses.grant_now(size_bytes, size_bytes)
        if granted_bytes is None:
            granted_bytes = await self._responses.grant(size_bytes, size_bytes)
        self._held_bytes += granted_bytes
        self._is_beyond |= not granted_bytes
        self.settle(size_bytes)

    def settle(self, held_bytes: int) -> None:
        """It holds so much, and no more."""
        changed_bytes, self._held_bytes = held_bytes - self._held_bytes, held_bytes
        responses = self._responses
        responses.held_bytes += changed_bytes
        if changed_bytes < 0 and responses.is_watched:
            responses.on_less()

    def give_back(self) -> None:
        """The client has taken the reply, or never will. May be called again."""
        self.settle(0)
        if self._is_beyond:
            self._is_beyond = False
            self._responses.end_beyond()
