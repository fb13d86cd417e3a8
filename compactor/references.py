"""Finds the objects that a partition refers to: by a cheap look, and by one that misses nothing (docs/internals/design/upkeep.md).

A collector deletes what the second does not show. Its order is that of the model (Forebay-collect and its variants):

    [sentinel beside the keys] + [CAS manifest: revoked_floor]  →  a list of the keys that has the sentinel  →  their values, sentinel first

From the CAS on no commit takes an object up to the floor. What was committed before is in the record that the CAS left, or in a key by
then; an entry that moves from the record to a key afterwards was seen in the record.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Collection, Hashable, Sequence
from typing import Final, TypeVar

import msgspec

from compactor.limits import DEFAULT_LIMITS, CompactorLimits
from compactor.records import Records
from runtime.ids import Entropy, IdSource
from storage.catalog.topic import decode_topic_id
from storage.errors import Unavailable
from storage.formats.manifest import Entry, LogState, Manifest, decode_attempt, decode_chunk, decode_manifest, decode_segment
from storage.metadata import keys as metadata_keys
from storage.metadata.keys import PartitionKeys
from storage.metadata.port import ABSENT, Applied, Delete, Key, MetadataStore, Put, Record, Session, WriteOp, children_of
from storage.metadata.version_watch import read_certainly
from storage.vocabulary import ObjectId, PartitionId

VALUES_PER_READ: Final = 200
_VALUE: Final = b"{}"

T = TypeVar("T", bound=Hashable)


class _AsItIs:
    """A partition whose floor is high enough already."""


def live_from(manifest: Manifest) -> int:
    """Entries that end below this mean nothing."""
    return max(manifest.compaction_cursor, manifest.log_start)


def wal_references(manifest: Manifest) -> set[ObjectId]:
    """WAL objects that the record itself refers to."""
    return _objects_of(manifest.pending, manifest)


def segment_references(manifest: Manifest) -> set[ObjectId]:
    """Segments that the record itself refers to."""
    named = (manifest.segment, manifest.rewritten)
    return {segment.object_id for segment in named if segment is not None and segment.last >= manifest.log_start}


def chunk_references(record: Record, manifest: Manifest) -> set[ObjectId]:
    return _objects_of(decode_chunk(record.value, path=record.path).entries, manifest)


def _objects_of(entries: Sequence[Entry], manifest: Manifest) -> set[ObjectId]:
    return {entry.object_id for entry in entries if entry.last >= live_from(manifest) and not entry.is_inline}


def _entries_of(entries: Sequence[Entry], manifest: Manifest, object_ids: Collection[ObjectId]) -> set[Entry]:
    """Live entries that name one of these objects."""
    return {entry for entry in entries if entry.last >= live_from(manifest) and entry.object_id in object_ids and not entry.is_inline}


class References:
    """Asked by one collector. Errors: `Corrupt`, `IncompatibleFormat` (a record cannot be read: nothing may be concluded), `Unavailable`,
    `OutcomeUnknown`.
    """

    def __init__(
        self,
        metadata: MetadataStore,
        *,
        session: Session,
        ids: IdSource,
        entropy: Entropy = os.urandom,
        limits: CompactorLimits = DEFAULT_LIMITS,
    ) -> None:
        self._records = Records(metadata, entropy=entropy, limits=limits)
        self._chunks_per_turn = limits.chunks_per_turn
        self._session = session
        self.ids = ids

    async def wal_seen(self, partition: PartitionId, manifest: Manifest) -> set[ObjectId]:
        """A look without a proof: what it shows was referred to, what it does not show may be."""
        found = wal_references(manifest)
        async for record in self._scan_index(PartitionKeys(partition), manifest):
            found |= chunk_references(record, manifest)
        return found

    async def entries_seen(self, partition: PartitionId, object_ids: Collection[ObjectId]) -> set[Entry]:
        """The live entries that name one of these WAL objects, by a look without a proof."""
        manifest = await read_manifest(self._records, partition)
        if manifest is None or manifest.log_state is LogState.DELETED:
            return set()
        found = _entries_of(manifest.pending, manifest, object_ids)
        async for record in self._scan_index(PartitionKeys(partition), manifest):
            found |= _entries_of(decode_chunk(record.value, path=record.path).entries, manifest, object_ids)
        return found

    async def segments_seen(self, partition: PartitionId, manifest: Manifest) -> set[ObjectId]:
        """As `wal_seen`."""
        found = segment_references(manifest)
        keys = PartitionKeys(partition)
        async for record in self._scan(keys.segment(manifest.log_start), children_of(keys.segments_prefix.removesuffix("/"))[1]):
            found.add(decode_segment(record.value, path=record.path).object_id)
        return found | await self._attempted(keys)

    async def revoke_wal(self, partition: PartitionId, floor: ObjectId) -> set[ObjectId] | None:
        """Let no object up to `floor` be committed any more, then look for certain. None if the partition certainly has no records."""
        keys = PartitionKeys(partition)
        return await self._revoke(partition, keys, floor, keys.index_sentinel, keys.index_prefix, wal_references, chunk_references)

    async def revoke_segments(self, partition: PartitionId, floor: ObjectId, *, is_committed: bool = False) -> set[ObjectId] | None:
        """As `revoke_wal`, for segments; with that of a compaction under way unless `is_committed`."""
        keys = PartitionKeys(partition)

        def of_record(record: Record, manifest: Manifest) -> set[ObjectId]:
            end = int(record.path.rsplit("/", 1)[1])
            return {decode_segment(record.value, path=record.path).object_id} if end >= manifest.log_start else set()

        found = await self._revoke(partition, keys, floor, keys.segment_sentinel, keys.segments_prefix, segment_references, of_record)
        return found if found is None or is_committed else found | await self._attempted(keys)

    async def live_wal(self, partition: PartitionId) -> set[ObjectId] | None:
        """As `revoke_wal`, and nothing is revoked: WAL objects that live entries name for certain."""
        return await self.revoke_wal(partition, ObjectId(""))

    async def live_entries(self, partition: PartitionId, object_id: ObjectId) -> set[Entry] | None:
        """The same as entries, of one WAL object."""
        keys, wanted = PartitionKeys(partition), (object_id,)

        def of_manifest(manifest: Manifest) -> set[Entry]:
            return _entries_of(manifest.pending, manifest, wanted)

        def of_record(record: Record, manifest: Manifest) -> set[Entry]:
            return _entries_of(decode_chunk(record.value, path=record.path).entries, manifest, wanted)

        return await self._revoke(partition, keys, ObjectId(""), keys.index_sentinel, keys.index_prefix, of_manifest, of_record)

    async def live_segments(self, partition: PartitionId) -> set[ObjectId] | None:
        """The same of segments; that of a compaction under way is not among them."""
        return await self.revoke_segments(partition, ObjectId(""), is_committed=True)

    async def certain_manifest(self, partition: PartitionId) -> Manifest | None:
        """The manifest as of a moment after the call, by no deposed leader; None if there is none."""
        found = await read_certainly(self._records.metadata, [PartitionKeys(partition).manifest], name=self.ids.next_ulid())
        (record,) = found.records
        return None if record is None else decode_manifest(record.value, path=record.path)

    async def is_gone(self, partition: PartitionId) -> bool:
        """Whether a partition without a manifest is that of a deleted topic: it may only be new (model F-collect-absent)."""
        (record,) = await self._records.get(metadata_keys.topic_id(partition.topic_id))
        return record is not None and decode_topic_id(record).is_deleted

    async def _revoke(
        self,
        partition: PartitionId,
        keys: PartitionKeys,
        floor: ObjectId,
        sentinel_key: Callable[[str], Key],
        prefix: str,
        of_manifest: Callable[[Manifest], set[T]],
        of_record: Callable[[Record, Manifest], set[T]],
    ) -> set[T] | None:
        sentinels: list[Key] = []

        def sentinel() -> Put:
            sentinels.append(sentinel_key(self.ids.next_ulid(above="")))
            return Put(sentinels[-1], _VALUE, ABSENT, session=self._session.session_id)

        async def decide(manifest: Manifest) -> tuple[Manifest, Sequence[WriteOp]] | _AsItIs | None:
            if manifest.log_state is LogState.DELETED:
                return None
            if manifest.revoked_floor >= floor:
                return _AsItIs()
            return msgspec.structs.replace(manifest, revoked_floor=floor), [sentinel()]

        (there,) = await self._records.get(keys.manifest)
        if there is None:
            if await self.is_gone(partition):
                return None
            raise Unavailable(f"a partition is not there, and nobody says that its topic was deleted: partition={partition}")
        try:
            manifest = await self._records.change_manifest(keys, decide, action="revoke objects")
            if manifest is None:
                return None
            if isinstance(manifest, _AsItIs):
                # The floor may be another's, and the record a deposed leader's: what follows has to be newer than the question.
                outcome = await self._records.write([sentinel()])
                if not isinstance(outcome, Applied):
                    raise Unavailable(f"no certain look: key={sentinels[-1].path!r} cause={outcome.reason!r}")
                seen, record = await self._records.get(sentinels[-1], keys.manifest)
                if seen is None or record is None:
                    raise Unavailable(f"a record is older than the question: sentinel={sentinels[-1].path!r}")
                manifest = decode_manifest(record.value, path=record.path)
                if manifest.log_state is LogState.DELETED:
                    return None
            return of_manifest(manifest) | await self._certain(keys, sentinels[-1], prefix, manifest, of_record)
        finally:
            if sentinels:
                await self._records.write([Delete(key) for key in sentinels])  # they go with the session at the latest

    async def _certain(
        self, keys: PartitionKeys, sentinel: Key, prefix: str, manifest: Manifest, of_record: Callable[[Record, Manifest], set[T]]
    ) -> set[T]:
        """Read which objects or entries the keys below `prefix` refer to, in a state that has the sentinel."""
        start, end = children_of(prefix.removesuffix("/"))
        paths = await self._records.list(Key(start, keys.partition_key), end)
        if sentinel.path not in paths:
            raise Unavailable(f"a list is older than the question: sentinel={sentinel.path!r}")
        found: set[T] = set()
        wanted = [path for path in paths if not path.startswith(f"{prefix}!")]
        for begin in range(0, len(wanted), VALUES_PER_READ):
            asked = [sentinel, *(Key(path, keys.partition_key) for path in wanted[begin : begin + VALUES_PER_READ])]
            seen, *records = await self._records.get(*asked)
            if seen is None:
                raise Unavailable(f"a record is older than the question: sentinel={sentinel.path!r}")
            for record in records:
                # One that has gone since the list was made was below the cursor or log_start by then.
                if record is not None:
                    found |= of_record(record, manifest)
            await asyncio.sleep(0)
        return found

    async def _attempted(self, keys: PartitionKeys) -> set[ObjectId]:
        """The object of a compaction under way: its CAS would be refused below the floor, and its work be lost."""
        (record,) = await self._records.get(keys.compaction)
        return set() if record is None else {decode_attempt(record.value, path=record.path).object_id}

    def _scan_index(self, keys: PartitionKeys, manifest: Manifest) -> AsyncIterator[Record]:
        return self._scan(keys.index(live_from(manifest)), children_of(keys.index_prefix.removesuffix("/"))[1])

    async def _scan(self, start: Key, end: str) -> AsyncIterator[Record]:
        number = 0
        async for record in self._records.metadata.range_scan(start, end):
            number += 1
            if number % self._chunks_per_turn == 0:
                await asyncio.sleep(0)
            yield record


async def read_manifest(records: Records, partition: PartitionId) -> Manifest | None:
    """None if there is none."""
    (record,) = await records.get(PartitionKeys(partition).manifest)
    return None if record is None else decode_manifest(record.value, path=record.path)
