"""Answers that are none, on a node that is played byte by byte."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from storage.errors import Unavailable
from storage.metadata.oxia import wire_pb2 as wire
from storage.metadata.port import Applied, Delete, Key, OpResult, Put, Status, Unknown, WriteOp
from tests.integration.oxia.opening import TIMEOUT_S, clock, opened, until_connected

SERVICE = "io.streamnative.oxia.proto.OxiaClient"
KEY = Key("llog/0/meta/control", "topic/0")
UNREADABLE = b"\xff\xff\xff\xff"


class PlayedNode:
    """Leads the only shard. `answers` holds what a method answers, message after message; `refusal` comes before it."""

    def __init__(self) -> None:
        self.address = ""
        self.answers: dict[str, list[bytes]] = {}
        self.refusal: str | None = None
        self.has_no_message = False
        self.requests: list[tuple[str, bytes]] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def get_shard_assignments(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        whole = wire.Int32HashRange(min_hash_inclusive=0, max_hash_inclusive=2**32 - 1)
        shard = wire.ShardAssignment(shard=0, leader=self.address, int32_hash_range=whole)
        assigned = wire.NamespaceShardsAssignment(assignments=[shard], shard_key_router=wire.XXHASH3)
        namespace = wire.ShardAssignmentsRequest.FromString(request).namespace
        yield wire.ShardAssignments(namespaces={namespace: assigned}).SerializeToString()
        await asyncio.Event().wait()

    async def one(self, method: str, request: bytes, context: Any) -> bytes:
        self.requests.append((method, request))
        if self.refusal:
            await context.abort(grpc.StatusCode.UNKNOWN, self.refusal)
        await self.may_answer.wait()
        if method == "Write" and method not in self.answers:
            puts = wire.WriteRequest.FromString(request).puts
            answers = [wire.PutResponse(version=wire.Version(version_id=int(put.value))) for put in puts]
            return wire.WriteResponse(puts=answers).SerializeToString()
        return self.answers.get(method, [b""])[0]

    async def write(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        """On the wire as a method that gives one message, but for the answer that has none."""
        answer = await self.one("Write", request, context)
        if not self.has_no_message:
            yield answer

    async def several(self, method: str, request: bytes, context: Any) -> AsyncIterator[bytes]:
        self.requests.append((method, request))
        if self.refusal:
            await context.abort(grpc.StatusCode.UNKNOWN, self.refusal)
        for message in self.answers.get(method, []):
            yield message

    def count(self, method: str) -> int:
        return sum(asked == method for asked, _ in self.requests)

    def handlers(self) -> dict[str, Any]:
        def unary(method: str) -> Any:
            async def answer(request: bytes, context: Any) -> bytes:
                return await self.one(method, request, context)

            return grpc.unary_unary_rpc_method_handler(answer)

        def stream(method: str) -> Any:
            async def answer(request: bytes, context: Any) -> AsyncIterator[bytes]:
                async for message in self.several(method, request, context):
                    yield message

            return grpc.unary_stream_rpc_method_handler(answer)

        return {
            "GetShardAssignments": grpc.unary_stream_rpc_method_handler(self.get_shard_assignments),
            "Write": grpc.unary_stream_rpc_method_handler(self.write),
            **{method: unary(method) for method in ("CreateSession", "KeepAlive", "CloseSession")},
            **{method: stream(method) for method in ("Read", "List", "RangeScan")},
        }


@asynccontextmanager
async def played() -> AsyncIterator[PlayedNode]:
    node = PlayedNode()
    server = grpc.aio.server()
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, node.handlers())])
    node.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield node
    finally:
        node.may_answer.set()
        await server.stop(None)


@pytest.mark.parametrize("op", [Put(KEY, b"1", None), Delete(KEY)])
async def test_a_write_whose_answer_cannot_be_read_is_unknown(op: WriteOp) -> None:
    async with played() as node, opened(f"oxia://{node.address}/ns") as store:
        node.answers["Write"] = [UNREADABLE]

        assert isinstance(await store.write([op]), Unknown)
        assert node.count("Write") == 1


@pytest.mark.parametrize("times", [1, 2], ids=["through gRPC", "directly"])
async def test_an_answer_without_a_message_is_no_answer(times: int) -> None:
    async with played() as node, opened(f"oxia://{node.address}/ns") as store:
        if times > 1:
            assert isinstance(await store.write([Put(KEY, b"1", None)]), Applied)
            await until_connected(store, node.address)
        node.has_no_message = True

        assert isinstance(await store.write([Put(KEY, b"1", None)]), Unknown)
        with pytest.raises(Unavailable, match="0 answers to 1 gets"):
            await store.get_many([KEY])
        with pytest.raises(Unavailable, match="0 answers to 2 gets"):
            await store.get_many([KEY, KEY])
        node.has_no_message = False
        assert isinstance(await store.write([Put(KEY, b"1", None)]), Applied)


async def test_a_session_whose_answer_cannot_be_read_is_not_opened_and_the_store_goes_on() -> None:
    async with played() as node, opened(f"oxia://{node.address}/ns") as store:
        node.answers["CreateSession"] = [UNREADABLE]
        with pytest.raises(Unavailable, match="cannot be read"):
            await store.open_session(timeout_ms=2_000)

        assert isinstance(await store.write([Put(KEY, b"1", None)]), Applied)


async def test_a_list_that_ends_in_what_cannot_be_read_is_no_list() -> None:
    async with played() as node, opened(f"oxia://{node.address}/ns") as store:
        node.answers["List"] = [wire.ListResponse(keys=["a/1"]).SerializeToString(), UNREADABLE]

        with pytest.raises(Unavailable, match="cannot be read"):
            await store.list(Key("a/", "a"), "a/~")


async def test_a_scan_that_meets_what_cannot_be_read_does_not_end_there() -> None:
    async with played() as node, opened(f"oxia://{node.address}/ns") as store:
        first = wire.RangeScanResponse(records=[wire.GetResponse(key="a/1", value=b"1", version=wire.Version(version_id=1))])
        node.answers["RangeScan"] = [first.SerializeToString(), UNREADABLE]
        scan = store.range_scan(Key("a/", "a"), "a/~")

        assert (await anext(scan)).path == "a/1"
        with pytest.raises(Unavailable, match="cannot be read"):
            await anext(scan)


async def test_a_session_whose_opener_gave_up_is_closed_and_not_kept_alive() -> None:
    async with played() as node, opened(f"oxia://{node.address}/ns") as store:
        node.may_answer.clear()
        opening = asyncio.get_running_loop().create_task(store.open_session(timeout_ms=2_000))
        while not node.count("CreateSession"):  # noqa: ASYNC110 - the other side of a connection
            await asyncio.sleep(0.01)
        opening.cancel()
        await asyncio.wait([opening])
        node.may_answer.set()
        async with asyncio.timeout(TIMEOUT_S):
            while not node.count("CloseSession"):  # noqa: ASYNC110 - the other side of a connection
                await asyncio.sleep(0.01)

        assert opening.cancelled()


async def test_requests_that_are_refused_do_not_make_each_other_ask_without_pause() -> None:
    async with played() as node, opened(f"oxia://{node.address}/ns") as store:
        node.refusal = "node is not leader for shard 0"
        started_s = clock.monotonic_s()
        reads = [asyncio.get_running_loop().create_task(store.get_many([KEY])) for _ in range(4)]
        await asyncio.sleep(1.0)
        asked, took_s = node.count("Read"), clock.monotonic_s() - started_s
        for read in reads:
            read.cancel()
        await asyncio.wait(reads)

        assert asked < 4 * (10 + 4 * took_s)


async def test_a_cancelled_write_takes_nothing_from_those_it_travels_with() -> None:
    async with played() as node, opened(f"oxia://{node.address}/ns") as store:
        node.may_answer.clear()
        loop = asyncio.get_running_loop()
        first = loop.create_task(store.write([Put(KEY, b"1", None)]))
        while not node.count("Write"):  # noqa: ASYNC110 - the other side of a connection
            await asyncio.sleep(0.01)
        waiting = [loop.create_task(store.write([Put(KEY, str(number).encode(), None)])) for number in range(10, 20)]
        await asyncio.sleep(0.01)
        waiting[0].cancel()
        node.may_answer.set()
        await first
        node.may_answer.clear()
        while node.count("Write") < 2:  # noqa: ASYNC110 - the other side of a connection
            await asyncio.sleep(0.01)
        waiting[4].cancel()
        await asyncio.sleep(0.01)
        node.may_answer.set()
        await asyncio.wait(waiting)

        for number, write in enumerate(waiting, start=10):
            if number not in (10, 14):
                assert write.result() == Applied((OpResult(Status.OK, number),))
        sent = wire.WriteRequest.FromString(node.requests[-1][1])
        assert [put.value for put in sent.puts] == [str(number).encode() for number in range(11, 20)]
