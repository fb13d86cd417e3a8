"""A topic in the metadata store, without a cache: its name, its records, and the order in which they change.

llog/topics/{name}            the incarnation that has the name now: CREATING, ACTIVE or DELETING
llog/topic-ids/{topic_id}     its name, from its activation on; after its deletion, that it is deleted and how many logs it had

`TopicChanges` creates, grows, alters and deletes topics (docs/internals/adr/0015-a-topic-id-lives-once.md). It creates the manifests of a
topic's partitions with the topic, and turns them into tombstones with it.
"""

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Final

import msgspec

from runtime.ids import Entropy
from storage.catalog.limits import DEFAULT_LIMITS, CatalogLimits
from storage.catalog.records import ATTEMPTS_MAX, decode, encode, given_up, pause, write_each, write_one
from storage.errors import AlreadyExists, NotFound, OutcomeUnknown, StorageError, Unavailable
from storage.formats.manifest import LogState, Manifest, decode_manifest
from storage.formats.manifest import encode as encode_control
from storage.metadata import keys
from storage.metadata.keys import PartitionKeys
from storage.metadata.port import ABSENT, Applied, Delete, Key, MetadataStore, NotApplied, OpResult, Put, Record, Status, Unknown, WriteOp
from storage.vocabulary import PartitionId, TopicId

TOPIC_FMT: Final = 1
_READ_KEYS_MAX: Final = 1_000
TOPIC_NAME_LENGTH_MAX: Final = 249
_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+")
_SEGMENT_BYTES: Final = "104857600"
INTERNAL: Final[Mapping[str, Mapping[str, str]]] = {
    "__consumer_offsets": {"cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": _SEGMENT_BYTES},
    "__transaction_state": {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "min.insync.replicas": "1",
        "segment.bytes": _SEGMENT_BYTES,
        "unclean.leader.election.enable": "false",
    },
    "__share_group_state": {
        "cleanup.policy": "delete",
        "compression.type": "producer",
        "min.insync.replicas": "1",
        "retention.ms": "-1",
        "segment.bytes": _SEGMENT_BYTES,
    },
}
"""Topics in which Kafka's brokers keep state, with the configs that they get when a client names them. Clients may not write to them."""
INTERNAL_PARTITIONS: Final = 50
NEVER_A_TOPIC: Final = "__cluster_metadata"
"""The log of Kafka's controllers: no client can make a topic of that name."""
_PARTITIONS_PER_LOOK: Final = 500
"""Look once more per this number of partitions, whose logs take their time."""


class TopicState(Enum):
    CREATING = "CREATING"  # the name is reserved; only who reserved it may make it ACTIVE, anybody may give it up
    ACTIVE = "ACTIVE"
    DELETING = "DELETING"  # being removed: whoever finds it may finish that


class Topic(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One incarnation of a topic. `configs` holds what was set, defaults excepted (storage.catalog.topic_configs).

    `partitions_planned`: up to which number logs may exist that are no partitions yet, since partitions are being added; 0 if none are.
    """

    fmt: int = TOPIC_FMT
    name: str
    topic_id: TopicId
    partition_count: int
    replication_factor: int
    configs: dict[str, str]
    state: TopicState = TopicState.ACTIVE
    created_at_ms: int
    partitions_planned: int = 0

    def has_partition(self, partition: int) -> bool:
        return 0 <= partition < self.partition_count

    def partition(self, partition: int) -> PartitionId:
        return PartitionId(self.topic_id, partition)

    @property
    def logs_max(self) -> int:
        """No log of this incarnation has this number or a higher one."""
        return max(self.partition_count, self.partitions_planned)


class TopicIdRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`deleted_logs`: how many logs the topic left behind when it was deleted; None while it was not."""

    fmt: int = TOPIC_FMT
    name: str
    deleted_logs: int | None = None

    @property
    def is_deleted(self) -> bool:
        return self.deleted_logs is not None


_topics = msgspec.json.Decoder(Topic)
_topic_ids = msgspec.json.Decoder(TopicIdRecord)


def decode_topic(record: Record) -> Topic:
    return decode(_topics, record.value, known=TOPIC_FMT, path=record.path)


def decode_topic_id(record: Record) -> TopicIdRecord:
    return decode(_topic_ids, record.value, known=TOPIC_FMT, path=record.path)


async def read_topic(metadata: MetadataStore, name: str) -> tuple[Topic | None, int]:
    """Whose name it is, and the version of that record. Raises `Unavailable`."""
    (record,) = await metadata.get_many([keys.topic(name)])
    return (None, ABSENT) if record is None else (decode_topic(record), record.version)


async def read_topic_ids(metadata: MetadataStore, topic_ids: Sequence[TopicId]) -> list[Record | None]:
    """Raises `Unavailable`."""
    records: list[Record | None] = []
    for start in range(0, len(topic_ids), _READ_KEYS_MAX):
        if start:
            await asyncio.sleep(0)
        records += await metadata.get_many([keys.topic_id(topic_id) for topic_id in topic_ids[start : start + _READ_KEYS_MAX]])
    return records


def validate_name(name: str) -> str | None:
    """What is wrong with `name`, in words for the client; None if it may be used."""
    if not name:
        return "the topic name is empty"
    if name in {".", ".."}:
        return "the topic name cannot be '.' or '..'"
    if len(name) > TOPIC_NAME_LENGTH_MAX:
        return f"the topic name has {len(name)} characters, at most {TOPIC_NAME_LENGTH_MAX} are allowed"
    if not _LEGAL.fullmatch(name):
        return f"the topic name {name!r} has a character other than ASCII letters, digits, '.', '_' and '-'"
    return None


def collision_key(name: str) -> str:
    """Names with equal keys are one to a metric system that writes '.' as '_': Kafka lets only one of them exist."""
    return name.replace(".", "_")


def may_collide(name: str) -> bool:
    return "." in name or "_" in name


async def create_manifests(
    metadata: MetadataStore, topic_id: TopicId, count: int, *, entropy: Entropy, first: int = 0, attempts_max: int = ATTEMPTS_MAX
) -> None:
    """Create the records of partitions `first` to `count` - 1. One that is there is left alone: it comes from an attempt that ended half
    way, from another broker that adds partitions too, or it is a tombstone, which the CAS of the topic's record will find out.

    Raises `Unavailable` or `OutcomeUnknown`. Cancelled: any of them may exist, or may yet.
    """
    value = encode_control(Manifest())
    missing = [_manifest(topic_id, partition) for partition in range(first, count)]
    unknown: Unknown | None = None
    reason = ""
    for attempt in range(attempts_max):
        outcomes = await write_each(metadata, [Put(key, value, ABSENT) for key in missing])
        remaining = []
        for key, outcome in zip(missing, outcomes, strict=True):
            if isinstance(outcome, Unknown | NotApplied):
                remaining.append(key)
                reason = outcome.reason
                unknown = outcome if isinstance(outcome, Unknown) else unknown
        if not remaining:
            return
        missing = remaining
        await pause(attempt, entropy)
    raise given_up(f"create the manifests of topic id {topic_id}", unknown=unknown, reason=reason, attempts=attempts_max)


async def tombstone_manifests(
    metadata: MetadataStore, topic_id: TopicId, count: int, *, entropy: Entropy, attempts_max: int = ATTEMPTS_MAX
) -> None:
    """Set log_state DELETED in every manifest, against writers that go on committing, and put a tombstone where there is none,
    against a creation that is still on its way.

    Idempotent. Raises `Unavailable` or `OutcomeUnknown` when some record was not reached; call again to continue.
    """
    waiting = [_manifest(topic_id, partition) for partition in range(count)]
    unknown: Unknown | None = None
    reason = ""
    for attempt in range(attempts_max):
        ops = await _tombstones(metadata, waiting)
        waiting = []
        unknown = None  # what an earlier attempt left open, the read has settled
        for op, outcome in zip(ops, await write_each(metadata, ops), strict=True):
            if isinstance(outcome, Unknown | NotApplied):
                reason = outcome.reason
                unknown = outcome if isinstance(outcome, Unknown) else unknown
            elif outcome.status is Status.OK:
                continue
            else:
                reason = "its version moved each time"
            waiting.append(op.key)
        if not waiting:
            return
        await pause(attempt, entropy)
    raise given_up(f"mark {len(waiting)} partitions of topic id {topic_id} deleted", unknown=unknown, reason=reason, attempts=attempts_max)


class TopicChanges:
    """Creates, grows, alters and deletes topics, without a cache: the order of writes and their conditions.

        create          topics/{name} := CREATING if absent, under an id that is proposed in this one request
                        manifests := OPEN if absent
                        topics/{name} := ACTIVE by CAS, and topic-ids/{id} := name if absent
        add partitions  topics/{name}.partitions_planned := n by CAS
                        manifests := OPEN if absent
                        topics/{name}.partition_count := n by CAS
        delete          topics/{name} := DELETING by CAS
                        manifests, also those that are absent := DELETED by CAS
                        topic-ids/{id} := deleted, and topics/{name} removed by its version

    An id is alive while topics/{name} names it. Each id gets there by one request alone and becomes ACTIVE under the version that this
    request made, so whatever arrives late finds another version, or another id, and changes nothing that anybody sees. No manifest
    is put before topics/{name} says that it may be there, so whoever deletes knows where one may yet arrive, and puts a tombstone in its
    place.

    Every method may be cancelled; what it began is then left half done, for whoever comes next.
    """

    def __init__(self, metadata: MetadataStore, *, entropy: Entropy, limits: CatalogLimits = DEFAULT_LIMITS) -> None:
        self._metadata = metadata
        self._entropy = entropy
        self._attempts_max, self._looks_max = limits.change_attempts_max, limits.creation_looks_max

    async def create(self, name: str, propose: Callable[[], Topic]) -> Topic:
        """`propose` makes a topic of that name, each time under a new id.

        Raises `AlreadyExists`; `Unavailable` (it was not created, and will not be); `OutcomeUnknown` (it may have been, or may yet be).
        """
        action = f"create topic {name!r}"
        try:
            reserved, version = await self._reserve(name, propose, action)
        except OutcomeUnknown as error:
            raise _not_done(action, error) from error  # the unknown is the end of another topic
        try:
            await create_manifests(
                self._metadata, reserved.topic_id, reserved.partition_count, entropy=self._entropy, attempts_max=self._attempts_max
            )
        except StorageError as error:
            await self._abandon(reserved, version)
            raise _not_done(action, error) from error  # nobody but this call could have activated it
        return await self._activate(reserved, version, action)

    async def delete(self, topic: Topic) -> None:
        """Raises `NotFound` if this incarnation was gone before; `Unavailable` or `OutcomeUnknown` when half done."""
        marked = await self._mark_deleting(topic)
        if marked is not None:
            await self._finish(*marked)

    async def finish_deletion(self, topic: Topic) -> None:
        """Do what is left of the deletion of a topic that was found marked. Idempotent; any number of brokers may do it at once."""
        holder, version = await read_topic(self._metadata, topic.name)
        if holder is not None and holder.topic_id == topic.topic_id and holder.state is TopicState.DELETING:
            await self._finish(holder, version)

    async def add_partitions(self, topic: Topic, count: int) -> int:
        """As `Topics.add_partitions`."""
        action = f"add partitions to topic {topic.name!r}"
        current, _ = await self._read_active(topic)
        before = current.partition_count
        if before >= count:
            return before

        def planned(newest: Topic) -> Topic:
            return msgspec.structs.replace(newest, partitions_planned=max(newest.partitions_planned, count))

        try:
            if current.partitions_planned < count:
                await self.replace(topic, planned, action)
            await create_manifests(
                self._metadata, topic.topic_id, count, entropy=self._entropy, first=before, attempts_max=self._attempts_max
            )
        except OutcomeUnknown as error:
            raise _not_done(action, error) from error  # logs may have been made, but a plan is no partition
        found = before

        def raised(newest: Topic) -> Topic:
            nonlocal found
            found = newest.partition_count
            return msgspec.structs.replace(newest, partition_count=max(found, count))

        # What others have made of it since is known only if no attempt of ours may have been what did it.
        return found if await self.replace(topic, raised, action) else before

    async def replace(self, topic: Topic, change: Callable[[Topic], Topic], action: str) -> bool:
        """Put what `change` makes of the newest record, by CAS. Returns whether what `change` was given last was certainly not made by an
        earlier attempt of ours. Also what changes nothing is put: only the condition shows that the record was read fresh.
        """
        unknown: Unknown | None = None
        reason = ""
        for attempt in range(self._attempts_max):
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
            outcome = await write_one(self._metadata, Put(keys.topic(topic.name), encode(changed), version))
            if isinstance(outcome, OpResult):
                if outcome.status is Status.OK:
                    return unknown is None
                reason = "its record changed each time"
            else:
                unknown = outcome if isinstance(outcome, Unknown) else unknown
                reason = outcome.reason
            await pause(attempt, self._entropy)
        raise given_up(action, unknown=unknown, reason=reason, attempts=self._attempts_max)

    async def _reserve(self, name: str, propose: Callable[[], Topic], action: str) -> tuple[Topic, int]:
        """The topic as it was put under the name, and the version of that record. Raises `AlreadyExists`, `Unavailable`."""
        proposed: set[TopicId] = set()
        attempt = looks = 0
        watched: int | None = None
        may_be_free = True
        is_taken = False
        reason = ""
        while attempt < self._attempts_max:
            if may_be_free:
                # A new id each time: an id that two requests carry could be reserved again after it was given up.
                proposal = propose()
                proposed.add(proposal.topic_id)
                outcome = await write_one(self._metadata, Put(keys.topic(name), encode(proposal), ABSENT))
                if isinstance(outcome, OpResult) and outcome.version is not None:
                    return proposal, outcome.version
                is_taken = isinstance(outcome, OpResult)
                reason = "the name was taken and freed again" if isinstance(outcome, OpResult) else outcome.reason
            holder, version = await read_topic(self._metadata, name)
            may_be_free = True
            if holder is not None and holder.state is TopicState.CREATING:
                if holder.topic_id in proposed:
                    return holder, version  # its reply was lost
                if version != watched:
                    watched, looks = version, 0
                    attempt += 1
                looks += 1
                if looks <= self._looks_max + holder.partition_count // _PARTITIONS_PER_LOOK:
                    may_be_free = False
                    reason = "another broker is creating it"
                    await pause(looks, self._entropy)
                    continue
                if (given_up_at := await self._abandon(holder, version)) is not None:
                    await self._finish(holder, given_up_at)
            elif holder is not None and holder.state is TopicState.DELETING:
                await self._finish(holder, version)
            elif holder is not None and is_taken:
                raise AlreadyExists(f"topic {name!r} already exists")
            attempt += 1
            await pause(attempt, self._entropy)
        raise Unavailable(f"{action}: not done in {self._attempts_max} attempts: cause={reason!r}")

    async def _activate(self, reserved: Topic, version: int, action: str) -> Topic:
        active = msgspec.structs.replace(reserved, state=TopicState.ACTIVE)
        ops: list[WriteOp] = [
            Put(keys.topic_id(active.topic_id), encode(TopicIdRecord(name=active.name)), ABSENT),
            Put(keys.topic(active.name), encode(active), version),
        ]
        unknown: Unknown | None = None
        reason = ""
        for attempt in range(self._attempts_max):
            outcome = await self._metadata.write(ops)
            if isinstance(outcome, Applied):
                if outcome.results[-1].status is Status.OK:
                    return active
                if unknown is None:
                    raise Unavailable(f"{action}: another broker gave it up meanwhile")
                return await self._as_activated(active, action)
            unknown = outcome if isinstance(outcome, Unknown) else unknown
            reason = outcome.reason
            await pause(attempt, self._entropy)
        if unknown is None:
            await self._abandon(reserved, version)
        raise given_up(action, unknown=unknown, reason=reason, attempts=self._attempts_max)

    async def _as_activated(self, active: Topic, action: str) -> Topic:
        """The reservation is gone: by an attempt of ours whose reply was lost, or because another broker gave it up."""
        reason = "it is gone"
        for attempt in range(self._attempts_max):
            try:
                named, holder, _ = await self._read_incarnation(active)
            except Unavailable as error:
                reason = str(error)
            else:
                if holder is not None and holder.state is TopicState.ACTIVE:
                    return active
                if (holder is not None and holder.state is TopicState.DELETING) or (named is not None and named.is_deleted):
                    break
                # Anything else is older than what is known.
            await pause(attempt, self._entropy)
        raise OutcomeUnknown(f"{action}: it was created and deleted, or given up: topic_id={active.topic_id} cause={reason!r}")

    async def _abandon(self, reserved: Topic, version: int) -> int | None:
        """Make sure, as far as one request can, that a reservation becomes no topic: then nobody has to wait for it. The version of the
        record that says so; None if that is not certain.
        """
        marked = msgspec.structs.replace(reserved, state=TopicState.DELETING)
        outcome = await write_one(self._metadata, Put(keys.topic(reserved.name), encode(marked), version))
        return outcome.version if isinstance(outcome, OpResult) else None

    async def _read_incarnation(self, topic: Topic) -> tuple[TopicIdRecord | None, Topic | None, int]:
        """What topic-ids and topics say of this incarnation, by one server, and None where they say nothing. Raises `Unavailable`."""
        named, holder = await self._metadata.get_many([keys.topic_id(topic.topic_id), keys.topic(topic.name)])
        by_id = None if named is None else decode_topic_id(named)
        if holder is None or (found := decode_topic(holder)).topic_id != topic.topic_id:
            return by_id, None, ABSENT
        return by_id, found, holder.version

    async def _read_active(self, topic: Topic) -> tuple[Topic, int]:
        """The incarnation as it is now and the version of its record. Raises `NotFound`."""
        current, version = await read_topic(self._metadata, topic.name)
        if current is None or current.topic_id != topic.topic_id or current.state is not TopicState.ACTIVE:
            raise NotFound(f"no such topic: name={topic.name!r} topic_id={topic.topic_id}")
        return current, version

    async def _mark_deleting(self, topic: Topic) -> tuple[Topic, int] | None:
        """The topic as it is marked, and the version of that; None if it is gone and it was this call that may have marked it."""
        unknown: Unknown | None = None
        reason = ""
        gone = NotFound(f"no such topic: name={topic.name!r} topic_id={topic.topic_id}")
        is_missing = False
        for attempt in range(self._attempts_max):
            named, current, version = await self._read_incarnation(topic)
            is_missing = current is None
            if named is not None and named.is_deleted:
                if unknown is None:
                    raise gone
                return None
            if current is None:
                # Long gone, or not yet there for the server that answered.
                reason = "its record is not there"
            elif current.state is TopicState.DELETING:
                return current, version
            else:
                marked = msgspec.structs.replace(current, state=TopicState.DELETING)
                outcome = await write_one(self._metadata, Put(keys.topic(topic.name), encode(marked), version))
                if isinstance(outcome, OpResult):
                    if outcome.version is not None:
                        return marked, outcome.version
                    reason = "its record changed each time"
                else:
                    unknown = outcome if isinstance(outcome, Unknown) else unknown
                    reason = outcome.reason
            await pause(attempt, self._entropy)
        if is_missing and unknown is None:
            raise gone
        raise given_up(f"delete topic {topic.name!r}", unknown=unknown, reason=reason, attempts=self._attempts_max)

    async def _finish(self, topic: Topic, version: int) -> None:
        """`version` is that of the record that says DELETING: nothing but its removal comes after it."""
        await tombstone_manifests(self._metadata, topic.topic_id, topic.logs_max, entropy=self._entropy, attempts_max=self._attempts_max)
        deleted = TopicIdRecord(name=topic.name, deleted_logs=topic.logs_max)
        ops: list[WriteOp] = [Put(keys.topic_id(topic.topic_id), encode(deleted), None), Delete(keys.topic(topic.name), version)]
        unknown: Unknown | None = None
        reason = ""
        for attempt in range(self._attempts_max):
            outcome = await self._metadata.write(ops)
            if isinstance(outcome, Applied):
                return
            unknown = outcome if isinstance(outcome, Unknown) else unknown
            reason = outcome.reason
            await pause(attempt, self._entropy)
        raise given_up(f"finish the deletion of topic {topic.name!r}", unknown=unknown, reason=reason, attempts=self._attempts_max)


def altered(change: Callable[[Mapping[str, str]], dict[str, str]]) -> Callable[[Topic], Topic]:
    """A change of the configs as one of the topic."""
    return lambda topic: msgspec.structs.replace(topic, configs=change(topic.configs))


async def _tombstones(metadata: MetadataStore, waiting: list[Key]) -> list[Put]:
    """The puts that are still needed. That a record says DELETED stays true, however old the state is that was read."""
    puts = []
    for part in _chunks(waiting):
        for key, record in zip(part, await metadata.get_many(part), strict=True):
            if record is None:
                puts.append(Put(key, encode_control(Manifest(log_state=LogState.DELETED)), ABSENT))
                continue
            manifest = decode_manifest(record.value, path=key.path)
            if manifest.log_state is not LogState.DELETED:
                tombstone = msgspec.structs.replace(manifest, log_state=LogState.DELETED)
                puts.append(Put(key, encode_control(tombstone), record.version))
    return puts


def _chunks(waiting: list[Key]) -> Iterable[list[Key]]:
    return (waiting[start : start + _READ_KEYS_MAX] for start in range(0, len(waiting), _READ_KEYS_MAX))


def _manifest(topic_id: TopicId, partition: int) -> Key:
    return PartitionKeys(PartitionId(topic_id, partition)).manifest


def _not_done(action: str, cause: StorageError) -> Unavailable:
    return Unavailable(f"{action}: cause={cause}")
