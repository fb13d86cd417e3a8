"""Trimming: log_start moves up by CAS of the control record (docs/design/upkeep.md, I5). What lies below it is garbage for the collector.

    read the control record → decide (pure) → CAS → applied? take the new record over : read again

The end of the log never moves, and an attempt whose reply was lost needs no name: log_start only grows, so trying again is the same.
"""

import asyncio
import os
from typing import Final, NamedTuple, Protocol

import msgspec

from runtime.ids import Entropy
from storage.catalog.records import ATTEMPTS_MAX, given_up, pause
from storage.errors import Fenced, NotFound, OffsetOutOfRange, OutcomeUnknown, Unavailable
from storage.formats.control import Control, LogState, encode
from storage.log.control_reads import ControlReads, failure_of
from storage.log.index import out_of_range, readable
from storage.log.partition import PartitionLog, Partitions
from storage.metadata.port import Applied, MetadataStore, NotApplied, Put, Status, Unknown, WriteOutcome
from storage.vocabulary import PartitionId

HIGH_WATERMARK: Final = -1
"""As the offset to trim before: delete all there is."""
WRITE_TIMEOUT_S: Final = 10.0


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
    control: Control | None
    """The record to put by CAS; None when there is nothing to delete."""


def decide_trim(control: Control, before: int) -> TrimDecision:
    """What trimming makes of an OPEN control record. Raises `OffsetOutOfRange`.

    Entries below the new log_start stay in `pending`, and are indexed as others are: the collector looks for references there.
    """
    assert control.log_state is LogState.OPEN
    if before == HIGH_WATERMARK:
        before = control.sequence_counter
    if not 0 <= before <= control.sequence_counter:
        raise out_of_range(control, before)
    if before <= control.log_start:
        return TrimDecision(control.log_start, None)
    return TrimDecision(before, msgspec.structs.replace(control, log_start=before))


def existing(log: PartitionLog) -> Control:
    """The control record of a log that has just been refreshed. Raise what keeps it from being read, `NotFound` if it does not exist."""
    if log.seen.control is None and log.seen.broken is None and not log.seen.is_behind:
        raise NotFound(f"no such partition: {log.partition}")
    return readable(log)


def _open(log: PartitionLog) -> Control:
    """As `existing`. Raise `Fenced` if nothing may change."""
    control = existing(log)
    if control.log_state is LogState.FENCED:
        raise Fenced(f"the partition is fenced: {log.partition}")
    return control


class Trimmer:
    """As the port `Trims` says."""

    def __init__(
        self, *, metadata: MetadataStore, partitions: Partitions, control_reads: ControlReads, entropy: Entropy = os.urandom
    ) -> None:
        self._metadata = metadata
        self._partitions = partitions
        self._control_reads = control_reads
        self._entropy = entropy

    async def trim(self, partition: PartitionId, before: int) -> int:
        log = self._partitions.get(partition)
        unknown: Unknown | None = None
        reason = ""
        for attempt in range(ATTEMPTS_MAX):
            try:
                await self._control_reads.refresh([log])
            except Unavailable as error:
                if unknown is None:
                    raise
                raise OutcomeUnknown(f"trim: partition={partition} before={before} cause={error}") from error
            try:
                decision = decide_trim(_open(log), before)
            except OffsetOutOfRange:
                # A deposed leader may not have heard of it, and no retry heals the answer: a write shows that the record is the newest.
                await asyncio.wait({proof := self._control_reads.prove(log)})
                if (failure := failure_of(proof, log)) is not None:
                    raise failure from None
                decision = decide_trim(_open(log), before)
            if decision.control is None:
                return decision.log_start
            before = decision.log_start  # of HIGH_WATERMARK: what is appended while this is tried again was not meant
            asked_s = asyncio.get_running_loop().time()
            outcome = await self._write(Put(log.keys.control, encode(decision.control), log.seen.version))
            match outcome:
                case Applied((result,)) if result.status is Status.OK:
                    assert result.version is not None, "a successful put has a version"
                    log.observe(decision.control, result.version, asked_s)
                    return decision.log_start
                case Applied():
                    reason = "others committed each time"
                case Unknown():
                    unknown = outcome
                case NotApplied():
                    reason = outcome.reason
            await pause(attempt, self._entropy)
        raise given_up(f"trim {partition} before offset {before}", unknown=unknown, reason=reason)

    async def _write(self, put: Put) -> WriteOutcome:
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                return await self._metadata.write([put])
        except TimeoutError:
            return Unknown(f"no answer after {WRITE_TIMEOUT_S} s")
