"""A compactor of the simulation: real compactions, merges, retention and collection over faulty stores, sometimes from old leaders.

It dies and pauses by itself, at whatever await it is. Its collector of segments knows the stores as they are: what nothing names is
revoked, counted, looked for once more, and deleted.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from compactor.collector import CollectionReport, Collector, CollectorPolicy, Judged, ObjectsMissing, UnusedCandidate
from compactor.compaction import Compaction, CompactionEnd, Round, RoundPolicy, only
from compactor.merge import Merging
from compactor.plan import NO_LIMIT, CompactionPolicy, MergePolicy, RetentionLimits, TidyPolicy
from compactor.purge import Purge, PurgePolicy
from compactor.records import GoneBrokers
from compactor.references import References
from compactor.retention import Retention
from runtime.blocking import InlineBlocking
from runtime.ids import IdSource
from sim.accounts import Accounts
from sim.batches import TIMESTAMP_MS
from sim.broker import SESSION_TIMEOUT_MS, Ground
from sim.faults import Wire
from sim.loop import OrderedNursery, VirtualClock
from sim.metadata import OldSegments, Pausing, SimMetadata
from sim.objects import SimObjects
from sim.watches import Grant
from storage.cache.blocks import RangeSource
from storage.catalog.collections import Deletions, MetadataWentBack, NewerStore
from storage.errors import StorageError
from storage.formats.manifest import Manifest, SegmentEntry, decode_manifest, decode_segment, encode
from storage.formats.segment import parse_segment_key, segment_key
from storage.metadata.keys import PartitionKeys
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import Applied, Delete, Put, Session, Status, WriteOp, WriteOutcome, children_of
from storage.objects.memory import MemoryObjectStore
from storage.vocabulary import ObjectId, PartitionId

GRACE_S: Final = (0.0, 3.0)
MERGER_IDLE_S: Final = 0.1
REOPENED_RATE: Final = 0.3
OLD_MERGER_RATE: Final = 0.15
"""How often a deposed leader is asked from now on, or no longer."""
COLLECTED_RATE: Final = 0.3
UNCLAIMED_RATE: Final = 0.6
"""How often whoever has claimed the partition loses it: then several compactors are at it."""
MERGE_POLICIES: Final = (
    MergePolicy(count_min=2, growth_min=1, block_bytes=1),
    MergePolicy(count_min=2, growth_min=1, block_bytes=300),
    MergePolicy(count_min=3, growth_min=1, segment_bytes=8_000),
)
RECOVER_MERGES: Final = MergePolicy(count_min=1 << 40)
"""Nothing is due: what was committed is finished, and no more."""
RETAINER_IDLE_S: Final = 1.0
OLD_RETAINER_RATE: Final = 0.3
FOUND_RATE: Final = 0.5
CHANGED_RATE: Final = 0.7
ASKED_RATE: Final = 0.7
TIDIED_MS: Final = (0, 300, 1_500, 600_000)
"""The first is no time at all: whatever was appended is tidied at once."""
BYTES: Final = (0, 300, 1_500, 6_000)
LIFE_S: Final = 4.0
"""The mean life of one while the nemesis works."""
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


class SegmentCollector:
    def __init__(self, ground: Ground, chance: random.Random, *, name: str) -> None:
        """`name`: nobody else has it in this world."""
        self._ground = ground
        self._chance = chance
        clock, entropy = VirtualClock(asyncio.get_running_loop()), random.Random(name).randbytes
        ids = IdSource(clock=clock, entropy=entropy)
        self._deletions = Deletions(ground.metadata, ground.objects, ids=ids, clock=clock, entropy=entropy)

    async def run(self, partition: PartitionId) -> None:
        keys = PartitionKeys(partition)
        garbage = await self._unnamed(partition)
        (record,) = await self._ground.metadata.get_many([keys.manifest])
        if not garbage or record is None:
            return
        chosen = self._chance.choice(garbage)
        object_id = parse_segment_key(chosen)[1]  # type: ignore[index]
        manifest = decode_manifest(record.value, path=record.path)
        if manifest.revoked_floor < object_id:
            revoked = msgspec.structs.replace(manifest, revoked_floor=object_id)
            outcome = await self._ground.metadata.write([Put(keys.manifest, encode(revoked), record.version)])
            if not isinstance(outcome, Applied) or outcome.results[0].status is not Status.OK:
                return
        self._ground.history.trace("garbage", "revoked", chosen)
        await asyncio.sleep(self._chance.uniform(*GRACE_S))
        await self._deletions.count()
        if chosen in await self._unnamed(partition):
            self._ground.history.trace("garbage", "deleted", chosen)
            await self._ground.objects.delete_many([chosen])

    async def _unnamed(self, partition: PartitionId) -> list[str]:
        """Objects that nothing names at this moment."""
        keys = PartitionKeys(partition)
        (record,) = await self._ground.metadata.get_many([keys.manifest])
        manifest = Manifest() if record is None else decode_manifest(record.value, path=record.path)
        start, end = children_of(keys.segments_prefix.removesuffix("/"))
        named: list[SegmentEntry | None] = [manifest.segment, manifest.rewritten]
        first = keys.segment(0)._replace(path=start)
        named += [
            decode_segment(one.value, path=one.path) async for one in self._ground.metadata.range_scan(first, end) if "!" not in one.path
        ]
        kept = {segment_key(partition, one.object_id) for one in named if one is not None}
        prefix = segment_key(partition, ObjectId(""))
        return [stat.key async for stat in self._ground.objects.list(prefix) if stat.key not in kept]


class SimMerger:
    """One life of it."""

    def __init__(self, name: str, ground: Ground, chance: random.Random, metadata: OldSegments, objects: SimObjects) -> None:
        self._name = name
        self._ground = ground
        self._chance = chance
        self._metadata = metadata
        self._objects = objects
        self._collector = SegmentCollector(ground, chance, name=name)
        self._policy = chance.choice(MERGE_POLICIES)

    async def work(self, clock: VirtualClock) -> None:
        ground, chance = self._ground, self._chance
        merging = None
        while True:
            await asyncio.sleep(chance.expovariate(1 / MERGER_IDLE_S))
            partition = chance.choice(list(ground.shards.manifests()))
            if chance.random() < OLD_MERGER_RATE:
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


async def recover_merges(ground: Ground, chance: random.Random, clock: VirtualClock) -> None:
    """Without faults: the merges that were committed are finished."""
    metadata = ground.metadata.client()
    session = await metadata.open_session(timeout_ms=SESSION_TIMEOUT_MS)
    ids = IdSource(clock=clock, entropy=chance.randbytes)
    merging = Merging(
        metadata=metadata,
        objects=ground.objects,
        session=session,
        ids=ids,
        policy=RECOVER_MERGES,
        entropy=chance.randbytes,
        limits=ground.compactor_limits,
    )
    for partition in list(ground.shards.manifests()):
        try:
            await merging.run(partition)
        except StorageError as error:
            ground.history.violation(f"merge: cannot be finished: {error!r}")
    await metadata.close()


class _Granted(SimMetadata):
    """Whatever it puts was asked for under the limits of that moment, whenever it arrives."""

    def __init__(self, ground: Ground, wire: Wire) -> None:
        super().__init__(ground.metadata, wire, ground.shards)
        self._watch = ground.shards.retention
        self.grant: Grant | None = None

    async def write(self, ops: Sequence[WriteOp]) -> WriteOutcome:
        if self.grant is not None:
            self._watch.allow(ops, self.grant)
        return await super().write(ops)


class SimRetainer:
    """One life of it."""

    def __init__(self, name: str, ground: Ground, chance: random.Random, clock: VirtualClock, gate: asyncio.Event) -> None:
        wire = Wire(f"{name} retention", ground.metadata_plan, gate, ground.nursery, ground.history)
        self._name = name
        self._ground = ground
        self._chance = chance
        self._clock = clock
        self._metadata = _Granted(ground, wire)
        policy = TidyPolicy(chance.choice(TIDIED_MS), ground.producer_expiration_ms)
        limits = ground.compactor_limits
        self._gone = GoneBrokers(self._metadata, clock=clock, limits=limits)
        self._session: Session | None = None
        self._retention = Retention(
            self._metadata,
            clock,
            chance.randbytes,
            policy=policy,
            gone=self._gone.among,
            limits=limits,
            log_limits=ground.log_limits,
        )

    async def work(self) -> None:
        """Until cancelled."""
        ground, chance = self._ground, self._chance
        limits = self._draw()
        while True:
            await asyncio.sleep(chance.expovariate(1 / RETAINER_IDLE_S))
            partition = chance.choice(list(ground.shards.manifests()))
            if chance.random() < FOUND_RATE:
                self._metadata.find_leaders()
            if chance.random() < OLD_RETAINER_RATE:
                self._metadata.depose(chance.randrange(ground.shards.count))
            if chance.random() < CHANGED_RATE:
                limits = self._draw()
            (record,) = await ground.metadata.get_many([PartitionKeys(partition).manifest])
            assert record is not None
            manifest = decode_manifest(record.value, path=record.path)
            if chance.random() < ASKED_RATE:
                await self._ask_who_is_gone(manifest)
            if chance.random() < 0.5 and not self._retention.is_due(partition, manifest, limits):
                continue
            begin_ms = None if limits.retention_ms == NO_LIMIT else self._clock.now_ms() - limits.retention_ms
            self._metadata.grant = Grant(begin_ms, limits.retention_bytes)
            try:
                done = await self._retention.run(partition, limits)
            except StorageError as error:
                ground.history.trace(self._name, "not retained", f"{partition} {error!r}")
                continue
            ground.history.trace(self._name, "retained", f"{partition} {limits} {done}")

    def crash(self) -> None:
        """Its session ends when its timeout has passed."""
        self._metadata.crash()

    async def _ask_who_is_gone(self, manifest: Manifest) -> None:
        self._gone.note(self._retention.questioned_writers(manifest))
        if not self._gone.has_questions:
            return
        try:
            if self._session is None or self._session.is_lost:
                self._session = await self._metadata.open_session(timeout_ms=SESSION_TIMEOUT_MS)
            await self._gone.ask(self._session)
        except StorageError as error:
            self._ground.history.trace(self._name, "does not know who is gone", repr(error))

    def _draw(self) -> RetentionLimits:
        """Timestamps of a run are few: what is before one of them is too old."""
        retention_ms = self._clock.now_ms() - TIMESTAMP_MS - self._chance.randint(0, 5)
        return RetentionLimits(self._chance.choice((NO_LIMIT, retention_ms)), self._chance.choice((NO_LIMIT, *BYTES)))


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


class SimCollector(Collector):
    """It often leaves out the look that only saves work, so that the certain one decides."""

    chance: random.Random

    async def _unseen(
        self,
        candidates: Sequence[UnusedCandidate],
        look: Callable[[PartitionId, Manifest], Awaitable[set[ObjectId]]],
        named: dict[PartitionId, set[ObjectId]],
        report: Judged,
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
        for partition in list(self._ground.shards.manifests()):
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
                partitions = list(self._ground.shards.manifests())
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
        collector = SimCollector(
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
        except (MetadataWentBack, ObjectsMissing) as error:
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
