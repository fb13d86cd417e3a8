"""Batches as they lie in an object: whole ones, one after the other, in windows of bounded memory."""

import contextlib
import struct
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Final, NamedTuple

from storage.errors import Corrupt
from storage.limits import MIB, WAL_OBJECT_BYTES_MAX
from storage.recordbatch import HEADER_BYTES, BatchHeader, parse_header, verify
from storage.records import greatest_time, is_time_doubtful
from storage.verify.reading import StoreReading

WINDOW_BYTES: Final = 8 * MIB


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


def _greatest_ms(batch: memoryview, header: BatchHeader) -> int:
    if is_time_doubtful(batch, header):
        with contextlib.suppress(Corrupt):
            return greatest_time(batch, header)
    return header.max_timestamp


def header_times(wrong: Sequence[tuple[int, StoredBatch]]) -> str:
    """Batches, each behind its first offset, whose headers have another greatest time than their records."""
    offset, batch = wrong[0]
    first = f"the first at offset {offset}: max_timestamp={batch.header.max_timestamp}, of its records {batch.greatest_ms}"
    return f"batches={len(wrong)}, {first}"
