"""Objects against the entries that name them: WAL objects slice by slice, segments also against their own footers.

Batches are read as they lie in an object: whole ones, one after the other, in windows of bounded memory.
"""

import contextlib
import struct
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

import msgspec

from runtime.lru import LruCache
from runtime.singleflight import SingleFlight
from storage.errors import Corrupt, EndsEarly, IncompatibleFormat, StorageError, without_frames
from storage.formats.manifest import Entry, SegmentEntry, Spans, object_of
from storage.formats.segment import FOOTER_READ_BYTES, SegmentFooter, check_block, decode_footer, footer_bytes_missing, segment_key
from storage.formats.segment import HEADER_BYTES as SEGMENT_HEADER_BYTES
from storage.formats.segment import decode_header as decode_segment_header
from storage.formats.wal import HEAD_BYTES, WalHeader, directory_bytes, header_bytes, object_key, read_header
from storage.limits import MIB, WAL_OBJECT_BYTES_MAX
from storage.recordbatch import HEADER_BYTES, BatchHeader, parse_header, verify
from storage.records import greatest_time, is_time_doubtful
from storage.verify.early import PlacedBytes
from storage.verify.entry_order import about_source
from storage.verify.findings import FindingKind, StoreFinding, kind_of
from storage.verify.reading import StoreReading
from storage.vocabulary import ObjectId, PartitionId

WINDOW_BYTES: Final = 8 * MIB
BLOCKS_WINDOW_BYTES: Final = 8 * MIB
"""Blocks that are read at once; one block may be larger."""


class StoredBatch(NamedTuple):
    """A batch whose checksum is right, and where it begins in its object. `greatest_ms` is the greatest time of its records, read where the
    header is a reason to doubt its own: else, and where they cannot be read, the header's.
    """

    position: int
    header: BatchHeader
    greatest_ms: int


async def batches_between(reading: StoreReading, key: str, begin: int, end: int) -> AsyncIterator[list[StoredBatch]]:
    """The batches of the bytes [begin, end) of an object, which begin and end with whole ones.

    Raises `NotFound`, `EndsEarly`, `Corrupt` with the position of the first batch that is not whole, `Unavailable`.
    """
    position, window_bytes = begin, WINDOW_BYTES
    while position < end:
        stop = min(end, position + window_bytes)
        window = memoryview(await reading.get(key, position, stop))
        found, used = [], 0
        for batch in whole_batches(window, key=key, position=position, is_last=stop == end):
            found.append(batch)
            used = batch.position - position + batch.header.size_bytes
        if not used:
            # One batch that is larger than the window.
            window_bytes = min(2 * window_bytes, WAL_OBJECT_BYTES_MAX)
            continue
        yield found
        position, window_bytes = position + used, WINDOW_BYTES


def whole_batches(window: memoryview, *, key: str, position: int, is_last: bool) -> Iterator[StoredBatch]:
    """The batches of `window`, bytes of an object from `position` on. The last one may be cut unless the window `is_last`."""
    at = 0
    while at < len(window):
        where = f"object={key!r} position={position + at}"
        try:
            header = parse_header(window, at)
        except struct.error:
            if not is_last:
                return
            raise Corrupt(f"not a record batch: {where} bytes={len(window) - at}") from None
        stop = at + header.size_bytes
        if not HEADER_BYTES <= header.size_bytes <= WAL_OBJECT_BYTES_MAX or (stop > len(window) and is_last):
            raise Corrupt(f"not a record batch: {where} length={header.batch_length} bytes={len(window) - at}")
        if stop > len(window):
            return
        batch = window[at:stop]
        verify(batch, header, where=where)
        if header.last_offset_delta < 0 or not 0 < header.record_count <= header.last_offset_delta + 1:
            raise Corrupt(f"not a record batch: {where} records={header.record_count} last_offset_delta={header.last_offset_delta}")
        yield StoredBatch(position + at, header, _greatest_ms(batch, header))
        at = stop


def header_times(wrong: Sequence[tuple[int, StoredBatch]]) -> str:
    """Batches, each behind its first offset, whose headers have another greatest time than their records."""
    offset, batch = wrong[0]
    first = f"the first at offset {offset}: max_timestamp={batch.header.max_timestamp}, of its records {batch.greatest_ms}"
    return f"batches={len(wrong)}, {first}"


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
    try:
        return WalHead(size_bytes, await read_header(partial(reading.get, key), key=key, size_bytes=size_bytes))
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


def of_order(entry: Entry, head: WalHead, *, key: str, partition: PartitionId) -> Iterator[StoreFinding]:
    """What is wrong with the places of slices: they lie back to back, behind the header, or between the head and the directory."""
    header = head.header
    if isinstance(header, StorageError):
        return
    count = len(header.slices)
    following, end = header_bytes(count), head.size_bytes
    if count and header.slices[0].position == HEAD_BYTES:  # format 2: no header of format 1 is as short
        following, end = HEAD_BYTES, end - directory_bytes(count)
    for one in header.slices:
        if one.position != following or one.length <= 0:
            break
        following += one.length
    else:
        if following == end:
            return
        text = f"the slices that the header names end at {following}, and should at {end}"
        yield about_source(FindingKind.HEADER_DAMAGED, text, entry, key=key, partition=partition)
        return
    text = f"a slice of {one.length} bytes begins at {one.position}, and what is before it ends at {following}"
    yield about_source(FindingKind.HEADER_DAMAGED, text, entry, key=key, partition=partition)


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
    return of_placed(entry, [PlacedBytes(0, memoryview(batches))], name=object_of(entry, partition), key=key, partition=partition)


def of_placed(entry: Entry, spans: Sequence[PlacedBytes], *, name: str, key: str, partition: PartitionId) -> Iterator[StoreFinding]:
    """What is wrong with the batches of an entry, whose bytes are at hand. `name`: what they lie in."""
    totals = _Totals(entry)
    try:
        for position, data in spans:
            for batch in whole_batches(data, key=name, position=position, is_last=True):
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


class CheckedFooter(NamedTuple):
    footer: SegmentFooter | None
    findings: list[StoreFinding]


async def read_footer(reading: StoreReading, key: str, size_bytes: int) -> SegmentFooter:
    """The footer of an object of `size_bytes`. Raises `NotFound`, `EndsEarly`, `Corrupt`, `IncompatibleFormat`."""
    begin = max(0, size_bytes - FOOTER_READ_BYTES)
    tail = await reading.get(key, begin, size_bytes)
    missing_bytes = footer_bytes_missing(tail, size_bytes=size_bytes, key=key)
    if missing_bytes:
        tail = b"".join([await reading.get(key, begin - missing_bytes, begin), tail])
    return decode_footer(tail, size_bytes=size_bytes, key=key)


async def of_footer(reading: StoreReading, entry: SegmentEntry, *, key: str, partition: PartitionId) -> CheckedFooter:
    """The footer of a segment, and what it says against the entry. Raises `NotFound`."""
    name = segment_key(partition, entry.object_id)

    def about(kind: FindingKind, text: str) -> StoreFinding:
        return about_source(kind, text, entry, key=key, partition=partition)

    size_bytes = (await reading.stat(name)).size_bytes
    if size_bytes != entry.size_bytes:
        return CheckedFooter(
            None, [about(FindingKind.OBJECT_CUT, f"the object has {size_bytes} bytes, and its entry says {entry.size_bytes}")]
        )
    try:
        footer = await read_footer(reading, name, size_bytes)
    except (Corrupt, IncompatibleFormat) as error:
        return CheckedFooter(None, [about(kind_of(error, FindingKind.FOOTER_DAMAGED), str(error))])
    found = []
    if (footer.base, footer.last) != (entry.base, entry.last):
        text = f"the footer covers {footer.base}..{footer.last}, the entry {entry.base}..{entry.last}"
        found.append(about(FindingKind.OFFSETS_WRONG, text))
    if footer.max_timestamp > entry.max_timestamp:
        text = f"max_timestamp={entry.max_timestamp}, of the segment {footer.max_timestamp}"
        found.append(about(FindingKind.TIMESTAMP_WRONG, text))
    return CheckedFooter(footer, found)


async def of_blocks(
    reading: StoreReading, entry: SegmentEntry, footer: SegmentFooter, *, key: str, partition: PartitionId
) -> list[StoreFinding]:
    """What is wrong with the header and the blocks of a segment: all of it is read. Raises `NotFound`."""
    name = segment_key(partition, entry.object_id)
    found: list[StoreFinding] = []

    def wrong(kind: FindingKind, text: str, block: int | None = None) -> None:
        whole = about_source(kind, text, entry, key=key, partition=partition)
        found.append(whole if block is None else _of_block(whole, footer, block))

    batch_count = record_count = 0
    last = entry.base - 1
    greatest = (-(2**63) - 1, -1)
    try:
        header = decode_segment_header(await reading.get(name, 0, SEGMENT_HEADER_BYTES), key=name)
        if header.base != footer.base:
            wrong(FindingKind.FOOTER_DAMAGED, f"the header begins at {header.base}, the footer at {footer.base}")
    except (Corrupt, IncompatibleFormat) as error:
        wrong(kind_of(error, FindingKind.FOOTER_DAMAGED), str(error))
    except EndsEarly as error:
        wrong(FindingKind.OBJECT_CUT, str(error))
        return found
    is_whole = True
    for first, stop in _windows(footer):
        begin = footer.positions[first]
        window = memoryview(await reading.get(name, begin, footer.positions[stop - 1] + footer.lengths[stop - 1]))
        for block in range(first, stop):
            at = footer.positions[block] - begin
            body = window[at : at + footer.lengths[block]]
            try:
                check_block(body, footer, block, key=name)
                batches = list(whole_batches(body, key=name, position=begin + at, is_last=True))
            except Corrupt as error:
                wrong(FindingKind.BLOCK_DAMAGED, str(error), block)
                is_whole, last = False, footer.lasts[block]
                continue
            if text := _misfit(batches, footer, block, after=last):
                wrong(FindingKind.OFFSETS_WRONG, text, block)
            last = footer.lasts[block]
            batch_count += len(batches)
            record_count += sum([batch.header.record_count for batch in batches])
            times = [(batch.header.max_timestamp, -batch.header.base_offset) for batch in batches]
            if footer.max_timestamps[block] != max(times)[0]:
                text = f"the footer says max_timestamp={footer.max_timestamps[block]} of block {block}, its batches {max(times)[0]}"
                wrong(FindingKind.TIMESTAMP_WRONG, text, block)
            greatest = max(greatest, *times)
            misdated = [(batch.header.base_offset, batch) for batch in batches if batch.greatest_ms != batch.header.max_timestamp]
            if misdated:
                wrong(FindingKind.HEADER_TIME_WRONG, header_times(misdated), block)
    if is_whole and (batch_count, record_count) != (footer.batch_count, footer.record_count):
        text = f"{batch_count} batches of {record_count} records, the footer says {footer.batch_count} of {footer.record_count}"
        wrong(FindingKind.OFFSETS_WRONG, text)
    if is_whole and (greatest[0], -greatest[1]) != (footer.max_timestamp, footer.max_timestamp_offset):
        footers = f"max_timestamp={footer.max_timestamp} at {footer.max_timestamp_offset}"
        text = f"the footer says {footers}, the batches {greatest[0]} at {-greatest[1]}"
        wrong(FindingKind.TIMESTAMP_WRONG, text)
    return found


def _greatest_ms(batch: memoryview, header: BatchHeader) -> int:
    if is_time_doubtful(batch, header):
        with contextlib.suppress(Corrupt):
            return greatest_time(batch, header)
    return header.max_timestamp


def _slices_of(head: WalHead) -> int:
    return 1 if isinstance(head.header, StorageError) else len(head.header.slices)


def _windows(footer: SegmentFooter) -> list[tuple[int, int]]:
    """Ranges of consecutive blocks that are read at once."""
    found, first, size_bytes = [], 0, 0
    for block, length in enumerate(footer.lengths):
        if block > first and size_bytes + length > BLOCKS_WINDOW_BYTES:
            found.append((first, block))
            first, size_bytes = block, 0
        size_bytes += length
    return [*found, (first, len(footer.lengths))]


def _misfit(batches: list[StoredBatch], footer: SegmentFooter, block: int, *, after: int) -> str | None:
    """How the offsets of a block's batches contradict each other or the footer; None if they do not."""
    last = after
    for batch in batches:
        base = batch.header.base_offset
        if base <= last:
            return f"a batch at {batch.position} has base offset {base}, behind offset {last}"
        last = base + batch.header.last_offset_delta
    first = batches[0].header.base_offset
    if (first, last) != (footer.firsts[block], footer.lasts[block]):
        return f"block {block} has offsets {first}..{last}, the footer says {footer.firsts[block]}..{footer.lasts[block]}"
    return None


def _of_block(whole: StoreFinding, footer: SegmentFooter, block: int) -> StoreFinding:
    return msgspec.structs.replace(whole, first_offset=footer.firsts[block], last_offset=footer.lasts[block])
