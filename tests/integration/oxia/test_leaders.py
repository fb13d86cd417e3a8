"""What happens when leaders move, on nodes that are played: they say what a cluster says while it elects."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from storage.metadata.oxia import wire_pb2 as wire
from storage.metadata.port import Applied, Key, NotApplied, OpResult, Put, Status, Unknown
from tests.integration.oxia.opening import clock, opened

SERVICE = "io.streamnative.oxia.proto.OxiaClient"
KEY = Key("llog/0/meta/control", "topic/0")
NOT_LEADER = "node is not leader for shard 0"


class PlayedNode:
    """Says that `leader` leads the only shard, and answers writes and reads as told by `refusal`."""

    def __init__(self) -> None:
        self.address = ""
        self.leader = ""
        self.refusal: str | None = None
        self.writes = 0
        self.watchers: set[asyncio.Queue[str]] = set()

    def claim(self, leader: str) -> None:
        self.leader = leader
        for watcher in self.watchers:
            watcher.put_nowait(leader)

    async def get_shard_assignments(self, request: wire.ShardAssignmentsRequest, context: Any) -> AsyncIterator[wire.ShardAssignments]:
        watcher: asyncio.Queue[str] = asyncio.Queue(10)
        self.watchers.add(watcher)
        leader = self.leader
        try:
            while True:
                whole = wire.Int32HashRange(min_hash_inclusive=0, max_hash_inclusive=2**32 - 1)
                shard = wire.ShardAssignment(shard=0, leader=leader, int32_hash_range=whole)
                assigned = wire.NamespaceShardsAssignment(assignments=[shard], shard_key_router=wire.XXHASH3)
                yield wire.ShardAssignments(namespaces={request.namespace: assigned})
                leader = await watcher.get()
        finally:
            self.watchers.discard(watcher)

    async def write(self, request: wire.WriteRequest, context: Any) -> wire.WriteResponse:
        self.writes += 1
        if self.refusal:
            await context.abort(grpc.StatusCode.UNKNOWN, self.refusal)
        return wire.WriteResponse(puts=[wire.PutResponse(version=wire.Version(version_id=7))] * len(request.puts))

    async def read(self, request: wire.ReadRequest, context: Any) -> AsyncIterator[wire.ReadResponse]:
        if self.refusal:
            await context.abort(grpc.StatusCode.UNKNOWN, self.refusal)
        yield wire.ReadResponse(gets=[wire.GetResponse(value=b"v", version=wire.Version(version_id=7))] * len(request.gets))


@asynccontextmanager
async def played() -> AsyncIterator[PlayedNode]:
    node = PlayedNode()
    server = grpc.aio.server()
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "GetShardAssignments": grpc.unary_stream_rpc_method_handler(
            node.get_shard_assignments, wire.ShardAssignmentsRequest.FromString, wire.ShardAssignments.SerializeToString
        ),
        "Write": grpc.unary_unary_rpc_method_handler(node.write, wire.WriteRequest.FromString, wire.WriteResponse.SerializeToString),
        "Read": grpc.unary_stream_rpc_method_handler(node.read, wire.ReadRequest.FromString, wire.ReadResponse.SerializeToString),
    }
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, handlers)])
    node.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    node.leader = node.address
    await server.start()
    try:
        yield node
    finally:
        await server.stop(None)


APPLIED = Applied((OpResult(Status.OK, 7),))


async def test_a_write_that_the_old_leader_refused_goes_to_the_new_one_when_it_is_named() -> None:
    async with played() as old, played() as new, opened(f"oxia://{old.address}/ns") as store:
        old.refusal = NOT_LEADER
        async with asyncio.TaskGroup() as group:
            write = group.create_task(store.write([Put(KEY, b"", None)]))
            read = group.create_task(store.get_many([KEY]))
            await asyncio.sleep(0.1)
            old.claim(new.address)

        assert write.result() == APPLIED
        assert new.writes == 1
        assert (record := read.result()[0]) is not None
        assert record.value == b"v"


async def test_the_word_of_another_node_counts_when_the_first_one_s_leader_refuses() -> None:
    async with played() as lagging, played() as new, opened(f"oxia://{new.address},{lagging.address}/ns") as store:
        # A node that came back tells for a while what was true before it went.
        while not lagging.watchers:  # noqa: ASYNC110 - the other side of a connection
            await asyncio.sleep(0.01)
        lagging.refusal = NOT_LEADER
        lagging.claim(lagging.address)
        await asyncio.sleep(0.1)

        assert await store.write([Put(KEY, b"", None)]) == APPLIED
        assert new.writes == 1


async def test_a_write_that_nobody_takes_is_not_applied_after_its_time() -> None:
    async with played() as node, opened(f"oxia://{node.address}/ns") as store:
        node.refusal = "Received message in the wrong state. In FENCED, should be LEADER."
        started_s = clock.monotonic_s()
        outcome = await store.write([Put(KEY, b"", None)])

    assert isinstance(outcome, NotApplied)
    assert clock.monotonic_s() - started_s < 10
    assert node.writes > 3


async def test_a_write_that_was_under_way_when_it_failed_is_unknown_and_sent_once() -> None:
    async with played() as node, opened(f"oxia://{node.address}/ns") as store:
        node.refusal = f"oxia: failed to append to wal: {NOT_LEADER}"
        outcome = await store.write([Put(KEY, b"", None)])

    assert isinstance(outcome, Unknown)
    assert node.writes == 1


async def test_a_shard_that_is_stuck_fails_the_probe_until_a_write_succeeds() -> None:
    async with played() as node, opened(f"oxia://{node.address}/ns") as store:
        node.refusal = "oxia: failed to append to wal: 9 can not immediately follow 7: oxia: invalid next offset in wal"
        outcome = await store.write([Put(KEY, b"", None)])
        node.refusal = None
        failed = ""
        try:
            await store.probe()
        except Exception as error:  # noqa: BLE001 - its text is looked at
            failed = str(error)

        assert isinstance(outcome, Unknown)
        assert "takes no writes until Oxia is started again" in failed
        assert await store.write([Put(KEY, b"", None)]) == APPLIED
        await store.probe()
