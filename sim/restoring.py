"""The metadata are put back to a copy of a random moment (docs/design/upkeep.md#metadata-that-went-back).

Brokers and compactors have stopped by then, and whoever starts looks first. Either the object store shows that it has seen newer metadata,
or every object that the copy names is there. Once older metadata are seen nothing is deleted, and once they are accepted nothing goes.
"""

import asyncio
import random
from collections.abc import Callable

from compactor.collector import CollectionReport, Collector, CollectorPolicy
from compactor.limits import CompactorLimits
from compactor.purge import Purge, PurgePolicy
from compactor.references import References
from runtime.ids import IdSource
from sim.broker import SESSION_TIMEOUT_MS
from sim.fsck import named_objects
from sim.loop import VirtualClock
from sim.objects import KeptObjects
from sim.shards import Shards
from storage.catalog.collections import Deletions, accept_older
from storage.errors import Unavailable
from storage.formats.control import LogState, decode_control
from storage.metadata.memory import MemoryMetadataStore, SharedRecords

COPIED_WITHIN_S = 10.0
"""From the start of a world: while brokers write and compactors delete."""


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
        for partition, record in self._shards.control_records().items():
            control = decode_control(record.value, path=record.path)
            if control.log_state is not LogState.DELETED and partition.topic_id not in self._shards.deleted_topics():
                found |= await named_objects(self._metadata, partition, control)
        return found

    async def _stored(self) -> list[str]:
        return [one.key for prefix in ("wal/", "segments/") for one in [stat async for stat in self._objects.list(prefix)]]
