"""The proof that an unknown producer goes on from a deleted topic of the name, so that it begins at once (ADR 28).

The batch is the next one behind the last that was appended there, as all before it were. The other proof, an expired state that the batch
goes on from, is in the manifest: `decide` finds it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from runtime.clock import Clock
from runtime.supervision import Nursery
from storage.errors import StorageError
from storage.formats.manifest import LogState, Manifest, decode_manifest
from storage.limits import PRODUCER_PAGES_MAX
from storage.log.batch import Batch
from storage.log.decide import FORGOTTEN_AFTER, follows
from storage.log.partition import Commit, PartitionLog
from storage.log.producer_pages import find, is_expired
from storage.log.producers import PermittedStart
from storage.metadata.keys import PartitionKeys
from storage.metadata.port import MetadataStore
from storage.vocabulary import TopicId

PROOF_WAIT_S: Final = 1.0
"""For which a commit, and those behind it in its queue, wait for proofs. What was read by then is remembered for the next attempt."""
TIMEOUT_S: Final = 10.0
AT_ONCE_MAX: Final = 16
"""Commits of which proofs are looked for. Beyond that producers wait as if there were none."""

Former = Callable[[TopicId], Awaitable[Sequence[TopicId]]]


async def no_former(_topic_id: TopicId) -> Sequence[TopicId]:
    return ()


class UnknownProducers:
    def __init__(self, *, metadata: MetadataStore, former: Former, clock: Clock, nursery: Nursery, expiration_ms: int) -> None:
        """`former`: the deleted topics that had the name of a topic, the one deleted last ahead. `expiration_ms`: as in `decide`."""
        self._metadata = metadata
        self._former = former
        self._clock = clock
        self._nursery = nursery
        self._kept_ms = FORGOTTEN_AFTER * expiration_ms
        self._looking: set[asyncio.Task[None]] = set()

    async def look(self, commits: Iterable[Commit], *, wait_s: float) -> None:
        """Set `permitted_starts` of those that have `unknown_producers`. `wait_s`: for how long a batch may be on its way."""
        asked: list[asyncio.Task[None]] = []
        for commit in commits:
            if not commit.unknown_producers:
                continue
            batches, commit.unknown_producers, commit.permitted_starts = commit.unknown_producers, (), {}
            if len(self._looking) < AT_ONCE_MAX:
                task = self._nursery.spawn(self._prove(commit, batches, wait_s), name="unknown-producers")
                self._looking.add(task)
                task.add_done_callback(self._looking.discard)
                asked.append(task)
        if asked:
            await asyncio.wait(asked, timeout=PROOF_WAIT_S)

    async def _prove(self, commit: Commit, batches: Sequence[Batch], wait_s: float) -> None:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                proved = await self._those_that_follow(commit.log, batches)
        except (StorageError, TimeoutError):
            return  # nothing is proved: they wait
        now_s = self._clock.monotonic_s()
        commit.permitted_starts = {
            batch.producer_id: PermittedStart(batch.producer_epoch, batch.first_seq)
            for batch in proved
            if not _has_earlier(commit.log, batch, since_s=now_s - 2 * wait_s)
        }

    async def _those_that_follow(self, log: PartitionLog, batches: Sequence[Batch]) -> Sequence[Batch]:
        """The batches that go on from what was appended to the last deleted topic of the name that knew their producer."""
        former = await self._former(log.partition.topic_id)
        if not former:
            return []
        wanted = [PartitionKeys(log.partition._replace(topic_id=topic_id)).manifest for topic_id in former]
        records = await self._metadata.get_many(wanted)
        tombstones = [decode_manifest(record.value, path=record.path) for record in records if record is not None]
        if any(manifest.log_state is not LogState.DELETED for manifest in tombstones):
            return []  # read from a deposed leader: more may have been appended since
        forgotten_before_ms = self._clock.now_ms() - self._kept_ms
        return [batch for batch in batches if _follows_last(tombstones, batch, forgotten_before_ms=forgotten_before_ms)]


def proved_for(commit: Commit, manifest: Manifest) -> Mapping[int, PermittedStart]:
    """The proofs of `commit` that hold at `manifest`: of producers that the partition never knew, so that nothing is appended twice.

    It knows one whose state has expired. It may have known any if it ever had all its pages: then it forgets early.
    """
    if commit.permitted_starts is None or len(manifest.pages) >= PRODUCER_PAGES_MAX:
        return {}
    claimed = {batch.producer_id for batch in commit.batches}
    return {
        producer_id: start
        for producer_id, start in commit.permitted_starts.items()
        if producer_id in claimed and find(manifest, commit.pages, producer_id) is None
    }


def _follows_last(tombstones: Sequence[Manifest], batch: Batch, *, forgotten_before_ms: int) -> bool:
    """Whether `batch` is the next one behind the last that any of `tombstones`, the newest ahead, has of its producer.

    Not behind an older one than the topic of today would remember: it may have had `batch`, and forgotten it.
    """
    for manifest in tombstones:
        known = manifest.producers.get(batch.producer_id)
        if known is not None:
            return follows(known, batch) and not is_expired(known, before_ms=forgotten_before_ms)
        if manifest.pages:
            return False  # its pages, which may have known the producer, go with the topic
    return False


def _has_earlier(log: PartitionLog, batch: Batch, *, since_s: float) -> bool:
    """Whether an earlier batch of the same producer is in this broker, or was refused here since then and will come again."""
    refused = log.producers.waiting.refused.get(batch.producer_id)
    if (
        refused is not None
        and refused.last_s >= since_s
        and refused.start.producer_epoch == batch.producer_epoch
        and refused.start.first_seq < batch.first_seq
    ):
        return True
    return any(
        other.producer_id == batch.producer_id and other.producer_epoch == batch.producer_epoch and other.first_seq < batch.first_seq
        for other in _all_batches(log)
        if not other.is_settled
    )


def _all_batches(log: PartitionLog) -> Iterator[Batch]:
    for commit in log.commit_queue.commits:
        yield from commit.batches
    yield from log.commit_queue.gathered
