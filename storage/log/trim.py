"""Trimming and fencing: changes of the manifest, by CAS, that append nothing (docs/internals/design/upkeep.md, I5).

    read the manifest → decide (pure) → CAS → applied? take the new record over : read again

The end of the log never moves, and an attempt whose reply was lost needs no name: log_start only grows, and a fenced partition is fenced,
so trying again is the same. What lies below log_start is garbage for the collector.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, Protocol

import msgspec

from runtime.ids import Entropy
from storage.catalog.records import ATTEMPTS_MAX, given_up, pause
from storage.errors import Fenced, NotFound, OffsetOutOfRange, OutcomeUnknown, Unavailable
from storage.formats.manifest import LogState, Manifest, encode
from storage.log.fresh_reads import ManifestReads, failure_of
from storage.log.index import out_of_range, readable
from storage.log.limits import DEFAULT_LIMITS, LogLimits
from storage.log.partition import PartitionLog, Partitions
from storage.metadata.port import Applied, MetadataStore, NotApplied, Put, Status, Unknown, WriteOutcome
from storage.vocabulary import PartitionId

HIGH_WATERMARK: Final = -1
"""As the offset to trim before: delete all there is."""
CONFLICTS_MAX: Final = 200
"""Commits of others that come first, before a change of the manifest is given up."""


class Trims(Protocol):
    async def trim(self, partition: PartitionId, before: int) -> int:
        """Make `before` (or HIGH_WATERMARK) the first readable offset. Returns log_start as it is then: higher, if it was higher before.

        Raises `OffsetOutOfRange` for an offset behind the end of the log, `NotFound`, `Fenced`, `Corrupt`, `Unavailable` (nothing changed)
        or `OutcomeUnknown` (it may yet happen). Cancelled: it may have happened.
        """
        ...


class TrimDecision(NamedTuple):
    log_start: int
    """After it."""
    manifest: Manifest | None
    """The record to put by CAS; None when there is nothing to delete."""


def decide_trim(manifest: Manifest, before: int) -> TrimDecision:
    """What trimming makes of an OPEN manifest. Raises `OffsetOutOfRange`.

    Entries below the new log_start stay in `pending`, and are indexed as others are: the collector looks for references there.
    """
    assert manifest.log_state is LogState.OPEN
    if before == HIGH_WATERMARK:
        before = manifest.sequence_counter
    if not 0 <= before <= manifest.sequence_counter:
        raise out_of_range(manifest, before)
    if before <= manifest.log_start:
        return TrimDecision(manifest.log_start, None)
    return TrimDecision(before, msgspec.structs.replace(manifest, log_start=before))


def existing(log: PartitionLog) -> Manifest:
    """The manifest of a log that has just been refreshed. Raise what keeps it from being read, `NotFound` if it does not exist."""
    if log.seen.manifest is None and log.seen.broken is None and not log.seen.is_behind:
        raise NotFound(f"no such partition: {log.partition}")
    return readable(log)


def _open(log: PartitionLog) -> Manifest:
    """As `existing`. Raise `Fenced` if nothing may change."""
    manifest = existing(log)
    if manifest.log_state is LogState.FENCED:
        raise Fenced(f"the partition is fenced: {log.partition}")
    return manifest


class Trimmer:
    """As the port `Trims` says."""

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        partitions: Partitions,
        manifest_reads: ManifestReads,
        entropy: Entropy = os.urandom,
        limits: LogLimits = DEFAULT_LIMITS,
    ) -> None:
        self._changes = _Changes(metadata, partitions, manifest_reads, entropy, write_timeout_s=limits.trim_write_timeout_s)
        self._manifest_reads = manifest_reads

    async def trim(self, partition: PartitionId, before: int) -> int:
        log_start = -1

        async def decide(log: PartitionLog) -> Manifest | None:
            nonlocal before, log_start
            try:
                decision = decide_trim(_open(log), before)
            except OffsetOutOfRange:
                # A deposed leader may not have heard of it, and no retry heals the answer: a write shows that the record is the newest.
                await asyncio.wait({barrier := self._manifest_reads.read_barrier(log)})
                if (failure := failure_of(barrier, log)) is not None:
                    raise failure from None
                decision = decide_trim(_open(log), before)
            # Of HIGH_WATERMARK: what is appended while this is tried again was not meant.
            before = log_start = decision.log_start
            return decision.manifest

        await self._changes.apply(partition, decide, f"trim {partition} before offset {before}")
        return log_start


def decide_fence(manifest: Manifest, *, fenced: bool) -> Manifest | None:
    """A manifest that takes no appends, or takes them again; None if it is so already. Raises `NotFound` for a deleted partition."""
    if manifest.log_state is LogState.DELETED:
        raise NotFound("the partition was deleted")
    wanted = LogState.FENCED if fenced else LogState.OPEN
    if manifest.log_state is wanted:
        return None
    return msgspec.structs.replace(manifest, log_state=wanted, fence_epoch=manifest.fence_epoch + (1 if fenced else 0))


class Fencer:
    """Keeps appends out of a partition: what was not committed when `fence` returns is refused, by every broker."""

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        partitions: Partitions,
        manifest_reads: ManifestReads,
        entropy: Entropy = os.urandom,
        limits: LogLimits = DEFAULT_LIMITS,
    ) -> None:
        self._changes = _Changes(metadata, partitions, manifest_reads, entropy, write_timeout_s=limits.trim_write_timeout_s)
        self._manifest_reads = manifest_reads

    async def fence(self, partition: PartitionId) -> int:
        """Return the end of the log, which is final until `unfence`. A partition may be fenced already.

        Raises `NotFound`, `Corrupt`, `Unavailable` (nothing changed) or `OutcomeUnknown` (it may yet happen). Cancelled: it may have
        happened.
        """
        return await self._set(partition, fenced=True)

    async def unfence(self, partition: PartitionId) -> int:
        """Let the partition take appends again. Returns the end of the log as it was then. Raises as `fence`."""
        return await self._set(partition, fenced=False)

    async def _set(self, partition: PartitionId, *, fenced: bool) -> int:
        end = -1

        async def decide(log: PartitionLog) -> Manifest | None:
            nonlocal end
            decided = decide_fence(existing(log), fenced=fenced)
            if decided is None:
                # A deposed leader may not have heard of the opposite: a write shows that the record is the newest.
                await asyncio.wait({barrier := self._manifest_reads.read_barrier(log)})
                if (failure := failure_of(barrier, log)) is not None:
                    raise failure
                decided = decide_fence(existing(log), fenced=fenced)
            end = existing(log).sequence_counter
            return decided

        await self._changes.apply(partition, decide, f"{'fence' if fenced else 'unfence'} {partition}")
        return end


class _Changes:
    """Changes of manifests that are no appends: read, decide, CAS, and again if others were first."""

    def __init__(
        self, metadata: MetadataStore, partitions: Partitions, manifest_reads: ManifestReads, entropy: Entropy, *, write_timeout_s: float
    ) -> None:
        self._write_timeout_s = write_timeout_s
        self._metadata = metadata
        self._partitions = partitions
        self._manifest_reads = manifest_reads
        self._entropy = entropy

    async def apply(self, partition: PartitionId, decide: Callable[[PartitionLog], Awaitable[Manifest | None]], what: str) -> None:
        """Put what `decide` makes of the newest record; None: there is nothing to do. An attempt that may have happened is repeated, so
        `decide` gives None for its own result.

        Raises what `decide` raises, `Unavailable` and `OutcomeUnknown`.
        """
        log = self._partitions.get(partition)
        unknown: Unknown | None = None
        reason = ""
        attempt = conflicts = 0
        while attempt < ATTEMPTS_MAX and conflicts < CONFLICTS_MAX:
            try:
                await self._manifest_reads.refresh([log])
            except Unavailable as error:
                if unknown is None:
                    raise
                raise OutcomeUnknown(f"{what}: cause={error}") from error
            manifest = await decide(log)
            if manifest is None:
                return
            asked_s = asyncio.get_running_loop().time()
            outcome = await self._write(Put(log.keys.manifest, encode(manifest), log.seen.version))
            match outcome:
                case Applied((result,)) if result.status is Status.OK:
                    assert result.version is not None, "a successful put has a version"
                    log.observe(manifest, result.version, asked_s)
                    return
                case Applied():
                    # Somebody appends all the time: whoever tries at once more often has its turn sooner than who waits for quiet.
                    reason = "others committed each time"
                    conflicts += 1
                    await pause(0, self._entropy)
                    continue
                case Unknown():
                    unknown = outcome
                case NotApplied():
                    reason = outcome.reason
            await pause(attempt, self._entropy)
            attempt += 1
        raise given_up(what, unknown=unknown, reason=reason)

    async def _write(self, put: Put) -> WriteOutcome:
        try:
            async with asyncio.timeout(self._write_timeout_s):
                return await self._metadata.write([put])
        except TimeoutError:
            return Unknown(f"no answer after {self._write_timeout_s} s")
