"""A shard of the metadata store that does not answer holds up its own partitions only (review G)."""

import asyncio
from collections.abc import Sequence

from runtime.clock import SystemClock
from storage.formats.manifest import Manifest, encode
from storage.log.batch import Appended
from storage.log.flush import FlushSettings
from storage.metadata.keys import PartitionKeys
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import ABSENT, Key, Put, WriteOp, WriteOutcome
from storage.vocabulary import PartitionId
from tests.kit.batches import batch_bytes
from tests.unit.storage.log.rig import TOPIC, Rig, rig

TOGETHER = FlushSettings(interval_s=0.0, gather_s=0.01)
PROMPT_S = 5.0
"""Far below the deadlines of a commit; a healthy one takes milliseconds."""


class Silence:
    """Requests to one shard are not answered until `end`."""

    def __init__(self, broker: Rig, shard: int) -> None:
        self._over = asyncio.Event()
        self._write, self._get_many = broker.metadata.write, broker.metadata.get_many
        self._shard_of = broker.shared.shard_of
        self._shard = shard
        broker.metadata.write = self._writing  # type: ignore[method-assign]
        broker.metadata.get_many = self._reading  # type: ignore[method-assign]

    def end(self) -> None:
        self._over.set()

    async def _writing(self, ops: Sequence[WriteOp]) -> WriteOutcome:
        key = ops[0].start if not hasattr(ops[0], "key") else ops[0].key
        if self._shard_of(key.partition_key) == self._shard:
            await self._over.wait()
        return await self._write(ops)

    async def _reading(self, wanted: Sequence[Key]) -> list[object]:
        if any(self._shard_of(key.partition_key) == self._shard for key in wanted):
            await self._over.wait()
        return await self._get_many(wanted)


async def two_shards() -> tuple[MemoryMetadataStore, list[PartitionId], list[PartitionId]]:
    """The store, partitions of a shard that will be healthy, and of one that will be silent."""
    shared = MemoryMetadataStore(clock=SystemClock(), shards=2)
    partitions = [PartitionId(TOPIC, number) for number in range(40)]
    for partition in partitions:
        await shared.write([Put(PartitionKeys(partition).manifest, encode(Manifest()), ABSENT)])
    by_shard = [[one for one in partitions if shared.shard_of(PartitionKeys(one).partition_key) == shard] for shard in (0, 1)]
    return shared, by_shard[0], by_shard[1]


async def test_a_flush_is_acknowledged_shard_by_shard() -> None:
    shared, healthy, silent = await two_shards()
    async with rig(shared=shared, flush=TOGETHER) as broker:
        for partition in (healthy[0], silent[0]):
            await broker.send(batch_bytes(1), partition=partition)
        silence = Silence(broker, 1)
        held = broker.send(batch_bytes(1), partition=silent[0])
        prompt = [broker.send(batch_bytes(1), partition=partition) for partition in healthy[:5]]

        results = [await asyncio.wait_for(one, PROMPT_S) for one in prompt]
        assert results == [[Appended(1, 0)], *[[Appended(0, 0)]] * 4]
        assert not held.done()
        silence.end()
        assert await held == [Appended(1, 0)]


async def test_a_partition_that_was_never_read_and_cannot_be_holds_up_nobody() -> None:
    shared, healthy, silent = await two_shards()
    async with rig(shared=shared, flush=TOGETHER) as broker:
        silence = Silence(broker, 1)
        held = broker.send(batch_bytes(1), partition=silent[3])
        prompt = broker.send(batch_bytes(1), partition=healthy[3])

        assert await asyncio.wait_for(prompt, PROMPT_S) == [Appended(0, 0)]
        assert not held.done()
        silence.end()
        assert await held == [Appended(0, 0)]


async def test_flushes_after_one_that_hangs_go_on() -> None:
    shared, healthy, silent = await two_shards()
    async with rig(shared=shared, flush=TOGETHER) as broker:
        silence = Silence(broker, 1)
        held = []
        for number in range(20):
            held.append(broker.send(batch_bytes(1), partition=silent[0]))
            assert await asyncio.wait_for(broker.send(batch_bytes(1), partition=healthy[0]), PROMPT_S) == [Appended(number, 0)]
        silence.end()

        assert [await one for one in held] == [[Appended(number, 0)] for number in range(20)], "in order, once the shard answers"
