"""What a group has committed, and its record: the writes of one coordinator, none of which can follow the writes of its successor.

Whoever takes a group over raises the version of its record, and then that of each offset that is there. From then on no write of the
coordinator before it applies to any of them, whenever it arrives: every put carries the version it replaces. The first commit of a
partition has no version to carry, so it travels with a put of the group's record, and is acknowledged only if that one applied, too.

One call at a time. `Fenced` says that another coordinator has the group; after any other error the group has to be loaded again: what
became of the write is then read, not guessed. A cancelled write may still land.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Self

from broker.groups.members import Group
from broker.groups.records import group_of, record_of
from runtime.clock import Clock
from storage.catalog.groups import GroupRecord, OffsetRecord, decode_group, decode_offset, encode_group
from storage.catalog.records import encode
from storage.errors import Fenced, OutcomeUnknown, Unavailable
from storage.limits import METADATA_VALUE_BYTES_MAX, WRITE_REQUEST_BYTES_MAX, WRITE_REQUEST_OPS_MAX
from storage.metadata.keys import GroupKeys
from storage.metadata.port import ABSENT, Applied, Delete, MetadataStore, NotApplied, OpResult, Put, Record, Status, WriteOp
from storage.vocabulary import PartitionId, TopicId

LOAD_ATTEMPTS_MAX: Final = 8
TOPICS_MAX: Final = 1_000
"""Topics in which a group may have offsets: its record names them."""
_OFFSET_OVERHEAD_BYTES: Final = 512
_TOPIC_BYTES: Final = 40

assert TOPICS_MAX * _TOPIC_BYTES < METADATA_VALUE_BYTES_MAX


class Committed(NamedTuple):
    """An offset with what the client wrote beside it."""

    offset: int
    leader_epoch: int
    metadata: str
    committed_at_ms: int


class _Stored(NamedTuple):
    committed: Committed
    version: int


class StoredGroup:
    """`load` makes it."""

    def __init__(self, metadata: MetadataStore, keys: GroupKeys, *, owner: int) -> None:
        self._metadata = metadata
        self._keys = keys
        self._owner = owner
        self._version = ABSENT
        self._topics: tuple[str, ...] = ()
        self._offsets: dict[PartitionId, _Stored] = {}

    @classmethod
    async def load(cls, metadata: MetadataStore, keys: GroupKeys, *, group_id: str, owner: int, clock: Clock) -> tuple[Self, Group]:
        """Take the group over. A group that is not there is not made: an empty one that nobody has written. Raises `StorageError`."""
        stored = cls(metadata, keys, owner=owner)
        for _ in range(LOAD_ATTEMPTS_MAX):
            (record,) = await metadata.get_many([keys.group])
            if record is None:
                return stored, Group(group_id=group_id)
            found = decode_group(record)
            if await stored._take_over(found, record):
                return stored, group_of(found, now_s=clock.monotonic_s())
        raise Unavailable(f"cannot load a group: another coordinator writes it: group={group_id!r} attempts={LOAD_ATTEMPTS_MAX}")

    @property
    def is_written(self) -> bool:
        """Whether it has a record."""
        return self._version != ABSENT

    @property
    def offsets(self) -> Mapping[PartitionId, Committed]:
        """All that is committed, as far as this coordinator wrote or loaded it."""
        return {partition: stored.committed for partition, stored in self._offsets.items()}

    def offset(self, partition: PartitionId) -> Committed | None:
        stored = self._offsets.get(partition)
        return None if stored is None else stored.committed

    def has_room(self, offsets: Iterable[PartitionId]) -> bool:
        """Whether the group's record can name the topics of these, too."""
        return len({*self._topics, *(partition.topic_id for partition in offsets)}) <= TOPICS_MAX

    async def check(self) -> None:
        """Raise `Fenced` if another coordinator has the group by now."""
        (record,) = await self._metadata.get_many([self._keys.group])
        if (ABSENT if record is None else record.version) != self._version:
            raise self._fenced()

    async def save(self, group: Group) -> None:
        """Make the group durable as it is."""
        (result,) = await self._write([self._put_group(group, self._topics)])
        self._note_group(result, self._topics)

    async def commit(self, group: Group, offsets: Mapping[PartitionId, Committed]) -> None:
        """All of `offsets`, or an error; then some may be there. More than a request takes go in several."""
        for batch in _batches(offsets):
            await self._commit_batch(group, batch)

    async def delete_offsets(self, partitions: Iterable[PartitionId]) -> None:
        deletes = [Delete(self._keys.offset(partition), self._offsets[partition].version) for partition in partitions]
        for start in range(0, len(deletes), WRITE_REQUEST_OPS_MAX):
            self._check_all(await self._write(deletes[start : start + WRITE_REQUEST_OPS_MAX]))
        self._offsets = {partition: stored for partition, stored in self._offsets.items() if partition not in set(partitions)}

    async def delete(self) -> None:
        """The offsets, then the group itself: what is cut short leaves a group with fewer offsets."""
        await self.delete_offsets(list(self._offsets))
        self._check_all(await self._write([Delete(self._keys.group, self._version)]))
        self._version, self._topics = ABSENT, ()

    async def _commit_batch(self, group: Group, offsets: Mapping[PartitionId, Committed]) -> None:
        versions = {partition: stored.version for partition in offsets if (stored := self._offsets.get(partition)) is not None}
        known = set(self._topics)
        added = dict.fromkeys(partition.topic_id for partition in offsets if partition.topic_id not in known)
        topics = (*self._topics, *added)
        is_first = len(versions) < len(offsets)
        for _ in range(LOAD_ATTEMPTS_MAX):
            puts = [self._put_offset(partition, committed, versions.get(partition, ABSENT)) for partition, committed in offsets.items()]
            witness = [self._put_group(group, topics)] if is_first else []
            results = await self._write([*witness, *puts])
            if witness:
                self._note_group(results[0], topics)
            missed = []
            for (partition, committed), result in zip(offsets.items(), results[len(witness) :], strict=True):
                if result.version is not None:
                    self._offsets[partition] = _Stored(committed, result.version)
                    versions[partition] = result.version
                else:
                    missed.append(partition)
            if not missed:
                return
            if any(partition in self._offsets for partition in missed):
                raise self._fenced()
            # A coordinator that did not know yet that it was none any more left them there, and did not acknowledge them.
            records = await self._metadata.get_many([self._keys.offset(partition) for partition in missed])
            versions |= {partition: record.version for partition, record in zip(missed, records, strict=True) if record is not None}
        raise Unavailable(f"cannot commit offsets: another coordinator writes them: group={group.group_id!r}")

    async def _take_over(self, found: GroupRecord, record: Record) -> bool:
        """False: it was written meanwhile."""
        group = group_of(found, now_s=0.0)
        self._version = record.version
        try:
            (result,) = await self._write([self._put_group(group, found.topics)])
            self._note_group(result, found.topics)
            self._offsets = {}
            for topic_id in found.topics:
                if not await self._take_over_topic(TopicId(topic_id)):
                    return False
        except Fenced:
            return False
        return True

    async def _take_over_topic(self, topic_id: TopicId) -> bool:
        start, end = self._keys.offsets(topic_id)
        records = [record async for record in self._metadata.range_scan(start, end)]
        for chunk in _chunks(records):
            offsets = {}
            for record in chunk:
                value = decode_offset(record)
                partition = PartitionId(topic_id, int(record.path.rsplit("/", 1)[1]))
                committed = Committed(value.offset, value.leader_epoch, value.metadata, value.committed_at_ms)
                offsets[partition] = (committed, record.version)
            results = await self._write([self._put_offset(partition, *stored) for partition, stored in offsets.items()])
            for (partition, (committed, _)), result in zip(offsets.items(), results, strict=True):
                if result.version is None:
                    return False
                self._offsets[partition] = _Stored(committed, result.version)
        return True

    def _put_group(self, group: Group, topics: tuple[str, ...]) -> Put:
        value = encode_group(record_of(group, owner=self._owner, topics=topics))
        return Put(self._keys.group, value, self._version)

    def _put_offset(self, partition: PartitionId, committed: Committed, version: int) -> Put:
        record = OffsetRecord(
            owner=self._owner,
            offset=committed.offset,
            leader_epoch=committed.leader_epoch,
            metadata=committed.metadata,
            committed_at_ms=committed.committed_at_ms,
        )
        return Put(self._keys.offset(partition), encode(record), version)

    def _note_group(self, result: OpResult, topics: tuple[str, ...]) -> None:
        if result.version is None:
            raise self._fenced()
        self._version, self._topics = result.version, topics

    def _check_all(self, results: Sequence[OpResult]) -> None:
        if any(result.status is not Status.OK for result in results):
            raise self._fenced()

    def _fenced(self) -> Fenced:
        return Fenced(f"another coordinator has the group: key={self._keys.group.path!r} owner={self._owner}")

    async def _write(self, ops: Sequence[WriteOp]) -> tuple[OpResult, ...]:
        outcome = await self._metadata.write(ops)
        if isinstance(outcome, Applied):
            return outcome.results
        if isinstance(outcome, NotApplied):
            raise Unavailable(f"not written: key={self._keys.group.path!r} cause={outcome.reason!r}")
        raise OutcomeUnknown(f"outcome unknown: key={self._keys.group.path!r} cause={outcome.reason!r}")


def _batches(offsets: Mapping[PartitionId, Committed]) -> Iterable[dict[PartitionId, Committed]]:
    """What travels together; room is left for the record of the group."""
    batch: dict[PartitionId, Committed] = {}
    size_bytes = METADATA_VALUE_BYTES_MAX
    for partition, committed in offsets.items():
        offset_bytes = len(committed.metadata.encode()) + _OFFSET_OVERHEAD_BYTES
        if batch and (len(batch) + 1 == WRITE_REQUEST_OPS_MAX or size_bytes + offset_bytes > WRITE_REQUEST_BYTES_MAX):
            yield batch
            batch, size_bytes = {}, METADATA_VALUE_BYTES_MAX
        batch[partition] = committed
        size_bytes += offset_bytes
    if batch:
        yield batch


def _chunks(records: Sequence[Record]) -> Iterable[list[Record]]:
    chunk: list[Record] = []
    size_bytes = 0
    for record in records:
        record_bytes = len(record.value) + _OFFSET_OVERHEAD_BYTES
        if chunk and (len(chunk) == WRITE_REQUEST_OPS_MAX or size_bytes + record_bytes > WRITE_REQUEST_BYTES_MAX):
            yield chunk
            chunk, size_bytes = [], 0
        chunk.append(record)
        size_bytes += record_bytes
    if chunk:
        yield chunk
