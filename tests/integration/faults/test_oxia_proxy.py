"""The proxy in front of Oxia: what passes, what each fault does to both sides, and that the counts say so."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import cast

import grpc
import pytest
from oxia.internal.proto.io.streamnative.oxia.proto import ShardAssignments, ShardAssignmentsRequest, Status

from services.faults.plan import Fault, Rule, of_shard
from services.oxia import OxiaServer
from services.ports import HOST, held_port
from storage.metadata.port import Applied, Put, Unknown
from tests.integration.faults.raw_oxia import ABSENT, SERVICE, RawOxia, raw_oxia
from tests.integration.oxia.opening import on_every_shard, opened
from tests.kit.faults.in_thread import in_thread
from tests.kit.faults.oxia_proxy import OxiaProxy, oxia_proxy

BRIEF_S = 1.0
SOON_S = 30.0
WRITES = frozenset({"Write"})
READS = frozenset({"Read"})


@dataclass
class Scene:
    """One server, seen through the proxy and past it."""

    proxy: OxiaProxy
    through: RawOxia
    past: RawOxia
    prefix: str

    def key(self, name: object) -> str:
        """The server outlives the test: its keys are told apart by the proxy's address, and by the test."""
        return f"{self.prefix}-{name}"


@pytest.fixture
async def scene(oxia_server: OxiaServer, request: pytest.FixtureRequest) -> AsyncIterator[Scene]:
    async with oxia_proxy(oxia_server.address) as proxy, raw_oxia(proxy.address) as through, raw_oxia(oxia_server.address) as past:
        yield Scene(proxy, through, past, f"{request.node.name}-{proxy.address}")


async def failure(call: Awaitable[object]) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code()


async def eventually(holds: Callable[[], Awaitable[bool]]) -> None:
    """Return when it does; a call that fails does not hold."""
    async with asyncio.timeout(SOON_S):
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                if await holds():
                    return
            await asyncio.sleep(0.01)


async def has(oxia: RawOxia, key: str, value: bytes) -> bool:
    return await oxia.get(key) == value


async def takes(oxia: RawOxia, key: str) -> bool:
    """Whether a write gets through; gRPC waits a little before it connects again."""
    return await oxia.put(key, b"up") == Status.OK


async def test_what_no_rule_strikes_passes(scene: Scene) -> None:
    value = bytes(range(256)) * 4_096

    written = await scene.through.put(scene.key("a"), value, expected=ABSENT)
    again = await scene.through.put(scene.key("a"), b"other", expected=ABSENT)
    streamed = await scene.through.put_in_stream(*(scene.key(n) for n in range(3)))
    session = await scene.through.create_session()
    await scene.through.keep_alive(session)

    assert (written, again) == (Status.OK, Status.UNEXPECTED_VERSION_ID)
    assert streamed == [Status.OK] * 3
    assert await scene.through.get(scene.key("a")) == value == await scene.past.get(scene.key("a"))
    assert scene.proxy.counts.calls == scene.proxy.counts.forwarded == scene.proxy.counts.answered
    assert scene.proxy.counts.calls == {"Write": 2, "WriteStream": 1, "CreateSession": 1, "KeepAlive": 1, "Read": 1}


async def test_clients_are_told_that_the_proxy_leads_every_shard(scene: Scene, oxia_server: OxiaServer) -> None:
    stream = scene.through.assignments()
    ours = ShardAssignments.parse(await anext(aiter(stream))).namespaces["default"].assignments
    stream.cancel()

    assert await scene.past.leaders() == {oxia_server.address}
    assert await scene.through.leaders() == {scene.proxy.address}
    assert sorted(assignment.shard for assignment in ours) == [0, 1, 2, 3]
    assert min(assignment.int32_hash_range.min_hash_inclusive for assignment in ours if assignment.int32_hash_range) == 0


async def test_an_error_of_the_server_is_the_clients(scene: Scene) -> None:
    there, here = await failure(scene.past.keep_alive(1 << 40)), await failure(scene.through.keep_alive(1 << 40))

    assert here is there
    assert scene.proxy.counts.answered["KeepAlive"] == 0


async def test_every_third_write_is_applied_and_its_reply_is_lost(scene: Scene) -> None:
    scene.proxy.plan.add(Rule(Fault.DROP_REPLY, methods=WRITES, every=3))
    lost = []
    for n in range(9):
        try:
            await scene.through.put(scene.key(n), b"%d" % n)
        except grpc.aio.AioRpcError as error:
            lost.append((n, error.code()))

    assert lost == [(n, grpc.StatusCode.UNAVAILABLE) for n in (2, 5, 8)]
    assert [await scene.past.get(scene.key(n)) for n in range(9)] == [b"%d" % n for n in range(9)]
    assert scene.proxy.counts.faults == {(Fault.DROP_REPLY, "Write"): 3}
    assert scene.proxy.counts.calls["Write"] == scene.proxy.counts.answered["Write"] == 9


async def test_a_write_whose_reply_hangs_is_applied_and_ends_at_the_clients_deadline(scene: Scene) -> None:
    scene.proxy.plan.add(Rule(Fault.HANG_REPLY, methods=WRITES, times=1))

    assert await failure(scene.through.put(scene.key("a"), b"1", deadline_s=BRIEF_S)) is grpc.StatusCode.DEADLINE_EXCEEDED
    assert await scene.past.get(scene.key("a")) == b"1"
    assert await scene.through.put(scene.key("b"), b"2") == Status.OK


async def test_a_refused_write_never_arrives(scene: Scene) -> None:
    scene.proxy.plan.add(Rule(Fault.REFUSE, methods=WRITES))

    assert await failure(scene.through.put(scene.key("a"), b"1")) is grpc.StatusCode.UNAVAILABLE
    assert await scene.through.get(scene.key("a")) is None
    assert scene.proxy.counts.forwarded["Write"] == 0


async def test_a_write_into_the_black_hole_never_arrives_and_ends_at_the_deadline(scene: Scene) -> None:
    scene.proxy.plan.add(Rule(Fault.BLACKHOLE, methods=WRITES))

    assert await failure(scene.through.put(scene.key("a"), b"1", deadline_s=BRIEF_S)) is grpc.StatusCode.DEADLINE_EXCEEDED
    assert await scene.past.get(scene.key("a")) is None
    assert scene.proxy.counts.forwarded["Write"] == 0


@pytest.mark.parametrize("fault", [Fault.DELAY, Fault.DELAY_REPLY])
async def test_a_delayed_call_takes_that_long_and_succeeds(scene: Scene, fault: Fault) -> None:
    scene.proxy.plan.add(Rule(fault, delay_s=BRIEF_S))
    loop = asyncio.get_running_loop()

    began_s = loop.time()
    assert await scene.through.put(scene.key("a"), b"1") == Status.OK
    assert await scene.through.get(scene.key("a")) == b"1"
    assert loop.time() - began_s >= 2 * BRIEF_S


async def test_a_write_delayed_past_its_deadline_does_not_arrive(scene: Scene) -> None:
    scene.proxy.plan.add(Rule(Fault.DELAY, methods=WRITES, delay_s=2 * BRIEF_S, times=1))

    assert await failure(scene.through.put(scene.key("a"), b"1", deadline_s=BRIEF_S)) is grpc.StatusCode.DEADLINE_EXCEEDED
    await asyncio.sleep(2 * BRIEF_S)
    assert scene.proxy.counts.forwarded["Write"] == 0


async def test_a_late_write_is_applied_after_its_client_saw_it_fail(scene: Scene) -> None:
    scene.proxy.plan.add(Rule(Fault.LATE, methods=WRITES, times=1, delay_s=BRIEF_S))

    assert await failure(scene.through.put(scene.key("a"), b"late")) is grpc.StatusCode.UNAVAILABLE
    assert await scene.past.get(scene.key("a")) is None
    await eventually(lambda: has(scene.past, scene.key("a"), b"late"))


async def test_a_late_conditional_write_meets_what_was_written_meanwhile(scene: Scene) -> None:
    scene.proxy.plan.add(Rule(Fault.LATE, methods=WRITES, times=1, delay_s=BRIEF_S))

    await failure(scene.through.put(scene.key("a"), b"late", expected=ABSENT))
    await scene.through.put(scene.key("a"), b"meanwhile", expected=ABSENT)

    async def both_were_answered() -> bool:
        return scene.proxy.counts.answered["Write"] == 2

    await eventually(both_were_answered)
    assert await scene.past.get(scene.key("a")) == b"meanwhile"


async def test_lost_replies_of_reads_fail_the_read(scene: Scene) -> None:
    await scene.through.put(scene.key("a"), b"1")
    scene.proxy.plan.add(Rule(Fault.DROP_REPLY, methods=READS, every=2))

    assert await scene.through.get(scene.key("a")) == b"1"
    assert await failure(scene.through.get(scene.key("a"))) is grpc.StatusCode.UNAVAILABLE
    assert await scene.through.get(scene.key("a")) == b"1"


async def test_a_stream_may_break_off_after_some_messages(scene: Scene) -> None:
    scene.proxy.plan.add(Rule(Fault.CUT_REPLY, methods={"WriteStream"}, messages=2))

    assert await failure(scene.through.put_in_stream(*(scene.key(n) for n in range(3)))) is grpc.StatusCode.UNAVAILABLE
    assert await scene.past.get(scene.key(1)) == b"streamed"


async def test_cutting_the_streams_leaves_new_calls_alone(scene: Scene) -> None:
    stream = scene.through.assignments()
    replies = aiter(stream)
    await anext(replies)

    await scene.proxy.cut()

    assert await failure(anext(replies)) is grpc.StatusCode.UNAVAILABLE
    assert await scene.through.put(scene.key("a"), b"1") == Status.OK
    assert await scene.through.leaders() == {scene.proxy.address}


async def test_a_proxy_that_is_down_refuses_and_is_back_at_the_same_address(scene: Scene) -> None:
    stream = scene.through.assignments()
    replies = aiter(stream)
    await anext(replies)
    host, _, port = scene.proxy.address.rpartition(":")

    for _ in range(3):
        await scene.proxy.down()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(host, int(port))
        assert await failure(scene.through.put(scene.key("a"), b"down")) is grpc.StatusCode.UNAVAILABLE
        await scene.proxy.up()
        await eventually(lambda: takes(scene.through, scene.key("a")))

    assert await failure(anext(replies)) is grpc.StatusCode.UNAVAILABLE
    assert await scene.past.get(scene.key("a")) == b"up"


async def test_a_proxy_may_begin_down(oxia_server: OxiaServer) -> None:
    async with oxia_proxy(oxia_server.address, is_up=False) as proxy, raw_oxia(proxy.address) as through:
        assert await failure(through.put(f"begin-{proxy.address}", b"1")) is grpc.StatusCode.UNAVAILABLE
        await proxy.up()
        await eventually(lambda: takes(through, f"begin-{proxy.address}"))


class LeavingCall:
    """What gRPC hands to a handler, of a call whose failure is on its way to the client until `left`."""

    def __init__(self) -> None:
        self.failing, self.left = asyncio.Event(), asyncio.Event()

    def invocation_metadata(self) -> list[tuple[str, str]]:
        return []

    def time_remaining(self) -> float:
        return SOON_S

    async def abort(self, *_: object) -> None:
        self.failing.set()
        await self.left.wait()


async def test_a_proxy_goes_down_while_a_call_that_failed_is_leaving() -> None:
    with held_port() as nobody:
        async with oxia_proxy(f"{HOST}:{nobody}") as proxy, asyncio.TaskGroup() as handlers:
            handler = proxy.service(cast("grpc.HandlerCallDetails", SimpleNamespace(method=f"{SERVICE}GetShardAssignments")))
            call = LeavingCall()
            handlers.create_task(handler.stream_stream(one_request(), call))
            await call.failing.wait()
            host, _, port = proxy.address.rpartition(":")

            await proxy.down()

            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(host, int(port))
            call.left.set()


async def one_request() -> AsyncIterator[bytes]:
    yield bytes(ShardAssignmentsRequest(namespace="default"))


async def test_a_proxy_in_a_thread_is_told_from_outside(oxia_server: OxiaServer) -> None:
    with in_thread(oxia_proxy(oxia_server.address)) as (proxy, run):
        async with raw_oxia(proxy.address) as through:
            key = f"thread-{proxy.address}"
            proxy.plan.add(Rule(Fault.REFUSE, methods=WRITES, times=1))
            assert await failure(through.put(key, b"1")) is grpc.StatusCode.UNAVAILABLE
            assert await through.put(key, b"2") == Status.OK
            run(proxy.down())
            assert await failure(through.put(key, b"3")) is grpc.StatusCode.UNAVAILABLE
            run(proxy.up())
            await eventually(lambda: has(through, key, b"2"))


async def test_of_many_calls_at_once_exactly_every_fifth_fails(scene: Scene) -> None:
    await scene.through.put(scene.key("a"), b"1")
    scene.proxy.plan.add(Rule(Fault.DROP_REPLY, methods=READS, every=5))

    outcomes = await asyncio.gather(*(scene.through.get(scene.key("a")) for _ in range(200)), return_exceptions=True)

    assert outcomes.count(b"1") == 160
    assert sum(isinstance(outcome, grpc.aio.AioRpcError) for outcome in outcomes) == 40
    assert scene.proxy.counts.struck(Fault.DROP_REPLY) == 40


async def test_a_silent_shard_holds_its_own_calls_and_no_others(oxia_server: OxiaServer) -> None:
    async with oxia_proxy(oxia_server.address) as proxy, opened(f"oxia://{proxy.address}/default") as store:
        silent, *others = on_every_shard(store, shards=4)
        await proxy.silence(store.shard_of(silent.partition_key))
        async with asyncio.TaskGroup() as group:
            held = [group.create_task(store.get_many([silent])), group.create_task(store.write([Put(silent, b"", None)]))]
            await store.get_many(others)
            for key in others:
                assert isinstance(await store.write([Put(key, b"", None)]), Applied)
            while proxy.held[store.shard_of(silent.partition_key)] < 2:  # noqa: ASYNC110 - the other side of a connection
                await asyncio.sleep(0.01)
            assert not any(task.done() for task in held)
            await proxy.resume(store.shard_of(silent.partition_key))

        assert isinstance(held[1].result(), Applied)


async def test_a_rule_may_be_of_one_shard(oxia_server: OxiaServer) -> None:
    async with oxia_proxy(oxia_server.address) as proxy, opened(f"oxia://{proxy.address}/default") as store:
        struck, *others = on_every_shard(store, shards=4)
        proxy.plan.add(Rule(Fault.DROP_REPLY, methods=WRITES, containing=of_shard(store.shard_of(struck.partition_key))))
        for key in others:
            assert isinstance(await store.write([Put(key, b"", None)]), Applied)

        assert isinstance(await store.write([Put(struck, b"", None)]), Unknown)
        assert proxy.counts.struck(Fault.DROP_REPLY) == 1
