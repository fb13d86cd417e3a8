"""Compactions of many partitions that read each WAL object once: begin all, fetch their slices together, finish all.

What one round takes is bounded: partitions that do not fit any more are left for the next.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from compactor.compaction import Compaction, CompactionEnd, CompactionResult, CompactionTask
from compactor.limits import DEFAULT_LIMITS, CompactorLimits
from compactor.slices import ByteRoom, GatheredSlices, open_spool
from runtime.blocking import Blocking
from runtime.clock import Clock
from storage.cache.blocks import RangeSource
from storage.errors import Corrupt, EndsEarly, NotFound, StorageError
from storage.formats.control import inline_bytes
from storage.formats.wal import object_key
from storage.limits import MIB
from storage.vocabulary import PartitionId

CARRIED_SHARE: Final = 4
"""A fourth of the memory for segments is the bound of what the entries of a round carry: they hold it until the round is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPolicy:
    """How much one round takes on: bytes of slices (they wait in the spool), entries, and bytes of segments made at a time."""

    slice_bytes_max: int = 1024 * MIB
    entries_max: int = 200_000
    segment_bytes_max: int = 96 * MIB
    spool_folder: Path | None = None


@dataclass(slots=True)
class RoundReport:
    """How each partition that was begun ended. `left`: those that wait for another round."""

    ended: dict[PartitionId, CompactionResult | StorageError] = field(default_factory=dict)
    left: list[PartitionId] = field(default_factory=list)
    gets: int = 0
    got_bytes: int = 0
    objects: int = 0
    stage_s: dict[str, float] = field(default_factory=dict)
    """How long planning, fetching and writing took."""


class Round:
    """One at a time; made anew for each."""

    def __init__(
        self,
        compaction: Compaction,
        *,
        objects: RangeSource,
        blocking: Blocking,
        clock: Clock,
        policy: RoundPolicy | None = None,
        on_damaged: Callable[[str], None] | None = None,
        limits: CompactorLimits = DEFAULT_LIMITS,
    ) -> None:
        """`blocking` runs one call at a time. `on_damaged` hears of each object of a partition whose slices are not what was written."""
        self._on_damaged = on_damaged
        self._clock = clock
        self._compaction = compaction
        self._objects = objects
        self._blocking = blocking
        self._policy = policy or RoundPolicy()
        self._limits = limits
        self._report = RoundReport()

    async def run(self, partitions: Iterable[PartitionId]) -> RoundReport:
        """Take partitions until the round is full. What fails of one does not concern the others, and is its value in `ended`.

        Cancelled: as if the process had died.
        """
        with self._timed("plan"):
            tasks = await self._begin(iter(partitions))
        if tasks:
            policy, limits = self._policy, self._limits
            async with open_spool(self._blocking, bytes_max=policy.slice_bytes_max, folder=policy.spool_folder, limits=limits) as spool:
                slices = GatheredSlices(self._objects, spool, limits=limits)
                with self._timed("fetch"):
                    await slices.gather(itertools.chain.from_iterable(task.entries for task in tasks))
                self._report.gets, self._report.got_bytes, self._report.objects = slices.gets, slices.read_bytes, slices.objects
                with self._timed("write"):
                    await self._finish(tasks, slices)
        return self._report

    @contextlib.contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        began_s = self._clock.monotonic_s()
        yield
        self._report.stage_s[stage] = self._clock.monotonic_s() - began_s

    async def _begin(self, partitions: Iterator[PartitionId]) -> Sequence[CompactionTask]:
        policy, tasks = self._policy, list[CompactionTask]()
        slice_bytes = entries = carried_bytes = 0
        carried_bytes_max = policy.segment_bytes_max // CARRIED_SHARE
        while slice_bytes < policy.slice_bytes_max and entries < policy.entries_max and carried_bytes < carried_bytes_max:
            taken = list(itertools.islice(partitions, self._limits.begun_together_max))
            if not taken:
                break
            async with asyncio.TaskGroup() as group:
                begun = [group.create_task(self._begin_one(partition)) for partition in taken]
            for task in [one.result() for one in begun]:
                if task is None:
                    continue
                slice_bytes += task.size_bytes
                entries += len(task.entries)
                carried_bytes += inline_bytes(task.entries)
                if tasks and (slice_bytes > policy.slice_bytes_max or entries > policy.entries_max):
                    await self._compaction.give_up(task)
                    self._report.left.append(task.partition)
                else:
                    tasks.append(task)
        self._report.left += partitions
        return tasks

    async def _begin_one(self, partition: PartitionId) -> CompactionTask | None:
        try:
            begun = await self._compaction.begin(partition)
        except StorageError as error:
            self._report.ended[partition] = error
            return None
        if isinstance(begun, CompactionTask):
            return begun
        self._report.ended[partition] = begun
        return None

    async def _finish(self, tasks: Sequence[CompactionTask], slices: GatheredSlices) -> None:
        room = ByteRoom(self._policy.segment_bytes_max)
        waiting = iter(tasks)

        async def work() -> None:
            for task in waiting:
                async with room.take(task.size_bytes):
                    self._report.ended[task.partition] = await self._finish_one(task, slices)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(self._limits.finished_together_max, len(tasks))):
                group.create_task(work())

    async def _finish_one(self, task: CompactionTask, slices: GatheredSlices) -> CompactionResult | StorageError:
        try:
            return await self._compaction.finish(task, slices)
        except (NotFound, EndsEarly) as error:
            try:
                # Meanwhile others may have compacted or deleted what was there, and the collector has been faster.
                return error if await self._compaction.is_current(task) else CompactionResult(CompactionEnd.OVERTAKEN)
            except StorageError as unread:
                return unread
        except StorageError as error:
            if isinstance(error, Corrupt) and self._on_damaged is not None:
                for entry in task.entries:
                    self._on_damaged(object_key(entry.object_id))
            return error


def only(report: RoundReport, partition: PartitionId) -> CompactionResult:
    """The result of a partition. Raises what kept it from having one."""
    ended: Mapping[PartitionId, CompactionResult | StorageError] = report.ended
    result = ended[partition]
    if isinstance(result, StorageError):
        raise result
    return result
