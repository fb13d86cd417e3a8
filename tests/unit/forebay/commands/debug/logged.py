"""A log over memory stores with a topic that has a name: what the tests of tracing stand on."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from forebay.commands.tracing import Tracer
from runtime.clock import SystemClock
from storage.catalog.records import encode
from storage.catalog.topics import Topic
from storage.formats.wal import object_key
from storage.metadata import keys
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import ABSENT, Put
from storage.objects.memory import MemoryObjectStore
from tests.unit.storage.log.rig import TOPIC, Rig, rig

NAME = "orders"


@dataclass
class Logged:
    """`metadata` and `objects` are the stores themselves, behind the rig's faults."""

    rig: Rig
    metadata: MemoryMetadataStore
    objects: MemoryObjectStore
    tracer: Tracer

    async def append(self, *batches: bytearray) -> None:
        await self.rig.send(*batches)

    async def newest_key(self) -> str:
        """The object of the newest pending entry."""
        return object_key((await self.rig.manifest()).pending[-1].object_id)

    async def replace(self, key: str, body: bytes) -> None:
        await self.objects.delete_many([key])
        await self.objects.put_if_absent(key, [body])

    async def body(self, key: str) -> bytearray:
        return bytearray(await self.objects.get_range(key, 0, (await self.objects.stat(key)).size_bytes))


@contextlib.asynccontextmanager
async def logged() -> AsyncIterator[Logged]:
    clock = SystemClock()
    metadata, objects = MemoryMetadataStore(clock=clock, shards=1), MemoryObjectStore(clock=clock)
    topic = Topic(name=NAME, topic_id=TOPIC, partition_count=1, replication_factor=1, configs={}, created_at_ms=1)
    named = b'{"fmt":1,"name":"orders"}'
    await metadata.write([Put(keys.topic(NAME), encode(topic), ABSENT), Put(keys.topic_id(TOPIC), named, ABSENT)])
    async with rig(shared=metadata, objects=objects) as made:
        yield Logged(made, metadata, objects, Tracer(metadata=metadata, objects=objects))
