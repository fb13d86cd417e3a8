import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.oxia import OxiaServer, running_oxia
from storage.errors import Unavailable
from storage.metadata.oxia.store import OxiaMetadataStore
from storage.metadata.port import ABSENT, Applied, Key, NotApplied, OpResult, Put, Record, Status, Unknown, WriteOutcome
from tests.integration.oxia.opening import on_every_shard, opened, pause, seconds_until
from tests.kit.faulty_metadata import paths_into

SHARDS = 4
ENDS_WITHIN_S = 60.0
"""However busy the machine: ten deadlines of one request."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[OxiaServer]:
    with running_oxia(tmp_path / "oxia", shards=SHARDS) as server:
        yield server


async def is_well(store: OxiaMetadataStore) -> bool:
    for key in on_every_shard(store, shards=SHARDS):
        if not isinstance(await store.write([Put(key._replace(path="well"), b"", None)]), Applied):
            return False
    await store.probe()
    return True


async def test_every_outcome_is_honest_while_the_server_is_killed_again_and_again(server: OxiaServer) -> None:
    outcomes: dict[Key, WriteOutcome] = {}
    numbers = iter(range(600))
    chance = random.Random(4)

    async def put_them(store: OxiaMetadataStore) -> None:
        for number in numbers:
            key = Key(f"llog/{number}/meta/control", f"topic/{number}")
            outcomes[key] = await store.write([Put(key, str(number).encode(), ABSENT)])
            await asyncio.sleep(chance.uniform(0, 0.08))

    async def kill_it() -> None:
        while len(outcomes) < 550:
            await asyncio.sleep(chance.uniform(0.4, 0.8))
            await asyncio.to_thread(server.kill9)
            await asyncio.sleep(chance.uniform(0, 0.3))
            await asyncio.to_thread(server.start)

    async with opened(server.url) as store:
        async with asyncio.TaskGroup() as group:
            group.create_task(kill_it())
            for _ in range(8):
                group.create_task(put_them(store))
        await seconds_until(lambda: is_well(store))
        found = dict(zip(outcomes, await store.get_many(list(outcomes)), strict=True))

    assert len(outcomes) == 600
    assert sum(isinstance(outcome, Applied) for outcome in outcomes.values()) > 300
    for key, outcome in outcomes.items():
        expected = key.partition_key.removeprefix("topic/").encode()
        record = found[key]
        assert record is None or record.value == expected
        match outcome:
            case Applied((OpResult(status, version),)):
                # A put-if-absent that is not repeated by the client never meets itself.
                assert status is Status.OK
                assert record is not None
                assert record.version == version
            case NotApplied():
                assert record is None
            case Unknown():
                pass
            case _:
                raise AssertionError(outcome)


async def test_a_counter_kept_by_conditional_writes_is_exact_over_kills(server: OxiaServer) -> None:
    key = Key("llog/0/meta/control", "topic/0")
    applied = unknown = 0

    async def count(store: OxiaMetadataStore) -> None:
        nonlocal applied, unknown
        while applied < 200:
            try:
                (record,) = await store.get_many([key])
            except Unavailable:
                continue
            before = record or Record(key.path, b"0", ABSENT)
            outcome = await store.write([Put(key, str(int(before.value) + 1).encode(), before.version)])
            match outcome:
                case Applied((OpResult(Status.OK, _),)):
                    applied += 1
                case Unknown():
                    unknown += 1
            await asyncio.sleep(0.005)

    async def kill_it() -> None:
        for _ in range(3):
            await asyncio.sleep(0.5)
            await asyncio.to_thread(server.kill9)
            await asyncio.to_thread(server.start)

    async with opened(server.url) as store:
        async with asyncio.TaskGroup() as group:
            group.create_task(kill_it())
            group.create_task(count(store))
        (record,) = await store.get_many([key])

    assert record is not None
    assert applied <= int(record.value) <= applied + unknown


async def test_reads_and_writes_work_again_after_an_outage(server: OxiaServer) -> None:
    async with opened(server.url) as store:
        assert await is_well(store)
        await asyncio.to_thread(server.kill9)
        await asyncio.sleep(4)
        await asyncio.to_thread(server.start)

        await seconds_until(lambda: is_well(store))


async def test_while_nothing_listens_writes_are_not_applied_and_reads_unavailable(server: OxiaServer) -> None:
    async with opened(server.url) as store:
        (key, *_) = on_every_shard(store, shards=SHARDS)
        await asyncio.to_thread(server.kill9)
        await asyncio.sleep(0.5)
        async with asyncio.timeout(ENDS_WITHIN_S), asyncio.TaskGroup() as group:
            write = group.create_task(store.write([Put(key, b"", None)]))
            read = group.create_task(raises_unavailable(store, key))

        outcome = write.result()
        assert isinstance(outcome, NotApplied)
        assert outcome.reason == f"oxia at {server.address}: connection refused: start Oxia there or correct metadata.url"
        assert read.result()


async def test_a_write_to_a_paused_server_ends_unknown_and_all_is_well_after(server: OxiaServer) -> None:
    async with opened(server.url) as store:
        keys = on_every_shard(store, shards=SHARDS)
        assert await is_well(store)
        await pause(server)
        async with asyncio.timeout(ENDS_WITHIN_S), asyncio.TaskGroup() as group:
            writes = [group.create_task(store.write([Put(key, b"paused", None)])) for key in keys for _ in range(3)]
            reads = group.create_task(raises_unavailable(store, keys[0]))
        await asyncio.to_thread(server.resume)
        await seconds_until(lambda: is_well(store))

    assert reads.result()
    assert {type(write.result()) for write in writes} == {Unknown}


async def raises_unavailable(store: OxiaMetadataStore, key: Key) -> bool:
    try:
        await store.get_many([key])
    except Unavailable:
        return True
    return False


async def test_closing_does_not_wait_for_a_paused_server(server: OxiaServer) -> None:
    async with opened(server.url) as store:
        session = await store.open_session(timeout_ms=10_000)
        (key, *_) = on_every_shard(store, shards=SHARDS)
        await pause(server)
        async with asyncio.timeout(ENDS_WITHIN_S), asyncio.TaskGroup() as group:
            write = group.create_task(store.write([Put(key, b"", None)]))
            await asyncio.sleep(0.1)
            await store.close()

    assert isinstance(write.result(), Unknown)
    assert session.is_lost


async def test_a_scan_goes_on_where_it_broke_off(server: OxiaServer) -> None:
    async with opened(server.url) as store:
        keys = [Key(f"llog/d/{number:05}", "topic/0") for number in range(3_000)]
        for first in range(0, len(keys), 500):
            outcome = await store.write([Put(key, b"x" * 2_000, None) for key in keys[first : first + 500]])
            assert isinstance(outcome, Applied)
        seen = []
        async for record in store.range_scan(Key("llog/d/", "topic/0"), "llog/d/~"):
            seen.append(record.path)
            if len(seen) == 100:
                await asyncio.to_thread(server.kill9)
                await asyncio.to_thread(server.start)

    assert seen == [key.path for key in keys]


async def test_hints_come_again_after_the_server_was_killed(server: OxiaServer) -> None:
    heard: list[str] = []
    async with opened(server.url) as store, opened(server.url) as other:
        subscription = store.subscribe(paths_into(heard), prefix="llog/")
        keys = on_every_shard(store, shards=SHARDS)

        async def hears_of_all() -> bool:
            for key in keys:
                await other.write([Put(key, b"", None)])
            return {key.path for key in keys} <= set(heard)

        await seconds_until(hears_of_all)
        await asyncio.to_thread(server.kill9)
        await asyncio.to_thread(server.start)
        heard.clear()

        await seconds_until(hears_of_all)
        subscription.cancel()
