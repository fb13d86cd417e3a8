"""Groups as they are stored: what one has committed, its record, and the groups of a slot as they are found.

Whoever takes a group over raises the version of its record, and then that of each offset that is there. From then on no write of the
coordinator before it applies to any of them, whenever it arrives: every put carries the version it replaces. The first commit of a
partition has no version to carry, so a place is made for it first: a record that says `NOTHING`, put with the group's record and of use
only if that one applied, too. What arrives late then is a place, which shows nothing, or carries the version of one that is there no more:

    coordinator 1           [group, place]            [offset at the place's version] ··········> late: not applied
    coordinator 2                           [group] [place deleted]           answers that there is none

Whoever takes a group over deletes the places that it finds.

A group is kept as its generation and its members. Heartbeats and requests that wait are in memory only. Groups of some slots are read shard
by shard: one that is silent holds up its own groups and no others.
"""

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Final, NamedTuple, Self, TypeVar

import msgspec
import structlog

from broker.cluster.leadership import slot_of
from broker.groups.memory import Loading, offset_bytes
from broker.groups.state import NOTHING, Committed, Group, GroupState, Member, Protocol
from broker.limits import DEFAULT_GROUP_LIMITS, GroupLimits
from runtime.clock import Clock
from storage.catalog.groups import (
    PLAIN_BYTES_MAX,
    GroupHead,
    GroupRecord,
    MemberRecord,
    OffsetRecord,
    TopicsRecord,
    decode_group,
    decode_head,
    decode_offset,
    decode_topics,
    encode_group,
    topics_key,
)
from storage.catalog.records import encode
from storage.errors import Corrupt, Fenced, IncompatibleFormat, OutcomeUnknown, StorageError, Unavailable
from storage.limits import METADATA_VALUE_BYTES_MAX, WRITE_REQUEST_BYTES_MAX
from storage.metadata import keys
from storage.metadata.keys import GroupKeys
from storage.metadata.port import ABSENT, Applied, Delete, Key, MetadataStore, NotApplied, OpResult, Put, Record, Status, WriteOp
from storage.vocabulary import PartitionId, TopicId

LOAD_ATTEMPTS_MAX: Final = 8
SCANS_TOGETHER_MAX: Final = 16
_OFFSET_BYTES: Final = 256
"""The largest record of an offset, without the client's metadata."""
_KEY_BYTES: Final = 64
"""What follows the name of the group in the key of an offset, at most."""
_TOPIC_BYTES: Final = 40

assert DEFAULT_GROUP_LIMITS.topics_named_max * _TOPIC_BYTES < PLAIN_BYTES_MAX
assert DEFAULT_GROUP_LIMITS.topics_page_max * _TOPIC_BYTES < METADATA_VALUE_BYTES_MAX

PUT_AT_ONCE: Final = 250
"""In a request that commits more, the first offsets of partitions take turns of the event loop in each of their two writes."""

N = TypeVar("N", PartitionId, int)

_RECORDS_PER_SIGN: Final = 256

log = structlog.get_logger("groups")


def record_of(group: Group, *, owner: int, topics: tuple[str, ...], topic_pages: int, has_expiries: bool) -> GroupRecord:
    return GroupRecord(
        group=group.group_id,
        owner=owner,
        state=group.state.value,
        protocol_type=group.protocol_type,
        generation=group.generation,
        protocol=group.protocol,
        leader=group.leader,
        topics=topics,
        topic_pages=topic_pages,
        empty_since_ms=group.empty_since_ms,
        has_expiries=has_expiries,
        members=tuple(
            MemberRecord(
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                session_timeout_ms=round(member.session_timeout_s * 1_000),
                rebalance_timeout_ms=round(member.rebalance_timeout_s * 1_000),
                protocols=member.protocols,
                assignment=member.assignment,
            )
            for member in group.members.values()
        ),
    )


def group_of(record: GroupRecord, *, now_s: float, now_ms: int) -> Group:
    """As its next coordinator goes on with it: every member has a whole session timeout, and who was to join or sync as long as ever.

    A group that had members and is kept without them has been empty since now. Raises `Corrupt` of a state that there is not.
    """
    try:
        state = GroupState(record.state)
    except ValueError as error:
        raise Corrupt(f"unknown state of a group: group={record.group!r} state={record.state!r}") from error
    members = {
        one.member_id: Member(
            member_id=one.member_id,
            instance_id=one.instance_id,
            client_id=one.client_id,
            client_host=one.client_host,
            session_timeout_s=one.session_timeout_ms / 1_000,
            rebalance_timeout_s=one.rebalance_timeout_ms / 1_000,
            protocols=tuple(Protocol(*protocol) for protocol in one.protocols),
            assignment=one.assignment,
            expires_s=now_s + one.session_timeout_ms / 1_000,
        )
        for one in record.members
    }
    group = Group(group_id=record.group, protocol_type=record.protocol_type, generation=record.generation)
    if not members:
        return replace(group, empty_since_ms=record.empty_since_ms if state is GroupState.EMPTY else now_ms)
    due_s = now_s + max(member.rebalance_timeout_s for member in members.values())
    return replace(
        group,
        state=state,
        protocol=record.protocol,
        leader=record.leader,
        members=members,
        due_s=None if state is GroupState.STABLE else due_s,
        unsynced=frozenset() if state is GroupState.STABLE else frozenset(members),
    )


class _Stored(NamedTuple):
    committed: Committed
    version: int


class StoredGroup:
    """What a group has committed, and its record: the writes of one coordinator, none of which can follow the writes of its successor.

    `load` makes it. One call at a time. `Fenced` says that another coordinator has the group; after any other error the group has to be
    loaded again: what became of the write is then read, not guessed. A cancelled write may still land.
    """

    def __init__(self, metadata: MetadataStore, keys: GroupKeys, *, owner: int, limits: GroupLimits = DEFAULT_GROUP_LIMITS) -> None:
        self._limits = limits
        self._metadata = metadata
        self._keys = keys
        self._owner = owner
        self._key_bytes = len(keys.root) + _KEY_BYTES
        """The largest key of an offset: each contains the group's name."""
        self._version = ABSENT
        self._offsets: dict[PartitionId, _Stored] = {}
        self.held_bytes = 0
        """The size of its offsets in memory."""
        self._per_topic: Counter[TopicId] = Counter()
        self._listed: list[TopicId] = []
        """Topics that are named as those that may have offsets, all that have some among them."""
        self._pages: list[int] = []
        """The versions of the records that name what the group's own does not."""
        self._has_expiries = False
        self._is_given_up = False

    @classmethod
    async def load(
        cls,
        metadata: MetadataStore,
        keys: GroupKeys,
        *,
        group_id: str,
        owner: int,
        clock: Clock,
        loading: Loading | None = None,
        limits: GroupLimits = DEFAULT_GROUP_LIMITS,
    ) -> tuple[Self, Group]:
        """Take the group over. A group that is not there is not made: an empty one that nobody has written. Raises `StorageError`.

        `loading` counts what is read.
        """
        stored = cls(metadata, keys, owner=owner, limits=limits)
        for _ in range(LOAD_ATTEMPTS_MAX):
            (record,) = await metadata.get_many([keys.group])
            if record is None:
                return stored, Group(group_id=group_id)
            found = decode_group(record)
            group = group_of(found, now_s=clock.monotonic_s(), now_ms=clock.now_ms())
            if loading is not None:
                loading.begin_again()
            if await stored._take_over(group, found, record, loading):
                return stored, group
        raise Unavailable(f"cannot load a group: another coordinator writes it: group={group_id!r} attempts={LOAD_ATTEMPTS_MAX}")

    @property
    def is_written(self) -> bool:
        """Whether it has a record."""
        return self._version != ABSENT

    @property
    def offsets(self) -> Mapping[PartitionId, Committed]:
        """All that is committed, as far as this coordinator wrote or loaded it."""
        return {partition: stored.committed for partition, stored in self._offsets.items()}

    @property
    def partitions(self) -> Collection[PartitionId]:
        """The partitions in which it has offsets."""
        return self._offsets.keys()

    def offset(self, partition: PartitionId) -> Committed | None:
        stored = self._offsets.get(partition)
        return None if stored is None else stored.committed

    @property
    def offset_count(self) -> int:
        return len(self._offsets)

    @property
    def topic_ids(self) -> Collection[TopicId]:
        """The ids of the topics in which it has offsets."""
        return self._per_topic.keys()

    def has_room(self, offsets: Collection[PartitionId], *, beside: Collection[PartitionId] = ()) -> bool:
        """Whether there is room for these, with those that it has and those to commit `beside` them."""
        count = len(self._offsets)
        if count + len(beside) + len(offsets) <= self._limits.offsets_max:
            return True
        return count + sum(partition not in self._offsets for partition in {*beside, *offsets}) <= self._limits.offsets_max

    def growth_bytes(self, offsets: Mapping[PartitionId, Committed]) -> int:
        """By how much more these would hold."""
        return sum(self._growth_bytes(partition, committed) for partition, committed in offsets.items())

    def _growth_bytes(self, partition: PartitionId, committed: Committed) -> int:
        before = self._offsets.get(partition)
        return offset_bytes(committed) - (0 if before is None else offset_bytes(before.committed))

    def give_up(self) -> None:
        """Begin no more writes: a call under way raises `Fenced` instead of its next one."""
        self._is_given_up = True

    async def check(self) -> None:
        """Raise `Fenced` if another coordinator has the group by now."""
        (record,) = await self._metadata.get_many([self._keys.group])
        if (ABSENT if record is None else record.version) != self._version:
            raise self._fenced()

    async def save(self, group: Group) -> None:
        """Make the group durable as it is."""
        (result,) = await self._write([self._put_group(group)])
        self._note_group(result)

    async def commit(self, group: Group, offsets: Mapping[PartitionId, Committed]) -> None:
        """All of `offsets`, or an error; then some may be there. More than a request takes go in several."""
        for number, batch in enumerate(_batches(offsets, key_bytes=self._key_bytes, ops_max=self._limits.write_request_ops_max)):
            if number:
                await asyncio.sleep(0)
            await self._commit_batch(group, batch)

    async def delete_offsets(self, group: Group, partitions: Sequence[PartitionId]) -> None:
        """With a put of the group, which names the topics that are left."""
        together_max = min(
            self._limits.write_request_ops_max - 1, (WRITE_REQUEST_BYTES_MAX - METADATA_VALUE_BYTES_MAX) // self._key_bytes - 1
        )
        for start in range(0, len(partitions), together_max):
            if start:
                await asyncio.sleep(0)
            chunk = partitions[start : start + together_max]
            deletes = [Delete(self._keys.offset(partition), self._offsets[partition].version) for partition in chunk]
            going = Counter(partition.topic_id for partition in chunk)
            ended = {topic_id for topic_id, count in going.items() if count == self._per_topic[topic_id]}
            if not self._pages:
                self._listed = [topic_id for topic_id in self._listed if topic_id in self._per_topic and topic_id not in ended]
            result, *deleted = await self._write([self._put_group(group), *deletes])
            self._note_group(result)
            self._check_all(deleted)
            for partition in chunk:
                self.held_bytes -= offset_bytes(self._offsets.pop(partition).committed)
            self._per_topic.subtract(going)
            for topic_id in ended:
                del self._per_topic[topic_id]

    async def delete(self, group: Group) -> None:
        """The offsets, then the group itself: what is cut short leaves a group with fewer offsets."""
        await self.delete_offsets(group, list(self._offsets))
        pages = [Delete(topics_key(self._keys, page), version) for page, version in enumerate(self._pages)]
        self._check_all(await self._write([*pages, Delete(self._keys.group, self._version)]))
        self._version, self._listed, self._pages = ABSENT, [], []

    async def _commit_batch(self, group: Group, offsets: Mapping[PartitionId, Committed]) -> None:
        versions = {partition: stored.version for partition in offsets if (stored := self._offsets.get(partition)) is not None}
        await self._list(group, (partition.topic_id for partition in offsets if partition not in versions))
        has_new_expiries = not self._has_expiries and any(committed.expires_at_ms is not None for committed in offsets.values())
        self._has_expiries |= has_new_expiries
        sentinel = [self._put_group(group)] if has_new_expiries and len(versions) == len(offsets) else []
        if len(versions) < len(offsets):
            versions |= await self._make_places(group, [partition for partition in offsets if partition not in versions])
            if len(offsets) > PUT_AT_ONCE:
                await asyncio.sleep(0)
        puts = [self._put_offset(partition, committed, versions[partition]) for partition, committed in offsets.items()]
        results = await self._write([*sentinel, *puts])
        if sentinel:
            self._note_group(results[0])
        self._note_offsets(offsets, results[len(sentinel) :])

    async def _make_places(self, group: Group, partitions: Sequence[PartitionId]) -> dict[PartitionId, int]:
        """The versions under which the first commits of these may be put: the next coordinator will meet whatever has them."""
        if not partitions:
            return {}
        places = [self._put_offset(partition, NOTHING, ABSENT) for partition in partitions]
        sentinel, *results = await self._write([self._put_group(group), *places])
        self._note_group(sentinel)
        versions = {partition: result.version for partition, result in zip(partitions, results, strict=True) if result.version is not None}
        # A coordinator that did not know yet that it was none any more left the others there, and did not acknowledge them.
        left = [partition for partition in partitions if partition not in versions]
        if left:
            versions |= await self._left_there(group, [self._keys.offset(partition) for partition in left], left)
        if len(versions) < len(partitions):
            raise Unavailable(f"cannot commit offsets: what was there is not found: group={group.group_id!r} partitions={left[:5]}")
        return versions

    async def _left_there(self, group: Group, stored: Sequence[Key], names: Sequence[N], *, topic_pages: int | None = None) -> dict[N, int]:
        """The versions of what coordinators before this one left there; not of what those after it put there since."""
        versions = await self._versions(stored, names)
        (sentinel,) = await self._write([self._put_group(group, topic_pages=topic_pages)])
        self._note_group(sentinel)
        return versions

    async def _list(self, group: Group, topic_ids: Iterable[TopicId]) -> None:
        """Name topics before there are offsets in them: in the group's record, put with the offsets, or beside it when it is full."""
        fresh = dict.fromkeys(topic_id for topic_id in topic_ids if topic_id not in self._per_topic)
        if fresh and len(self._listed) > 2 * (self._limits.topics_named_max + len(self._per_topic)):
            await self._list_anew(group, page_count=self._page_count())
        known = set(self._listed) if fresh else ()
        added = [topic_id for topic_id in fresh if topic_id not in known]
        if not added:
            return
        first = max(0, len(self._listed) - self._limits.topics_named_max) // self._limits.topics_page_max
        self._listed += added
        for page in range(first, self._page_count()):
            await self._put_page(group, page)

    async def _put_page(self, group: Group, page: int, *, page_count_min: int = 0) -> None:
        """With a put of the group, as with the first commit of a partition: only who has the group may say what is in it."""
        version = self._pages[page] if page < len(self._pages) else ABSENT
        for _ in range(LOAD_ATTEMPTS_MAX):
            start = self._limits.topics_named_max + page * self._limits.topics_page_max
            topics = tuple(self._listed[start : start + self._limits.topics_page_max])
            value = encode(TopicsRecord(owner=self._owner, topics=topics))
            topic_pages = max(self._page_count(), page_count_min)
            put_group = self._put_group(group, topic_pages=topic_pages)
            sentinel, result = await self._write([put_group, Put(topics_key(self._keys, page), value, version)])
            self._note_group(sentinel)
            if result.version is not None:
                self._pages[page:] = [result.version, *self._pages[page + 1 :]]
                return
            if page < len(self._pages):
                raise self._fenced()
            left = await self._left_there(group, [topics_key(self._keys, page)], [page], topic_pages=topic_pages)
            version = left.get(page, ABSENT)
        raise Unavailable(f"cannot name topics: another coordinator does: group={group.group_id!r}")

    async def _versions(self, stored_keys: Sequence[Key], names: Sequence[N]) -> dict[N, int]:
        """The versions of the records that exist."""
        records = await self._metadata.get_many(stored_keys)
        return {name: record.version for name, record in zip(names, records, strict=True) if record is not None}

    async def _take_over(self, group: Group, found: GroupRecord, record: Record, loading: Loading | None) -> bool:
        """False: it was written meanwhile."""
        self._version, self._has_expiries = record.version, found.has_expiries
        self._offsets, self._per_topic, self._pages, self.held_bytes = {}, Counter(), [], 0
        self._listed = [TopicId(topic_id) for topic_id in found.topics]
        try:
            (result,) = await self._write([self._put_group(group, topic_pages=found.topic_pages)])
            self._note_group(result)
            # Read after that: nobody else may add to them now and have it count.
            beside = await topics_beside(self._metadata, self._keys, found.topic_pages)
            # What was cut short while it listed topics again may have left some at two places.
            self._listed = list(dict.fromkeys([*self._listed, *beside]))
            stored = await self._stored_offsets(self._listed, loading)
            for chunk in _chunks(stored, key_bytes=self._key_bytes, ops_max=self._limits.write_request_ops_max):
                await self._take_over_offsets(chunk)
            await self._list_anew(group, page_count=found.topic_pages)
        except Fenced:
            return False
        return True

    async def _list_anew(self, group: Group, *, page_count: int) -> None:
        """Give each existing page a new version; drop the names of topics without offsets.

        Topics move to earlier places, each written there before it is removed from its old place: a move cut short in between is read
        whole, and so is a page that we no longer own when such a write arrives late. Until all are there, the group's record
        counts the pages that it counted before.
        """
        before, self._listed = self._listed, [topic_id for topic_id in self._listed if topic_id in self._per_topic]
        stored = [topics_key(self._keys, page) for page in range(page_count)]
        versions = await self._left_there(group, stored, range(page_count), topic_pages=page_count) if stored else {}
        self._pages = [versions[page] for page in takewhile(versions.__contains__, range(self._page_count()))]
        for page in range(self._page_count()):
            await self._put_page(group, page, page_count_min=page_count)
        if self._listed != before or self._page_count() < page_count:
            surplus = [Delete(stored[page], version) for page, version in versions.items() if page >= self._page_count()]
            result, *deleted = await self._write([self._put_group(group), *surplus])
            self._note_group(result)
            self._check_all(deleted)

    async def _stored_offsets(self, topic_ids: Sequence[TopicId], loading: Loading | None) -> list[Record]:
        found: list[Record] = []
        for start in range(0, len(topic_ids), SCANS_TOGETHER_MAX):
            together = topic_ids[start : start + SCANS_TOGETHER_MAX]
            try:
                async with asyncio.TaskGroup() as tasks:
                    scans = [tasks.create_task(offsets_of(self._metadata, self._keys, topic_id, loading)) for topic_id in together]
            except* StorageError as failed:
                failures = failed.exceptions
            else:
                failures = ()
            if failures:
                raise failures[0]
            for scan in scans:
                found += scan.result()
        return found

    async def _take_over_offsets(self, records: Sequence[Record]) -> None:
        """Give each a new version. Raises `Fenced`: one was written meanwhile."""
        found = [(partition_of(record.path), committed_of(record), record.version) for record in records]
        offsets = [stored for stored in found if stored[1] != NOTHING]
        puts = [self._put_offset(*stored) for stored in offsets]
        places = [Delete(self._keys.offset(partition), version) for partition, committed, version in found if committed == NOTHING]
        results = await self._write([*puts, *places])
        self._check_all(results[len(puts) :])
        self._note_offsets({partition: committed for partition, committed, _ in offsets}, results[: len(puts)])

    def _page_count(self) -> int:
        return -(-max(0, len(self._listed) - self._limits.topics_named_max) // self._limits.topics_page_max)

    def _put_group(self, group: Group, *, topic_pages: int | None = None) -> Put:
        record = record_of(
            group,
            owner=self._owner,
            topics=tuple(self._listed[: self._limits.topics_named_max]),
            topic_pages=self._page_count() if topic_pages is None else topic_pages,
            has_expiries=self._has_expiries,
        )
        return Put(self._keys.group, encode_group(record), self._version)

    def _put_offset(self, partition: PartitionId, committed: Committed, version: int) -> Put:
        record = OffsetRecord(
            owner=self._owner,
            offset=committed.offset,
            leader_epoch=committed.leader_epoch,
            metadata=committed.metadata,
            committed_at_ms=committed.committed_at_ms,
            expires_at_ms=committed.expires_at_ms,
        )
        return Put(self._keys.offset(partition), encode(record), version)

    def _note_group(self, result: OpResult) -> None:
        if result.version is None:
            raise self._fenced()
        self._version = result.version

    def _note_offsets(self, offsets: Mapping[PartitionId, Committed], results: Sequence[OpResult]) -> None:
        for (partition, committed), result in zip(offsets.items(), results, strict=True):
            if result.version is None:
                raise self._fenced()
            self.held_bytes += self._growth_bytes(partition, committed)
            if partition not in self._offsets:
                self._per_topic[partition.topic_id] += 1
            self._offsets[partition] = _Stored(committed, result.version)

    def _check_all(self, results: Sequence[OpResult]) -> None:
        if any(result.status is not Status.OK for result in results):
            raise self._fenced()

    def _fenced(self) -> Fenced:
        return Fenced(f"another coordinator has the group: key={self._keys.group.path!r} owner={self._owner}")

    async def _write(self, ops: Sequence[WriteOp]) -> tuple[OpResult, ...]:
        if self._is_given_up:
            raise self._fenced()
        outcome = await self._metadata.write(ops)
        if isinstance(outcome, Applied):
            return outcome.results
        if isinstance(outcome, NotApplied):
            raise Unavailable(f"not written: key={self._keys.group.path!r} cause={outcome.reason!r}")
        raise OutcomeUnknown(f"outcome unknown: key={self._keys.group.path!r} cause={outcome.reason!r}")


async def topics_beside(metadata: MetadataStore, group_keys: GroupKeys, page_count: int) -> list[TopicId]:
    """The topics of a group that its own record does not name. Raises `StorageError`."""
    if not page_count:
        return []
    records = await metadata.get_many([topics_key(group_keys, page) for page in range(page_count)])
    return [TopicId(topic_id) for record in records if record is not None for topic_id in decode_topics(record).topics]


async def offsets_of(metadata: MetadataStore, group_keys: GroupKeys, topic_id: TopicId, loading: Loading | None = None) -> list[Record]:
    """The offsets of a group in one topic, as they are stored, counted by `loading` as they come. Raises `StorageError`."""
    found = []
    async for record in metadata.range_scan(*group_keys.offsets(topic_id)):
        if loading is not None:
            loading.add(record)
        found.append(record)
    return found


def partition_of(path: str) -> PartitionId:
    """Whose offset is at that key."""
    _, topic_id, partition = path.rsplit("/", 2)
    return PartitionId(TopicId(topic_id), int(partition))


def committed_of(record: Record) -> Committed:
    value = decode_offset(record)
    return Committed(value.offset, value.leader_epoch, value.metadata, value.committed_at_ms, value.expires_at_ms)


def _batches(offsets: Mapping[PartitionId, Committed], *, key_bytes: int, ops_max: int) -> Iterable[dict[PartitionId, Committed]]:
    """What travels together; room is left for the record of the group."""
    batch: dict[PartitionId, Committed] = {}
    first_bytes = size_bytes = METADATA_VALUE_BYTES_MAX + key_bytes
    for partition, committed in offsets.items():
        # As it is written: a character may take six bytes.
        offset_bytes = len(msgspec.json.encode(committed.metadata)) + _OFFSET_BYTES + key_bytes
        if batch and (len(batch) + 1 == ops_max or size_bytes + offset_bytes > WRITE_REQUEST_BYTES_MAX):
            yield batch
            batch, size_bytes = {}, first_bytes
        batch[partition] = committed
        size_bytes += offset_bytes
    if batch:
        yield batch


def _chunks(records: Sequence[Record], *, key_bytes: int, ops_max: int) -> Iterable[list[Record]]:
    chunk: list[Record] = []
    size_bytes = 0
    for record in records:
        record_bytes = len(record.value) + _OFFSET_BYTES + key_bytes  # the owner may have got longer
        if chunk and (len(chunk) == ops_max or size_bytes + record_bytes > WRITE_REQUEST_BYTES_MAX):
            yield chunk
            chunk, size_bytes = [], 0
        chunk.append(record)
        size_bytes += record_bytes
    if chunk:
        yield chunk


async def read_heads(metadata: MetadataStore, shard_slots: Sequence[int], *, silent_after_s: float) -> list[tuple[GroupHead, int]]:
    """The groups of these slots, which are of one shard, with the versions of their records; without those that this release cannot read.

    Raises `Unavailable`, after `silent_after_s` without a record at the latest. The scan may take longer than that, but has to go on.
    """
    start, end = keys.groups(shard_slots[0])
    loop = asyncio.get_running_loop()
    heads: list[tuple[GroupHead, int]] = []
    scanned = 0
    try:
        async with asyncio.timeout(silent_after_s) as timeout:
            async for record in metadata.range_scan(start, end):
                scanned += 1
                if scanned % _RECORDS_PER_SIGN == 0:
                    timeout.reschedule(loop.time() + silent_after_s)
                if slot_of(keys.group_of(record.path)) in shard_slots and (head := _readable_head(record)) is not None:
                    heads.append((head, record.version))
    except TimeoutError:
        raise Unavailable(f"metadata did not answer: op=range_scan groups_of_slot={shard_slots[0]} after_s={silent_after_s}") from None
    return heads


async def read_offsets(
    metadata: MetadataStore, head: GroupHead, *, offsets_max: int, silent_after_s: float
) -> dict[PartitionId, int] | None:
    """The offsets that a group has committed, read without taking it over; None of a group with more than that many, or that this release
    cannot read. A commit under way may be in it or not. Raises `Unavailable` as `read_heads` does.
    """
    group_keys = GroupKeys(head.group, slot_of(head.group))
    committed: dict[PartitionId, int] = {}
    try:
        async with asyncio.timeout(silent_after_s) as timeout:
            named = [TopicId(topic_id) for topic_id in head.topics]
            for topic_id in dict.fromkeys([*named, *await topics_beside(metadata, group_keys, head.topic_pages)]):
                for record in await offsets_of(metadata, group_keys, topic_id):
                    if (found := committed_of(record)) != NOTHING:
                        committed[partition_of(record.path)] = found.offset
                if len(committed) > offsets_max:
                    return None
                timeout.reschedule(asyncio.get_running_loop().time() + silent_after_s)
    except TimeoutError:
        raise Unavailable(f"metadata did not answer: op=range_scan offsets_of={head.group!r} after_s={silent_after_s}") from None
    except (Corrupt, IncompatibleFormat) as error:
        log.warning("group_not_readable", group=head.group, cause=str(error))
        return None
    return committed


def _readable_head(record: Record) -> GroupHead | None:
    """None of a record that this release cannot read: the other groups are not to suffer from that."""
    try:
        return decode_head(record)
    except (Corrupt, IncompatibleFormat) as error:
        log.warning("group_not_readable", cause=str(error))
        return None
