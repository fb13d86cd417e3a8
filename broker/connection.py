"""One client connection: bytes in, frames out, back-pressure both ways.

A `BufferedProtocol`: small frames are cut from an arena, a large one is received straight into a buffer of its own. Produce requests
overlap; any other request starts when all earlier ones have been answered; replies leave in order. Reading pauses while the client does
not take its replies, while too much of what it sent is unanswered, and while the whole broker is over its budget.

Bytes are counted from the moment they have a buffer until their request is answered, also if the connection is gone by then: what the log
still holds for a client that left is memory all the same.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol, cast

import structlog

from broker.admission import Admission
from broker.dispatch import Client, Done, Start, Unanswerable
from broker.protocol.errors import ProtocolViolation
from broker.protocol.framing import PREFIX_BYTES, frame_length
from broker.protocol.session import Session
from storage.limits import KIB, MIB
from storage.vocabulary import Buffer

ARENA_BYTES: Final = 64 * KIB
OWN_BUFFER_FROM_BYTES: Final = 16 * KIB
"""A frame that is not complete gets a buffer of its own when this much of it has arrived."""
FRAME_GROWTH: Final = 4
"""That buffer is at most this many times what has arrived: the claim of a length costs the broker nothing."""
UNANSWERED_BYTES_MAX: Final = 8 * MIB
UNANSWERED_REQUESTS_MAX: Final = 512
WRITE_BUFFER_BYTES_HIGH: Final = 256 * KIB
GATHERED_BYTES_MAX: Final = 64 * KIB

assert OWN_BUFFER_FROM_BYTES + PREFIX_BYTES < ARENA_BYTES, "what stays in the arena leaves room for more"

log = structlog.get_logger("connection")


class Requests(Protocol):
    """What a connection hands its frames to (broker.dispatch)."""

    def is_overlapping(self, frame: memoryview) -> bool:
        """True for a request that may run beside others of its connection. Raises `ProtocolViolation`."""
        ...

    def start(self, frame: memoryview, connection: Client, done: Done) -> bool:
        """Begin an overlapping request; `done` is called once. False: it has to wait for something first, use `prepare`.

        Raises `ProtocolViolation` or `Unanswerable`, as all of these: the connection is to be closed.
        """
        ...

    async def prepare(self, frame: memoryview, connection: Client) -> Start:
        """Wait for what an overlapping request needs; the answer is a `start` that begins it. Cancelled: nothing was begun."""
        ...

    async def handle(self, frame: memoryview, connection: Client) -> Sequence[Buffer] | None:
        """The reply to a request that does not overlap, from its header on."""
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
        on_violation: Callable[[], None],
        now_s: Callable[[], float],
        soon: Callable[[Callable[[], None]], object],
    ) -> None:
        """`soon` calls back after what is ready now, as `call_soon` of the loop does."""
        self._requests = requests
        self._admission = admission
        self._on_made = on_made
        self._on_lost = on_lost
        self._on_violation = on_violation
        self._now_s = now_s
        self._soon = soon
        self._frame_bytes_max = frame_bytes_max
        self.listener = listener
        self.client_host = ""
        self.client_id: str | None = None
        self.last_active_s = now_s()
        self._session = Session()
        self._outgoing: list[Buffer] = []
        self._outgoing_bytes = 0
        self._transport: asyncio.Transport | None = None
        self._arena = bytearray(ARENA_BYTES)
        self._arena_view = memoryview(self._arena)
        self._arena_filled = 0
        self._frame: bytearray | None = None
        self._frame_filled = 0
        self._frame_length = 0
        self._queue: deque[bytearray] = deque()
        self._unanswered_bytes = 0
        self._begun_bytes = 0
        self._overlapping = 0
        self._is_busy = False
        self._is_advancing = False
        self._handed_over: asyncio.Queue[tuple[int, memoryview]] = asyncio.Queue(maxsize=1)
        self._is_reading_paused = False
        self._is_writing_paused = False
        self._is_lost = False
        self._is_finishing = False
        self._is_draining = False
        self.has_parted = False
        """The end of our stream has been sent."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES_HIGH)
        peer = transport.get_extra_info("peername")
        self.client_host = str(peer[0]) if peer else ""
        self._on_made(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - as asyncio calls it
        self._is_lost = True
        self._queue.clear()
        self._frame = None
        self._admission.forget(self._update_reading)
        # What was begun goes on without us, and gives its bytes back itself.
        self._admission.give_back(self._unanswered_bytes - self._begun_bytes)
        self._unanswered_bytes = self._begun_bytes
        self._on_lost(self)

    def close(self) -> None:
        """Close after what is buffered for the client has been sent."""
        self._send()
        if self._transport is not None and not self._is_lost:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None and not self._is_lost:
            self._transport.abort()

    @property
    def is_idle(self) -> bool:
        """Nothing is under way. Requests that were received may still wait for the client to take its replies."""
        return self._session.pending_count == 0

    @property
    def is_hoarding(self) -> bool:
        """It is up to the client how long memory is held: until it sends the rest of a frame, takes its replies, or its long poll ends."""
        return self._frame is not None or self._is_writing_paused or (self._is_busy and bool(self._queue))

    @property
    def is_between_requests(self) -> bool:
        """Whatever was received has been answered."""
        return self.is_idle and not self._queue and self._frame is None and not self._arena_filled

    @property
    def waits_for_client(self) -> bool:
        """It is up to the client alone to go on: it takes no answers, or nothing is under way but, perhaps, half a request."""
        return self._is_writing_paused or (self.is_idle and not self._queue)

    def finish(self) -> None:
        """Close as soon as nothing that was received is unanswered; until then go on."""
        self._is_finishing = True
        self._part_soon()

    def drain(self) -> None:
        """Receive nothing more; close as soon as the requests that were received whole are answered, or the client takes no answers."""
        self._is_finishing = self._is_draining = True
        self._update_reading()
        if self._is_writing_paused:
            self.abort()
        else:
            self._part_soon()

    def _part_soon(self) -> None:
        # After two turns of the loop: it calls back what was asked for in a turn before what has arrived by the next one.
        def next_turn() -> None:
            self._soon(self._part_if_done)

        self._soon(next_turn)

    def _part_if_done(self) -> None:
        transport = self._transport
        if self.has_parted or self._is_lost or transport is None or transport.is_closing():
            return
        if self.is_between_requests or (self._is_draining and self.is_idle and not self._queue):
            self._part()

    def _part(self) -> None:
        """Send what is left to be sent, then the end of our stream; what still arrives is thrown away until the client closes.

        Closed at once, with bytes in the socket that nobody read, the connection would be reset: the client could lose our last answers.
        """
        assert self._transport is not None
        self._send()
        self.has_parted = True
        self._frame = None
        self._arena_filled = 0
        self._transport.write_eof()
        self._update_reading()

    # Receiving

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - as asyncio calls it
        frame = self._frame
        if frame is None:
            return self._arena_view[self._arena_filled :]
        return memoryview(frame)[self._frame_filled :]

    def buffer_updated(self, nbytes: int) -> None:
        if self.has_parted:
            return
        self.last_active_s = self._now_s()
        try:
            frame = self._frame
            if frame is not None:
                self._frame_filled += nbytes
                if self._frame_filled == self._frame_length:
                    self._frame = None
                    self._queue.append(frame)
                elif self._frame_filled == len(frame):
                    self._give_room(frame, counted_bytes=len(frame))
            else:
                self._arena_filled += nbytes
                self._cut_frames()
            self._advance()
        except (ProtocolViolation, Unanswerable) as reason:
            self._refuse(reason)
        self._update_reading()

    def _cut_frames(self) -> None:
        view, filled, position = self._arena_view, self._arena_filled, 0
        while filled - position >= PREFIX_BYTES:
            begin = position + PREFIX_BYTES
            length = frame_length(view[position:begin])
            if length > self._frame_bytes_max:
                raise ProtocolViolation(f"frame larger than kafka.max_request_bytes: bytes={length} max={self._frame_bytes_max}")
            if begin + length > filled:
                if filled - begin >= OWN_BUFFER_FROM_BYTES:
                    self._frame_length = length
                    self._frame_filled = filled - begin
                    self._give_room(view[begin:filled], counted_bytes=0)
                    position = filled
                break
            self._count(length)
            self._queue.append(bytearray(view[begin : begin + length]))
            position = begin + length
        if position == filled:
            self._arena_filled = 0
        elif position:
            self._arena[: filled - position] = self._arena[position:filled]
            self._arena_filled = filled - position

    def _give_room(self, received: bytearray | memoryview, *, counted_bytes: int) -> None:
        """Move the begun frame to a buffer with room for more of it."""
        room_bytes = min(self._frame_length, len(received) * FRAME_GROWTH)
        self._count(room_bytes - counted_bytes)
        # Not grown in place: the transport still holds a view of the old one.
        frame = bytearray(room_bytes)
        frame[: len(received)] = received
        self._frame = frame

    def _count(self, size_bytes: int) -> None:
        self._admission.take(size_bytes)
        self._unanswered_bytes += size_bytes

    # Requests

    def _advance(self) -> None:
        """Start what may start: overlapping requests at once, another one alone."""
        if self._is_advancing:
            return  # a request was answered while it was being started: the loop that started it goes on
        self._is_advancing = True
        try:
            self._start_queued(self._queue)
        finally:
            self._is_advancing = False

    def _start_queued(self, queue: deque[bytearray]) -> None:
        while queue and not self._is_busy and not self._is_writing_paused:
            frame = memoryview(queue[0])
            is_overlapping = self._requests.is_overlapping(frame)
            if not is_overlapping and self._overlapping:
                break
            queue.popleft()
            number = self._session.begin()
            if not is_overlapping or not self._start(number, frame, self._requests.start):
                self._is_busy = True
                self._handed_over.put_nowait((number, frame))

    def _start(self, number: int, frame: memoryview, start: Callable[[memoryview, Client, Done], bool]) -> bool:
        """Begin an overlapping request. From then on it, and nobody else, gives back its bytes, whenever it is done."""
        size_bytes = len(frame)
        is_under_way = True

        def done(payload: Sequence[Buffer] | None) -> None:
            nonlocal is_under_way
            if is_under_way:
                is_under_way = False
                self._overlapping -= 1
                self._begun_bytes -= size_bytes
                self._finish(number, payload, size_bytes)

        self._overlapping += 1
        self._begun_bytes += size_bytes
        is_started = False
        try:
            is_started = start(frame, self, done)
        finally:
            if not is_started and is_under_way:
                is_under_way = False
                self._overlapping -= 1
                self._begun_bytes -= size_bytes
        return is_started

    async def run(self) -> None:
        """Do what has to wait for something, one request after the other, until cancelled: the server does so at the end."""
        try:
            while True:
                await self._run_next()
        except (ProtocolViolation, Unanswerable) as reason:
            self._refuse(reason)

    async def _run_next(self) -> None:
        # In a method of its own, so that nothing refers to a frame while the next one is waited for.
        number, frame = await self._handed_over.get()
        if self._requests.is_overlapping(frame):
            start = await self._requests.prepare(frame, self)
            self._is_busy = False
            self._start(number, frame, start)
            self._advance()
            self._update_reading()
        else:
            payload = await self._requests.handle(frame, self)
            self._is_busy = False
            self._finish(number, payload, len(frame))

    def _finish(self, number: int, payload: Sequence[Buffer] | None, size_bytes: int) -> None:
        self._unanswered_bytes -= size_bytes
        self._admission.give_back(size_bytes)
        ready = self._session.reply(number, payload)
        transport = self._transport
        assert transport is not None
        if self._is_lost or transport.is_closing():
            return
        if ready:
            # Replies to requests that were committed together leave together: one call of the system for all, not one for each.
            # Not more than that: what waits here is not seen by the transport, which tells when the client does not take its replies.
            was_empty = not self._outgoing
            self._outgoing += ready
            self._outgoing_bytes += sum(map(len, ready))
            if self._outgoing_bytes > GATHERED_BYTES_MAX:
                self._send()
            elif was_empty:
                self._soon(self._send)
        try:
            self._advance()
        except (ProtocolViolation, Unanswerable) as reason:
            self._refuse(reason)
        self._update_reading()
        if self._is_finishing and self.is_idle:
            self._part_soon()

    def _send(self) -> None:
        outgoing, self._outgoing, self._outgoing_bytes = self._outgoing, [], 0
        if outgoing and self._transport is not None and not self._is_lost and not self._transport.is_closing():
            self._transport.writelines(outgoing)

    def _refuse(self, reason: ProtocolViolation | Unanswerable) -> None:
        if isinstance(reason, ProtocolViolation):
            self._on_violation()
            log.warning("protocol_violation", client_host=self.client_host, client_id=self.client_id, cause=str(reason))
        self._queue.clear()
        self.abort()

    # Back-pressure

    def pause_writing(self) -> None:
        self._is_writing_paused = True
        self._update_reading()

    def resume_writing(self) -> None:
        self._is_writing_paused = False
        self.last_active_s = self._now_s()
        try:
            self._advance()
        except (ProtocolViolation, Unanswerable) as reason:
            self._refuse(reason)
        self._update_reading()

    def _update_reading(self) -> None:
        transport = self._transport
        if transport is None or self._is_lost or transport.is_closing():
            return
        limit_factor = 1 if not self._is_reading_paused else 2  # go on only when half of the limit is free again
        wanted = (
            self.has_parted
            or (
                not self._is_writing_paused
                and not self._is_draining
                and self._unanswered_bytes * limit_factor <= UNANSWERED_BYTES_MAX
                and (len(self._queue) + self._session.pending_count) * limit_factor <= UNANSWERED_REQUESTS_MAX
                and not self._admission.is_over
            )
            or (self._frame is not None and not self._is_writing_paused and not self._is_draining)
        )
        if self._admission.is_over:
            self._admission.when_free(self._update_reading)
        if wanted and self._is_reading_paused:
            self._is_reading_paused = False
            transport.resume_reading()
        elif not wanted and not self._is_reading_paused:
            self._is_reading_paused = True
            transport.pause_reading()
