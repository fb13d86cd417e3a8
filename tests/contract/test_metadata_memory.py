import asyncio
from collections.abc import AsyncIterator

import pytest

from runtime.clock import SystemClock
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import ABSENT, Applied, Key, MetadataStore, Put, Session, Status
from tests.contract.metadata_contract import SESSION_TIMEOUT_MS, Client, MetadataStoreContract
from tests.kit.faulty_metadata import paths_into
from tests.kit.stepping_clock import SteppingClock


class TestMemoryMetadataStore(MetadataStoreContract):
    @pytest.fixture
    async def store(self) -> AsyncIterator[MetadataStore]:
        self.clock = SteppingClock()
        store = MemoryMetadataStore(clock=self.clock)
        yield store
        await store.close()

    async def expire(self, session: Session) -> None:
        self.clock.advance(SESSION_TIMEOUT_MS / 1_000)


async def test_clients_share_records_and_hints_but_not_their_end() -> None:
    first = MemoryMetadataStore(clock=SystemClock())
    second = first.client()
    heard: list[str] = []
    second.subscribe(paths_into(heard))
    session = await first.open_session(timeout_ms=SESSION_TIMEOUT_MS)
    mine, yours = Client(first, "root"), Client(second, "root")
    await mine.put_ok("brokers/1", b"", session=session)
    assert await yours.children("brokers") == ["brokers/1"]
    await first.close()
    await asyncio.sleep(0)

    assert await yours.children("brokers") == []
    assert heard == ["root/brokers/1", "root/brokers/1"]
    assert session.is_lost
    await second.close()


async def test_the_session_of_a_crashed_client_ends_by_itself_when_its_timeout_has_passed() -> None:
    first = MemoryMetadataStore(clock=SystemClock())
    second = first.client()
    session = await first.open_session(timeout_ms=SESSION_TIMEOUT_MS)
    await Client(first, "root").put_ok("brokers/1", b"", session=session)
    first.crash()

    assert not session.is_lost
    assert await Client(second, "root").children("brokers") == ["brokers/1"]
    async with asyncio.timeout(2 * SESSION_TIMEOUT_MS / 1_000):
        await session.wait_lost()
    assert await Client(second, "root").children("brokers") == []
    await second.close()


async def test_a_write_finds_the_record_of_an_expired_session_absent() -> None:
    clock = SteppingClock()
    store = MemoryMetadataStore(clock=clock)
    client = Client(store, "root")
    session = await store.open_session(timeout_ms=SESSION_TIMEOUT_MS)
    await client.put_ok("brokers/1", b"", session=session)
    clock.advance(SESSION_TIMEOUT_MS / 1_000)

    assert (await client.put("brokers/1", b"", expected=ABSENT)).status is Status.OK
    assert session.is_lost
    await store.close()


async def test_keys_of_different_partition_keys_are_spread_over_the_shards() -> None:
    store = MemoryMetadataStore(clock=SystemClock(), shards=4)

    assert {store.shard_of(f"topic/{number}") for number in range(100)} == {0, 1, 2, 3}
    await store.close()


async def test_a_request_over_two_shards_is_a_programmer_error() -> None:
    store = MemoryMetadataStore(clock=SystemClock(), shards=4)
    on_each = {store.shard_of(f"topic/{number}"): f"topic/{number}" for number in range(100)}
    puts = [Put(Key(partition_key, partition_key), b"", None) for partition_key in on_each.values()]

    with pytest.raises(AssertionError, match="one write, one shard"):
        await store.write(puts[:2])
    assert isinstance(await store.write(puts[:1]), Applied)
    await store.close()


async def test_versions_of_one_shard_do_not_move_those_of_another() -> None:
    store = MemoryMetadataStore(clock=SystemClock(), shards=4)
    on_each = {store.shard_of(f"topic/{number}"): f"topic/{number}" for number in range(100)}
    versions = [await Client(store, on_each[shard]).put_ok("a", b"") for shard in range(4)]

    assert len(set(versions)) == 1
    await store.close()
