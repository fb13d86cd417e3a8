"""Collectors that are wrong on purpose: one function per guard of docs/internals/design/upkeep.md, "Several collectors"."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import msgspec

from compactor.collector import CollectionReport, Collector
from compactor.references import References
from storage.catalog.collections import CollectionsRecord, Deletions
from storage.formats.manifest import Manifest
from storage.metadata.keys import PartitionKeys
from storage.metadata.port import Key, children_of
from storage.vocabulary import ObjectId, PartitionId


@contextlib.contextmanager
def trusts_its_grace() -> Iterator[None]:
    """Model: F-collect-grace. What a look does not show is deleted, and no floor keeps a commit from landing afterwards."""

    async def free(_self: Any, candidates: Sequence[Any], _revoke: Any, _report: CollectionReport) -> Sequence[Any]:
        return candidates

    with mock.patch.object(Collector, "_certainly_free", free):
        yield


@contextlib.contextmanager
def looks_before_it_revokes() -> Iterator[None]:
    """Model: F-collect-look, and it looks once: a second look comes after the first one's revoking, so it would be right."""
    original, certainly_free = References._revoke, Collector._certainly_free
    freed: set[str] = set()

    async def revoke(self: Any, partition: PartitionId, keys: PartitionKeys, floor: ObjectId, *how: Any) -> set[ObjectId] | None:
        _, prefix, of_manifest, of_record = how
        (record,) = await self._records.get(keys.manifest)
        if record is None:
            return await original(self, partition, keys, floor, *how)
        manifest = msgspec.json.decode(record.value, type=Manifest)
        seen = of_manifest(manifest)
        start, end = children_of(prefix.removesuffix("/"))
        for path in await self._records.list(Key(start, keys.partition_key), end):
            (found,) = await self._records.get(Key(path, keys.partition_key))
            seen |= of_record(found, manifest) if found is not None and "!" not in path else set()
        await original(self, partition, keys, floor, *how)
        return seen  # type: ignore[no-any-return]

    async def free(self: Any, candidates: Sequence[Any], *how: Any) -> Sequence[Any]:
        if freed.issuperset(one.key for one in candidates):
            return candidates
        found = await certainly_free(self, candidates, *how)
        freed.update(one.key for one in found)
        return found

    with mock.patch.object(References, "_revoke", revoke), mock.patch.object(Collector, "_certainly_free", free):
        yield


@contextlib.contextmanager
def revokes_in_one_partition() -> Iterator[None]:
    """Model: F-collect-header. The header names others, where the object is committed."""
    original = Collector._certainly_free

    async def free(self: Any, candidates: Sequence[Any], revoke: Any, report: CollectionReport) -> Any:
        return await original(self, [_of_one(one) for one in candidates], revoke, report)

    def _of_one(one: Any) -> Any:
        return type(one)(one.key, one.object_id, one.size_bytes, one.partitions[:1])

    with mock.patch.object(Collector, "_certainly_free", free):
        yield


@contextlib.contextmanager
def forgets_what_is_pending() -> Iterator[None]:
    """It looks at keys alone."""
    original = References._revoke

    async def revoke(
        self: Any,
        partition: PartitionId,
        keys: PartitionKeys,
        floor: ObjectId,
        sentinel: Any,
        prefix: str,
        _of_manifest: Any,
        of_record: Any,
    ) -> set[ObjectId] | None:
        return await original(self, partition, keys, floor, sentinel, prefix, lambda _manifest: set(), of_record)

    with mock.patch.object(References, "_revoke", revoke):
        yield


@contextlib.contextmanager
def lowers_the_floor() -> Iterator[None]:
    """Model: F-collect-floor-lowered. A collector of older objects opens the way for what a faster one has deleted."""
    original = References._revoke

    async def revoke(self: Any, partition: PartitionId, keys: PartitionKeys, floor: ObjectId, *how: Any) -> set[ObjectId] | None:
        change = self._records.change_manifest

        async def changed(keys: PartitionKeys, decide: Any, *, action: str) -> Any:
            async def lower(manifest: Manifest) -> Any:
                return await decide(msgspec.structs.replace(manifest, revoked_floor=ObjectId("")))

            return await change(keys, lower, action=action)

        with mock.patch.object(self._records, "change_manifest", changed):
            return await original(self, partition, keys, floor, *how)

    with mock.patch.object(References, "_revoke", revoke):
        yield


@contextlib.contextmanager
def believes_any_list() -> Iterator[None]:
    """Model: F-collect-stale. What a deposed leader shows has no sentinel, and none is asked for."""

    async def certain(self: Any, keys: PartitionKeys, _sentinel: Key, prefix: str, manifest: Manifest, of_record: Any) -> set[ObjectId]:
        start, end = children_of(prefix.removesuffix("/"))
        paths = [path for path in await self._records.list(Key(start, keys.partition_key), end) if "!" not in path]
        records = await self._records.get(*[Key(path, keys.partition_key) for path in paths])
        return {one for record in records if record is not None for one in of_record(record, manifest)}

    with mock.patch.object(References, "_certain", certain):
        yield


@contextlib.contextmanager
def takes_an_absent_partition_for_one_that_is_gone() -> Iterator[None]:
    """Model: F-collect-absent."""

    async def is_gone(_self: Any, _partition: PartitionId) -> bool:
        return True

    with mock.patch.object(References, "is_gone", is_gone):
        yield


@contextlib.contextmanager
def counts_no_deletion() -> Iterator[None]:
    """Metadata that are put back name objects that were deleted, and nothing shows it."""

    async def count(self: Deletions, *, newest_epoch: int = -1) -> CollectionsRecord:
        return await self.read()

    with mock.patch.object(Deletions, "count", count):
        yield


@contextlib.contextmanager
def counts_in_the_metadata_alone() -> Iterator[None]:
    """Model: F-restore-delete-first, without a kill. What was counted goes back with the metadata."""

    async def count(self: Deletions, *, newest_epoch: int = -1) -> CollectionsRecord:
        return (await self._raise())[0]

    with mock.patch.object(Deletions, "count", count):
        yield


@contextlib.contextmanager
def keeps_nothing_that_was_accepted() -> Iterator[None]:
    """Model: F-restore-accept-deletes."""
    with mock.patch.object(CollectionsRecord, "keeps", return_value=False):
        yield
