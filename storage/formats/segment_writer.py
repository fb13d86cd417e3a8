"""Writes a segment (storage/formats/segment.py) from runs of batches: it reads their headers, and copies none of their bytes. Pure."""

import struct
from array import array
from typing import Final, NamedTuple

from crc32c import crc32c

from storage.formats.segment import HEADER_BYTES, SegmentFooter, SegmentHeader, encode_footer, encode_header, footer_bytes, segment_key
from storage.limits import SEGMENT_BLOCK_BYTES_TARGET, SEGMENT_BLOCKS_MAX, SEGMENT_BYTES_MAX
from storage.recordbatch import HEADER_BYTES as BATCH_HEADER_BYTES
from storage.recordbatch import LENGTH_OFFSET_BYTES
from storage.recordbatch import MAGIC as BATCH_MAGIC
from storage.vocabulary import Buffer, ObjectId, PartitionId

_BATCH: Final = struct.Struct(">qiib6xi8xq14xi")
"""base offset, batch length, leader epoch, magic, last offset delta, max timestamp, record count."""
_BEFORE_ALL_TIMES: Final = -(2**63) - 1

assert _BATCH.size == BATCH_HEADER_BYTES


class Segment(NamedTuple):
    """An object ready for the store, under `key`, and the facts of its entry."""

    key: str
    parts: list[Buffer]
    size_bytes: int
    footer: SegmentFooter


class SegmentWriter:
    """Takes the batches of `partition` in the order of their offsets. `base` is the first offset that the segment covers."""

    def __init__(self, partition: PartitionId, object_id: ObjectId, base: int, *, block_bytes: int = SEGMENT_BLOCK_BYTES_TARGET) -> None:
        self._partition = partition
        self._object_id = object_id
        self._base = base
        self._block_bytes = block_bytes
        self._parts: list[Buffer] = [encode_header(SegmentHeader(partition, object_id, base))]
        self._body_bytes = 0
        self._batch_count = 0
        self._record_count = 0
        self._last = base - 1
        self._max_timestamp = _BEFORE_ALL_TIMES
        self._max_timestamp_offset = -1
        self._firsts = array("q")
        self._lasts = array("q")
        self._lengths = array("I")
        self._checksums = array("I")
        self._max_timestamps = array("q")
        # The block that is open; it has no batch yet if it has no bytes.
        self._first = 0
        self._length = 0
        self._checksum = 0
        self._block_max_timestamp = _BEFORE_ALL_TIMES

    @property
    def size_bytes(self) -> int:
        """The size of the object, if nothing is added to it any more."""
        return HEADER_BYTES + self._body_bytes + footer_bytes(len(self._firsts) + (self._length > 0))

    def add(self, run: Buffer) -> None:
        """Take whole batches, stamped with offsets above those of all before them. Their bytes must not change until the object is put."""
        view = memoryview(run)
        size = len(view)
        position = unsummed = 0
        while position < size:
            assert size - position >= BATCH_HEADER_BYTES, f"not a whole batch: {position=} {size=}"
            base, length, epoch, magic, last_delta, timestamp, count = _BATCH.unpack_from(view, position)
            batch_bytes = length + LENGTH_OFFSET_BYTES
            assert magic == BATCH_MAGIC, f"not a batch: {position=} {magic=}"
            assert BATCH_HEADER_BYTES <= batch_bytes <= size - position, f"not a whole batch: {position=} {length=} {size=}"
            assert base > self._last, f"out of order: {base=} last={self._last}"
            assert epoch == 0, f"not stamped: {base=} {epoch=}"
            assert 0 < count <= last_delta + 1, f"more records than offsets, or none: {base=} {count=} {last_delta=}"
            position += batch_bytes
            if not self._length:
                self._first = base
            self._length += batch_bytes
            self._last = base + last_delta
            self._batch_count += 1
            self._record_count += count
            if timestamp > self._block_max_timestamp:
                self._block_max_timestamp = timestamp
                if timestamp > self._max_timestamp:
                    self._max_timestamp, self._max_timestamp_offset = timestamp, base
            if self._length >= self._block_bytes:
                self._checksum = crc32c(view[unsummed:position], self._checksum)
                unsummed = position
                self._end_block()
        if unsummed < size:
            self._checksum = crc32c(view[unsummed:], self._checksum)
        if size:
            self._body_bytes += size
            self._parts.append(view)

    def finish(self, last: int) -> Segment:
        """The object, which covers the offsets up to `last`. The writer is of no use after it."""
        if self._length:
            self._end_block()
        assert self._firsts, "a segment holds at least one batch"
        assert self._last <= last, f"a batch above the last offset: last={last} of_batches={self._last}"
        assert len(self._firsts) <= SEGMENT_BLOCKS_MAX, f"at most {SEGMENT_BLOCKS_MAX} blocks: {len(self._firsts)}"
        assert self.size_bytes <= SEGMENT_BYTES_MAX, f"at most {SEGMENT_BYTES_MAX} bytes: {self.size_bytes}"
        positions = array("Q", [HEADER_BYTES])
        for length in self._lengths[:-1]:
            positions.append(positions[-1] + length)
        footer = SegmentFooter(
            partition=self._partition,
            object_id=self._object_id,
            base=self._base,
            last=last,
            batch_count=self._batch_count,
            record_count=self._record_count,
            body_bytes=self._body_bytes,
            max_timestamp=self._max_timestamp,
            max_timestamp_offset=self._max_timestamp_offset,
            firsts=self._firsts,
            lasts=self._lasts,
            positions=positions,
            lengths=self._lengths,
            checksums=self._checksums,
            max_timestamps=self._max_timestamps,
        )
        parts = [*self._parts, encode_footer(footer)]
        return Segment(segment_key(self._partition, self._object_id), parts, self.size_bytes, footer)

    def _end_block(self) -> None:
        self._firsts.append(self._first)
        self._lasts.append(self._last)
        self._lengths.append(self._length)
        self._checksums.append(self._checksum)
        self._max_timestamps.append(self._block_max_timestamp)
        self._length = self._checksum = 0
        self._block_max_timestamp = _BEFORE_ALL_TIMES
