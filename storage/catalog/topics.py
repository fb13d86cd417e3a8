"""The topics of the cluster, cached: found, created, changed, deleted. The order of the writes is in storage/catalog/topic.py.

Everything about the log of a topic is keyed by its id, so a topic that was deleted and created again shares nothing with the old one.
The cache may be behind (hints get lost, entries live for half a minute, from when their read began): a topic found in it may be gone, and
one that is not found in it may exist. Writers are safe all the same: the manifests of a deleted topic say so.

While the store does not answer for the catalog (`Unavailability`), topics stay in the cache for STALE_S longer, unless something
contradicts them. That rests on the same: a topic that was deleted takes no appends and has no records, whoever still believes in it; a
broker that finds that out forgets it.
"""

import asyncio
import os
from collections import OrderedDict
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from typing import Final, TypeVar

import structlog

from runtime.clock import Clock
from runtime.ids import Entropy, IdSource
from runtime.lru import LruCache
from runtime.telemetry import Metric, Telemetry
from runtime.turns import ITEMS_DEFAULT, Turns
from storage.catalog.limits import DEFAULT_LIMITS, CatalogLimits
from storage.catalog.records import SharedReads, pause, write_one
from storage.catalog.topic import (
    Topic,
    TopicChanges,
    TopicState,
    altered,
    collision_key,
    decode_topic,
    decode_topic_id,
    may_collide,
    read_topic_ids,
    validate_name,
)
from storage.errors import StorageError, Unavailable
from storage.metadata import keys
from storage.metadata.port import ABSENT, Delete, MetadataStore, OpResult, Status
from storage.vocabulary import TopicId

__all__ = ["CACHE_TOPICS_MAX", "PARTITIONS_MAX", "TIMEOUT_S", "Topic", "TopicState", "Topics"]

SILENT_FOR_S: Final = 10.0
"""A read that failed says so much about the next ones. `Unavailability.watch` looks more often than that."""
STALE_S: Final = 600.0
"""How much older a topic in the cache may be while the catalog is silent."""
TIMEOUT_S: Final = DEFAULT_LIMITS.topics_timeout_s
"""How long handlers wait for topics, which is as long as a lookup does by itself."""
CACHE_TOPICS_MAX: Final = 50_000
PARTITIONS_MAX: Final = 10_000
PROOFS_MAX: Final = 6
FORMER_MAX: Final = 8
"""Deleted incarnations of a name that `former` tells of."""
FORMER_KEPT_MAX: Final = 1_024
"""Topics of which their former incarnations are remembered: 1 MiB."""
FORMER_PAUSE: Final = 10
"""Times as long as `former` has read all ids of topics, it reads none."""
_READ_KEYS_MAX: Final = 1_000
STALE: Final = Metric(
    "forebay_topics_stale_total",
    "Times a topic was served that was read more than 30 s before, since the metadata store does not answer for the catalog.",
)

K = TypeVar("K")

_log: Final = structlog.get_logger()


class Unavailability:
    def __init__(self, metadata: MetadataStore, *, clock: Clock, limits: CatalogLimits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._metadata = metadata
        self._clock = clock
        self._until_s = float("-inf")
        self._has_fallen = asyncio.Event()

    @property
    def is_on(self) -> bool:
        return self._clock.monotonic_s() < self._until_s

    def note_failure(self, cause: str) -> None:
        """A read had no answer."""
        self._until_s = self._clock.monotonic_s() + SILENT_FOR_S
        if not self._has_fallen.is_set():
            self._has_fallen.set()
            _log.warning("catalog_unavailable", former_event="catalog_silent", cause=cause)

    def note_answer(self) -> None:
        """A read had an answer."""
        self._until_s = float("-inf")
        if self._has_fallen.is_set():
            self._has_fallen.clear()
            _log.info("catalog_answers")

    async def watch(self) -> None:
        """Notice when it speaks again, until cancelled, so that no request has to wait to find that out."""
        while True:
            await self._has_fallen.wait()
            await asyncio.sleep(self._limits.probe_pause_s)
            try:
                async with asyncio.timeout(self._limits.probe_timeout_s):
                    await self._metadata.get_many([keys.CLUSTER])
            except (StorageError, TimeoutError) as error:
                self.note_failure(repr(error))
            else:
                self.note_answer()


class Topics:
    """Every method that waits may be cancelled; a cancelled `create` or `delete` may have happened, or be left half done."""

    def __init__(
        self,
        metadata: MetadataStore,
        *,
        clock: Clock,
        ids: IdSource,
        entropy: Entropy = os.urandom,
        cache_topics_max: int = CACHE_TOPICS_MAX,
        telemetry: Telemetry | None = None,
        limits: CatalogLimits = DEFAULT_LIMITS,
    ) -> None:
        self._limits = limits
        self._metadata = metadata
        self._unavailability = Unavailability(metadata, clock=clock, limits=limits)
        self._stale = (telemetry or Telemetry()).counter(STALE)
        self._clock = clock
        self._ids = ids
        self._entropy = entropy
        self._written = TopicChanges(metadata, entropy=entropy, limits=limits)
        self._cache_topics_max = cache_topics_max
        # The oldest goes first: of a dict it would be looked for behind all that went before.
        self._by_name: OrderedDict[str, tuple[Topic, float]] = OrderedDict()
        self._by_id: dict[TopicId, str] = {}
        self._changes = 0
        self._reads = SharedReads(self._read_names)
        self._id_reads = SharedReads(self._read_ids)
        self._scans = SharedReads(self._scan)
        self._former: LruCache[TopicId, tuple[TopicId, ...]] = LruCache(FORMER_KEPT_MAX)
        self._former_reads = SharedReads(self._read_former)
        self._former_again_s = float("-inf")
        self._subscription = metadata.subscribe(self._changed, prefix=keys.TOPICS_PREFIX)

    def close(self) -> None:
        """Take no more hints."""
        self._subscription.cancel()

    async def watch(self) -> None:
        """Notice when a catalog that was silent speaks again, until cancelled. Without it one lookup in ten seconds finds that out."""
        await self._unavailability.watch()

    @property
    def is_silent(self) -> bool:
        """Whether what is found may be stale, since the store does not answer for the catalog: no ground to say that something is not."""
        return self._unavailability.is_on

    def find(self, name: str) -> Topic | None:
        """The topic as cached. None says that it is not cached, never that it does not exist."""
        entry = self._by_name.get(name)
        if entry is None:
            return None
        topic, expires_s = entry
        late_s = self._clock.monotonic_s() - expires_s
        if late_s < 0:
            return topic
        if late_s >= STALE_S:
            self.forget(name)
        elif self._unavailability.is_on:
            self._stale.inc()
            return topic
        return None

    def find_id(self, topic_id: TopicId) -> Topic | None:
        """As `find`, by topic id."""
        name = self._by_id.get(topic_id)
        return None if name is None else self.find(name)

    def forget(self, name: str) -> None:
        """Drop a topic from the cache because something contradicts it, so that the next lookup reads."""
        entry = self._by_name.pop(name, None)
        if entry is not None:
            self._by_id.pop(entry[0].topic_id, None)

    async def lookup(self, names: Iterable[str]) -> dict[str, Topic]:
        """The topics of `names` that exist: from the cache or by one read made after the call. Raises `StorageError`, within the limits."""
        found, unread = await self.look_up(names)
        if unread is not None:
            raise unread
        return found

    async def look_up(self, names: Iterable[str], *, timeout_s: float | None = None) -> tuple[dict[str, Topic], StorageError | None]:
        """As `lookup`, within `timeout_s` if given, but what is missing beside an error may exist: it says why nobody could tell."""
        found, missing = await _split(names, self.find)
        wanted = await _valid(missing)
        return await self._look_up(found, wanted, self._by_name, self.find, self._reads, timeout_s)

    async def lookup_now(self, names: Collection[str]) -> dict[str, Topic]:
        """As `lookup`, and within as long, without the cache: for answers that say that a topic exists as much as that it does not.

        What contradicts the cache is dropped from it; the rest stays, so that a store that does not answer costs nobody else their topics.
        """
        read, unread = await self._read_within(self._reads, await _valid(names), None, is_known=False)
        if unread is not None:
            raise unread
        turns = Turns()
        for name, topic in read.items():
            cached = self.find(name)
            if cached is not None and cached != topic:
                self.forget(name)
            await turns.spent()
        return await self._active(read)

    async def lookup_certainly(self, name: str) -> Topic | None:
        """The topic of that name; None only if the shard's current leader says that it is free, or only reserved. A read alone
        may be answered by a deposed leader that has not heard of a topic yet, and a client given that answer takes a deletion for done.

        Raises `StorageError`. Costs a write that changes nothing, where there is no such topic.
        """
        for attempt in range(PROOFS_MAX):
            read = (await self._reads.ask([name]))[name]
            if (topic := (await self._active({name: read})).get(name)) is not None:
                return topic
            if read is not None and read.state is TopicState.CREATING:
                return None
            # The condition can hold only where there is nothing to delete.
            outcome = await write_one(self._metadata, Delete(keys.topic(name), ABSENT))
            if isinstance(outcome, OpResult) and outcome.status is Status.KEY_NOT_FOUND:
                return None
            await pause(attempt, self._entropy)
        raise Unavailable(f"nobody could tell whether there is a topic {name!r}: attempts={PROOFS_MAX}")

    async def lookup_ids(self, topic_ids: Iterable[TopicId]) -> dict[TopicId, Topic]:
        """As `lookup`, by topic id."""
        found, unread = await self.look_up_ids(topic_ids)
        if unread is not None:
            raise unread
        return found

    async def look_up_ids(
        self, topic_ids: Iterable[TopicId], *, timeout_s: float | None = None
    ) -> tuple[dict[TopicId, Topic], StorageError | None]:
        """As `look_up`, by topic id."""
        found, wanted = await _split(topic_ids, self.find_id)
        return await self._look_up(found, wanted, self._by_id, self.find_id, self._id_reads, timeout_s)

    async def all(self) -> list[Topic]:
        """Every topic, by name, from a scan begun after the call. Raises `StorageError`."""
        return (await self._scans.ask([None]))[None]

    async def former(self, topic_id: TopicId) -> tuple[TopicId, ...]:
        """The deleted topics that had the name of this one, the one deleted last ahead, FORMER_MAX at most. Raises `StorageError`.

        A search reads the ids of all topics that there ever were, so it is followed by a pause. Without a search the answer is empty.
        """
        known = self._former.peek(topic_id)
        if known is not None or self._clock.monotonic_s() < self._former_again_s:
            return known or ()
        return (await self._former_reads.ask([topic_id]))[topic_id]

    async def colliding(self, names: Collection[str]) -> dict[str, str]:
        """For each of `names` that may not stand beside an existing topic (topic_names.collision_key), that topic. Raises `StorageError`.

        Two brokers that create such names in the same instant are not kept apart: nothing but metric names suffers.
        """
        by_key: dict[str, list[str]] = {}
        turns = Turns()
        for name in names:
            if may_collide(name):
                by_key.setdefault(collision_key(name), []).append(name)
            await turns.spent()
        if not by_key:
            return {}
        start, end = keys.topics()
        existing = []
        for path in await self._metadata.list(start, end):
            other = path.removeprefix(keys.TOPICS_PREFIX)
            if collision_key(other) in by_key:
                existing.append(other)
            await turns.spent()
        active = await self.lookup(existing)
        return {name: other for other in active for name in by_key[collision_key(other)] if name != other}

    async def create(self, name: str, *, partition_count: int, replication_factor: int, configs: Mapping[str, str]) -> Topic:
        """Create a topic whose name `validate_name` accepts and whose configs are validated.

        Raises `AlreadyExists`, which rests on a write that found the name taken; `Unavailable` (not created); `OutcomeUnknown` (it may have
        been, or may yet be).
        """
        assert validate_name(name) is None, f"not validated: {name!r}"
        assert 0 < partition_count <= PARTITIONS_MAX

        def propose() -> Topic:
            return Topic(
                name=name,
                topic_id=TopicId(self._ids.random_uuid()),
                partition_count=partition_count,
                replication_factor=replication_factor,
                configs=dict(configs),
                state=TopicState.CREATING,
                created_at_ms=self._clock.now_ms(),
            )

        changes, asked_s = self._changes, self._clock.monotonic_s()
        topic = await self._written.create(name, propose)
        self.forget(name)  # whose end was not heard of yet
        await self._remember_all([topic], changes, asked_s)
        return topic

    async def delete(self, topic: Topic) -> None:
        """Delete this incarnation of the topic. When this returns, no batch can be committed to it and its name is free.

        Raises `NotFound` if it was gone before; `Unavailable` or `OutcomeUnknown` when half done: call again, or leave it to whoever
        looks for the name next.
        """
        self.forget(topic.name)
        try:
            await self._written.delete(topic)
        finally:
            self._changed_here(topic.name)

    async def add_partitions(self, topic: Topic, count: int) -> int:
        """Raise the number of partitions of this incarnation to `count`. Returns how many it had before; if those were `count` or more,
        nothing was done.

        A partition that somebody sees has its log. Raises as `alter_configs`.
        """
        assert 0 < count <= PARTITIONS_MAX
        self.forget(topic.name)
        try:
            return await self._written.add_partitions(topic, count)
        finally:
            self._changed_here(topic.name)

    async def alter_configs(self, topic: Topic, change: Callable[[Mapping[str, str]], dict[str, str]]) -> None:
        """Give this incarnation the configs that `change` makes of those it has: applied to the newest each time, so it must be pure and
        give the same when applied to its own result.

        Raises the ValueError that `change` raises (then nothing was changed); `NotFound` if the incarnation is gone; `Unavailable` (nothing
        changed); `OutcomeUnknown` (it may have been, or may yet be).
        """
        self.forget(topic.name)
        try:
            await self._written.replace(topic, altered(change), f"alter the configs of topic {topic.name!r}")
        finally:
            self._changed_here(topic.name)

    def _changed_here(self, name: str) -> None:
        """As a hint of it: what was read before, and waits for its turn to be cached, may be from before the change."""
        self._changes += 1
        self.forget(name)

    async def _look_up(
        self,
        found: dict[K, Topic],
        wanted: list[K],
        known: Container[K],
        find: Callable[[K], Topic | None],
        reads: SharedReads[K, Topic | None],
        timeout_s: float | None,
    ) -> tuple[dict[K, Topic], StorageError | None]:
        """`found`, and what of `wanted` is read or, while the catalog is silent, served stale; an error unless that is all of them."""
        if not wanted:
            return found, None
        is_known = all(map(known.__contains__, wanted))
        read, unread = await self._read_within(reads, wanted, timeout_s, is_known=is_known)
        if unread is None:
            return found | await self._active(read), None
        stale, missing = await _split(wanted, find)
        return found | stale, unread if missing else None

    async def _read_within(
        self, reads: SharedReads[K, Topic | None], wanted: list[K], timeout_s: float | None, *, is_known: bool
    ) -> tuple[dict[K, Topic | None], StorageError | None]:
        """What was read, or why nothing was. Raises what is no silence of the store: a record that cannot be read."""
        limits = self._limits
        timeout_max_s = limits.topics_stale_timeout_s if is_known else limits.topics_timeout_s
        timeout_max_s = limits.topics_silent_timeout_s if self._unavailability.is_on else timeout_max_s
        timeout_s = timeout_max_s if timeout_s is None else min(timeout_s, timeout_max_s)
        try:
            async with asyncio.timeout(timeout_s):
                return await reads.ask(wanted), None
        except TimeoutError:
            unread = Unavailable(f"topics were not read in time: topics={len(wanted)} after_s={timeout_s}")
        except Unavailable as error:
            unread = Unavailable(str(error))
        self._unavailability.note_failure(str(unread))
        return {}, unread

    async def _active(self, read: Mapping[K, Topic | None]) -> dict[K, Topic]:
        active = {}
        for number, (key, topic) in enumerate(read.items(), 1):
            if topic is not None and await self._is_active(topic):
                active[key] = topic
            if number % ITEMS_DEFAULT == 0:
                await asyncio.sleep(0)
        return active

    async def _is_active(self, topic: Topic) -> bool:
        """False for one that is being created, and for one in deletion, once an attempt to finish that was made."""
        if topic.state is not TopicState.DELETING:
            return topic.state is TopicState.ACTIVE
        try:
            await self._written.finish_deletion(topic)
        except StorageError as error:
            # The answer does not depend on it: a topic marked DELETING is gone, and whoever asks next tries again.
            _log.warning("topic_deletion_unfinished", topic=topic.name, topic_id=topic.topic_id, error=str(error))
        return False

    async def _read_names(self, names: list[str]) -> dict[str, Topic | None]:
        changes, asked_s = self._changes, self._clock.monotonic_s()
        turns = Turns()
        topics: dict[str, Topic | None] = {}
        for begin in range(0, len(names), _READ_KEYS_MAX):
            part = names[begin : begin + _READ_KEYS_MAX]
            records = await self._metadata.get_many(await turns.each(keys.topic, part))
            self._unavailability.note_answer()
            for name, record in zip(part, records, strict=True):
                topics[name] = topic = None if record is None else decode_topic(record)
                if topic is None or topic.state is not TopicState.ACTIVE:
                    self.forget(name)  # what is known to be gone is not served stale either
                await turns.spent()
        await self._remember_all(topics.values(), changes, asked_s)
        return topics

    async def _read_ids(self, topic_ids: list[TopicId]) -> dict[TopicId, Topic | None]:
        records = await read_topic_ids(self._metadata, topic_ids)
        self._unavailability.note_answer()
        turns = Turns()
        names: dict[TopicId, str] = {}
        for topic_id, record in zip(topic_ids, records, strict=True):
            if record is not None:
                names[topic_id] = decode_topic_id(record).name
            await turns.spent()
        topics = await self._read_names(list(dict.fromkeys(names.values())))
        found: dict[TopicId, Topic | None] = {}
        for topic_id in topic_ids:
            topic = topics[names[topic_id]] if topic_id in names else None
            found[topic_id] = topic = topic if topic is not None and topic.topic_id == topic_id else None
            if topic is None and (known := self._by_id.get(topic_id)) is not None:
                self.forget(known)
            await turns.spent()
        return found

    async def _scan(self, _: list[None]) -> dict[None, list[Topic]]:
        changes, asked_s = self._changes, self._clock.monotonic_s()
        start, end = keys.topics()
        topics = []
        turns = Turns()
        async for record in self._metadata.range_scan(start, end):
            topic = decode_topic(record)
            if topic.state is TopicState.ACTIVE:
                topics.append(topic)
            await turns.spent()
        await self._remember_all(topics, changes, asked_s)
        return {None: topics}

    async def _read_former(self, topic_ids: list[TopicId]) -> dict[TopicId, tuple[TopicId, ...]]:
        began_s = self._clock.monotonic_s()
        names: dict[TopicId, str] = {}
        deleted: dict[str, list[tuple[int, TopicId]]] = {}
        try:
            for topic_id, record in zip(topic_ids, await read_topic_ids(self._metadata, topic_ids), strict=True):
                if record is not None:
                    names[topic_id] = name = decode_topic_id(record).name
                    deleted[name] = []
            turns = Turns()
            start, end = keys.topic_ids()
            # After the ids asked for were read: they were put when the former ones had been deleted.
            async for record in self._metadata.range_scan(start, end):
                named = decode_topic_id(record)
                if named.is_deleted and named.name in deleted:
                    deleted[named.name].append((record.version, keys.topic_of_id(record.path)))
                await turns.spent()
        finally:
            now_s = self._clock.monotonic_s()
            self._former_again_s = now_s + FORMER_PAUSE * (now_s - began_s)
        found: dict[TopicId, tuple[TopicId, ...]] = dict.fromkeys(topic_ids, ())
        for topic_id, name in names.items():
            newest = sorted(deleted[name], reverse=True)[:FORMER_MAX]
            found[topic_id] = tuple([former for _, former in newest if former != topic_id])
            self._former.put(topic_id, found[topic_id])
        return found

    async def _remember_all(self, topics: Iterable[Topic | None], changes: int, asked_s: float) -> None:
        """Cache what was read or made since `asked_s`, unless a hint comes meanwhile: then it may be what the hint is about. A hint does
        not say whose it is, so a topic that was made here may have to be read once.
        """
        for number, topic in enumerate(topics, 1):
            if changes != self._changes:
                return
            if topic is not None and topic.state is TopicState.ACTIVE:
                self._remember(topic, asked_s)
            if number % ITEMS_DEFAULT == 0:
                await asyncio.sleep(0)

    def _remember(self, topic: Topic, asked_s: float) -> None:
        self.forget(topic.name)
        while len(self._by_name) >= self._cache_topics_max:
            _, (oldest, _) = self._by_name.popitem(last=False)
            self._by_id.pop(oldest.topic_id, None)
        self._by_name[topic.name] = (topic, asked_s + self._limits.topics_cache_age_s)
        self._by_id[topic.topic_id] = topic.name

    def _changed(self, path: str, _version: int | None) -> None:
        self._changes += 1
        self.forget(path.removeprefix(keys.TOPICS_PREFIX))


async def _split(keys_asked: Iterable[K], find: Callable[[K], Topic | None]) -> tuple[dict[K, Topic], list[K]]:
    """What `find` has, and the keys of what it does not have."""
    found: dict[K, Topic] = {}
    missing = []
    for number, key in enumerate(keys_asked, 1):
        if (topic := find(key)) is not None:
            found[key] = topic
        else:
            missing.append(key)
        if number % ITEMS_DEFAULT == 0:
            await asyncio.sleep(0)
    return found, missing


async def _valid(names: Iterable[str]) -> list[str]:
    valid = []
    for number, name in enumerate(names, 1):
        if validate_name(name) is None:
            valid.append(name)
        if number % ITEMS_DEFAULT == 0:
            await asyncio.sleep(0)
    return valid
