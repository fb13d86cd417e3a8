"""What is in no segment yet, and why: for people who ask (`forebay compactor status`). Reads keys alone, and changes nothing."""

import contextlib
import heapq
from collections.abc import Collection

import msgspec

from compactor.discovery import FoundTopic, active_topics, control_pages
from compactor.limits import DEFAULT_LIMITS
from compactor.plan import CompactionPolicy, age_due_ms, count_due
from runtime.clock import Clock
from runtime.ulid import ulid_ms
from storage.errors import NotFound, StorageError
from storage.formats.control import Control, Entry, decode_attempt, inline_bytes
from storage.log.index import EntriesMoved, uncompacted_pages
from storage.metadata.keys import PartitionKeys
from storage.metadata.port import MetadataStore
from storage.vocabulary import PartitionId


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
        unreadable[PartitionKeys(partition).control.path] = str(error)

    for topic in found:
        found_pages = control_pages(metadata, topic.partitions(), unreadable=note, controls_per_read=DEFAULT_LIMITS.controls_per_read)
        async with contextlib.aclosing(found_pages) as pages:
            async for page in pages:
                for one in page:
                    partitions += 1
                    if (backlog := await _of_partition(metadata, topic, one.partition, one.control, policy, clock)) is None:
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
    metadata: MetadataStore, topic: FoundTopic, partition: PartitionId, control: Control, policy: CompactionPolicy, clock: Clock
) -> PartitionBacklog | None:
    begin = max(control.compaction_cursor, control.log_start)
    if begin >= control.sequence_counter:
        return None
    keys = PartitionKeys(partition)
    entries: list[Entry] = []
    filled_bytes = 0
    with contextlib.suppress(EntriesMoved):  # compacted meanwhile: what was seen before is as true as the rest
        async with contextlib.aclosing(uncompacted_pages(metadata, keys, control, begin)) as pages:
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
        log_start=control.log_start,
        cursor=control.compaction_cursor,
        end=control.sequence_counter,
        entries=len(entries),
        bytes=filled_bytes,
        is_more=entries[-1].last + 1 < control.sequence_counter,
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
    inline_bytes_many = DEFAULT_LIMITS.inline_bytes_many
    if count_due(entries, now_ms=clock.now_ms(), policy=policy, inline_bytes_many=inline_bytes_many):
        return "due"
    age_ms = age_due_ms(entries, policy, inline_bytes_many=inline_bytes_many)
    left_s = max(0, since_ms + age_ms - clock.now_ms()) // 1_000
    full = 100 * max(
        filled_bytes / policy.segment_bytes, len(entries) / policy.entries_due, inline_bytes(entries) / policy.inline_bytes_due
    )
    return f"{full:.0f} % of a segment; due in {left_s} s at the latest"
