"""What happens to a cluster while its clients work. Every seed leaves some kinds out; in the end all is well again.

In some seeds the metadata are put back to a copy of a random moment (docs/internals/design/upkeep.md#metadata-that-went-back).
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from compactor.collector import CollectionReport, Collector, CollectorPolicy
from compactor.limits import CompactorLimits
from compactor.purge import Purge, PurgePolicy
from compactor.references import References
from runtime.ids import IdSource
from sim.broker import SESSION_TIMEOUT_MS, Ground, SimBroker
from sim.fsck import Floor, named_objects
from sim.loop import VirtualClock
from sim.metadata import Shards
from sim.objects import KeptObjects
from storage.catalog.collections import Deletions, accept_older
from storage.errors import Unavailable
from storage.formats.manifest import LogState, Manifest, decode_manifest, encode
from storage.metadata.keys import PartitionKeys
from storage.metadata.memory import MemoryMetadataStore, SharedRecords
from storage.metadata.port import Put
from storage.vocabulary import ObjectId, PartitionId

PAUSE_S: Final = (0.2, 6.0)
SILENCE_S: Final = (0.5, 14.0)
DEPOSED_S: Final = (0.3, 6.0)
OUTAGE_S: Final = (0.1, 3.0)
DOWN_S: Final = (0.0, 0.5, 3.0)
KINDS: Final = ("crash", "crash", "pause", "session", "outage", "clock", "floor", "silence", "depose", "depose", "trim", "grow")
CHURN: Final = ("session", "crash", "crash", "pause", "pause")
"""Brokers come and go, and nothing else is wrong but their requests."""
CRASHES: Final = ("crash", "crash", "outage", "floor", "depose")
"""Brokers die, and stores are away."""
UNTIMED: Final = tuple(kind for kind in KINDS if kind not in ("clock", "pause"))
"""No clock jumps and no broker stalls."""
OUTAGES: Final = ("objects away",)
PARTITIONS_GROWN_MAX: Final = 2
COPIED_WITHIN_S = 10.0
"""From the start of a world: while brokers write and compactors delete."""


class Nemesis:
    def __init__(
        self,
        ground: Ground,
        brokers: list[SimBroker],
        start: Callable[[int], SimBroker],
        manifest_of: Callable[[PartitionId], Manifest | None],
        ids: IdSource,
        chance: random.Random,
        *,
        kinds: Sequence[str],
        mean_s: float,
    ) -> None:
        """`brokers` are replaced in place: the one at place n has the id n + 1, and `start` begins another life of it."""
        self._ground = ground
        self._brokers = brokers
        self._start = start
        self._manifest_of = manifest_of
        self._ids = ids
        self._chance = chance
        self._mean_s = mean_s
        self._kinds = kinds
        self._grow: Callable[[], Awaitable[None]] | None = None
        self._trim: Callable[[], Awaitable[None]] | None = None
        self._grown = 0
        self.changes: list[asyncio.Task[None]] = []
        """Changes of topics and logs that were begun; they may outlast the faults."""
        self.floors: list[Floor] = []

    def let_grow(self, grow: Callable[[], Awaitable[None]]) -> None:
        self._grow = grow

    def let_trim(self, trim: Callable[[], Awaitable[None]]) -> None:
        self._trim = trim

    async def rage(self, duration_s: float) -> None:
        """For that long. When it returns nothing is wrong any more but what is on its way."""
        loop, history = asyncio.get_running_loop(), self._ground.history
        ends_s = loop.time() + duration_s
        while (pause_s := self._chance.expovariate(1 / self._mean_s)) and loop.time() + pause_s < ends_s:
            await asyncio.sleep(pause_s)
            await self._strike(self._chance.choice(self._kinds), self._chance.randrange(len(self._brokers)))
        await asyncio.sleep(max(0.0, ends_s - loop.time()))
        history.trace("nemesis", "over", "")
        self._ground.metadata_plan.heal()
        self._ground.objects_plan.heal()
        self._ground.shards.heal()
        for broker in self._brokers:
            broker.resume()
            broker.find_leaders()

    async def _strike(self, kind: str, place: int) -> None:
        broker, chance, loop = self._brokers[place], self._chance, asyncio.get_running_loop()
        how: object = broker.name
        match kind:
            case "crash":
                await broker.crash()
                await asyncio.sleep(chance.choice(DOWN_S))
                self._brokers[place] = self._start(place + 1)
            case "pause":
                broker.pause()
                loop.call_later(chance.uniform(*PAUSE_S), broker.resume)
            case "session":
                broker.lose_session()
            case "outage":
                hit = chance.choice((self._ground.metadata_plan, self._ground.objects_plan))
                how = hit.begin_outage(chance.uniform(*OUTAGE_S)).value
            case "objects away":
                how = self._ground.objects_plan.begin_outage(chance.uniform(*OUTAGE_S)).value
            case "clock":
                broker.clock.skew_ms += chance.choice((-3_600_000, -50, 50, 3_600_000))
            case "floor":
                how = await self._raise_floor()
            case "silence":
                how = chance.randrange(self._ground.shards.count)
                self._ground.shards.silence(how, chance.uniform(*SILENCE_S))
            case "depose":
                shard = chance.randrange(self._ground.shards.count)
                broker.depose(shard)
                loop.call_later(chance.uniform(*DEPOSED_S), broker.find_leaders)
                how = f"{broker.name} shard={shard}"
            case "trim" if self._trim is not None:
                self.changes.append(self._ground.nursery.spawn(_run(self._trim), name="trim"))
            case "grow" if self._grow is not None and self._grown < PARTITIONS_GROWN_MAX:
                self._grown += 1
                self.changes.append(self._ground.nursery.spawn(_run(self._grow), name="grow"))
        self._ground.history.trace("nemesis", kind, how)

    async def _raise_floor(self) -> str:
        """As a collector would before it looks for garbage: ids up to now may no longer be committed."""
        records = self._ground.shards.manifests()
        partition = self._chance.choice(list(records))
        manifest, version = self._manifest_of(partition), records[partition].version
        assert manifest is not None
        raised = msgspec.structs.replace(manifest, revoked_floor=ObjectId(self._ids.next_ulid(above=manifest.revoked_floor)))
        await self._ground.metadata.write([Put(PartitionKeys(partition).manifest, encode(raised), version)])
        self.floors.append(Floor(partition, manifest.sequence_counter, raised.revoked_floor))
        return raised.revoked_floor


async def _run(work: Callable[[], Awaitable[None]]) -> None:
    await work()


class Restoring:
    """One copy, taken by itself, and what becomes of the cluster that gets it back."""

    def __init__(
        self,
        records: SharedRecords,
        shards: Shards,
        metadata: MemoryMetadataStore,
        objects: KeptObjects,
        chance: random.Random,
        violation: Callable[[str], None],
        limits: CompactorLimits,
    ) -> None:
        self._limits = limits
        self._records = records
        self._shards = shards
        self._metadata = metadata
        self._objects = objects
        self._chance = chance
        self._violation = violation
        self._copy = records.copy()
        loop = asyncio.get_running_loop()
        loop.call_later(chance.uniform(0.0, COPIED_WITHIN_S), self._take_copy)
        self._ids = IdSource(clock=VirtualClock(loop), entropy=chance.randbytes)
        self._deletions = Deletions(metadata, objects, ids=self._ids, clock=VirtualClock(loop), entropy=chance.randbytes)

    def _take_copy(self) -> None:
        self._copy = self._records.copy()

    async def run(self) -> None:
        """Put the copy back, when nobody is at work any more, and see what a compactor does."""
        self._records.put_back(self._copy)
        found = await self._deletions.newer.look()
        there = set(await self._stored())
        gone = sorted(await self._named() - there)
        if found is None and gone:
            self._violation(f"restored: the metadata name objects that were deleted, and nothing says that they are older: {gone}")
        if found is None or found.evidence.startswith("objects were deleted"):
            # As by a collector that goes on behind the refusal. It must not do so where a mark alone shows it: what it writes may hide that
            # (model F-restore-mark-version).
            await self._upkeep()
        if (found is not None or gone) and set(await self._stored()) != there:
            self._violation("restored: objects were deleted by metadata that are older, or that lack some")
        if found is None:
            return
        await accept_older(self._metadata, self._objects, self._ids, VirtualClock(asyncio.get_running_loop()))
        if (still := await self._deletions.newer.look()) is not None:
            self._violation(f"restored: what was accepted is refused: {still}")
        await self._upkeep()
        if not there <= set(await self._stored()):
            self._violation("restored: objects were deleted that stay by an acceptance")

    async def _upkeep(self) -> None:
        """Collect and purge, without any grace. What is refused is for the caller to see."""
        clock = VirtualClock(asyncio.get_running_loop())
        session = await self._metadata.open_session(timeout_ms=SESSION_TIMEOUT_MS)
        collector = Collector(
            metadata=self._metadata,
            objects=self._objects,
            references=References(self._metadata, session=session, ids=self._ids, entropy=self._chance.randbytes, limits=self._limits),
            clock=clock,
            deletions=self._deletions,
            policy=CollectorPolicy(grace_ms=-3_600_000),
            limits=self._limits,
        )
        purge = Purge(
            metadata=self._metadata,
            objects=self._objects,
            deletions=self._deletions,
            clock=clock,
            policy=PurgePolicy(pause_s=0.0),
            entropy=self._chance.randbytes,
            limits=self._limits,
        )
        try:
            await collector.cycle(CollectionReport())
            await purge.run()
        except Unavailable:
            pass  # the caller sees what is left
        finally:
            await session.close()

    async def _named(self) -> set[str]:
        """Keys that live entries of topics that are there name, read without the code under test."""
        found: set[str] = set()
        for partition, record in self._shards.manifests().items():
            manifest = decode_manifest(record.value, path=record.path)
            if manifest.log_state is not LogState.DELETED and partition.topic_id not in self._shards.deleted_topics():
                found |= await named_objects(self._metadata, partition, manifest)
        return found

    async def _stored(self) -> list[str]:
        return [one.key for prefix in ("wal/", "segments/") for one in [stat async for stat in self._objects.list(prefix)]]
