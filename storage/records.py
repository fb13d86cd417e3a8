"""The records inside a batch, one by one. For questions that a header cannot answer (offsets by time, keys of compacted topics): never on
the path of ordinary produce or fetch.

    record   length varint | attributes 1 | timestamp delta varint | offset delta varint | key length varint | key | …

Varints are zigzag. Compressed records are decompressed as a whole, bounded: a batch that claims to be larger is told apart as `Corrupt`.
"""

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import cramjam

from storage.errors import Corrupt
from storage.limits import MIB
from storage.recordbatch import ATTRIBUTE_LOG_APPEND_TIME, CODEC_MASK, HEADER_BYTES, BatchHeader
from storage.vocabulary import Buffer

DECOMPRESSED_BYTES_MAX: Final = 64 * MIB
_DECOMPRESSED_TRIES_BYTES: Final = (MIB, 8 * MIB, DECOMPRESSED_BYTES_MAX)
_TOO_SMALL: Final = "failed to write whole buffer"
"""What cramjam says when the output does not fit; a test holds it to that."""
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES: Final = 16
VARINT_BYTES_MAX: Final = 10


class RecordFacts(NamedTuple):
    offset_delta: int
    timestamp_ms: int
    has_key: bool


def walk(batch: Buffer, header: BatchHeader) -> Iterator[RecordFacts]:
    """The records of one batch, in order. Raises `Corrupt` for records that are not what the header says."""
    body = decompressed(memoryview(batch)[HEADER_BYTES:], header.attributes & CODEC_MASK)
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


def decompressed(body: Buffer, codec: int) -> Buffer:
    """The record bytes. Raises `Corrupt` for an unknown codec, for bytes that the codec refuses, and above DECOMPRESSED_BYTES_MAX."""
    try:
        match codec:
            case 0:
                return body
            case 1:
                return _bounded(cramjam.gzip.decompress_into, body)
            case 2:
                return _snappy(bytes(body))
            case 3:
                return _bounded(cramjam.lz4.decompress_into, body)
            case 4:
                return _bounded(cramjam.zstd.decompress_into, body)
            case _:
                raise Corrupt(f"unknown compression codec: {codec}")
    except (cramjam.DecompressionError, IndexError, ValueError, OSError) as error:
        raise Corrupt(f"records do not decompress: codec={codec} cause={error}") from error


def _bounded(decompress_into: Callable[[Buffer, bytearray], int], body: Buffer) -> Buffer:
    """Into buffers of growing but bounded size: the codec never allocates what a small body claims to hold."""
    for size_bytes in _DECOMPRESSED_TRIES_BYTES:
        if size_bytes < len(body):
            continue
        output = bytearray(size_bytes)
        try:
            return memoryview(output)[: decompress_into(body, output)]
        except cramjam.DecompressionError as error:
            if _TOO_SMALL not in str(error):
                raise  # a larger buffer would not help
    raise Corrupt(f"records decompress to more than {DECOMPRESSED_BYTES_MAX} bytes")


def _snappy(body: bytes) -> bytes:
    """Raw snappy (librdkafka) or snappy-java's framing: a header, then blocks of 4 bytes of length and raw snappy."""
    if not body.startswith(_XERIAL_MAGIC):
        return _raw_snappy(body)
    blocks: list[bytes] = []
    position = _XERIAL_HEADER_BYTES
    size_bytes = 0
    while position < len(body):
        length = int.from_bytes(body[position : position + 4], "big")
        position += 4
        if length <= 0 or position + length > len(body):
            raise Corrupt(f"a snappy block ends outside its batch: length={length} remaining={len(body) - position}")
        blocks.append(_raw_snappy(body[position : position + length]))
        size_bytes += len(blocks[-1])
        if size_bytes > DECOMPRESSED_BYTES_MAX:
            raise Corrupt(f"records decompress to more than {DECOMPRESSED_BYTES_MAX} bytes")
        position += length
    return b"".join(blocks)


def _raw_snappy(block: bytes) -> bytes:
    """The block begins with its decompressed size, so a claim that is too large costs nothing."""
    claimed, _ = _unsigned_varint(block, 0)
    if claimed > DECOMPRESSED_BYTES_MAX:
        raise Corrupt(f"records claim to decompress to {claimed} bytes, more than {DECOMPRESSED_BYTES_MAX}")
    return bytes(cramjam.snappy.decompress_raw(block))


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
