"""Requests of gRPC over one HTTP/2 connection, each of one message that fits the windows of its peer (docs/internals/adr/0026).

RFC 9113 (HTTP/2), RFC 7541 (HPACK), and PROTOCOL-HTTP2.md of gRPC. What a caller of small requests does not need is not here: no bodies
that wait for room, no streams of requests, no compression. This end sends its headers as literals, so it has no state of HPACK to keep, and
asks the peer to keep none: the same answer comes in the same bytes.
"""

import asyncio
from collections.abc import Mapping
from typing import Final, NamedTuple, cast
from urllib.parse import unquote

import hpack

RESPONSE_BYTES_MAX: Final = 128 * 1024 * 1024
REQUEST_BYTES_MAX: Final = 64 * 1024
"""A request is sent as a whole or left to others. What is larger costs more to make than to send."""
REQUESTS_MAX: Final = 1_000
"""Requests under way."""
HEADER_BYTES_MAX: Final = 64 * 1024
HEADERS_KEPT_MAX: Final = 64
"""Answers differ in little else than their data: these blocks are not decoded again."""
HEADERS_KEPT_BYTES_MAX: Final = 256


class FrameType:
    """Types of frames."""

    DATA: Final = 0
    HEADERS: Final = 1
    RST_STREAM: Final = 3
    SETTINGS: Final = 4
    PUSH_PROMISE: Final = 5
    PING: Final = 6
    GOAWAY: Final = 7
    WINDOW_UPDATE: Final = 8
    CONTINUATION: Final = 9


class SettingName:
    HEADER_TABLE_SIZE: Final = 1
    ENABLE_PUSH: Final = 2
    MAX_CONCURRENT_STREAMS: Final = 3
    INITIAL_WINDOW_SIZE: Final = 4


END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITY: Final = 0x20
_REFUSED_STREAM: Final = 7
_CANCEL: Final = 8
_FRAME_BYTES_MAX: Final = 16_384
"""What every peer takes, and what it may send."""
_WINDOW_BYTES: Final = 65_535
_WINDOW_BYTES_MAX: Final = 2**31 - 1
_WINDOW_UPDATED_AFTER_BYTES: Final = 1024 * 1024
STREAM_MAX: Final = 2**31 - 1

# Of gRPC's status codes, those that this end gives.
UNKNOWN, PERMISSION_DENIED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE, UNAUTHENTICATED = 2, 7, 12, 13, 14, 16
_STATUS_OF_HTTP: Final = {401: UNAUTHENTICATED, 403: PERMISSION_DENIED, 404: UNIMPLEMENTED} | dict.fromkeys(
    (429, 502, 503, 504), UNAVAILABLE
)


class CallReply(NamedTuple):
    """`status`: gRPC's, 0 if it went well; `messages` counts only then."""

    status: int
    reason: str
    messages: tuple[bytes, ...]


class ConnectionBroken(Exception):
    """The connection ended before the reply. Whether the request was carried out is not known."""


class _Violation(Exception):
    """What the peer sent is not HTTP/2."""


class _Stream:
    __slots__ = ("http_status", "parts", "reply", "size")

    def __init__(self, reply: asyncio.Future[CallReply]) -> None:
        self.reply = reply
        self.parts: list[bytes] = []
        self.size = 0
        self.http_status = 200


def framed(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """A frame as it is sent (RFC 9113, 4.1)."""
    return b"".join((len(payload).to_bytes(3, "big"), bytes((kind, flags)), stream.to_bytes(4, "big"), payload))


def literals(headers: Mapping[str, str], *, is_secret: bool = False) -> bytes:
    """Headers as HPACK writes them without a table (RFC 7541, 6.2.2); `is_secret`: no proxy may keep them in one either."""
    block = bytearray()
    for name, value in headers.items():
        block.append(0x10 if is_secret else 0x00)
        for text in (name.encode(), value.encode()):
            block += _length(len(text)) + text
    return bytes(block)


def _length(number: int) -> bytes:
    if number < 0x7F:
        return bytes((number,))
    encoded = bytearray((0x7F,))
    number -= 0x7F
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


HELLO: Final = b"".join(
    (
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        framed(
            FrameType.SETTINGS,
            0,
            0,
            b"".join(
                name.to_bytes(2, "big") + value.to_bytes(4, "big")
                for name, value in (
                    (SettingName.HEADER_TABLE_SIZE, 0),
                    (SettingName.ENABLE_PUSH, 0),
                    (SettingName.INITIAL_WINDOW_SIZE, RESPONSE_BYTES_MAX),
                )
            ),
        ),
        framed(FrameType.WINDOW_UPDATE, 0, 0, (_WINDOW_BYTES_MAX - _WINDOW_BYTES).to_bytes(4, "big")),
    )
)


class Http2Connection(asyncio.Protocol):
    """Made by `loop.create_connection`. `ready` is done when the peer has shown that it speaks HTTP/2, or the connection is over.

    A connection takes no more requests once it has given out `stream_max`.
    """

    def __init__(self, *, stream_max: int = STREAM_MAX) -> None:
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.heard = 0
        """Counts what came from the peer."""
        self.has_answered = False
        """Whether it was of use: a request was answered, well or not."""
        self._transport: asyncio.Transport | None = None
        self._streams: dict[int, _Stream] = {}
        self._next = 1
        self._stream_max = stream_max
        self._is_retired = False
        self._is_over = False
        self._is_full = False
        self._unread = b""
        self._window = _WINDOW_BYTES
        self._stream_window = _WINDOW_BYTES
        self._streams_max = REQUESTS_MAX
        self._unreported_bytes = 0
        self._headers: tuple[int, int, bytes] | None = None
        self._kept: dict[bytes, Mapping[str, str]] = {}

    def has_room_for(self, message_bytes: int) -> bool:
        """Whether a request of this size would be sent at once."""
        return (
            not (self._is_retired or self._is_full)
            and message_bytes + 5 <= min(self._window, self._stream_window, REQUEST_BYTES_MAX)
            and len(self._streams) < self._streams_max
        )

    def send(self, headers: bytes, message: bytes) -> tuple[int, asyncio.Future[CallReply]]:
        """Send a request for which there is room; the number is for `give_up`. The reply fails with `ConnectionBroken`."""
        assert self._transport is not None
        number = self._next
        self._next += 2
        if self._next > self._stream_max:
            self._is_retired = True
        reply: asyncio.Future[CallReply] = asyncio.get_running_loop().create_future()
        self._streams[number] = _Stream(reply)
        body = b"\x00" + len(message).to_bytes(4, "big") + message
        self._window -= len(body)
        if len(body) <= _FRAME_BYTES_MAX:
            data = framed(FrameType.DATA, END_STREAM, number, body)
        else:
            firsts = range(0, len(body), _FRAME_BYTES_MAX)
            data = b"".join(
                framed(FrameType.DATA, END_STREAM if first == firsts[-1] else 0, number, body[first : first + _FRAME_BYTES_MAX])
                for first in firsts
            )
        self._transport.write(framed(FrameType.HEADERS, END_HEADERS, number, headers) + data)
        return number, reply

    def give_up(self, number: int) -> None:
        """Nobody waits for this reply any more. Nothing to do if it has come."""
        if self._streams.pop(number, None) is not None:
            assert self._transport is not None
            self._transport.write(framed(FrameType.RST_STREAM, 0, number, _CANCEL.to_bytes(4, "big")))
            self._close_if_done()

    def retire(self) -> None:
        """Send no more requests. The connection ends with the last reply."""
        self._is_retired = True
        self._close_if_done()

    @property
    def is_retired(self) -> bool:
        """Whether it takes no more requests."""
        return self._is_retired

    @property
    def is_over(self) -> bool:
        return self._is_over

    def abort(self, reason: str) -> None:
        """End it now, with all that is under way."""
        self._is_retired = True
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            if not stream.reply.done():
                stream.reply.set_exception(ConnectionBroken(reason))
                stream.reply.exception()  # marks it retrieved: who asked may be gone
        if not self.ready.done():
            self.ready.set_exception(ConnectionBroken(reason))
            self.ready.exception()
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(HELLO)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_over = True
        self.abort(f"connection lost: {exc}" if exc else "connection closed")

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False

    def data_received(self, data: bytes) -> None:
        self.heard += 1
        if self._unread:
            data = self._unread + data
        begin, end = 0, len(data)
        try:
            while end - begin >= 9:
                size = int.from_bytes(data[begin : begin + 3], "big")
                if size > _FRAME_BYTES_MAX:
                    raise _Violation(f"a frame of {size} bytes")
                stop = begin + 9 + size
                if stop > end:
                    break
                number = int.from_bytes(data[begin + 5 : begin + 9], "big") & STREAM_MAX
                self._take(data[begin + 3], data[begin + 4], number, data[begin + 9 : stop])
                begin = stop
        except (_Violation, hpack.HPACKError, UnicodeDecodeError) as error:
            self.abort(f"what it sends is no answer in HTTP/2: {error}")
            return
        self._unread = data[begin:]
        if self._unreported_bytes >= _WINDOW_UPDATED_AFTER_BYTES:
            assert self._transport is not None
            self._transport.write(framed(FrameType.WINDOW_UPDATE, 0, 0, self._unreported_bytes.to_bytes(4, "big")))
            self._unreported_bytes = 0

    def _take(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if (self._headers is not None) != (kind == FrameType.CONTINUATION):
            raise _Violation(f"a frame of type {kind} within headers" if self._headers else "a continuation of nothing")
        if not self.ready.done() and kind != FrameType.SETTINGS:
            raise _Violation(f"a first frame of type {kind}")
        match kind:
            case FrameType.DATA:
                self._take_data(flags, number, payload)
            case FrameType.HEADERS:
                block = _without_padding(flags, payload)
                self._take_headers(flags, number, block[5:] if flags & PRIORITY else block)
            case FrameType.CONTINUATION:
                assert self._headers is not None
                first_flags, of, block = self._headers
                if of != number:
                    raise _Violation("headers of one stream within those of another")
                self._headers = None
                self._take_headers(first_flags & ~END_HEADERS | flags & END_HEADERS, number, block + payload)
            case FrameType.RST_STREAM:
                self._end(number, _reset(payload))
            case FrameType.SETTINGS:
                self._take_settings(flags, payload)
            case FrameType.PING if not flags & ACK:
                assert self._transport is not None
                self._transport.write(framed(FrameType.PING, ACK, 0, payload))
            case FrameType.GOAWAY:
                self._take_goaway(payload)
            case FrameType.WINDOW_UPDATE:
                # That of a stream is of no use: a request was sent as a whole.
                if number == 0:
                    self._window += int.from_bytes(payload, "big") & STREAM_MAX
            case FrameType.PUSH_PROMISE:
                raise _Violation("a push, which was ruled out")
            case _:
                pass

    def _take_settings(self, flags: int, payload: bytes) -> None:
        if flags & ACK:
            return
        if len(payload) % 6:
            raise _Violation(f"settings of {len(payload)} bytes")
        for first in range(0, len(payload), 6):
            value = int.from_bytes(payload[first + 2 : first + 6], "big")
            match int.from_bytes(payload[first : first + 2], "big"):
                case SettingName.MAX_CONCURRENT_STREAMS:
                    self._streams_max = min(value, REQUESTS_MAX)
                case SettingName.INITIAL_WINDOW_SIZE:
                    self._stream_window = value
                case _:
                    pass
        assert self._transport is not None
        self._transport.write(framed(FrameType.SETTINGS, ACK, 0, b""))
        if not self.ready.done():
            self.ready.set_result(None)

    def _take_goaway(self, payload: bytes) -> None:
        """What it has not looked at ends now; the rest is answered, and then the connection is over (RFC 9113, 6.8)."""
        last = int.from_bytes(payload[:4], "big") & STREAM_MAX
        self._is_retired = True
        for number in [number for number in self._streams if number > last]:
            self._end(number, CallReply(UNAVAILABLE, "the server goes away", ()))
        self._close_if_done()

    def _take_data(self, flags: int, number: int, payload: bytes) -> None:
        self._unreported_bytes += len(payload)
        stream = self._streams.get(number)
        if stream is None:  # given up
            return
        payload = _without_padding(flags, payload)
        stream.parts.append(payload)
        stream.size += len(payload)
        if stream.size > RESPONSE_BYTES_MAX:
            raise _Violation(f"an answer of more than {RESPONSE_BYTES_MAX} bytes")
        if flags & END_STREAM:
            self._end(number, _reply(stream, {}))

    def _take_headers(self, flags: int, number: int, block: bytes) -> None:
        if len(block) > HEADER_BYTES_MAX:
            raise _Violation(f"headers of more than {HEADER_BYTES_MAX} bytes")
        if not flags & END_HEADERS:
            self._headers = flags, number, block
            return
        stream = self._streams.get(number)
        if stream is None:  # given up
            return
        headers = self._decoded(block)
        if (http_status := headers.get(":status")) is not None:
            stream.http_status = _number(http_status)
        if flags & END_STREAM:
            self.has_answered = True
            self._end(number, _reply(stream, headers))

    def _decoded(self, block: bytes) -> Mapping[str, str]:
        headers = self._kept.get(block)
        if headers is None:
            decoder = hpack.Decoder(max_header_list_size=HEADER_BYTES_MAX)
            decoder.header_table_size = decoder.max_allowed_table_size = 0
            headers = {str(name): str(value) for name, value in decoder.decode(block)}
            if len(block) <= HEADERS_KEPT_BYTES_MAX and len(self._kept) < HEADERS_KEPT_MAX:
                self._kept[block] = headers
        return headers

    def _end(self, number: int, reply: CallReply) -> None:
        stream = self._streams.pop(number, None)
        if stream is not None:
            if not stream.reply.done():
                stream.reply.set_result(reply)
            self._close_if_done()

    def _close_if_done(self) -> None:
        if self._is_retired and not self._streams and self._transport is not None:
            self._transport.close()


def _without_padding(flags: int, payload: bytes) -> bytes:
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise _Violation("more padding than there is")
    return payload[1 : len(payload) - payload[0]]


def _reset(payload: bytes) -> CallReply:
    code = int.from_bytes(payload, "big")
    return CallReply(UNAVAILABLE if code == _REFUSED_STREAM else INTERNAL, f"the server ended the request with HTTP/2's code {code}", ())


def _reply(stream: _Stream, trailers: Mapping[str, str]) -> CallReply:
    """As PROTOCOL-HTTP2.md says: HTTP's status counts where gRPC's is missing."""
    status = _number(trailers.get("grpc-status", ""))
    if status < 0:
        if stream.http_status != 200:
            return CallReply(_STATUS_OF_HTTP.get(stream.http_status, UNKNOWN), f"HTTP status {stream.http_status}", ())
        return CallReply(UNKNOWN, "the answer has no status", ())
    if status:
        return CallReply(status, unquote(trailers.get("grpc-message", "")), ())
    body = stream.parts[0] if len(stream.parts) == 1 else b"".join(stream.parts)
    messages = []
    first = 0
    while first < len(body):
        end = first + 5 + int.from_bytes(body[first + 1 : first + 5], "big")
        if body[first] != 0 or end > len(body):
            return CallReply(INTERNAL, "the answer is compressed or cut short", ())
        messages.append(body[first + 5 : end])
        first = end
    return CallReply(0, "", tuple(messages))


def _number(text: str) -> int:
    """-1 for what is none of three digits."""
    return int(text) if len(text) <= 3 and text.isascii() and text.isdecimal() else -1
