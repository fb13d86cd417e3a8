"""How topics are created, grown, altered and deleted: the order of writes and their conditions (docs/adr/0015-a-topic-id-lives-once.md).

    create          topics/{name} := CREATING if absent, under an id that is proposed in this one request
                    control records := OPEN if absent
                    topics/{name} := ACTIVE by CAS, and topic-ids/{id} := name if absent
    add partitions  topics/{name}.partitions_planned := n by CAS
                    control records := OPEN if absent
                    topics/{name}.partition_count := n by CAS
    delete          topics/{name} := DELETING by CAS
                    control records, also those that are absent := DELETED by CAS
                    topic-ids/{id} := deleted, and topics/{name} removed by its version

An id is alive while topics/{name} names it. Each id gets there by one request alone and becomes ACTIVE under the version that this request
made, so whatever arrives late finds another version, or another id, and changes nothing that anybody sees. No control record is put before
topics/{name} says that it may be there, so whoever deletes knows where one may yet arrive, and puts a tombstone in its place.
"""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from runtime.ids import Entropy
from storage.catalog.controls import create_controls, tombstone_controls
from storage.catalog.records import ATTEMPTS_MAX, encode, given_up, pause, write_one
from storage.catalog.topic_records import Topic, TopicIdRecord, TopicState, decode_topic, decode_topic_id, read_topic
from storage.errors import AlreadyExists, NotFound, OutcomeUnknown, StorageError, Unavailable
from storage.metadata import keys
from storage.metadata.port import ABSENT, Applied, Delete, MetadataStore, OpResult, Put, Status, Unknown, WriteOp
from storage.vocabulary import TopicId

LOOKS_MAX: Final = 10
"""How often a creation that another broker has begun is looked at before it is given up (pauses of up to half a second between)."""
_PARTITIONS_PER_LOOK: Final = 500
"""Look once more per this number of partitions, whose logs take their time."""


class TopicChanges:
    """No cache. Every method may be cancelled; what it began is then left half done, for whoever comes next."""

    def __init__(self, metadata: MetadataStore, *, entropy: Entropy) -> None:
        self._metadata = metadata
        self._entropy = entropy

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
            await create_controls(self._metadata, reserved.topic_id, reserved.partition_count, entropy=self._entropy)
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
            await create_controls(self._metadata, topic.topic_id, count, entropy=self._entropy, first=before)
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
            outcome = await write_one(self._metadata, Put(keys.topic(topic.name), encode(changed), version))
            if isinstance(outcome, OpResult):
                if outcome.status is Status.OK:
                    return unknown is None
                reason = "its record changed each time"
            else:
                unknown = outcome if isinstance(outcome, Unknown) else unknown
                reason = outcome.reason
            await pause(attempt, self._entropy)
        raise given_up(action, unknown=unknown, reason=reason)

    async def _reserve(self, name: str, propose: Callable[[], Topic], action: str) -> tuple[Topic, int]:
        """The topic as it was put under the name, and the version of that record. Raises `AlreadyExists`, `Unavailable`."""
        proposed: set[TopicId] = set()
        attempt = looks = 0
        watched: int | None = None
        may_be_free = True
        is_taken = False
        reason = ""
        while attempt < ATTEMPTS_MAX:
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
                if looks <= LOOKS_MAX + holder.partition_count // _PARTITIONS_PER_LOOK:
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
        raise Unavailable(f"{action}: not done in {ATTEMPTS_MAX} attempts: cause={reason!r}")

    async def _activate(self, reserved: Topic, version: int, action: str) -> Topic:
        active = msgspec.structs.replace(reserved, state=TopicState.ACTIVE)
        ops: list[WriteOp] = [
            Put(keys.topic_id(active.topic_id), encode(TopicIdRecord(name=active.name)), ABSENT),
            Put(keys.topic(active.name), encode(active), version),
        ]
        unknown: Unknown | None = None
        reason = ""
        for attempt in range(ATTEMPTS_MAX):
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
        raise given_up(action, unknown=unknown, reason=reason)

    async def _as_activated(self, active: Topic, action: str) -> Topic:
        """The reservation is gone: by an attempt of ours whose reply was lost, or because another broker gave it up."""
        reason = "it is gone"
        for attempt in range(ATTEMPTS_MAX):
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
        for attempt in range(ATTEMPTS_MAX):
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
        raise given_up(f"delete topic {topic.name!r}", unknown=unknown, reason=reason)

    async def _finish(self, topic: Topic, version: int) -> None:
        """`version` is that of the record that says DELETING: nothing but its removal comes after it."""
        await tombstone_controls(self._metadata, topic.topic_id, topic.logs_max, entropy=self._entropy)
        deleted = TopicIdRecord(name=topic.name, deleted_logs=topic.logs_max)
        ops: list[WriteOp] = [Put(keys.topic_id(topic.topic_id), encode(deleted), None), Delete(keys.topic(topic.name), version)]
        unknown: Unknown | None = None
        reason = ""
        for attempt in range(ATTEMPTS_MAX):
            outcome = await self._metadata.write(ops)
            if isinstance(outcome, Applied):
                return
            unknown = outcome if isinstance(outcome, Unknown) else unknown
            reason = outcome.reason
            await pause(attempt, self._entropy)
        raise given_up(f"finish the deletion of topic {topic.name!r}", unknown=unknown, reason=reason)


def _not_done(action: str, cause: StorageError) -> Unavailable:
    return Unavailable(f"{action}: cause={cause}")


def altered(change: Callable[[Mapping[str, str]], dict[str, str]]) -> Callable[[Topic], Topic]:
    """A change of the configs as one of the topic."""
    return lambda topic: msgspec.structs.replace(topic, configs=change(topic.configs))
