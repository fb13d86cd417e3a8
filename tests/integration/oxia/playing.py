"""Nodes of Oxia that are played, for what a single real server never does: leaders that move, refusals, credentials that are checked.

A node leads the only shard, or says that another one does. What it stores it forgets: each answer is the same.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

import grpc

from storage.metadata.oxia import wire_pb2 as wire

SERVICE: Final = "io.streamnative.oxia.proto.OxiaClient"
VERSION: Final = 7
SESSION: Final = 11


class Refusal(NamedTuple):
    """What a server says instead of an answer. Oxia's own codes, 100 and above, reach a client in Python as UNKNOWN."""

    code: grpc.StatusCode
    words: str


class PlayedNode:
    """Answers every method, or says `refusal` to all but the assignments, which have one of their own. `asked` counts, `notify` hints."""

    def __init__(self) -> None:
        self.address = ""
        self.leader = ""
        self.refusal: Refusal | None = None
        self.assignments_refusal: Refusal | None = None
        self.asked: Counter[str] = Counter()
        self.held: set[str] = set()
        """Methods that are not answered."""
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.watchers: set[asyncio.Queue[str]] = set()
        self.listeners: set[asyncio.Queue[str]] = set()

    def claim(self, leader: str) -> None:
        """Tell everybody who listens that `leader` leads."""
        self.leader = leader
        for watcher in self.watchers:
            watcher.put_nowait(leader)

    def notify(self, path: str) -> None:
        for listener in self.listeners:
            listener.put_nowait(path)

    async def watched(self) -> None:
        """Return when somebody has heard what this node says of the leader, and listens for more."""
        while not self.watchers:  # noqa: ASYNC110 - the other side of a connection
            await asyncio.sleep(0.01)

    async def until_asked(self, method: str, times: int = 1) -> None:
        while self.asked[method] < times:  # noqa: ASYNC110 - the other side of a connection
            await asyncio.sleep(0.01)

    async def get_shard_assignments(self, request: wire.ShardAssignmentsRequest, context: Any) -> AsyncIterator[wire.ShardAssignments]:
        if self.assignments_refusal is not None:
            await context.abort(self.assignments_refusal.code, self.assignments_refusal.words)
        watcher: asyncio.Queue[str] = asyncio.Queue(10)
        leader = self.leader
        try:
            while True:
                whole = wire.Int32HashRange(min_hash_inclusive=0, max_hash_inclusive=2**32 - 1)
                shard = wire.ShardAssignment(shard=0, leader=leader, int32_hash_range=whole)
                assigned = wire.NamespaceShardsAssignment(assignments=[shard], shard_key_router=wire.XXHASH3)
                yield wire.ShardAssignments(namespaces={request.namespace: assigned})
                self.watchers.add(watcher)
                leader = await watcher.get()
        finally:
            self.watchers.discard(watcher)

    async def get_notifications(self, request: wire.NotificationsRequest, context: Any) -> AsyncIterator[wire.NotificationBatch]:
        await self._admit("GetNotifications", context)
        listener: asyncio.Queue[str] = asyncio.Queue(10)
        self.listeners.add(listener)
        try:
            yield wire.NotificationBatch(shard=0, offset=1)
            while True:
                yield wire.NotificationBatch(shard=0, offset=2, notifications={await listener.get(): wire.Notification()})
        finally:
            self.listeners.discard(listener)

    async def write(self, request: wire.WriteRequest, context: Any) -> wire.WriteResponse:
        await self._admit("Write", context)
        return wire.WriteResponse(puts=[wire.PutResponse(version=wire.Version(version_id=VERSION))] * len(request.puts))

    async def read(self, request: wire.ReadRequest, context: Any) -> AsyncIterator[wire.ReadResponse]:
        await self._admit("Read", context)
        yield wire.ReadResponse(gets=[wire.GetResponse(value=b"v", version=wire.Version(version_id=VERSION))] * len(request.gets))

    async def list(self, request: wire.ListRequest, context: Any) -> AsyncIterator[wire.ListResponse]:
        await self._admit("List", context)
        yield wire.ListResponse(keys=["llog/a/1", "llog/a/2"])

    async def range_scan(self, request: wire.RangeScanRequest, context: Any) -> AsyncIterator[wire.RangeScanResponse]:
        await self._admit("RangeScan", context)
        yield wire.RangeScanResponse(records=[wire.GetResponse(key="llog/a/1", value=b"v", version=wire.Version(version_id=VERSION))])

    async def create_session(self, request: wire.CreateSessionRequest, context: Any) -> wire.CreateSessionResponse:
        await self._admit("CreateSession", context)
        return wire.CreateSessionResponse(session_id=SESSION)

    async def keep_alive(self, request: wire.SessionHeartbeat, context: Any) -> wire.KeepAliveResponse:
        await self._admit("KeepAlive", context)
        return wire.KeepAliveResponse()

    async def close_session(self, request: wire.CloseSessionRequest, context: Any) -> wire.CloseSessionResponse:
        await self._admit("CloseSession", context)
        return wire.CloseSessionResponse()

    async def _admit(self, method: str, context: Any) -> None:
        self.asked[method] += 1
        await self.may_answer.wait()
        while method in self.held:  # noqa: ASYNC110 - until the client gives up
            await asyncio.sleep(0.01)
        if self.refusal is not None:
            await context.abort(self.refusal.code, self.refusal.words)

    def handlers(self) -> dict[str, "grpc.RpcMethodHandler[Any, Any]"]:
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
        return {
            method: kind(answer, request.FromString, response.SerializeToString)  # type: ignore[arg-type, operator]
            for method, kind, answer, request, response in (
                ("GetShardAssignments", stream, self.get_shard_assignments, wire.ShardAssignmentsRequest, wire.ShardAssignments),
                ("GetNotifications", stream, self.get_notifications, wire.NotificationsRequest, wire.NotificationBatch),
                ("Write", unary, self.write, wire.WriteRequest, wire.WriteResponse),
                ("Read", stream, self.read, wire.ReadRequest, wire.ReadResponse),
                ("List", stream, self.list, wire.ListRequest, wire.ListResponse),
                ("RangeScan", stream, self.range_scan, wire.RangeScanRequest, wire.RangeScanResponse),
                ("CreateSession", unary, self.create_session, wire.CreateSessionRequest, wire.CreateSessionResponse),
                ("KeepAlive", unary, self.keep_alive, wire.SessionHeartbeat, wire.KeepAliveResponse),
                ("CloseSession", unary, self.close_session, wire.CloseSessionRequest, wire.CloseSessionResponse),
            )
        }


@asynccontextmanager
async def played(
    *, credentials: grpc.ServerCredentials | None = None, interceptors: Sequence[grpc.aio.ServerInterceptor] = ()
) -> AsyncIterator[PlayedNode]:
    """A node on a port of its own; with `credentials` it speaks TLS."""
    node = PlayedNode()
    server = grpc.aio.server(interceptors=interceptors)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, node.handlers())])
    wanted = "127.0.0.1:0"
    port = server.add_insecure_port(wanted) if credentials is None else server.add_secure_port(wanted, credentials)
    node.address = node.leader = f"127.0.0.1:{port}"
    await server.start()
    try:
        yield node
    finally:
        node.may_answer.set()
        await server.stop(None)


class TokenChecked(grpc.aio.ServerInterceptor):
    """Refuses whoever does not bring `token`, as Oxia's servers do. `seen` holds what was brought."""

    def __init__(self, token: str) -> None:
        self.token = token
        self.seen: list[str] = []

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable["grpc.RpcMethodHandler[Any, Any]"]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "grpc.RpcMethodHandler[Any, Any]":
        brought = [str(value) for key, value in handler_call_details.invocation_metadata if key == "authorization"]
        self.seen += brought
        handler = await continuation(handler_call_details)
        if brought == [f"Bearer {self.token}"]:
            return handler
        said = "failed to verify the token" if brought else "empty token"

        async def refuse_one(request: Any, context: Any) -> None:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, said)

        async def refuse_stream(request: Any, context: Any) -> AsyncIterator[Any]:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, said)
            yield None

        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(refuse_stream, handler.request_deserializer, handler.response_serializer)
        return grpc.unary_unary_rpc_method_handler(refuse_one, handler.request_deserializer, handler.response_serializer)
