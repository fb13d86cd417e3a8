"""The records inside a batch: one by one, as a whole in another codec, and read to their end, as strictly as Kafka's brokers read them.

    record   length varint | attributes 1 | timestamp delta varlong | offset delta varint | key length varint | key | value length varint
             | value | header count varint | (key length varint | key | value length varint | value) per header

Varints are zigzag. Compressed records are decompressed as a whole, bounded: a batch that claims to be larger is `Corrupt`.
`walk` answers what a header cannot (offsets by time, keys of compacted topics), `read_records` checks every record, `check_frames` finds
compressed frames that not every consumer reads. Only `is_time_doubtful` is on the path of ordinary produce, none on that of fetch.
"""

import mmap
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import cramjam

from storage.errors import Corrupt
from storage.limits import KIB, MIB
from storage.recordbatch import (
    ATTRIBUTE_LOG_APPEND_TIME,
    CODEC_MASK,
    HEADER_BYTES,
    LENGTH_OFFSET_BYTES,
    NO_TIMESTAMP,
    BatchHeader,
    stamp_attributes,
)
from storage.vocabulary import Buffer

DECOMPRESSED_BYTES_MAX: Final = 64 * MIB
_FILLED_BYTES_MAX: Final = MIB
"""Larger buffers are not filled with zeros when they are made, for which the interpreter is held."""
_TRIES_BYTES: Final = (128 * KIB, _FILLED_BYTES_MAX)
"""Buffers for what is short, since to fill one takes longer than to decompress a little."""
_EXPANSION: Final = 2
"""Records decompress to this many times their size or more: decides whether a buffer is worth a try."""
_TOO_SMALL: Final = "failed to write whole buffer"
"""What cramjam says when the output does not fit; a test holds it to that."""
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES: Final = 16
_XERIAL_HEADER: Final = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES: Final = 32 * KIB
VARINT_BYTES_MAX: Final = 10
RECORD_BYTES_MIN: Final = 7
"""Length, attributes, two deltas, two lengths and the number of headers, a byte each."""
TIME_SLICE_RECORDS: Final = 2_000
"""Records whose times are read between two calls of `breathe`: a quarter of a millisecond."""
_LENGTH_MIN: Final = (RECORD_BYTES_MIN - 1) << 1
"""As a varint has it."""
_LONGER_OFFSETS_AT: Final = (64, 8_192, 1_048_576)
"""Offset deltas from which their varints are a byte longer."""
_BEFORE_ALL_TIMES: Final = -(2**63)
NONE: Final = 0
GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4
GZIP_LEVEL_DEFAULT: Final = 6
LZ4_LEVEL_DEFAULT: Final = 9
"""Kafka's number for the fast compressor; all others are levels of the thorough one."""
LZ4_LEVEL_FAST: Final = 1
LZ4_LEVEL_MAX: Final = 12
ZSTD_LEVEL_DEFAULT: Final = 3
ZSTD_LEVEL_MAX: Final = 19
"""Above it a compression takes hundreds of MiB."""
_GZIP_WINDOW_BITS: Final = 31
_GZIP_SIZE_BYTES: Final = 4
_PROBE_BYTES: Final = 512
_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
_LZ4_SKIPPED_MAGIC: Final = 0x184D_2A50
_LZ4_FLAGS_AT: Final = 4
_LZ4_BLOCKS_AT: Final = 7
_LZ4_INDEPENDENT: Final = 0x20
_LZ4_BLOCK_CHECKSUMS: Final = 0x10
_LZ4_CONTENT_SIZE: Final = 0x08
_LZ4_CONTENT_CHECKSUM: Final = 0x04
_LZ4_DICTIONARY: Final = 0x01
_LZ4_RAW: Final = 0x8000_0000
_CHECKSUM_BYTES: Final = 4
_SNAPPY_MAGIC: Final = b"\x82SNAPPY\x00"
_SNAPPY_VERSION: Final = struct.Struct(">8xi")
_UINT32: Final = struct.Struct("<I")
READ_SLICE_RECORDS: Final = 500
"""Records, or headers, read between two calls of `breathe`: a quarter of a millisecond."""
HEADERS_MAX: Final = 1_000_000
"""In all records of a batch: this number takes a quarter of a second of a thread, and two bytes make one."""
NAMED_MAX: Final = 1_000
"""Indexes that are kept of records that break one rule."""
_INT32_BYTES_MAX: Final = 5
_INT64_BYTES_MAX: Final = 10
_COPIED_BYTES_MAX: Final = MIB
"""Nobody else can do anything while bytes are copied."""


class RecordFacts(NamedTuple):
    offset_delta: int
    timestamp_ms: int
    has_key: bool


def walk(batch: Buffer, header: BatchHeader) -> Iterator[RecordFacts]:
    """The records of one batch, in order. Raises `Corrupt` for records that are not what the header says."""
    body = decompress_records(memoryview(batch)[HEADER_BYTES:], header.attributes & CODEC_MASK)
    position = 0
    is_log_append = bool(header.attributes & ATTRIBUTE_LOG_APPEND_TIME)
    try:
        for _ in range(header.record_count):
            length, position = _varint(body, position)
            end = position + length
            if length < 0 or end > len(body):
                raise Corrupt(f"a record ends outside its batch: length={length} remaining={len(body) - position}")
            timestamp_delta, at = _varint(body, position + 1)
            offset_delta, at = _varint(body, at)
            key_length, at = _varint(body, at)
            timestamp_ms = header.max_timestamp if is_log_append else header.base_timestamp + timestamp_delta
            yield RecordFacts(offset_delta, timestamp_ms, key_length >= 0)
            position = end
    except IndexError:
        raise Corrupt(f"records end early: record_count={header.record_count} bytes={len(body)}") from None


def is_time_doubtful(batch: Buffer, header: BatchHeader) -> bool:
    """Whether the header itself is a reason to read the times of the records: its greatest one is not above the base time, or that of one
    record is another. False where the broker stamped it, and for records of one length at the base time, which are seen without a walk.

    A greatest time above the base time of several records is believed, and so is that of one compressed record that equals it.
    """
    greatest_ms, base_ms = header.max_timestamp, header.base_timestamp
    if header.attributes & ATTRIBUTE_LOG_APPEND_TIME:
        return False
    if greatest_ms > base_ms:
        return header.record_count == 1
    if greatest_ms < base_ms or greatest_ms < NO_TIMESTAMP:
        return True
    if header.attributes & CODEC_MASK:
        return header.record_count > 1
    if header.record_count == 1:
        return not _is_lone_at_base_time(batch)
    try:
        return not _are_at_base_time(memoryview(batch)[HEADER_BYTES:], header.record_count)
    except IndexError:
        return True


def greatest_time(batch: Buffer, header: BatchHeader, *, bytes_max: int | None = None, breathe: Callable[[], None] = lambda: None) -> int:
    """What Kafka's brokers write as the greatest time of a batch: that of its records, NO_TIMESTAMP at least.

    Costs a tenth of a microsecond per record. Only the length and the time of a record are looked at. Calls `breathe` every
    TIME_SLICE_RECORDS records; raises what `decompress_records` raises, and `Corrupt` for records that are not what the header says.
    """
    codec = header.attributes & CODEC_MASK
    return _greatest_in(decompress_records(memoryview(batch)[HEADER_BYTES:], codec, bytes_max=bytes_max), header, breathe)


def recompress_batch(
    batch: Buffer,
    header: BatchHeader,
    codec: int,
    *,
    level: int | None = None,
    append_ms: int | None = None,
    bytes_max: int | None = None,
    breathe: Callable[[], None] = lambda: None,
) -> bytearray:
    """One batch with its records in another codec, byte for byte the same when decompressed. Its greatest time is that of its records, the
    rest of its header stays as it is.

    `level` is the codec's, None for its default; `append_ms` is the time of LogAppendTime, which the batch is marked with; uncompressed
    records stop at `bytes_max`, header included. Blocks for as long as that takes: not for an event loop. Raises `TooLarge`, and `Corrupt`
    as `decompress_records` does and for records that are not what the header says.
    """
    room_bytes = None if bytes_max is None or codec != NONE else max(0, bytes_max - HEADER_BYTES)
    body = decompress_records(memoryview(batch)[HEADER_BYTES:], header.attributes & CODEC_MASK, bytes_max=room_bytes)
    if header.record_count > len(body) // RECORD_BYTES_MIN:
        raise Corrupt(f"{len(body)} bytes cannot hold {header.record_count} records")
    greatest_ms = _greatest_in(body, header, breathe) if append_ms is None else append_ms
    packed = compress_records(body, codec, level)
    made = bytearray(HEADER_BYTES + len(packed))
    made[:HEADER_BYTES] = memoryview(batch)[:HEADER_BYTES]
    made[HEADER_BYTES:] = packed
    struct.pack_into(">i", made, 8, len(made) - LENGTH_OFFSET_BYTES)
    struct.pack_into(">q", made, 35, greatest_ms)
    stamp_attributes(made, header.attributes & ~CODEC_MASK | codec, append_ms=append_ms)
    return made


def compress_records(body: Buffer, codec: int, level: int | None = None) -> Buffer:
    """The record bytes as consumers of every kind decompress them: what Kafka's brokers write."""
    match codec:
        case 0:
            return body
        case 1:
            return memoryview(cramjam.gzip.compress(body, GZIP_LEVEL_DEFAULT if level is None else level))
        case 2:
            return _framed_snappy(memoryview(body))
        case 3:
            # Java's consumers take blocks only that do not depend on each other.
            fast = level is None or level == LZ4_LEVEL_DEFAULT
            compressor = cramjam.lz4.Compressor(
                LZ4_LEVEL_FAST if fast else min(level or 0, LZ4_LEVEL_MAX), content_checksum=False, block_linked=False
            )
            compressor.compress(bytes(body))
            return memoryview(compressor.finish())
        case 4:
            return memoryview(cramjam.zstd.compress(body, ZSTD_LEVEL_DEFAULT if level is None else min(level, ZSTD_LEVEL_MAX)))
        case _:
            raise AssertionError(f"unknown compression codec: {codec}")


class TooLarge(Exception):
    """Decompressed, the records have more bytes, or headers, than they may."""


def decompress_records(body: Buffer, codec: int, *, bytes_max: int | None = None) -> Buffer:
    """The record bytes. Raises `Corrupt` for an unknown codec, for bytes that the codec refuses, and above DECOMPRESSED_BYTES_MAX; where
    fewer are wanted, `TooLarge` above `bytes_max`.
    """
    limit = DECOMPRESSED_BYTES_MAX if bytes_max is None else min(bytes_max, DECOMPRESSED_BYTES_MAX)
    try:
        match codec:
            case 0:
                found: Buffer = body
            case 1:
                found = _bounded(cramjam.gzip.decompress_into, body, limit)
            case 2:
                found = _snappy(memoryview(body), limit)
            case 3:
                found = _bounded(cramjam.lz4.decompress_into, body, limit)
            case 4:
                found = _bounded(cramjam.zstd.decompress_into, body, limit)
            case _:
                raise Corrupt(f"unknown compression codec: {codec}")
    except (cramjam.DecompressionError, IndexError, ValueError, OSError) as error:
        raise Corrupt(f"records do not decompress: codec={codec} cause={error}") from error
    except _Beyond as error:
        text = f"records decompress to more than {limit} bytes"
        raise (Corrupt if limit == DECOMPRESSED_BYTES_MAX else TooLarge)(text) from error
    return found


class _Beyond(Exception):
    """There are more bytes than may be."""


def check_frames(body: memoryview, codec: int) -> None:
    """Raises `Corrupt` for what only some consumers read. What does not decompress at all may pass; looks at the heads of blocks alone.

    Java's consumers read lz4 up to the end of the first frame, or up to a block that holds nothing, and refuse linked blocks.
    librdkafka refuses a second lz4 frame, reads the first gzip member only, and aborts its process if that is empty.
    Producers write one frame. Those of zstd may follow each other: every consumer reads them.
    """
    match codec:
        case 1:
            _check_first_member(body)
        case 2:
            _check_snappy(body)
        case 3:
            _check_lz4(body)
        case _:
            pass


def check_size(body: memoryview, codec: int, size_bytes: int) -> None:
    """To be asked of what has passed `check_frames` and decompresses to `size_bytes`."""
    if codec == GZIP and int.from_bytes(body[-_GZIP_SIZE_BYTES:], "little") != size_bytes & 0xFFFF_FFFF:
        raise Corrupt("there is more than one gzip member, of which librdkafka's consumers read the first")


class Unreadable(Corrupt):
    """A consumer could not read this. `index` is the record's in its batch, None where it is not about one."""

    def __init__(self, message: str, *, index: int | None = None) -> None:
        super().__init__(message)
        self.index = index


# Not frozen: that takes as long to make as a record takes to read.
@dataclass(slots=True, kw_only=True)
class Readable:
    """What a topic may object to in a batch that can be read: indexes of records, at most NAMED_MAX of each kind; and the greatest time of
    its records, NO_TIMESTAMP at least.
    """

    greatest_ms: int = NO_TIMESTAMP
    without_key: list[int] = field(default_factory=list)
    out_of_time: list[int] = field(default_factory=list)


def read_records(
    batch: Buffer,
    header: BatchHeader,
    *,
    earliest_ms: int,
    latest_ms: int,
    bytes_max: int | None = None,
    headers_max: int | None = None,
    breathe: Callable[[], None] = lambda: None,
) -> Readable:
    """Read one batch whose header has been checked; what has no timestamp is never out of time.

    Costs half a microsecond per record, a fifth of what `walk` takes, which hands each record out: so varints of one and two bytes are
    read where they stand. Attributes and the text of header keys mean nothing to Kafka and are not looked at.
    Blocks for as long as it takes, and calls `breathe` every READ_SLICE_RECORDS records or headers, so that a thread can let others run.
    Raises `Unreadable`; `Corrupt` as `decompress_records` and `check_frames` do; `TooLarge` for what decompresses to more than
    `bytes_max` or has more headers than `headers_max`.
    """
    body = memoryview(batch)[HEADER_BYTES:]
    codec = header.attributes & CODEC_MASK
    if codec:
        check_frames(body, codec)
        records = decompress_records(body, codec, bytes_max=bytes_max)
        check_size(body, codec, len(records))
    else:
        records = body
    if isinstance(records, memoryview) and len(records) <= _COPIED_BYTES_MAX:
        records = bytes(records)  # of which single bytes are had faster
    found, limits = Readable(), _Limits(headers_max, breathe)
    at, headers = 0, 0
    for begin in range(0, header.record_count, READ_SLICE_RECORDS):
        if begin:
            breathe()
        indexes = range(begin, min(begin + READ_SLICE_RECORDS, header.record_count))
        at, headers = _read_slice(records, at, indexes, headers, header.base_timestamp, earliest_ms, latest_ms, found, limits)
    if at != len(records):
        raise Unreadable(f"bytes are left after the last record: record_count={header.record_count} left={len(records) - at}")
    return found


@dataclass(slots=True)
class _Limits:
    headers_max: int | None
    breathe: Callable[[], None]


def _is_lone_at_base_time(batch: Buffer) -> bool:
    at = HEADER_BYTES
    end = min(at + VARINT_BYTES_MAX, len(batch) - 2)
    while at < end and batch[at] >= 0x80:
        at += 1
    return at < end and not batch[at + 2]


def _are_at_base_time(body: memoryview, count: int) -> bool:
    """Whether all records have the time delta 0. False if they are not of one length, too. Raises IndexError where they end early."""
    at = index = 0
    for end_index in _LONGER_OFFSETS_AT:
        here = min(count, end_index) - index
        byte = body[at]
        prefix_bytes = 1 if byte < 0x80 else 2
        length = byte
        if prefix_bytes == 2:
            second = body[at + 1]
            if second >= 0x80:
                return False
            length += (second << 7) - 0x80
        stride = prefix_bytes + (length >> 1)
        end = at + here * stride
        if length & 1 or length < _LENGTH_MIN or end > len(body):
            return False
        if body[at:end:stride] != body[at : at + 1].tobytes() * here or body[at + prefix_bytes + 1 : end : stride] != bytes(here):
            return False
        if prefix_bytes == 2 and body[at + 1 : end : stride] != body[at + 1 : at + 2].tobytes() * here:
            return False
        at, index = end, index + here
        if index == count:
            return at == len(body)
    return False


def _greatest_in(body: Buffer, header: BatchHeader, breathe: Callable[[], None]) -> int:
    at, greatest = 0, _BEFORE_ALL_TIMES
    try:
        for begin in range(0, header.record_count, TIME_SLICE_RECORDS):
            if begin:
                breathe()
            at, greatest = _walk_times(body, at, min(TIME_SLICE_RECORDS, header.record_count - begin), greatest)
    except IndexError:
        at = len(body) + 1
    if at > len(body):
        raise Corrupt(f"records end early: record_count={header.record_count} bytes={len(body)}")
    if at < len(body):
        raise Corrupt(f"bytes are left after the last record: record_count={header.record_count} left={len(body) - at}")
    greatest_ms = header.base_timestamp + greatest
    if greatest_ms >= -_BEFORE_ALL_TIMES:
        raise Corrupt(f"a timestamp does not fit in 8 bytes: base_timestamp={header.base_timestamp} delta={greatest}")
    return max(NO_TIMESTAMP, greatest_ms)


def _walk_times(data: Buffer, at: int, count: int, greatest: int) -> tuple[int, int]:
    """The position behind `count` records from `at` on, and the greatest time delta of these and those before."""
    for _ in range(count):
        byte = data[at]
        if byte < 0x80:
            at += 1
        elif (second := data[at + 1]) < 0x80:
            byte += (second << 7) - 0x80
            at += 2
        else:
            byte, at = _unsigned_varint(data, at)
        if byte & 1 or byte < _LENGTH_MIN:
            raise Corrupt(f"a record has no such length: {(byte >> 1) ^ -(byte & 1)}")
        delta = data[at + 1]
        if delta or greatest < 0:
            if delta >= 0x80:
                delta, _ = _unsigned_varint(data, at + 1)
            delta = (delta >> 1) ^ -(delta & 1)
            if delta > greatest:
                greatest = delta
        at += byte >> 1
    return at, greatest


def _bounded(decompress_into: Callable[[Buffer, Buffer], int], body: Buffer, limit: int) -> Buffer:
    """Into buffers of bounded size: the codec never allocates what a small body claims to hold."""
    tries = [size_bytes for size_bytes in _TRIES_BYTES if len(body) * _EXPANSION <= size_bytes < limit]
    for size_bytes in (*tries, limit):
        output = _room(size_bytes)
        try:
            return _cut(output, decompress_into(body, output))
        except cramjam.DecompressionError as error:
            if _TOO_SMALL not in str(error):
                raise  # a larger buffer would not help
    raise _Beyond


def _room(size_bytes: int) -> bytearray | memoryview:
    """To be decompressed into. Of a large one only what is written to takes memory and time."""
    if size_bytes <= _FILLED_BYTES_MAX:
        return bytearray(size_bytes)
    try:
        return memoryview(mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    except OSError as error:
        raise MemoryError(f"no room to decompress into: bytes={size_bytes}") from error


def _cut(output: bytearray | memoryview, size_bytes: int) -> bytearray | memoryview:
    if isinstance(output, memoryview):
        return output[:size_bytes]
    del output[size_bytes:]
    return output


def _snappy(body: memoryview, limit: int) -> Buffer:
    """Raw snappy (librdkafka) or snappy-java's framing: a header, then blocks of 4 bytes of length and raw snappy."""
    is_framed = bytes(body[: len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC
    size_bytes = 0
    for block in _blocks(body) if is_framed else (body,):
        # Each begins with its decompressed size, so a claim that is too large costs nothing.
        claimed, _ = _unsigned_varint(block, 0)
        size_bytes += claimed
        if size_bytes > limit:
            raise _Beyond
    output = _room(size_bytes)
    end = 0
    with memoryview(output) as room:
        for block in _blocks(body) if is_framed else (body,):
            end += cramjam.snappy.decompress_raw_into(block, room[end:])
    return _cut(output, end)


def _blocks(body: memoryview) -> Iterator[memoryview]:
    position = _XERIAL_HEADER_BYTES
    while position < len(body):
        length = int.from_bytes(body[position : position + 4], "big")
        position += 4
        if length <= 0 or position + length > len(body):
            raise Corrupt(f"a snappy block ends outside its batch: length={length} remaining={len(body) - position}")
        yield body[position : position + length]
        position += length


def _framed_snappy(body: memoryview) -> bytes:
    """In the framing of snappy-java, which Java's consumers and Kafka's brokers write."""
    parts = [_XERIAL_HEADER]
    for begin in range(0, len(body), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(body[begin : begin + _XERIAL_BLOCK_BYTES]))
        parts += (struct.pack(">i", len(block)), block)
    return b"".join(parts)


def _varint(data: Buffer, position: int) -> tuple[int, int]:
    value, position = _unsigned_varint(data, position)
    return (value >> 1) ^ -(value & 1), position


def _unsigned_varint(data: Buffer, position: int) -> tuple[int, int]:
    value = shift = 0
    for _ in range(VARINT_BYTES_MAX):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise Corrupt("a varint is longer than 10 bytes")


def _check_first_member(body: memoryview) -> None:
    """The size of the last member is that of all unless a member before it holds something, or it is the only one that does."""
    reader = zlib.decompressobj(_GZIP_WINDOW_BITS)
    try:
        for begin in range(0, len(body), _PROBE_BYTES):
            if reader.decompress(body[begin : begin + _PROBE_BYTES], 1):
                return
            if reader.eof:
                raise Corrupt("the first gzip member is empty, which ends librdkafka's consumers")
    except zlib.error:
        return


def _check_snappy(body: memoryview) -> None:
    if len(body) < _SNAPPY_VERSION.size or bytes(body[: len(_SNAPPY_MAGIC)]) != _SNAPPY_MAGIC:
        return
    (version,) = _SNAPPY_VERSION.unpack_from(body)
    if version < 1:
        raise Corrupt(f"snappy's framing begins with version 1, which Java's consumers ask for: version={version}")


def _check_lz4(body: memoryview) -> None:
    if len(body) < _LZ4_BLOCKS_AT:
        return
    if bytes(body[: len(_LZ4_MAGIC)]) != _LZ4_MAGIC:
        if _UINT32.unpack_from(body)[0] & ~0xF == _LZ4_SKIPPED_MAGIC:
            raise Corrupt("the records begin with an lz4 frame to be skipped, which Java's consumers do not do")
        return
    flags = body[_LZ4_FLAGS_AT]
    if not flags & _LZ4_INDEPENDENT:
        raise Corrupt("lz4 blocks depend on each other, which Java's consumers do not read")
    if flags & _LZ4_DICTIONARY:
        raise Corrupt("the lz4 frame names a dictionary, which Java's consumers do not read")
    at = _LZ4_BLOCKS_AT + (8 if flags & _LZ4_CONTENT_SIZE else 0)
    beside_bytes = _UINT32.size + (_CHECKSUM_BYTES if flags & _LZ4_BLOCK_CHECKSUMS else 0)
    end = len(body) - _UINT32.size
    while at <= end:
        (size,) = _UINT32.unpack_from(body, at)
        if not size & ~_LZ4_RAW:
            if at + _UINT32.size + (_CHECKSUM_BYTES if flags & _LZ4_CONTENT_CHECKSUM else 0) < len(body):
                raise Corrupt("there is something behind the first lz4 frame, where consumers stop")
            return
        if size == 1:
            raise Corrupt("an lz4 block holds nothing, where Java's consumers stop")
        at += beside_bytes + (size & ~_LZ4_RAW)


def _read_slice(
    data: Buffer,
    at: int,
    indexes: range,
    headers: int,
    base_ms: int,
    earliest_ms: int,
    latest_ms: int,
    found: Readable,
    limits: "_Limits",
) -> tuple[int, int]:
    """The position behind these records, and the headers so far."""
    size = len(data)
    index = indexes.start
    earliest, latest = earliest_ms - base_ms, latest_ms - base_ms
    greatest = found.greatest_ms - base_ms
    try:
        for index in indexes:
            byte = data[at]
            if byte < 0x80:
                at += 1
            elif (second := data[at + 1]) < 0x80:
                byte += (second << 7) - 0x80
                at += 2
            else:
                byte, at = _read_varint(data, at, _INT32_BYTES_MAX)
            end = at + (byte >> 1)
            if byte & 1 or end > size:
                raise Unreadable(f"a record ends outside its batch: length={_signed(byte)} remaining={size - at}")

            at += 1  # attributes
            byte = data[at]
            if byte < 0x80:
                at += 1
            elif (second := data[at + 1]) < 0x80:
                byte += (second << 7) - 0x80
                at += 2
            else:
                byte, at = _read_varint(data, at, _INT64_BYTES_MAX)
            delta_ms = (byte >> 1) ^ -(byte & 1)
            if delta_ms > greatest:
                greatest = delta_ms
            if not earliest <= delta_ms <= latest and base_ms + delta_ms != NO_TIMESTAMP and len(found.out_of_time) < NAMED_MAX:
                found.out_of_time.append(index)

            byte = data[at]
            if byte < 0x80:
                at += 1
            elif (second := data[at + 1]) < 0x80:
                byte += (second << 7) - 0x80
                at += 2
            else:
                byte, at = _read_varint(data, at, _INT32_BYTES_MAX)
            if byte != index << 1:
                raise Unreadable(f"offset deltas count from 0: expected={index} found={_signed(byte)}")

            byte = data[at]
            if byte < 0x80:
                at += 1
            elif (second := data[at + 1]) < 0x80:
                byte += (second << 7) - 0x80
                at += 2
            else:
                byte, at = _read_varint(data, at, _INT32_BYTES_MAX)
            if not byte & 1:
                at += byte >> 1
            elif byte != 1:
                raise Unreadable(f"a key has no such length: {_signed(byte)}")
            elif len(found.without_key) < NAMED_MAX:
                found.without_key.append(index)

            byte = data[at]
            if byte < 0x80:
                at += 1
            elif (second := data[at + 1]) < 0x80:
                byte += (second << 7) - 0x80
                at += 2
            else:
                byte, at = _read_varint(data, at, _INT32_BYTES_MAX)
            if not byte & 1:
                at += byte >> 1
            elif byte != 1:
                raise Unreadable(f"a value has no such length: {_signed(byte)}")

            if data[at]:
                count, at = _headers(data, at, headers, limits)
                headers += count
            else:
                at += 1
            if at != end:
                raise Unreadable(f"a record is not as long as it says: length={end - at} bytes from where its fields end")
    except Unreadable as error:
        raise Unreadable(f"record {index}: {error}", index=index) from None
    except IndexError:
        raise Unreadable(f"record {index}: it goes on where the batch ends: bytes={size}", index=index) from None
    found.greatest_ms = base_ms + greatest
    return at, headers


def _headers(data: Buffer, at: int, before: int, limits: _Limits) -> tuple[int, int]:
    """How many headers begin at `at`, and the position behind them; there were `before` in records before."""
    written, at = _read_varint(data, at, _INT32_BYTES_MAX)
    count = _signed(written)
    if not 0 <= count <= len(data) - at:
        raise Unreadable(f"impossible number of headers: {count}")
    if before + count > HEADERS_MAX:
        raise Unreadable(f"the records of a batch have at most {HEADERS_MAX} headers")
    if limits.headers_max is not None and before + count > limits.headers_max:
        raise TooLarge(f"the records have more than {limits.headers_max} headers")
    for number in range(before, before + count):
        if number and not number % READ_SLICE_RECORDS:
            limits.breathe()
        byte = data[at]
        if byte < 0x80:
            at += 1
        else:
            byte, at = _read_varint(data, at, _INT32_BYTES_MAX)
        if byte & 1:
            raise Unreadable(f"a header key has no such length: {_signed(byte)}")
        at += byte >> 1
        byte = data[at]
        if byte < 0x80:
            at += 1
        else:
            byte, at = _read_varint(data, at, _INT32_BYTES_MAX)
        if not byte & 1:
            at += byte >> 1
        elif byte != 1:
            raise Unreadable(f"a header value has no such length: {_signed(byte)}")
    return count, at


def _read_varint(data: Buffer, at: int, bytes_max: int) -> tuple[int, int]:
    """As it is written, with the sign in bit 0, and the position behind it."""
    value = shift = 0
    for place in range(at, at + bytes_max):
        byte = data[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> (32 if bytes_max == _INT32_BYTES_MAX else 64):
                break
            return value, place + 1
        shift += 7
    raise Unreadable(f"a varint does not fit in {'4' if bytes_max == _INT32_BYTES_MAX else '8'} bytes")


def _signed(written: int) -> int:
    return (written >> 1) ^ -(written & 1)
