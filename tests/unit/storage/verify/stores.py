"""Stores with a log in them, and faults planted there: records and objects changed behind everybody's back."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from compactor.plan import CompactionPolicy
from runtime.clock import SystemClock
from storage.catalog.topic import Topic, TopicState
from storage.formats.manifest import IndexChunk, Manifest, SegmentEntry, decode_chunk, encode
from storage.formats.segment import segment_key
from storage.formats.wal import object_key
from storage.metadata import keys
from storage.metadata.keys import PartitionKeys
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import Applied, Delete, Key, Put, Record, children_of
from storage.objects.memory import MemoryObjectStore
from storage.verify.findings import StoreFinding
from storage.verify.reading import DEFAULT_LIMITS, StoreReading, VerifyLimits
from storage.verify.verification import Depth, Verification, Verified
from storage.vocabulary import PartitionId
from tests.kit.record_batches import record_batch
from tests.unit.compactor.compacting import compacting
from tests.unit.storage.log.rig import PARTITION, TOPIC, Rig, rig

KEYS = PartitionKeys(PARTITION)
OTHER = PartitionId(TOPIC, 1)
NAME = "orders"
DEEP = Depth(is_deep=True)


async def make_topic(metadata: MemoryMetadataStore, *, partitions: int = 2, **fields: Any) -> None:
    """The record of the topic whose partition 0 a rig has made, and the other partitions."""
    made = Topic(name=NAME, topic_id=TOPIC, partition_count=partitions, replication_factor=1, configs={}, created_at_ms=0)
    topic = msgspec.structs.replace(made, **fields)
    await put(metadata, keys.topic(NAME), msgspec.json.encode(topic))
    for number in range(1, partitions):
        await put(metadata, PartitionKeys(PartitionId(TOPIC, number)).manifest, encode(Manifest()))


async def fill(broker: Rig, count: int = 40, *, begin: int = 0, partition: PartitionId = PARTITION) -> None:
    for number in range(begin, begin + count):
        await broker.send(record_batch(b"%d" % number, b"and"), partition=partition)


async def fill_both(broker: Rig, count: int = 40) -> None:
    """Each object has a slice of either partition."""
    for number in range(count):
        sent = [broker.send(record_batch(b"%d" % number, b"and"), partition=one) for one in (PARTITION, OTHER)]
        for one in sent:
            await one


async def compact(broker: Rig, partition: PartitionId = PARTITION, **fields: Any) -> SegmentEntry:
    async with compacting(broker.shared, broker.objects, policy=CompactionPolicy(entries_due=1, **fields)) as compaction:
        segment = (await compaction.run(partition)).segment
    assert segment is not None
    return segment


async def three_segments(broker: Rig) -> list[SegmentEntry]:
    """Two with keys of their own, and the newest in the manifest; entries behind them."""
    made = []
    for begin in range(0, 60, 20):
        await fill(broker, 20, begin=begin)
        made.append(await compact(broker, block_bytes=300))
    await fill(broker, 20, begin=60)
    return made


class _Image(NamedTuple):
    """What a metadata store and an object store hold."""

    records: Sequence[tuple[str, bytes]]
    objects: Mapping[str, bytes]


_images: dict[Callable[[Rig], Awaitable[None]], _Image] = {}


@contextlib.asynccontextmanager
async def kept(made: Callable[[Rig], Awaitable[None]]) -> AsyncIterator[Rig]:
    """A broker that has just started over what `made` made of a topic, which another did once for all tests."""
    if made not in _images:
        async with rig() as before:
            await make_topic(before.shared)
            await made(before)
            _images[made] = await _image_of(before)
    clock = SystemClock()
    shared, objects = MemoryMetadataStore(clock=clock, shards=1), MemoryObjectStore(clock=clock)
    for path, value in _images[made].records:
        await put(shared, Key(path, partition_key=path), value)
    for key, body in _images[made].objects.items():
        await objects.put_if_absent(key, [body])
    async with rig(shared=shared, objects=objects, epoch=8) as broker:
        yield broker


async def _image_of(broker: Rig) -> _Image:
    (shard,) = broker.shared._shards
    records = [(one.path, one.value) for one in shard.records.values()]
    objects = objects_of(broker)
    stats = [one async for one in objects.list("")]
    return _Image(records, {one.key: await objects.get_range(one.key, 0, one.size_bytes) for one in stats})


async def verify(
    broker: Rig,
    *,
    depth: Depth | None = None,
    metadata: object = None,
    objects: object = None,
    moved: Callable[[int], None] = lambda _: None,
    limits: VerifyLimits = DEFAULT_LIMITS,
) -> Verified:
    stores: Any = (metadata or broker.shared, objects or objects_of(broker))
    reading = StoreReading(*stores, concurrency=4, limits=limits)
    return await Verification(reading, depth=depth or Depth()).run(moved=moved)


async def found(broker: Rig, *, depth: Depth | None = None, limits: VerifyLimits = DEFAULT_LIMITS) -> list[StoreFinding]:
    return (await verify(broker, depth=depth, limits=limits)).findings.kept


# What is planted


async def put(metadata: MemoryMetadataStore, key: Key, value: bytes) -> None:
    assert isinstance(await metadata.write([Put(key, value, None)]), Applied)


async def delete(metadata: MemoryMetadataStore, key: Key) -> None:
    assert isinstance(await metadata.write([Delete(key)]), Applied)


async def change_manifest(broker: Rig, **fields: Any) -> None:
    await put(broker.shared, KEYS.manifest, encode(msgspec.structs.replace(await broker.manifest(), **fields)))


async def index_records(broker: Rig, partition: PartitionId = PARTITION) -> list[Record]:
    at = PartitionKeys(partition)
    start, end = children_of(at.index_prefix.removesuffix("/"))
    return [record async for record in broker.shared.range_scan(Key(start, at.partition_key), end)]


async def index_chunks(broker: Rig) -> list[IndexChunk]:
    return [decode_chunk(record.value, path=record.path) for record in await index_records(broker)]


def objects_of(broker: Rig) -> MemoryObjectStore:
    return broker.objects.inner


async def change_object(broker: Rig, key: str, change: Callable[[bytearray], bytes | bytearray]) -> None:
    """Another body under the same name."""
    objects = objects_of(broker)
    stat = await objects.stat(key)
    body = bytearray(await objects.get_range(key, 0, stat.size_bytes))
    await objects.delete_many([key])
    await objects.put_if_absent(key, [change(body)])


def flipped(at: int) -> Callable[[bytearray], bytearray]:
    def flip(body: bytearray) -> bytearray:
        body[at] ^= 1
        return body

    return flip


def wal_of(entry: Any) -> str:
    return object_key(entry.object_id)


def segment_of(entry: SegmentEntry) -> str:
    return segment_key(PARTITION, entry.object_id)


DELETING = TopicState.DELETING
