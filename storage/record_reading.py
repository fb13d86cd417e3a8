"""Every record of a batch read to its end, as strictly as Apache Kafka's brokers and the strictest of its consumers read it.

    record   length varint | attributes 1 | timestamp delta varlong | offset delta varint | key length varint | key | value length varint
             | value | header count varint | (key length varint | key | value length varint | value) per header

Costs half a microsecond per record, a fifth of what `records.walk` takes, which hands each record out: so varints of one and two bytes are
read where they stand. Attributes and the text of header keys mean nothing to Kafka and are not looked at.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from storage.compressed_frames import check_frames, check_size
from storage.errors import Corrupt
from storage.limits import MIB
from storage.recordbatch import CODEC_MASK, HEADER_BYTES, NO_TIMESTAMP, BatchHeader
from storage.records import TooLarge, decompress_records
from storage.vocabulary import Buffer

SLICE_RECORDS: Final = 500
"""Records, or headers, read between two calls of `breathe`: a quarter of a millisecond."""
HEADERS_MAX: Final = 1_000_000
"""In all records of a batch: this number takes a quarter of a second of a thread, and two bytes make one."""
NAMED_MAX: Final = 1_000
"""Indexes that are kept of records that break one rule."""
_INT32_BYTES_MAX: Final = 5
_INT64_BYTES_MAX: Final = 10
_COPIED_BYTES_MAX: Final = MIB
"""Nobody else can do anything while bytes are copied."""


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

    Blocks for as long as it takes, and calls `breathe` every SLICE_RECORDS records or headers, so that a thread can let others run.
    Raises `Unreadable`; `Corrupt` as `records.decompress_records` and `check_frames` do; `TooLarge` for what decompresses to more than
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
    for begin in range(0, header.record_count, SLICE_RECORDS):
        if begin:
            breathe()
        indexes = range(begin, min(begin + SLICE_RECORDS, header.record_count))
        at, headers = _read_slice(records, at, indexes, headers, header.base_timestamp, earliest_ms, latest_ms, found, limits)
    if at != len(records):
        raise Unreadable(f"bytes are left after the last record: record_count={header.record_count} left={len(records) - at}")
    return found


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
                byte, at = _varint(data, at, _INT32_BYTES_MAX)
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
                byte, at = _varint(data, at, _INT64_BYTES_MAX)
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
                byte, at = _varint(data, at, _INT32_BYTES_MAX)
            if byte != index << 1:
                raise Unreadable(f"offset deltas count from 0: expected={index} found={_signed(byte)}")

            byte = data[at]
            if byte < 0x80:
                at += 1
            elif (second := data[at + 1]) < 0x80:
                byte += (second << 7) - 0x80
                at += 2
            else:
                byte, at = _varint(data, at, _INT32_BYTES_MAX)
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
                byte, at = _varint(data, at, _INT32_BYTES_MAX)
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


@dataclass(slots=True)
class _Limits:
    headers_max: int | None
    breathe: Callable[[], None]


def _headers(data: Buffer, at: int, before: int, limits: _Limits) -> tuple[int, int]:
    """How many headers begin at `at`, and the position behind them; there were `before` in records before."""
    written, at = _varint(data, at, _INT32_BYTES_MAX)
    count = _signed(written)
    if not 0 <= count <= len(data) - at:
        raise Unreadable(f"impossible number of headers: {count}")
    if before + count > HEADERS_MAX:
        raise Unreadable(f"the records of a batch have at most {HEADERS_MAX} headers")
    if limits.headers_max is not None and before + count > limits.headers_max:
        raise TooLarge(f"the records have more than {limits.headers_max} headers")
    for number in range(before, before + count):
        if number and not number % SLICE_RECORDS:
            limits.breathe()
        byte = data[at]
        if byte < 0x80:
            at += 1
        else:
            byte, at = _varint(data, at, _INT32_BYTES_MAX)
        if byte & 1:
            raise Unreadable(f"a header key has no such length: {_signed(byte)}")
        at += byte >> 1
        byte = data[at]
        if byte < 0x80:
            at += 1
        else:
            byte, at = _varint(data, at, _INT32_BYTES_MAX)
        if not byte & 1:
            at += byte >> 1
        elif byte != 1:
            raise Unreadable(f"a header value has no such length: {_signed(byte)}")
    return count, at


def _varint(data: Buffer, at: int, bytes_max: int) -> tuple[int, int]:
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
