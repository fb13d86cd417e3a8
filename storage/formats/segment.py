"""The segment, format 1: batches of one partition at their offsets, in blocks, behind a footer that finds them.

     0   8   magic "FOREBAYS"
     8   2   format (1)
    10   2   bytes of the header, its checksum included (70)
    12  16   topic id (UUID)
    28   4   partition
    32  26   object id (ULID, ASCII)
    58   8   first offset that the segment covers
    66   4   CRC-32C of all bytes before it
    70       record batches v2 with their offsets and leader epoch 0, in blocks, back to back
     …  40n  the footer begins: blocks, in the order of their bytes:
                 0   8   base offset of the first batch
                 8   8   last offset of the last batch
                16   8   position in the object
                24   4   length
                28   8   greatest timestamp of a batch (signed; -1: none)
                36   4   CRC-32C of the block
     …       sections: tag (2), flags (2; 1: a reader must know it), length (4), bytes
     …   8   first offset that the segment covers
     …   8   last offset that it covers
     …   8   number of records
     …   8   bytes of all batches
     …   8   greatest timestamp (signed)
     …   8   base offset of the batch that has it (signed; -1: none)
     …   4   number of batches
     …   4   number of blocks n
     …   4   bytes of all sections
     …   4   bytes of the footer, from the first block to the end of the object
     …   2   format (1)
     …   2   zero
     …   4   CRC-32C of the footer before it
     …   8   magic "FOREBAYE", the end of the object

All integers are big-endian, and unsigned where nothing else is said. A block ends with the first batch that brings it to its target:
no batch lies in two. Offsets rise from batch to batch; some may be missing between batches, and at both ends of what the segment covers.
The checksum of a block covers the offsets of its batches, which their own checksums leave out.
"""

import struct
import uuid
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from runtime.ulid import ULID_LENGTH
from storage.errors import Corrupt, IncompatibleFormat
from storage.formats.wal import uuid_bytes
from storage.limits import KIB, SEGMENT_BLOCK_BYTES, SEGMENT_BLOCKS_MAX, SEGMENT_SECTIONS_BYTES_MAX
from storage.recordbatch import parse_header
from storage.vocabulary import Buffer, ObjectId, PartitionId, TopicId

MAGIC: Final = b"FOREBAYS"
END_MAGIC: Final = b"FOREBAYE"
FMT: Final = 1
PREFIX: Final = "segments/"
REQUIRED: Final = 1
"""Flag of a section: a reader that does not know its tag must not read the segment."""
FOOTER_READ_BYTES: Final = 16 * KIB
"""A read of so many bytes at the end of an object holds the footer of a segment of 64 MiB."""

_HEADER: Final = struct.Struct(">8sHH16sI26sQ")
_BLOCK: Final = struct.Struct(">QQQIqI")
_SECTION: Final = struct.Struct(">HHI")
_SUMMARY: Final = struct.Struct(">QQQQqqIIIIHH")
_CHECKSUM: Final = struct.Struct(">I")
_LAST: Final = struct.Struct(">8xQ")

HEADER_BYTES: Final = _HEADER.size + _CHECKSUM.size
END_BYTES: Final = _SUMMARY.size + _CHECKSUM.size + len(END_MAGIC)
"""What every footer ends with."""
FOOTER_BYTES_MAX: Final = SEGMENT_BLOCKS_MAX * _BLOCK.size + SEGMENT_SECTIONS_BYTES_MAX + END_BYTES

assert HEADER_BYTES == 70
assert ULID_LENGTH == 26


class Block(NamedTuple):
    """Batches that lie at bytes [position, position + length): offsets base to last, with gaps if some are missing."""

    base: int
    last: int
    position: int
    length: int
    max_timestamp: int
    checksum: int


class Section(NamedTuple):
    tag: int
    is_required: bool
    body: bytes


class SegmentFooter:
    """The blocks of one segment and what they hold in all. `size_bytes` is that of the object."""

    __slots__ = (
        "_blocks",
        "base",
        "batch_count",
        "body_bytes",
        "last",
        "max_timestamp",
        "max_timestamp_offset",
        "record_count",
        "sections",
        "size_bytes",
    )

    def __init__(self, blocks: bytes, sections: tuple[Section, ...], summary: tuple[int, ...], size_bytes: int) -> None:
        self._blocks = blocks
        self.sections = sections
        self.base, self.last, self.record_count, self.body_bytes, self.max_timestamp, self.max_timestamp_offset, self.batch_count = summary[
            :7
        ]
        self.size_bytes = size_bytes

    def __len__(self) -> int:
        """The number of blocks."""
        return len(self._blocks) // _BLOCK.size

    def __getitem__(self, number: int) -> Block:
        assert 0 <= number < len(self)
        return Block._make(_BLOCK.unpack_from(self._blocks, number * _BLOCK.size))

    def __iter__(self) -> Iterator[Block]:
        return map(Block._make, _BLOCK.iter_unpack(self._blocks))

    @property
    def memory_bytes(self) -> int:
        """Estimated."""
        return len(self._blocks) + sum(len(section.body) for section in self.sections) + 512

    def find(self, offset: int) -> int | None:
        """The first block with a batch that ends at or behind `offset`; None if all end before it."""
        count = len(self)
        number = bisect_left(range(count), offset, key=self._last_of)
        return number if number < count else None

    def first_reaching(self, timestamp_ms: int, *, begin: int = 0) -> int | None:
        """The first block from `begin` on whose greatest timestamp is at least that."""
        for number in range(begin, len(self)):
            if self[number].max_timestamp >= timestamp_ms:
                return number
        return None

    def _last_of(self, number: int) -> int:
        last: int = _LAST.unpack_from(self._blocks, number * _BLOCK.size)[0]
        return last


class WrittenSegment(NamedTuple):
    """A segment in memory: the concatenation of `parts` is the object."""

    parts: list[Buffer]
    footer: SegmentFooter


class SegmentWriter:
    """Lays out batches that have their offsets. It keeps what it is given and copies no record."""

    def __init__(self, partition: PartitionId, object_id: ObjectId, base: int, *, block_bytes: int = SEGMENT_BLOCK_BYTES) -> None:
        assert block_bytes > 0
        self._base = base
        self._block_bytes = block_bytes
        body = _HEADER.pack(MAGIC, FMT, HEADER_BYTES, uuid_bytes(partition.topic_id), partition.partition, object_id.encode("ascii"), base)
        self._parts: list[Buffer] = [body + _CHECKSUM.pack(crc32c(body))]
        self._blocks: list[bytes] = []
        self._position = self._block_position = HEADER_BYTES
        self._block_base = -1
        self._block_timestamp = -1
        self._checksum = 0
        self._last = base - 1
        self._batches = self._records = 0
        self._max_timestamp = self._max_timestamp_offset = -1

    @property
    def body_bytes(self) -> int:
        return self._position - HEADER_BYTES

    def add(self, buffer: memoryview, starts: Sequence[int], positions: Sequence[int]) -> None:
        """Batches that fill `buffer`: batch i begins at `positions[i]` and has the base offset `starts[i]`."""
        self._parts.append(buffer)
        ends = (*positions[1:], len(buffer))
        begun = 0  # where the part of the block begins that lies in this buffer
        for start, position, end in zip(starts, positions, ends, strict=True):
            header = parse_header(buffer, position)
            assert header.base_offset == start > self._last, f"offsets do not rise: base={start} after={self._last}"
            assert header.size_bytes == end - position, f"not one batch: base={start} bytes={end - position} length={header.batch_length}"
            if self._block_base < 0:
                self._block_base = start
            self._last = start + header.last_offset_delta
            self._batches += 1
            self._records += header.record_count
            self._block_timestamp = max(self._block_timestamp, header.max_timestamp)
            if header.max_timestamp > self._max_timestamp:
                self._max_timestamp, self._max_timestamp_offset = header.max_timestamp, start
            if self._position + end - self._block_position >= self._block_bytes:
                self._checksum = crc32c(buffer[begun:end], self._checksum)
                self._end_block(self._position + end)
                begun = end
        if begun < len(buffer):
            self._checksum = crc32c(buffer[begun:], self._checksum)
        self._position += len(buffer)

    def finish(self, last: int, sections: Sequence[Section] = ()) -> WrittenSegment:
        """The segment covers offsets up to `last`. Nothing may be added any more."""
        assert self._batches, "a segment has at least one batch"
        assert last >= self._last, f"batches behind the end: last={last} batch={self._last}"
        if self._block_base >= 0:
            self._end_block(self._position)
        assert len(self._blocks) <= SEGMENT_BLOCKS_MAX, f"too many blocks: {len(self._blocks)}"
        blocks = b"".join(self._blocks)
        packed = b"".join(_SECTION.pack(one.tag, REQUIRED * one.is_required, len(one.body)) + one.body for one in sections)
        assert len(packed) <= SEGMENT_SECTIONS_BYTES_MAX, f"sections are too large: bytes={len(packed)}"
        footer_bytes = len(blocks) + len(packed) + END_BYTES
        held = (self._base, last, self._records, self.body_bytes, self._max_timestamp, self._max_timestamp_offset, self._batches)
        summary = _SUMMARY.pack(*held, len(self._blocks), len(packed), footer_bytes, FMT, 0)
        body = blocks + packed + summary
        self._parts.append(body + _CHECKSUM.pack(crc32c(body)) + END_MAGIC)
        return WrittenSegment(self._parts, SegmentFooter(blocks, tuple(sections), held, self._position + footer_bytes))

    def _end_block(self, end: int) -> None:
        position = self._block_position
        block = Block(self._block_base, self._last, position, end - position, self._block_timestamp, self._checksum)
        self._blocks.append(_BLOCK.pack(*block))
        self._block_position, self._block_base, self._block_timestamp, self._checksum = end, -1, -1, 0


def segment_key(partition: PartitionId, object_id: ObjectId) -> str:
    return f"{PREFIX}{partition.topic_id}/{partition.partition:05}/{object_id}"


def parse_segment_key(key: str) -> tuple[PartitionId, ObjectId] | None:
    """The partition and the id that a name of a segment says; None for every other name."""
    parts = key.split("/")
    if len(parts) != 4 or not key.startswith(PREFIX) or not (parts[2].isdecimal() and len(parts[2]) == 5 and len(parts[3]) == ULID_LENGTH):
        return None
    return PartitionId(TopicId(parts[1]), int(parts[2])), ObjectId(parts[3])


def decode_header(data: Buffer, *, key: str) -> tuple[PartitionId, ObjectId, int]:
    """Partition, object id and first offset. `data` begins at the object's first byte. Raise `Corrupt` or `IncompatibleFormat`."""
    view = memoryview(data)
    if len(view) < HEADER_BYTES or bytes(view[:8]) != MAGIC:
        raise Corrupt(f"not a segment: key={key!r} bytes={len(view)}")
    _, fmt, size, topic, partition, object_id, base = _HEADER.unpack_from(view)
    if fmt > FMT:
        raise IncompatibleFormat(f"segment of format {fmt}, this program knows up to {FMT}: key={key!r}")
    if size != HEADER_BYTES:
        raise Corrupt(f"segment header does not fit: key={key!r} header_bytes={size}")
    _check(view[: _HEADER.size], _CHECKSUM.unpack_from(view, _HEADER.size)[0], key, "header")
    return PartitionId(TopicId(str(uuid.UUID(bytes=topic))), partition), ObjectId(object_id.decode("ascii", "replace")), base


def missing_footer_bytes(end: Buffer, *, size_bytes: int, key: str) -> int:
    """How many bytes before `end`, the last ones of an object, belong to its footer as well. Raise `Corrupt`, `IncompatibleFormat`."""
    return max(0, _footer_bytes(memoryview(end), size_bytes, key) - len(end))


def decode_footer(end: Buffer, *, size_bytes: int, key: str) -> SegmentFooter:
    """`end` holds the last bytes of an object of `size_bytes`, the whole footer among them. Raise `Corrupt`, `IncompatibleFormat`."""
    view = memoryview(end)
    footer_bytes = _footer_bytes(view, size_bytes, key)
    if footer_bytes > len(view):
        raise Corrupt(f"a footer is cut short: key={key!r} footer_bytes={footer_bytes} bytes={len(view)}")
    footer = view[len(view) - footer_bytes :]
    body = footer[: footer_bytes - _CHECKSUM.size - len(END_MAGIC)]
    _check(body, _CHECKSUM.unpack_from(footer, len(body))[0], key, "footer")
    *summary, block_count, sections_bytes, _, _, _ = _SUMMARY.unpack_from(body, len(body) - _SUMMARY.size)
    blocks_bytes = block_count * _BLOCK.size
    if blocks_bytes + sections_bytes + END_BYTES != footer_bytes or not block_count:
        raise Corrupt(f"a footer contradicts itself: key={key!r} blocks={block_count} sections_bytes={sections_bytes} bytes={footer_bytes}")
    sections = tuple(_read_sections(body[blocks_bytes : blocks_bytes + sections_bytes], key))
    found = SegmentFooter(bytes(body[:blocks_bytes]), sections, tuple(summary), size_bytes)
    _check_blocks(found, size_bytes - footer_bytes, key)
    return found


def check_block(view: Buffer, block: Block, *, key: str) -> None:
    """Raise `Corrupt` if `view` is not what was written as `block`."""
    if len(view) != block.length:
        raise Corrupt(f"a block is cut short: key={key!r} position={block.position} length={block.length} bytes={len(view)}")
    _check(view, block.checksum, key, f"block at {block.position}, offsets {block.base}..{block.last}")


def _footer_bytes(end: memoryview, size_bytes: int, key: str) -> int:
    if len(end) < END_BYTES or bytes(end[-len(END_MAGIC) :]) != END_MAGIC:
        raise Corrupt(f"no footer at the end of a segment: key={key!r} object_bytes={size_bytes} bytes={len(end)}")
    footer_bytes, fmt, _ = struct.unpack_from(">IHH", end, len(end) - len(END_MAGIC) - _CHECKSUM.size - 8)
    if fmt > FMT:
        raise IncompatibleFormat(f"segment of format {fmt}, this program knows up to {FMT}: key={key!r}")
    if not END_BYTES <= footer_bytes <= min(size_bytes - HEADER_BYTES, FOOTER_BYTES_MAX):
        raise Corrupt(f"a footer does not fit its object: key={key!r} footer_bytes={footer_bytes} object_bytes={size_bytes}")
    return int(footer_bytes)


def _read_sections(view: memoryview, key: str) -> Iterator[Section]:
    position = 0
    while position < len(view):
        if len(view) - position < _SECTION.size:
            raise Corrupt(f"a section is cut short: key={key!r} position={position}")
        tag, flags, length = _SECTION.unpack_from(view, position)
        position += _SECTION.size
        if length > len(view) - position:
            raise Corrupt(f"a section is cut short: key={key!r} tag={tag} length={length}")
        if flags & REQUIRED:
            raise IncompatibleFormat(f"segment with a section that this program does not know: key={key!r} tag={tag}. Use a newer forebay")
        yield Section(tag, False, bytes(view[position : position + length]))
        position += length


def _check_blocks(footer: SegmentFooter, end: int, key: str) -> None:
    """Blocks lie back to back, and their offsets rise within what the segment covers."""
    position, last = HEADER_BYTES, footer.base - 1
    for block in footer:
        if block.position != position or not block.length or not last < block.base <= block.last:
            raise Corrupt(f"blocks contradict each other: key={key!r} block={block} expected_position={position} after_offset={last}")
        position, last = position + block.length, block.last
    if position != end or last > footer.last:
        raise Corrupt(f"blocks contradict the footer: key={key!r} end={position} footer_begins={end} last={last} covers={footer.last}")


def _check(body: Buffer, expected: int, key: str, part: str) -> None:
    actual = crc32c(body)
    if actual != expected:
        raise Corrupt(f"checksum mismatch: key={key!r} part={part} expected={expected:#010x} actual={actual:#010x}")
