"""Topics as they certainly are, for answers that a stale cache must not give: that something is stored, or that there is nothing (I10).

The cache may name an incarnation that is gone. Two reads tell, and either is enough, so that no one shard of the metadata store holds up
what lies on another: the manifest of any partition, which is a tombstone before the topic's name is free (storage.catalog.topic),
and the record of the topic itself. The first is asked, on the shard that the caller depends on anyhow if the topic has a partition there;
the second when the cache does not know the topic, when the first says no, or when it is late. Callers of one moment share a read.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import Final

import msgspec

from runtime.clock import Clock
from runtime.supervision import Nursery
from runtime.turns import Turns
from storage.catalog.limits import DEFAULT_LIMITS, CatalogLimits
from storage.catalog.topics import Topic, Topics
from storage.errors import StorageError, Unavailable
from storage.formats.levels import UNDECODABLE
from storage.formats.manifest import LogState
from storage.metadata.keys import PartitionKeys
from storage.metadata.port import MetadataStore
from storage.vocabulary import PartitionId, TopicId

_READ_KEYS_MAX: Final = 500
"""Manifests in one question to the store."""


class _State(msgspec.Struct):
    """What is asked of a manifest; whatever its format, this field is in it."""

    log_state: LogState


_state_decoder: Final = msgspec.json.Decoder(_State)


class ConfirmedTopics:
    """`beside`: the partition key of what the caller is about to read or write."""

    def __init__(
        self, metadata: MetadataStore, topics: Topics, *, clock: Clock, nursery: Nursery, limits: CatalogLimits = DEFAULT_LIMITS
    ) -> None:
        self._limits = limits
        self._metadata = metadata
        self._topics = topics
        self._clock = clock
        self._nursery = nursery
        self._reads: dict[int, _ShardReads] = {}
        self._places: dict[tuple[TopicId, int], tuple[PartitionId, int]] = {}

    async def by_name(self, highest: Mapping[str, int], *, beside: str) -> dict[str, Topic | StorageError]:
        """The topics of `highest` that exist, each no older than the call where it matters: the incarnation is the one that had the name,
        and if it has no partition of that number, it had none. An error says that nobody could tell.
        """
        cached: dict[str, Topic] = {}
        turns = Turns()
        for name, partition in highest.items():
            if (topic := self._topics.find(name)) and partition < topic.partition_count:
                cached[name] = topic
            await turns.spent()
        return await self._settle(list(highest), cached, beside=beside)

    async def by_id(self, topic_ids: Iterable[TopicId], *, beside: str) -> dict[TopicId, Topic]:
        """The topics that exist. Raises `StorageError` if one of them cannot be read."""
        wanted = list(topic_ids)
        topics = await self._topics.lookup_ids(wanted)
        turns = Turns()
        by_name: dict[str, Topic] = {}
        for topic in topics.values():
            by_name[topic.name] = topic
            await turns.spent()
        settled = await self._settle(list(by_name), by_name, beside=beside)
        found = {}
        for topic_id, topic in topics.items():
            await turns.spent()
            current = settled.get(topic.name)
            if isinstance(current, StorageError):
                raise current
            if current is not None and current.topic_id == topic_id:
                found[topic_id] = current
        return found

    async def _settle(self, names: Collection[str], cached: Mapping[str, Topic], *, beside: str) -> dict[str, Topic | StorageError]:
        settled: dict[str, Topic | StorageError] = {}
        asked, prompt = await self._ask(cached, shard=self._metadata.shard_of(beside))
        if prompt:
            await asyncio.wait(prompt, timeout=self._limits.confirmation_late_s)
        await _take(asked, cached, settled)
        doubtful = [name for name in names if name not in settled]
        if doubtful:
            await self._settle_doubtful(doubtful, asked, cached, settled)
        return settled

    async def _settle_doubtful(
        self, doubtful: list[str], asked: "list[_Round]", cached: Mapping[str, Topic], settled: dict[str, Topic | StorageError]
    ) -> None:
        """By the topics' own records, or by the manifests if those come first after all."""
        timeout_s = self._limits.confirmation_timeout_s
        outcome: dict[str, Topic] | StorageError = Unavailable(f"no answer: topics={len(doubtful)} after_s={timeout_s}")

        async def read() -> None:
            nonlocal outcome
            try:
                outcome = await self._topics.lookup_now(doubtful)
            except StorageError as error:
                outcome = error

        reading = self._nursery.spawn(read(), name="topics-confirmed")
        pending: set[asyncio.Future[None]] = {reading, *(one.done for one in asked if not one.done.done())}
        try:
            async with asyncio.timeout(timeout_s):
                while pending and any(name not in settled for name in doubtful):
                    done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                    await _take(asked, cached, settled)
                    if reading in done and isinstance(outcome, dict):
                        for name, topic in outcome.items():
                            settled.setdefault(name, topic)
                        return
        except TimeoutError:
            pass  # the error above says so
        finally:
            reading.cancel()
        assert isinstance(outcome, StorageError)
        for name in doubtful:
            settled.setdefault(name, outcome)

    async def _ask(self, cached: Mapping[str, Topic], *, shard: int) -> "tuple[list[_Round], list[asyncio.Future[None]]]":
        """The reads that will tell of these topics, and when those are done that are worth waiting for."""
        by_shard: dict[int, list[PartitionId]] = {}
        turns = Turns()
        for topic in cached.values():
            await turns.spent(self._limits.confirmation_partitions_max if (topic.topic_id, shard) not in self._places else 1)
            partition, its_shard = self._place(topic, shard)
            by_shard.setdefault(its_shard, []).append(partition)
        asked, prompt = [], []
        for its_shard, partitions in by_shard.items():
            reads = self._reads.get(its_shard)
            if reads is None:
                reads = self._reads[its_shard] = _ShardReads(self._metadata, clock=self._clock, nursery=self._nursery, limits=self._limits)
            one = reads.ask(partitions)
            asked.append(one)
            if not reads.is_late:
                prompt.append(one.done)
        return asked, prompt

    def _place(self, topic: Topic, shard: int) -> tuple[PartitionId, int]:
        """A partition of the topic, on that shard if one of the first is."""
        place = self._places.get((topic.topic_id, shard))
        if place is None:
            if len(self._places) >= self._limits.confirmation_places_kept_max:
                self._places.clear()
            first = topic.partition(0)
            place = first, self._metadata.shard_of(PartitionKeys(first).partition_key)
            for number in range(min(topic.partition_count, self._limits.confirmation_partitions_max)):
                partition = topic.partition(number)
                if self._metadata.shard_of(PartitionKeys(partition).partition_key) == shard:
                    place = partition, shard
                    break
            self._places[topic.topic_id, shard] = place
        return place


class _Round:
    """One read of manifests. `alive`: those that are there and no tombstones, when it is `done`; none if it failed."""

    __slots__ = ("alive", "done", "partitions")

    def __init__(self) -> None:
        self.partitions: dict[PartitionId, None] = {}
        self.alive: frozenset[PartitionId] = frozenset()
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class _ShardReads:
    """The reads of one shard: one at a time; questions that arrive meanwhile share the next."""

    def __init__(self, metadata: MetadataStore, *, clock: Clock, nursery: Nursery, limits: CatalogLimits) -> None:
        self._limits = limits
        self._metadata = metadata
        self._clock = clock
        self._nursery = nursery
        self._next: _Round | None = None
        self._began_s: float | None = None
        self._has_failed = False

    @property
    def is_late(self) -> bool:
        """The last read failed, or the one under way takes long."""
        late_s = self._limits.confirmation_late_s
        return self._has_failed or (self._began_s is not None and self._clock.monotonic_s() - self._began_s > late_s)

    def ask(self, partitions: Iterable[PartitionId]) -> _Round:
        joined = self._next
        if joined is None:
            joined = self._next = _Round()
        joined.partitions.update(dict.fromkeys(partitions))
        if self._began_s is None:
            self._began_s = self._clock.monotonic_s()
            self._nursery.spawn(self._read(), name="topics-confirm")
        return joined

    async def _read(self) -> None:
        try:
            while (current := self._next) is not None:
                self._next = None
                self._began_s = self._clock.monotonic_s()
                try:
                    current.alive = await self._alive(list(current.partitions))
                finally:
                    current.done.set_result(None)
        finally:
            self._began_s = None

    async def _alive(self, partitions: list[PartitionId]) -> frozenset[PartitionId]:
        alive = set()
        turns = Turns()
        try:
            async with asyncio.timeout(self._limits.confirmation_timeout_s):
                for begin in range(0, len(partitions), _READ_KEYS_MAX):
                    part = partitions[begin : begin + _READ_KEYS_MAX]
                    records = await self._metadata.get_many([PartitionKeys(partition).manifest for partition in part])
                    for partition, record in zip(part, records, strict=True):
                        if record is not None and _is_alive(record.value):
                            alive.add(partition)
                        await turns.spent()
        except (StorageError, TimeoutError):
            self._has_failed = True
            return frozenset()  # the topics' own records decide
        self._has_failed = False
        return frozenset(alive)


async def _take(asked: Iterable[_Round], cached: Mapping[str, Topic], settled: dict[str, Topic | StorageError]) -> None:
    """Settle the topics of which a manifest was found alive."""
    alive = set()
    turns = Turns()
    for one in asked:
        for partition in one.alive:
            alive.add(partition.topic_id)
            await turns.spent()
    for name, topic in cached.items():
        if topic.topic_id in alive:
            settled.setdefault(name, topic)
        await turns.spent()


def _is_alive(manifest: bytes) -> bool:
    try:
        return _state_decoder.decode(manifest).log_state is not LogState.DELETED
    except UNDECODABLE:
        return False  # the topic's own record decides
