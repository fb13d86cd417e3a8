"""A Kafka client that is one socket: frames as bytes, and kio's requests and responses of any version. Every wait has a deadline."""

import contextlib
import io
import socket
import struct
from typing import Any, Self, cast

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from tests.kit.serving import HOST

ANSWER_WITHIN_S = 40.0
CLIENT_ID = "raw"
API_VERSIONS = 18


def request_class(api_key: int, version: int) -> Any:
    """kio's request; of the classes inside it, `getattr(module_of(…), name)`."""
    return load_request_schema(api_key, version)


def header(api_key: int, version: int, *, correlation_id: int = 1, client_id: str | None = CLIENT_ID, tags: bytes | None = None) -> bytes:
    """A request header. `tags` None: none, for versions known to be flexible the empty section."""
    name = b"\xff\xff" if client_id is None else struct.pack(">h", len(client_id)) + client_id.encode()
    fixed = struct.pack(">hhi", api_key, version, correlation_id) + name
    return fixed + (tags if tags is not None else b"\x00" if is_flexible(api_key, version) else b"")


def is_flexible(api_key: int, version: int) -> bool:
    try:
        return bool(load_request_schema(api_key, version).__header_schema__.__flexible__)
    except Exception:  # noqa: BLE001 - kio does not know the version: nor does the broker
        return False


def body_of(request: object) -> bytes:
    buffer = io.BytesIO()
    entity_writer(cast("Any", type(request)))(buffer, cast("Any", request))
    return buffer.getvalue()


def frame_of(request: object, *, correlation_id: int = 1) -> bytes:
    """A whole frame without its length."""
    cls = cast("Any", type(request))
    return header(cls.__api_key__, cls.__version__, correlation_id=correlation_id) + body_of(request)


def prefixed(*frames: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)


class RawClient:
    """Use it by `with`. `receive` answers None when the broker has closed the connection."""

    def __init__(self, port: int, *, receive_buffer_bytes: int | None = None) -> None:
        self._socket = socket.socket()
        if receive_buffer_bytes is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self._socket.settimeout(ANSWER_WITHIN_S)
        try:
            self._socket.connect((HOST, port))
        except OSError:
            self._socket.close()
            raise
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def wait_at_most(self, seconds: float) -> None:
        """For each piece of what comes."""
        self._socket.settimeout(seconds)

    def finish_sending(self) -> None:
        # The broker may have closed the connection: then nothing is sent any more either way.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def send_bytes(self, data: bytes) -> bool:
        """False if the broker has closed the connection."""
        try:
            self._socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def send(self, *frames: bytes) -> bool:
        return self.send_bytes(prefixed(*frames))

    def send_what_fits(self, data: bytes) -> int:
        """Without waiting; how many bytes the kernel took."""
        self._socket.setblocking(False)
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
        except (BrokenPipeError, ConnectionResetError):
            return 0
        finally:
            self._socket.settimeout(ANSWER_WITHIN_S)

    def receive(self) -> bytes | None:
        """The next frame without its length. Raise TimeoutError when none comes."""
        prefix = self._take(4)
        if prefix is None:
            return None
        return self._take(int.from_bytes(prefix, "big"))

    def is_closed_by_broker(self) -> bool:
        """Wait for the end; False if a frame comes instead. Raise TimeoutError when neither comes."""
        return self.receive() is None

    def ask(self, request: object, *, correlation_id: int = 1) -> Any:
        """kio's response to kio's request."""
        assert self.send(frame_of(request, correlation_id=correlation_id))
        return self.answer_to(request, correlation_id=correlation_id)

    def answer_to(self, request: object, *, correlation_id: int = 1) -> Any:
        cls = cast("Any", type(request))
        return self.answer(cls.__api_key__, cls.__version__, correlation_id=correlation_id)

    def answer(self, api_key: int, version: int, *, correlation_id: int = 1) -> Any:
        """The next frame, read as the response of this version."""
        frame = self.receive()
        assert frame is not None, "the broker closed the connection"
        schema = load_response_schema(api_key, version)
        header_bytes = 5 if schema.__header_schema__.__flexible__ else 4
        assert int.from_bytes(frame[:4], "big") == correlation_id
        entity, size = entity_reader(schema)(frame, header_bytes)
        assert header_bytes + size == len(frame), "bytes are left over"
        return entity

    def _take(self, size: int) -> bytes | None:
        while len(self._received) < size:
            try:
                more = self._socket.recv(256 * 1024)
            except ConnectionResetError:
                return None
            if not more:
                return None
            self._received += more
        taken = bytes(self._received[:size])
        del self._received[:size]
        return taken


def is_serving(port: int) -> bool:
    """Whether a new connection gets an answer."""
    with RawClient(port) as client:
        client.send(header(API_VERSIONS, 0, correlation_id=77))
        frame = client.receive()
    return frame is not None and frame[:4] == (77).to_bytes(4, "big")
