"""One client connection: bytes in, frames out, back-pressure both ways.

A `BufferedProtocol`: small frames are cut from an arena, a large one is received straight into a buffer of its own. Produce requests
overlap; any other request starts when all earlier ones have been answered; replies leave in order. Reading pauses while the client does
not take its replies, while too much of what it sent is unanswered, and while what it sent next has to wait for memory.

Requests are frames of the broker's budget (broker.admission), which counts them for as long as anybody holds them: what the log still holds
for a client that left is memory all the same. Replies count in another (broker.responses) until the client has taken them. Both know how
much of it is its address's (broker.addresses).

`frame_length` and `ReplyOrder` are pure: one judges a length before anything is allocated, the other numbers requests, so that replies
leave in order. `Requests` is the port to what answers (broker/dispatch.py).
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol, cast

from broker.addresses import ClientAddress
from broker.admission import Admission
from broker.dispatch import Client, Done, Start, Unanswerable
from broker.protocol.produce import LonePrefix
from broker.protocol.wire import OtherProtocol, ProtocolViolation
from broker.responses import Responses
from process.accepting import unacknowledged_bytes
from runtime.frames import Frame
from storage.limits import FRAME_BYTES_MAX, KIB, MIB
from storage.vocabulary import Buffer

PREFIX_BYTES: Final = 4
TLS: Final = "TLS"
HTTP: Final = "HTTP"
_TLS_HANDSHAKE: Final = b"\x16\x03"
_HTTP_METHODS: Final = frozenset({b"GET ", b"HEAD", b"POST", b"PUT ", b"PATC", b"DELE", b"OPTI", b"CONN", b"TRAC", b"PRI "})

assert FRAME_BYTES_MAX < int.from_bytes(_TLS_HANDSHAKE + b"\0\0", "big") < min(int.from_bytes(one, "big") for one in _HTTP_METHODS), (
    "no request has such a length"
)

ARENA_BYTES: Final = 64 * KIB
OWN_BUFFER_FROM_BYTES: Final = 16 * KIB
"""A frame that is not complete gets a buffer of its own when this much of it has arrived."""
FRAME_GROWTH: Final = 4
"""That buffer is at most this many times what has arrived: the claim of a length costs the broker nothing."""
PROVEN_BYTES_MAX: Final = 2 * MIB
"""Whoever has sent a frame of a size gets room for the next one of that size at once, up to this."""
UNANSWERED_BYTES_MAX: Final = 8 * MIB
UNANSWERED_REQUESTS_MAX: Final = 512
GATHERED_BYTES_MAX: Final = 64 * KIB
TOGETHER_BYTES_MAX: Final = 8 * KIB
"""Repeated requests that are answered together. Their replies are hardly larger."""
BEGUN_PER_TURN_BYTES: Final = 2 * ARENA_BYTES
"""Per turn, of requests that waited. More than one read brings, so that requests arriving together begin together."""
NO_MEMORY: Final = "the system has no memory for its request"
STOPPED_S: Final = 10.0
"""A client that stopped in the middle of a request, or of taking a reply, does not go on if it was silent for so long."""

assert OWN_BUFFER_FROM_BYTES + PREFIX_BYTES < ARENA_BYTES, "what stays in the arena leaves room for more"


class Requests(Protocol):
    """What a connection hands its frames to."""

    def is_overlapping(self, frame: memoryview) -> bool:
        """True for a request that may run beside others of its connection. Raises `ProtocolViolation`."""
        ...

    def is_fetch(self, frame: memoryview) -> bool: ...

    def is_repeated(self, frame: memoryview) -> bool:
        """True for a request that may be answered together with others like it that come next."""
        ...

    def start(self, frame: memoryview, connection: Client, done: Done) -> bool:
        """Begin an overlapping request; `done` is called once. False: it has to wait for something first, use `prepare`.

        Like all of these, raises `ProtocolViolation` or `Unanswerable`: the caller closes the connection.
        """
        ...

    async def prepare(self, frame: memoryview, connection: Client) -> Start | None:
        """Wait for what an overlapping request needs; the answer is a `start` that begins it, or None: `handle` it. Cancelled: nothing was
        begun.
        """
        ...

    async def handle(self, frame: memoryview, connection: Client) -> Sequence[Buffer] | None:
        """The reply to a request that does not overlap, from its header on. The frame may be released before it is there."""
        ...

    async def handle_repeated(self, frames: Sequence[memoryview], connection: Client) -> list[Sequence[Buffer] | None]:
        """As `handle`, of several that `is_repeated`, in their order."""
        ...


def frame_length(prefix: Buffer) -> int:
    """Bytes that follow the four of `prefix`. Raise `ProtocolViolation` before anything of that size is allocated, `OtherProtocol` if they
    are the beginning of one that is known."""
    assert len(prefix) == PREFIX_BYTES
    length = int.from_bytes(prefix, "big", signed=True)
    if not 0 <= length <= FRAME_BYTES_MAX:
        began = bytes(prefix)
        if began.startswith(_TLS_HANDSHAKE):
            raise OtherProtocol(TLS, began)
        if began in _HTTP_METHODS:
            raise OtherProtocol(HTTP, began)
        raise ProtocolViolation(f"frame length out of bounds: length={length} maximum={FRAME_BYTES_MAX}")
    return length


class ReplyOrder:
    """Numbers requests as they arrive and releases replies in that order, whatever order they are finished in."""

    __slots__ = ("_finished", "_next", "_oldest")

    def __init__(self) -> None:
        self._next = 0
        self._oldest = 0
        self._finished: dict[int, Sequence[Buffer] | None] = {}

    def begin(self) -> int:
        """A request has arrived; its number is what `reply` takes."""
        number = self._next
        self._next += 1
        return number

    @property
    def begun_count(self) -> int:
        return self._next

    @property
    def pending_count(self) -> int:
        return self._next - self._oldest

    def reply(self, number: int, payload: Sequence[Buffer] | None) -> list[Buffer]:
        """Finish a request. `payload`: the reply from its header on, or None where the client expects none (acks=0).

        Returns what may be sent now, frame lengths included; empty while an earlier request is unfinished.
        """
        finished = self._finished
        assert self._oldest <= number < self._next, f"not a request that is waited for: {number}"
        assert number not in finished, f"answered twice: request {number}"
        finished[number] = payload
        ready: list[Buffer] = []
        while self._oldest in finished:
            body = finished.pop(self._oldest)
            self._oldest += 1
            if body is not None:
                ready.append(sum(map(len, body)).to_bytes(4, "big"))
                ready.extend(body)
        return ready


class Connection(asyncio.BufferedProtocol):
    """`run` must be running from `connection_made` on; it ends with the connection."""

    def __init__(
        self,
        *,
        requests: Requests,
        admission: Admission,
        responses: Responses,
        frame_bytes_max: int,
        listener: str,
        address: ClientAddress,
        on_made: Callable[["Connection"], None],
        on_lost: Callable[["Connection"], None],
        on_refused: Callable[["Connection", ProtocolViolation], bytes],
        on_evicted: Callable[["Connection", str], None],
        now_s: Callable[[], float],
        soon: Callable[[Callable[[], None]], object],
    ) -> None:
        """`soon` calls back after what is ready now, as `call_soon` of the loop does. `on_refused`: the client sent what it may not; it is
        sent what is returned. `on_evicted`: it may, but others need the memory.
        """
        self._requests = requests
        self._admission = admission
        self._responses = responses
        self._on_made = on_made
        self._on_lost = on_lost
        self._on_refused = on_refused
        self._on_evicted = on_evicted
        self._now_s = now_s
        self._soon = soon
        self._frame_bytes_max = frame_bytes_max
        self.listener = listener
        self.address = address
        self.client_host = ""
        self.client_id: str | None = None
        self.lone_prefix: LonePrefix | None = None
        self.last_active_s = now_s()
        self._reply_order = ReplyOrder()
        self._outgoing: list[Buffer] = []
        self._outgoing_bytes = 0
        self._unwritten_bytes = 0
        self._untaken_seen_bytes = 0
        self._covered_bytes = 0
        self._when_written: list[Callable[[], None]] = []
        self._when_next_written: list[Callable[[], None]] = []
        self._next_covered_bytes = 0
        self._when_followed: Callable[[], None] | None = None
        self._transport: asyncio.Transport | None = None
        self._socket_fd = -1
        self._arena = bytearray(ARENA_BYTES)
        self._arena_view = memoryview(self._arena)
        self._arena_filled = 0
        self._frame: Frame | None = None
        self._frame_filled = 0
        self._frame_length = 0
        self._proven_bytes = 0
        self._is_starved = False
        self.is_resting = False
        self._goes_on = False
        self._queue: deque[Frame] = deque()
        self.unanswered_bytes = 0
        self._overlapping = 0
        self._is_busy = False
        self._is_fetching = False
        """It is busy with nothing but a Fetch."""
        self._is_advancing = False
        self._handed_over: asyncio.Queue[tuple[int, memoryview, bool]] = asyncio.Queue(maxsize=1)
        self._is_reading_paused = False
        self._is_writing_paused = False
        self._is_lost = False
        self._is_finishing = False
        self._is_draining = False
        self.has_parted = False
        """The end of our stream has been sent."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        # Nothing may wait there unnoticed: `pause_writing` says that something does, `resume_writing` that all of it was taken.
        self._transport.set_write_buffer_limits(high=0)
        peer, sock = transport.get_extra_info("peername"), transport.get_extra_info("socket")
        self.client_host = str(peer[0]) if peer else ""
        self._socket_fd = -1 if sock is None else sock.fileno()
        self._on_made(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - as asyncio calls it
        self._is_lost = True
        self._responses.note_taken(self)
        self._let_go()
        self._outgoing = []
        self._when_written += self._when_next_written
        self._when_next_written = []
        self._note_written()
        self._on_lost(self)

    def _let_go(self) -> None:
        """Let go of everything received and not begun. Requests already begun go on without us, and die when they are done."""
        self._queue.clear()
        while not self._handed_over.empty():
            self._handed_over.get_nowait()
        self._end_frame()
        self._is_starved = False
        self._admission.forget(self)

    def _end_frame(self) -> None:
        if self._frame is not None:
            self._admission.end(self)
            self._frame = None

    def close(self) -> None:
        """Close after what is buffered for the client has been sent."""
        self._send()
        if self._transport is not None and not self._is_lost:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None and not self._is_lost:
            self._transport.abort()

    def evict(self, reason: str) -> None:
        """Let go of what was received, and close without waiting for the client to take its replies."""
        if self._transport is not None and not self._is_lost and not self._transport.is_closing():
            self._on_evicted(self, reason)
        self._let_go()
        self.abort()

    @property
    def arrived_bytes(self) -> int:
        return self._frame_filled

    @property
    def whole_bytes(self) -> int:
        return self._frame_length

    @property
    def request_count(self) -> int:
        return self._reply_order.begun_count

    @property
    def is_idle(self) -> bool:
        """Nothing is under way. Requests that were received may still wait for the client to take its replies."""
        return self._reply_order.pending_count == 0

    @property
    def is_silent(self) -> bool:
        """Nothing is under way, or its client stopped in the middle of it."""
        if self.is_between_requests and not self._is_writing_paused:
            return True
        self.note_progress()
        return self.waits_for_client and not self._is_starved and self._now_s() - self.last_active_s > STOPPED_S

    @property
    def is_waiting(self) -> bool:
        """Nothing under way changes anything."""
        return not self._overlapping and (not self._is_busy or self._is_fetching)

    def untaken_bytes(self) -> int:
        """Bytes of replies that the client has not taken, wherever they wait on this machine."""
        if self._transport is None or self._is_lost:
            return 0
        return self._transport.get_write_buffer_size() + unacknowledged_bytes(self._socket_fd)

    def note_progress(self) -> None:
        """A client that takes its replies slowly is not silent."""
        if self._is_writing_paused and (left_bytes := self.untaken_bytes()) != self._untaken_seen_bytes:
            self._untaken_seen_bytes = left_bytes
            self.last_active_s = self._now_s()

    @property
    def has_partial_request(self) -> bool:
        """A large request of it has not arrived whole."""
        return self._frame is not None

    @property
    def is_holding_memory(self) -> bool:
        """It is up to the client how long requests are held: until it sends the rest of one, takes its replies, or its long poll ends."""
        is_held_up = self._is_writing_paused or self._is_busy
        return self.has_partial_request or (is_held_up and bool(self._queue))

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
        self._end_frame()
        self._is_starved = False
        self._admission.forget(self)
        self._arena_filled = 0
        self._transport.write_eof()
        self._update_reading()

    # Receiving

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - as asyncio calls it
        frame = self._frame
        if frame is None:
            return self._arena_view[self._arena_filled :]
        return memoryview(frame)[self._frame_filled : self._frame_filled + self._admission.readable_bytes]

    def buffer_updated(self, nbytes: int) -> None:
        if self.has_parted:
            return
        self.last_active_s = self._now_s()
        try:
            frame = self._frame
            if frame is not None:
                self._frame_filled += nbytes
                self.is_resting = self._admission.note_read(nbytes, self._read_on)
                if self._frame_filled == self._frame_length:
                    self.unanswered_bytes += len(frame)
                    self._proven_bytes = min(PROVEN_BYTES_MAX, max(self._proven_bytes, len(frame)))
                    self._queue.append(frame)
                    self._end_frame()
                elif self._frame_filled == len(frame):
                    self._frame = self._admission.grow(frame, min(self._frame_length, len(frame) * FRAME_GROWTH), self)
            else:
                self._arena_filled += nbytes
                self._cut_frames()
            self._advance()
            self._tell_followed()
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
                    self._frame_length, self._frame_filled = length, filled - begin
                    is_proven = length <= self._proven_bytes
                    room_bytes = length if is_proven else min(length, self._frame_filled * FRAME_GROWTH)
                    self._frame = self._admission.begin(view[begin:filled], room_bytes, self)
                    if self._frame is None:
                        self._frame_filled = 0
                        self._starve(length)
                    else:
                        position = filled
                break
            frame = self._admission.admit(view[begin : begin + length], self)
            if frame is None:
                self._starve(length)
                break
            self.unanswered_bytes += length
            self._queue.append(frame)
            position = begin + length
        if position == filled:
            self._arena_filled = 0
        elif position:
            self._arena[: filled - position] = self._arena[position:filled]
            self._arena_filled = filled - position

    def _read_on(self) -> None:
        self.is_resting = False
        self._update_reading()

    def _starve(self, wanted_bytes: int) -> None:
        self._is_starved = True
        self._admission.when_room(wanted_bytes, self, self._on_room)

    def _on_room(self) -> None:
        self._is_starved = False
        self.last_active_s = self._now_s()
        try:
            self._cut_frames()
            self._advance()
            self._tell_followed()
        except (ProtocolViolation, Unanswerable) as reason:
            self._refuse(reason)
        except MemoryError:
            self.evict(NO_MEMORY)  # the caller has others to call
        self._update_reading()

    # Requests

    def _advance(self) -> None:
        """Start what may start: overlapping requests at once, another one alone."""
        if self._is_advancing:
            return  # a request was answered while it was being started: the loop that started it goes on
        self._is_advancing = True
        queue = self._queue
        try:
            begun_bytes = 0
            while queue and not self._is_busy and not self._is_writing_paused:
                if begun_bytes > BEGUN_PER_TURN_BYTES:
                    # Whoever comes next on this connection waits for its turn as well: order is kept.
                    if not self._goes_on:
                        self._goes_on = True
                        self._soon(self._go_on)
                    break
                begun_bytes += len(queue[0])
                frame = memoryview(queue[0])
                is_overlapping = self._requests.is_overlapping(frame)
                if not is_overlapping and self._overlapping:
                    break
                queue.popleft()
                number = self._reply_order.begin()
                if not is_overlapping or not self._start(number, frame, self._requests.start):
                    self._is_busy = True
                    self._is_fetching = self._requests.is_fetch(frame)
                    self._handed_over.put_nowait((number, frame, is_overlapping))
        finally:
            self._is_advancing = False

    def _advance_or_refuse(self) -> None:
        try:
            self._advance()
        except (ProtocolViolation, Unanswerable) as reason:
            self._refuse(reason)
        self._update_reading()

    def _go_on(self) -> None:
        self._goes_on = False
        if self.has_parted or self._is_lost:
            return
        self._advance_or_refuse()

    def _start(self, number: int, frame: memoryview, start: Callable[[memoryview, Client, Done], bool]) -> bool:
        """Begin an overlapping request."""
        size_bytes = len(frame)
        is_under_way = True

        def done(payload: Sequence[Buffer] | None) -> None:
            nonlocal is_under_way
            if is_under_way:
                is_under_way = False
                self._overlapping -= 1
                self._finish(number, payload, size_bytes)

        self._overlapping += 1
        is_started = False
        try:
            is_started = start(frame, self, done)
        finally:
            if not is_started and is_under_way:
                is_under_way = False
                self._overlapping -= 1
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
        number, frame, is_overlapping = await self._handed_over.get()
        if is_overlapping:
            start = await self._requests.prepare(frame, self)
            if start is not None:
                self._is_busy = False
                self._start(number, frame, start)
                self._advance()
                self._update_reading()
                return
        if not self._is_fetching and self._requests.is_repeated(frame):
            await self._run_repeated(number, frame)
            return
        size_bytes = len(frame)
        payload = await self._requests.handle(frame, self)
        self._is_busy = False
        if self._when_next_written:
            self._when_written += self._when_next_written
            self._covered_bytes += self._next_covered_bytes
            self._when_next_written, self._next_covered_bytes = [], 0
        self._finish(number, payload, size_bytes)

    async def _run_repeated(self, number: int, frame: memoryview) -> None:
        """Together with what is waiting behind it and is like it."""
        begun, frames, together_bytes = [(number, len(frame))], [frame], len(frame)
        while self._queue and not self._is_writing_paused:
            following = memoryview(self._queue[0])
            together_bytes += len(following)
            if together_bytes > TOGETHER_BYTES_MAX or not self._requests.is_repeated(following):
                break
            self._queue.popleft()
            begun.append((self._reply_order.begin(), len(following)))
            frames.append(following)
        payloads = await self._requests.handle_repeated(frames, self)
        frames.clear()
        self._is_busy = False
        for (one, size_bytes), payload in zip(begun, payloads, strict=True):
            self._finish(one, payload, size_bytes)

    def _finish(self, number: int, payload: Sequence[Buffer] | None, size_bytes: int) -> None:
        self.unanswered_bytes -= size_bytes
        ready = self._reply_order.reply(number, payload)
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
        self._advance_or_refuse()
        if self._is_finishing and self.is_idle:
            self._part_soon()

    def _send(self) -> None:
        outgoing, uncounted_bytes = self._outgoing, self._outgoing_bytes - self._covered_bytes
        self._outgoing, self._outgoing_bytes, self._covered_bytes = [], 0, 0
        transport = self._transport
        if not outgoing or transport is None or self._is_lost or transport.is_closing():
            return
        transport.writelines(outgoing)
        if transport.get_write_buffer_size():
            # All of it: the transport holds what it was given until the last byte was taken.
            self.address.replies.change(uncounted_bytes)
            self._unwritten_bytes += uncounted_bytes
        elif self._when_written:
            self._note_written()

    def until_written(self, release: Callable[[], None], covered_bytes: int) -> None:
        """Call `release` once when the reply to the request that runs alone, which comes next, was taken or never will be.

        `covered_bytes` of that reply are counted by whoever is called.
        """
        if self._is_lost:
            release()
            return
        self._when_next_written.append(release)
        self._next_covered_bytes += covered_bytes

    def when_followed(self, call: Callable[[], None] | None) -> None:
        """Call `call` once when a request other than a Fetch waits for the end of the one that runs alone, at once if one does. None: no
        longer. Clients that send one Fetch behind another gain nothing from an early answer, and would send the next.
        """
        self._when_followed = call
        self._tell_followed()

    def _tell_followed(self) -> None:
        call = self._when_followed
        if call is not None and self._is_busy and self._queue and not self._requests.is_fetch(memoryview(self._queue[0])):
            self._when_followed = None
            call()

    def _note_written(self) -> None:
        """All replies so far were taken, or will never be."""
        unwritten_bytes, self._unwritten_bytes = self._unwritten_bytes, 0
        self.address.replies.change(-unwritten_bytes)
        if self._when_written and not self._outgoing:
            when_written, self._when_written = self._when_written, []
            for release in when_written:
                release()

    def _refuse(self, reason: ProtocolViolation | Unanswerable) -> None:
        if isinstance(reason, ProtocolViolation):
            parting = self._on_refused(self, reason)
            if parting and self._transport is not None and not self._is_lost and not self._transport.is_closing():
                self._let_go()
                self._transport.write(parting)
                self._transport.close()
                return
        self._let_go()
        self.abort()

    # Back-pressure

    def pause_writing(self) -> None:
        self._is_writing_paused = True
        self._untaken_seen_bytes = self.untaken_bytes()
        self._responses.note_untaken(self)
        self._update_reading()

    def resume_writing(self) -> None:
        self._is_writing_paused = False
        self._responses.note_taken(self)
        self.last_active_s = self._now_s()
        self._note_written()
        self._advance_or_refuse()

    def _update_reading(self) -> None:
        transport = self._transport
        if transport is None or self._is_lost or transport.is_closing():
            return
        limit_factor = 1 if not self._is_reading_paused else 2  # go on only when half of the limit is free again
        if self.is_resting or self._is_writing_paused or self._is_draining:
            wanted = self.has_parted
        else:
            wanted = (
                self._frame is not None
                or self.has_parted
                or (
                    not self._is_starved
                    and self.unanswered_bytes * limit_factor <= UNANSWERED_BYTES_MAX
                    and (len(self._queue) + self._reply_order.pending_count) * limit_factor <= UNANSWERED_REQUESTS_MAX
                )
            )
        if wanted and self._is_reading_paused:
            self._is_reading_paused = False
            transport.resume_reading()
        elif not wanted and not self._is_reading_paused:
            self._is_reading_paused = True
            transport.pause_reading()
