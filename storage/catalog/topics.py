"""The topics: found, created, changed, deleted.

    llog/topics/{name}            the topic; its first put is what creates it, its removal what ends its deletion, a CAS what changes it
    llog/topic-ids/{topic_id}     its name; put in the same request, and believed only if the name's record has that id

Everything about the log of a topic is keyed by its id, so a topic that was deleted and created again shares nothing with the old one.
The cache may be behind (hints get lost, entries live for half a minute): a topic found in it may be gone, and one that is not found
in it may exist. Writers are safe all the same: the control records of a deleted topic say so.
"""

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import Enum
from typing import Final, TypeVar

import msgspec
import structlog

from runtime.clock import Clock
from runtime.ids import Entropy, IdSource
from storage.catalog.controls import create_controls, is_tombstoned, remove_controls, tombstone_controls
from storage.catalog.gathering import Gathering
from storage.catalog.records import decode, encode
from storage.catalog.topic_names import collision_key, may_collide, validate_name
from storage.catalog.writes import ATTEMPTS_MAX, given_up, pause, write_one
from storage.errors import AlreadyExists, NotFound, OutcomeUnknown, StorageError, Unavailable
from storage.metadata import keys
from storage.metadata.port import ABSENT, Applied, Delete, Key, MetadataStore, NotApplied, Put, Record, Status, Unknown
from storage.vocabulary import PartitionId, TopicId

FMT: Final = 1
CACHE_AGE_S: Final = 30.0
CACHE_TOPICS_MAX: Final = 50_000
PARTITIONS_MAX: Final = 10_000
_READ_KEYS_MAX: Final = 1_000

K = TypeVar("K")

_log: Final = structlog.get_logger()


class TopicState(Enum):
    ACTIVE = "ACTIVE"
    DELETING = "DELETING"  # being removed: whoever finds it may finish that


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """One incarnation of a topic. `configs` holds what was set, defaults excepted (storage.catalog.topic_configs)."""

    fmt: int = FMT
    name: str
    topic_id: TopicId
    partition_count: int
    replication_factor: int
    configs: dict[str, str]
    state: TopicState = TopicState.ACTIVE
    created_at_ms: int

    def has_partition(self, partition: int) -> bool:
        return 0 <= partition < self.partition_count

    def partition(self, partition: int) -> PartitionId:
        return PartitionId(self.topic_id, partition)


class _TopicName(msgspec.Struct, frozen=True, kw_only=True):
    """The value of topic-ids/{topic_id}."""

    fmt: int = FMT
    name: str


_topic_decoder = msgspec.json.Decoder(Topic)
_name_decoder = msgspec.json.Decoder(_TopicName)


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
    ) -> None:
        self._metadata = metadata
        self._clock = clock
        self._ids = ids
        self._entropy = entropy
        self._cache_topics_max = cache_topics_max
        self._by_name: dict[str, tuple[Topic, float]] = {}
        self._by_id: dict[TopicId, str] = {}
        self._changes = 0
        self._reads = Gathering(self._read_names)
        self._id_reads = Gathering(self._read_ids)
        self._scans = Gathering(self._scan)
        self._subscription = metadata.subscribe(self._changed, prefix=keys.TOPICS_PREFIX)

    def close(self) -> None:
        """Take no more hints."""
        self._subscription.cancel()

    def find(self, name: str) -> Topic | None:
        """The topic as cached. None says that it is not cached, never that it does not exist."""
        entry = self._by_name.get(name)
        if entry is None:
            return None
        topic, expires_s = entry
        if self._clock.monotonic_s() >= expires_s:
            self.forget(name)
            return None
        return topic

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
        """Those of `names` that exist: from the cache, or by one read issued after the call. Raises `StorageError`."""
        found = {}
        wanted = []
        for name in names:
            if (topic := self.find(name)) is not None:
                found[name] = topic
            elif validate_name(name) is None:
                wanted.append(name)
        if wanted:
            found |= await self._active(await self._reads.ask(wanted))
        return found

    async def lookup_now(self, names: Collection[str]) -> dict[str, Topic]:
        """As `lookup`, without the cache: for answers that say that a topic exists as much as that it does not.

        What contradicts the cache is dropped from it; the rest stays, so that a store that does not answer costs nobody else their topics.
        """
        read = await self._reads.ask([name for name in names if validate_name(name) is None])
        for name, topic in read.items():
            cached = self.find(name)
            if cached is not None and cached != topic:
                self.forget(name)
        return await self._active(read)

    async def lookup_ids(self, topic_ids: Iterable[TopicId]) -> dict[TopicId, Topic]:
        """As `lookup`, by topic id."""
        found = {}
        wanted = []
        for topic_id in topic_ids:
            if (topic := self.find_id(topic_id)) is not None:
                found[topic_id] = topic
            else:
                wanted.append(topic_id)
        if wanted:
            found |= await self._active(await self._id_reads.ask(wanted))
        return found

    async def all(self) -> list[Topic]:
        """Every topic, by name, from a scan begun after the call. Raises `StorageError`."""
        return (await self._scans.ask([None]))[None]

    async def colliding(self, names: Collection[str]) -> dict[str, str]:
        """For each of `names` that may not stand beside an existing topic (topic_names.collision_key), that topic. Raises `StorageError`.

        Two brokers that create such names in the same instant are not kept apart: nothing but metric names suffers.
        """
        by_key: dict[str, list[str]] = {}
        for name in names:
            if may_collide(name):
                by_key.setdefault(collision_key(name), []).append(name)
        if not by_key:
            return {}
        start, end = keys.topics()
        existing = [path.removeprefix(keys.TOPICS_PREFIX) for path in await self._metadata.list(start, end)]
        active = await self.lookup(other for other in existing if collision_key(other) in by_key)
        return {name: other for other in active for name in by_key[collision_key(other)] if name != other}

    async def create(self, name: str, *, partition_count: int, replication_factor: int, configs: Mapping[str, str]) -> Topic:
        """Create a topic whose name `validate_name` accepts and whose configs are validated.

        Raises `AlreadyExists`; `Unavailable` (not created); `OutcomeUnknown` (it may have been, or may yet be).
        """
        assert validate_name(name) is None, f"not validated: {name!r}"
        assert 0 < partition_count <= PARTITIONS_MAX
        existing = (await self._reads.ask([name]))[name]
        if existing is not None:
            if existing.state is TopicState.ACTIVE:
                raise _already_exists(name)
            await self._finish_deletion(existing)
        topic = Topic(
            name=name,
            topic_id=TopicId(self._ids.random_uuid()),
            partition_count=partition_count,
            replication_factor=replication_factor,
            configs=dict(configs),
            created_at_ms=self._clock.now_ms(),
        )
        await create_controls(self._metadata, topic.topic_id, partition_count, entropy=self._entropy)
        await self._publish(topic)
        self._remember(topic)
        return topic

    async def delete(self, topic: Topic) -> None:
        """Delete this incarnation of the topic. When this returns, no batch can be committed to it and its name is free.

        Raises `NotFound` if it was gone before; `Unavailable` or `OutcomeUnknown` when half done: call again, or leave it to whoever
        looks for the name next.
        """
        self.forget(topic.name)
        marked = await self._mark_deleting(topic)
        if marked is not None:
            await self._finish_deletion(marked)

    async def add_partitions(self, topic: Topic, count: int) -> int:
        """Raise the number of partitions of this incarnation to `count`. Returns how many it had before; if those were `count` or more,
        nothing was done.

        The control records come first and the topic's record last: a partition that somebody sees has its log. Raises as `alter_configs`.
        """
        assert 0 < count <= PARTITIONS_MAX
        before = (await self._read_active(topic))[0].partition_count
        if before >= count:
            return before
        await create_controls(self._metadata, topic.topic_id, count, entropy=self._entropy, first=before)
        found = before

        def raised(current: Topic) -> Topic:
            nonlocal found
            found = current.partition_count
            return msgspec.structs.replace(current, partition_count=max(found, count))

        # What others have made of it since is known only if no attempt of ours may have been what did it.
        return found if await self._replace(topic, raised, f"add partitions to topic {topic.name!r}") else before

    async def alter_configs(self, topic: Topic, change: Callable[[Mapping[str, str]], dict[str, str]]) -> None:
        """Give this incarnation the configs that `change` makes of those it has: applied to the newest each time, so it must be pure and
        give the same when applied to its own result.

        Raises the ValueError that `change` raises (then nothing was changed); `NotFound` if the incarnation is gone; `Unavailable` (nothing
        changed); `OutcomeUnknown` (it may have been, or may yet be).
        """

        def altered(current: Topic) -> Topic:
            return msgspec.structs.replace(current, configs=change(current.configs))

        await self._replace(topic, altered, f"alter the configs of topic {topic.name!r}")

    async def _publish(self, topic: Topic) -> None:
        action = f"create topic {topic.name!r}"
        ops = [
            Put(keys.topic_id(topic.topic_id), encode(_TopicName(name=topic.name)), None),
            Put(keys.topic(topic.name), encode(topic), ABSENT),
        ]
        unknown: Unknown | None = None
        reason = ""
        for attempt in range(ATTEMPTS_MAX):
            outcome = await self._metadata.write(ops)
            if isinstance(outcome, Applied):
                try:
                    if await self._is_published(topic, outcome.results[-1].status, certain=unknown is None):
                        return
                except Unavailable as error:
                    if unknown is None:
                        raise
                    raise OutcomeUnknown(f"{action}: cause={error}") from error
                reason = "the name was taken and freed again"
            elif isinstance(outcome, Unknown):
                unknown = outcome
            else:
                reason = outcome.reason
            await pause(attempt, self._entropy)
        raise given_up(action, unknown=unknown, reason=reason)

    async def _is_published(self, topic: Topic, put: Status, *, certain: bool) -> bool:
        """Whether the name is ours after a put of it that was carried out; False to try again. Raises `AlreadyExists` if it is another's.

        `certain` says that no earlier attempt may have worked, or may yet.
        """
        if put is Status.OK:
            if not certain:
                await self._check_not_deleted_meanwhile(topic)
            return True
        holder, _ = await self._read_record(topic.name)
        if holder is None:
            return False
        if holder.topic_id == topic.topic_id:
            # The name is taken by ourselves: an earlier attempt worked and its reply was lost.
            return True
        if holder.state is TopicState.DELETING:
            await self._finish_deletion(holder)
            return False
        await self._withdraw(topic, certain=certain)
        raise _already_exists(topic.name)

    async def _check_not_deleted_meanwhile(self, topic: Topic) -> None:
        # An attempt with an unknown outcome may have created the topic, somebody deleted it, and this attempt put its name back over
        # the tombstones. They precede the removal of the name, so this read sees them.
        if await is_tombstoned(self._metadata, topic.partition(0)):
            await self.delete(topic)
            raise OutcomeUnknown(f"topic {topic.name!r} was created and deleted: topic_id={topic.topic_id}")

    async def _withdraw(self, topic: Topic, *, certain: bool) -> None:
        """Clean up after a lost race. Records that an attempt still on its way may yet publish stay: better garbage than a dead topic."""
        if certain:
            await write_one(self._metadata, Delete(keys.topic_id(topic.topic_id)))
            await remove_controls(self._metadata, topic.topic_id, topic.partition_count)

    async def _read_active(self, topic: Topic) -> tuple[Topic, int]:
        """The incarnation as it is now and the version of its record. Raises `NotFound`."""
        current, version = await self._read_record(topic.name)
        if current is None or current.topic_id != topic.topic_id or current.state is not TopicState.ACTIVE:
            raise NotFound(f"no such topic: name={topic.name!r} topic_id={topic.topic_id}")
        return current, version

    async def _replace(self, topic: Topic, change: Callable[[Topic], Topic], action: str) -> bool:
        """Put what `change` makes of the newest record, by CAS. Returns whether what `change` was given last was certainly not made by an
        earlier attempt of ours.
        """
        unknown: Unknown | None = None
        reason = ""
        for attempt in range(ATTEMPTS_MAX):
            try:
                current, version = await self._read_active(topic)
            except (NotFound, Unavailable) as error:
                if unknown is None:
                    raise
                raise OutcomeUnknown(f"{action}: cause={error}") from error
            try:
                changed = change(current)
            except ValueError as error:
                if unknown is None:
                    raise
                raise OutcomeUnknown(f"{action}: cause={error}") from error
            if changed == current:
                return unknown is None
            self.forget(topic.name)
            outcome = await write_one(self._metadata, Put(keys.topic(topic.name), encode(changed), version))
            if isinstance(outcome, Unknown):
                unknown = outcome
            elif isinstance(outcome, NotApplied):
                reason = outcome.reason
            elif outcome.status is Status.OK:
                self.forget(topic.name)
                return unknown is None
            else:
                reason = "its record changed each time"
            await pause(attempt, self._entropy)
        raise given_up(action, unknown=unknown, reason=reason)

    async def _mark_deleting(self, topic: Topic) -> Topic | None:
        """The topic as it is marked; None if it is gone and it was this call that may have marked it."""
        unknown: Unknown | None = None
        reason = ""
        for attempt in range(ATTEMPTS_MAX):
            current, version = await self._read_record(topic.name)
            if current is None or current.topic_id != topic.topic_id:
                if unknown is not None:
                    return None
                raise NotFound(f"no such topic: name={topic.name!r} topic_id={topic.topic_id}")
            if current.state is TopicState.DELETING:
                return current
            marked = msgspec.structs.replace(current, state=TopicState.DELETING)
            outcome = await write_one(self._metadata, Put(keys.topic(topic.name), encode(marked), version))
            if isinstance(outcome, Unknown):
                unknown = outcome
            elif isinstance(outcome, NotApplied):
                reason = outcome.reason
            elif outcome.status is Status.OK:
                return marked
            else:
                reason = "its record changed each time"
            await pause(attempt, self._entropy)
        raise given_up(f"delete topic {topic.name!r}", unknown=unknown, reason=reason)

    async def _finish_deletion(self, topic: Topic) -> None:
        """Do what is left of the deletion of a topic marked DELETING. Idempotent; any number of brokers may do it at once."""
        await tombstone_controls(self._metadata, topic.topic_id, topic.partition_count, entropy=self._entropy)
        unknown: Unknown | None = None
        reason = ""
        for attempt in range(ATTEMPTS_MAX):
            current, version = await self._read_record(topic.name)
            if current is None or current.topic_id != topic.topic_id:
                return
            outcome = await self._metadata.write([Delete(keys.topic_id(topic.topic_id)), Delete(keys.topic(topic.name), version)])
            if isinstance(outcome, Applied) and outcome.results[-1].status is Status.OK:
                return
            if isinstance(outcome, Unknown):
                unknown = outcome
            reason = outcome.reason if isinstance(outcome, Unknown | NotApplied) else "its record changed each time"
            await pause(attempt, self._entropy)
        raise given_up(f"finish the deletion of topic {topic.name!r}", unknown=unknown, reason=reason)

    async def _active(self, read: Mapping[K, Topic | None]) -> dict[K, Topic]:
        return {key: topic for key, topic in read.items() if topic is not None and await self._is_active(topic)}

    async def _is_active(self, topic: Topic) -> bool:
        """False for a topic in deletion, once an attempt to finish that was made."""
        if topic.state is TopicState.ACTIVE:
            return True
        try:
            await self._finish_deletion(topic)
        except StorageError as error:
            # The answer does not depend on it: a topic marked DELETING is gone, and whoever asks next tries again.
            _log.warning("topic_deletion_unfinished", topic=topic.name, topic_id=topic.topic_id, error=str(error))
        return False

    async def _read_record(self, name: str) -> tuple[Topic | None, int]:
        (record,) = await self._metadata.get_many([keys.topic(name)])
        return (None, ABSENT) if record is None else (_decode_topic(record), record.version)

    async def _read_names(self, names: list[str]) -> dict[str, Topic | None]:
        changes = self._changes
        records = await self._get([keys.topic(name) for name in names])
        topics = {name: None if record is None else _decode_topic(record) for name, record in zip(names, records, strict=True)}
        self._remember_all(topics.values(), changes)
        return topics

    async def _read_ids(self, topic_ids: list[TopicId]) -> dict[TopicId, Topic | None]:
        records = await self._get([keys.topic_id(topic_id) for topic_id in topic_ids])
        names = {
            topic_id: decode(_name_decoder, record.value, known=FMT, path=record.path).name
            for topic_id, record in zip(topic_ids, records, strict=True)
            if record is not None
        }
        topics = await self._read_names(list(dict.fromkeys(names.values())))
        answers = dict.fromkeys(topic_ids, None) | {topic_id: topics[name] for topic_id, name in names.items()}
        return {topic_id: topic if topic is not None and topic.topic_id == topic_id else None for topic_id, topic in answers.items()}

    async def _scan(self, _: list[None]) -> dict[None, list[Topic]]:
        changes = self._changes
        start, end = keys.topics()
        topics = [_decode_topic(record) async for record in self._metadata.range_scan(start, end)]
        self._remember_all(topics, changes)
        return {None: [topic for topic in topics if topic.state is TopicState.ACTIVE]}

    async def _get(self, wanted: list[Key]) -> list[Record | None]:
        records: list[Record | None] = []
        for start in range(0, len(wanted), _READ_KEYS_MAX):
            records += await self._metadata.get_many(wanted[start : start + _READ_KEYS_MAX])
        return records

    def _remember_all(self, topics: Iterable[Topic | None], changes: int) -> None:
        """Cache what was read, unless a hint came while it was being read: then it may be what the hint was about."""
        if changes == self._changes:
            for topic in topics:
                if topic is not None and topic.state is TopicState.ACTIVE:
                    self._remember(topic)

    def _remember(self, topic: Topic) -> None:
        self.forget(topic.name)
        while len(self._by_name) >= self._cache_topics_max:
            self.forget(next(iter(self._by_name)))
        self._by_name[topic.name] = (topic, self._clock.monotonic_s() + CACHE_AGE_S)
        self._by_id[topic.topic_id] = topic.name

    def _changed(self, path: str) -> None:
        self._changes += 1
        self.forget(path.removeprefix(keys.TOPICS_PREFIX))


def _already_exists(name: str) -> AlreadyExists:
    return AlreadyExists(f"topic {name!r} already exists")


def _decode_topic(record: Record) -> Topic:
    return decode(_topic_decoder, record.value, known=FMT, path=record.path)
