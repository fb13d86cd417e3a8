"""Merges that are wrong on purpose: one function per guard of docs/design/upkeep.md#merging, named after the model's variants."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

from compactor import merge as merge_module
from compactor.merge import MergeEnd, Merging
from compactor.merge_plan import MergeRefusal, begin_rewriting
from compactor.records import Records
from storage.errors import Unavailable
from storage.formats import control as control_module
from storage.formats.control import Control, SegmentEntry, SegmentFact, decode_segment, encode, with_rewritten
from storage.formats.segment import segment_key
from storage.metadata.keys import PartitionKeys, partition_of_control
from storage.metadata.port import Delete, Key, Put, WriteOp


@contextlib.contextmanager
def deletes_the_entries_of_its_sources_first() -> Iterator[None]:
    """Model: F-merge-delete-first."""
    original = Merging._commit

    async def commit(self: Any, keys: PartitionKeys, sources: Any, merged: SegmentEntry) -> MergeEnd:
        await self._records.write([Delete(keys.segment(one.segment.last), one.record.version) for one in sources])
        return await original(self, keys, sources, merged)

    async def touch(*_asked: object) -> bool:
        return True

    with mock.patch.object(Merging, "_commit", commit), mock.patch.object(Merging, "_touch", touch):
        yield


@contextlib.contextmanager
def scans_before_it_reads_the_control_record() -> Iterator[None]:
    """Model: F-merge-scan-first. The CAS names a version that is newer than the scan."""
    commit, touch = Merging._commit, Merging._touch

    async def scan_first(self: Any, keys: PartitionKeys, sources: Any, merged: SegmentEntry) -> MergeEnd:
        return await commit(self, keys, sources, merged) if await touch(self, keys, sources) else MergeEnd.OVERTAKEN

    async def nothing(*_asked: object) -> bool:
        return True

    with mock.patch.object(Merging, "_commit", scan_first), mock.patch.object(Merging, "_touch", nothing):
        yield


@contextlib.contextmanager
def believes_a_scan_of_its_sources() -> Iterator[None]:
    """Model: F-merge-stale. It does not touch them, and a deposed leader may have answered."""

    async def touch(self: Any, keys: PartitionKeys, sources: Any) -> bool:
        records = await self._records.get(*[keys.segment(one.segment.last) for one in sources])
        return all(found and found.value == one.record.value for found, one in zip(records, sources, strict=True))

    with mock.patch.object(Merging, "_touch", touch):
        yield


def _begins_also_when(refusal: MergeRefusal) -> Any:
    def begin(control: Control, merged: SegmentEntry) -> Control | MergeRefusal:
        begun = begin_rewriting(control, merged)
        return with_rewritten(control, merged) if begun is refusal else begun

    return mock.patch.object(merge_module, "begin_rewriting", begin)


@contextlib.contextmanager
def takes_the_place_of_a_merge_that_is_under_way() -> Iterator[None]:
    """Model: F-rewritten-overwritten."""
    with _begins_also_when(MergeRefusal.UNDER_WAY):
        yield


@contextlib.contextmanager
def commits_objects_that_were_revoked() -> Iterator[None]:
    """Model: F-rewritten-nofloor."""
    with _begins_also_when(MergeRefusal.REVOKED):
        yield


@contextlib.contextmanager
def merges_the_newest_segment() -> Iterator[None]:
    """Model: F-merge-newest. Its entry may be in segments/ already, beside a CAS that was refused."""
    due = Merging._due

    async def with_newest(self: Any, keys: PartitionKeys, control: Control) -> Any:
        newest = control.segment
        if newest is None:
            return ()
        (record,) = await self._records.get(keys.segment(newest.last))
        sources = await due(self, keys, control)
        below = (await self._records.get(keys.segment(newest.base - 1)))[0] if newest.base else None
        if record is None or below is None:
            return sources
        before = decode_segment(below.value, path=below.path)
        return [merge_module._Source(before, below), merge_module._Source(newest, record)]

    with (
        mock.patch.object(Merging, "_due", with_newest),
        mock.patch.object(control_module, "_check_rewritten"),
        _begins_also_when(MergeRefusal.NEWEST),
    ):
        yield


@contextlib.contextmanager
def deletes_its_object_when_it_has_no_answer() -> Iterator[None]:
    """Model: F-merge-loser."""
    original = Merging._commit

    async def commit(self: Any, keys: PartitionKeys, sources: Any, merged: SegmentEntry) -> MergeEnd:
        partition = partition_of_control(keys.control.path)
        assert partition is not None
        try:
            ended = await original(self, keys, sources, merged)
        except Exception:
            await self._objects.delete_many([segment_key(partition, merged.object_id)])
            raise
        if ended is not MergeEnd.MERGED:
            await self._objects.delete_many([segment_key(partition, merged.object_id)])
        return ended

    with mock.patch.object(Merging, "_commit", commit):
        yield


@contextlib.contextmanager
def puts_itself_over_whatever_is_there() -> Iterator[None]:
    """Model: F-merge-blind. A late request undoes a later merge."""
    original = Records.write

    async def write(self: Any, ops: Sequence[WriteOp]) -> Any:
        if all(isinstance(op, Put) and "/segments/" in op.key.path and b'"entry"' in op.value for op in ops) and _is_merge(ops):
            ops = [Put(op.key, op.value, None) for op in ops if isinstance(op, Put)]
        return await original(self, ops)

    with mock.patch.object(Records, "write", write):
        yield


def _is_merge(ops: Sequence[WriteOp]) -> bool:
    """Not a touch: what is put is not for this key alone."""
    return any(isinstance(op, Put) and int(op.key.path[-20:]) != decode_segment(op.value, path="").last for op in ops)


@contextlib.contextmanager
def puts_itself_over_a_later_merge() -> Iterator[None]:
    """It read the control record long ago, and paused before it scanned."""
    with mock.patch.object(merge_module, "is_inside", return_value=True):
        yield


@contextlib.contextmanager
def is_cleared_when_it_was_sent() -> Iterator[None]:
    """Model: F-rewritten-cleared-early. Nobody looks whether it has arrived."""

    async def put(self: Any, keys: PartitionKeys, merged: SegmentEntry) -> None:
        first, end = keys.segment(merged.base), keys.segment(merged.last + 1).path
        puts = [
            Put(Key(record.path, keys.partition_key), encode(SegmentFact(entry=merged)), record.version)
            async for record in self._records.scan(first, end)
            if merge_module.is_inside(decode_segment(record.value, path=record.path), merged)
        ]
        if puts:
            await self._records.write(puts)

    with mock.patch.object(Merging, "_put_under_all_keys", put):
        yield


@contextlib.contextmanager
def is_cleared_when_its_last_key_has_it() -> Iterator[None]:
    """Model: F-rewritten-cleared-half."""

    async def put(self: Any, keys: PartitionKeys, merged: SegmentEntry) -> None:
        (record,) = await self._records.get(keys.segment(merged.last))
        if record is None or decode_segment(record.value, path=record.path) != merged:
            await self._records.write([Put(keys.segment(merged.last), encode(SegmentFact(entry=merged)), record and record.version)])
            raise Unavailable("not yet")

    with mock.patch.object(Merging, "_put_under_all_keys", put):
        yield


@contextlib.contextmanager
def deletes_the_keys_of_its_sources_in_the_end() -> Iterator[None]:
    """Model: F-merge-late-put. A request of a compaction that arrives late finds its key absent."""
    original = Merging._put_under_all_keys

    async def put(self: Any, keys: PartitionKeys, merged: SegmentEntry) -> None:
        await original(self, keys, merged)
        first, last = keys.segment(merged.base), keys.segment(merged.last)
        await self._records.delete_range(first, last.path)

    with mock.patch.object(Merging, "_put_under_all_keys", put):
        yield
