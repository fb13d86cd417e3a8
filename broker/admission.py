"""The budget of request bytes in memory, across all connections (I11). It counts frames for as long as they exist, whoever holds
them: a connection that receives, a handler, a flush that was refused and still waits. Only a cache takes one over, into its own budget.

Nothing is ever allocated above the limit. Above three quarters of it no connection begins another frame; the last quarter is for frames
that are half received, which wait for room if that is used up too. When all the room is held by frames that are half received, those that
waited last lose their connections, so that the others can be finished.
"""

import contextlib
from collections.abc import Callable
from typing import Final

from broker.protocol.errors import ProtocolViolation
from runtime.frames import Account, Frame, Soon, counted
from runtime.telemetry import Metric, Telemetry

ADMITTED_BYTES: Final = Metric(
    "forebay_request_buffer_bytes", "Bytes of requests in memory, from their first byte until nothing refers to them (3 KiB each on top)"
)
PAUSES: Final = Metric(
    "forebay_backpressure_pauses_total", "Times reading from all clients was paused because the request budget was used up"
)

OnRoom = Callable[[ProtocolViolation | None], None]
"""Called once: to try again, or with the reason why there will be no room."""


class Admission(Account):
    """Reading is paused (`is_over`) from three quarters of `bytes_max` on, until three eighths of it are left, or what is half received."""

    __slots__ = ("_begun_bytes", "_bytes_max", "_is_called", "_pauses", "_resume", "_soon", "_starved", "_watched_from_bytes")

    def __init__(self, *, bytes_max: int, telemetry: Telemetry, soon: Soon) -> None:
        super().__init__()
        self._bytes_max = bytes_max
        self._watched_from_bytes = bytes_max * 3 // 4
        self._begun_bytes = 0
        self._resume: set[Callable[[], None]] = set()
        self._starved: dict[OnRoom, int] = {}
        self._soon = soon
        self._is_called = False
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

    def begin(self, received: memoryview | Frame, room_bytes: int) -> Frame | None:
        """A frame of `room_bytes` that begins with what was received of a request; None if there is no room for it now.

        For a begun frame that is full it is a larger one in its place: the small one, which no longer counts as begun, dies with its last
        view, and until then is above the limit.
        """
        before_bytes = len(received) if isinstance(received, Frame) else 0
        if self.held_bytes - before_bytes + room_bytes > self._bytes_max:
            return None
        frame = counted(room_bytes, self)
        frame[: len(received)] = received
        self._begun_bytes += room_bytes - before_bytes
        if self.held_bytes > self._watched_from_bytes:
            self._begin_to_watch()
        return frame

    def end(self, begun: Frame) -> None:
        """It is whole, or given up."""
        self._begun_bytes -= len(begun)
        assert self._begun_bytes >= 0, "ended more than was begun"

    # Waiting

    def when_room(self, wanted_bytes: int, on_room: OnRoom) -> None:
        """Call back when there is room for so much more: who began a frame first is called first."""
        self._starved[on_room] = wanted_bytes
        self._begin_to_watch()
        self._call_soon()

    def when_free(self, resume: Callable[[], None]) -> None:
        """Call back once, on the loop, when reading goes on."""
        self._resume.add(resume)

    def forget(self, resume: Callable[[], None], on_room: OnRoom) -> None:
        self._resume.discard(resume)
        self._starved.pop(on_room, None)

    def on_less(self) -> None:
        if self._starved or self._may_go_on():
            self._call_soon()

    def _begin_to_watch(self) -> None:
        if not self.is_watched:
            self.is_watched = True
            self._pauses.inc()

    def _may_go_on(self) -> bool:
        held_bytes, limit = self.held_bytes, self._bytes_max
        # Frames that are half received and not continued keep nobody waiting, as long as there is room beside them.
        return held_bytes * 8 <= limit * 3 or (held_bytes * 4 <= limit * 3 and (held_bytes - self._begun_bytes) * 8 <= limit)

    def _call_soon(self) -> None:
        if not self._is_called:
            self._is_called = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._soon(self._go_on)

    def _go_on(self) -> None:
        self._is_called = False
        while self._starved:
            first, wanted_bytes = next(iter(self._starved.items()))
            if self.held_bytes + wanted_bytes <= self._bytes_max:
                del self._starved[first]
                first(None)
            elif (self.held_bytes - self._begun_bytes) * 8 <= self._bytes_max:
                # What is half received has nothing left to wait for but each other.
                last, wanted_bytes = self._starved.popitem()
                last(ProtocolViolation(f"no memory for another request: held_bytes={self.held_bytes} wanted_bytes={wanted_bytes}"))
            else:
                return
        if self.is_watched and self._may_go_on():
            self.is_watched = False
            waiting, self._resume = self._resume, set()
            for resume in waiting:
                resume()
