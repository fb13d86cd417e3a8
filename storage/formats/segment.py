"""The segment, format 1: the batches of one partition with their offsets, between a header and a footer that says where they lie.

     0   8   magic "FOREBAYS"
     8   2   format (1)
    10   4   bytes of the header, its checksum included (72)
    14  16   topic id (UUID)
    30   4   partition
    34  26   object id (ULID, ASCII)
    60   8   base: the first offset that the segment covers
    68   4   CRC-32C of all bytes before it
    72       body: blocks, back to back, of record batches v2 with their real base offsets and leader epoch 0
     …       footer:
                 0  16  topic id (UUID)
                16   4  partition
                20  26  object id
                46   8  base
                54   8  last: the last offset that the segment covers
                62   8  number of batches
                70   8  number of records
                78   8  bytes of the body
                86   8  greatest timestamp
                94   8  base offset of the first batch that has it
               102   4  number of blocks n
               106   4  number of facts
               110 40n  blocks, in the order of their bytes:
                             0   8  base offset of the first batch
                             8   8  last offset of the last batch
                            16   8  position in the object
                            24   4  length
                            28   4  CRC-32C of the block's bytes
                            32   8  greatest timestamp
                 …      facts:
                             0   2  tag
                             2   2  flags: 1, a reader that does not know the tag must refuse the segment
                             4   4  length of what follows
                             8      what the tag says
                 …   4  CRC-32C of the footer's bytes before it
                 …   4  bytes of the footer, from its first to the last byte of the object
                 …   2  format (1)
                 …   8  magic "FOREBAYE"

All integers are big-endian; timestamps are signed, the rest is not. A block ends with the batch that brings it to 256 KiB, so no batch lies
in two. Its checksum covers what the CRC of a batch does not: the base offset. Offsets rise strictly, but some may be missing, between
batches and at both ends: base..last are those of the segment's entry. A reader needs the footer alone, so the footer says whose it is.

`SegmentWriter` writes a segment from runs of batches: it reads their headers, and copies none of their bytes. All of it is pure.
"""

import re
import struct
import uuid
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import le, lt
from typing import Final, NamedTuple

from crc32c import crc32c

from runtime.ulid import ULID_LENGTH
from storage.errors import Corrupt, IncompatibleFormat
from storage.formats.wal import uuid_bytes
from storage.limits import (
    KIB,
    SEGMENT_BLOCK_BYTES_TARGET,
    SEGMENT_BLOCKS_MAX,
    SEGMENT_BYTES_MAX,
    SEGMENT_BYTES_TARGET,
    SEGMENT_FOOTER_BYTES_MAX,
)
from storage.recordbatch import HEADER_BYTES as BATCH_HEADER_BYTES
from storage.recordbatch import LENGTH_OFFSET_BYTES
from storage.recordbatch import MAGIC as BATCH_MAGIC
from storage.vocabulary import Buffer, ObjectId, PartitionId, TopicId

MAGIC: Final = b"FOREBAYS"
TRAILER_MAGIC: Final = b"FOREBAYE"
FMT: Final = 1
_HEADER: Final = struct.Struct(">8sHI16sI26sQ")
_FOOTER: Final = struct.Struct(">16sI26sqqQQQqqII")
_BLOCK: Final = struct.Struct(">qqQIIq")
_FACT: Final = struct.Struct(">HHI")
_CHECKSUM: Final = struct.Struct(">I")
_TRAILER: Final = struct.Struct(">IH8s")
_KEY: Final = re.compile(r"segments/([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})/([0-9]{5,10})/([0-7][0-9A-HJKMNP-TV-Z]{25})")
_PARTITION_MAX: Final = 2**31 - 1
HEADER_BYTES: Final = _HEADER.size + _CHECKSUM.size
FOOTER_READ_BYTES: Final = 16 * KIB
"""How much of a segment's end to read at first: as a rule the whole footer."""
_BATCH: Final = struct.Struct(">qiib6xi8xq14xi")
"""base offset, batch length, leader epoch, magic, last offset delta, max timestamp, record count."""
_BEFORE_ALL_TIMES: Final = -(2**63) - 1


def footer_bytes(block_count: int) -> int:
    """The size of a footer without facts."""
    return _FOOTER.size + _BLOCK.size * block_count + _CHECKSUM.size + _TRAILER.size


assert HEADER_BYTES == 72
assert _FOOTER.size == 110
assert _BLOCK.size == 40
assert ULID_LENGTH == 26
assert footer_bytes(SEGMENT_BYTES_TARGET // SEGMENT_BLOCK_BYTES_TARGET + 1) <= FOOTER_READ_BYTES, (
    "the footer of a usual segment is read at once"
)
assert footer_bytes(SEGMENT_BLOCKS_MAX) <= SEGMENT_FOOTER_BYTES_MAX


class SegmentHeader(NamedTuple):
    partition: PartitionId
    object_id: ObjectId
    base: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFooter:
    """What a segment holds and where. The arrays have one element per block; blocks are numbered from 0."""

    partition: PartitionId
    object_id: ObjectId
    base: int
    last: int
    batch_count: int
    record_count: int
    body_bytes: int
    max_timestamp: int
    max_timestamp_offset: int
    """Base offset of the first batch whose header carries `max_timestamp`."""
    firsts: "array[int]"
    lasts: "array[int]"
    positions: "array[int]"
    lengths: "array[int]"
    checksums: "array[int]"
    max_timestamps: "array[int]"

    @property
    def records_end(self) -> int:
        """Where the body ends, in the object."""
        return self.positions[-1] + self.lengths[-1]

    def find(self, offset: int) -> int | None:
        """The block that holds the first batch with offsets at or above `offset`; None if the segment has none."""
        block = bisect_left(self.lasts, offset)
        return block if block < len(self.lasts) else None

    def first_reaching(self, timestamp_ms: int, *, start: int = 0) -> int | None:
        """The first block from block `start` on that has a batch of this time or a later one; None if there is none."""
        if timestamp_ms > self.max_timestamp:
            return None
        times = self.max_timestamps
        return next((block for block in range(start, len(times)) if times[block] >= timestamp_ms), None)


def segment_key(partition: PartitionId, object_id: ObjectId) -> str:
    """All segments of a topic, and of a partition, lie under one prefix."""
    return f"segments/{partition.topic_id}/{partition.partition:05}/{object_id}"


def segments_of_topic(topic_id: TopicId) -> str:
    """What the keys of its segments begin with, and no others."""
    return f"segments/{topic_id}/"


def parse_segment_key(key: str) -> tuple[PartitionId, ObjectId] | None:
    """What `segment_key` was given, or None if it does not make this key."""
    match = _KEY.fullmatch(key)
    if match is None:
        return None
    partition = PartitionId(TopicId(match[1]), int(match[2]))
    object_id = ObjectId(match[3])
    return (partition, object_id) if partition.partition <= _PARTITION_MAX and segment_key(partition, object_id) == key else None


def encode_header(header: SegmentHeader) -> bytes:
    partition = header.partition
    body = _HEADER.pack(
        MAGIC, FMT, HEADER_BYTES, uuid_bytes(partition.topic_id), partition.partition, header.object_id.encode("ascii"), header.base
    )
    return body + _CHECKSUM.pack(crc32c(body))


def decode_header(data: Buffer, *, key: str) -> SegmentHeader:
    """`data` begins at the object's first byte and holds at least the header. Raise `Corrupt` or `IncompatibleFormat`."""
    view = memoryview(data)
    if len(view) < HEADER_BYTES or bytes(view[:8]) != MAGIC:
        raise Corrupt(f"not a segment: key={key!r} part=header bytes={len(view)}")
    _, fmt, size, topic, number, object_id, base = _HEADER.unpack_from(view)
    _check_format(fmt, key=key, part="header")
    if size != HEADER_BYTES:
        raise Corrupt(f"segment header does not fit: key={key!r} header_bytes={size} expected={HEADER_BYTES}")
    _check(view[:HEADER_BYTES], key=key, part="header")
    return SegmentHeader(*_named(key, topic, number, object_id, part="header"), base)


def encode_footer(footer: SegmentFooter) -> bytes:
    """With the trailer that ends the object."""
    blocks = zip(footer.firsts, footer.lasts, footer.positions, footer.lengths, footer.checksums, footer.max_timestamps, strict=True)
    fixed = _FOOTER.pack(
        uuid_bytes(footer.partition.topic_id),
        footer.partition.partition,
        footer.object_id.encode("ascii"),
        footer.base,
        footer.last,
        footer.batch_count,
        footer.record_count,
        footer.body_bytes,
        footer.max_timestamp,
        footer.max_timestamp_offset,
        len(footer.firsts),
        0,
    )
    body = b"".join((fixed, *(_BLOCK.pack(*block) for block in blocks)))
    return body + _CHECKSUM.pack(crc32c(body)) + _TRAILER.pack(footer_bytes(len(footer.firsts)), FMT, TRAILER_MAGIC)


def footer_bytes_missing(tail: Buffer, *, size_bytes: int, key: str) -> int:
    """How many bytes before `tail`, the end of an object of `size_bytes`, belong to its footer, too: at most SEGMENT_FOOTER_BYTES_MAX.

    Raise `Corrupt` or `IncompatibleFormat`.
    """
    return max(0, _footer_size(memoryview(tail), size_bytes=size_bytes, key=key) - len(tail))


def decode_footer(tail: Buffer, *, size_bytes: int, key: str) -> SegmentFooter:
    """`tail` is the end of an object of `size_bytes` and holds at least the footer. Raise `Corrupt` or `IncompatibleFormat`."""
    view = memoryview(tail)
    size = _footer_size(view, size_bytes=size_bytes, key=key)
    if size > len(view):
        raise Corrupt(f"segment footer is cut: key={key!r} footer_bytes={size} bytes={len(view)}")
    view = view[len(view) - size : len(view) - _TRAILER.size]
    _check(view, key=key, part="footer")
    topic, number, object_id, base, last, batches, records, body_bytes, max_timestamp, its_offset, blocks, facts = _FOOTER.unpack_from(view)
    partition, named = _named(key, topic, number, object_id, part="footer")
    after_blocks = _FOOTER.size + _BLOCK.size * blocks
    if not 0 < blocks <= SEGMENT_BLOCKS_MAX or after_blocks > len(view) - _CHECKSUM.size:
        raise Corrupt(f"blocks of a segment footer do not fit: key={key!r} blocks={blocks} footer_bytes={size}")
    _check_facts(view[after_blocks : -_CHECKSUM.size], facts, key=key)
    firsts, lasts, positions, lengths, checksums, timestamps = zip(*_BLOCK.iter_unpack(view[_FOOTER.size : after_blocks]), strict=True)
    footer = SegmentFooter(
        partition=partition,
        object_id=named,
        base=base,
        last=last,
        batch_count=batches,
        record_count=records,
        body_bytes=body_bytes,
        max_timestamp=max_timestamp,
        max_timestamp_offset=its_offset,
        firsts=array("q", firsts),
        lasts=array("q", lasts),
        positions=array("Q", positions),
        lengths=array("I", lengths),
        checksums=array("I", checksums),
        max_timestamps=array("q", timestamps),
    )
    if cause := _contradiction(footer, body_bytes=size_bytes - HEADER_BYTES - size):
        raise Corrupt(f"segment footer contradicts itself: key={key!r} {cause}")
    return footer


def check_block(block: Buffer, footer: SegmentFooter, number: int, *, key: str) -> None:
    """`block` is what was read as the block of this number. Raise `Corrupt`."""
    check_block_of((block,), footer, number, key=key)


def check_block_of(block: Sequence[Buffer], footer: SegmentFooter, number: int, *, key: str) -> None:
    """As `check_block`, of a block that lies in several buffers."""
    length, expected = footer.lengths[number], footer.checksums[number]
    if (found_bytes := sum(map(len, block))) != length:
        raise Corrupt(f"block of a segment is cut: key={key!r} part=block-{number} expected_bytes={length} bytes={found_bytes}")
    actual = 0
    for piece in block:
        actual = crc32c(piece, actual)
    if actual != expected:
        raise Corrupt(f"checksum mismatch: key={key!r} part=block-{number} expected={expected:#010x} actual={actual:#010x}")


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


def _footer_size(view: memoryview, *, size_bytes: int, key: str) -> int:
    if len(view) < _TRAILER.size or bytes(view[-len(TRAILER_MAGIC) :]) != TRAILER_MAGIC:
        raise Corrupt(f"not a segment: key={key!r} part=trailer bytes={len(view)} size_bytes={size_bytes}")
    size: int
    size, fmt, _ = _TRAILER.unpack_from(view, len(view) - _TRAILER.size)
    _check_format(fmt, key=key, part="trailer")
    if size_bytes > SEGMENT_BYTES_MAX or not footer_bytes(1) <= size <= min(SEGMENT_FOOTER_BYTES_MAX, size_bytes - HEADER_BYTES):
        raise Corrupt(f"segment footer does not fit: key={key!r} footer_bytes={size} size_bytes={size_bytes}")
    return size


def _check_format(fmt: int, *, key: str, part: str) -> None:
    if fmt > FMT:
        raise IncompatibleFormat(f"segment of format {fmt}, this program knows up to {FMT}: key={key!r} part={part}")
    if fmt < FMT:
        raise Corrupt(f"there is no segment of format {fmt}: key={key!r} part={part}")


def _check(view: memoryview, *, key: str, part: str) -> None:
    """The last bytes of `view` are the checksum of those before."""
    (expected,) = _CHECKSUM.unpack_from(view, len(view) - _CHECKSUM.size)
    actual = crc32c(view[: -_CHECKSUM.size])
    if actual != expected:
        raise Corrupt(f"checksum mismatch: key={key!r} part={part} expected={expected:#010x} actual={actual:#010x}")


def _named(key: str, topic: bytes, number: int, object_id: bytes, *, part: str) -> tuple[PartitionId, ObjectId]:
    """Whose the object is, by its name, which must be what it says itself."""
    named = parse_segment_key(key)
    if named is None:
        raise Corrupt(f"not the name of a segment: key={key!r}")
    partition, its_id = named
    if (topic, number, object_id) != (uuid_bytes(partition.topic_id), partition.partition, its_id.encode("ascii")):
        raise Corrupt(
            f"another segment is under this name: key={key!r} part={part} topic_id={uuid.UUID(bytes=topic)} "
            f"partition={number} object_id={object_id!r}"
        )
    return named


def _check_facts(view: memoryview, count: int, *, key: str) -> None:
    """Format 1 knows no fact: those that a reader may do without are passed over."""
    position = found = 0
    while position < len(view):
        if len(view) - position < _FACT.size:
            raise Corrupt(f"facts of a segment footer are cut: key={key!r} fact={found} bytes={len(view) - position}")
        tag, flags, length = _FACT.unpack_from(view, position)
        position += _FACT.size + length
        if position > len(view):
            raise Corrupt(f"facts of a segment footer are cut: key={key!r} fact={found} tag={tag} length={length}")
        if flags:
            raise IncompatibleFormat(f"segment with a fact that this program must know and does not: key={key!r} tag={tag} flags={flags}")
        found += 1
    if found != count:
        raise Corrupt(f"facts of a segment footer do not fit: key={key!r} facts={found} expected={count}")


def _contradiction(footer: SegmentFooter, *, body_bytes: int) -> str | None:
    """What cannot be true of a segment whose body has `body_bytes`; None if all can."""
    if footer.body_bytes != body_bytes:
        return f"body_bytes={footer.body_bytes} between_header_and_footer={body_bytes}"
    ends = list(accumulate(footer.lengths, initial=HEADER_BYTES))
    if ends.pop() != HEADER_BYTES + body_bytes or ends != footer.positions.tolist():
        return f"blocks do not lie back to back: positions={footer.positions[0]}..{footer.positions[-1]} body_bytes={body_bytes}"
    if not (all(map(le, footer.firsts, footer.lasts)) and all(map(lt, footer.lasts, footer.firsts[1:]))):
        return f"offsets do not rise: firsts={footer.firsts[0]}..{footer.firsts[-1]} lasts={footer.lasts[0]}..{footer.lasts[-1]}"
    if not (0 <= footer.base <= footer.firsts[0] and footer.lasts[-1] <= footer.last):
        return f"batches outside of base..last: base={footer.base} last={footer.last} batches={footer.firsts[0]}..{footer.lasts[-1]}"
    if not len(footer.firsts) <= footer.batch_count <= footer.record_count <= footer.last - footer.base + 1:
        return (
            f"blocks={len(footer.firsts)} batches={footer.batch_count} records={footer.record_count} base={footer.base} last={footer.last}"
        )
    greatest = max(footer.max_timestamps)
    block = footer.max_timestamps.index(greatest)
    if footer.max_timestamp != greatest or not footer.firsts[block] <= footer.max_timestamp_offset <= footer.lasts[block]:
        return f"max_timestamp={footer.max_timestamp} at={footer.max_timestamp_offset} of_blocks={greatest} block={block}"
    return None
