"""Producer states beside the control record: read before a decision that needs them, written before a decision may drop them (I7)."""

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from storage.errors import Unavailable
from storage.formats.control import SpilledProducer, decode_producer, encode
from storage.log.lane import Commit
from storage.log.partition import PartitionLog
from storage.metadata.port import ABSENT, Applied, MetadataStore, Put, Status

STORED_KEPT_MAX: Final = 4_096
"""Producers per partition whose stored state is remembered; beyond it all are forgotten and read again when needed."""
TIMEOUT_S: Final = 10.0


class ProducerSpill:
    def __init__(self, *, metadata: MetadataStore) -> None:
        self._metadata = metadata

    def is_known(self, commit: Commit) -> bool:
        return next(_missing([commit]), None) is None

    async def read_missing(self, commits: Sequence[Commit]) -> None:
        """Read producers/{pid} of producers that control does not hold. A log whose control changes meanwhile learns nothing from it."""
        missing = list(_missing(commits))
        if not missing:
            return
        versions = {log: log.version for log, _ in missing}
        try:
            async with asyncio.timeout(TIMEOUT_S):
                records = await self._metadata.get_many([log.keys.producer(producer_id) for log, producer_id in missing])
        except TimeoutError:
            raise Unavailable(f"metadata did not answer: op=get_many keys={len(missing)} after_s={TIMEOUT_S}") from None
        for (log, producer_id), record in zip(missing, records, strict=True):
            if versions[log] != log.version:
                continue
            if len(log.stored) >= STORED_KEPT_MAX:
                log.stored.clear()
                log.stored_versions.clear()
            log.stored[producer_id] = None if record is None else decode_producer(record.value, path=record.path)
            if record is not None:
                log.stored_versions[producer_id] = record.version

    async def write(self, log: PartitionLog, producer_ids: Sequence[int]) -> None:
        """Put the states that control holds now, each by CAS. What fails stays in control and is named again by a later decision."""
        try:
            with contextlib.suppress(Unavailable):
                await self._write(log, producer_ids)
        finally:
            log.is_spilling = False

    async def _write(self, log: PartitionLog, producer_ids: Sequence[int]) -> None:
        control, version = log.control, log.version
        if control is None:
            return
        states = {producer_id: control.producers[producer_id] for producer_id in producer_ids if producer_id in control.producers}
        unread = [producer_id for producer_id in states if producer_id not in log.stored]
        expected = dict(log.stored_versions)
        if unread:
            records = await self._metadata.get_many([log.keys.producer(producer_id) for producer_id in unread])
            expected.update({p: record.version for p, record in zip(unread, records, strict=True) if record is not None})
        puts = [
            Put(log.keys.producer(producer_id), encode(SpilledProducer(state=state)), expected.get(producer_id, ABSENT))
            for producer_id, state in states.items()
        ]
        if not puts:
            return
        try:
            async with asyncio.timeout(TIMEOUT_S):
                outcome = await self._metadata.write(puts)
        except TimeoutError:
            outcome = None
        for producer_id, position in zip(states, range(len(puts)), strict=True):
            # Another broker committed meanwhile, or it is not known what stands there: know nothing, and read when it matters.
            result = outcome.results[position] if isinstance(outcome, Applied) else None
            if result is None or result.status is not Status.OK or result.version is None or not _is_ours_since(log, version):
                log.stored.pop(producer_id, None)
                log.stored_versions.pop(producer_id, None)
            else:
                log.stored[producer_id] = states[producer_id]
                log.stored_versions[producer_id] = result.version


def _is_ours_since(log: PartitionLog, version: int) -> bool:
    """True if every control record since `version` was put by this broker."""
    return log.foreign_version <= version


def _missing(commits: Iterable[Commit]) -> Iterator[tuple[PartitionLog, int]]:
    for commit in commits:
        log = commit.log
        if log.control is None:
            continue
        producers, stored = log.control.producers, log.stored
        for producer_id in {batch.producer_id for batch in commit.batches if batch.has_sequence}:
            if producer_id not in producers and producer_id not in stored:
                yield log, producer_id
