"""Connections to Oxia's nodes, one per address, made when first used.

gRPC connects, checks who the node is, and reads streams. Small requests go over a connection of our own where there is one
(docs/internals/adr/0026): `DirectCalls` connects only to a node that has answered through gRPC. While there is no such connection, or no
room on it, a request goes through gRPC. So what fails to connect is explained in one place.

Certificates are read once. The token goes with every request as `authorization: Bearer …`. Its file is looked at again while requests go
out, because what issues tokens puts new ones there.
"""

import asyncio
import contextlib
import pkgutil
import socket
import ssl
import struct
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import grpc
import structlog
from google.protobuf.message import DecodeError

from runtime.clock import Clock
from storage.errors import Unavailable
from storage.metadata.oxia import wire_pb2 as wire
from storage.metadata.oxia.http2 import RESPONSE_BYTES_MAX, ConnectionBroken, Http2Connection, literals
from storage.metadata.oxia.limits import DEFAULT_LIMITS, OxiaLimits
from storage.metadata.oxia.location import OxiaAccess

LOOK_AGAIN_S: Final = 5.0
TOKEN_BYTES_MAX: Final = 64 * 1024
CONNECT_TIMEOUT_S: Final = 2.0
_KEEPALIVE: Final = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 2), ("TCP_USER_TIMEOUT", 5_000))
"""A peer that is gone without a word is found out, whether something is sent to it or not."""
_DROP_UNSENT: Final = struct.pack("ii", 1, 0)
"""For SO_LINGER. Otherwise the kernel goes on sending what it holds of a closed connection: a write that was given up, whose outcome is
unknown, could arrive minutes later, over those that came after it."""
CONNECT_TIMEOUT_MS: Final = 2_000
RECONNECT_BACKOFF_MS_MAX: Final = 1_000
CLOSE_TIMEOUT_S: Final = 2.0
_SERVICE: Final = "/io.streamnative.oxia.proto.OxiaClient/"
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", RESPONSE_BYTES_MAX),
    # A peer that is gone without a word is found out by pings; Oxia refuses those that come more often than every 5 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    # This also bounds an attempt to connect.
    ("grpc.min_reconnect_backoff_ms", CONNECT_TIMEOUT_MS),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", RECONNECT_BACKOFF_MS_MAX),
    # What is tried again is decided here, not there: a write may be sent once only.
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.service_config_disable_resolution", 1),
)

Metadata = tuple[tuple[str, str], ...]
C = TypeVar("C", bound=Callable[..., Any])
Spawn = Callable[[Coroutine[Any, Any, None], str], object]

log = structlog.get_logger(__name__)


class Token:
    """The token in a file. Its text is in no message."""

    def __init__(self, path: str, *, clock: Clock) -> None:
        """Raise `Unavailable`, in one line with the fix, if there is none."""
        self._path = Path(path)
        self._clock = clock
        self._is_failing = False
        self._metadata: Metadata = _bearer(self._path)
        self._look_at_s = clock.monotonic_s() + LOOK_AGAIN_S

    def metadata(self) -> Metadata:
        """What goes with a request now. A file that cannot be read any more leaves what it held last: the server says if it is too old."""
        now_s = self._clock.monotonic_s()
        if now_s >= self._look_at_s:
            self._look_at_s = now_s + LOOK_AGAIN_S
            try:
                self._metadata = _bearer(self._path)
            except Unavailable as error:
                if not self._is_failing:
                    log.warning("oxia_token_unreadable", cause=str(error))
                self._is_failing = True
            else:
                self._is_failing = False
        return self._metadata


def channel_credentials(access: OxiaAccess) -> grpc.ChannelCredentials | None:
    """None without TLS. Raise `Unavailable`, in one line with the fix, for files that cannot serve."""
    if not access.tls:
        return None
    ca = None if access.ca_file is None else _read("ca_file", access.ca_file)
    if ca is not None:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=ca.decode(errors="replace"))
        except ssl.SSLError:
            raise Unavailable(f"ca_file {access.ca_file} holds no certificate in PEM: correct metadata.url") from None
    if access.cert_file is None or access.key_file is None:
        return grpc.ssl_channel_credentials(root_certificates=ca)
    certificate, key = _read("cert_file", access.cert_file), _read("key_file", access.key_file)
    try:
        # A key behind a password cannot be asked for: gRPC takes none.
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(access.cert_file, access.key_file, password="")
    except (ssl.SSLError, ValueError) as error:
        raise Unavailable(
            f"cert_file {access.cert_file} and key_file {access.key_file} are no certificate and its key in PEM, without a password "
            f"({getattr(error, 'reason', None) or 'unreadable'}): correct metadata.url"
        ) from None
    return grpc.ssl_channel_credentials(root_certificates=ca, private_key=key, certificate_chain=certificate)


def tls_context(access: OxiaAccess) -> ssl.SSLContext | None:
    """What `channel_credentials` found to be in order, for connections of our own. None without TLS."""
    if not access.tls:
        return None
    context = ssl.create_default_context(cafile=access.ca_file, cadata=None if access.ca_file else _grpc_authorities())
    context.set_alpn_protocols(["h2"])
    if access.cert_file is not None and access.key_file is not None:
        context.load_cert_chain(access.cert_file, access.key_file, password="")
    return context


_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}


class _OutOfTime(Exception):
    pass


class DirectCalls:
    """`spawn` runs a task until it ends or `close` is called."""

    def __init__(
        self,
        address: str,
        *,
        service: str,
        tls: ssl.SSLContext | None,
        server_name: str | None,
        token: Token | None,
        spawn: Spawn,
        limits: OxiaLimits = DEFAULT_LIMITS,
    ) -> None:
        self._address = address
        self._tls = tls
        self._server_name = server_name
        self._service = service
        self._token = token
        self._spawn = spawn
        self._connections: list[Http2Connection] = []
        """The last is in use, those before it are waited for."""
        self._is_connecting = False
        self._is_failing = False
        self._useless: Http2Connection | None = None
        """The last that broke before it had answered: it failed once, however many requests were under way on it."""
        self._is_closed = False
        self._not_before_s = 0.0
        self._first_pause_s, self._pause_s_max = limits.connect_pause_s, limits.connect_pause_s_max
        self._pause_s = self._first_pause_s
        self._headers_bytes_max = limits.headers_bytes_max
        self._headers: dict[str, bytes] = {}

    def has_room_for(self, method: str, message: bytes) -> bool:
        """Whether `call` sends this request at once."""
        return (
            bool(self._connections)
            and self._connections[-1].has_room_for(len(message))
            and (self._token is None or len(self._headers_of(method)) <= self._headers_bytes_max)
        )

    async def call(self, method: str, message: bytes, *, timeout_s: float) -> tuple[bytes, ...]:
        """The answer to a request for which there is room, message after message. Raise `AioRpcError`, as gRPC would."""
        connection = self._connections[-1]
        heard = connection.heard
        deadline = literals({"grpc-timeout": f"{int(timeout_s * 1e3) + 1}m"})
        number, reply = connection.send(self._headers_of(method) + deadline, message)

        def end() -> None:
            if not reply.done():
                reply.set_exception(_OutOfTime())

        timer = asyncio.get_running_loop().call_later(timeout_s, end)
        try:
            status, reason, messages = await reply
        except ConnectionBroken as error:
            if not (connection.has_answered or connection is self._useless or self._is_closed):
                self._useless = connection
                self._note_failure(str(error))
            raise _error(grpc.StatusCode.UNAVAILABLE, str(error)) from None
        except _OutOfTime:
            connection.give_up(number)
            if connection.heard == heard:
                connection.retire()  # it may be the connection that is dead: the next request takes another
            raise _error(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded") from None
        except asyncio.CancelledError:
            connection.give_up(number)
            raise
        finally:
            timer.cancel()
        self._is_failing, self._pause_s = False, self._first_pause_s
        if status:
            raise _error(_CODES.get(status, grpc.StatusCode.UNKNOWN), reason)
        return messages

    def note_answer(self) -> None:
        """The node has answered through gRPC: connect to it, unless there is a connection, or an attempt was just made."""
        if self._is_closed or self._is_connecting or (self._connections and not self._connections[-1].is_retired):
            return
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._not_before_s:
            self._not_before_s = now_s + self._pause_s
            connecting = self._connect()
            try:
                self._spawn(connecting, f"oxia connection to {self._address}")
            except RuntimeError:  # the one who runs our tasks is being ended: the answer counts all the same
                connecting.close()
            else:
                self._is_connecting = True

    def close(self) -> None:
        """End what is under way."""
        self._is_closed = True
        for connection in self._connections:
            connection.abort("the metadata store is closed")

    async def _connect(self) -> None:
        host, _, port = self._address.rpartition(":")
        host = host.strip("[]")
        server_name = None if self._tls is None else self._server_name or host
        connection: Http2Connection | None = None
        try:
            if server_name is not None:
                server_name.encode("idna")  # as ssl does, which asyncio learns of when it has a socket, and leaves that open
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                transport, connection = await asyncio.get_running_loop().create_connection(
                    Http2Connection,
                    host,
                    int(port),
                    ssl=self._tls,
                    server_hostname=server_name,
                )
                set_options(transport.get_extra_info("socket"))
                await connection.ready
        # ValueError and TypeError: an address, or a name for TLS, that only gRPC takes.
        except (OSError, TimeoutError, ConnectionBroken, ValueError, TypeError) as error:
            self._note_failure(str(error) or "no answer in time")
        else:
            if not self._is_closed:
                self._connections = [*(each for each in self._connections if not each.is_over), connection]
                connection = None
        finally:
            self._is_connecting = False
            if connection is not None:
                connection.abort("not connected in time")

    def _note_failure(self, cause: str) -> None:
        """A connection was not made, or ended before it was of use: the next attempt comes later, and the log says so once."""
        if not self._is_failing:
            log.warning("oxia_direct_connection_failed", address=self._address, cause=cause)
        self._is_failing = True
        self._not_before_s = asyncio.get_running_loop().time() + self._pause_s
        self._pause_s = min(2 * self._pause_s, self._pause_s_max)

    def _headers_of(self, method: str) -> bytes:
        headers = self._headers.get(method)
        if headers is None:
            headers = self._headers[method] = literals(
                {
                    ":method": "POST",
                    ":scheme": "http" if self._tls is None else "https",
                    ":path": f"{self._service}{method}",
                    ":authority": self._server_name or self._address,
                    "te": "trailers",
                    "content-type": "application/grpc",
                }
            )
        return headers if self._token is None else headers + literals(dict(self._token.metadata()), is_secret=True)


def set_options(connected: Any) -> None:
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _DROP_UNSENT)
    for name, value in _KEEPALIVE:
        if (option := getattr(socket, name, None)) is not None:
            connected.setsockopt(socket.IPPROTO_TCP, option, value)


class OxiaNode:
    """The methods of one node, as gRPC has them: they raise `grpc.aio.AioRpcError`."""

    __slots__ = (
        "_channel",
        "_direct",
        "_read",
        "_read_one",
        "_write",
        "address",
        "close_session",
        "create_session",
        "get_notifications",
        "get_shard_assignments",
        "keep_alive",
        "list",
        "range_scan",
    )

    def __init__(
        self,
        address: str,
        *,
        tls: grpc.ChannelCredentials | None,
        direct_tls: ssl.SSLContext | None,
        server_name: str | None,
        token: Token | None,
        spawn: Spawn,
        limits: OxiaLimits = DEFAULT_LIMITS,
    ) -> None:
        self.address = address
        options = _OPTIONS if server_name is None else (*_OPTIONS, ("grpc.ssl_target_name_override", server_name))
        self._channel = channel = (
            grpc.aio.insecure_channel(address, options=options) if tls is None else grpc.aio.secure_channel(address, tls, options=options)
        )

        def bearing(method: C) -> C:
            return method if token is None else _bearing(method, token)

        self._direct = DirectCalls(
            address, service=_SERVICE, tls=direct_tls, server_name=server_name, token=token, spawn=spawn, limits=limits
        )
        self._write: Any = bearing(channel.unary_unary(f"{_SERVICE}Write"))
        self._read: Any = bearing(channel.unary_stream(f"{_SERVICE}Read"))
        # The answer to one get is one message. Taken so, it costs two thirds of a stream that is read to its end.
        self._read_one: Any = bearing(channel.unary_unary(f"{_SERVICE}Read"))
        self.list = bearing(channel.unary_stream(f"{_SERVICE}List", wire.ListRequest.SerializeToString, wire.ListResponse.FromString))
        self.range_scan = bearing(
            channel.unary_stream(f"{_SERVICE}RangeScan", wire.RangeScanRequest.SerializeToString, wire.RangeScanResponse.FromString)
        )
        self.get_shard_assignments = bearing(
            channel.unary_stream(
                f"{_SERVICE}GetShardAssignments", wire.ShardAssignmentsRequest.SerializeToString, wire.ShardAssignments.FromString
            )
        )
        self.get_notifications = bearing(
            channel.unary_stream(
                f"{_SERVICE}GetNotifications", wire.NotificationsRequest.SerializeToString, wire.NotificationBatch.FromString
            )
        )
        self.create_session = bearing(
            channel.unary_unary(
                f"{_SERVICE}CreateSession", wire.CreateSessionRequest.SerializeToString, wire.CreateSessionResponse.FromString
            )
        )
        self.keep_alive = bearing(
            channel.unary_unary(f"{_SERVICE}KeepAlive", wire.SessionHeartbeat.SerializeToString, wire.KeepAliveResponse.FromString)
        )
        self.close_session = bearing(
            channel.unary_unary(f"{_SERVICE}CloseSession", wire.CloseSessionRequest.SerializeToString, wire.CloseSessionResponse.FromString)
        )

    async def write(self, request: wire.WriteRequest, *, timeout: float) -> wire.WriteResponse | None:
        """None: the answer cannot be read."""
        message = request.SerializeToString()
        direct = self._direct
        if direct.has_room_for("Write", message):
            answers: Sequence[bytes] = await direct.call("Write", message, timeout_s=timeout)
        else:
            answers = _messages(await self._write(message, timeout=timeout))
            direct.note_answer()
        try:
            (answer,) = answers
            return wire.WriteResponse.FromString(answer)
        except (ValueError, DecodeError):
            return None

    async def read(self, request: wire.ReadRequest, *, timeout: float) -> list[wire.GetResponse]:
        """Fewer answers than gets: what came after them cannot be read."""
        message = request.SerializeToString()
        direct = self._direct
        if direct.has_room_for("Read", message):
            answers: Sequence[bytes] = await direct.call("Read", message, timeout_s=timeout)
        elif len(request.gets) == 1:
            answers = _messages(await self._read_one(message, timeout=timeout))
            direct.note_answer()
        else:
            call = self._read(message, timeout=timeout)
            try:
                answers = [answer async for answer in call]
            finally:
                call.cancel()
            direct.note_answer()
        found: list[wire.GetResponse] = []
        with contextlib.suppress(DecodeError):
            for answer in answers:
                found += wire.ReadResponse.FromString(answer).gets
        return found

    def is_connected(self) -> bool:
        """Whether there is a connection; one is tried for if there is none."""
        return self._channel.get_state(try_to_connect=True) is grpc.ChannelConnectivity.READY

    async def close(self) -> None:
        """Requests that are under way end as cancelled, or as not to be reached."""
        self._direct.close()
        await self._channel.close()


class Nodes:
    def __init__(self, *, access: OxiaAccess, token: Token | None, spawn: Spawn, limits: OxiaLimits = DEFAULT_LIMITS) -> None:
        """Raise `Unavailable`, in one line with the fix, for files of `access` that cannot serve."""
        self._tls = channel_credentials(access)
        self._direct_tls = tls_context(access)
        self._server_name = access.server_name
        self._token = token
        self._spawn = spawn
        self._limits = limits
        self._nodes: dict[str, OxiaNode] = {}

    def at(self, address: str) -> OxiaNode:
        node = self._nodes.get(address)
        if node is None:
            node = self._nodes[address] = OxiaNode(
                address,
                tls=self._tls,
                direct_tls=self._direct_tls,
                server_name=self._server_name,
                token=self._token,
                spawn=self._spawn,
                limits=self._limits,
            )
        return node

    async def close(self) -> None:
        nodes, self._nodes = self._nodes, {}
        for node in nodes.values():
            await node.close()


def _bearer(path: Path) -> Metadata:
    try:
        with path.open("rb") as file:
            content = file.read(TOKEN_BYTES_MAX + 1)
    except OSError as error:
        raise Unavailable(f"token_file {path} cannot be read ({error.strerror}): correct metadata.url") from None
    token = content.strip()
    if not token:
        raise Unavailable(f"token_file {path} is empty: write the token into it")
    if len(content) > TOKEN_BYTES_MAX or not token.isascii() or any(byte <= 0x20 or byte == 0x7F for byte in token):
        raise Unavailable(f"token_file {path} holds more than a token: write the token into it and nothing else")
    return (("authorization", f"Bearer {token.decode()}"),)


def _grpc_authorities() -> str | None:
    roots = pkgutil.get_data("grpc._cython", "_credentials/roots.pem")
    return None if roots is None else roots.decode()


def _read(name: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise Unavailable(f"{name} {path} cannot be read ({error.strerror}): correct metadata.url") from None


def _error(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)


def _messages(answer: bytes | None) -> list[bytes]:
    """What a call for one message gave: None of gRPC is an answer that has none."""
    return [] if answer is None else [answer]


def _bearing(method: C, token: Token) -> C:
    """With the token of the moment. Not by gRPC's call credentials, which start a thread for each request, nor by an interceptor, which
    makes a task for it."""

    def call(request: Any, *, timeout: float | None = None) -> Any:
        return method(request, timeout=timeout, metadata=token.metadata())

    return call  # type: ignore[return-value]
