"""Upkeep of a copy of the stores when nobody is at work any more. It loses nothing, and leaves no early page.

    half of the partitions are compacted → all is collected → the others are compacted → all is collected → no early page is left

Between the halves brokers that died have left early objects of which one partition needs its pages, and another does not.
"""

import asyncio
import random
from collections.abc import Sequence
from typing import Final

from compactor.collector import KINDS, CollectionReport, CollectorPolicy
from compactor.compaction import Compaction, CompactionEnd, Round
from compactor.limits import CompactorLimits
from compactor.plan import CompactionPolicy
from compactor.references import References
from runtime.blocking import InlineBlocking
from runtime.ids import IdSource
from sim.broker import SESSION_TIMEOUT_MS
from sim.compactor import SimCollector
from sim.fsck import fsck, pages_left
from sim.loop import VirtualClock
from sim.objects import KeptObjects
from storage.errors import StorageError
from storage.formats.manifest import LogState, decode_manifest
from storage.log.limits import LogLimits
from storage.metadata.keys import PartitionKeys, partition_of_manifest
from storage.metadata.memory import MemoryMetadataStore, SharedRecords
from storage.metadata.port import Session
from storage.vocabulary import PartitionId

AT_ONCE: Final = CompactionPolicy(entries_due=1)
NO_GRACE_MS: Final = -(10**10)
"""Ids are ahead of the clock by hours, where brokers' clocks were."""
AT_ITS_END: Final = (CompactionEnd.NOTHING_DUE, CompactionEnd.GONE)
ROUNDS_MAX: Final = 1_000
CYCLES_MAX: Final = 1_000


class LastUpkeep:
    """Made for one run."""

    def __init__(self, records: SharedRecords, chance: random.Random, *, limits: CompactorLimits, log_limits: LogLimits) -> None:
        """`records` are what it works on: nobody else has them."""
        self._clock = VirtualClock(asyncio.get_running_loop())
        self._chance = chance
        self._limits = limits
        self._log_limits = log_limits
        self._ids = IdSource(clock=self._clock, entropy=chance.randbytes)
        self._records = records
        self._metadata = MemoryMetadataStore(clock=self._clock, shared=records)

    async def run(self, objects: KeptObjects) -> list[str]:
        """Return what is wrong after it."""
        objects = await objects.copy()
        session = await self._metadata.open_session(timeout_ms=SESSION_TIMEOUT_MS)
        partitions = self._open_partitions()
        before = {one: await self._batches_of(one, objects) for one in partitions}
        wrong: list[str] = []
        for some in (self._chance.sample(partitions, len(partitions) // 2), partitions):
            try:
                await self._compact(some, objects, session)
                await self._collect(objects, session)
            except StorageError as error:
                wrong.append(f"upkeep: it cannot be done: {error!r}")
                break
            for one in partitions:
                after = await self._batches_of(one, objects)
                wrong += after[1]
                if after != before[one]:
                    wrong.append(f"upkeep: a log has changed: {one} batches={len(after[0])} before={len(before[one][0])}")
        await session.close()
        return wrong or await pages_left(self._metadata)

    def _open_partitions(self) -> list[PartitionId]:
        found = {partition_of_manifest(path): record for shard in self._records.shards for path, record in shard.records.items()}
        found.pop(None, None)
        return sorted(
            one
            for one, record in found.items()
            if one is not None and decode_manifest(record.value, path=record.path).log_state is not LogState.DELETED
        )

    async def _batches_of(self, partition: PartitionId, objects: KeptObjects) -> tuple[list[object], list[str]]:
        (record,) = await self._metadata.get_many([PartitionKeys(partition).manifest])
        assert record is not None
        manifest = decode_manifest(record.value, path=record.path)
        log, wrong = await fsck(self._metadata, objects, partition, manifest, place=str(partition), is_over=False)
        return [one for one in log.batches if one.offset >= manifest.log_start], wrong

    async def _compact(self, partitions: Sequence[PartitionId], objects: KeptObjects, session: Session) -> None:
        compaction = Compaction(
            metadata=self._metadata,
            objects=objects,
            session=session,
            ids=self._ids,
            clock=self._clock,
            policy=AT_ONCE,
            entropy=self._chance.randbytes,
            limits=self._limits,
            log_limits=self._log_limits,
        )
        left = list(partitions)
        for _ in range(ROUNDS_MAX):
            report = await Round(compaction, objects=objects, blocking=InlineBlocking(), clock=self._clock, limits=self._limits).run(left)
            for result in report.ended.values():
                if isinstance(result, StorageError):
                    raise result
            ended = [one for one, result in report.ended.items() if not isinstance(result, StorageError) and result.ended in AT_ITS_END]
            left = [one for one in left if one not in ended]
            if not left:
                return
        raise AssertionError(f"upkeep: compaction does not end: {left}")

    async def _collect(self, objects: KeptObjects, session: Session) -> None:
        collector = SimCollector(
            metadata=self._metadata,
            objects=objects,
            references=References(self._metadata, session=session, ids=self._ids, entropy=self._chance.randbytes, limits=self._limits),
            clock=self._clock,
            policy=CollectorPolicy(grace_ms=NO_GRACE_MS),
            limits=self._limits,
        )
        collector.chance = self._chance
        ended = set[str]()
        for _ in range(CYCLES_MAX):
            ended |= await collector.cycle(CollectionReport())
            if ended.issuperset(KINDS):
                return
        raise AssertionError(f"upkeep: a collection does not end: {ended}")
