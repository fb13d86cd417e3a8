"""A connection without a network: a transport that obeys, requests that a test answers when it likes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any

from broker.addresses import Addresses, ClientAddress
from broker.admission import Admission
from broker.connection import Connection, Requests
from broker.dispatch import Client, Done, Start
from broker.protocol.wire import ProtocolViolation
from broker.responses import Responses
from runtime.frames import FRAME_OVERHEAD_BYTES, Account, Frame, make_frame
from runtime.supervision import Nursery
from runtime.telemetry import Telemetry
from storage.limits import FRAME_BYTES_MAX, MIB
from storage.vocabulary import Buffer
from tests.unit.process.http.manual_clock import ManualClock

BUDGET_BYTES = 64 * MIB


def cost(*sizes: int) -> int:
    """What frames of these sizes count."""
    return sum(sizes) + len(sizes) * FRAME_OVERHEAD_BYTES


def occupied(budget: Account, size_bytes: int) -> Frame:
    """Memory that others hold."""
    return make_frame(memoryview(bytes(size_bytes)), Account(budget))


def framed(*bodies: bytes) -> bytes:
    return b"".join(len(body).to_bytes(4, "big") + body for body in bodies)


def unframed(stream: bytes) -> list[bytes]:
    found = []
    while stream:
        length = int.from_bytes(stream[:4], "big")
        found.append(stream[4 : 4 + length])
        stream = stream[4 + length :]
    return found


class Timers:
    """Timers of a loop that go off when a test says so."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def later(self, after_s: float, call: Callable[[], None]) -> None:
        self.calls.append(call)

    def go_off(self, times: int = 1) -> None:
        for _ in range(times):
            calls, self.calls = self.calls, []
            for call in calls:
                call()


class FakeTransport(asyncio.Transport):
    """Reads and writes nothing by itself. Asserts what asyncio's and uvloop's transports do not forgive."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = bytearray()
        self.is_paused = False
        self.is_aborted = False
        self.has_written_eof = False
        self.unwritten_bytes = 0
        self.when_written: Callable[[], None] = lambda: None
        self._is_closing = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("10.0.0.7", 4711) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high is not None

    def get_write_buffer_size(self) -> int:
        return self.unwritten_bytes

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        self._is_closing = True

    def abort(self) -> None:
        self._is_closing = self.is_aborted = True

    def write_eof(self) -> None:
        assert not self._is_closing
        assert not self.has_written_eof
        self.has_written_eof = True

    def pause_reading(self) -> None:
        assert not self.is_paused
        assert not self._is_closing
        self.is_paused = True

    def resume_reading(self) -> None:
        assert self.is_paused
        assert not self._is_closing
        self.is_paused = False

    def write(self, data: Any) -> None:
        self.writelines([data])

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        assert not self._is_closing
        assert not self.has_written_eof
        for piece in list_of_data:
            self.sent += piece
        self.when_written()


class FakeRequests:
    """Judges frames by their first byte: P overlaps, W overlaps but has to be prepared, V turns out to run alone when it is prepared, ! is
    a violation, anything else runs alone; F is a Fetch, R is answered together with those like it.

    `begun` are the bodies that were begun, in order; `answer` finishes one of them.
    """

    def __init__(self) -> None:
        self.begun: list[bytes] = []
        self.instant: bytes | None = None
        """With this reply every overlapping request is answered before `start` returns."""
        self.start_fails: type[Exception] | None = None
        self._done: dict[bytes, tuple[memoryview, Done]] = {}
        self.waiting: dict[bytes, asyncio.Future[Sequence[Buffer] | None]] = {}

    def is_overlapping(self, frame: memoryview) -> bool:
        if bytes(frame[:1]) == b"!":
            raise ProtocolViolation("not a frame")
        return bytes(frame[:1]) in (b"P", b"W", b"V")

    def is_fetch(self, frame: memoryview) -> bool:
        return bytes(frame[:1]) == b"F"

    def is_repeated(self, frame: memoryview) -> bool:
        return bytes(frame[:1]) == b"R"

    def start(self, frame: memoryview, connection: Client, done: Done) -> bool:
        if bytes(frame[:1]) in (b"W", b"V"):
            return False
        self._begin(frame, done)
        return True

    async def prepare(self, frame: memoryview, connection: Client) -> Start | None:
        body = bytes(frame)
        if body[:1] == b"V":
            return None
        await self._wait(b"prepare " + body)

        def start(frame: memoryview, connection: Client, done: Done) -> bool:
            self._begin(frame, done)
            return True

        return start

    async def handle(self, frame: memoryview, connection: Client) -> Sequence[Buffer] | None:
        if len(frame) < 2:
            raise ProtocolViolation("no header")
        return await self._wait(bytes(frame))

    async def handle_repeated(self, frames: Sequence[memoryview], connection: Client) -> list[Sequence[Buffer] | None]:
        bodies = [bytes(frame) for frame in frames]
        await self._wait(b" ".join(bodies))
        return [[body] for body in bodies]

    def answer(self, body: bytes, reply: bytes | None = b"") -> None:
        """Finish what was begun with `body`; the reply is `body` again unless given."""
        payload = None if reply is None else [reply or body]
        if body in self._done:
            _, done = self._done.pop(body)
            done(payload)
        else:
            self.waiting.pop(body).set_result(payload)

    def fail(self, body: bytes, error: Exception) -> None:
        self.waiting.pop(body).set_exception(error)

    def _begin(self, frame: memoryview, done: Done) -> None:
        body = bytes(frame)
        self.begun.append(body)
        self._done[body] = frame, done  # held until it is done, as the log does
        if self.instant is not None:
            self.answer(body, self.instant)
        if self.start_fails is not None:
            raise self.start_fails

    async def _wait(self, body: bytes) -> Sequence[Buffer] | None:
        self.begun.append(body)
        self.waiting[body] = asyncio.get_running_loop().create_future()
        return await self.waiting[body]


class Play:
    """One connection; `receive` is what the client sends."""

    def __init__(
        self,
        *,
        budget_bytes: int = BUDGET_BYTES,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        nursery: Nursery | None = None,
        soon: Callable[[Callable[[], None]], object] = lambda call: call(),
        requests: Requests | None = None,
        admission: Admission | None = None,
        address: ClientAddress | None = None,
    ) -> None:
        """`requests` in place of those that a test answers by hand; `admission` and `address` of other connections in place of its own."""
        self.clock = ManualClock()
        self.requests = FakeRequests()
        self.timers = Timers()
        self.admission = admission or Admission(bytes_max=budget_bytes, telemetry=Telemetry(), soon=soon, later=self.timers.later)
        self.responses = Responses(bytes_max=budget_bytes, telemetry=Telemetry(), soon=soon)
        self.transport = FakeTransport()
        self.violations = 0
        self.parting = b""
        """What a client is sent that is refused."""
        self.evicted_for: list[str] = []
        self.is_lost = False
        self.unread = bytearray()
        self._nursery = nursery
        self._task: asyncio.Task[None] | None = None
        self.connection = Connection(
            requests=requests or self.requests,
            admission=self.admission,
            responses=self.responses,
            frame_bytes_max=frame_bytes_max,
            listener="PLAINTEXT",
            address=address or Addresses(requests=self.admission, replies=self.responses).of("10.0.0.7"),
            on_made=self._on_made,
            on_lost=self._on_lost,
            on_refused=self._on_refused,
            on_evicted=self._on_evicted,
            now_s=self.clock.monotonic_s,
            soon=soon,
        )
        self.connection.connection_made(self.transport)

    def receive(self, *bodies: bytes) -> None:
        self.receive_bytes(framed(*bodies))

    def receive_bytes(self, data: bytes, *, chunk_bytes: int = 1 << 30) -> None:
        """In chunks of at most `chunk_bytes`, while the connection reads; the rest stays with the kernel."""
        self.unread += data
        self.read_on(chunk_bytes=chunk_bytes)

    def read_on(self, *, chunk_bytes: int = 1 << 30) -> None:
        while self.unread and not self.transport.is_paused and not self.transport.is_closing():
            buffer = self.connection.get_buffer(-1)
            assert len(buffer) > 0, "an empty buffer is an error to asyncio"
            size = min(len(buffer), len(self.unread), chunk_bytes)
            buffer[:size] = self.unread[:size]
            del self.unread[:size]
            self.connection.buffer_updated(size)

    def lose(self) -> None:
        self.connection.connection_lost(None)

    @property
    def replies(self) -> list[bytes]:
        return unframed(bytes(self.transport.sent))

    def _on_made(self, connection: Connection) -> None:
        if self._nursery is not None:
            self._task = self._nursery.spawn(connection.run(), name="connection")

    def _on_lost(self, connection: Connection) -> None:
        self.is_lost = True
        if self._task is not None:
            self._task.cancel()
            self._task = None  # a cancelled task keeps where it was, and all that was there

    def _on_refused(self, connection: Connection, reason: ProtocolViolation) -> bytes:
        self.violations += 1
        return self.parting

    def _on_evicted(self, connection: Connection, reason: str) -> None:
        self.evicted_for.append(reason)


@contextlib.asynccontextmanager
async def playing(
    *,
    budget_bytes: int = BUDGET_BYTES,
    requests: Requests | None = None,
    soon: Callable[[Callable[[], None]], object] = lambda call: call(),
) -> AsyncIterator[Play]:
    """A connection whose `run` runs."""
    async with Nursery() as nursery:
        yield Play(budget_bytes=budget_bytes, nursery=nursery, requests=requests, soon=soon)


async def settle() -> None:
    """Let everything run that can."""
    for _ in range(10):
        await asyncio.sleep(0)
