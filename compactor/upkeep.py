"""Upkeep of a cluster by one process: it finds the partitions that are its share, again and again, and does what is due for them.

A cycle reads the manifest of each, and no more of one that has not changed. It fails as a whole only if the stores do; what is wrong
with one partition is said, and tried again later, while the others go on.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from compactor.collector import KINDS, CollectionReport, Collector, CollectorPolicy, Footprint, ObjectsMissing, UploadsReport
from compactor.compaction import Compaction, CompactionResult, Round, RoundPolicy
from compactor.discovery import FoundPartition, LastLook, Looks, active_topics, manifest_pages
from compactor.limits import DEFAULT_LIMITS, CompactorLimits
from compactor.measures import CycleReport, Measures, is_damage
from compactor.merge import MergeEnd, Merging
from compactor.plan import CompactionPolicy, MergePolicy, RetentionLimits, TidyPolicy, limits_of, may_be_due
from compactor.purge import Purge
from compactor.records import Claims, GoneBrokers, Records
from compactor.references import References
from compactor.retention import Retention
from compactor.uploads import UploadSweep
from runtime.blocking import Blocking
from runtime.clock import Clock
from runtime.ids import IdSource
from runtime.version import forebay_version
from storage.catalog.brokers import CompactorRecord, compactor_of, live_compactors, register_compactor
from storage.catalog.collections import Deletions, MetadataWentBack, WentBack
from storage.catalog.identity import ClusterRecord, bears_marker, read_cluster
from storage.errors import NotFound, StorageError, Unavailable
from storage.formats.levels import LEVEL_OF_SEGMENTS
from storage.metadata.port import Applied, MetadataStore, Session
from storage.objects.port import ObjectStore
from storage.objects.requests import caused_by
from storage.objects.shared_blocks import SharedBlocks
from storage.vocabulary import PartitionId, TopicId

SESSION_TIMEOUT_MS: Final = 15_000
COLLECTING: Final = PartitionId(TopicId("objects"), 0)
"""Whoever would look after this collects: one at a time is enough, though several harm nobody."""
RETAINED_TOGETHER: Final = 16
DAMAGED_AGAIN_MS: Final = 600_000
"""A partition whose bytes are not what was written is tried again after this long: somebody may have repaired it."""


class _Life(NamedTuple):
    """What lasts as long as one session with the metadata store."""

    session: Session
    claims: Claims
    compaction: Compaction
    merging: Merging
    collector: Collector


class _Due(NamedTuple):
    """What a partition was when the cycle began: the version of its manifest, its end, whether entries may be due, and whether a
    merge was left undone.
    """

    version: int
    end: int
    is_compacted: bool
    is_merging: bool


MERGES_OF_PARTITION_MAX: Final = 16


class Upkeep:
    """`cycle` again and again, one at a time; `close` in the end."""

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        objects: ObjectStore,
        blocking: Blocking,
        ids: IdSource,
        clock: Clock,
        policy: CompactionPolicy,
        rounds: RoundPolicy,
        measures: Measures,
        collecting: CollectorPolicy | None = None,
        collect_every_s: float = 300.0,
        tidying: TidyPolicy | None = None,
        http: Callable[[], str] = str,
        footprint: Footprint | None = None,
        shared: SharedBlocks | None = None,
        limits: CompactorLimits = DEFAULT_LIMITS,
    ) -> None:
        """`blocking` runs one call at a time. `http`: the address of its metrics, for others to know. `footprint` sums what is listed.
        `shared`: where slices of WAL objects are looked for first.
        """
        self._footprint = footprint
        self._metadata = metadata
        self._objects = objects
        self._shared = shared
        self._blocking = blocking
        self._ids = ids
        self._clock = clock
        self._policy = policy
        self._rounds = rounds
        self._limits = limits
        self._measures = measures
        self._collecting = collecting or CollectorPolicy()
        self._collect_every_s = collect_every_s
        self._collect_at_s = clock.monotonic_s()
        self._http = http
        self._looks = Looks(limits=limits)
        self._unmerged: dict[PartitionId, None] = {}
        self._taken_over: set[PartitionId] = set()
        """Partitions that this compactor has looked at since they came to its share: merges that others left undone are its own by now."""
        self._gone = GoneBrokers(metadata, clock=clock, limits=limits)
        self._retention = Retention(metadata=metadata, clock=clock, policy=tidying, gone=self._gone.among, limits=limits)
        self._age_at_s = clock.monotonic_s()
        self._went_back: WentBack | None = None
        self._deletions = Deletions(metadata, objects, ids=ids, clock=clock)
        self._purge = Purge(metadata=metadata, objects=objects, deletions=self._deletions, clock=clock, limits=limits)
        self._purge_at_s = clock.monotonic_s()
        self._uploads = UploadSweep(objects=objects, clock=clock, grace_ms=self._collecting.grace_ms)
        self._life: _Life | None = None
        self._started_at_ms = clock.now_ms()
        self.name = ids.next_ulid(above="")
        self.cluster_id = ""
        """The id of the cluster that the last cycle found; empty before the first."""

    async def cycle(self, *, only: Collection[str] | None = None, number: int | None = None, is_share: bool = True) -> CycleReport:
        """Do what is due for the partitions that are this compactor's share. Unless `is_share`: for all, or for those of the topics `only`,
        or for the partition `number` of these.

        Raises a `StorageError` if the stores do not answer, `NotFound` if a topic of `only` does not exist, and `IncompatibleFormat` if the
        cluster is ahead of this release.
        """
        began_s = self._clock.monotonic_s()
        report = CycleReport()
        life = await self._alive()
        partitions: list[PartitionId] = []
        limits: dict[TopicId, RetentionLimits] = {}
        missing = set(only or ())
        async with contextlib.aclosing(active_topics(self._metadata, unreadable=self._measures.note_unreadable)) as topics:
            async for topic in topics:
                if only is None or topic.name in only:
                    missing.discard(topic.name)
                    limits[topic.topic_id] = limits_of(topic.configs)
                    partitions += [one for one in topic.partitions() if number is None or one.partition == number]
        if missing:
            raise NotFound(f"no such topic: {', '.join(sorted(missing))}")
        names = {self.name}
        if is_share:
            names = {self.name, *(one.name for one in await live_compactors(self._metadata))}
            partitions = [partition for partition in partitions if compactor_of(partition, names) == self.name]
            share = frozenset(partitions)
            self._looks.keep_only(share)
            self._retention.keep_only(share)
            self._unmerged = dict.fromkeys([one for one in self._unmerged if one in share])
            self._taken_over &= share
        collects = is_share and compactor_of(COLLECTING, names) == self.name
        report.partitions = len(partitions)
        cluster = await read_cluster(self._metadata)
        self.cluster_id = "" if cluster is None else cluster.cluster_id
        with caused_by("marker"):
            report.blocked = await self._why_nothing(cluster)
        if cluster is not None and not report.blocked:
            report.blocked = _why_not_compacted(cluster)
            due = await self._look_after(life.session, partitions, limits, report)
            if not report.blocked:
                # Before anything is deleted: a compaction finds objects to be missing that no list shows to be.
                await self._compact(life, due, report, collects=collects)
                with caused_by("collection"):
                    await self._note_missing(life.collector, report)
            if collects:
                try:
                    with caused_by("purge"):
                        await self._purge_topics(report)
                    with caused_by("collection"):
                        await self._collect(life, report)
                except MetadataWentBack as error:
                    self._went_back = error.found
                    report.blocked = str(error)
        report.went_back = self._went_back
        report.took_s = self._clock.monotonic_s() - began_s
        self._measures.note_cycle(report, self._looks)
        return report

    async def collect(self, *, dry_run: bool) -> CollectionReport:
        """Look at all objects there are, and delete those that nothing refers to unless it is a `dry_run`; the same of uploads that nobody
        will finish. Raises as `cycle` does, and `Unavailable` if the stores must be left alone.
        """
        life = await self._alive()
        with caused_by("marker"):
            why = await self._why_nothing(await read_cluster(self._metadata))
        if why:
            raise Unavailable(why)
        report = CollectionReport()
        left = list(KINDS)
        report.uploads = uploads = UploadsReport()
        with caused_by("collection"):
            while left:
                ended = await life.collector.cycle(report, kinds=left, dry_run=dry_run)
                left = [kind for kind in left if kind not in ended]
            while not await self._uploads.run(uploads, dry_run=dry_run) and uploads.failed is None:
                pass
        return report

    async def _note_missing(self, collector: Collector, report: CycleReport) -> None:
        """Let nothing be deleted, by any compactor, while objects are missing that a compaction or a merge was to read."""
        for partition in [one for one, error in report.failed.items() if isinstance(error, NotFound)]:
            try:
                await collector.note_missing_of(partition)
            except StorageError as error:
                report.failed[partition] = error

    async def _collect(self, life: _Life, report: CycleReport) -> None:
        if self._clock.monotonic_s() < self._collect_at_s:
            return
        report.collection.missing = ()
        try:
            await life.collector.cycle(report.collection)
        except ObjectsMissing as error:
            report.collection.missing = error.missing
        self._collect_at_s = self._clock.monotonic_s() + self._collect_every_s
        report.collection.uploads = UploadsReport()
        await self._uploads.run(report.collection.uploads)
        await self._deletions.newer.remove_old_marks()

    async def _purge_topics(self, report: CycleReport) -> None:
        if self._clock.monotonic_s() < self._purge_at_s:
            return
        report.purge = await self._purge.run()
        if report.purge.is_round:
            self._purge_at_s = self._clock.monotonic_s() + self._collect_every_s

    async def close(self) -> None:
        """Give up what it has claimed."""
        life, self._life = self._life, None
        if life is not None:
            with contextlib.suppress(StorageError):
                await life.session.close()

    async def _alive(self) -> _Life:
        """With a session, and registered."""
        life = self._life
        # With its session goes a claim that could not be given up, which would keep out other compactors for as long as this process runs.
        if life is None or life.session.is_lost or life.claims.may_be_left:
            await self.close()
            session = await self._metadata.open_session(timeout_ms=SESSION_TIMEOUT_MS)
            claims = Claims(Records(self._metadata, limits=self._limits), name=self._ids.random_uuid().encode(), session=session)
            compaction = Compaction(
                metadata=self._metadata,
                objects=self._objects,
                session=session,
                ids=self._ids,
                clock=self._clock,
                policy=self._policy,
                claims=claims,
                blocking=self._blocking,
                limits=self._limits,
            )
            references = References(self._metadata, session=session, ids=self._ids, limits=self._limits)
            collector = Collector(
                metadata=self._metadata,
                objects=self._objects,
                references=references,
                deletions=self._deletions,
                clock=self._clock,
                policy=self._collecting,
                footprint=self._footprint,
                limits=self._limits,
            )
            merging = Merging(
                metadata=self._metadata,
                objects=self._objects,
                session=session,
                ids=self._ids,
                policy=MergePolicy(segment_bytes=self._policy.segment_bytes, block_bytes=self._policy.block_bytes),
                claims=claims,
                limits=self._limits,
            )
            life = self._life = _Life(session, claims, compaction, merging, collector)
        record = CompactorRecord(
            name=self.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            http=self._http(),
            version=forebay_version(),
            started_at_ms=self._started_at_ms,
        )
        outcome = await register_compactor(self._metadata, record, life.session)
        if not isinstance(outcome, Applied):
            raise Unavailable(f"a compactor cannot register: cause={outcome.reason!r}")
        return life

    async def _why_nothing(self, cluster: ClusterRecord | None) -> str:
        """Why these stores are left alone, or empty. One that is not this cluster's is, whenever it was put in place."""
        if cluster is None:
            return "there is no cluster yet: no broker has started on these stores"
        if not await bears_marker(self._objects, cluster):
            return (
                f"the object store does not bear the id of this cluster ({cluster.cluster_id}): nothing in it is touched. Check storage.url"
            )
        if self._went_back is not None or self._clock.monotonic_s() >= min(self._age_at_s, self._collect_at_s, self._purge_at_s):
            self._went_back = await self._deletions.newer.look()
            self._age_at_s = self._clock.monotonic_s() + self._collect_every_s
        if self._went_back is not None:
            return (
                f"the metadata are older than the object store: {self._went_back.evidence}. Nothing is compacted or deleted. "
                "Put the newest metadata back; if these are the newest there are, start a broker with forebay serve --accept-older-metadata"
            )
        return ""

    async def _look_after(
        self, session: Session, partitions: list[PartitionId], limits: Mapping[TopicId, RetentionLimits], report: CycleReport
    ) -> dict[PartitionId, _Due]:
        """Apply retention, and tidy. Return the partitions whose entries may be due."""
        due: dict[PartitionId, _Due] = {}
        may_ask = True
        taken_over = 0
        async with contextlib.aclosing(self._manifest_pages(partitions, report)) as pages:
            async for page in pages:
                for one in page:
                    self._gone.note(self._retention.questioned_writers(one.manifest))
                if may_ask and self._gone.has_questions:
                    may_ask = False  # what later pages name is asked for in the next cycle
                    await self._ask_who_is_gone(session)
                await self._retain(page, limits, report)
                taken_over += self._take_over(page, self._limits.taken_over_partitions_max - taken_over)
                now_ms = self._clock.now_ms()
                for one in page:
                    is_compacted, is_merging = self._looks.is_due(one, now_ms=now_ms), one.manifest.rewritten is not None
                    if is_compacted or is_merging:
                        due[one.partition] = _Due(one.version, one.manifest.sequence_counter, is_compacted, is_merging)
        return due

    def _manifest_pages(self, partitions: Sequence[PartitionId], report: CycleReport) -> AsyncGenerator[list[FoundPartition], None]:
        unreadable = partial(self._fail, report=report, version=-1)
        return manifest_pages(self._metadata, partitions, unreadable=unreadable, manifests_per_read=self._limits.manifests_per_read)

    def _take_over(self, page: Sequence[FoundPartition], count_max: int) -> int:
        """A compactor forgets with its process which merges it has left undone, and nobody else knows of them. Return how many may be."""
        count, unmerged_max = 0, self._limits.unmerged_partitions_max
        for one in page:
            if count < count_max and one.partition not in self._taken_over and len(self._unmerged) < unmerged_max:
                self._taken_over.add(one.partition)
                if may_be_due(one.manifest):
                    self._unmerged[one.partition] = None
                    count += 1
        return count

    async def _ask_who_is_gone(self, session: Session) -> None:
        try:
            await self._gone.ask(session)
        except StorageError as error:
            self._measures.note_unknown_brokers(error)  # their entries stay for another cycle

    async def _retain(self, page: Sequence[FoundPartition], limits: Mapping[TopicId, RetentionLimits], report: CycleReport) -> None:
        due = iter([one for one in page if self._retention.is_due(one.partition, one.manifest, limits[one.partition.topic_id])])

        async def work() -> None:
            for one in due:
                try:
                    done = await self._retention.run(one.partition, limits[one.partition.topic_id])
                except StorageError as error:
                    self._fail(one.partition, error, report=report, version=one.version)
                    continue
                report.removed_offsets += done.removed
                report.trimmed += done.removed > 0
                report.removed_keys += done.keys

        async with asyncio.TaskGroup() as tasks:
            for _ in range(RETAINED_TOGETHER):
                tasks.create_task(work())

    async def _compact(self, life: _Life, found: Mapping[PartitionId, _Due], report: CycleReport, *, collects: bool) -> None:
        """In rounds. When this compactor is to collect, the next rounds wait for that: what a backlog of a day becomes would be stored
        beside all of it, and a disk that is nearly full has no room for both.
        """
        due = [partition for partition, one in found.items() if one.is_compacted]
        grown = {partition for partition, one in found.items() if one.is_merging}
        while due:
            due = await self._round(life, due, found, report, grown)
            if collects and report.written_bytes and self._clock.monotonic_s() >= self._collect_at_s:
                break
        waiting = [*self._unmerged, *(one for one in grown if one not in self._unmerged)]
        # First: whatever fails now, in each cycle perhaps, goes behind those that were not tried yet.
        self._unmerged.clear()
        count_max = self._limits.merged_partitions_max
        for partition in waiting[count_max:]:
            self._merge_later(partition)
        for partition in await self._that_may_merge(waiting[:count_max], report):
            await self._merge(life, partition, report)

    async def _that_may_merge(self, partitions: Sequence[PartitionId], report: CycleReport) -> Sequence[PartitionId]:
        """What of `partitions` has something to merge, by their manifests, of which one read brings many."""
        try:
            async with contextlib.aclosing(self._manifest_pages(partitions, report)) as pages:
                return [one.partition async for page in pages for one in page if may_be_due(one.manifest)]
        except StorageError:
            for partition in partitions:
                self._merge_later(partition)
            raise

    async def _merge(self, life: _Life, partition: PartitionId, report: CycleReport) -> None:
        """Merge small segments of a partition that has got another one, or in which a merge was left undone. One partition at a time: each
        takes the memory of a whole segment.
        """
        try:
            for _ in range(MERGES_OF_PARTITION_MAX):
                with caused_by("merge"):
                    done = await life.merging.run(partition)
                if done.merged is None:
                    if done.ended is MergeEnd.CLAIMED:
                        self._merge_later(partition)
                    return
                self._measures.note_merge()
                report.merges += 1
                report.merged_segments += done.sources
                report.written_bytes += done.merged.size_bytes
        except StorageError as error:
            self._fail(partition, error, report=report, version=-1)
            if is_damage(error):
                return  # somebody has to repair it
        self._merge_later(partition)

    def _merge_later(self, partition: PartitionId) -> None:
        """Nobody may append to it for years, and then its segments would stay small."""
        if len(self._unmerged) < self._limits.unmerged_partitions_max:
            self._unmerged[partition] = None

    async def _round(
        self,
        life: _Life,
        due: list[PartitionId],
        found: Mapping[PartitionId, _Due],
        report: CycleReport,
        grown: set[PartitionId],
    ) -> list[PartitionId]:
        """Return the partitions that may have more to do, and add those that have got a segment to `grown`. What was appended since the
        cycle began is for the next.
        """
        one = Round(
            life.compaction,
            objects=self._shared or self._objects,
            blocking=self._blocking,
            clock=self._clock,
            policy=self._rounds,
            limits=self._limits,
            on_damaged=self._shared.distrust if self._shared else None,
        )
        with caused_by("compaction"):
            done = await one.run(due)
        self._measures.note_round(done)
        report.take(done)
        again = list(done.left)
        for partition, ended in done.ended.items():
            if isinstance(ended, StorageError):
                self._fail(partition, ended, report=report, version=found[partition].version)
                continue
            if ended.segment is not None:
                grown.add(partition)
            if ended.segment is not None and ended.segment.last + 1 < found[partition].end:
                again.append(partition)
            else:
                self._remember(partition, ended, found[partition].version)
        return again

    def _remember(self, partition: PartitionId, ended: CompactionResult, version: int) -> None:
        if ended.due_ms is not None:
            self._looks.note(partition, LastLook(version, ended.due_ms, ended.waiting_bytes, ended.waiting_since_ms))
        else:
            self._looks.forget(partition)

    def _fail(self, partition: PartitionId, error: StorageError, *, report: CycleReport, version: int) -> None:
        report.failed[partition] = error
        if is_damage(error):
            self._looks.note(partition, LastLook(version, self._clock.now_ms() + DAMAGED_AGAIN_MS, 0, None, failed=True))


def _why_not_compacted(cluster: ClusterRecord) -> str:
    """Why no segments may be written, or empty."""
    if cluster.level >= LEVEL_OF_SEGMENTS:
        return ""
    return (
        f"the cluster is at format level {cluster.level}, and segments are written from {LEVEL_OF_SEGMENTS} on: "
        "when all brokers run this release, run forebay cluster upgrade"
    )
