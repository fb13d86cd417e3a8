"""Segments against the entries that name them, and against their own footers."""

from typing import Final, NamedTuple

import msgspec

from storage.errors import Corrupt, EndsEarly, IncompatibleFormat
from storage.formats.control import SegmentEntry
from storage.formats.segment import (
    FOOTER_READ_BYTES,
    SegmentFooter,
    check_block,
    decode_footer,
    footer_bytes_missing,
    segment_key,
)
from storage.formats.segment import HEADER_BYTES as SEGMENT_HEADER_BYTES
from storage.formats.segment import decode_header as decode_segment_header
from storage.limits import MIB
from storage.verify.batches import StoredBatch, header_times, whole_batches
from storage.verify.entry_order import about_source
from storage.verify.findings import FindingKind, StoreFinding, kind_of
from storage.verify.reading import StoreReading
from storage.vocabulary import PartitionId

WINDOW_BYTES: Final = 8 * MIB
"""Blocks that are read at once; one block may be larger."""


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


def _windows(footer: SegmentFooter) -> list[tuple[int, int]]:
    """Ranges of consecutive blocks that are read at once."""
    found, first, size_bytes = [], 0, 0
    for block, length in enumerate(footer.lengths):
        if block > first and size_bytes + length > WINDOW_BYTES:
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
