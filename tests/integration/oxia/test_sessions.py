import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.oxia import OxiaServer, running_oxia
from storage.metadata.keys import CLUSTER, broker
from storage.metadata.oxia.store import OxiaMetadataStore
from storage.metadata.port import ABSENT, Applied, Key, OpResult, Put, Status
from tests.integration.oxia.opening import TIMEOUT_S as WITHIN_S
from tests.integration.oxia.opening import on_every_shard, opened, seconds_until
from tests.kit.faults.oxia_proxy import oxia_proxy

SHARDS = 4
TIMEOUT_S = 5.0
"""A session that was not renewed for more than three seconds, because the machine is busy, is there all the same."""
LONGER_S = 1.2 * TIMEOUT_S


@pytest.fixture
def server(tmp_path: Path) -> Iterator[OxiaServer]:
    with running_oxia(tmp_path / "oxia", shards=SHARDS) as server:
        yield server


async def put(store: OxiaMetadataStore, key: Key, session_id: int) -> OpResult:
    outcome = await store.write([Put(key, b"here", ABSENT, session_id)])
    assert isinstance(outcome, Applied), outcome
    return outcome.results[0]


async def test_one_session_holds_records_on_every_shard_and_they_go_together(server: OxiaServer) -> None:
    async with opened(server.url) as store:
        keys = on_every_shard(store, shards=SHARDS)
        session = await store.open_session(timeout_ms=int(TIMEOUT_S * 1_000))
        for key in keys:
            assert (await put(store, key, session.session_id)).status is Status.OK
        await asyncio.sleep(LONGER_S)
        assert None not in await store.get_many(keys)
        await session.close()

        assert await store.get_many(keys) == [None] * SHARDS


async def test_a_session_is_lost_with_the_shards_that_hold_its_records_and_with_no_other(server: OxiaServer) -> None:
    async with oxia_proxy(server.address) as proxy, opened(f"oxia://{proxy.address}/default") as store:
        home = store.shard_of(CLUSTER.partition_key)
        for shard in range(SHARDS):
            if shard != home:
                await proxy.silence(shard)
        session = await store.open_session(timeout_ms=int(TIMEOUT_S * 1_000))
        assert (await put(store, broker(1), session.session_id)).status is Status.OK
        await store.probe()
        await asyncio.sleep(LONGER_S)
        assert not session.is_lost
        assert (await store.get_many([broker(1)]))[0] is not None

        await proxy.silence(home)
        async with asyncio.timeout(WITHIN_S):
            await session.wait_lost()
        assert proxy.held[home] > 0
        for shard in range(SHARDS):
            await proxy.resume(shard)


async def test_session_ids_are_unique_over_all_stores(server: OxiaServer) -> None:
    async with opened(server.url) as first, opened(server.url) as second:
        sessions = [await store.open_session(timeout_ms=2_000) for store in (first, second, first, second)]

    assert len({session.session_id for session in sessions}) == 4


async def test_a_session_that_could_not_be_kept_alive_is_lost_here_before_it_ends_there(server: OxiaServer) -> None:
    """What keeps it alive is held back, rather than the server paused: two keep-alives that wait for a server when a session expires
    there can keep it from ending, ever (docs/internals/adr/0014).
    """
    async with oxia_proxy(server.address) as proxy, opened(f"oxia://{proxy.address}/default") as store, opened(server.url) as witness:
        (key, *others) = on_every_shard(store, shards=SHARDS)
        session = await store.open_session(timeout_ms=2_000)
        for of_session in (key, *others):
            await put(store, of_session, session.session_id)
        for shard in range(SHARDS):
            await proxy.silence(shard)

        async def are_gone() -> bool:
            return await witness.get_many([key, *others]) == [None] * SHARDS

        await seconds_until(are_gone)
        was_lost = session.is_lost
        for shard in range(SHARDS):
            await proxy.resume(shard)
        assert was_lost, "when it had ended there"
        assert await put(store, key, session.session_id) == OpResult(Status.SESSION_DOES_NOT_EXIST, None)
        assert (await put(store, key, (await store.open_session(timeout_ms=2_000)).session_id)).status is Status.OK


async def test_a_session_and_its_records_outlive_a_restart_within_the_timeout(server: OxiaServer) -> None:
    async with opened(server.url) as store:
        (key, *_) = on_every_shard(store, shards=SHARDS)
        session = await store.open_session(timeout_ms=8_000)  # a busy machine takes seconds to start a server
        await put(store, key, session.session_id)
        await asyncio.to_thread(server.kill9)
        await asyncio.to_thread(server.start)
        await asyncio.sleep(9)

        assert not session.is_lost
        assert (await store.get_many([key]))[0] is not None


async def test_the_records_of_a_store_that_was_closed_are_gone_at_once(server: OxiaServer) -> None:
    async with opened(server.url) as store:
        keys = on_every_shard(store, shards=SHARDS)
        async with opened(server.url) as other:
            session = await other.open_session(timeout_ms=60_000)
            for key in keys:
                await put(other, key, session.session_id)

        assert await store.get_many(keys) == [None] * SHARDS


async def test_a_session_of_another_store_is_none_of_this_one(server: OxiaServer) -> None:
    async with opened(server.url) as store, opened(server.url) as other:
        (key, *_) = on_every_shard(store, shards=SHARDS)
        session = await other.open_session(timeout_ms=2_000)

        assert await put(store, key, session.session_id) == OpResult(Status.SESSION_DOES_NOT_EXIST, None)
