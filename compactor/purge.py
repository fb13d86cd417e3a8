"""Removal of what deleted topics left behind (docs/internals/design/upkeep.md#purging-deleted-topics, model/purging.py).

    topic-ids says deleted, manifests are tombstones → index/, segments/, producers/, meta/compaction go → objects of segments go

That topic-ids says deleted stays true, so nothing here depends on how old a read is. Requests may arrive after their topic is gone: each
topic is looked at again, after longer and longer pauses. Tombstones and the records in topic-ids stay. WAL objects are the collector's.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from compactor.limits import DEFAULT_LIMITS, CompactorLimits
from compactor.records import Records
from runtime.clock import Clock
from runtime.ids import Entropy
from storage.catalog.collections import Deletions, MetadataWentBack
from storage.catalog.topic import decode_topic_id
from storage.errors import Corrupt, IncompatibleFormat, StorageError, Unavailable
from storage.formats.manifest import LogState, decode_manifest
from storage.formats.segment import parse_segment_key, segments_of_topic
from storage.metadata import keys
from storage.metadata.keys import PartitionKeys
from storage.metadata.port import MetadataStore, Record
from storage.metadata.version_watch import read_certainly
from storage.objects.port import ObjectStat, ObjectStore
from storage.vocabulary import ObjectId, PartitionId, TopicId

PARTITIONS_PER_RUN: Final = 1_000
PAST: Final = 1 << 32
"""Above all numbers of partitions: the topic is done with."""


@dataclass(frozen=True, slots=True)
class PurgePolicy:
    """What one run does at most, and the pause before a topic is looked at again: it doubles with each look that finds nothing."""

    partitions_per_run: int = PARTITIONS_PER_RUN
    objects_per_run: int = 50_000
    pause_s: float = 60.0
    pause_s_max: float = 86_400.0


@dataclass(frozen=True, slots=True)
class PurgeResult:
    """What one run looked at and removed. `is_round`: it came to the end of all deleted topics. `failed`: what could not be purged, by
    partition, or by the name of what it is.
    """

    partitions: int
    keys: int
    objects: int
    object_bytes: int
    is_round: bool
    failed: Mapping[str, StorageError]


class _Deleted(NamedTuple):
    topic_id: TopicId
    logs: int


class _Look(NamedTuple):
    """When a topic is due again, and how long the pause before that was."""

    again_s: float
    pause_s: float


class _Place(NamedTuple):
    """Where a run ended: in that topic, before that partition. `is_clean`: nothing was found in it so far."""

    topic_id: str = ""
    partition: int = 0
    is_clean: bool = True


@dataclass(slots=True)
class _Tally:
    partitions: int = 0
    keys: int = 0
    objects: int = 0
    object_bytes: int = 0
    failed: dict[str, StorageError] = field(default_factory=dict)

    @property
    def found(self) -> int:
        return self.keys + self.objects + len(self.failed)

    def result(self, *, is_round: bool) -> PurgeResult:
        return PurgeResult(self.partitions, self.keys, self.objects, self.object_bytes, is_round, self.failed)


def everything(_: TopicId) -> bool:
    return True


class Purge:
    """`run` again and again, one at a time: each goes on where the last one ended. Any number of processes may purge at once.

    What is wrong with one partition is in the result; a run raises `Unavailable` if topic-ids cannot be read, and `MetadataWentBack`.
    Cancelled: the next run does the rest.
    """

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        objects: ObjectStore,
        deletions: Deletions,
        clock: Clock,
        policy: PurgePolicy | None = None,
        entropy: Entropy = os.urandom,
        limits: CompactorLimits = DEFAULT_LIMITS,
    ) -> None:
        self._limits = limits
        self._records = Records(metadata, entropy=entropy, limits=limits)
        self._objects = objects
        self._deletions = deletions
        self._clock = clock
        self._policy = policy or PurgePolicy()
        self._looks: dict[TopicId, _Look] = {}
        self._place = _Place()

    async def run(self, *, is_share: Callable[[TopicId], bool] = everything) -> PurgeResult:
        """Look at topics that are due, those `is_share` takes."""
        tally = _Tally()
        due, scanned_to = await self._due(is_share, tally)
        for topic in due:
            if not await self._purge(topic, tally):
                return tally.result(is_round=False)
        self._place = _Place(scanned_to, PAST) if scanned_to else _Place()
        return tally.result(is_round=not scanned_to)

    # What there is

    async def _due(self, is_share: Callable[[TopicId], bool], tally: _Tally) -> tuple[list[_Deleted], str]:
        """Deleted topics that are due, and the topic id up to which the records were read: empty if there are no more."""
        due: list[_Deleted] = []
        partitions = scanned = 0
        now_s = self._clock.monotonic_s()
        async with contextlib.aclosing(self._topic_ids()) as records:
            async for record in records:
                topic_id = keys.topic_of_id(record.path)
                begun = self._place.partition if topic_id == self._place.topic_id else 0
                if begun == PAST:
                    continue
                scanned += 1
                topic = self._deleted(record, topic_id, tally)
                if topic is not None and (begun or self._is_due(topic_id, now_s)) and is_share(topic_id):
                    due.append(topic)
                    partitions += topic.logs - begun
                if scanned == self._limits.purge_records_per_run or partitions > self._policy.partitions_per_run:
                    return due, topic_id
        return due, ""

    def _is_due(self, topic_id: TopicId, now_s: float) -> bool:
        look = self._looks.get(topic_id)
        return look is None or look.again_s <= now_s

    async def _topic_ids(self) -> AsyncGenerator[Record, None]:
        start, end = keys.topic_ids(self._place.topic_id)
        async for record in self._records.metadata.range_scan(start, end):
            yield record

    def _deleted(self, record: Record, topic_id: TopicId, tally: _Tally) -> _Deleted | None:
        try:
            found = decode_topic_id(record)
        except (Corrupt, IncompatibleFormat) as error:
            tally.failed[record.path] = error
            return None
        return None if found.deleted_logs is None else _Deleted(topic_id, found.deleted_logs)

    # One topic

    async def _purge(self, topic: _Deleted, tally: _Tally) -> bool:
        """Whether all of it was looked at; otherwise this run has done enough."""
        if self._place.topic_id != topic.topic_id:
            self._place = _Place(topic.topic_id)
        while self._place.partition < topic.logs:
            if self._is_enough(tally):
                return False
            first, found = self._place.partition, tally.found
            stop = min(first + self._limits.purge_partitions_together, topic.logs)
            await self._purge_partitions([PartitionId(topic.topic_id, number) for number in range(first, stop)], tally)
            self._place = _Place(topic.topic_id, stop, self._place.is_clean and tally.found == found)
        found = tally.found
        if self._is_enough(tally) or not await self._delete_objects(topic.topic_id, tally):
            return False
        self._note(topic.topic_id, is_clean=self._place.is_clean and tally.found == found)
        self._place = _Place(topic.topic_id, PAST)
        return True

    def _is_enough(self, tally: _Tally) -> bool:
        return (
            tally.partitions >= self._policy.partitions_per_run
            or tally.objects >= self._policy.objects_per_run
            or len(tally.failed) >= self._limits.purge_failed_max
        )

    def _note(self, topic_id: TopicId, *, is_clean: bool) -> None:
        before = self._looks.get(topic_id)
        pause_s = self._policy.pause_s
        if is_clean and before is not None:
            pause_s = min(2 * before.pause_s, self._policy.pause_s_max)
        if before is not None or len(self._looks) < self._limits.purged_topics_kept_max:
            self._looks[topic_id] = _Look(self._clock.monotonic_s() + pause_s, pause_s)

    async def _purge_partitions(self, partitions: Sequence[PartitionId], tally: _Tally) -> None:
        tally.partitions += len(partitions)
        wanted = [PartitionKeys(partition) for partition in partitions]
        try:
            records = await self._records.get(*(key for one in wanted for key in (one.manifest, one.compaction)))
        except Unavailable as error:
            tally.failed[str(partitions[0])] = error
            return
        async with asyncio.TaskGroup() as tasks:
            for partition, manifest, attempt in zip(partitions, records[::2], records[1::2], strict=True):
                tasks.create_task(self._purge_partition(partition, manifest, attempt, tally))

    async def _purge_partition(self, partition: PartitionId, manifest: Record | None, attempt: Record | None, tally: _Tally) -> None:
        names = PartitionKeys(partition)
        try:
            if manifest is None or decode_manifest(manifest.value, path=manifest.path).log_state is not LogState.DELETED:
                # Its tombstone was put before topic-ids said so: this is the answer of a deposed leader.
                raise Unavailable(f"not seen as deleted yet: key={names.manifest.path!r}")
            for first, end in names.lists():
                tally.keys += await self._records.delete_range(first, end)
            if attempt is not None:
                tally.keys += 1
                await self._records.delete(names.compaction, attempt.version)
        except StorageError as error:
            tally.failed[str(partition)] = error

    async def _delete_objects(self, topic_id: TopicId, tally: _Tally) -> bool:
        """Whether no more are left."""
        prefix = segments_of_topic(topic_id)
        try:
            known = await self._deletions.read()
            if known.missing:
                raise Unavailable("objects that live entries name are missing: nothing is deleted meanwhile")
            async with contextlib.aclosing(self._segments(prefix)) as found:
                batch: list[ObjectStat] = []
                async for one in found:
                    if known.keeps(ObjectId(one.key.rsplit("/", 1)[1])):
                        continue
                    batch.append(one)
                    if len(batch) == self._limits.purge_objects_per_delete:
                        await self._delete(topic_id, batch, tally)
                        batch = []
                        if self._is_enough(tally):
                            return False
                await self._delete(topic_id, batch, tally)
        except MetadataWentBack:
            raise
        except StorageError as error:
            tally.failed[prefix] = error
        return True

    async def _is_deleted(self, topic_id: TopicId) -> bool:
        """For certain, after the deletion was counted: the metadata may have been put back before."""
        found = await read_certainly(self._records.metadata, [keys.topic_id(topic_id)], name=self._deletions.new_name())
        return found.records[0] is not None and decode_topic_id(found.records[0]).is_deleted

    async def _segments(self, prefix: str) -> AsyncGenerator[ObjectStat, None]:
        async for one in self._objects.list(prefix):
            if parse_segment_key(one.key) is not None:
                yield one

    async def _delete(self, topic_id: TopicId, batch: Sequence[ObjectStat], tally: _Tally) -> None:
        if batch:
            known = await self._deletions.count()
            # Older metadata may have been accepted since the batch was listed: what is there by then stays.
            if known.missing or any(known.keeps(ObjectId(one.key.rsplit("/", 1)[1])) for one in batch):
                raise Unavailable(
                    "older metadata were accepted meanwhile, or objects that live entries name are missing: nothing is deleted"
                )
            if not await self._is_deleted(topic_id):
                raise Unavailable(f"a topic was deleted, and the metadata do not say so any more: topic_id={topic_id}")
            await self._objects.delete_many([one.key for one in batch])
            tally.objects += len(batch)
            tally.object_bytes += sum(one.size_bytes for one in batch)
