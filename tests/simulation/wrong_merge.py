"""Merges that are wrong on purpose: one function per guard of docs/internals/design/upkeep.md#merging, named after the model's variants."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

from compactor import merge as merge_module
from compactor.merge import MergeEnd, Merging
from compactor.plan import MergeRefusal, begin_rewriting
from compactor.records import Records
from storage.errors import Unavailable
from storage.formats.manifest import Manifest, SegmentEntry, SegmentFact, decode_segment, encode, with_rewritten
from storage.formats.segment import segment_key
from storage.metadata.keys import PartitionKeys, partition_of_manifest
from storage.metadata.port import Delete, Key, Put, Unknown, WriteOp


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
def believes_a_scan_of_its_sources() -> Iterator[None]:
    """Model: F-merge-stale. It does not touch them, and a deposed leader may have answered."""

    async def touch(self: Any, keys: PartitionKeys, sources: Any) -> bool:
        records = await self._records.get(*[keys.segment(one.segment.last) for one in sources])
        return all(found and found.value == one.record.value for found, one in zip(records, sources, strict=True))

    with mock.patch.object(Merging, "_touch", touch):
        yield


def _begins_also_when(refusal: MergeRefusal) -> Any:
    def begin(manifest: Manifest, merged: SegmentEntry) -> Manifest | MergeRefusal:
        begun = begin_rewriting(manifest, merged)
        return with_rewritten(manifest, merged) if begun is refusal else begun

    return mock.patch.object(merge_module, "begin_rewriting", begin)


@contextlib.contextmanager
def takes_the_place_of_a_merge_that_is_under_way() -> Iterator[None]:
    """Model: F-rewritten-overwritten."""
    with _begins_also_when(MergeRefusal.UNDER_WAY):
        yield


@contextlib.contextmanager
def takes_no_answer_for_a_refusal_and_deletes_its_object() -> Iterator[None]:
    """Model: F-merge-loser."""
    original_write, original_commit = Records.write, Merging._commit

    async def write(self: Any, ops: Sequence[WriteOp]) -> Any:
        outcome = await original_write(self, ops)
        last = ops[-1]
        if isinstance(outcome, Unknown) and isinstance(last, Put) and b'"rewritten"' in last.value:
            raise Unavailable("no answer")
        return outcome

    async def commit(self: Any, keys: PartitionKeys, sources: Any, merged: SegmentEntry) -> MergeEnd:
        partition = partition_of_manifest(keys.manifest.path)
        assert partition is not None
        try:
            return await original_commit(self, keys, sources, merged)
        except Unavailable as error:
            if "no answer" in str(error):
                await self._objects.delete_many([segment_key(partition, merged.object_id)])
            raise

    with mock.patch.object(Merging, "_commit", commit), mock.patch.object(Records, "write", write):
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
    """It read the manifest long ago, and paused before it scanned."""
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
