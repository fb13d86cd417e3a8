"""Compactions: entries of a partition become a segment (docs/internals/design/upkeep.md, model Forebay-all).

    claim → attempt WRITING_SEGMENT → the object → attempt COMMITTING → [old `segment` into segments/] + [CAS manifest: cursor, segment]
          → attempt DELETING_INDEX → index keys whose END is below the cursor go → the attempt goes → the claim goes

The CAS commits; all else can be repeated by anybody, or dropped. The claim saves work and protects nothing. WAL objects, and objects of
attempts that lost, are the collector's.

A round compacts many partitions and reads each WAL object once: it begins all, fetches their slices together, and finishes all. It is
bounded: partitions that do not fit any more are left for the next.
"""

import asyncio
import contextlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Final

from compactor.limits import DEFAULT_LIMITS, CompactorLimits
from compactor.plan import CompactionPolicy, CursorRefusal, age_due_ms, count_due, in_runs, move_cursor
from compactor.records import Claims, Records
from compactor.slices import ByteRoom, GatheredSlices, PartitionEntries, Slices, correct_times, doubtful_batches, open_spool, stamp
from runtime.blocking import Blocking, InlineBlocking
from runtime.clock import Clock
from runtime.ids import Entropy, IdSource
from runtime.ulid import ulid_ms
from storage.cache.blocks import RangeSource
from storage.errors import AlreadyExists, Corrupt, EndsEarly, NotFound, StorageError, Unavailable
from storage.formats.manifest import (
    CompactionAttempt,
    CompactionState,
    Entry,
    LogState,
    Manifest,
    SegmentEntry,
    SegmentFact,
    decode_attempt,
    decode_manifest,
    decode_segment,
    encode,
    encode_attempt,
    inline_bytes,
)
from storage.formats.segment import SegmentWriter
from storage.formats.wal import object_key
from storage.limits import MIB
from storage.log.index import EntriesMoved, uncompacted_pages
from storage.log.limits import DEFAULT_LIMITS as DEFAULT_LOG_LIMITS
from storage.log.limits import LogLimits
from storage.metadata.keys import PartitionKeys
from storage.metadata.port import ABSENT, Applied, Delete, Key, MetadataStore, Put, Session, Status, WriteOp
from storage.objects.port import ObjectStore
from storage.recordbatch import NO_TIMESTAMP
from storage.vocabulary import ObjectId, PartitionId

INLINE_SHARE: Final = 4
"""A fourth of the memory for segments is the bound of what the entries of a round carry: they hold it until the round is over."""


class CompactionEnd(Enum):
    """How a compaction ended."""

    COMPACTED = "compacted"
    NOTHING_DUE = "nothing_due"
    CLAIMED = "claimed"
    """Another compactor is at it."""
    GONE = "gone"
    OVERTAKEN = "overtaken"
    REVOKED = "revoked"


_END_BY: Final = {
    CursorRefusal.GONE: CompactionEnd.GONE,
    CursorRefusal.OVERTAKEN: CompactionEnd.OVERTAKEN,
    CursorRefusal.REVOKED: CompactionEnd.REVOKED,
}


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """`recovered`: the attempt was begun by an earlier compaction. `read_bytes` are those of the slices, `waiting_bytes` those of entries
    that are not due yet, the first of which was written at `waiting_since_ms`; by their age they will be at `due_ms`.
    """

    ended: CompactionEnd
    segment: SegmentEntry | None = None
    entries: int = 0
    read_bytes: int = 0
    recovered: bool = False
    waiting_bytes: int = 0
    waiting_since_ms: int | None = None
    due_ms: int | None = None


@dataclass(slots=True)
class _Kept:
    """A record that this compaction has put, and its version. `is_done`: it goes with the claim."""

    key: Key
    version: int | None = field(default=None)
    is_done: bool = field(default=False)


@dataclass(frozen=True, slots=True)
class CompactionTask:
    """Entries that become a segment of a partition that is claimed. `finish` it, or `give_up`."""

    partition: PartitionId
    entries: Sequence[Entry]
    size_bytes: int
    manifest: Manifest
    version: int
    """The version of the manifest."""
    keys: PartitionKeys
    claim: _Kept
    attempt: _Kept


class Compaction:
    """Compacts partitions: `begin` each, fetch the slices of all that are due, `finish` each. Calls may overlap, for different partitions.

    Errors of a call: `Corrupt` (an object or record is not what was written: the partition is left as it is), `IncompatibleFormat`,
    `Unavailable`, `OutcomeUnknown`; all but the first two go away with another call. Cancelled: as if the process had died.
    """

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        objects: ObjectStore,
        session: Session,
        ids: IdSource,
        clock: Clock,
        policy: CompactionPolicy | None = None,
        entropy: Entropy = os.urandom,
        claims: Claims | None = None,
        blocking: Blocking | None = None,
        limits: CompactorLimits = DEFAULT_LIMITS,
        log_limits: LogLimits = DEFAULT_LOG_LIMITS,
    ) -> None:
        """`claims`: those that others share which work at no partition at the same time. `blocking` reads times of records."""
        self.metadata = metadata
        self._records = Records(metadata, entropy=entropy, limits=limits)
        self._objects = objects
        self._claims = claims or Claims(self._records, name=ids.random_uuid().encode(), session=session)
        self._running: set[PartitionId] = set()
        self._ids = ids
        self._clock = clock
        self._policy = policy or CompactionPolicy()
        self._blocking = blocking or InlineBlocking()
        self._limits = limits
        self._log_limits = log_limits

    async def begin(self, partition: PartitionId) -> CompactionTask | CompactionResult:
        """Finish what an earlier attempt has begun; else say what becomes a segment, if one is due. A task keeps the partition claimed."""
        assert partition not in self._running, f"compacted already: {partition}"
        keys = PartitionKeys(partition)
        claim, attempt = _Kept(keys.compactor_claim), _Kept(keys.compaction)
        self._running.add(partition)
        begun: CompactionTask | CompactionResult | None = None
        try:
            claim.version = await self._claims.take(claim.key)
            if claim.version is None:
                return CompactionResult(CompactionEnd.CLAIMED)
            begun = await self._begin(partition, keys, claim, attempt)
            return begun
        finally:
            if not isinstance(begun, CompactionTask):
                await self._end(partition, claim, attempt)

    async def finish(self, task: CompactionTask, slices: Slices) -> CompactionResult:
        """Make the segment and commit it."""
        try:
            return await self._compact(task, slices)
        finally:
            await self._end(task.partition, task.claim, task.attempt)

    async def give_up(self, task: CompactionTask) -> None:
        """Somebody else may compact the partition."""
        await self._end(task.partition, task.claim, task.attempt)

    async def is_current(self, task: CompactionTask) -> bool:
        """Whether the entries of `task` are still those that readers use."""
        (record,) = await self._records.get(task.keys.manifest)
        if record is None:
            return False
        manifest = decode_manifest(record.value, path=record.path)
        is_open = manifest.log_state is not LogState.DELETED
        return is_open and manifest.compaction_cursor == task.manifest.compaction_cursor and manifest.log_start == task.manifest.log_start

    async def _end(self, partition: PartitionId, claim: _Kept, attempt: _Kept) -> None:
        """Give up the claim, and drop an attempt that is done: if that fails, the next compaction finds what it has nothing to do for."""
        try:
            if claim.version is not None:
                done = [] if attempt.version is None or not attempt.is_done else [Delete(attempt.key, attempt.version)]
                await self._claims.release(claim.key, claim.version, beside=done)
        finally:
            self._running.discard(partition)

    async def _begin(self, partition: PartitionId, keys: PartitionKeys, claim: _Kept, attempt: _Kept) -> CompactionTask | CompactionResult:
        manifest_record, attempt_record = await self._records.get(keys.manifest, keys.compaction)
        if manifest_record is None:
            return CompactionResult(CompactionEnd.GONE)
        manifest = decode_manifest(manifest_record.value, path=manifest_record.path)
        if attempt_record is not None:
            attempt.version = attempt_record.version
            found = decode_attempt(attempt_record.value, path=attempt_record.path)
            recovered = await self._recover(keys, manifest, attempt, found)
            if recovered is not None:
                return recovered
        if manifest.log_state is LogState.DELETED:
            attempt.is_done = True
            return CompactionResult(CompactionEnd.GONE)
        found_entries = await self._waiting(keys, manifest)
        due = count_due(found_entries, now_ms=self._clock.now_ms(), policy=self._policy)
        if not due:
            attempt.is_done = True
            if not found_entries:
                return CompactionResult(CompactionEnd.NOTHING_DUE)
            since_ms = ulid_ms(found_entries[0].object_id)
            waiting_bytes = sum([entry.size_bytes for entry in found_entries])
            return CompactionResult(
                CompactionEnd.NOTHING_DUE,
                waiting_bytes=waiting_bytes,
                waiting_since_ms=since_ms,
                due_ms=since_ms + age_due_ms(waiting_bytes, self._policy),
            )
        entries = found_entries[:due]
        size_bytes = sum([entry.size_bytes for entry in entries])
        return CompactionTask(partition, entries, size_bytes, manifest, manifest_record.version, keys, claim, attempt)

    async def _waiting(self, keys: PartitionKeys, manifest: Manifest) -> Sequence[Entry]:
        """The first entries above the cursor: no more than fill a segment, or carry `inline_bytes_read_max`. None if keys moved while they
        were read: another compaction is faster, or retention.
        """
        entries: list[Entry] = []
        filled_bytes = inlined_bytes = 0
        inlined_bytes_max = self._limits.inline_bytes_read_max
        try:
            begin = max(manifest.compaction_cursor, manifest.log_start)
            found = uncompacted_pages(self._records.metadata, keys, manifest, begin, limits=self._log_limits)
            async with contextlib.aclosing(found) as pages:
                async for page in pages:
                    entries += page
                    filled_bytes += sum([entry.size_bytes for entry in page])
                    inlined_bytes += inline_bytes(page)
                    if (
                        filled_bytes >= self._policy.segment_bytes
                        or len(entries) >= self._limits.segment_entries_max
                        or inlined_bytes >= inlined_bytes_max
                    ):
                        break
        except EntriesMoved:
            return ()
        return entries

    async def _compact(self, task: CompactionTask, slices: Slices) -> CompactionResult:
        object_id = ObjectId(self._ids.next_ulid(above=task.manifest.revoked_floor))
        cursor = task.manifest.compaction_cursor
        writing = CompactionAttempt(state=CompactionState.WRITING_SEGMENT, cursor=cursor, object_id=object_id)
        if not await self._note(task.attempt, writing):
            return CompactionResult(CompactionEnd.OVERTAKEN)
        segment = await self._write_segment(task, object_id, slices)
        committing = CompactionAttempt(state=CompactionState.COMMITTING, cursor=cursor, object_id=object_id, segment=segment)
        if not await self._note(task.attempt, committing):
            return CompactionResult(CompactionEnd.OVERTAKEN)
        ended = await self._commit(task.keys, task.attempt, committing, entries=len(task.entries))
        return CompactionResult(ended, segment if ended is CompactionEnd.COMPACTED else None, len(task.entries), task.size_bytes)

    async def _recover(self, keys: PartitionKeys, manifest: Manifest, attempt: _Kept, found: CompactionAttempt) -> CompactionResult | None:
        """What becomes of an earlier attempt; None if another may begin in its place."""
        match found.state:
            case CompactionState.WRITING_SEGMENT:
                return None  # its object may be there, whole: the collector takes it
            case CompactionState.COMMITTING:
                ended = await self._commit(keys, attempt, found)
                return CompactionResult(ended, found.segment, recovered=True) if ended is CompactionEnd.COMPACTED else None
            case CompactionState.DELETING_INDEX:
                await self._delete_index(keys, manifest.compaction_cursor)
                attempt.is_done = True
                return CompactionResult(CompactionEnd.COMPACTED, found.segment, recovered=True)

    async def _write_segment(self, task: CompactionTask, object_id: ObjectId, slices: Slices) -> SegmentEntry:
        entries = task.entries
        writer = SegmentWriter(task.partition, object_id, entries[0].base, block_bytes=self._policy.block_bytes)
        for together in in_runs(entries, bytes_max=self._limits.slice_read_bytes_max):
            runs = [stamp(entry, parts, task.partition) for entry, parts in zip(together, await slices.read(together), strict=True)]
            doubtful = [batch for run in runs for batch in doubtful_batches(run)]
            if doubtful:
                await self._blocking.run(partial(correct_times, doubtful))
            for run in runs:
                writer.add(run.buffer)
        written = writer.finish(entries[-1].last)
        try:
            await self._objects.put_if_absent(written.key, written.parts)
        except AlreadyExists:
            raise Unavailable(f"an object of that name is there already: key={written.key!r}") from None
        greatest_ms = max(NO_TIMESTAMP, written.footer.max_timestamp)
        before, following = task.manifest.segment, entries[-1].running_max_timestamp
        return SegmentEntry(
            base=entries[0].base,
            last=entries[-1].last,
            object_id=object_id,
            size_bytes=written.size_bytes,
            max_timestamp=greatest_ms,
            # A segment before it, or this one, may have later times than its entries had: they were corrected.
            running_max_timestamp=max(greatest_ms, following, NO_TIMESTAMP if before is None else before.running_max_timestamp),
        )

    async def _commit(
        self, keys: PartitionKeys, attempt: _Kept, committing: CompactionAttempt, *, entries: int | None = None
    ) -> CompactionEnd:
        """Move the cursor, and delete what that makes garbage. `entries` of the segment, if that is known."""
        segment = committing.segment
        assert segment is not None
        ended = await self._move_cursor(keys, segment, committing.cursor)
        if ended is CompactionEnd.COMPACTED:
            deleting = CompactionAttempt(
                state=CompactionState.DELETING_INDEX, cursor=committing.cursor, object_id=committing.object_id, segment=segment
            )
            if not await self._note(attempt, deleting):
                return ended  # another goes on with it
            await self._delete_index(keys, segment.last + 1, entries=entries)
        attempt.is_done = True
        return ended

    async def _move_cursor(self, keys: PartitionKeys, segment: SegmentEntry, cursor: int) -> CompactionEnd:
        async def decide(manifest: Manifest) -> tuple[Manifest, Sequence[WriteOp]] | CompactionEnd:
            if await self._is_committed(keys, manifest, segment):
                return CompactionEnd.COMPACTED
            moved = move_cursor(manifest, segment, cursor=cursor)
            if isinstance(moved, CursorRefusal):
                return _END_BY[moved]
            previous = manifest.segment
            return moved, [] if previous is None else [Put(keys.segment(previous.last), encode(SegmentFact(entry=previous)), ABSENT)]

        ended = await self._records.change_manifest(keys, decide, action="move the compaction cursor")
        if ended is None:
            return CompactionEnd.GONE
        return CompactionEnd.COMPACTED if isinstance(ended, Manifest) else ended

    async def _is_committed(self, keys: PartitionKeys, manifest: Manifest, segment: SegmentEntry) -> bool:
        """Whether a CAS whose outcome was not known, of this compactor or of an earlier one, was applied: also if others followed it."""
        if manifest.segment is not None and manifest.segment.object_id == segment.object_id:
            return True
        if manifest.compaction_cursor <= segment.last:
            return False
        (record,) = await self._records.get(keys.segment(segment.last))
        if record is None:
            return False
        found = decode_segment(record.value, path=record.path)
        # A merge takes the place of what was committed, be it this segment or a faster compactor's: the index below is garbage either way.
        is_merged = found.base < segment.base or segment.last < found.last
        return is_merged or found.object_id == segment.object_id

    async def _delete_index(self, keys: PartitionKeys, cursor: int, *, entries: int | None = None) -> None:
        """The chunks that end below the cursor. One that holds the cursor stays (model F-base)."""
        first, end = keys.index(0), keys.index(cursor).path
        # A chunk has an entry at least, and what earlier compactions made garbage has gone with them.
        if entries is not None and entries <= self._limits.keys_per_delete:
            await self._records.delete_few(first, end)
        else:
            await self._records.delete_range(first, end)

    # Records of its own

    async def _note(self, attempt: _Kept, value: CompactionAttempt) -> bool:
        """False if another compactor has changed the record: this one ends."""
        expected = ABSENT if attempt.version is None else attempt.version
        outcome = await self._records.write([Put(attempt.key, encode_attempt(value), expected)])
        if not isinstance(outcome, Applied):
            raise Unavailable(f"a compaction was not noted: key={attempt.key.path!r} cause={outcome.reason!r}")
        (result,) = outcome.results
        attempt.version, attempt.is_done = result.version, False
        return result.status is Status.OK


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
    """One at a time; made again for each."""

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
                slices = GatheredSlices(self._objects, spool, metadata=self._compaction.metadata, limits=limits)
                with self._timed("fetch"):
                    await slices.gather([PartitionEntries(task.keys, task.version, task.entries) for task in tasks])
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
        slice_bytes = entries = inlined_bytes = 0
        inlined_bytes_max = policy.segment_bytes_max // INLINE_SHARE
        while slice_bytes < policy.slice_bytes_max and entries < policy.entries_max and inlined_bytes < inlined_bytes_max:
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
                inlined_bytes += inline_bytes(task.entries)
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
