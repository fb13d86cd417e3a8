"""Logs of brokers on one machine that share a folder: what one commits the others read without a GET, and nothing before its commit."""

import asyncio
from pathlib import Path

import pytest

from runtime.clock import SystemClock
from runtime.ulid import encode_ulid
from storage.errors import OutcomeUnknown
from storage.formats.manifest import Manifest, encode
from storage.formats.wal import object_key
from storage.metadata import keys
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import Put
from storage.objects.memory import MemoryObjectStore
from tests.kit.batches import batch_bytes
from tests.unit.storage.log.rig import PARTITION, Rig, rig

SOON_S = 30.0


class CountedObjects(MemoryObjectStore):
    """Counts ranged GETs, and damages the first ones."""

    def __init__(self) -> None:
        super().__init__(clock=SystemClock())
        self.gets = 0
        self.wrong = 0

    async def get_parts(self, key: str, start: int, end: int, *, part_bytes: int) -> "list[bytes]":  # type: ignore[override]
        self.gets += 1
        body = bytearray(await self.get_range(key, start, end))
        if self.wrong:
            self.wrong -= 1
            body[-1] ^= 1
        return [bytes(body)]


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.glob("cluster/*/*"))


async def until_put(folder: Path, count: int = 1) -> None:
    async with asyncio.timeout(SOON_S):
        while len(names(folder)) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.002)


@pytest.fixture
def shared() -> MemoryMetadataStore:
    return MemoryMetadataStore(clock=SystemClock(), shards=1)


async def test_what_one_broker_commits_another_of_the_machine_reads_without_a_get(tmp_path: Path, shared: MemoryMetadataStore) -> None:
    objects = CountedObjects()
    async with (
        rig(shared=shared, objects=objects, cache_dir=tmp_path) as one,
        rig(shared=shared, objects=objects, epoch=8, cache_dir=tmp_path) as other,
    ):
        await one.send(batch_bytes(2, payload=b"a" * 300), batch_bytes(1, payload=b"b" * 300))
        await until_put(tmp_path)
        (entry,) = (await one.manifest()).pending
        key = object_key(entry.object_id)
        [name] = names(tmp_path)
        size_bytes = int(name.rpartition("-")[2])

        assert await other.read_all() == await one.read_all()
        assert objects.gets == 0
        assert (tmp_path / name).read_bytes()[:size_bytes] == await objects.get_range(key, 0, size_bytes), "as it is in the store"


async def until_writing(broker: Rig) -> None:
    async with asyncio.timeout(SOON_S):
        while not broker.metadata.writes:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_nothing_is_kept_of_an_object_before_it_is_known_to_be_committed(tmp_path: Path, shared: MemoryMetadataStore) -> None:
    async with rig(shared=shared, cache_dir=tmp_path) as broker:
        broker.metadata.write_s = 0.1
        broker.metadata.faults += ["refused", "reply lost"]
        sent = broker.send(batch_bytes(1, payload=b"x" * 300))
        await until_writing(broker)
        while not sent.done():
            assert names(tmp_path) == []
            await asyncio.sleep(0.01)
        await until_put(tmp_path)


async def test_what_has_no_known_outcome_is_not_kept(tmp_path: Path, shared: MemoryMetadataStore) -> None:
    async with rig(shared=shared, cache_dir=tmp_path) as broker:
        broker.metadata.write_s = 0.1
        sent = broker.send(batch_bytes(1, payload=b"x" * 300))
        await until_writing(broker)
        broker.parts.refuse("the store is gone")
        (answer,) = await sent
        assert isinstance(answer, OutcomeUnknown)
        await broker.parts.appender.drain()
        await asyncio.sleep(0.05)

    assert names(tmp_path) == []


async def test_an_object_that_was_stored_again_under_another_name_is_not_kept(tmp_path: Path, shared: MemoryMetadataStore) -> None:
    async with rig(shared=shared, cache_dir=tmp_path) as broker:
        floor = encode_ulid(4_102_444_800_000 << 80)
        (record,) = await shared.get_many([keys.PartitionKeys(PARTITION).manifest])
        assert record is not None
        await shared.write([Put(keys.PartitionKeys(PARTITION).manifest, encode(Manifest(revoked_floor=floor)), record.version)])
        await broker.send(batch_bytes(1, payload=b"x" * 300))
        await asyncio.sleep(0.05)
        assert len(broker.objects.put_keys) == 2
        assert names(tmp_path) == []


async def test_bytes_that_the_store_gave_wrong_once_are_healed_for_all(tmp_path: Path, shared: MemoryMetadataStore) -> None:
    objects = CountedObjects()
    async with rig(shared=shared, objects=objects) as writer:
        await writer.send(batch_bytes(1, payload=b"precious" * 50))
        expected = await writer.read_all()
    async with (
        rig(shared=shared, objects=objects, epoch=8, cache_dir=tmp_path) as one,
        rig(shared=shared, objects=objects, epoch=8, cache_dir=tmp_path) as other,
    ):
        before, objects.wrong = objects.gets, 1
        assert await one.read_all() == expected
        assert await other.read_all() == expected
        assert objects.gets - before <= 3
