"""What happens when leaders move, on nodes that are played: they say what a cluster says while it elects, as 0.14 and as 0.17 word it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import grpc
import pytest

from storage.metadata.oxia.store import OxiaMetadataStore
from storage.metadata.port import Applied, Key, NotApplied, OpResult, Put, Status, Unknown
from tests.integration.oxia.opening import opened
from tests.integration.oxia.playing import VERSION, PlayedNode, Refusal, played

KEY: Final = Key("llog/0/meta/control", "topic/0")
NOT_LEADER: Final = "node is not leader for shard 0"
REFUSALS: Final = [
    pytest.param(Refusal(grpc.StatusCode.UNKNOWN, NOT_LEADER), id="0.14 not leader"),
    pytest.param(Refusal(grpc.StatusCode.UNKNOWN, "oxia: node is not leader for shard"), id="0.14 deposed"),
    pytest.param(Refusal(grpc.StatusCode.UNKNOWN, "Received message in the wrong state. In FENCED, should be LEADER."), id="0.14 fenced"),
    pytest.param(Refusal(grpc.StatusCode.ABORTED, "oxia: node is not leader"), id="0.17 not leader"),
    pytest.param(Refusal(grpc.StatusCode.UNAVAILABLE, "oxia: server not initialized yet"), id="0.17 not initialized"),
    pytest.param(Refusal(grpc.StatusCode.FAILED_PRECONDITION, "oxia: invalid status"), id="0.17 invalid status"),
]
UNDER_WAY: Final = [
    Refusal(grpc.StatusCode.UNKNOWN, f"oxia: failed to append to wal: {NOT_LEADER}"),
    Refusal(grpc.StatusCode.ABORTED, "oxia: failed to append to wal: oxia: node is not leader"),
    Refusal(grpc.StatusCode.UNAVAILABLE, "oxia: failed to append to wal: oxia: server not initialized yet"),
    Refusal(grpc.StatusCode.FAILED_PRECONDITION, "oxia: failed to append to wal: oxia: invalid status"),
    Refusal(grpc.StatusCode.ABORTED, "oxia: operation was aborted"),
    Refusal(grpc.StatusCode.UNAVAILABLE, "oxia: resource unavailable"),
    Refusal(grpc.StatusCode.UNAVAILABLE, "Socket closed"),
]
APPLIED: Final = Applied((OpResult(Status.OK, VERSION),))
SOON_S: Final = 30.0


async def put(store: OxiaMetadataStore) -> None:
    assert await store.write([Put(KEY, b"", None)]) == APPLIED


async def get(store: OxiaMetadataStore) -> None:
    (record,) = await store.get_many([KEY])
    assert record is not None
    assert record.value == b"v"


async def list_keys(store: OxiaMetadataStore) -> None:
    assert await store.list(Key("llog/a/", "a"), "llog/a/~") == ["llog/a/1", "llog/a/2"]


async def scan(store: OxiaMetadataStore) -> None:
    assert [record.path async for record in store.range_scan(Key("llog/a/", "a"), "llog/a/~")] == ["llog/a/1"]


async def open_session(store: OxiaMetadataStore) -> None:
    assert not (await store.open_session(timeout_ms=10_000)).is_lost


REQUESTS: Final = {"Write": put, "Read": get, "List": list_keys, "RangeScan": scan, "CreateSession": open_session}


async def disagreeing(store: OxiaMetadataStore, lagging: PlayedNode, new: PlayedNode) -> None:
    """A node that came back says for a while what was true before it went, and says it last: it is the one that is asked."""
    await lagging.watched()
    await new.watched()
    assignments = store._calls.assignments
    while assignments.taken < 2:  # noqa: ASYNC110 - what both said first is on its way
        await asyncio.sleep(0.01)
    before = assignments.taken
    lagging.claim(lagging.address)
    while assignments.taken == before:  # noqa: ASYNC110 - nothing else tells that the claim came
        await asyncio.sleep(0.01)
    assert assignments.leader_of(0) == lagging.address


@pytest.mark.parametrize("refusal", REFUSALS)
async def test_what_the_old_leader_refused_goes_to_the_new_one_when_it_is_named(refusal: Refusal) -> None:
    async with played() as old, played() as new, opened(f"oxia://{old.address}/ns") as store:
        old.refusal = refusal
        async with asyncio.TaskGroup() as group:
            for request in REQUESTS.values():
                group.create_task(request(store))
            await asyncio.sleep(0.1)
            old.claim(new.address)

        assert new.asked["Write"] == 1


@pytest.mark.parametrize("refusal", REFUSALS)
@pytest.mark.parametrize("method", REQUESTS)
async def test_the_word_of_another_node_counts_when_the_first_one_s_leader_refuses(method: str, refusal: Refusal) -> None:
    request: Callable[[OxiaMetadataStore], Awaitable[None]] = REQUESTS[method]
    async with played() as lagging, played() as new, opened(f"oxia://{new.address},{lagging.address}/ns") as store:
        lagging.refusal = refusal
        await disagreeing(store, lagging, new)

        async with asyncio.timeout(SOON_S):
            await request(store)
        assert lagging.asked[method] == 1
        assert new.asked[method] == 1


@pytest.mark.parametrize("refusal", REFUSALS)
async def test_a_session_outlives_its_leader(refusal: Refusal) -> None:
    async with played() as lagging, played() as new, opened(f"oxia://{new.address},{lagging.address}/ns") as store:
        session = await store.open_session(timeout_ms=2_000)
        lagging.refusal = refusal
        await disagreeing(store, lagging, new)
        await lagging.until_asked("KeepAlive")
        kept = new.asked["KeepAlive"]
        await new.until_asked("KeepAlive", kept + 4)

        assert not session.is_lost
        assert lagging.asked["KeepAlive"] == 1
        await disagreeing(store, lagging, new)
        async with asyncio.timeout(SOON_S):
            await session.close()
        assert lagging.asked["CloseSession"] == 1
        assert new.asked["CloseSession"] == 1


@pytest.mark.parametrize("refusal", REFUSALS)
async def test_hints_come_from_the_new_leader(refusal: Refusal) -> None:
    async with played() as lagging, played() as new, opened(f"oxia://{new.address},{lagging.address}/ns") as store:
        lagging.refusal = refusal
        await disagreeing(store, lagging, new)
        heard = asyncio.Event()
        store.subscribe(lambda path, _version: heard.set() if path == KEY.path else None, prefix="llog/")

        async with asyncio.timeout(SOON_S):
            while not new.listeners:  # noqa: ASYNC110 - the other side of a connection
                await asyncio.sleep(0.01)
            new.notify(KEY.path)
            await heard.wait()
        assert lagging.asked["GetNotifications"] == 1


@pytest.mark.parametrize("refusal", REFUSALS)
async def test_a_write_that_nobody_takes_is_not_applied_after_its_time(refusal: Refusal) -> None:
    async with played() as node, opened(f"oxia://{node.address}/ns") as store:
        node.refusal = refusal
        async with asyncio.timeout(SOON_S):
            outcome = await store.write([Put(KEY, b"", None)])

    assert isinstance(outcome, NotApplied)
    assert node.asked["Write"] > 3


@pytest.mark.parametrize("refusal", UNDER_WAY)
async def test_a_write_that_was_under_way_when_it_failed_is_unknown_and_sent_once(refusal: Refusal) -> None:
    async with played() as node, opened(f"oxia://{node.address}/ns") as store:
        node.refusal = refusal
        outcome = await store.write([Put(KEY, b"", None)])

    assert isinstance(outcome, Unknown)
    assert node.asked["Write"] == 1


async def test_a_read_goes_on_when_the_server_that_closes_is_there_again() -> None:
    async with played() as node, opened(f"oxia://{node.address}/ns") as store:
        node.refusal = Refusal(grpc.StatusCode.ABORTED, "oxia: operation was aborted")
        async with asyncio.TaskGroup() as group:
            group.create_task(get(store))
            await node.until_asked("Read", 2)
            node.refusal = None


async def test_a_shard_that_is_stuck_fails_the_probe_until_a_write_succeeds() -> None:
    async with played() as node, opened(f"oxia://{node.address}/ns") as store:
        stuck = "oxia: failed to append to wal: 9 can not immediately follow 7: oxia: invalid next offset in wal"
        node.refusal = Refusal(grpc.StatusCode.UNKNOWN, stuck)
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
