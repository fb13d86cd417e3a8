"""The budget of request bytes in memory, across all connections (I11). It counts frames for as long as they exist, whoever holds
them: a connection that receives, a handler, a flush that was refused and still waits. Only a cache takes one over, into its own budget.

Nothing is ever allocated above the limit. Up to three quarters of it any request begins, and none may be larger than that. The last quarter
is for those whose connection holds little compared with what is left there: the smaller a request, the later it has to wait. A client that
waits is read no further, and holds none of the budget. The first in line gets what becomes free, and is of the address that holds least
(broker/addresses.py). So a client that fills the budget waits for itself, and others that send less do not notice.

A large request sets its whole length aside when it begins, so what has begun can always be finished. A client that stops half way costs
nobody anything as long as there is room. When somebody waits, `PartialRequests` chooses who loses its connection.
"""

import contextlib
import math
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nlargest
from itertools import chain, islice, zip_longest
from typing import Final, Protocol

from broker.addresses import First, Line
from runtime.frames import Account, Frame, Soon, make_frame
from runtime.telemetry import Metric, Telemetry
from storage.limits import KIB, MIB, REQUEST_SHARE_MAX

LOOK_S: Final = 0.25
BEHIND_LOOKS_MIN: Final = 4
LOOKED_AT_PER_STEP: Final = 256
"""Requests that are looked at in one turn of the loop."""
RANKED_MAX: Final = 256
"""How many of those behind may be evicted until the next look: the slowest."""
FINISH_S: Final = 10.0
WATCHED_SHARE: Final = 8
"""From an eighth of the budget on, looks are taken also while nobody waits: later waiters need not wait for them."""

ADMITTED_BYTES: Final = Metric(
    "forebay_request_buffer_bytes",
    "Bytes of requests in memory, from their first byte until nothing refers to them (3 KiB each on top)",
    aggregation="sum",
)
LIMIT_BYTES: Final = Metric(
    "forebay_request_buffer_limit_bytes",
    "Bytes of requests from which on producers are slowed down: three quarters of storage.max_buffer_bytes",
    aggregation="sum",
)
PAUSES: Final = Metric(
    "forebay_backpressure_pauses_total", "Times that requests began to wait because the request budget was used up; small ones go on"
)

STALLED: Final = "it sent half a request and stopped, or goes on too slowly, while others wait for the memory"

FAIR_SHARE: Final = 8
"""Beyond REQUEST_SHARE_MAX a connection may hold as much as this part of what is left, and the less the longer the first in line waits."""
PATIENT_LOOKS: Final = 8
"""After these looks as the first, a request may take half of the reserve, too: small ones claim a little all the time."""
READ_PER_TURN_BYTES: Final = 1 * MIB
"""How much is read of large requests in a turn of the loop. Then each reads LAST_READ_BYTES at most, and waits for its next turn."""
LAST_READ_BYTES: Final = 16 * KIB
READERS_PER_TURN: Final = 4
"""How many of those that wait for their turn read on in one."""
ROUNDS_PER_TURN: Final = 32
"""How many of those who wait are given room before everybody else has a turn of the loop."""

Later = Callable[[float, Callable[[], None]], object]
"""Calls back after a number of seconds, as `call_later` of the loop does."""


class Sender(Protocol):
    """A connection that sends requests."""

    @property
    def address(self) -> Account: ...

    @property
    def arrived_bytes(self) -> int:
        """Bytes that are here of a large request that has not arrived whole."""
        ...

    @property
    def whole_bytes(self) -> int:
        """The length before that request."""
        ...

    @property
    def is_resting(self) -> bool:
        """There may be more of it that is not read yet: others have their turn."""
        ...

    @property
    def unanswered_bytes(self) -> int:
        """Bytes of requests that have arrived whole and have no answer."""
        ...

    def evict(self, reason: str) -> None:
        """Let go of what was received, and close the connection."""
        ...


@dataclass(slots=True)
class Part:
    """`room_bytes`: its buffer. `behind_looks`: how many looks in a row found that it came too slowly. `behind_bytes`: what came
    meanwhile.
    """

    room_bytes: int
    seen_bytes: int = 0
    behind_looks: int = 0
    behind_bytes: int = 0


def is_behind(*, arrived_bytes: int, progress_bytes: int, whole_bytes: int) -> bool:
    """Whether what is missing would take longer than FINISH_S if each look found as much progress as this one."""
    return progress_bytes * FINISH_S < (whole_bytes - arrived_bytes) * LOOK_S


def left_looks(sender: Sender, part: Part) -> float:
    """How long what is missing would take at the speed that it has had since it is behind."""
    missing_bytes = sender.whole_bytes - sender.arrived_bytes
    return missing_bytes * part.behind_looks / part.behind_bytes if part.behind_bytes else math.inf


class PartialRequests:
    """All that is half received by one broker: what each holds of the budget, and which of them must go when others wait for it.

    When somebody waits, those are evicted that would not be whole within FINISH_S at the speed of the last second, those first that would
    need longest, and no more of them than are in the way. So a slow client is never cut for its slowness alone, and clients that share a
    slow line are finished one after the other.

    Speeds are seen by looks at what has arrived: a loop that was held up sees one late look, after which it reads what came meanwhile.
    """

    def __init__(self) -> None:
        self._parts: dict[Sender, Part] = {}
        self._slowest: dict[Sender, None] = {}
        """Senders that were behind at the last look, in the order of eviction."""
        self.whole_bytes = 0
        """Bytes that all of it will hold when it has arrived."""

    def note(self, sender: Sender, room_bytes: int) -> None:
        """It holds a buffer of `room_bytes`, in place of the one it had."""
        part = self._parts.get(sender)
        if part is None:
            part = self._parts[sender] = Part(0)
            self.whole_bytes += sender.whole_bytes
            sender.address.set_aside(sender.whole_bytes)
        sender.address.set_aside(part.room_bytes - room_bytes)
        part.room_bytes = room_bytes

    def end(self, sender: Sender) -> None:
        """Its request is whole, or given up."""
        part = self._parts.pop(sender)
        self._slowest.pop(sender, None)
        self.whole_bytes -= sender.whole_bytes
        sender.address.set_aside(part.room_bytes - sender.whole_bytes)

    def look_in_steps(self) -> Iterator[None]:
        """See what has arrived since the last look. Yields where others may have a turn of the loop."""
        slowest: list[tuple[float, int, Sender, Part]] = []
        parts = list(reversed(self._parts.items()))
        for begin in range(0, len(parts), LOOKED_AT_PER_STEP):
            if begin:
                yield
            for sender, part in parts[begin : begin + LOOKED_AT_PER_STEP]:
                if self._parts.get(sender) is not part:
                    continue  # it was whole meanwhile
                arrived_bytes = sender.arrived_bytes
                progress_bytes, part.seen_bytes = arrived_bytes - part.seen_bytes, arrived_bytes
                if not sender.is_resting and is_behind(
                    arrived_bytes=arrived_bytes, progress_bytes=progress_bytes, whole_bytes=sender.whole_bytes
                ):
                    part.behind_looks += 1
                    part.behind_bytes += progress_bytes
                else:
                    part.behind_looks = part.behind_bytes = 0
                if part.behind_looks >= BEHIND_LOOKS_MIN:
                    slowest.append((left_looks(sender, part), sender.whole_bytes, sender, part))
            slowest = nlargest(RANKED_MAX, slowest, key=lambda one: one[:2])
        self._slowest = {sender: None for _, _, sender, part in slowest if self._parts.get(sender) is part}

    def in_the_way(self, short_bytes: int, address: Account) -> Sequence[Sender]:
        """Choose the senders to evict so that `short_bytes` become free for `address`; all that may be evicted, if they do not do.

        Those behind that would take longest come first, the largest of them before others, and none of an address that claims less. Where
        honest clients share a line that is too slow for all, those that are nearly done are finished: else none would ever be.
        """
        chosen: list[Sender] = []
        for sender in self._slowest:
            if short_bytes <= 0:
                break
            if sender.address.claimed_bytes >= address.claimed_bytes:
                chosen.append(sender)
                short_bytes -= sender.whole_bytes
        return chosen


@dataclass(slots=True)
class Waiting:
    """`first_look`: how many looks there had been when it became the first in line; None: it never was."""

    on_room: Callable[[], None]
    wanted_bytes: int
    first_look: int | None = None


class Admission(Account):
    __slots__ = (
        "_by_size",
        "_bytes_max",
        "_free_bytes",
        "_is_called",
        "_is_looking",
        "_is_turn_asked",
        "_later",
        "_line",
        "_looking",
        "_looks",
        "_more_bytes",
        "_partial_requests",
        "_pauses",
        "_readable_bytes",
        "_resting",
        "_served",
        "_soon",
        "_unasked_bytes",
    )

    def __init__(self, *, bytes_max: int, telemetry: Telemetry, soon: Soon, later: Later) -> None:
        super().__init__()
        self._bytes_max = bytes_max
        self._free_bytes = int(bytes_max * REQUEST_SHARE_MAX)
        self._unasked_bytes = self._free_bytes
        """As long as no more is held, there is no need to ask who waits and what has begun."""
        self._partial_requests = PartialRequests()
        self._line: Line[Sender, Waiting] = Line()
        self._by_size: dict[int, OrderedDict[Sender, Waiting]] = {}
        """The line by the number of bits of what is wanted."""
        self._readable_bytes = READ_PER_TURN_BYTES
        self._resting: deque[Callable[[], None]] = deque()
        self._served: Sender | None = None
        """It is given room now, and waits behind nobody."""
        self._more_bytes = 0
        """Bytes that this one may take of the reserve."""
        self._looks = 0
        self._looking: Iterator[None] = iter(())
        self._soon = soon
        self._later = later
        self._is_called = False
        self._is_looking = False
        self._is_turn_asked = False
        self._pauses = telemetry.counter(PAUSES)
        telemetry.gauge(ADMITTED_BYTES).set_function(lambda: self.held_bytes)
        telemetry.gauge(LIMIT_BYTES).set(self._free_bytes)

    @property
    def is_short(self) -> bool:
        """Somebody waits."""
        return self.is_watched

    # Frames

    def admit(self, received: memoryview, sender: Sender) -> Frame | None:
        """A frame of a whole request; None if it has to wait."""
        if self.held_bytes + len(received) > self._unasked_bytes and not self._fits(len(received), sender):
            return None
        return make_frame(received, sender.address)

    def begin(self, received: memoryview, room_bytes: int, sender: Sender) -> Frame | None:
        """A frame of `room_bytes` that begins with what was received of a request; None if it has to wait. It may `grow` to the whole."""
        if not self._fits(sender.whole_bytes, sender):
            return None
        return self._make(received, room_bytes, sender)

    def grow(self, begun: Frame, room_bytes: int, sender: Sender) -> Frame:
        """A larger frame in place of one that is full. The small one dies with its last view, and until then is above the limit."""
        return self._make(begun, room_bytes, sender)

    def _make(self, received: memoryview | Frame, room_bytes: int, sender: Sender) -> Frame:
        frame = make_frame(room_bytes, sender.address)
        memoryview(frame)[: len(received)] = received
        partial_requests = self._partial_requests
        partial_requests.note(sender, room_bytes)
        self._note_needs()
        if partial_requests.whole_bytes * WATCHED_SHARE > self._bytes_max:
            self._look_later()
        return frame

    def end(self, sender: Sender) -> None:
        """What it began is whole, or given up."""
        self._partial_requests.end(sender)
        self._note_needs()
        if self._line:
            self._call_soon()

    def _fits(self, wanted_bytes: int, sender: Sender) -> bool:
        if sender is self._served:
            aside_bytes, waited_looks = -self._more_bytes, 0
        elif (first := self._first()) is not None:
            aside_bytes, waited_looks = first.waiting.wanted_bytes, self._waited_looks(first.waiting)
        else:
            aside_bytes = waited_looks = 0
        if self._short_bytes(wanted_bytes, aside_bytes) <= 0:
            return True
        left_bytes = self._bytes_max - self.claimed_bytes - wanted_bytes
        return (sender.unanswered_bytes + wanted_bytes) * FAIR_SHARE * (1 + waited_looks) <= left_bytes

    def _first(self) -> First[Sender, Waiting] | None:
        """Return the first in line. Only since it is the first, others get the less the longer it waits: a long line stops nobody."""
        first = self._line.first()
        if first is not None and first.waiting.first_look is None:
            first.waiting.first_look = self._looks
        return first

    def _waited_looks(self, waiting: Waiting) -> int:
        return 0 if waiting.first_look is None else self._looks - waiting.first_look

    def _short_bytes(self, wanted_bytes: int, aside_bytes: int = 0) -> int:
        """How much too much is held for what is `wanted_bytes`, beside what is kept for another."""
        return self.claimed_bytes + wanted_bytes + aside_bytes - self._free_bytes

    def _note_needs(self) -> None:
        self._unasked_bytes = 0 if self._line else self._free_bytes - self.coming_bytes

    # Turns

    @property
    def readable_bytes(self) -> int:
        """How much of a large request may be read at once."""
        return max(self._readable_bytes, LAST_READ_BYTES)

    def note_read(self, size_bytes: int, read_on: Callable[[], None]) -> bool:
        """So much of a large request was read. True: no more of it in this turn; `read_on` is called when it is the connection's turn."""
        self._readable_bytes -= size_bytes
        self._turn_soon()
        if self._readable_bytes > 0:
            return False
        self._resting.append(read_on)
        return True

    def _turn_soon(self) -> None:
        if not self._is_turn_asked:
            self._is_turn_asked = True
            self._soon(self._next_turn)

    def _next_turn(self) -> None:
        self._is_turn_asked = False
        self._readable_bytes = READ_PER_TURN_BYTES
        resting = self._resting
        for _ in range(min(len(resting), READERS_PER_TURN)):
            resting.popleft()()
        if resting:
            self._turn_soon()

    # Waiting

    def when_room(self, wanted_bytes: int, sender: Sender, on_room: Callable[[], None]) -> None:
        """Call back when this much more may begin."""
        if sender in self._line:
            return
        waiting = Waiting(on_room, wanted_bytes)
        self._line.add(sender.address, sender, waiting)
        self._by_size.setdefault(wanted_bytes.bit_length(), OrderedDict())[sender] = waiting
        if not self.is_watched:
            self.is_watched = True
            self._pauses.inc()
        self._note_needs()
        self._look_later()
        self._call_soon()

    def forget(self, sender: Sender) -> None:
        """It no longer waits."""
        if sender in self._line:
            self._leave(sender)
            self._call_soon()

    def _leave(self, sender: Sender) -> Waiting:
        waiting = self._line.remove(sender)
        size_class = waiting.wanted_bytes.bit_length()
        del self._by_size[size_class][sender]
        if not self._by_size[size_class]:
            del self._by_size[size_class]
        self._note_needs()
        return waiting

    def on_less(self) -> None:
        self._call_soon()

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
        self._looking = self._partial_requests.look_in_steps()
        self._look_on()

    def _look_on(self) -> None:
        for _ in self._looking:
            self._soon(self._look_on)
            return
        self._is_looking = False
        self._looks += 1
        if self._line or self._partial_requests.whole_bytes * WATCHED_SHARE > self._bytes_max:
            self._look_later()
            self._go_on()
            self._let_others_overtake()

    def _go_on(self) -> None:
        self._is_called = False
        for _ in range(ROUNDS_PER_TURN):
            if not self._give_room():
                break
        else:
            self._call_soon()
        self.is_watched = bool(self._line)

    def _let_others_overtake(self) -> None:
        """Give room to those who would not have to wait if they came now: without this a small request would wait for a large one.

        One of each size has its turn, the oldest first: no number of one size stops another.
        """
        oldest = (list(islice(self._by_size[size_class].items(), ROUNDS_PER_TURN)) for size_class in sorted(self._by_size))
        in_turn = [one for one in chain.from_iterable(zip_longest(*oldest)) if one is not None]
        for sender, waiting in in_turn[:ROUNDS_PER_TURN]:
            if sender not in self._line:
                continue
            if self._fits(waiting.wanted_bytes, sender):
                self._serve(sender)
            elif sender.unanswered_bytes:
                self._by_size[waiting.wanted_bytes.bit_length()].move_to_end(sender)  # others may fit that have less under way
        self.is_watched = bool(self._line)

    def _serve(self, sender: Sender) -> None:
        self._leave(sender).on_room()

    def _give_room(self) -> bool:
        """To the first who waits, if need be by evicting who is in its way. False: there is none to be had now."""
        first = self._first()
        if first is None:
            return False
        sender, wanted_bytes = first.key, first.waiting.wanted_bytes
        self._served = sender
        has_waited_long = self._waited_looks(first.waiting) >= PATIENT_LOOKS
        self._more_bytes = (self._bytes_max - self._free_bytes) // 2 if has_waited_long else 0
        try:
            if self._fits(wanted_bytes, sender):
                self._serve(sender)
                return True
        finally:
            self._served = None
        in_the_way = self._partial_requests.in_the_way(self._short_bytes(wanted_bytes, -self._more_bytes), first.address)
        for one in in_the_way:
            one.evict(STALLED)
        return bool(in_the_way)
