"""One client connection: bytes in, frames out, back-pressure both ways.

A `BufferedProtocol`: small frames are cut from an arena, a large one is received straight into a buffer of its own size. Produce requests
overlap; any other request starts when all earlier ones have been answered; replies leave in order. Reading pauses while the client does
not take its replies, while too much of what it sent is unanswered, and while the whole broker is over its budget.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol, cast

import structlog

from broker.admission import Admission
from broker.dispatch import Client, Done
from broker.protocol.errors import ProtocolViolation
from broker.protocol.framing import frame_length
from broker.protocol.session import Session
from storage.limits import KIB, MIB
from storage.vocabulary import Buffer

ARENA_BYTES: Final = 64 * KIB
OWN_BUFFER_FROM_BYTES: Final = 16 * KIB
"""Frames from this size on are received into a buffer of their own."""
FIRST_ALLOCATION_BYTES_MAX: Final = 2 * MIB
"""A frame that claims more gets its memory as its bytes arrive: a claim alone costs the broker nothing."""
UNANSWERED_BYTES_MAX: Final = 8 * MIB
UNANSWERED_REQUESTS_MAX: Final = 512
WRITE_BUFFER_BYTES_HIGH: Final = 256 * KIB

assert OWN_BUFFER_FROM_BYTES <= ARENA_BYTES

log = structlog.get_logger("connection")


class Requests(Protocol):
    """What a connection hands its frames to (broker.dispatch)."""

    def is_overlapping(self, frame: memoryview) -> bool:
        """True for a request that may run beside others of its connection. Raises `ProtocolViolation`."""
        ...

    def start(self, frame: memoryview, connection: Client, done: Done) -> bool:
        """Begin an overlapping request; `done` is called once. False: it has to wait for something, use `handle`."""
        ...

    async def handle(self, frame: memoryview, connection: Client) -> Sequence[Buffer] | None:
        """The reply from its header on, or None where the client expects none."""
        ...


class Connection(asyncio.BufferedProtocol):
    """`run` must be running from `connection_made` on; it ends with the connection."""

    def __init__(
        self,
        *,
        requests: Requests,
        admission: Admission,
        frame_bytes_max: int,
        listener: str,
        on_made: Callable[["Connection"], None],
        on_lost: Callable[["Connection"], None],
        now_s: Callable[[], float],
    ) -> None:
        self._requests = requests
        self._admission = admission
        self._on_made = on_made
        self._on_lost = on_lost
        self._now_s = now_s
        self._frame_bytes_max = frame_bytes_max
        self.listener = listener
        self.client_host = ""
        self.client_id: str | None = None
        self.last_active_s = now_s()
        self._session = Session()
        self._transport: asyncio.Transport | None = None
        self._arena = bytearray(ARENA_BYTES)
        self._arena_view = memoryview(self._arena)
        self._arena_filled = 0
        self._frame: bytearray | None = None
        self._frame_filled = 0
        self._frame_length = 0
        self._queue: deque[bytearray] = deque()
        self._unanswered_bytes = 0
        self._overlapping = 0
        self._is_busy = False
        self._is_advancing = False
        self._number = -1
        self._handed_over: asyncio.Queue[bytearray] = asyncio.Queue(maxsize=1)
        self._is_reading_paused = False
        self._is_writing_paused = False
        self._is_lost = False
        self._is_draining = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES_HIGH)
        peer = transport.get_extra_info("peername")
        self.client_host = str(peer[0]) if peer else ""
        self._on_made(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self._queue.clear()
        self._admission.forget(self._update_reading)
        self._admission.give_back(self._unanswered_bytes)
        self._unanswered_bytes = 0
        self._frame = None
        self._on_lost(self)

    def close(self) -> None:
        """Close after what is buffered for the client has been sent."""
        if self._transport is not None and not self._is_lost:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None and not self._is_lost:
            self._transport.abort()

    @property
    def is_idle(self) -> bool:
        return self._session.pending_count == 0

    def drain(self) -> None:
        """Take no further requests; close as soon as those under way are answered."""
        self._is_draining = True
        self._update_reading()
        if self.is_idle:
            self.close()

    # Receiving

    def get_buffer(self, sizehint: int) -> memoryview:
        frame = self._frame
        if frame is None:
            return self._arena_view[self._arena_filled :]
        if self._frame_filled == len(frame):
            more = min(len(frame), self._frame_length - len(frame))
            self._count(more)
            frame.extend(bytes(more))
        return memoryview(frame)[self._frame_filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self.last_active_s = self._now_s()
        try:
            if self._frame is not None:
                self._frame_filled += nbytes
                if self._frame_filled == self._frame_length:
                    frame, self._frame = self._frame, None
                    self._enqueue(frame, counted=True)
            else:
                self._arena_filled += nbytes
                self._cut_frames()
            self._advance()
        except ProtocolViolation as violation:
            self._refuse(violation)
        self._update_reading()

    def _cut_frames(self) -> None:
        view, filled, position = self._arena_view, self._arena_filled, 0
        while filled - position >= 4:
            length = frame_length(view[position : position + 4])
            if length > self._frame_bytes_max:
                raise ProtocolViolation(f"frame larger than kafka.max_request_bytes: bytes={length} max={self._frame_bytes_max}")
            begin = position + 4
            if length >= OWN_BUFFER_FROM_BYTES and begin + length > filled:
                self._frame = bytearray(min(length, FIRST_ALLOCATION_BYTES_MAX))
                self._frame_length = length
                self._frame_filled = filled - begin
                self._frame[: filled - begin] = view[begin:filled]
                self._count(len(self._frame))
                position = filled
                break
            if begin + length > filled:
                break
            self._enqueue(bytearray(view[begin : begin + length]), counted=False)
            position = begin + length
        if position == filled:
            self._arena_filled = 0
        elif position:
            self._arena[: filled - position] = self._arena[position:filled]
            self._arena_filled = filled - position

    def _enqueue(self, frame: bytearray, *, counted: bool) -> None:
        if not counted:
            self._count(len(frame))
        self._queue.append(frame)

    def _count(self, size_bytes: int) -> None:
        self._admission.take(size_bytes)
        self._unanswered_bytes += size_bytes

    # Requests

    def _advance(self) -> None:
        """Start what may start: overlapping requests at once, another one alone."""
        queue = self._queue
        if self._is_advancing:
            return  # a request was answered while it was being started: the loop that started it goes on
        self._is_advancing = True
        try:
            self._start_queued(queue)
        finally:
            self._is_advancing = False

    def _start_queued(self, queue: deque[bytearray]) -> None:
        while queue and not self._is_busy and not self._is_writing_paused:
            frame = queue[0]
            view = memoryview(frame)
            if self._requests.is_overlapping(view):
                queue.popleft()
                number, size_bytes = self._session.begin(), len(frame)

                def done(payload: Sequence[Buffer] | None, number: int = number, size_bytes: int = size_bytes) -> None:
                    self._overlapping -= 1
                    self._finish(number, payload, size_bytes)

                self._overlapping += 1
                if self._requests.start(view, self, done):
                    continue
                self._overlapping -= 1
                self._hand_over(frame, number)
            elif not self._overlapping:
                queue.popleft()
                self._hand_over(frame, self._session.begin())
            else:
                break

    def _hand_over(self, frame: bytearray, number: int) -> None:
        self._is_busy = True
        self._number = number
        self._handed_over.put_nowait(frame)

    async def run(self) -> None:
        """Answer the requests that do not overlap, one after the other, until cancelled: the server does so when the connection is lost."""
        while True:
            frame = await self._handed_over.get()
            try:
                payload = await self._requests.handle(memoryview(frame), self)
            except ProtocolViolation as violation:
                self._refuse(violation)
                return
            self._is_busy = False
            self._finish(self._number, payload, len(frame))

    def _finish(self, number: int, payload: Sequence[Buffer] | None, size_bytes: int) -> None:
        ready = self._session.reply(number, payload)
        if self._is_lost:
            return
        self._unanswered_bytes -= size_bytes
        self._admission.give_back(size_bytes)
        assert self._transport is not None
        if ready:
            self._transport.writelines(ready)
        if self._is_draining and self.is_idle:
            self.close()
            return
        try:
            self._advance()
        except ProtocolViolation as violation:
            self._refuse(violation)
        self._update_reading()

    def _refuse(self, violation: ProtocolViolation) -> None:
        log.warning("protocol_violation", client_host=self.client_host, client_id=self.client_id, cause=str(violation))
        self._queue.clear()
        self.abort()

    # Back-pressure

    def pause_writing(self) -> None:
        self._is_writing_paused = True
        self._update_reading()

    def resume_writing(self) -> None:
        self._is_writing_paused = False
        try:
            self._advance()
        except ProtocolViolation as violation:
            self._refuse(violation)
        self._update_reading()

    def _update_reading(self) -> None:
        transport = self._transport
        if transport is None or self._is_lost or transport.is_closing():
            return
        limit_factor = 1 if not self._is_reading_paused else 2  # go on only when half of the limit is free again
        wanted = (
            not self._is_writing_paused
            and not self._is_draining
            and self._unanswered_bytes * limit_factor <= UNANSWERED_BYTES_MAX
            and (len(self._queue) + self._session.pending_count) * limit_factor <= UNANSWERED_REQUESTS_MAX
            and not self._admission.is_over
        ) or (self._frame is not None and not self._is_writing_paused and not self._is_draining)
        if self._admission.is_over:
            self._admission.when_free(self._update_reading)
        if wanted and self._is_reading_paused:
            self._is_reading_paused = False
            transport.resume_reading()
        elif not wanted and not self._is_reading_paused:
            self._is_reading_paused = True
            transport.pause_reading()
