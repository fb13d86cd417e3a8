"""Early pages as upkeep meets them: whether those of an entry are there, and which are old (docs/internals/design/upkeep.md).

A page lies on the shard of the partitions that have bytes in it, and shards have no list of their own: made-up partition keys come across
all of them (`shard_keys`). Pages lie in the order of the ids of their objects, so of age.
"""

import contextlib
from collections.abc import AsyncGenerator, Collection, Iterator, Sequence
from typing import Final, NamedTuple

from compactor.limits import DEFAULT_LIMITS, CompactorLimits
from compactor.records import Records
from compactor.references import live_from
from runtime.ids import IdSource
from runtime.ulid import ulid_ms
from storage.errors import Unavailable
from storage.formats.manifest import Entry, LogState, decode_manifest
from storage.log.early_pages import page_keys
from storage.metadata import keys as metadata_keys
from storage.metadata.keys import EARLY_PREFIX, PartitionKeys, place_of_page, shard_keys
from storage.metadata.port import Applied, Delete, Key, Status
from storage.vocabulary import ObjectId, PartitionId

BEHIND_OBJECT_IDS: Final = f"{EARLY_PREFIX}8"
"""No ULID begins with 8: from here on there is no page."""
_LAST_PLACE: Final = "~"


class PageNames:
    """Whether early pages are there. It keeps the names that lists have shown: made for one look, and not for longer."""

    def __init__(self, records: Records, ids: IdSource, *, limits: CompactorLimits = DEFAULT_LIMITS) -> None:
        self._records = records
        self._ids = ids
        self._limits = limits
        self._listed: dict[tuple[ObjectId, int], frozenset[str]] = {}

    async def have(self, partition: PartitionId, entries: Collection[Entry]) -> bool:
        """Whether pages are there for all of `entries`. Neither answer is a proof. Raises `Unavailable`."""
        keys = PartitionKeys(partition)
        shard = self._records.metadata.shard_of(keys.partition_key)
        for entry in entries:
            if not entry.is_early:
                return False
            listed = self._listed.get((entry.object_id, shard))
            if listed is None:
                first = metadata_keys.early_page(entry.object_id, 0, keys.partition_key)
                paths = await self._records.list(first, f"{EARLY_PREFIX}{entry.object_id}-{_LAST_PLACE}")
                listed = self._listed[entry.object_id, shard] = frozenset(paths)
            if any(key.path not in listed for key in page_keys(keys, entry)):
                return False
        return True

    async def have_certainly(self, partition: PartitionId, entries: Collection[Entry]) -> bool:
        """The same for certain, as of a moment after the call: False if one is live and without its pages in one answer (E6).

        Pages of an entry that is compacted meanwhile may go, and nobody misses them.
        """
        keys = PartitionKeys(partition)
        if not all(entry.is_early for entry in entries):
            return False
        last_by_page: dict[Key, int] = {}
        for entry in entries:
            for key in page_keys(keys, entry):
                last_by_page[key] = max(entry.last, last_by_page.get(key, -1))
        wanted = list(last_by_page)
        for begin in range(0, len(wanted), self._limits.early_pages_per_read):
            some = wanted[begin : begin + self._limits.early_pages_per_read]
            record, *pages = await self._records.get_certainly([keys.manifest, *some], name=self._ids.next_ulid())
            absent = [last_by_page[key] for key, page in zip(some, pages, strict=True) if page is None]
            if absent and record is not None:
                manifest = decode_manifest(record.value, path=record.path)
                if manifest.log_state is not LogState.DELETED and max(absent) >= live_from(manifest):
                    return False
        return True


class FoundPage(NamedTuple):
    """A page as it was read."""

    key: Key
    version: int
    size_bytes: int


class OldPage(NamedTuple):
    """`place` is None for the key of a record that is no page."""

    ref: FoundPage
    place: tuple[ObjectId, int] | None
    value: bytes


class PageSweep:
    """All pages of old objects on all shards, `next` by `next`. Any number of processes may sweep."""

    def __init__(self, records: Records, *, limits: CompactorLimits = DEFAULT_LIMITS) -> None:
        self._records = records
        self._limits = limits
        self._shards: list[str] = []
        """A partition key for each shard that is left; the sweep is at the first, from `_start` on. Empty: the next one begins."""
        self._start = ""

    async def next(self, *, before_ms: int, count: int) -> tuple[list[OldPage], bool]:
        """Up to `count` pages of objects from before `before_ms`, and of other records below llog/early, with no more bytes than
        `early_pages_read_bytes_max` and a page. Whether they are the last: then the next call begins again. Raises `Unavailable`.
        """
        if not self._shards:
            self._shards, self._start = shard_keys(self._records.metadata.shard_of), EARLY_PREFIX
        found: list[OldPage] = []
        size_bytes = 0
        while self._shards:
            next_start = ""
            async with contextlib.aclosing(self._scan()) as pages:
                async for page in pages:
                    if len(found) == count or size_bytes >= self._limits.early_pages_read_bytes_max:
                        self._start = page.ref.key.path
                        return found, False
                    if page.place is not None and ulid_ms(page.place[0]) >= before_ms:
                        next_start = BEHIND_OBJECT_IDS  # all pages that follow are as young
                        break
                    found.append(page)
                    size_bytes += page.ref.size_bytes
            self._start = next_start or EARLY_PREFIX
            if not next_start:
                del self._shards[0]
        return found, True

    async def delete(self, pages: Sequence[FoundPage]) -> list[FoundPage]:
        """Delete them by name, and only as they were read. Return those that certainly went. Raises `Unavailable`."""
        deleted: list[FoundPage] = []
        for some in self._in_requests(pages):
            outcome = await self._records.write([Delete(page.key, page.version) for page in some])
            if not isinstance(outcome, Applied):
                raise Unavailable(f"early pages were not deleted: first={some[0].key.path!r} cause={outcome.reason!r}")
            deleted += [page for page, result in zip(some, outcome.results, strict=True) if result.status is Status.OK]
        return deleted

    def _in_requests(self, pages: Sequence[FoundPage]) -> Iterator[Sequence[FoundPage]]:
        """Runs of pages of one shard, for one request each."""
        some: list[FoundPage] = []
        size_bytes = 0
        for page in pages:
            is_full = (
                len(some) == self._limits.early_pages_per_delete or size_bytes + page.size_bytes > self._limits.early_page_bytes_per_delete
            )
            if some and (is_full or some[0].key.partition_key != page.key.partition_key):
                yield some
                some, size_bytes = [], 0
            some.append(page)
            size_bytes += page.size_bytes
        if some:
            yield some

    async def _scan(self) -> AsyncGenerator[OldPage, None]:
        first, end = metadata_keys.early_pages(self._shards[0])
        async with contextlib.aclosing(self._records.scan(Key(self._start, first.partition_key), end)) as records:
            async for path, value, version in records:
                yield OldPage(FoundPage(Key(path, first.partition_key), version, len(value)), place_of_page(path), value)
