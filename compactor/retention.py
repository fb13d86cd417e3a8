"""Retention of a partition: `log_start` moves over what is too old or too much, then keys below go (docs/internals/design/upkeep.md, I5).

    manifest → its entries, until one stays → [chunk of the ring, if it goes] + [CAS manifest: log_start, and what is tidied]
                   → keys of index/ and segments/ that END below it, by version

Keys alone are read. Objects below log_start are the collector's. What a client has deleted with DeleteRecords leaves keys behind, too: they
go the same way. A partition to which nobody appends is tidied, whatever its limits are (compactor/plan.py).
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from compactor.limits import DEFAULT_LIMITS, CompactorLimits
from compactor.plan import RetentionLimits, RetentionPlan, Tidied, TidyPolicy, questioned_writers, tidied
from compactor.records import Records
from runtime.clock import Clock
from runtime.ids import Entropy
from storage.errors import Unavailable
from storage.formats.manifest import EntrySource, LogState, Manifest, decode_manifest
from storage.log.commit import put_chunk
from storage.log.index import EntriesMoved, entry_pages
from storage.log.limits import DEFAULT_LIMITS as DEFAULT_LOG_LIMITS
from storage.log.limits import LogLimits
from storage.metadata.keys import PartitionKeys
from storage.metadata.port import Applied, Delete, Key, MetadataStore, Status, WriteOp
from storage.vocabulary import PartitionId


@dataclass(frozen=True, slots=True)
class RetentionResult:
    """`removed`: by how many offsets the log begins later. `keys` below its beginning were deleted."""

    log_start: int
    removed: int = 0
    keys: int = 0


class _Look(NamedTuple):
    """What the last look has found: nothing is too old before `again_ms`, or too much before `again_bytes` were appended in all."""

    limits: RetentionLimits
    log_start: int
    again_ms: float
    again_bytes: float
    cleaned_to: int
    """Keys that end below it are gone, but for those that arrive late."""


def nobody(_: Collection[int]) -> Collection[int]:
    return ()


class Retention:
    """Applies limits to partitions, one call each. Calls may run side by side, for different partitions.

    Errors of a call: `Corrupt`, `IncompatibleFormat` (the partition is left as it is), `Unavailable`, `OutcomeUnknown`; the last two go
    away with another call. Cancelled: as if the process had died, and another call does the rest.

    `gone` says which of some broker epochs are gone forever; it is asked about the `writers` of the very record that a CAS replaces.
    """

    def __init__(
        self,
        metadata: MetadataStore,
        clock: Clock,
        entropy: Entropy = os.urandom,
        *,
        policy: TidyPolicy | None = None,
        gone: Callable[[Collection[int]], Collection[int]] = nobody,
        limits: CompactorLimits = DEFAULT_LIMITS,
        log_limits: LogLimits = DEFAULT_LOG_LIMITS,
    ) -> None:
        self._limits = limits
        self._records = Records(metadata, entropy=entropy, limits=limits)
        self._clock = clock
        self._policy = policy or TidyPolicy()
        self._gone = gone
        self._log_limits = log_limits
        self._looks: dict[PartitionId, _Look] = {}

    def is_due(self, partition: PartitionId, manifest: Manifest, limits: RetentionLimits) -> bool:
        """Whether a run may find something to do, for a partition with that manifest."""
        if manifest.log_state is not LogState.OPEN:
            self._looks.pop(partition, None)
            return False
        now_ms = self._clock.now_ms()
        if self._tidied(manifest, manifest.log_start, now_ms) is not None:
            return True
        look = self._looks.get(partition)
        if look is None or look.limits != limits:
            return manifest.log_start > 0 or (manifest.sequence_counter > 0 and not limits.is_endless)
        if manifest.log_start > look.log_start or look.cleaned_to < manifest.log_start:
            return True
        return manifest.log_start < manifest.sequence_counter and (now_ms >= look.again_ms or manifest.bytes_total >= look.again_bytes)

    def questioned_writers(self, manifest: Manifest) -> Collection[int]:
        """Broker epochs that a record names, and of which `gone` should know before a run."""
        return questioned_writers(manifest, self._policy, now_ms=self._clock.now_ms(), dead_writers_max=self._limits.dead_writers_max)

    def keep_only(self, partitions: frozenset[PartitionId]) -> None:
        """Others are gone, or somebody else's."""
        for partition in [one for one in self._looks if one not in partitions]:
            del self._looks[partition]

    async def run(self, partition: PartitionId, limits: RetentionLimits) -> RetentionResult:
        """Delete what has to go of one partition. One that does not exist, or is not OPEN, is left alone."""
        now_ms = self._clock.now_ms()
        keys = PartitionKeys(partition)
        (record,) = await self._records.get(keys.manifest)
        manifest = Manifest(log_state=LogState.DELETED) if record is None else decode_manifest(record.value, path=record.path)
        if manifest.log_state is not LogState.OPEN:
            return RetentionResult(manifest.log_start)
        try:
            plan = await self._plan(keys, manifest, limits, now_ms)
        except EntriesMoved:
            return RetentionResult(manifest.log_start)  # compacted or trimmed meanwhile: the next run sees it
        changed = None
        if self._tidied(manifest, plan.log_start, now_ms) is not None:
            changed = await self._change(keys, plan.log_start, now_ms)
            if changed is None:
                return RetentionResult(manifest.log_start)
        log_start = (changed or manifest).log_start
        before = self._looks.get(partition)
        cleaned_to = 0 if before is None else before.cleaned_to
        removed_keys = 0
        if cleaned_to < log_start:
            removed_keys, is_clean = await self._delete_keys(keys, log_start)
            cleaned_to = log_start if is_clean else cleaned_to
        if before is not None or len(self._looks) < self._limits.retention_looks_kept_max:
            self._looks[partition] = _Look(limits, log_start, plan.again_ms, plan.again_bytes, cleaned_to)
        return RetentionResult(log_start, log_start - manifest.log_start, removed_keys)

    def _tidied(self, manifest: Manifest, log_start: int, now_ms: int) -> Tidied | None:
        gone = self._gone(manifest.writers)
        return tidied(manifest, log_start, self._policy, now_ms=now_ms, gone=gone, dead_writers_max=self._limits.dead_writers_max)

    async def _plan(self, keys: PartitionKeys, manifest: Manifest, limits: RetentionLimits, now_ms: int) -> RetentionPlan:
        plan = RetentionPlan(limits, manifest, now_ms=now_ms, sizes_kept_max=self._limits.retention_sizes_kept_max)
        if limits.is_endless or manifest.log_start == manifest.sequence_counter:
            return plan
        async with contextlib.aclosing(self._pages(keys, manifest)) as pages:
            async for page in pages:
                if not plan.add(page):
                    break
        return plan

    async def _pages(self, keys: PartitionKeys, manifest: Manifest) -> AsyncGenerator[list[EntrySource], None]:
        """The entries from log_start on, each page within the deadline."""
        timeout_s = self._limits.call_timeout_s
        found = entry_pages(self._records.metadata, keys, manifest, manifest.log_start, limits=self._log_limits)
        async with contextlib.aclosing(found) as pages:
            while True:
                try:
                    async with asyncio.timeout(timeout_s):
                        page = await anext(pages, None)
                except TimeoutError:
                    raise Unavailable(f"metadata did not answer: op=range_scan after_s={timeout_s}") from None
                if page is None:
                    return
                yield page

    async def _change(self, keys: PartitionKeys, log_start: int, now_ms: int) -> Manifest | None:
        """The record as it is now, with that log_start or one that somebody else has set further on; None if it takes no changes."""
        dropped: list[str] = []

        async def decide(manifest: Manifest) -> tuple[Manifest, Sequence[WriteOp]] | Manifest | None:
            dropped.clear()
            made = self._tidied(manifest, log_start, now_ms)
            if made is None:
                return manifest if manifest.log_state is LogState.OPEN and log_start <= manifest.log_start else None
            kept = {ref.name for ref in made.manifest.pages}
            dropped.extend(ref.name for ref in manifest.pages if ref.name not in kept)
            # Of the record that this CAS replaces: entries that another has pending would be in neither.
            return made.manifest, () if made.chunk is None else (put_chunk(keys, made.chunk),)

        changed = await self._records.change_manifest(keys, decide, action="tidy, or move log_start")
        # They were named by the record that this has replaced, and never are again (ADR 13).
        await self._delete([Delete(keys.producer_page(name)) for name in dropped])
        return changed

    async def _delete_keys(self, keys: PartitionKeys, log_start: int) -> tuple[int, bool]:
        """Delete keys that END below `log_start`: one that holds it stays. By version: a merge may have put another segment there.

        Return how many went, and whether none is left.
        """
        removed, is_clean = 0, True
        for start, end in ((keys.index(0), keys.index(log_start).path), (keys.segment(0), keys.segment(log_start).path)):
            ops: list[Delete] = []
            async with contextlib.aclosing(self._records.scan(start, end)) as records:
                async for record in records:
                    ops.append(Delete(Key(record.path, keys.partition_key), record.version))
                    if len(ops) >= self._limits.keys_per_delete:
                        statuses, ops = await self._delete(ops), []
                        removed += statuses.count(Status.OK)
                        is_clean &= Status.UNEXPECTED_VERSION not in statuses
            statuses = await self._delete(ops)
            removed += statuses.count(Status.OK)
            is_clean &= Status.UNEXPECTED_VERSION not in statuses
        return removed, is_clean

    async def _delete(self, ops: Sequence[Delete]) -> list[Status]:
        if not ops:
            return []
        outcome = await self._records.write(ops)
        if not isinstance(outcome, Applied):
            raise Unavailable(f"keys below log_start were not deleted: first={ops[0].key.path!r} cause={outcome.reason!r}")
        return [result.status for result in outcome.results]
