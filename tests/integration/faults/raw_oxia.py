"""Oxia's calls one by one, with the messages of the official package: what a client of ours would hide is what these tests look at."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import grpc
from oxia.internal.proto.io.streamnative.oxia.proto import (
    CreateSessionRequest,
    CreateSessionResponse,
    GetRequest,
    KeepAliveResponse,
    KeyComparisonType,
    PutRequest,
    ReadRequest,
    ReadResponse,
    SessionHeartbeat,
    ShardAssignments,
    ShardAssignmentsRequest,
    Status,
    WriteRequest,
    WriteResponse,
)

SERVICE: Final = "/io.streamnative.oxia.proto.OxiaClient/"
SHARD: Final = 0
DEADLINE_S: Final = 30.0
CONNECT_TIMEOUT_MS: Final = 10_000
ABSENT: Final = -1


class RawOxia:
    """All keys on one shard, which the server does not mind."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel

    async def put(self, key: str, value: bytes, *, expected: int | None = None, deadline_s: float = DEADLINE_S) -> Status:
        """The status of one put. Raise AioRpcError."""
        request = WriteRequest(shard=SHARD, puts=[PutRequest(key=key, value=value, expected_version_id=expected)])
        write: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(f"{SERVICE}Write")
        return WriteResponse.parse(await write(bytes(request), timeout=deadline_s)).puts[0].status

    async def put_in_stream(self, *keys: str) -> list[Status]:
        """One put each, over one WriteStream, which the server ends as soon as the client does: the next is sent when one is answered."""
        metadata = [("namespace", "default"), ("shard-id", str(SHARD))]
        open_stream: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = self._channel.stream_stream(f"{SERVICE}WriteStream")
        stream = open_stream(timeout=DEADLINE_S, metadata=metadata)
        found = []
        for key in keys:
            await stream.write(bytes(WriteRequest(shard=SHARD, puts=[PutRequest(key=key, value=b"streamed")])))
            reply = await stream.read()
            assert isinstance(reply, bytes), f"the stream has ended: {await stream.code()}"
            found.append(WriteResponse.parse(reply).puts[0].status)
        stream.cancel()
        return found

    async def get(self, key: str, *, deadline_s: float = DEADLINE_S) -> bytes | None:
        """The value, or None. Raise AioRpcError."""
        request = ReadRequest(shard=SHARD, gets=[GetRequest(key=key, include_value=True, comparison_type=KeyComparisonType.EQUAL)])
        read: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = self._channel.unary_stream(f"{SERVICE}Read")
        found = [ReadResponse.parse(reply).gets[0] async for reply in read(bytes(request), timeout=deadline_s)]
        return found[0].value if found[0].status == Status.OK else None

    def assignments(self) -> "grpc.aio.UnaryStreamCall[bytes, bytes]":
        """The open stream of `ShardAssignments`, as bytes."""
        stream: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = self._channel.unary_stream(f"{SERVICE}GetShardAssignments")
        return stream(bytes(ShardAssignmentsRequest(namespace="default")), timeout=DEADLINE_S)

    async def leaders(self) -> set[str]:
        """Who leads the shards, as the first assignments say."""
        stream = self.assignments()
        first = ShardAssignments.parse(await anext(aiter(stream)))
        stream.cancel()
        return {assignment.leader for assignment in first.namespaces["default"].assignments}

    async def create_session(self) -> int:
        request = CreateSessionRequest(shard=SHARD, session_timeout_ms=5_000, client_identity="raw")
        create: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(f"{SERVICE}CreateSession")
        return CreateSessionResponse.parse(await create(bytes(request), timeout=DEADLINE_S)).session_id

    async def keep_alive(self, session: int) -> KeepAliveResponse:
        """Raise AioRpcError, also for a session that is no more."""
        beat: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(f"{SERVICE}KeepAlive")
        return KeepAliveResponse.parse(await beat(bytes(SessionHeartbeat(shard=SHARD, session_id=session)), timeout=DEADLINE_S))


@asynccontextmanager
async def raw_oxia(address: str) -> AsyncIterator[RawOxia]:
    """A client of its own connection. A server that comes back is tried again within 100 ms; one that is busy has CONNECT_TIMEOUT_MS."""
    options = [
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.initial_reconnect_backoff_ms", 50),
        ("grpc.min_reconnect_backoff_ms", CONNECT_TIMEOUT_MS),
        ("grpc.max_reconnect_backoff_ms", 100),
    ]
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        yield RawOxia(channel)
