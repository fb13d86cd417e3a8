"""Retention: `log_start` moves up over what is too old or too much, then the keys below it go (docs/design/upkeep.md).

    control record → entries from log_start on, until one stays → CAS control: log_start → keys of index/ and segments/ that end below it go

No object is read or deleted: those that no key names any more are the collector's. It decides nothing about DeleteRecords, and removes the
keys that this leaves behind.
"""

import contextlib
import os
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from compactor.records import KEYS_PER_DELETE, Records
from compactor.retention_plan import NO_LIMIT, RetentionLimits, count_gone, source_bytes, source_ms
from runtime.clock import Clock
from runtime.ids import Entropy
from storage.errors import Unavailable
from storage.formats.control import Control, EntrySource, LogState, decode_control
from storage.log.entry_scan import EntriesMoved, entry_pages
from storage.log.trim import decide_trim
from storage.metadata.keys import PartitionKeys
from storage.metadata.port import Applied, Delete, Key, MetadataStore, WriteOp
from storage.vocabulary import PartitionId

KEPT_MAX: Final = 200_000
"""Partitions of which the last look is remembered: 50 MiB. The others are looked at in each cycle."""
AGAIN_MS_MAX: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class RetentionResult:
    """`removed` offsets went, `keys` of entries were deleted."""

    log_start: int
    removed: int = 0
    keys: int = 0


class _Kept(NamedTuple):
    """What the last look found: below `cleaned_to` no keys are left, nothing expires before `again_ms`, and nothing is too much until more
    than `bytes_total_max` was appended in all.
    """

    limits: RetentionLimits
    cleaned_to: int
    log_start: int
    again_ms: int
    bytes_total_max: float


class Retention:
    """Applies limits to partitions, one call each. Calls may run side by side, for different partitions.

    Errors of a call: `Corrupt`, `IncompatibleFormat` (the partition is left as it is), `Unavailable`, `OutcomeUnknown`: log_start only
    grows, so another call does the rest.
    """

    def __init__(self, *, metadata: MetadataStore, clock: Clock, entropy: Entropy = os.urandom) -> None:
        self._records = Records(metadata, entropy=entropy)
        self._clock = clock
        self._kept: dict[PartitionId, _Kept] = {}

    def is_due(self, partition: PartitionId, control: Control, limits: RetentionLimits) -> bool:
        """Whether a look may find something."""
        if control.log_state is LogState.DELETED:
            self._kept.pop(partition, None)
            return False
        kept = self._kept.get(partition)
        if kept is None or kept.limits != limits:
            return control.log_start > 0 or not (limits.is_endless or control.sequence_counter == 0)
        if kept.cleaned_to < control.log_start:
            return True
        if control.log_start == control.sequence_counter:
            return False
        return (limits.retention_ms != NO_LIMIT and self._clock.now_ms() >= kept.again_ms) or control.bytes_total > kept.bytes_total_max

    async def run(self, partition: PartitionId, limits: RetentionLimits) -> RetentionResult:
        """Delete what has to go of one partition."""
        keys = PartitionKeys(partition)
        (record,) = await self._records.get(keys.control)
        if record is None:
            return RetentionResult(0)
        control = decode_control(record.value, path=record.path)
        before = control.log_start
        kept = _Kept(limits, before, before, self._clock.now_ms() + AGAIN_MS_MAX, float("inf"))
        if control.log_state is LogState.OPEN and not limits.is_endless and before < control.sequence_counter:
            try:
                kept = await self._look(keys, control, limits)
            except EntriesMoved:
                return RetentionResult(before)  # compacted or trimmed meanwhile: the next call sees it
            if kept.log_start > before:
                moved = await self._move(keys, kept.log_start)
                if moved is None:
                    return RetentionResult(before)
                kept = kept._replace(log_start=moved)
        removed_keys = await self._delete_keys(keys, kept.log_start)
        if partition in self._kept or len(self._kept) < KEPT_MAX:
            self._kept[partition] = kept._replace(cleaned_to=kept.log_start)
        return RetentionResult(kept.log_start, kept.log_start - before, removed_keys)

    def keep_only(self, partitions: frozenset[PartitionId]) -> None:
        """Others are gone, or somebody else's."""
        for partition in [one for one in self._kept if one not in partitions]:
            del self._kept[partition]

    async def _look(self, keys: PartitionKeys, control: Control, limits: RetentionLimits) -> _Kept:
        """Where the log has to begin, and when that may change."""
        now_ms = self._clock.now_ms()
        log_start, live_bytes = control.log_start, control.bytes_total
        is_counted = limits.retention_bytes != NO_LIMIT and control.bytes_total > limits.retention_bytes
        if is_counted:
            live_bytes = await self._live_bytes(keys, control)
        first: EntrySource | None = None
        async with contextlib.aclosing(entry_pages(self._records.metadata, keys, control, log_start)) as pages:
            async for page in pages:
                gone, live_bytes = count_gone(page, limits, live_bytes=live_bytes, now_ms=now_ms)
                if gone:
                    log_start = page[gone - 1].last + 1
                if gone < len(page):
                    first = page[gone]
                    break
        again_ms = now_ms + AGAIN_MS_MAX
        if first is None:
            again_ms = 0  # what comes next may be old already
        elif limits.retention_ms != NO_LIMIT:
            again_ms = min(again_ms, source_ms(first) + limits.retention_ms)
        bytes_total_max = float("inf")
        if limits.retention_bytes != NO_LIMIT:
            bytes_total_max = max(control.bytes_total, control.bytes_total + limits.retention_bytes - live_bytes)
        return _Kept(limits, control.log_start, log_start, again_ms, bytes_total_max)

    async def _live_bytes(self, keys: PartitionKeys, control: Control) -> int:
        live_bytes = 0
        async with contextlib.aclosing(entry_pages(self._records.metadata, keys, control, control.log_start)) as pages:
            async for page in pages:
                live_bytes += sum(map(source_bytes, page))
        return live_bytes

    async def _move(self, keys: PartitionKeys, log_start: int) -> int | None:
        """Where the log begins now: there, or further on if somebody has trimmed it. None if it takes no changes."""

        async def decide(control: Control) -> tuple[Control, Sequence[WriteOp]] | int | None:
            if control.log_state is not LogState.OPEN or log_start > control.sequence_counter:
                return None  # the latter: a deposed leader's record
            decision = decide_trim(control, log_start)
            return decision.log_start if decision.control is None else (decision.control, ())

        moved = await self._records.change_control(keys, decide, action="move log_start")
        return moved.log_start if isinstance(moved, Control) else moved

    async def _delete_keys(self, keys: PartitionKeys, log_start: int) -> int:
        """The keys that end below `log_start`; the ones that hold it stay. A segment's key goes under the version that was seen: a
        merge may have put another segment there.
        """
        if not log_start:
            return 0
        removed = await self._records.delete_range(keys.index(0), keys.index(log_start).path)
        ops: list[WriteOp] = []
        async with contextlib.aclosing(self._segment_keys(keys, log_start)) as found:
            async for key, version in found:
                ops.append(Delete(key, version))
                if len(ops) == KEYS_PER_DELETE:
                    removed += await self._delete(ops)
                    ops = []
        return removed + await self._delete(ops)

    async def _segment_keys(self, keys: PartitionKeys, log_start: int) -> AsyncGenerator[tuple[Key, int], None]:
        async for record in self._records.metadata.range_scan(keys.segment(0), keys.segment(log_start).path):
            yield Key(record.path, keys.partition_key), record.version

    async def _delete(self, ops: Sequence[WriteOp]) -> int:
        if ops and not isinstance(outcome := await self._records.write(ops), Applied):
            raise Unavailable(f"keys of segments were not deleted: cause={outcome.reason!r}")
        return len(ops)
