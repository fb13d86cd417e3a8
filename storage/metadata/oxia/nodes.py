"""Connections to Oxia's nodes, one per address, made when first used."""

import contextlib
import ssl
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

import grpc
from google.protobuf.message import DecodeError

from storage.metadata.oxia import wire_pb2 as wire
from storage.metadata.oxia.credentials import Token, channel_credentials, tls_context
from storage.metadata.oxia.direct import DirectCalls
from storage.metadata.oxia.http2 import RESPONSE_BYTES_MAX
from storage.metadata.oxia.location import OxiaAccess

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


C = TypeVar("C", bound=Callable[..., Any])
Spawn = Callable[[Coroutine[Any, Any, None], str], object]


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
    ) -> None:
        self.address = address
        options = _OPTIONS if server_name is None else (*_OPTIONS, ("grpc.ssl_target_name_override", server_name))
        self._channel = channel = (
            grpc.aio.insecure_channel(address, options=options) if tls is None else grpc.aio.secure_channel(address, tls, options=options)
        )

        def bearing(method: C) -> C:
            return method if token is None else _bearing(method, token)

        self._direct = DirectCalls(address, service=_SERVICE, tls=direct_tls, server_name=server_name, token=token, spawn=spawn)
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


def _messages(answer: bytes | None) -> list[bytes]:
    """What a call for one message gave: None of gRPC is an answer that has none."""
    return [] if answer is None else [answer]


def _bearing(method: C, token: Token) -> C:
    """With the token of the moment. Not by gRPC's call credentials, which start a thread for each request, nor by an interceptor, which
    makes a task for it."""

    def call(request: Any, *, timeout: float | None = None) -> Any:
        return method(request, timeout=timeout, metadata=token.metadata())

    return call  # type: ignore[return-value]


class Nodes:
    def __init__(self, *, access: OxiaAccess, token: Token | None, spawn: Spawn) -> None:
        """Raise `Unavailable`, in one line with the fix, for files of `access` that cannot serve."""
        self._tls = channel_credentials(access)
        self._direct_tls = tls_context(access)
        self._server_name = access.server_name
        self._token = token
        self._spawn = spawn
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
            )
        return node

    async def close(self) -> None:
        nodes, self._nodes = self._nodes, {}
        for node in nodes.values():
            await node.close()
