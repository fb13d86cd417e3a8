"""Garbage collection: objects that no partition refers to go (docs/design/upkeep.md). Nothing that anybody may still read ever does.

    list (old enough) → headers → look (cheap): referred to? → it stays
      → in every partition that it may be of: revoke, then look for certain: referred to? → it stays  → delete

A clock says which objects to look at, and nothing else. What cannot be read or asked for certain keeps the objects concerned, and is
reported. Any number of collectors may run at once. A cycle looks at a bounded number of objects and goes on where the last one ended.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from compactor.records import Records
from compactor.references import References, read_control
from runtime.clock import Clock
from runtime.ulid import ulid_ms
from storage.errors import Corrupt, NotFound, StorageError
from storage.formats.control import Control, LogState
from storage.formats.segment import parse_segment_key
from storage.formats.wal import WalHeader, decode_header, header_bytes, object_key
from storage.limits import WAL_OBJECT_SLICES_MAX
from storage.metadata.port import MetadataStore
from storage.objects.port import ObjectStat, ObjectStore
from storage.vocabulary import ObjectId, PartitionId

WAL_PREFIX: Final = "wal/"
SEGMENTS_PREFIX: Final = "segments/"
KINDS: Final = (WAL_PREFIX, SEGMENTS_PREFIX)
HEADER_READ_BYTES: Final = 32 * 1024
"""The headers of objects with up to 900 slices; longer ones take a second GET."""
TOGETHER: Final = 16
"""Headers, and partitions, that are read side by side."""
DELETED_TOGETHER: Final = 500
T = TypeVar("T")
CYCLE_OBJECTS_MAX: Final = 10_000
BATCH_OBJECTS_MAX: Final = 2_000
SLICES_MAX: Final = 500_000
"""Partitions of the objects of one batch, counted for each object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorPolicy:
    """Objects older than `grace_ms` are looked at, `objects_max` per cycle and kind, `batch_max` at a time."""

    grace_ms: int = 900_000
    objects_max: int = CYCLE_OBJECTS_MAX
    batch_max: int = BATCH_OBJECTS_MAX


@dataclass(slots=True)
class UploadsReport:
    """`looked_at` unfinished uploads, of which `aborted` were old enough. `failed`: why some may be left that are, or None.
    A dry run aborts nothing: then `aborted` are those that are old enough.
    """

    looked_at: int = 0
    aborted: int = 0
    failed: StorageError | None = None


@dataclass(slots=True)
class CollectionReport:
    """`looked_at` objects, of which `live` are referred to and `unsure` could not be judged; why, by what was asked, is in `failed`.
    A dry run deletes nothing: then `deleted` are those that nothing seems to refer to. `uploads` is None if they were not looked at.
    """

    looked_at: int = 0
    live: int = 0
    unsure: int = 0
    deleted: int = 0
    deleted_bytes: int = 0
    failed: dict[str, StorageError] = field(default_factory=dict)
    uploads: UploadsReport | None = None


@dataclass(frozen=True, slots=True)
class UnusedCandidate:
    """An object, and the partitions that may refer to it."""

    key: str
    object_id: ObjectId
    size_bytes: int
    partitions: tuple[PartitionId, ...]


class Collector:
    """`cycle` again and again, one at a time."""

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        objects: ObjectStore,
        references: References,
        clock: Clock,
        policy: CollectorPolicy | None = None,
    ) -> None:
        self._records = Records(metadata)
        self._objects = objects
        self._references = references
        self._clock = clock
        self._policy = policy or CollectorPolicy()
        self._after: dict[str, str] = {}
        """Where the next cycle goes on, by prefix."""

    async def cycle(self, report: CollectionReport, *, kinds: Collection[str] = KINDS, dry_run: bool = False) -> set[str]:
        """Look at the next objects of each of `kinds`, and add to `report`. Return the kinds whose end was reached: they begin anew.

        Raises a `StorageError` if objects cannot be listed or deleted.
        """
        asked, ended = self._references, set()
        for kind in kinds:
            if kind == WAL_PREFIX:
                is_end = await self._of_kind(kind, self._of_wal, asked.wal_seen, asked.revoke_wal, report, dry_run=dry_run)
            else:
                is_end = await self._of_kind(kind, _of_segment, asked.segments_seen, asked.revoke_segments, report, dry_run=dry_run)
            if is_end:
                ended.add(kind)
        return ended

    async def _of_kind(
        self,
        prefix: str,
        candidate_of: Callable[[ObjectStat], Awaitable[UnusedCandidate]],
        look: Callable[[PartitionId, Control], Awaitable[set[ObjectId]]],
        revoke: Callable[[PartitionId, ObjectId], Awaitable[set[ObjectId] | None]],
        report: CollectionReport,
        *,
        dry_run: bool,
    ) -> bool:
        left, is_end = self._policy.objects_max, False
        while left > 0 and not is_end:
            stats, is_end = await self._next(prefix, min(left, self._policy.batch_max))
            left -= len(stats)
            report.looked_at += len(stats)
            candidates = await self._candidates(stats, candidate_of, report)
            free = await self._unseen(candidates, look, report)
            if not dry_run:
                free = await self._certainly_free(free, revoke, report)
            report.deleted += len(free)
            report.deleted_bytes += sum(one.size_bytes for one in free)
            if not dry_run:
                keys = [one.key for one in free]
                for begin in range(0, len(keys), DELETED_TOGETHER):
                    await self._objects.delete_many(keys[begin : begin + DELETED_TOGETHER])
        return is_end

    async def _next(self, prefix: str, count: int) -> tuple[list[ObjectStat], bool]:
        """The next objects that are old enough, by key; and whether they are the last. Then it begins anew."""
        oldest_kept_ms = self._clock.now_ms() - self._policy.grace_ms
        found: list[ObjectStat] = []
        after = self._after.pop(prefix, "")
        async with contextlib.aclosing(_as_generator(self._objects.list(prefix, start_after=after))) as listing:
            async for stat in listing:
                object_id = _id_of(stat.key)
                if object_id is None:
                    continue  # not ours to judge
                if ulid_ms(object_id) >= oldest_kept_ms:
                    if prefix == WAL_PREFIX:
                        return found, True  # keys are in the order of time
                    continue
                found.append(stat)
                if len(found) == count:
                    self._after[prefix] = stat.key
                    return found, False
        return found, True

    async def _candidates(
        self, stats: Sequence[ObjectStat], candidate_of: Callable[[ObjectStat], Awaitable[UnusedCandidate]], report: CollectionReport
    ) -> list[UnusedCandidate]:
        found: list[UnusedCandidate] = []
        shared: dict[PartitionId, PartitionId] = {}
        slices = 0

        async def judge(stat: ObjectStat) -> None:
            nonlocal slices
            if slices > SLICES_MAX:
                report.unsure += 1  # for the next cycle
                return
            try:
                one = await candidate_of(stat)
            except NotFound:
                return  # another collector was faster
            except StorageError as error:
                report.unsure += 1
                report.failed[stat.key] = error
                return
            slices += len(one.partitions)
            found.append(UnusedCandidate(one.key, one.object_id, one.size_bytes, tuple([shared.setdefault(p, p) for p in one.partitions])))

        await _side_by_side(stats, judge)
        return found

    async def _unseen(
        self,
        candidates: Sequence[UnusedCandidate],
        look: Callable[[PartitionId, Control], Awaitable[set[ObjectId]]],
        report: CollectionReport,
    ) -> list[UnusedCandidate]:
        """The candidates that a cheap look does not show: most objects are live, and nothing need be revoked to know it."""
        seen: set[ObjectId] = set()
        unsure: set[PartitionId] = set()

        async def ask(partition: PartitionId) -> None:
            try:
                control = await read_control(self._records, partition)
                if control is not None and control.log_state is not LogState.DELETED:
                    seen.update(await look(partition, control))
            except StorageError as error:
                unsure.add(partition)
                report.failed[str(partition)] = error

        await _side_by_side(_partitions_of(candidates), ask)
        return _sorted_out(candidates, seen, unsure, report)

    async def _certainly_free(
        self,
        candidates: Sequence[UnusedCandidate],
        revoke: Callable[[PartitionId, ObjectId], Awaitable[set[ObjectId] | None]],
        report: CollectionReport,
    ) -> list[UnusedCandidate]:
        floors = _partitions_of(candidates)
        seen: set[ObjectId] = set()
        unsure: set[PartitionId] = set()

        async def ask(partition: PartitionId) -> None:
            try:
                seen.update(await revoke(partition, floors[partition]) or ())
            except StorageError as error:
                unsure.add(partition)
                report.failed[str(partition)] = error

        await _side_by_side(floors, ask)
        return _sorted_out(candidates, seen, unsure, report)

    async def _of_wal(self, stat: ObjectStat) -> UnusedCandidate:
        header = await self._header(stat)
        if stat.key != object_key(header.object_id):
            raise Corrupt(f"an object under the name of another: key={stat.key!r} header={header.object_id}")
        return UnusedCandidate(stat.key, header.object_id, stat.size_bytes, tuple(dict.fromkeys(one.partition for one in header.slices)))

    async def _header(self, stat: ObjectStat) -> WalHeader:
        first = await self._objects.get_range(stat.key, 0, min(stat.size_bytes, HEADER_READ_BYTES))
        try:
            return decode_header(first, key=stat.key)
        except Corrupt:
            if len(first) == stat.size_bytes:
                raise
        whole_bytes = min(stat.size_bytes, header_bytes(WAL_OBJECT_SLICES_MAX))
        return decode_header(await self._objects.get_range(stat.key, 0, whole_bytes), key=stat.key)


async def _of_segment(stat: ObjectStat) -> UnusedCandidate:
    named = parse_segment_key(stat.key)
    if named is None:
        raise Corrupt(f"not the name of a segment: key={stat.key!r}")
    partition, object_id = named
    return UnusedCandidate(stat.key, object_id, stat.size_bytes, (partition,))


def _id_of(key: str) -> ObjectId | None:
    name = key.rsplit("/", 1)[1]
    with contextlib.suppress(ValueError):
        ulid_ms(name)
        return ObjectId(name)
    return None


def _partitions_of(candidates: Iterable[UnusedCandidate]) -> dict[PartitionId, ObjectId]:
    """With the newest object that each may refer to."""
    floors: dict[PartitionId, ObjectId] = {}
    for one in candidates:
        for partition in one.partitions:
            floors[partition] = max(floors.get(partition, ObjectId("")), one.object_id)
    return floors


def _sorted_out(
    candidates: Sequence[UnusedCandidate], seen: set[ObjectId], unsure: set[PartitionId], report: CollectionReport
) -> list[UnusedCandidate]:
    free = []
    for one in candidates:
        if one.object_id in seen:
            report.live += 1
        elif not unsure.isdisjoint(one.partitions):
            report.unsure += 1
        else:
            free.append(one)
    return free


async def _side_by_side(items: Iterable[T], work: Callable[[T], Awaitable[None]]) -> None:
    waiting = iter(items)

    async def go_on() -> None:
        for item in waiting:
            await work(item)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(TOGETHER):
            tasks.create_task(go_on())


async def _as_generator(listing: AsyncIterator[ObjectStat]) -> AsyncGenerator[ObjectStat, None]:
    async for stat in listing:
        yield stat
