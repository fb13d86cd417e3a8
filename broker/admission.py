"""The budget of request bytes in memory, across all connections (I11). It counts frames for as long as they exist, whoever holds
them: a connection that receives, a handler, a flush that was refused and still waits. Only a cache takes one over, into its own budget.

Nothing is ever allocated above the limit. Above three quarters of it no connection begins another frame; the last quarter is for frames
that are half received, which wait for room if that is used up too. Those that come too slowly lose their connections when others wait
(broker/half_sent.py). When all the room is held by frames that wait for more of it, the largest goes, so that the others can be finished.
"""

import contextlib
from collections.abc import Callable, Container, Iterable
from typing import Final

from broker.half_sent import LOOK_S, WATCHED_SHARE, HalfSent, Sender
from runtime.frames import Account, Frame, Soon, counted
from runtime.telemetry import Metric, Telemetry

ADMITTED_BYTES: Final = Metric(
    "forebay_request_buffer_bytes", "Bytes of requests in memory, from their first byte until nothing refers to them (3 KiB each on top)"
)
PAUSES: Final = Metric(
    "forebay_backpressure_pauses_total", "Times reading from all clients was paused because the request budget was used up"
)

STALLED: Final = "it sent half a request and stopped, or goes on too slowly, while others wait for the memory"
CROWDED: Final = "requests that are half sent hold too much memory, and its own is among the largest of those that wait for more"

Later = Callable[[float, Callable[[], None]], object]
"""Calls back after so many seconds, as `call_later` of the loop does."""


class Admission(Account):
    """Reading is paused (`is_over`) from three quarters of `bytes_max` on, until three eighths of it are left, or what is half received."""

    __slots__ = (
        "_bytes_max",
        "_half_sent",
        "_is_called",
        "_is_looking",
        "_later",
        "_pauses",
        "_resume",
        "_soon",
        "_starved",
        "_watched_from_bytes",
    )

    def __init__(self, *, bytes_max: int, telemetry: Telemetry, soon: Soon, later: Later) -> None:
        super().__init__()
        self._bytes_max = bytes_max
        self._watched_from_bytes = bytes_max * 3 // 4
        self._half_sent = HalfSent(bytes_max=bytes_max)
        self._resume: set[Callable[[], None]] = set()
        self._starved: dict[Sender, tuple[Callable[[], None], int, int]] = {}
        """Who waits, for how many bytes and how large a claim."""
        self._soon = soon
        self._later = later
        self._is_called = False
        self._is_looking = False
        self._pauses = telemetry.counter(PAUSES)
        telemetry.gauge(ADMITTED_BYTES).set_function(lambda: self.held_bytes)

    @property
    def is_over(self) -> bool:
        return self.is_watched

    # Frames

    def admit(self, received: memoryview) -> Frame | None:
        """A frame of a whole request; None if there is no room for it now."""
        if self.held_bytes + len(received) > self._bytes_max:
            return None
        frame = counted(received, self)
        if not self.is_watched and self.held_bytes > self._watched_from_bytes:
            self._begin_to_watch()
        return frame

    def begin(self, received: memoryview | Frame, room_bytes: int, sender: Sender) -> Frame | None:
        """A frame of `room_bytes` that begins with what was received of a request; None if there is no room for it now.

        For a begun frame that is full it is a larger one in its place: the small one, which no longer counts as begun, dies with its last
        view, and until then is above the limit.
        """
        half_sent = self._half_sent
        before_bytes = len(received) if isinstance(received, Frame) else 0
        claim_bytes = half_sent.claim_bytes(sender, room_bytes)
        if self.held_bytes - before_bytes + room_bytes > self._bytes_max or not half_sent.may_claim(claim_bytes):
            return None
        frame = counted(room_bytes, self)
        frame[: len(received)] = received
        half_sent.note(sender, room_bytes, claim_bytes=claim_bytes)
        if half_sent.held_bytes * WATCHED_SHARE > self._bytes_max:
            self._look_later()
        if self.held_bytes > self._watched_from_bytes:
            self._begin_to_watch()
        return frame

    def end(self, sender: Sender) -> None:
        """What it began is whole, or given up."""
        self._half_sent.end(sender)
        if self._starved:
            self._call_soon()  # it may have claimed what somebody waits for

    # Waiting

    def when_room(self, wanted_bytes: int, sender: Sender, on_room: Callable[[], None], *, room_bytes: int = 0) -> None:
        """Call back when there is room for so much more, and for the claim that a buffer of `room_bytes` needs: who began a frame first is
        called first, but small ones do not wait behind large claims.
        """
        self._starved[sender] = on_room, wanted_bytes, self._half_sent.claim_bytes(sender, room_bytes)
        if self._is_short_of(wanted_bytes):
            self._begin_to_watch()  # who waits for a claim alone keeps nobody else from reading
        self._look_later()
        self._call_soon()

    def when_free(self, resume: Callable[[], None]) -> None:
        """Call back once, on the loop, when reading goes on."""
        self._resume.add(resume)

    def forget(self, resume: Callable[[], None], sender: Sender) -> None:
        self._resume.discard(resume)
        self._starved.pop(sender, None)

    def on_less(self) -> None:
        if self._starved or self._may_go_on():
            self._call_soon()

    def _begin_to_watch(self) -> None:
        if not self.is_watched:
            self.is_watched = True
            self._pauses.inc()
            if self._half_sent.held_bytes:
                self._look_later()
                self._call_soon()

    def _may_go_on(self) -> bool:
        held_bytes, limit = self.held_bytes, self._bytes_max
        # Frames that are half received and not continued keep nobody waiting, as long as there is room beside them.
        return held_bytes * 8 <= limit * 3 or (held_bytes * 4 <= limit * 3 and (held_bytes - self._half_sent.held_bytes) * 8 <= limit)

    def _paused_short_bytes(self) -> int:
        """How many bytes of half received frames keep all others from being read. None where there is too much besides them."""
        held_bytes, limit = self.held_bytes, self._bytes_max
        others_bytes = held_bytes - self._half_sent.held_bytes
        if not self.is_watched or others_bytes * 8 > limit * 3:
            return 0
        return held_bytes - (limit * 3 // 4 if others_bytes * 8 <= limit else limit * 3 // 8)

    def _call_soon(self) -> None:
        if not self._is_called:
            self._is_called = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._soon(self._go_on)

    def _look_later(self) -> None:
        if not self._is_looking:
            self._is_looking = True
            self._later(LOOK_S, self._look)

    def _look(self) -> None:
        self._is_looking = False
        half_sent = self._half_sent
        half_sent.look()
        if self._starved or (half_sent.held_bytes and (self.is_watched or half_sent.held_bytes * WATCHED_SHARE > self._bytes_max)):
            self._look_later()
            self._go_on()

    def _go_on(self) -> None:
        self._is_called = False
        if (short_bytes := self._paused_short_bytes()) > 0:
            self._evict(self._half_sent.in_the_way(short_bytes, self._queued()))
        while self._starved:
            small = next((sender for sender, (_, _, claim_bytes) in self._starved.items() if not claim_bytes), None)
            large = next((sender for sender, (_, _, claim_bytes) in self._starved.items() if claim_bytes), None)
            first = next((sender for sender in (small, large) if sender is not None and self._has_room(sender)), None)
            if first is not None:
                on_room, _, _ = self._starved.pop(first)
                on_room()
            elif not self._make_room(small, large):
                break
        is_short = any(self._is_short_of(wanted_bytes) for _, wanted_bytes, _ in self._starved.values())
        if self.is_watched and not is_short and self._may_go_on():
            self.is_watched = False
            waiting, self._resume = self._resume, set()
            for resume in waiting:
                resume()

    def _is_short_of(self, wanted_bytes: int) -> bool:
        return self.held_bytes + wanted_bytes > self._bytes_max

    def _has_room(self, sender: Sender) -> bool:
        _, wanted_bytes, claim_bytes = self._starved[sender]
        return not self._is_short_of(wanted_bytes) and self._half_sent.may_claim(claim_bytes)

    def _make_room(self, small: Sender | None, large: Sender | None) -> bool:
        """Evict who is in the way of those who wait first. False: there is nobody, or what is in the way will leave by itself."""
        half_sent = self._half_sent
        in_the_way: list[Sender] = []
        for sender in (small, large):
            if sender is not None:
                _, wanted_bytes, claim_bytes = self._starved[sender]
                queued = () if claim_bytes else self._queued()
                in_the_way += half_sent.in_the_way(self.held_bytes + wanted_bytes - self._bytes_max, queued)
                in_the_way += half_sent.in_the_way_of_claims(half_sent.claims_short_bytes(claim_bytes))
        if in_the_way:
            self._evict(in_the_way)
            return True
        if half_sent.are_all_starved and (self.held_bytes - half_sent.held_bytes) * 8 <= self._bytes_max:
            # What is half received has nothing left to wait for but each other.
            last = half_sent.largest() or next(reversed(self._starved))
            self._starved.pop(last, None)
            last.evict(CROWDED)
            return True
        return False

    def _queued(self) -> Container[Sender]:
        """Who waits for a claim."""
        return {sender for sender, (_, _, claim_bytes) in self._starved.items() if claim_bytes}

    def _evict(self, senders: Iterable[Sender]) -> None:
        for sender in dict.fromkeys(senders):
            sender.evict(CROWDED if self._starved.pop(sender, None) else STALLED)
