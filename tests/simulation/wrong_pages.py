"""Compactors, collectors and readers that are wrong on purpose about early pages."""

import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final
from unittest import mock

from compactor.collector import Collector, Judged, UnusedCandidate
from compactor.compaction import Compaction, CompactionResult, CompactionTask
from compactor.pages import FoundPage, PageSweep
from compactor.slices import GatheredSlices, Slices
from storage.errors import StorageError
from storage.formats.early_page import decode_page
from storage.formats.manifest import Entry
from storage.formats.wal import HEAD_BYTES, Slice, encode_early, object_key, packed
from storage.log.early_objects import EarlyObjects
from storage.log.early_pages import EarlyPages, EarlySlice, page_keys
from storage.log.partition import PartitionLog
from storage.log.reader import Reader
from storage.log.scan import BatchRun, Gap
from storage.metadata.keys import EARLY_PREFIX, PartitionKeys, early_pages, place_of_page, shard_keys
from storage.metadata.port import Delete, MetadataStore
from storage.vocabulary import ObjectId, PartitionId

DELETE: Final = EarlyObjects._delete
FETCH_UNSTORED: Final = GatheredSlices._fetch_unstored
COMPACT: Final = Compaction._compact
CERTAINLY_FREE: Final = Collector._certainly_free
READ_EARLY: Final = Reader._read_early

Revoke = Callable[[PartitionId, ObjectId], Awaitable[set[ObjectId] | None]]


@contextlib.contextmanager
def deletes_the_pages_behind_a_stored_object_with_it() -> Iterator[None]:
    """Model: F-early-all. All pages of the broker go with those of the object, on the shard."""

    async def delete(self: EarlyObjects, object_id: ObjectId, shard: int, pages: list[Any]) -> None:
        for other in list(self._held.values()):
            await DELETE(self, other.object_id, shard, list(other.pages.get(shard, ())))
        await DELETE(self, object_id, shard, pages)

    with mock.patch.object(EarlyObjects, "_delete", delete):
        yield


@contextlib.contextmanager
def stores_the_object_of_another_from_the_pages_it_finds() -> Iterator[None]:
    """Model: F-early-adopted. A page may still be on its way."""

    async def fetch_unstored(self: GatheredSlices, unstored: list[Any]) -> None:
        for object_id in dict.fromkeys(one.entry.object_id for one in unstored):
            with contextlib.suppress(StorageError):
                await _adopt(self._metadata, self._objects, object_id)
        await FETCH_UNSTORED(self, unstored)

    with mock.patch.object(GatheredSlices, "_fetch_unstored", fetch_unstored):
        yield


async def _adopt(metadata: MetadataStore, objects: Any, object_id: ObjectId) -> None:
    found: dict[int, tuple[PartitionId, bytes]] = {}
    for shard_key in shard_keys(metadata.shard_of):
        first, end = early_pages(shard_key)
        async for record in metadata.range_scan(first, end):
            place = place_of_page(record.path)
            if place is not None and place[0] == object_id:
                page = decode_page(record.value, path=record.path)
                found[place[1]] = page.partitions[0], bytes(page.data)
    if not found:
        return
    end = max(start + len(data) for start, (_, data) in found.items())
    body, directory = bytearray(end - HEAD_BYTES), bytearray()
    starts = sorted(found)
    for start, begin, behind in zip(starts, [HEAD_BYTES, *starts[1:]], [*starts[1:], end], strict=True):
        partition, data = found[start]
        directory += packed(Slice(partition, begin, behind - begin))
        body[start - HEAD_BYTES : start - HEAD_BYTES + len(data)] = data
    head, foot = encode_early(object_id, 0, directory, end=end)
    await objects.put_if_absent(object_key(object_id), [head, bytes(body), foot])


@contextlib.contextmanager
def collects_orphans_by_their_age() -> Iterator[None]:
    """No floor, and no look."""

    async def free(self: Collector, candidates: Sequence[UnusedCandidate], revoke: Revoke, report: Judged) -> Sequence[UnusedCandidate]:
        return candidates if _are_pages(candidates) else await CERTAINLY_FREE(self, candidates, revoke, report)

    with mock.patch.object(Collector, "_certainly_free", free):
        yield


@contextlib.contextmanager
def looks_in_one_partition_of_an_object_in_pieces() -> Iterator[None]:
    """A page names one partition. The object that was never stored has pages of several."""
    asked: dict[ObjectId, tuple[PartitionId, ...]] = {}

    async def free(self: Collector, candidates: Sequence[UnusedCandidate], revoke: Revoke, report: Judged) -> Sequence[UnusedCandidate]:
        if not _are_pages(candidates):
            return await CERTAINLY_FREE(self, candidates, revoke, report)
        found: list[UnusedCandidate] = []
        for object_id in dict.fromkeys(one.object_id for one in candidates):
            pages = [one for one in candidates if one.object_id == object_id]
            first = asked.setdefault(object_id, pages[0].partitions)
            # What another object has its partitions asked for must not save this one.
            found += await CERTAINLY_FREE(self, [replace(one, partitions=first) for one in pages], revoke, report)
        return found

    with mock.patch.object(Collector, "_certainly_free", free):
        yield


def _are_pages(candidates: Sequence[UnusedCandidate]) -> bool:
    return bool(candidates) and candidates[0].key.startswith(EARLY_PREFIX)


@contextlib.contextmanager
def deletes_no_page() -> Iterator[None]:
    """Nothing is lost by it, and the metadata store fills up."""

    async def delete(self: PageSweep, pages: Sequence[FoundPage]) -> list[FoundPage]:
        return []

    with mock.patch.object(PageSweep, "delete", delete):
        yield


@contextlib.contextmanager
def deletes_the_pages_that_it_compacts_before_its_cas() -> Iterator[None]:
    """Model: F-early-cursor."""

    async def compact(self: Compaction, task: CompactionTask, slices: Slices) -> CompactionResult:
        gone = [key for entry in task.entries if entry.is_early for key in page_keys(task.keys, entry)]
        if gone:
            await self.metadata.write([Delete(key) for key in gone])
        return await COMPACT(self, task, slices)

    with mock.patch.object(Compaction, "_compact", compact):
        yield


class _NotAtOnce(Exception):
    """Neither object nor pages were there when they were first asked for."""


@contextlib.contextmanager
def goes_on_behind_an_entry_that_it_does_not_find_at_once() -> Iterator[None]:
    """As if retention had deleted it."""

    async def fetch(self: EarlyPages, keys: PartitionKeys, entry: Entry, *, known_version: int) -> EarlySlice | None:
        raise _NotAtOnce

    async def read(self: Reader, log: PartitionLog, entry: Entry, offset: int, terms: Any) -> BatchRun | Gap | None:
        try:
            return await READ_EARLY(self, log, entry, offset, terms)
        except _NotAtOnce:
            return Gap.TO_THE_END

    with mock.patch.object(EarlyPages, "fetch_certainly", fetch), mock.patch.object(Reader, "_read_early", read):
        yield
