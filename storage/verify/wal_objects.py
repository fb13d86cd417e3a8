"""WAL objects against the entries that name them."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from runtime.lru import LruCache
from storage.cache.singleflight import SingleFlight
from storage.errors import Corrupt, EndsEarly, IncompatibleFormat, StorageError, without_frames
from storage.formats.control import Entry, Spans, object_of
from storage.formats.wal import WalHeader, decode_header, header_bytes, object_key
from storage.limits import KIB
from storage.verify.batches import StoredBatch, batches_between, header_times, whole_batches
from storage.verify.entry_order import about_source
from storage.verify.findings import FindingKind, StoreFinding, kind_of
from storage.verify.reading import StoreReading
from storage.vocabulary import ObjectId, PartitionId

HEADER_READ_BYTES: Final = 16 * KIB
"""How much of an object is read at first: the header of up to 450 slices."""
_SIZE_AT: Final = 12
_SIZE: Final = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class WalHead:
    """What is known of an object: its size, and its header or why there is none."""

    size_bytes: int
    header: WalHeader | StorageError


class WalHeads:
    """The beginnings of WAL objects, each read once for the partitions that are verified side by side."""

    def __init__(self, reading: StoreReading) -> None:
        self._reading = reading
        self._kept: LruCache[ObjectId, WalHead] = LruCache(reading.limits.slices_kept_max, cost=_slices_of)
        self._reads: SingleFlight[ObjectId, WalHead] = SingleFlight()

    async def get(self, object_id: ObjectId) -> WalHead:
        """Raise `NotFound` if there is no such object."""
        kept = self._kept.get(object_id)
        if kept is not None:
            return kept
        return await self._reads.run(object_id, lambda: self._read(object_id))

    async def _read(self, object_id: ObjectId) -> WalHead:
        head = await read_head(self._reading, object_key(object_id))
        self._kept.put(object_id, head)
        return head


async def read_head(reading: StoreReading, key: str) -> WalHead:
    """Raise `NotFound` if there is no such object."""
    size_bytes = (await reading.stat(key)).size_bytes
    data = await reading.get(key, 0, min(size_bytes, HEADER_READ_BYTES))
    if len(data) == HEADER_READ_BYTES:
        (needed,) = _SIZE.unpack_from(data, _SIZE_AT)
        if HEADER_READ_BYTES < needed <= min(size_bytes, header_bytes(2**16 - 1)):
            data = await reading.get(key, 0, needed)
    try:
        return WalHead(size_bytes, decode_header(data, key=key))
    except (Corrupt, IncompatibleFormat) as error:
        return WalHead(size_bytes, without_frames(error))


def of_head(entry: Entry, spans: Spans, head: WalHead, *, key: str, partition: PartitionId) -> Iterator[StoreFinding]:
    """What the beginning of an object says against an entry that names the object."""

    def about(kind: FindingKind, text: str) -> StoreFinding:
        return about_source(kind, text, entry, key=key, partition=partition)

    end = max(position + length for position, length in spans)
    if head.size_bytes < end:
        yield about(FindingKind.OBJECT_CUT, f"the object has {head.size_bytes} bytes, and the entry needs {end}")
    header = head.header
    if isinstance(header, StorageError):
        yield about(kind_of(header, FindingKind.HEADER_DAMAGED), str(header))
        return
    if header.object_id != entry.object_id:
        yield about(FindingKind.HEADER_DAMAGED, f"the object calls itself {header.object_id!r}")
    slices = [(one.position, one.position + one.length) for one in header.slices if one.partition == partition]
    for position, length in spans:
        end = position + length
        if not any(start <= position and end <= stop for start, stop in slices):
            others = [str(one.partition) for one in header.slices if one.position < end and position < one.position + one.length]
            theirs = f"of {', '.join(others[:4])}" if others else "of no partition"
            yield about(FindingKind.NOT_NAMED, f"bytes [{position}, {end}) are {theirs} by the header")


async def of_slices(reading: StoreReading, entry: Entry, spans: Spans, *, key: str, partition: PartitionId) -> list[StoreFinding]:
    """What is wrong with the batches of an entry: all of them are read. Raises `NotFound`."""
    name = object_key(entry.object_id)
    totals = _Totals(entry)

    def about(kind: FindingKind, text: str) -> StoreFinding:
        return about_source(kind, text, entry, key=key, partition=partition)

    try:
        for position, length in spans:
            async for batches in batches_between(reading, name, position, position + length):
                for batch in batches:
                    totals.add(batch)
    except EndsEarly as error:
        return [about(FindingKind.OBJECT_CUT, str(error))]
    except Corrupt as error:
        return [about(FindingKind.BATCH_DAMAGED, f"{error} offset={totals.end}")]
    return list(totals.findings(key=key, partition=partition))


def of_inline(entry: Entry, batches: bytes, *, key: str, partition: PartitionId) -> Iterator[StoreFinding]:
    """What is wrong with the batches that an entry carries."""
    totals = _Totals(entry)
    try:
        for batch in whole_batches(memoryview(batches), key=object_of(entry, partition), position=0, is_last=True):
            totals.add(batch)
    except Corrupt as error:
        yield about_source(FindingKind.BATCH_DAMAGED, f"{error} offset={totals.end}", entry, key=key, partition=partition)
        return
    yield from totals.findings(key=key, partition=partition)


class _Totals:
    """What the batches of an entry are together. `end`: the offset behind them."""

    def __init__(self, entry: Entry) -> None:
        self.end = entry.base
        self._entry = entry
        self._greatest = -1
        self._wrong: list[tuple[int, StoredBatch]] = []

    def add(self, batch: StoredBatch) -> None:
        if batch.greatest_ms != batch.header.max_timestamp:
            self._wrong.append((self.end, batch))
        self.end += batch.header.last_offset_delta + 1
        self._greatest = max(self._greatest, batch.header.max_timestamp)

    def findings(self, *, key: str, partition: PartitionId) -> Iterator[StoreFinding]:
        entry = self._entry
        if self.end != entry.last + 1:
            text = f"the batches end before offset {self.end}, the entry before {entry.last + 1}"
            yield about_source(FindingKind.OFFSETS_WRONG, text, entry, key=key, partition=partition)
        if self._greatest != entry.max_timestamp:
            text = f"max_timestamp={entry.max_timestamp}, of the batches {self._greatest}"
            yield about_source(FindingKind.TIMESTAMP_WRONG, text, entry, key=key, partition=partition)
        if self._wrong:
            text = header_times(self._wrong)
            yield about_source(FindingKind.HEADER_TIME_WRONG, text, entry, key=key, partition=partition)


def _slices_of(head: WalHead) -> int:
    return 1 if isinstance(head.header, StorageError) else len(head.header.slices)
