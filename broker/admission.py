"""The budget of request bytes in memory, across all connections (I11). It counts frames for as long as they exist, whoever holds
them: a connection that receives, a handler, a flush that was refused and still waits. Only a cache takes one over, into its own budget.

Nothing is ever allocated above the limit. Above three quarters of it no connection begins another frame; the last quarter is for frames
that are half received, which wait for room if that is used up too. Those that come too slowly lose their connections when others wait
(broker/half_sent.py). When all the room is held by frames that wait for more of it, the largest go, so that the others can be finished; and
who has waited for FINISH_S goes, too, so that a few that go on slowly cannot keep everybody waiting.
"""

import contextlib
from collections.abc import Callable, Container, Iterable
from itertools import takewhile
from typing import Final, NamedTuple

from broker.half_sent import BEHIND_LOOKS_MIN, FINISH_S, LOOK_S, WATCHED_SHARE, HalfSent, Sender
from runtime.frames import FRAME_OVERHEAD_BYTES, Account, Frame, Soon, make_frame
from runtime.telemetry import Metric, Telemetry

ADMITTED_BYTES: Final = Metric(
    "forebay_request_buffer_bytes", "Bytes of requests in memory, from their first byte until nothing refers to them (3 KiB each on top)"
)
PAUSES: Final = Metric(
    "forebay_backpressure_pauses_total", "Times reading from all clients was paused because the request budget was used up"
)

STALLED: Final = "it sent half a request and stopped, or goes on too slowly, while others wait for the memory"
CROWDED: Final = "requests that are half sent hold too much memory, and its own is among the largest of those that wait for more"

ROUNDS_PER_TURN: Final = 32
"""How many of those who wait are given room, or evicted for others, before everybody else has a turn of the loop."""
WAITED_LOOKS_MAX: Final = int(FINISH_S / LOOK_S)

Later = Callable[[float, Callable[[], None]], object]
"""Calls back after a number of seconds, as `call_later` of the loop does."""


class Waiting(NamedTuple):
    """`since_look`: how many looks there had been when it began to wait."""

    on_room: Callable[[], None]
    wanted_bytes: int
    claim_bytes: int
    since_look: int


class Admission(Account):
    """Reading is paused (`is_over`) from three quarters of `bytes_max` on, until three eighths of it are left, or what is half received."""

    __slots__ = (
        "_bytes_max",
        "_for_claims",
        "_for_room",
        "_half_sent",
        "_is_called",
        "_is_looking",
        "_later",
        "_looks",
        "_pauses",
        "_resume",
        "_soon",
        "_watched_from_bytes",
    )

    def __init__(self, *, bytes_max: int, telemetry: Telemetry, soon: Soon, later: Later) -> None:
        super().__init__()
        self._bytes_max = bytes_max
        self._watched_from_bytes = bytes_max * 3 // 4
        self._half_sent = HalfSent(bytes_max=bytes_max)
        self._resume: set[Callable[[], None]] = set()
        self._for_room: dict[Sender, Waiting] = {}
        self._for_claims: dict[Sender, Waiting] = {}
        """Senders that wait for a claim, and for room after that."""
        self._looks = 0
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
        frame = make_frame(received, self)
        if not self.is_watched and self.held_bytes > self._watched_from_bytes:
            self._begin_to_watch()
        return frame

    def begin(self, received: memoryview | Frame, room_bytes: int, sender: Sender) -> Frame | None:
        """A frame of `room_bytes` that begins with what was received of a request; None if there is no room for it now.

        For a begun frame that is full it is a larger one in its place: the small one, which no longer counts as begun, dies with its last
        view, and until then is above the limit.
        """
        half_sent = self._half_sent
        before_bytes = received.cost_bytes if isinstance(received, Frame) else 0
        claim_bytes = half_sent.claim_bytes(sender, room_bytes)
        if self.held_bytes - before_bytes + room_bytes > self._bytes_max or not half_sent.may_claim(claim_bytes):
            return None
        frame = make_frame(room_bytes, self)
        memoryview(frame)[: len(received)] = received
        half_sent.note(sender, room_bytes, claim_bytes=claim_bytes)
        if half_sent.held_bytes * WATCHED_SHARE > self._bytes_max:
            self._look_later()
        if self.held_bytes > self._watched_from_bytes:
            self._begin_to_watch()
        return frame

    def end(self, sender: Sender) -> None:
        """What it began is whole, or given up."""
        self._half_sent.end(sender)
        if self._is_waited_for:
            self._call_soon()  # it may have claimed what somebody waits for

    # Waiting

    def when_room(self, wanted_bytes: int, sender: Sender, on_room: Callable[[], None], *, room_bytes: int = 0) -> None:
        """Call back when there is room for this much more, and for the claim that a buffer of `room_bytes` needs: in the order in which
        frames began, but small ones do not wait behind large claims.
        """
        claim_bytes = self._half_sent.claim_bytes(sender, room_bytes)
        queue = self._for_claims if claim_bytes else self._for_room
        queue[sender] = Waiting(on_room, wanted_bytes, claim_bytes, self._looks)
        if self._is_short_of(wanted_bytes):
            self._begin_to_watch()  # who waits for a claim alone keeps nobody else from reading
        self._look_later()
        self._call_soon()

    def when_free(self, resume: Callable[[], None]) -> None:
        """Call back once, on the loop, when reading goes on."""
        self._resume.add(resume)

    def forget(self, resume: Callable[[], None], sender: Sender) -> None:
        self._resume.discard(resume)
        self._stop_waiting(sender)

    def on_less(self) -> None:
        if self._is_waited_for or self._may_go_on():
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

    @property
    def _is_waited_for(self) -> bool:
        return bool(self._for_room or self._for_claims)

    def _stop_waiting(self, sender: Sender) -> bool:
        return (self._for_room.pop(sender, None) or self._for_claims.pop(sender, None)) is not None

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
        self._looks += 1
        half_sent = self._half_sent
        half_sent.look()
        if self._is_waited_for or (half_sent.held_bytes and (self.is_watched or half_sent.held_bytes * WATCHED_SHARE > self._bytes_max)):
            self._look_later()
            self._go_on()

    def _go_on(self) -> None:
        self._is_called = False
        if (short_bytes := self._paused_short_bytes()) > 0:
            self._evict(self._half_sent.in_the_way(short_bytes, self._queued()))
        for _ in range(ROUNDS_PER_TURN):
            if not self._give_room():
                break
        else:
            self._call_soon()
        is_short = any(self._is_short_of(one.wanted_bytes) for queue in (self._for_room, self._for_claims) for one in queue.values())
        if self.is_watched and not is_short and self._may_go_on():
            self.is_watched = False
            waiting, self._resume = self._resume, set()
            for resume in waiting:
                resume()

    def _give_room(self) -> bool:
        """To one of those who wait first, or to nobody but with more room than before. False: there is none to be had now."""
        small, large = next(iter(self._for_room.items()), None), next(iter(self._for_claims.items()), None)
        for first in (small, large):
            if first is not None and self._has_room(first[1]):
                self._stop_waiting(first[0])
                first[1].on_room()
                return True
        return self._make_room(small and small[1], large and large[1])

    def _is_short_of(self, wanted_bytes: int) -> bool:
        return self.held_bytes + wanted_bytes > self._bytes_max

    def _has_room(self, one: Waiting) -> bool:
        return not self._is_short_of(one.wanted_bytes) and self._half_sent.may_claim(one.claim_bytes)

    def _make_room(self, small: Waiting | None, large: Waiting | None) -> bool:
        """Evict who is in the way of those who wait first. False: there is nobody, or what is in the way will leave by itself."""
        half_sent = self._half_sent
        in_the_way: list[Sender] = []
        for one in (small, large):
            if one is not None:
                queued = () if one.claim_bytes else self._queued()
                in_the_way += half_sent.in_the_way(self.held_bytes + one.wanted_bytes - self._bytes_max, queued)
                in_the_way += half_sent.in_the_way_of_claims(half_sent.claims_short_bytes(one.claim_bytes))
        first = small or large
        if not in_the_way and first is not None and half_sent.are_all_starved and self._are_others_few:
            # What is half received has nothing left to wait for but each other, or what is about to be answered.
            short_bytes = self.held_bytes + first.wanted_bytes - self._bytes_max
            if short_bytes > self._whole_bytes or self._looks - first.since_look >= BEHIND_LOOKS_MIN:
                in_the_way += half_sent.crowding(short_bytes) or [next(reversed(self._for_room or self._for_claims))]
        self._evict(in_the_way)
        return bool(in_the_way)

    @property
    def _are_others_few(self) -> bool:
        return (self.held_bytes - self._half_sent.held_bytes) * 8 <= self._bytes_max

    @property
    def _whole_bytes(self) -> int:
        """What is held besides half received frames."""
        return self.held_bytes - self._half_sent.held_bytes - self._half_sent.count * FRAME_OVERHEAD_BYTES

    def _queued(self) -> Container[Sender]:
        """Senders that wait for a claim and, unless whole requests are in the way, those without one that have waited for too long."""
        if not self._are_others_few:
            return self._for_claims
        late = takewhile(lambda item: self._looks - item[1].since_look >= WAITED_LOOKS_MAX, self._for_room.items())
        return self._for_claims.keys() | {sender for sender, _ in late if not self._half_sent.has_claimed(sender)}

    def _evict(self, senders: Iterable[Sender]) -> None:
        for sender in dict.fromkeys(senders):
            sender.evict(CROWDED if self._stop_waiting(sender) else STALLED)
