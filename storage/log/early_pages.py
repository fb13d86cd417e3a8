"""Slices whose object is not stored yet: early pages have their bytes until it is (docs/internals/design/reading.md).

    the entry is young: page → object        it is old: object → page        neither: [manifest, page] in one read → object → damage

The writer deletes the pages of an object once that is known to be stored. So a page that is gone, asked for behind the entry, says that the
object is there. But a deposed leader of the shard may not have heard of the page yet, and a GET may have come before the PUT: absence is
believed only where the same answer knows the entry, and the object was asked for after that (E6).
"""

import asyncio
from collections.abc import Awaitable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

from runtime.clock import Clock
from runtime.lru import LruCache
from runtime.ulid import ulid_ms
from storage.errors import Corrupt, IncompatibleFormat, StorageError, Unavailable, without_frames
from storage.formats.early_page import decode_page, encode_page
from storage.formats.manifest import Early, Entry
from storage.limits import EARLY_PAGE_BYTES_MAX
from storage.log.limits import DEFAULT_LIMITS, LogLimits
from storage.metadata import keys as metadata_keys
from storage.metadata.keys import PartitionKeys
from storage.metadata.port import ABSENT, Key, MetadataStore, Put, Record
from storage.vocabulary import ObjectId, PartitionId

T = TypeVar("T")

UNSTORED_FOR_S: Final = 60.0
"""How long pages are asked for first after an object was not there. It changes the order of the questions, and no answer."""
OLD_MS: Final = 120_000
"""From this age on an entry's object is asked for before its pages. A guess: it costs a request where it is wrong, and nothing else."""


class EarlyPlace(NamedTuple):
    """Where the slice of a commit will lie: in `object_id`, from `start` on."""

    object_id: ObjectId
    start: int
    partition: PartitionId
    data: bytes

    def puts(self, partition_key: str) -> Iterator[Put]:
        """Its pages, which travel before the CAS that names them, with every attempt until the object is known to be stored (E2)."""
        for at in range(0, len(self.data), EARLY_PAGE_BYTES_MAX):
            key = metadata_keys.early_page(self.object_id, self.start + at, partition_key)
            yield Put(key, encode_page((self.partition,), self.data[at : at + EARLY_PAGE_BYTES_MAX]), ABSENT)


class EarlySlice:
    """The bytes of an early entry, from where its pages begin on."""

    __slots__ = ("data", "start")

    def __init__(self, start: int, data: memoryview) -> None:
        self.start = start
        self.data = data

    def batches_of(self, entry: Entry) -> list[memoryview]:
        """Its spans, in order. Raise `Corrupt` where pages have fewer bytes than the entry says."""
        views = [self.data[position - self.start : position - self.start + length] for position, length in entry.spans]
        for view, (position, length) in zip(views, entry.spans, strict=True):
            if position < self.start or len(view) != length:
                raise Corrupt(f"early pages are shorter than their entry says: object={entry.object_id} entry={entry.base}..{entry.last}")
        return views


def page_keys(keys: PartitionKeys, entry: Entry) -> list[Key]:
    """The pages that hold the batches of an early entry, in order."""
    early = entry.batches
    assert isinstance(early, Early), f"it has no pages: {entry.base}..{entry.last}"
    positions = range(early.start, entry.extent[1], EARLY_PAGE_BYTES_MAX)
    return [metadata_keys.early_page(entry.object_id, position, keys.partition_key) for position in positions]


async def read_pages_of_all(
    metadata: MetadataStore, asked: Sequence[tuple[PartitionKeys, Entry]]
) -> list[EarlySlice | StorageError | None]:
    """Read the bytes of early entries of any partitions, as far as their pages are there; None is no proof that they are gone.

    A page that several of them name is read and decoded once. What is wrong with it, `Corrupt` or `IncompatibleFormat`, is the value of the
    entries that need it. Raises `Unavailable`.
    """
    named = [page_keys(keys, entry) for keys, entry in asked]
    wanted = {key.path: key for of_entry in named for key in of_entry}
    records = dict(zip(wanted, await metadata.get_many(list(wanted.values())), strict=True))
    pages: dict[str, memoryview | StorageError | None] = {}
    for path, record in records.items():
        try:
            pages[path] = None if record is None else decode_page(record.value, path=path).data
        except (Corrupt, IncompatibleFormat) as error:
            pages[path] = without_frames(error)
    found: list[EarlySlice | StorageError | None] = []
    for (_, entry), of_entry in zip(asked, named, strict=True):
        try:
            found.append(_joined(entry, [(key.path, pages[key.path]) for key in of_entry]))
        except (Corrupt, IncompatibleFormat) as error:
            found.append(without_frames(error))
    return found


async def read_pages_certainly(metadata: MetadataStore, keys: PartitionKeys, entry: Entry, *, known_version: int) -> EarlySlice | None:
    """Read the bytes of one entry, which a manifest of `known_version` or an older one knew. None proves that its pages are gone.

    Raises `Unavailable` as well where the answer is from before that version.
    """
    manifest, *pages = await metadata.get_many([keys.manifest, *page_keys(keys, entry)])
    found = _slice_of(entry, pages)
    if found is None and (manifest is None or manifest.version < known_version):
        version = None if manifest is None else manifest.version
        raise Unavailable(f"metadata answered from the past: key={keys.manifest.path!r} version={version} known_version={known_version}")
    return found


def _slice_of(entry: Entry, records: Sequence[Record | None]) -> EarlySlice | None:
    if None in records:
        return None
    return _joined(entry, [(one.path, decode_page(one.value, path=one.path).data) for one in records if one is not None])


def _joined(entry: Entry, pages: Sequence[tuple[str, memoryview | StorageError | None]]) -> EarlySlice | None:
    """Pages by their paths; raise what is wrong with one, unless another is not there."""
    early = entry.batches
    assert isinstance(early, Early)
    views: list[memoryview] = []
    if any(page is None for _, page in pages):
        return None
    for path, page in pages:
        if isinstance(page, StorageError):
            raise page
        assert page is not None
        if len(views) + 1 < len(pages) and len(page) != EARLY_PAGE_BYTES_MAX:
            raise Corrupt(f"an early page is cut short, another follows it: key={path!r} bytes={len(page)}")
        views.append(page)
    return EarlySlice(early.start, views[0] if len(views) == 1 else memoryview(b"".join(views)))


def _pages_bytes(entry: Entry) -> int:
    early = entry.batches
    assert isinstance(early, Early)
    return entry.extent[1] - early.start


class OwnEarly(Protocol):
    """What this broker has in memory of its own early objects (storage/log/early_objects.py)."""

    def find(self, entry: Entry) -> EarlySlice | None: ...

    def is_stored(self, object_id: ObjectId) -> bool: ...


class EarlyPages:
    """What one broker has read of early pages, and which objects it knows to be stored. Bounded over all partitions."""

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        own: OwnEarly,
        clock: Clock,
        limits: LogLimits = DEFAULT_LIMITS,
    ) -> None:
        self._metadata = metadata
        self._own = own
        self._clock = clock
        self._timeout_s = limits.index_read_timeout_s
        self._read_bytes_max = limits.early_read_bytes_max
        self._kept: LruCache[tuple[ObjectId, int], EarlySlice] = LruCache(limits.early_kept_bytes_max, cost=lambda one: len(one.data))
        self._stored: LruCache[ObjectId, None] = LruCache(limits.early_stored_kept_max)
        self._unstored: LruCache[ObjectId, float] = LruCache(limits.early_stored_kept_max)

    def find(self, entry: Entry) -> EarlySlice | None:
        """Its bytes, if they are in memory."""
        early = entry.batches
        assert isinstance(early, Early)
        found = self._own.find(entry) or self._kept.get((entry.object_id, early.start))
        return found if found is not None and early.start + len(found.data) >= entry.extent[1] else None

    def is_object_first(self, entry: Entry) -> bool:
        """Whether its object is likely to be there."""
        object_id = entry.object_id
        if object_id in self._stored or self._own.is_stored(object_id):
            return True
        unstored_until_s = self._unstored.peek(object_id)
        if unstored_until_s is not None and self._clock.monotonic_s() < unstored_until_s:
            return False
        return self._clock.now_ms() - ulid_ms(object_id) >= OLD_MS

    def note_unstored(self, object_id: ObjectId) -> None:
        """It was asked for, and is not there: its broker may have died. For a while pages are asked for first."""
        self._unstored.put(object_id, self._clock.monotonic_s() + UNSTORED_FOR_S)

    def note_stored(self, object_id: ObjectId) -> None:
        """It was read."""
        self._stored.put(object_id, None)

    async def fetch(self, keys: PartitionKeys, entry: Entry, following: Sequence[Entry]) -> EarlySlice | None:
        """The bytes of `entry`, and into what is kept those of the `following` early ones: one read for all. None is no proof.

        Raises `Corrupt`, `IncompatibleFormat` and `Unavailable`.
        """
        asked, size_bytes = [entry], _pages_bytes(entry)
        for other in following:
            if not other.is_early or self.is_object_first(other) or self.find(other) is not None:
                continue
            size_bytes += _pages_bytes(other)
            if size_bytes > self._read_bytes_max:
                break
            asked.append(other)
        first, *others = await self._in_time(read_pages_of_all(self._metadata, [(keys, one) for one in asked]))
        for one, of_entry in zip(asked, (first, *others), strict=True):
            if isinstance(of_entry, EarlySlice):
                self._kept.put((one.object_id, of_entry.start), of_entry)
        if isinstance(first, StorageError):
            raise first  # what is wrong with those that follow is found by whoever reads them
        return first

    async def fetch_certainly(self, keys: PartitionKeys, entry: Entry, *, known_version: int) -> EarlySlice | None:
        """As `read_pages_certainly`."""
        return await self._in_time(read_pages_certainly(self._metadata, keys, entry, known_version=known_version))

    def drop(self, entry: Entry) -> None:
        """Read it again: what was read was not what was written."""
        if isinstance(entry.batches, Early):
            self._kept.pop((entry.object_id, entry.batches.start))
            self._stored.pop(entry.object_id)

    async def _in_time(self, read: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await read
        except TimeoutError:
            raise Unavailable(f"metadata did not answer: op=get_many of early pages after_s={self._timeout_s}") from None
