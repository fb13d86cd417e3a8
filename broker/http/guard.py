"""The checks before every route: whether a request may be served, how much of its body is read and for how long; and its metrics.

A browser must not be made to speak for its user: there is no CORS, bodies have a type that no form can send, a foreign Origin is refused,
and so is a Host that is not this server's name (DNS rebinding).
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from ipaddress import ip_address
from typing import Any, Final, TypeVar, cast
from urllib.parse import urlsplit

import msgspec
import structlog
from aiohttp import web

from broker.addresses import ClientAddress
from broker.admission import Admission
from broker.http.errors import HttpError, invalid, too_busy
from broker.http.parts import HttpParts
from broker.responses import Room
from process.settings.notation import HttpAddress
from runtime.frames import Frame
from runtime.telemetry import Metric
from storage.errors import StorageError
from storage.limits import KIB, MIB

REQUESTS: Final = Metric("forebay_http_requests_total", "Requests of the HTTP API answered, by route and status", ("route", "status"))
REQUEST_SECONDS: Final = Metric(
    "forebay_http_request_duration_seconds",
    "From the head of a request of the HTTP API to the end of its answer",
    ("route",),
    buckets=(0.005, 0.025, 0.1, 0.5, 2.5, 10.0),
)
UNEXPECTED: Final = Metric("forebay_unexpected_errors_total", "Requests that failed in a way no handler foresaw; each is a bug")

JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
SCHEMAS: Final = "#/components/schemas/{name}"
CONSUMERS_MAX: Final = 1_000
"""Members of groups that a broker is for HTTP clients."""
BODY_WITHIN_S: Final = 30.0
ROOM_WITHIN_S: Final = 2.0
LISTED_WITHIN_S: Final = 30.0
"""A page of objects, those that others have asked for before it among them."""
ANSWER_TAKEN_WITHIN_S: Final = 60.0
LEFT_LOOK_S: Final = 1.0
FIRST_ROOM_BYTES: Final = 64 * KIB
"""For a body that does not say how long it is."""
TOKENS_MAX: Final = 1_000_000
"""In a JSON document, by their weight: to decode as much holds the loop for 25 ms. A brace takes as long as _BRACE_WEIGHT commas."""
_BRACE_WEIGHT: Final = 6
_HOPS: Final = 2_000
ANSWERED_AT_ONCE_BYTES: Final = 16 * KIB
"""A larger answer takes room in the budget of replies, and its client has a deadline for it."""
SAID_CHARS_MAX: Final = 500
"""An error repeats no more of what was sent."""
MEMORY_FACTOR: Final = 2.5
"""The memory of a document while it is read: itself, what is made of it, and half as much for small things."""

_log = structlog.get_logger("http")

T = TypeVar("T")
RouteHandler = Callable[["Asked"], Awaitable[web.StreamResponse]]


class Access(Enum):
    """The part of the API that a route belongs to: `http.log_api` says which are served."""

    OPEN = "open"
    READ = "read"
    WRITE = "write"
    ALTER = "alter"
    OPERATE = "operate"
    """As ALTER, and while the broker leaves, too."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """`log_api`: read_write, read or off. `allow_writes`: of topics and groups, by operators. `hosts` are further names of this server."""

    listen: HttpAddress
    log_api: str = "read_write"
    allow_writes: bool = False
    body_bytes_max: int = 16 * MIB
    hosts: tuple[str, ...] = ()
    idle_timeout_s: float = 600.0
    streams_max: int = 224
    partitions_max: int = 1_000
    records_max: int = 100_000
    consumers_max: int = CONSUMERS_MAX
    body_within_s: float = BODY_WITHIN_S
    room_within_s: float = ROOM_WITHIN_S
    listed_within_s: float = LISTED_WITHIN_S


class Asked:
    """A request on its way through a route."""

    __slots__ = ("_guard", "address", "client_host", "http")

    def __init__(self, guard: "Guard", http: web.Request, client_host: str, address: ClientAddress) -> None:
        self._guard = guard
        self.http = http
        self.client_host = client_host
        self.address = address

    @property
    def content_type(self) -> str:
        return self.http.content_type

    async def left(self) -> None:
        """Return some time after the client has closed its connection. aiohttp tells of it only who writes."""
        while (transport := self.http.transport) is not None and not transport.is_closing():  # noqa: ASYNC110 - no event tells of it
            await asyncio.sleep(LEFT_LOOK_S)

    async def answer(self, status: int, body: object) -> web.StreamResponse:
        """Answer with a value in JSON. Raise `HttpError` if there is no room for it."""
        data = msgspec.json.encode(body) + b"\n"
        if len(data) <= ANSWERED_AT_ONCE_BYTES:
            return web.Response(status=status, body=data, headers={"Content-Type": JSON})
        room = await self.room(len(data))
        try:
            return await self.send(status, data, room)
        finally:
            room.give_back()

    async def room(self, size_bytes: int) -> Room:
        """Take room for an answer, to be given back. Raise `HttpError` if there is none in time."""
        room = self._guard.parts.responses.room(self.address.replies)
        try:
            async with asyncio.timeout(self._guard.limits.room_within_s):
                await room.to_send(size_bytes)
        except TimeoutError:
            raise too_busy("other answers take the memory that this one needs") from None
        return room

    async def send(self, status: int, data: bytes, room: Room) -> web.StreamResponse:
        """Write a whole answer, and hold its room until the client has taken it, or has had its time."""
        room.settle(len(data))
        response = web.StreamResponse(status=status, headers={"Content-Type": JSON})
        response.content_length = len(data)
        taker, responses = HttpTaker(self), self._guard.parts.responses
        responses.note_untaken(taker)
        try:
            async with asyncio.timeout(ANSWER_TAKEN_WITHIN_S):
                await response.prepare(self.http)
                await response.write(data)
                await response.write_eof()
        except TimeoutError:
            taker.evict(f"it did not take its answer within {ANSWER_TAKEN_WITHIN_S:.0f} s")
            raise ConnectionResetError("the answer was not taken") from None
        finally:
            responses.note_taken(taker)
        return response

    @contextlib.asynccontextmanager
    async def document(self, decoder: "msgspec.json.Decoder[T]") -> AsyncIterator[tuple[T, "ReceivedBody"]]:
        """The body as a value, and the memory it takes, which is counted until the end of the context. Raise `HttpError`."""
        body = ReceivedBody(self._guard.parts.admission, self, self._guard.limits)
        try:
            await body.read()
            yield _decoded(decoder, body), body
        finally:
            body.close()


class ReceivedBody:
    """A body that is received, in the budget of requests. A sender of the admission: it may be evicted while it comes too slowly."""

    is_resting = False
    unanswered_bytes = 0

    def __init__(self, admission: Admission, asked: Asked, limits: HttpLimits) -> None:
        self._admission = admission
        self._asked = asked
        self._limits = limits
        self._frame: Frame | None = None
        self._is_begun = False
        self._beside_bytes = 0
        self.arrived_bytes = 0
        self.whole_bytes = 0

    @property
    def address(self) -> ClientAddress:
        return self._asked.address

    @property
    def view(self) -> memoryview:
        return memoryview(b"" if self._frame is None else self._frame)[: self.arrived_bytes]

    def evict(self, reason: str) -> None:
        _log.warning("http_body_evicted", client_host=self._asked.client_host, cause=reason, arrived_bytes=self.arrived_bytes)
        transport = self._asked.http.transport
        if transport is not None:
            transport.abort()

    async def hold(self, size_bytes: int) -> None:
        """Count as much that was received elsewhere. Raise `HttpError` if there is no room for it."""
        await self._begin(size_bytes)
        self.arrived_bytes = size_bytes
        self._note_arrived()
        self._frame = None
        self._beside_bytes += size_bytes
        self.address.change(size_bytes)

    async def read(self) -> None:
        """All of it. Raise `HttpError`: too large, too slow, or no room for it."""
        length, bytes_max = self._asked.http.content_length, self._limits.body_bytes_max
        if length is not None and length > bytes_max:
            raise _too_large(length, bytes_max)
        within_s = self._limits.body_within_s
        try:
            async with asyncio.timeout(within_s):
                await self._receive(length, bytes_max)
        except TimeoutError:
            text = f"the body did not arrive within {within_s:.0f} s: {self.arrived_bytes} bytes came"
            raise HttpError(408, "RequestTimeout", text) from None
        self._note_arrived()

    def _note_arrived(self) -> None:
        self._end()
        self._beside_bytes = int((MEMORY_FACTOR - 1) * self.arrived_bytes)
        self.address.change(self._beside_bytes)

    async def _receive(self, length: int | None, bytes_max: int) -> None:
        room_bytes = FIRST_ROOM_BYTES if length is None else length
        await self._begin(room_bytes)
        async for chunk in self._chunks():
            filled_bytes = self.arrived_bytes + len(chunk)
            if filled_bytes > bytes_max:
                raise _too_large(filled_bytes, bytes_max)
            if filled_bytes > room_bytes:
                room_bytes = min(max(4 * room_bytes, filled_bytes), bytes_max)
                await self._begin(room_bytes)
            assert self._frame is not None, "begun"
            memoryview(self._frame)[self.arrived_bytes : filled_bytes] = chunk
            self.arrived_bytes = filled_bytes

    async def _chunks(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._asked.http.content.iter_any():
                yield chunk
        except web.RequestPayloadError as error:
            raise invalid(f"the body cannot be read: {error}") from None

    async def _begin(self, room_bytes: int) -> None:
        """Have a frame of `room_bytes` that begins with what has arrived."""
        received = self.view
        self._end()
        self.whole_bytes = int(MEMORY_FACTOR * room_bytes)
        admitted = asyncio.Event()
        try:
            async with asyncio.timeout(self._limits.room_within_s):
                while (frame := self._admission.begin(received, room_bytes, self)) is None:
                    self._admission.when_room(self.whole_bytes, self, admitted.set)
                    await admitted.wait()
                    admitted.clear()
        except TimeoutError:
            raise too_busy("other requests take the memory that this one needs: nothing was read of it") from None
        finally:
            self._admission.forget(self)
        self._frame, self._is_begun = frame, True

    def _end(self) -> None:
        if self._is_begun:
            self._is_begun = False
            self._admission.end(self)

    def shrink(self, by_bytes: int) -> None:
        """A part of what was counted beside it is counted elsewhere now."""
        by_bytes = min(by_bytes, self._beside_bytes)
        self._beside_bytes -= by_bytes
        self.address.change(-by_bytes)

    def close(self) -> None:
        self._end()
        self.shrink(self._beside_bytes)
        self._frame = None


def _too_large(size_bytes: int, bytes_max: int) -> HttpError:
    text = f"the body has {size_bytes} bytes or more, and http.max_body_bytes is {bytes_max}: send less at a time, or a stream ({NDJSON})"
    return HttpError(413, "BodyTooLarge", text)


def _decoded(decoder: "msgspec.json.Decoder[T]", body: ReceivedBody) -> T:
    view = body.view
    if len(view) * _BRACE_WEIGHT > TOKENS_MAX < _weight(view):
        raise HttpError(413, "BodyTooLarge", f"the document has too many parts for one: send less at a time, or a stream ({NDJSON})")
    try:
        return decoder.decode(view)
    except msgspec.ValidationError as error:
        raise invalid(_said(str(error))) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise invalid(f"not JSON: {error}") from None
    except RecursionError:
        raise invalid("not JSON that can be read: it is nested too deeply") from None


def decoded_line(decoder: "msgspec.json.Decoder[T]", line: bytes, number: int) -> T:
    """A line of a stream. Raise `HttpError`, which says its number."""
    try:
        return decoder.decode(line)
    except msgspec.ValidationError as error:
        raise invalid(f"line {number}: {_said(str(error))}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid(f"line {number}: not JSON: {error}") from None


def _weight(view: memoryview) -> int:
    data = view.tobytes()
    return _count(data, b",") + _BRACE_WEIGHT * (_count(data, b"{") + _count(data, b"["))


def _count(data: bytes, byte: bytes) -> int:
    """As `data.count(byte)`, which looks at each byte: from one to the next takes a tenth of that, where there are few."""
    at = 0
    for count in range(_HOPS):
        at = data.find(byte, at) + 1
        if not at:
            return count
    return _HOPS + data.count(byte, at)


def _said(message: str) -> str:
    """`$.a[0].b` goes to the front: `a[0].b: expected an int`."""
    text, _, place = message.rpartition(" - at `")
    text, place = (text or message)[:SAID_CHARS_MAX], place[:SAID_CHARS_MAX] if text else ""
    if not place:
        return text
    return f"{place.rstrip('`').removeprefix('$').removeprefix('.') or 'the document'}: {text}"


class Guard:
    """Wraps the handlers of routes."""

    def __init__(self, parts: HttpParts, limits: HttpLimits) -> None:
        self.parts = parts
        self.limits = limits
        self._hosts = {"localhost", limits.listen.host.lower(), *(host.lower() for host in limits.hosts)}
        self._requests = parts.telemetry.counter(REQUESTS)
        self._seconds = parts.telemetry.histogram(REQUEST_SECONDS)
        self._unexpected = parts.telemetry.counter(UNEXPECTED)

    def wrap(self, route: str, access: Access, content_types: tuple[str, ...], handler: RouteHandler) -> Callable[[web.Request], Any]:
        """What aiohttp calls for a route. `content_types`: those that a body may have."""

        async def handle(request: web.Request) -> web.StreamResponse:
            began_s = self.parts.clock.monotonic_s()
            status = 500
            try:
                self._check(request, access, content_types)
                response = await handler(self._asked(request))
                status = response.status
            except HttpError as error:
                status = error.status
                response = error_response(error)
            except StorageError as error:
                status = 503
                response = error_response(HttpError(503, "StorageUnavailable", str(error), headers={"Retry-After": "1"}))
            except (ConnectionError, asyncio.CancelledError):
                status = 499  # the client has left; as others count it
                raise
            except Exception:  # noqa: BLE001 - a request that fails is answered, and is said to be a bug
                self._unexpected.inc()
                _log.exception("request_failed", route=route, client_host=_host_of(request))
                response = error_response(HttpError(500, "UnknownServerError", "this is a bug: the log of the broker has its trace"))
            finally:
                self._requests.labels(route, str(status)).inc()
                self._seconds.labels(route).observe(self.parts.clock.monotonic_s() - began_s)
            return response

        return handle

    def _asked(self, request: web.Request) -> Asked:
        host = _host_of(request)
        return Asked(self, request, host, self.parts.address_of(host))

    def _check(self, request: web.Request, access: Access, content_types: tuple[str, ...]) -> None:
        """Raise `HttpError` for what may not be asked."""
        host = _name_of(request.headers.get("Host", ""))
        if host and host not in self._hosts and not _is_address(host):
            text = f"this server is not called {host[:200]}: ask for its address, or add the name to http.hosts"
            raise HttpError(421, "MisdirectedRequest", text)
        origin = request.headers.get("Origin")
        if origin is not None and _site_of(origin) != request.headers.get("Host", "").lower():
            raise HttpError(403, "NotAuthorized", "requests of a browser that come from another site are not answered")
        self._check_access(access)
        if request.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise HttpError(415, "UnsupportedMediaType", "send bodies without a Content-Encoding")
        if content_types and request.method in ("POST", "PATCH", "PUT") and request.content_type not in content_types:
            text = f"the content-type is {request.headers.get('Content-Type', 'missing')[:200]}: send {' or '.join(content_types)}"
            raise HttpError(415, "UnsupportedMediaType", text)
        if self.parts.controlled_shutdown.is_refusing and access not in (Access.OPEN, Access.OPERATE):
            raise too_busy("this broker is shutting down: ask another")

    def _check_access(self, access: Access) -> None:
        """The one place that decides what is served. Logins and rights will be asked here, too."""
        log_api = self.limits.log_api
        if access is Access.READ and log_api == "off":
            raise HttpError(403, "NotAuthorized", "the HTTP API of the log is off: set http.log_api to read or read_write")
        if access is Access.WRITE and log_api != "read_write":
            raise HttpError(403, "NotAuthorized", f"nothing is written by HTTP, http.log_api is {log_api}: set it to read_write")
        if access in (Access.ALTER, Access.OPERATE) and not (self.limits.allow_writes and log_api == "read_write"):
            text = "topics, groups and brokers are not changed by HTTP: set http.allow_writes to true, and http.log_api to read_write"
            raise HttpError(403, "NotAuthorized", text)


def _host_of(request: web.Request) -> str:
    peer = request.transport.get_extra_info("peername") if request.transport is not None else None
    return str(peer[0]) if peer else ""


def _name_of(host: str) -> str:
    """The name in a Host header, without the port."""
    try:
        return host.lower() if "@" in host else (urlsplit(f"//{host}").hostname or host).lower()
    except ValueError:
        return host.lower()


def _site_of(origin: str) -> str:
    """Host and port, as a Host header has them; of an origin that is none, what it says."""
    try:
        return urlsplit(origin).netloc.lower() or origin
    except ValueError:
        return origin


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def one_of_each(*names: str) -> msgspec.Meta:
    """Say in the OpenAPI document that elements are of these types, which msgspec cannot tell apart."""
    return msgspec.Meta(extra_json_schema={"items": {"oneOf": [{"$ref": SCHEMAS.format(name=name)} for name in names]}})


def json_response(status: int, body: object, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(body) + b"\n", headers={"Content-Type": JSON} | (headers or {}))


def error_response(error: HttpError) -> web.Response:
    return json_response(error.status, {"error_type": error.error_type, "error": str(error)}, error.headers)


class HttpTaker:
    """A client that takes an answer: it loses its connection if it takes nothing while others wait for the memory of replies."""

    def __init__(self, asked: Asked) -> None:
        self.address = asked.address
        self._asked = asked

    def untaken_bytes(self) -> int:
        transport = self._asked.http.transport
        return 0 if transport is None else cast("asyncio.WriteTransport", transport).get_write_buffer_size()

    def evict(self, reason: str) -> None:
        _log.warning("http_reader_evicted", client_host=self._asked.client_host, cause=reason)
        transport = self._asked.http.transport
        if transport is not None:
            transport.abort()
