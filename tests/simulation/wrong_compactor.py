"""Compactors, and readers of what they made, that are wrong on purpose: one function per guard of docs/internals/design/upkeep.md."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import msgspec

from compactor.compaction import Compaction, CompactionEnd
from compactor.records import Records
from storage.formats.manifest import Manifest, SegmentEntry, SegmentFact, decode_chunk, encode
from storage.formats.segment import segment_key
from storage.log.index import EntryIndex
from storage.metadata.keys import PartitionKeys, partition_of_manifest
from storage.metadata.port import ABSENT, DeleteRange, Key, Put, WriteOp


@contextlib.contextmanager
def deletes_index_keys_by_their_base() -> Iterator[None]:
    """Model: F-base. The chunk that holds the cursor goes, too."""

    async def delete_index(self: Any, keys: PartitionKeys, end: int, *, entries: int | None = None) -> None:
        record = await self._records.metadata.get_ceiling(keys.index(end), within=keys.index_prefix)
        stop = end
        if record is not None and (chunk := decode_chunk(record.value, path=record.path)).entries[0].base < end:
            stop = chunk.entries[-1].last + 1
        await self._records.write([DeleteRange(keys.index(0), keys.index(stop).path)])

    with mock.patch.object(Compaction, "_delete_index", delete_index):
        yield


@contextlib.contextmanager
def puts_its_own_segment_beside_its_cas() -> Iterator[None]:
    """Model: F-orphan. A failing CAS does not stop its siblings."""
    original = Records.write

    async def write(self: Any, ops: Sequence[WriteOp]) -> Any:
        last = ops[-1]
        if isinstance(last, Put) and partition_of_manifest(last.key.path) is not None:
            segment = msgspec.json.decode(last.value, type=Manifest).segment
            if segment is not None:
                keys = PartitionKeys(partition_of_manifest(last.key.path))  # type: ignore[arg-type]
                ops = [Put(keys.segment(segment.last), encode(SegmentFact(entry=segment)), ABSENT), last]
        return await original(self, ops)

    with mock.patch.object(Records, "write", write):
        yield


@contextlib.contextmanager
def forgets_the_segment_before() -> Iterator[None]:
    """The cursor moves on, and the segment that the manifest named gets no key."""
    original = Records.write

    async def write(self: Any, ops: Sequence[WriteOp]) -> Any:
        return await original(self, ops[-1:])

    with mock.patch.object(Records, "write", write):
        yield


@contextlib.contextmanager
def deletes_its_object_when_it_lost() -> Iterator[None]:
    """Model: F-loser. Another has finished its attempt meanwhile, or its own CAS was applied without an answer."""
    original = Compaction._move_cursor

    async def move(self: Any, keys: PartitionKeys, segment: SegmentEntry, began_at: int) -> CompactionEnd:
        ended = await original(self, keys, segment, began_at)
        if ended is not CompactionEnd.COMPACTED:
            partition = partition_of_manifest(keys.manifest.path)
            assert partition is not None
            await self._objects.delete_many([segment_key(partition, segment.object_id)])
        return ended

    async def never(*_asked: object) -> bool:
        return False

    with mock.patch.object(Compaction, "_move_cursor", move), mock.patch.object(Compaction, "_is_committed", never):
        yield


@contextlib.contextmanager
def reads_by_the_index_below_the_cursor() -> Iterator[None]:
    """I4: below the cursor only segments count."""

    async def look(self: Any, log: Any, _manifest: Manifest, offset: int) -> Any:
        record = await self._ceiling(Key(log.keys.index(offset).path, log.keys.partition_key), within=log.keys.index_prefix)
        if record is None:
            return None
        entries = decode_chunk(record.value, path=record.path).entries
        return next((entry for entry in entries if entry.base <= offset <= entry.last), None)

    with mock.patch.object(EntryIndex, "_look_for_segment", look):
        yield
