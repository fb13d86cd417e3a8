"""Merges of a compactor of the simulation, over faulty stores and from old leaders, and a collector."""

import asyncio
import random
from typing import Final

from compactor.merge import Merging
from compactor.merge_plan import MergePolicy
from runtime.ids import IdSource
from sim.broker import SESSION_TIMEOUT_MS, Ground
from sim.garbage import SegmentCollector
from sim.loop import VirtualClock
from sim.objects import SimObjects
from sim.pausing import OldSegments
from storage.errors import StorageError
from storage.metadata.keys import PartitionKeys
from storage.metadata.port import Delete

IDLE_S: Final = 0.1
REOPENED_RATE: Final = 0.3
OLD_RATE: Final = 0.15
"""How often a deposed leader is asked from now on, or no longer."""
COLLECTED_RATE: Final = 0.3
UNCLAIMED_RATE: Final = 0.6
"""How often whoever has claimed the partition loses it: then several compactors are at it."""
POLICIES: Final = (
    MergePolicy(count_min=2, growth_min=1, block_bytes=1),
    MergePolicy(count_min=2, growth_min=1, block_bytes=300),
    MergePolicy(count_min=3, growth_min=1, segment_bytes=8_000),
)
RECOVER: Final = MergePolicy(count_min=1 << 40)
"""Nothing is due: what was committed is finished, and no more."""


class SimMerger:
    """One life of it."""

    def __init__(self, name: str, ground: Ground, chance: random.Random, metadata: OldSegments, objects: SimObjects) -> None:
        self._name = name
        self._ground = ground
        self._chance = chance
        self._metadata = metadata
        self._objects = objects
        self._collector = SegmentCollector(ground, chance, name=name)
        self._policy = chance.choice(POLICIES)

    async def work(self, clock: VirtualClock) -> None:
        ground, chance = self._ground, self._chance
        merging = None
        while True:
            await asyncio.sleep(chance.expovariate(1 / IDLE_S))
            partition = chance.choice(list(ground.shards.control_records()))
            if chance.random() < OLD_RATE:
                self._metadata.find_leaders()
                if chance.random() < 0.7:
                    self._metadata.only_segments = chance.random() < 0.7
                    self._metadata.depose(chance.randrange(ground.shards.count))
            if chance.random() < UNCLAIMED_RATE:
                await ground.metadata.write([Delete(PartitionKeys(partition).compactor_claim)])
            if chance.random() < COLLECTED_RATE:
                await self._collector.run(partition)
            try:
                if merging is None:
                    session = await self._metadata.open_session(timeout_ms=SESSION_TIMEOUT_MS)
                    ids = IdSource(clock=clock, entropy=chance.randbytes)
                    merging = Merging(
                        metadata=self._metadata,
                        objects=self._objects,
                        session=session,
                        ids=ids,
                        policy=self._policy,
                        entropy=chance.randbytes,
                        limits=ground.compactor_limits,
                    )
                result = await merging.run(partition)
            except StorageError as error:
                ground.history.trace(self._name, "not merged", repr(error))
                if chance.random() < REOPENED_RATE:
                    merging = None  # its session may be over
                continue
            ground.history.trace(self._name, result.ended.value, f"{partition} {result.merged} recovered={result.recovered}")


async def recover(ground: Ground, chance: random.Random, clock: VirtualClock) -> None:
    """Without faults: the merges that were committed are finished."""
    metadata = ground.metadata.client()
    session = await metadata.open_session(timeout_ms=SESSION_TIMEOUT_MS)
    ids = IdSource(clock=clock, entropy=chance.randbytes)
    merging = Merging(
        metadata=metadata,
        objects=ground.objects,
        session=session,
        ids=ids,
        policy=RECOVER,
        entropy=chance.randbytes,
        limits=ground.compactor_limits,
    )
    for partition in list(ground.shards.control_records()):
        try:
            await merging.run(partition)
        except StorageError as error:
            ground.history.violation(f"merge: cannot be finished: {error!r}")
    await metadata.close()
