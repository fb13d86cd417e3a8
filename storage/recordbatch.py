"""Record batch v2: the header of our unit of data at rest. Records inside stay bytes (Kafka protocol guide, KIP-98).

    baseOffset 0-7 | batchLength 8-11 | partitionLeaderEpoch 12-15 | magic 16 | crc 17-20 | attributes 21-22 | lastOffsetDelta 23-26
    baseTimestamp 27-34 | maxTimestamp 35-42 | producerId 43-50 | producerEpoch 51-52 | baseSequence 53-56 | recordCount 57-60 | records 61-

The CRC-32C covers byte 21 to the end: base offset, length, leader epoch and magic lie outside it, so a stored batch is given its
offset when it is read, at no cost.

Batches follow each other in several buffers: `cut_views` and its like cut from these what is read and sent, without a copy.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from crc32c import crc32c

from storage.errors import Corrupt
from storage.vocabulary import Buffer

HEADER_BYTES: Final = 61
LENGTH_OFFSET_BYTES: Final = 12
"""What `batch_length` does not count: base offset and itself."""
STAMP_BYTES: Final = 16
"""The first bytes of a batch, in which `restamp` writes."""
CRC_FROM_BYTES: Final = 21
MAGIC: Final = 2
CODEC_MASK: Final = 0x07
ATTRIBUTE_LOG_APPEND_TIME: Final = 0x08
ATTRIBUTE_TRANSACTIONAL: Final = 0x10
ATTRIBUTE_CONTROL: Final = 0x20
NO_PRODUCER: Final = -1
NO_TIMESTAMP: Final = -1
_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_OFFSET: Final = struct.Struct(">q")
_EPOCH: Final = struct.Struct(">i")

assert _HEADER.size == HEADER_BYTES


class BatchHeader(NamedTuple):
    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        return self.batch_length + LENGTH_OFFSET_BYTES


def parse_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Raise struct.error if fewer than 61 bytes are there."""
    return BatchHeader._make(_HEADER.unpack_from(buffer, position))


def checksum(batch: Buffer) -> int:
    """CRC-32C of what the header's crc covers; `batch` is exactly one batch."""
    return crc32c(memoryview(batch)[CRC_FROM_BYTES:])


def restamp(buffer: bytearray | memoryview, position: int, base_offset: int) -> None:
    """Give the batch at `position` its offset, and leader epoch 0 (I12), in place."""
    _OFFSET.pack_into(buffer, position, base_offset)
    _EPOCH.pack_into(buffer, position + 12, 0)


def stamp_log_append_time(batch: bytearray | memoryview, append_ms: int) -> None:
    """Mark one batch as LogAppendTime: attribute bit 3, max timestamp, and the CRC that covers both."""
    stamp_attributes(batch, int.from_bytes(batch[21:23], "big", signed=True), append_ms=append_ms)


def stamp_max_timestamp(batch: bytearray | memoryview, max_timestamp: int) -> None:
    """Give one batch its greatest time, and the CRC that covers it."""
    struct.pack_into(">q", batch, 35, max_timestamp)
    struct.pack_into(">I", batch, 17, checksum(batch))


def stamp_attributes(batch: bytearray | memoryview, attributes: int, *, append_ms: int | None = None) -> None:
    """Give one batch these attributes, those of LogAppendTime too if `append_ms` is one, and the CRC that covers what it is then."""
    if append_ms is not None:
        attributes |= ATTRIBUTE_LOG_APPEND_TIME
        struct.pack_into(">q", batch, 35, append_ms)
    struct.pack_into(">h", batch, 21, attributes)
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))


def verify(batch: Buffer, header: BatchHeader, *, where: object) -> None:
    """Check bytes that came back from an object store. Raise `Corrupt`, which says `where`."""
    _check_shape(header, len(batch), where)
    _check_crc(header, checksum(batch), where)


def verify_parts(parts: Sequence[memoryview], *, where: object) -> None:
    """As `verify`, of the batch that `parts` are together."""
    size = sum(map(len, parts))
    if size < HEADER_BYTES:
        raise Corrupt(f"not a record batch: {where} bytes={size}")
    if len(parts) == 1:
        verify(parts[0], parse_header(parts[0]), where=where)
        return
    header = parse_header(b"".join(cut_views(parts, 0, HEADER_BYTES)))
    _check_shape(header, size, where)
    crc = 0
    for view in cut_views(parts, CRC_FROM_BYTES, size):
        crc = crc32c(view, crc)
    _check_crc(header, crc, where)


def cut_views(views: Sequence[memoryview], start: int, end: int) -> list[memoryview]:
    """Bytes [start, end) of what `views` hold together, none of them empty."""
    found: list[memoryview] = []
    begin = 0
    for view in views:
        if begin >= end:
            break
        after = begin + len(view)
        if after > start:
            is_whole = start <= begin and after <= end
            piece = view if is_whole else view[max(start - begin, 0) : min(end, after) - begin]
            if len(piece):
                found.append(piece)
        begin = after
    return found


def split_views(views: Sequence[memoryview], ends: Iterable[int]) -> Iterator[list[memoryview]]:
    """What lies before the first of the rising `ends`, between it and the second, and so on: as by `cut_views`, in one walk."""
    number = position = begin = 0
    for end in ends:
        found: list[memoryview] = []
        while position < end and number < len(views):
            view = views[number]
            after = begin + len(view)
            cut = min(end, after)
            if cut > position:
                found.append(view if position == begin and cut == after else view[position - begin : cut - begin])
            position = cut
            if after <= end:
                number, begin = number + 1, after
        yield found


def in_parts(body: Buffer, start: int, part_bytes: int) -> list[Buffer]:
    """What `get_parts` of a store gives of a body that begins at `start` of its object: copies, unless it is `bytes` in one part. Other
    buffers may be a small piece of the memory that they keep alive.
    """
    cuts = [0, *range(part_bytes - start % part_bytes, len(body), part_bytes), len(body)]
    if len(cuts) == 2:
        return [bytes(body)]
    view = memoryview(body)
    return [bytes(view[begin:end]) for begin, end in pairwise(cuts)]


def _check_shape(header: BatchHeader, size: int, where: object) -> None:
    if header.magic != MAGIC or header.size_bytes != size or size < HEADER_BYTES:
        raise Corrupt(f"not a record batch: {where} magic={header.magic} length={header.batch_length} bytes={size}")


def _check_crc(header: BatchHeader, actual: int, where: object) -> None:
    if actual != header.crc:
        raise Corrupt(f"checksum mismatch: {where} expected={header.crc:#010x} actual={actual:#010x}")
