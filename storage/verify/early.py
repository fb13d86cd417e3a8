"""Early entries: their object is stored after they were committed, and until then early pages in the metadata store have their bytes.

A page whose object is stored, or that no entry names, is rubbish that goes by itself, and no damage.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from storage.errors import Corrupt, IncompatibleFormat, NotFound, StorageError, without_frames
from storage.formats.early_page import decode_page
from storage.formats.manifest import Early, Entry
from storage.formats.wal import object_key
from storage.limits import EARLY_PAGE_BYTES_MAX
from storage.metadata import keys as metadata_keys
from storage.metadata.keys import PartitionKeys
from storage.metadata.port import Key, Record
from storage.verify.reading import StoreReading
from storage.vocabulary import ObjectId


class PlacedBytes(NamedTuple):
    """The bytes of a span, and where they begin in the object that will have them."""

    position: int
    data: memoryview


class WrongPage(NamedTuple):
    """A page that is not what was written, and why."""

    path: str
    error: StorageError


def page_keys(keys: PartitionKeys, entry: Entry) -> list[Key]:
    """The early pages that have the batches of `entry` until its object is stored. The entry is well-formed."""
    early = entry.batches
    if not isinstance(early, Early):
        return []
    positions = range(early.start, entry.extent[1], EARLY_PAGE_BYTES_MAX)
    return [metadata_keys.early_page(entry.object_id, position, keys.partition_key) for position in positions]


async def read_early(
    reading: StoreReading, keys: PartitionKeys, entry: Entry, *, known_version: int
) -> Sequence[PlacedBytes] | WrongPage | None:
    """The spans of an early entry, from its pages. None where one is gone, by an answer that knows the entry: its manifest has
    `known_version`, or a later one (E6). Raises `Unavailable`.
    """
    asked = page_keys(keys, entry)
    found: list[Record] = []
    for record in await reading.records_since(asked, manifest=keys.manifest, known_version=known_version):
        if record is None:
            return None
        found.append(record)
    assert isinstance(entry.batches, Early)
    start, end = entry.batches.start, entry.extent[1]
    parts: list[memoryview] = []
    for number, record in enumerate(found):
        needed = min(EARLY_PAGE_BYTES_MAX, end - start - number * EARLY_PAGE_BYTES_MAX)
        try:
            part = decode_page(record.value, path=record.path).data
            if len(part) < needed:
                raise Corrupt(f"an early page is cut short: key={record.path!r} bytes={len(part)} needed={needed}")
        except (Corrupt, IncompatibleFormat) as error:
            return WrongPage(record.path, without_frames(error))
        parts.append(part[:needed])
    data = parts[0] if len(parts) == 1 else memoryview(b"".join(parts))
    return [PlacedBytes(position, data[position - start : position - start + length]) for position, length in entry.spans]


class EarlyTotal(msgspec.Struct, kw_only=True):
    """Early pages in the metadata store, and those of them that no entry names. `is_all`: False if there are more than were listed."""

    pages: int = 0
    size_bytes: int = 0
    unnamed: int = 0
    unnamed_bytes: int = 0
    is_all: bool = True


class _Listed(NamedTuple):
    key: Key
    size_bytes: int


@dataclass(slots=True)
class EarlyPageList:
    """The early pages that were there when `list_early_pages` looked, as many as its limit lets it."""

    total: EarlyTotal = field(default_factory=EarlyTotal)
    _unnamed: dict[str, _Listed] = field(default_factory=dict)
    _waiting: set[ObjectId] = field(default_factory=set)

    def add(self, key: Key, size_bytes: int) -> None:
        self.total.pages += 1
        self.total.size_bytes += size_bytes
        self._unnamed[key.path] = _Listed(key, size_bytes)

    @property
    def object_ids(self) -> set[ObjectId]:
        places = [metadata_keys.place_of_page(path) for path in self._unnamed]
        return {place[0] for place in places if place is not None}

    def note_waiting(self, object_ids: Collection[ObjectId]) -> None:
        """These have pages, and are not in the object store."""
        self._waiting.update(object_ids)

    def waits(self, entry: Entry) -> bool:
        """Whether the bytes of `entry` lie in early pages, and its object is not stored yet."""
        return entry.is_early and entry.object_id in self._waiting

    def note_named(self, keys: PartitionKeys, entry: Entry) -> None:
        """A live entry names its pages. The entry is well-formed."""
        for key in page_keys(keys, entry) if self._unnamed else ():
            self._unnamed.pop(key.path, None)

    async def finish(self, reading: StoreReading) -> None:
        """Count what no entry named, once all entries were looked at: those of the pages that are still there."""
        left = list(self._unnamed.values())
        step = reading.limits.early_pages_per_read
        for begin in range(0, len(left), step):
            part = left[begin : begin + step]
            for one, record in zip(part, await reading.records([one.key for one in part]), strict=True):
                if record is not None:
                    self.total.unnamed += 1
                    self.total.unnamed_bytes += one.size_bytes


async def list_early_pages(reading: StoreReading) -> EarlyPageList:
    """List the early pages of each shard, and look which of their objects are stored. Raises `Unavailable`."""
    found = EarlyPageList()
    partition_keys = metadata_keys.shard_keys(reading.shard_of)
    count_max = max(1, reading.limits.early_pages_max // len(partition_keys))
    for partition_key in partition_keys:
        start, end = metadata_keys.early_pages(partition_key)
        count = 0
        while records := await reading.page(start, end, min(reading.limits.early_pages_per_read, count_max + 1 - count)):
            for record in records[: count_max - count]:
                found.add(start._replace(path=record.path), len(record.value))
            count += len(records)
            if count > count_max:
                found.total.is_all = False
                break
            start = start._replace(path=f"{records[-1].path}!")
    object_ids = sorted(found.object_ids)
    found.note_waiting([object_id for object_id in object_ids if not await _is_stored(reading, object_id)])
    return found


async def has_early_pages(reading: StoreReading, object_id: ObjectId) -> bool:
    """Whether early pages of this object are on any shard. Raises `Unavailable`."""
    for partition_key in metadata_keys.shard_keys(reading.shard_of):
        first, last = (metadata_keys.early_page(object_id, position, partition_key) for position in (0, metadata_keys.EARLY_POSITION_MAX))
        if await reading.page(first, f"{last.path}!", 1):
            return True
    return False


async def _is_stored(reading: StoreReading, object_id: ObjectId) -> bool:
    try:
        await reading.stat(object_key(object_id))
    except NotFound:
        return False
    return True
