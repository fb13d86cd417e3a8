"""Records as values: written into the body of a record batch v2, and read from one. Pure; what grows with a caller is done in steps.

record   length varint | attributes 1 | timestamp delta varlong | offset delta varint | key length varint | key | value length varint
         | value | header count varint | (key length varint | key | value length varint | value) per header
"""

import struct
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

import msgspec
from crc32c import crc32c

from storage.errors import Corrupt
from storage.recordbatch import (
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_LOG_APPEND_TIME,
    CODEC_MASK,
    HEADER_BYTES,
    LENGTH_OFFSET_BYTES,
    MAGIC,
    NO_PRODUCER,
    BatchHeader,
    parse_header,
)
from storage.vocabulary import Buffer

RECORDS_PER_STEP: Final = 500
"""Records that are written or read before others have their turn: a millisecond."""
_CODEC_NUMBERS: Final = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
_COVERED: Final = struct.Struct(">hiqqqhii")
_BEFORE: Final = struct.Struct(">qiibI")
VARINTS_KEPT: Final = 16_384
"""Varints below this are kept."""
HEADER_ROOM: Final = bytes(HEADER_BYTES)
"""It comes before the records, so that a batch that is not compressed lies in one piece at once."""


V = TypeVar("V")


class Record(msgspec.Struct, frozen=True, gc=False):
    """`value` None deletes the key in a compacted topic. `timestamp_ms` None: none yet, and the time of the append when it is appended."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None


class StoredRecord(Record, frozen=True, gc=False, kw_only=True):
    """A record of the log."""

    offset: int


class Written(NamedTuple):
    """Records as a batch holds them, before compression. `batch` has room for the batch's header before them."""

    batch: bytearray
    base_ms: int
    greatest_ms: int
    record_count: int

    @property
    def body(self) -> memoryview:
        return memoryview(self.batch)[HEADER_BYTES:]


def write_values_in_steps(
    records: Sequence[V], *, now_ms: int, values_of: Callable[[Sequence[V]], Sequence[bytes | Record]]
) -> Generator[None, None, Written]:
    """The records one after the other; those without a time have `now_ms`. There is at least one.

    `values_of`: the values of some of `records`, a step's at a time. Bytes are a value without a key or headers.
    """
    (first,) = values_of(records[:1])
    base_ms = now_ms if isinstance(first, bytes) or first.timestamp_ms is None else first.timestamp_ms
    pieces = [HEADER_ROOM]
    greatest_ms = base_ms
    for begin in range(0, len(records), RECORDS_PER_STEP):
        if begin:
            yield
        part = values_of(records[begin : begin + RECORDS_PER_STEP])
        greatest_ms = max(greatest_ms, _write(part, begin, now_ms, base_ms, pieces))
    return Written(bytearray().join(pieces), base_ms, greatest_ms, len(records))


def _write(records: Sequence[bytes | Record], begin: int, now_ms: int, base_ms: int, pieces: list[bytes]) -> int:
    """Add these to `pieces`. Return their greatest time."""
    now_delta, varints = b"\x00" + varint(now_ms - base_ms), VARINTS
    beside = len(now_delta) + 2  # the length of the key, and the number of headers
    greatest_ms = base_ms
    for index, record in enumerate(records, begin):
        if isinstance(record, bytes):
            length, place = len(record), varints[index] if index < VARINTS_KEPT else long_varint(index)
            size = varints[length] if length < VARINTS_KEPT else long_varint(length)
            length += beside + len(place) + len(size)
            whole = varints[length] if length < VARINTS_KEPT else long_varint(length)
            pieces += (whole + now_delta + place + b"\x01" + size, record, b"\x00")
            if now_ms > greatest_ms:
                greatest_ms = now_ms
        else:
            at_ms = now_ms if record.timestamp_ms is None else record.timestamp_ms
            greatest_ms = max(greatest_ms, at_ms)
            fields = [*sized(record.key), *sized(record.value), varint(len(record.headers))]
            for name, value in record.headers:
                fields += (*sized(name.encode()), *sized(value))
            before = b"\x00" + varint(at_ms - base_ms) + varint(index)
            pieces += (varint(len(before) + sum(map(len, fields))), before, *fields)
    return greatest_ms


def read_values(header: BatchHeader, body: bytes) -> Iterator[StoredRecord]:
    """The records of one batch whose `body` is decompressed, by offset. Raise `Corrupt` for what is not as the header says."""
    at, size, last_delta = 0, len(body), -1
    append_ms = header.max_timestamp if header.attributes & ATTRIBUTE_LOG_APPEND_TIME else None
    try:
        for _ in range(header.record_count):
            length, at = read_varint(body, at)
            end = at + length
            if length < 0 or end > size:
                raise Corrupt(f"a record ends outside its batch: length={length} remaining={size - at}")
            delta_ms, at = read_varint(body, at + 1)
            offset_delta, at = read_varint(body, at)
            if not last_delta < offset_delta <= header.last_offset_delta:
                raise Corrupt(
                    f"offsets do not ascend in their batch: delta={offset_delta} before={last_delta} last={header.last_offset_delta}"
                )
            last_delta = offset_delta
            key, at = _read_bytes(body, at, end)
            value, at = _read_bytes(body, at, end)
            count, at = read_varint(body, at)
            if not 0 <= count <= end - at:
                raise Corrupt(f"impossible number of headers: {count}")
            headers: list[tuple[str, bytes | None]] = []
            for _header in range(count):
                name, at = _read_bytes(body, at, end)
                text = (name or b"").decode(errors="replace")
                field, at = _read_bytes(body, at, end)
                headers.append((text, field))
            if at != end:
                raise Corrupt(f"a record is not as long as it says: length={length} left={end - at}")
            at_ms = header.base_timestamp + delta_ms if append_ms is None else append_ms
            yield StoredRecord(value, key, tuple(headers), at_ms if at_ms >= 0 else None, offset=header.base_offset + offset_delta)
        if at != size:
            raise Corrupt(f"bytes are left after the last record: record_count={header.record_count} left={size - at}")
    except IndexError:
        raise Corrupt(f"records end early: record_count={header.record_count} bytes={size}") from None


def _read_bytes(body: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    length, at = read_varint(body, at)
    if length < 0:
        return None, at
    stop = at + length
    if stop > end:
        raise Corrupt(f"a field ends outside its record: length={length} remaining={end - at}")
    return body[at:stop], stop


def sized(data: bytes | None) -> tuple[bytes, bytes]:
    return (b"\x01", b"") if data is None else (varint(len(data)), data)


def long_varint(value: int) -> bytes:
    zigzag = (value << 1) ^ (value >> 63)
    out = bytearray()
    while zigzag >= 0x80:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)


VARINTS: Final = tuple(long_varint(value) for value in range(VARINTS_KEPT))


def varint(value: int) -> bytes:
    return VARINTS[value] if 0 <= value < VARINTS_KEPT else long_varint(value)


@dataclass(frozen=True, slots=True)
class SequencedBy:
    """An idempotent producer, with the sequence of the batch's first record."""

    producer_id: int = NO_PRODUCER
    epoch: int = NO_PRODUCER
    sequence: int = NO_PRODUCER


NO_SENDER: Final = SequencedBy()


def write_batch(into: memoryview, written: Written, packed: Buffer, codec: int, sender: SequencedBy = NO_SENDER) -> None:
    """Write the batch whose records are `packed` by the codec of that number; `into` has `batch_bytes` of room."""
    into[HEADER_BYTES:] = packed
    write_header(into, written, codec, sender)


def write_header(batch: memoryview, written: Written, codec: int, sender: SequencedBy = NO_SENDER) -> None:
    """Write the header of a batch before its records, which are there already."""
    last = written.record_count - 1
    covered = _COVERED.pack(
        codec,
        last,
        written.base_ms,
        written.greatest_ms,
        sender.producer_id,
        sender.epoch,
        sender.sequence,
        written.record_count,
    )
    batch[HEADER_BYTES - len(covered) : HEADER_BYTES] = covered
    crc = crc32c(batch[HEADER_BYTES - len(covered) :])
    batch[: _BEFORE.size] = _BEFORE.pack(0, len(batch) - LENGTH_OFFSET_BYTES, -1, MAGIC, crc)


def batch_bytes(packed: Buffer) -> int:
    return HEADER_BYTES + len(packed)


def codec_number(codec: str) -> int:
    return _CODEC_NUMBERS[codec]


class Cut(NamedTuple):
    """A batch of what was fetched. `body` may be compressed."""

    header: BatchHeader
    body: memoryview

    @property
    def codec(self) -> int:
        return self.header.attributes & CODEC_MASK

    @property
    def next_offset(self) -> int:
        return self.header.base_offset + self.header.last_offset_delta + 1

    @property
    def is_control(self) -> bool:
        """A marker of a transaction, which readers do not see."""
        return bool(self.header.attributes & ATTRIBUTE_CONTROL)


def cut(data: memoryview) -> Iterator[Cut]:
    """The batches one after the other. Raise `Corrupt` where there is none."""
    at = 0
    while at < len(data):
        if len(data) - at < HEADER_BYTES:
            raise Corrupt(f"a batch ends early: bytes={len(data) - at}")
        header = parse_header(data, at)
        end = at + header.size_bytes
        if header.magic != MAGIC or not at + HEADER_BYTES <= end <= len(data):
            raise Corrupt(f"not a record batch: magic={header.magic} length={header.batch_length} bytes={len(data) - at}")
        yield Cut(header, data[at + HEADER_BYTES : end])
        at = end


def read_varint(body: bytes, at: int) -> tuple[int, int]:
    byte = body[at]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    second = body[at + 1]
    if second < 0x80:
        value = byte + (second << 7) - 0x80
        return (value >> 1) ^ -(value & 1), at + 2
    value, shift = byte & 0x7F, 7
    at += 1
    while shift < 70:
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
    raise Corrupt("a varint is longer than 10 bytes")
