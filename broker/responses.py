"""The budget of readers: replies that clients have not taken yet, and what is read for them (I11).

Fetch takes room before it reads: less of it when there is little. With none left, or others waiting, it tastes: it reads a little in a room
that is kept for this alone, and answers with it if that is little compared with what is left. If it is not, it waits for room with the
others. The first in line is of the address that holds least (broker/addresses.py), and an address leaves others a part of what it could
have. So clients that take nothing keep nobody from reading a little, nor other addresses from reading. Other large replies take room when
they have been made. What small ones leave in sockets is counted, too.

When somebody waits, those lose their connections that take nothing, or so little that no client would wait for the rest.

Frames that the tail cache drops while somebody holds them count in `dropped`, until they have gone: what of them replies hold is held once.
"""

import asyncio
import contextlib
import math
from collections.abc import Callable, Generator
from dataclasses import dataclass
from heapq import nlargest
from typing import Final, Protocol

from broker.addresses import Line
from runtime.frames import Account, Soon
from runtime.telemetry import Metric, Telemetry
from storage.limits import BATCH_BYTES_DEFAULT_MAX, KIB, MIB

RESPONSE_BYTES: Final = Metric(
    "forebay_response_bytes",
    "Bytes of replies that clients have not taken, of reads for them, and of frames they hold that no cache has",
    aggregation="sum",
)
SHORTAGES: Final = Metric("forebay_response_waits_total", "Times a reply waited because the budget of replies was used up")

READ_FACTOR: Final = 2
"""While a byte is read, it is in the piece it came in and in a copy, or it keeps other bytes of that piece alive."""
GRANT_BYTES_MIN: Final = READ_FACTOR * BATCH_BYTES_DEFAULT_MAX
"""What a read may take whatever it asked for, as it returns at least one batch."""
GRANT_SHARE_MAX: Final = 3
"""A reader takes at most a third of the room that is left, so that the next finds some, too."""
BYTES_MIN: Final = 4 * GRANT_BYTES_MIN
TASTES_SHARE: Final = 8
"""An eighth of the budget is for reads that found no room; each is of at most TASTE_BYTES."""
TASTE_BYTES: Final = 64 * KIB
FAIR_SHARE: Final = 8
"""What was read so is sent if it is no more than this part of what is left, or than LITTLE_BYTES: sockets take that."""
LITTLE_BYTES: Final = 16 * KIB
ADDRESS_SHARE: Final = 7
"""An address holds at most this times what is left: alone seven eighths, of two each seven fifteenths."""
LARGE_REPLY_BYTES: Final = 64 * KIB
"""A reply to anything but Fetch and Produce that is larger takes room."""

LOOKED_AT_PER_STEP: Final = 256
"""Clients that are looked at in one turn of the loop, and those of them that one look may evict."""
UNREAD_S: Final = 15.0
"""A client that takes nothing for this long, or needs UNREAD_FINISH_S more at the speed it had, is cut off when others wait."""
HOLDING_MEMORY_S: Final = 5.0
"""The same for who holds more than twice an equal part of the budget."""
UNREAD_FINISH_S: Final = 60.0
"""As long as clients wait for an answer that has begun to come, or longer."""
UNREAD: Final = "it takes its replies too slowly, or none, while others wait for the memory"

assert LARGE_REPLY_BYTES < 1 * MIB
assert READ_FACTOR * TASTE_BYTES < GRANT_BYTES_MIN


class Taker(Protocol):
    """A connection with replies that its client has not taken."""

    @property
    def address(self) -> "HasReplies": ...

    def untaken_bytes(self) -> int: ...

    def evict(self, reason: str) -> None: ...


class HasReplies(Protocol):
    @property
    def replies(self) -> Account: ...


@dataclass(slots=True)
class Taking:
    """`began_bytes` were untaken at `began_s`, `left_bytes` are now."""

    began_s: float
    began_bytes: int
    left_bytes: int

    def left_s(self, now_s: float) -> float:
        """How long the rest takes at the speed so far."""
        taken_bytes = self.began_bytes - self.left_bytes
        return self.left_bytes * (now_s - self.began_s) / taken_bytes if taken_bytes > 0 else math.inf


@dataclass(slots=True, eq=False)
class WaitingReply:
    """`granted`: what it may hold, from then on counted. `first_look`: how many looks there had been when it became the first in line."""

    wanted_bytes: int
    least_bytes: int
    granted: asyncio.Future[int]
    first_look: int | None = None


class Responses(Account):
    """`bytes_max` is taken to be at least BYTES_MIN."""

    __slots__ = (
        "_bytes_max",
        "_has_beyond",
        "_hurries",
        "_is_called",
        "_line",
        "_looks",
        "_shortages",
        "_soon",
        "_taking",
        "_tastes_left",
        "_tasting",
        "dropped",
    )

    def __init__(self, *, bytes_max: int, telemetry: Telemetry, soon: Soon) -> None:
        super().__init__()
        bytes_max = max(bytes_max, BYTES_MIN)
        self._tastes_left = max(1, bytes_max // TASTES_SHARE // GRANT_BYTES_MIN)
        self._bytes_max = bytes_max - self._tastes_left * GRANT_BYTES_MIN
        self._tasting: Line[WaitingReply, WaitingReply] = Line()
        self._line: Line[WaitingReply, WaitingReply] = Line()
        self._taking: dict[Taker, Taking | None] = {}
        self._hurries: dict[Room, Callable[[], None]] = {}
        self._has_beyond = False
        self._looks = 0
        self._is_called = False
        self._soon = soon
        self._shortages = telemetry.counter(SHORTAGES)
        self.dropped: Account = _Dropped(self)
        telemetry.gauge(RESPONSE_BYTES).set_function(lambda: max(self.held_bytes, self.dropped.held_bytes))

    @property
    def is_short(self) -> bool:
        """Somebody waits."""
        return bool(self._line)

    def room(self, account: Account | None = None) -> "Room":
        """For one reply to a client of an address that has this account."""
        return Room(self, account)

    def left_bytes(self, account: Account) -> int:
        """Bytes that may be granted now to whoever has this account."""
        left_bytes = self._bytes_max - max(self.held_bytes, self.dropped.held_bytes)
        if account is not self:
            left_bytes = min(left_bytes, (ADDRESS_SHARE * left_bytes - account.held_bytes) // (ADDRESS_SHARE + 1))
        return left_bytes

    def grant_now(self, wanted_bytes: int, least_bytes: int, account: Account) -> int | None:
        """At least `least_bytes`, or 0 for one who may go on beyond the budget. None: it has to wait, or others that hold no more do.

        `least_bytes` is no more than `wanted_bytes`.
        """
        if self.is_watched and self._line:  # it is watched from before the first waits
            self._line.look_again()
            first = self._line.first()
            if first is not None and first.address.held_bytes <= account.held_bytes + least_bytes:
                return None
        return self._grant(wanted_bytes, least_bytes, account)

    def _grant(self, wanted_bytes: int, least_bytes: int, account: Account) -> int | None:
        left_bytes = self.left_bytes(account)
        if left_bytes >= least_bytes:
            granted_bytes = wanted_bytes
            if wanted_bytes * GRANT_SHARE_MAX > left_bytes:
                granted_bytes = max(least_bytes, left_bytes // GRANT_SHARE_MAX)
            account.change(granted_bytes)
            return granted_bytes
        if self._has_beyond or least_bytes * (ADDRESS_SHARE + 1) <= self._bytes_max * ADDRESS_SHARE:
            return None
        self._has_beyond = True
        return 0

    async def grant(self, wanted_bytes: int, least_bytes: int, account: Account) -> int:
        """As `grant_now`, after a wait for it in line."""
        self._shortages.inc()
        self.is_watched = self.dropped.is_watched = True
        hurries, self._hurries = self._hurries, {}
        for hurry in hurries.values():
            hurry()
        waiting = WaitingReply(wanted_bytes, least_bytes, asyncio.get_running_loop().create_future())
        try:
            return await self._wait(self._line, account, waiting)
        except asyncio.CancelledError:
            if waiting.granted.done() and not waiting.granted.cancelled():
                account.change(-waiting.granted.result())
                if not waiting.granted.result():
                    self.end_beyond()
            raise

    async def _wait(self, line: Line[WaitingReply, WaitingReply], account: Account, waiting: WaitingReply) -> int:
        line.add(account, waiting, waiting)
        self.on_less()
        try:
            return await waiting.granted
        finally:
            if waiting in line:
                line.remove(waiting)
                self.on_less()

    def end_beyond(self) -> None:
        self._has_beyond = False
        self.on_less()

    async def begin_taste(self, account: Account) -> None:
        """Wait for one of the rooms that are kept for reading a little."""
        if self._tastes_left and not self._tasting:
            self._tastes_left -= 1
            return
        waiting = WaitingReply(0, 0, asyncio.get_running_loop().create_future())
        try:
            await self._wait(self._tasting, account, waiting)
        except asyncio.CancelledError:
            if waiting.granted.done() and not waiting.granted.cancelled():
                self.end_taste()
            raise

    def end_taste(self) -> None:
        self._tastes_left += 1
        if self._tasting:
            self.on_less()

    def may_keep(self, tasted_bytes: int, account: Account) -> bool:
        """Whether what was read so is little enough to be sent: the longer the first in line waits, the less others keep of the rest."""
        waited_looks = self._waited_looks()
        left_bytes = self._bytes_max - max(self.held_bytes, self.dropped.held_bytes)
        counted_bytes = tasted_bytes * FAIR_SHARE * (1 + waited_looks)
        return tasted_bytes <= LITTLE_BYTES or counted_bytes <= self.left_bytes(account) or counted_bytes * FAIR_SHARE <= left_bytes

    def _waited_looks(self) -> int:
        """Count the looks since the first in line became the first."""
        first = self._line.first()
        if first is None:
            return 0
        if first.waiting.first_look is None:
            first.waiting.first_look = self._looks
        return self._looks - first.waiting.first_look

    def when_short(self, room: "Room", hurry: Callable[[], None] | None) -> None:
        """Call `hurry` once when others wait while this room is held for records that are not there yet, at once if they do. None: it no
        longer is.
        """
        if hurry is None:
            self._hurries.pop(room, None)
        elif self._line:
            hurry()
        else:
            self._hurries[room] = hurry

    def on_less(self) -> None:
        if not self._is_called:
            self._is_called = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._soon(self._wake)

    def _wake(self) -> None:
        self._is_called = False
        while self._tastes_left and (taster := self._tasting.first()) is not None:
            self._tasting.remove(taster.key)
            if not taster.key.granted.done():
                self._tastes_left -= 1
                taster.key.granted.set_result(0)
        self._line.look_again()
        while (first := self._line.first()) is not None:
            if not first.key.granted.done():
                granted_bytes = self._grant(first.key.wanted_bytes, first.key.least_bytes, first.address)
                if granted_bytes is None:
                    break
                first.key.granted.set_result(granted_bytes)
            self._line.remove(first.key)
        self.is_watched = self.dropped.is_watched = bool(self._line)

    # Takers

    def note_untaken(self, taker: Taker) -> None:
        """It has replies that its client has not taken."""
        self._taking[taker] = None

    def note_taken(self, taker: Taker) -> None:
        """It has none any more, or never will."""
        self._taking.pop(taker, None)

    def look_in_steps(self, now_s: float) -> Generator[None, None, None]:
        """See what was taken since the last look, and evict who is in the way of those who wait. For about once a second.

        It yields where others may have a turn of the loop.
        """
        self._looks += 1
        self._waited_looks()
        slow: list[tuple[float, int, Taker]] = []
        share_bytes = 2 * self._bytes_max // (len(self._taking) + len(self._line) or 1)
        takers = list(self._taking)
        for begin in range(0, len(takers), LOOKED_AT_PER_STEP):
            if begin:
                yield
            found = (self._look_at(taker, now_s, share_bytes) for taker in takers[begin : begin + LOOKED_AT_PER_STEP])
            slow = nlargest(LOOKED_AT_PER_STEP, [*slow, *(one for one in found if one is not None)], key=lambda one: one[:2])
        self._line.look_again()
        if slow and (first := self._line.first()) is not None:
            short_bytes = first.waiting.least_bytes - self.left_bytes(first.address)
            for _, left_bytes, taker in slow:
                if short_bytes <= 0:
                    break
                if taker in self._taking and taker.address.replies.held_bytes >= first.address.held_bytes:
                    taker.evict(UNREAD)
                    short_bytes -= left_bytes

    def _look_at(self, taker: Taker, now_s: float, share_bytes: int) -> tuple[float, int, Taker] | None:
        """How long it takes for the rest at the speed it had, and how much that is, if that is too long."""
        if taker not in self._taking:
            return None
        taking, left_bytes = self._taking[taker], taker.untaken_bytes()
        if left_bytes == 0:
            self._taking[taker] = None  # a stream whose client has taken all there was: it keeps nothing from others
            return None
        if taking is None or left_bytes > taking.left_bytes:
            self._taking[taker] = Taking(now_s, left_bytes, left_bytes)
            return None
        taking.left_bytes = left_bytes
        if now_s - taking.began_s < (UNREAD_S if left_bytes <= share_bytes else HOLDING_MEMORY_S):
            return None
        left_s = taking.left_s(now_s)
        if left_s > UNREAD_FINISH_S:
            return left_s, left_bytes, taker
        self._taking[taker] = Taking(now_s, left_bytes, left_bytes)
        return None


class _Dropped(Account):
    __slots__ = ("_responses",)

    def __init__(self, responses: Responses) -> None:
        super().__init__()
        self._responses = responses

    def on_less(self) -> None:
        self._responses.on_less()


class Room:
    """What one reply holds of the budget, until `give_back`."""

    __slots__ = ("_account", "_has_tasted", "_held_bytes", "_is_beyond", "_least_bytes", "_responses", "is_tasting")

    def __init__(self, responses: Responses, account: Account | None = None) -> None:
        self._responses = responses
        self._account = responses if account is None else account
        self._held_bytes = 0
        self._is_beyond = False
        self.is_tasting = False
        """It may hold a little, for as long as that takes to read: no more is waited for."""
        self._least_bytes = GRANT_BYTES_MIN
        """What a read takes at least: more than that where a taste has shown so."""
        self._has_tasted = False

    async def to_read(self, wanted_bytes: int, timeout_s: float) -> int:
        """How many bytes of records may be read now of those that are wanted, or one batch if that is more and it is not `is_tasting`; 0 if
        no room came in time.

        The bytes taken count twice while they are read: `keep` what it has been.
        """
        if readable_bytes := self.to_read_now(wanted_bytes):
            return readable_bytes
        least_bytes = self._least_bytes
        try:
            async with asyncio.timeout(timeout_s):
                if not self._has_tasted:
                    await self._responses.begin_taste(self._account)
                    self.is_tasting = True
                    return min(max(wanted_bytes, 1), TASTE_BYTES)
                granted_bytes = await self._responses.grant(max(READ_FACTOR * wanted_bytes, least_bytes), least_bytes, self._account)
        except TimeoutError:
            return 0
        return self._note_read(wanted_bytes, granted_bytes)

    def to_read_now(self, wanted_bytes: int) -> int:
        """As `to_read`; 0 if there is a wait for it."""
        least_bytes = self._least_bytes
        granted_bytes = self._responses.grant_now(max(READ_FACTOR * wanted_bytes, least_bytes), least_bytes, self._account)
        return 0 if granted_bytes is None else self._note_read(wanted_bytes, granted_bytes)

    def _note_read(self, wanted_bytes: int, granted_bytes: int) -> int:
        self._held_bytes += granted_bytes
        if granted_bytes >= READ_FACTOR * wanted_bytes > 0:
            return wanted_bytes
        self._is_beyond |= not granted_bytes
        return min(max(wanted_bytes, 1), granted_bytes // READ_FACTOR) or 1

    async def to_send(self, size_bytes: int) -> None:
        """Wait until a reply that has been made may wait for its client. Sets no deadline."""
        granted_bytes = self._responses.grant_now(size_bytes, size_bytes, self._account)
        if granted_bytes is None and self._responses.may_keep(size_bytes, self._account):
            granted_bytes = size_bytes
            self._account.change(size_bytes)
        if granted_bytes is None:
            granted_bytes = await self._responses.grant(size_bytes, size_bytes, self._account)
        self._held_bytes += granted_bytes
        self._is_beyond |= not granted_bytes
        self.settle(size_bytes)

    def keep(self, read_bytes: int, *, is_enough: bool = True) -> bool:
        """It holds what was read. False: that is too much for now. The caller lets it go, and asks again.

        Not `is_enough`: there is a batch for which a taste is too little.
        """
        if self.is_tasting:
            self.is_tasting = False
            self._responses.end_taste()
            if not is_enough or not self._responses.may_keep(read_bytes, self._account):
                self._has_tasted = True
                self._least_bytes = max(GRANT_BYTES_MIN, READ_FACTOR * read_bytes)
                return False
        self.settle(read_bytes)
        return True

    def when_short(self, hurry: Callable[[], None] | None) -> None:
        """As of `Responses`."""
        self._responses.when_short(self, hurry)

    def settle(self, held_bytes: int) -> None:
        """It holds this many bytes, and no more."""
        changed_bytes, self._held_bytes = held_bytes - self._held_bytes, held_bytes
        self._account.change(changed_bytes)

    def give_back(self) -> None:
        """The client has taken the reply, or never will. May be called again."""
        self.settle(0)
        if self.is_tasting:
            self.is_tasting = False
            self._responses.end_taste()
        if self._is_beyond:
            self._is_beyond = False
            self._responses.end_beyond()
