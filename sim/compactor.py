"""A compactor of the simulation: real compactions and merges over faulty stores. It dies and pauses by itself, at whatever await it is."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from compactor.collector import CollectionReport, Collector, CollectorPolicy, UnusedCandidate
from compactor.compaction import Compaction, CompactionEnd
from compactor.plan import CompactionPolicy
from compactor.purge import Purge, PurgePolicy
from compactor.references import References
from compactor.round import Round, RoundPolicy, only
from runtime.blocking import InlineBlocking
from runtime.ids import IdSource
from sim.accounts import Accounts
from sim.broker import SESSION_TIMEOUT_MS, Ground
from sim.determinism import OrderedNursery
from sim.faults import Wire
from sim.loop import VirtualClock
from sim.merger import REOPENED_RATE, SimMerger
from sim.merger import recover as recover_merges
from sim.metadata import SimMetadata
from sim.objects import SimObjects
from sim.pausing import OldSegments, Pausing
from sim.retainer import SimRetainer
from storage.cache.blocks import RangeSource
from storage.catalog.collections import Deletions, MetadataWentBack, NewerStore
from storage.errors import StorageError
from storage.formats.control import Control
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import Session
from storage.objects.memory import MemoryObjectStore
from storage.vocabulary import ObjectId, PartitionId

LIFE_S: Final = 4.0
"""The mean life of one while there is weather."""
PAUSE_S: Final = (0.2, 8.0)
PAUSED_RATE: Final = 0.6
WRITES_BEFORE_PAUSE_MAX: Final = 18
"""A compaction takes six, a merge four: a pause begins when any of them is about to be sent."""
IDLE_S: Final = 0.15
GRACES_MS: Final = (-3_600_000, 0, 500, 4_000)
"""The first is no grace at all, whatever the clocks say: it only saves work."""
PURGES: Final = (PurgePolicy(pause_s=0.0), PurgePolicy(partitions_per_run=1, objects_per_run=1, pause_s=0.5, pause_s_max=2.0))
POLICIES: Final = (
    CompactionPolicy(entries_due=1),
    CompactionPolicy(entries_due=4, segment_bytes=600, block_bytes=1),
    CompactionPolicy(entries_due=8, segment_bytes=1 << 20, block_bytes=300),
)
RECOVER: Final = CompactionPolicy(entries_due=1 << 40, segment_bytes=1 << 60, age_due_ms=1 << 60)
"""Nothing is due: what was begun is finished, and no more."""


@dataclass(frozen=True, slots=True)
class Duties:
    """What a compactor does beside compacting: how often it collects or purges before a round, whether it merges, and whether it trims."""

    collected_rate: float = 0.0
    purged_rate: float = 0.0
    merges: bool = False
    trims: bool = False


DUTIES: Final = {
    "compact": Duties(),
    "trim": Duties(trims=True),
    "collect": Duties(collected_rate=0.3),
    "merge": Duties(merges=True),
    "purge": Duties(purged_rate=0.3),
    "all": Duties(collected_rate=0.3, purged_rate=0.3, merges=True, trims=True),
}
"""A seed draws one. What goes wrong between two duties needs `all`; what goes wrong in one shows sooner where only that one is at work."""
DUTY_NAMES: Final = ("compact", "trim", "collect", "merge", "merge", "purge", "all", "all", "all")
BeforePurge = Callable[[PartitionId], Awaitable[None]]
"""Called when keys of that partition are about to go because its topic was deleted."""


class SimPurge(Purge):
    """It says what it is about to do."""

    before: BeforePurge

    async def _purge_partition(self, partition: PartitionId, *args: Any) -> None:
        await self.before(partition)
        await super()._purge_partition(partition, *args)


class _SimCollector(Collector):
    """It often leaves out the look that only saves work, so that the certain one decides."""

    chance: random.Random

    async def _unseen(
        self,
        candidates: Sequence[UnusedCandidate],
        look: Callable[[PartitionId, Control], Awaitable[set[ObjectId]]],
        named: dict[PartitionId, set[ObjectId]],
        report: CollectionReport,
    ) -> list[UnusedCandidate]:
        if self.chance.random() < 0.7:
            return list(candidates)
        return await super()._unseen(candidates, look, named, report)


class SimCompactor:
    def __init__(self, number: int, ground: Ground, chance: random.Random, duties: Duties, before_purge: BeforePurge) -> None:
        self._number = number
        self._duties = duties
        self._before_purge = before_purge
        self.collected = 0
        self.purged = 0
        self._ground = ground
        self._chance = chance
        self._policy = chance.choice(POLICIES)
        self.is_over = False
        self.compacted = 0

    async def run(self) -> None:
        """One life after another, until `is_over`; each ends by itself."""
        life = 0
        while not self.is_over:
            life += 1
            await self._live(f"compactor-{self._number}.{life}")

    async def recover(self) -> None:
        """Without faults: what the lives before have left undone is done."""
        await asyncio.sleep(SESSION_TIMEOUT_MS / 500)  # then the claims of the dead are gone
        metadata = self._ground.metadata.client()
        clock = VirtualClock(asyncio.get_running_loop())
        session = await metadata.open_session(timeout_ms=SESSION_TIMEOUT_MS)
        compaction = self._open(metadata, self._ground.objects, session, RECOVER, clock)
        for partition in list(self._ground.shards.control_records()):
            only(await self._round(compaction, self._ground.objects, clock).run([partition]), partition)
        await metadata.close()
        await recover_merges(self._ground, self._chance, clock)

    async def _live(self, name: str) -> None:
        ground, chance, loop = self._ground, self._chance, asyncio.get_running_loop()
        gate = asyncio.Event()
        gate.set()
        clock = VirtualClock(loop, skew_ms=chance.choice(ground.skews_ms))
        wire = Wire(f"{name} metadata", ground.metadata_plan, gate, ground.nursery, ground.history)
        metadata = Pausing(ground.metadata, wire, ground.shards)
        # Apart, since leaders that it asks may be deposed.
        merging_metadata = OldSegments(ground.metadata, wire, ground.shards)
        accounts = Accounts(name, clock, ground.history.violation)
        wire = Wire(f"{name} objects", ground.objects_plan, gate, ground.nursery, ground.history)
        objects = SimObjects(ground.objects, wire, ground.objects_plan, accounts)
        life_s = chance.expovariate(1 / LIFE_S) + 0.1
        if chance.random() < PAUSED_RATE:
            life_s += PAUSE_S[1]
            pauses = ((metadata, WRITES_BEFORE_PAUSE_MAX), (merging_metadata, WRITES_BEFORE_PAUSE_MAX // 3))
            pausing, writes_max = chance.choice(pauses if self._duties.merges else pauses[:1])
            pausing.pause_at(chance.randint(1, writes_max), lambda: self._pause((metadata, merging_metadata), gate))
        merger = SimMerger(f"{name} merging", ground, chance, merging_metadata, objects)
        retainer = SimRetainer(name, ground, chance, clock, gate) if self._duties.trims else None
        async with OrderedNursery() as nursery:
            work = [nursery.spawn(self._work(name, metadata, objects, clock), name=name)]
            if self._duties.merges:
                work.append(nursery.spawn(merger.work(clock), name=f"{name} merging"))
            if retainer is not None:
                work.append(nursery.spawn(retainer.work(), name=f"{name} retention"))
            await asyncio.wait(work[:1], timeout=life_s)
            metadata.crash()
            merging_metadata.crash()
            if retainer is not None:
                retainer.crash()
            for task in work:
                task.cancel()
                await asyncio.wait({task})
            nursery.is_dead = True

    def _pause(self, stores: Sequence[SimMetadata], gate: asyncio.Event) -> None:
        """Nothing gets in or out meanwhile; its claims go with its sessions if that takes long enough."""
        gate.clear()
        for metadata in stores:
            metadata.lose_session()
        asyncio.get_running_loop().call_later(self._chance.uniform(*PAUSE_S), gate.set)

    async def _work(self, name: str, metadata: SimMetadata, objects: SimObjects, clock: VirtualClock) -> None:
        compaction = None
        ids = IdSource(clock=clock, entropy=self._chance.randbytes)
        await self._check_age(name, metadata, objects, ids)
        purge = SimPurge(
            metadata=metadata,
            objects=objects,
            deletions=Deletions(metadata, objects, ids=ids, clock=clock, entropy=self._chance.randbytes),
            clock=clock,
            policy=self._chance.choice(PURGES),
            entropy=self._chance.randbytes,
            limits=self._ground.compactor_limits,
        )
        purge.before = self._before_purge
        while True:
            await asyncio.sleep(self._chance.expovariate(1 / IDLE_S))
            try:
                if compaction is None:
                    session = await metadata.open_session(timeout_ms=SESSION_TIMEOUT_MS)
                    compaction = self._open(metadata, objects, session, self._policy, clock)
                partitions = list(self._ground.shards.control_records())
                taken = self._chance.sample(partitions, self._chance.randint(1, len(partitions)))
            except StorageError as error:
                self._ground.history.trace(name, "no session", repr(error))
                continue
            if self._chance.random() < self._duties.collected_rate:
                await self._collect(name, metadata, objects, session, clock)
            if self._chance.random() < self._duties.purged_rate:
                await self._purge(name, purge)
            policy = RoundPolicy(slice_bytes_max=self._chance.choice((1, 2_000, 1 << 20)))
            report = await self._round(compaction, objects, clock, policy).run(taken)
            for partition, result in report.ended.items():
                if isinstance(result, StorageError):
                    self._ground.history.trace(name, "not compacted", f"{partition} {result!r}")
                    continue
                if result.ended is CompactionEnd.CLAIMED and self._chance.random() < REOPENED_RATE:
                    compaction = None  # its session may be over, and with it what it could claim
                self.compacted += result.segment is not None
                self._ground.history.trace(name, result.ended.value, f"{partition} {result.segment}")

    async def _check_age(self, name: str, metadata: SimMetadata, objects: SimObjects, ids: IdSource) -> None:
        """As every start does. Whatever was killed, lost or late before: the metadata never went back here."""
        try:
            found = await NewerStore(metadata, objects, ids).look()
        except StorageError as error:
            self._ground.history.trace(name, "age not known", repr(error))
            return
        if found is not None:
            self._ground.history.violation(f"false alarm: {found}")

    async def _collect(self, name: str, metadata: SimMetadata, objects: SimObjects, session: Session, clock: VirtualClock) -> None:
        ids = IdSource(clock=clock, entropy=self._chance.randbytes)
        policy = CollectorPolicy(grace_ms=self._chance.choice(GRACES_MS), objects_max=self._chance.choice((1, 8, 100)), batch_max=8)
        limits = self._ground.compactor_limits
        references = References(metadata, session=session, ids=ids, entropy=self._chance.randbytes, limits=limits)
        deletions = Deletions(metadata, objects, ids=ids, clock=clock, entropy=self._chance.randbytes)
        collector = _SimCollector(
            metadata=metadata,
            objects=objects,
            references=references,
            deletions=deletions,
            clock=clock,
            policy=policy,
            limits=limits,
        )
        collector.chance = self._chance
        try:
            await collector.cycle(done := CollectionReport())
        except MetadataWentBack as error:
            self._ground.history.violation(f"false alarm: {error}")
            return
        except StorageError as error:
            self._ground.history.trace(name, "not collected", repr(error))
            return
        self.collected += done.deleted
        self._ground.history.trace(name, "collected", repr(done))

    async def _purge(self, name: str, purge: Purge) -> None:
        try:
            done = await purge.run()
        except MetadataWentBack as error:
            self._ground.history.violation(f"false alarm: {error}")
            return
        except StorageError as error:
            self._ground.history.trace(name, "not purged", repr(error))
            return
        self.purged += done.keys + done.objects
        self._ground.history.trace(name, "purge", repr(done))

    def _open(
        self,
        metadata: SimMetadata | MemoryMetadataStore,
        objects: SimObjects | MemoryObjectStore,
        session: Session,
        policy: CompactionPolicy,
        clock: VirtualClock,
    ) -> Compaction:
        ids = IdSource(clock=clock, entropy=self._chance.randbytes)
        return Compaction(
            metadata=metadata,
            objects=objects,
            session=session,
            ids=ids,
            clock=clock,
            policy=policy,
            entropy=self._chance.randbytes,
            limits=self._ground.compactor_limits,
            log_limits=self._ground.log_limits,
        )

    def _round(self, compaction: Compaction, objects: RangeSource, clock: VirtualClock, policy: RoundPolicy | None = None) -> Round:
        limits = self._ground.compactor_limits
        return Round(compaction, objects=objects, blocking=InlineBlocking(), clock=clock, policy=policy, limits=limits)
