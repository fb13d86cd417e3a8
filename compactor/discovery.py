"""What there is to look after: topics, the manifests of their partitions, and what is in no segment yet.

`Looks` remembers what the last look at a partition found: one that has not changed, and is not due yet, costs one read of its manifest
record. `read_backlog` is for people who ask (`forebay compactor status`): it reads keys alone, and changes nothing.
"""

import asyncio
import contextlib
import heapq
from collections.abc import AsyncGenerator, Callable, Collection, Container, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from compactor.limits import DEFAULT_LIMITS, CompactorLimits
from compactor.plan import CompactionPolicy, age_due_ms, count_due, entries_due
from runtime.clock import Clock
from runtime.ulid import ulid_ms
from storage.catalog.topic import TopicState, decode_topic
from storage.errors import Corrupt, IncompatibleFormat, NotFound, StorageError
from storage.formats.manifest import Entry, LogState, Manifest, decode_attempt, decode_manifest
from storage.log.index import EntriesMoved, uncompacted_pages
from storage.metadata import keys
from storage.metadata.keys import PartitionKeys
from storage.metadata.port import MetadataStore
from storage.vocabulary import PartitionId, TopicId

TOPICS_PER_TURN: Final = 250


class FoundTopic(NamedTuple):
    """A topic that takes records."""

    name: str
    topic_id: TopicId
    partition_count: int
    configs: Mapping[str, str]

    def partitions(self) -> list[PartitionId]:
        return [PartitionId(self.topic_id, number) for number in range(self.partition_count)]


class FoundPartition(NamedTuple):
    """`is_begun`: a compaction has noted something there, and may have died."""

    partition: PartitionId
    manifest: Manifest
    version: int
    is_begun: bool


async def active_topics(metadata: MetadataStore, *, unreadable: Callable[[str, StorageError], None]) -> AsyncGenerator[FoundTopic, None]:
    """Topics in the order of their names. `unreadable` gets the key of a record that is passed over. Raises `Unavailable`."""
    start, end = keys.topics()
    scanned = 0
    async for record in metadata.range_scan(start, end):
        scanned += 1
        if scanned % TOPICS_PER_TURN == 0:
            await asyncio.sleep(0)
        try:
            topic = decode_topic(record)
        except (Corrupt, IncompatibleFormat) as error:
            unreadable(record.path, error)
            continue
        if topic.state is TopicState.ACTIVE:
            yield FoundTopic(topic.name, topic.topic_id, topic.partition_count, topic.configs)


async def manifest_pages(
    metadata: MetadataStore,
    partitions: Sequence[PartitionId],
    *,
    unreadable: Callable[[PartitionId, StorageError], None],
    manifests_per_read: int,
) -> AsyncGenerator[list[FoundPartition], None]:
    """The manifests of `partitions`, `manifests_per_read` at a time. Those that do not exist are left out. Raises `Unavailable`."""
    for begin in range(0, len(partitions), manifests_per_read):
        page = partitions[begin : begin + manifests_per_read]
        wanted = [PartitionKeys(partition) for partition in page]
        records = await metadata.get_many([key for one in wanted for key in (one.manifest, one.compaction)])
        found = []
        for partition, manifest, attempt in zip(page, records[::2], records[1::2], strict=True):
            if manifest is None:
                continue
            try:
                decoded = decode_manifest(manifest.value, path=manifest.path)
            except (Corrupt, IncompatibleFormat) as error:
                unreadable(partition, error)
                continue
            found.append(FoundPartition(partition, decoded, manifest.version, attempt is not None))
        yield found


class LastLook(NamedTuple):
    """`version` of the manifest, for which there is nothing to do before `again_ms`; nor for a later one if it `failed`.
    `waiting_bytes` wait since `since_ms`.
    """

    version: int
    again_ms: int
    waiting_bytes: int
    since_ms: int | None
    failed: bool = False


class Looks:
    """What one compactor remembers."""

    def __init__(self, *, limits: CompactorLimits = DEFAULT_LIMITS) -> None:
        self._kept_max = limits.looks_kept_max
        self._kept: dict[PartitionId, LastLook] = {}

    def is_due(self, found: FoundPartition, *, now_ms: int) -> bool:
        """Whether the partition is worth a look: because of the entries above its cursor, or of what somebody has left undone."""
        manifest, kept = found.manifest, self._kept.get(found.partition)
        if kept is not None and kept.failed and now_ms < kept.again_ms:
            return False
        if found.is_begun:
            return True
        if manifest.log_state is LogState.DELETED or max(manifest.compaction_cursor, manifest.log_start) == manifest.sequence_counter:
            self.forget(found.partition)
            return False
        return kept is None or now_ms >= kept.again_ms or kept.version != found.version

    def note(self, partition: PartitionId, look: LastLook) -> None:
        if partition in self._kept or len(self._kept) < self._kept_max:
            self._kept[partition] = look

    def forget(self, partition: PartitionId) -> None:
        self._kept.pop(partition, None)

    def keep_only(self, partitions: Container[PartitionId]) -> None:
        """Others are gone, or somebody else's."""
        for partition in [one for one in self._kept if one not in partitions]:
            del self._kept[partition]

    @property
    def waiting_bytes(self) -> int:
        return sum(look.waiting_bytes for look in self._kept.values())

    @property
    def oldest_ms(self) -> int | None:
        """When the first of the entries that wait was written."""
        return min((look.since_ms for look in self._kept.values() if look.since_ms is not None), default=None)


class PartitionBacklog(msgspec.Struct, frozen=True, kw_only=True):
    """`entries` and `bytes` above `cursor`, a segment's worth at most: then `is_more`. The first was written at `since_ms`."""

    topic: str
    partition: int
    log_start: int
    cursor: int
    end: int
    entries: int
    bytes: int
    is_more: bool
    since_ms: int
    why: str


class Backlog(msgspec.Struct, frozen=True, kw_only=True):
    """`behind`: the partitions with most bytes. The sums are those of all."""

    partitions: int
    waiting: int
    due: int
    entries: int
    bytes: int
    oldest_ms: int | None
    behind: list[PartitionBacklog]
    unreadable: dict[str, str]


async def read_backlog(
    metadata: MetadataStore, *, policy: CompactionPolicy, clock: Clock, only: Collection[str] | None = None, shown: int = 20
) -> Backlog:
    """Raises `Unavailable`, and `NotFound` for a topic of `only` that does not exist."""
    unreadable: dict[str, str] = {}
    found: list[FoundTopic] = []
    async with contextlib.aclosing(active_topics(metadata, unreadable=lambda path, error: unreadable.update({path: str(error)}))) as topics:
        found = [topic async for topic in topics if only is None or topic.name in only]
    if only is not None and (missing := sorted(set(only) - {topic.name for topic in found})):
        raise NotFound(f"no such topic: {', '.join(missing)}")
    behind: list[tuple[int, str, int, PartitionBacklog]] = []
    partitions = waiting = due = entries = size_bytes = 0
    oldest_ms: int | None = None

    def note(partition: PartitionId, error: StorageError) -> None:
        unreadable[PartitionKeys(partition).manifest.path] = str(error)

    for topic in found:
        found_pages = manifest_pages(metadata, topic.partitions(), unreadable=note, manifests_per_read=DEFAULT_LIMITS.manifests_per_read)
        async with contextlib.aclosing(found_pages) as pages:
            async for page in pages:
                for one in page:
                    partitions += 1
                    if (backlog := await _of_partition(metadata, topic, one.partition, one.manifest, policy, clock)) is None:
                        continue
                    waiting += 1
                    due += backlog.why.startswith("due")
                    entries += backlog.entries
                    size_bytes += backlog.bytes
                    oldest_ms = backlog.since_ms if oldest_ms is None else min(oldest_ms, backlog.since_ms)
                    heapq.heappush(behind, (backlog.bytes, topic.name, one.partition.partition, backlog))
                    if len(behind) > shown:
                        heapq.heappop(behind)
    return Backlog(
        partitions=partitions,
        waiting=waiting,
        due=due,
        entries=entries,
        bytes=size_bytes,
        oldest_ms=oldest_ms,
        behind=[item[3] for item in sorted(behind, reverse=True)],
        unreadable=unreadable,
    )


async def _of_partition(
    metadata: MetadataStore, topic: FoundTopic, partition: PartitionId, manifest: Manifest, policy: CompactionPolicy, clock: Clock
) -> PartitionBacklog | None:
    begin = max(manifest.compaction_cursor, manifest.log_start)
    if begin >= manifest.sequence_counter:
        return None
    keys = PartitionKeys(partition)
    entries: list[Entry] = []
    filled_bytes = 0
    with contextlib.suppress(EntriesMoved):  # compacted meanwhile: what was seen before is as true as the rest
        async with contextlib.aclosing(uncompacted_pages(metadata, keys, manifest, begin)) as pages:
            async for page in pages:
                entries += page
                filled_bytes += sum([entry.size_bytes for entry in page])
                if filled_bytes >= policy.segment_bytes or len(entries) >= DEFAULT_LIMITS.segment_entries_max:
                    break
    if not entries:
        return None
    since_ms = ulid_ms(entries[0].object_id)
    return PartitionBacklog(
        topic=topic.name,
        partition=partition.partition,
        log_start=manifest.log_start,
        cursor=manifest.compaction_cursor,
        end=manifest.sequence_counter,
        entries=len(entries),
        bytes=filled_bytes,
        is_more=entries[-1].last + 1 < manifest.sequence_counter,
        since_ms=since_ms,
        why=await _why(metadata, keys, entries, filled_bytes, since_ms, policy, clock),
    )


async def _why(
    metadata: MetadataStore,
    keys: PartitionKeys,
    entries: list[Entry],
    filled_bytes: int,
    since_ms: int,
    policy: CompactionPolicy,
    clock: Clock,
) -> str:
    attempt, claim = await metadata.get_many([keys.compaction, keys.compactor_claim])
    if claim is not None:
        state = "planning" if attempt is None else decode_attempt(attempt.value, path=attempt.path).state.value
        return f"is being compacted: {state}"
    if attempt is not None:
        return f"due: a compactor died at {decode_attempt(attempt.value, path=attempt.path).state.value}"
    if count_due(entries, now_ms=clock.now_ms(), policy=policy):
        return "due"
    age_ms = age_due_ms(filled_bytes, policy)
    left_s = max(0, since_ms + age_ms - clock.now_ms()) // 1_000
    full = 100 * max(filled_bytes / policy.segment_bytes, len(entries) / entries_due(filled_bytes, policy))
    return f"{full:.0f} % of a segment; due in {left_s} s at the latest"
