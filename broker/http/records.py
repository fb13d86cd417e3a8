"""Records between JSON and record batches v2. Pure; what grows with a request is done in steps.

    a record in JSON   "text" | {"base64": "…"} | {"value": …, "key": …, "headers": [["name", …]], "timestamp": ms}
    a value, a key     "text" | {"base64": "…"} | null

What is not UTF-8 is written as base64.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, Final

import msgspec

from storage.errors import Corrupt
from storage.limits import KIB, MIB
from storage.record_values import RECORDS_PER_STEP, Record, read_varint
from storage.recordbatch import ATTRIBUTE_LOG_APPEND_TIME, BatchHeader

BYTES_PER_STEP: Final = 64 * KIB
"""And of those that are read, as many bytes: the last one may go beyond."""
RECORD_BYTES_MAX: Final = 8 * MIB
"""The largest record that is read. Kafka's protocol reads any."""
HEADERS_MAX: Final = 100
READ_HEADERS_MAX: Final = 10_000
"""In one record: to read them takes ten milliseconds. Kafka's protocol reads any number."""
_LONG_BYTES: Final = 2 * READ_HEADERS_MAX
"""No shorter record has more headers: two bytes make one."""
TIMESTAMP_MAX: Final = 2**63 - 1
NO_KEY: Final = 1
"""The length -1 as a varint."""


class Binary(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Bytes, written in base64."""

    base64: bytes


Text = str | Binary | None
Header = tuple[str, Text]
Timestamp = Annotated[int, msgspec.Meta(ge=0, le=TIMESTAMP_MAX)]


class JsonRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A record with more than a text: `value` (null deletes the key in a compacted topic), or `base64` for a value alone."""

    value: Text | msgspec.UnsetType = msgspec.UNSET
    base64: bytes | msgspec.UnsetType = msgspec.UNSET
    key: Text = None
    headers: Annotated[list[Header], msgspec.Meta(max_length=HEADERS_MAX)] | None = None
    timestamp: Timestamp | None = None

    def __post_init__(self) -> None:
        if (self.value is msgspec.UNSET) == (self.base64 is msgspec.UNSET):
            raise ValueError('A record has a "value" (null for none), or "base64" in its place')

    def value_bytes(self) -> bytes | None:
        if not isinstance(self.base64, msgspec.UnsetType):
            return self.base64
        return None if isinstance(self.value, msgspec.UnsetType) else _bytes(self.value)


AnyRecord = str | JsonRecord


class ReadRecord(msgspec.Struct, gc=False):
    """A record as readers get it. `timestamp` is null where it has none."""

    offset: int
    timestamp: int | None
    key: Text
    value: Text
    headers: list[Header]


def values_of(records: Sequence[AnyRecord]) -> list[bytes | Record]:
    """The same as the log's values."""
    return [record.encode() if isinstance(record, str) else _value_of(record) for record in records]


def _value_of(record: JsonRecord) -> Record:
    headers = tuple([(name, _bytes(value)) for name, value in record.headers]) if record.headers else ()
    return Record(record.value_bytes(), _bytes(record.key), headers, record.timestamp)


def _bytes(text: Text) -> bytes | None:
    if text is None:
        return None
    return text.encode() if isinstance(text, str) else text.base64


class NotByHttp(Exception):
    """A record that is not read by HTTP, and by Kafka's protocol is. The message names it."""


class WantedRecords:
    """What a reader wants of the batches that were fetched for it: from `offset` on, within bounds. Counts what it has got."""

    __slots__ = ("bytes_left", "last_offset", "least", "offset", "records_left", "taken")

    def __init__(self, offset: int, *, bytes_left: int, records_left: int, least: int = 1) -> None:
        """`least`: the number of records that come, whatever the bounds are."""
        self.offset = offset
        """The next one that is wanted."""
        self.bytes_left = bytes_left
        self.records_left = records_left
        self.least = least
        self.taken = 0
        self.last_offset = -1
        """The offset of the last record that was taken."""

    @property
    def is_done(self) -> bool:
        """There is no room for another record."""
        return self.taken >= self.least and (self.records_left <= 0 or self.bytes_left <= 0)


def read_in_steps(header: BatchHeader, body: bytes, wanted: WantedRecords) -> Iterator[list[ReadRecord]]:
    """The records of one batch that are wanted, a step at a time. Raise `Corrupt` for what is not as the header says, and `NotByHttp` if
    that is the first record that is wanted; it ends before a later one.
    """
    at = index = 0
    while index < header.record_count and not wanted.is_done:
        found: list[ReadRecord] = []
        count = min(RECORDS_PER_STEP, header.record_count - index)
        try:
            at, passed = _read(header, body, at, count, wanted, found)
        except IndexError:
            raise Corrupt(f"records end early: record_count={header.record_count} bytes={len(body)}") from None
        index += passed
        yield found


def _read(header: BatchHeader, body: bytes, at: int, count: int, wanted: WantedRecords, found: list[ReadRecord]) -> tuple[int, int]:
    """Read `count` records from `at` on, or as many as have BYTES_PER_STEP. Return the position behind them, and how many were passed.

    Varints of one and two bytes are read where they stand, as in storage/records.py: a call for each takes half of the time.
    """
    base_offset, base_ms, size = header.base_offset, header.base_timestamp, len(body)
    append_ms = header.max_timestamp if header.attributes & ATTRIBUTE_LOG_APPEND_TIME else None
    next_offset, records_left, bytes_left, least = wanted.offset, wanted.records_left, wanted.bytes_left, wanted.least - wanted.taken
    passed, stop = 0, at + BYTES_PER_STEP
    while passed < count and at < stop:
        begin = at
        byte = body[at]
        if byte < 0x80:
            length, at = byte >> 1, at + 1
        elif (second := body[at + 1]) < 0x80:
            length, at = (byte + (second << 7) - 0x80) >> 1, at + 2
        else:
            length, at = read_varint(body, at)
        end = at + length
        if length < 0 or end > size:
            raise Corrupt(f"a record ends outside its batch: length={length} remaining={size - at}")
        if body[at + 1] or body[at + 2] >= 0x80:
            delta_ms, at = read_varint(body, at + 1)
            offset_delta, at = read_varint(body, at)
        else:
            delta_ms, offset_delta, at = 0, body[at + 2] >> 1, at + 3
        offset = base_offset + offset_delta
        passed += 1
        if offset < next_offset:
            at = end
            continue
        if (records_left <= 0 or bytes_left <= 0) and len(found) >= least:
            break
        if length > _LONG_BYTES and (length > RECORD_BYTES_MAX or _has_many_headers(body, at, end)):
            if len(found) >= max(least, 1) or wanted.taken:
                records_left, at = 0, begin
                break
            raise NotByHttp(
                f"the record at offset {offset} has more than {RECORD_BYTES_MAX} bytes or {READ_HEADERS_MAX} headers, which HTTP does not "
                f"read: use a Kafka client, or go on at {offset + 1}"
            )
        if body[at] == NO_KEY:
            key, at = None, at + 1
        else:
            key, at = _read_text(body, at, end)
        byte = body[at]
        if byte >= 0x80 > (second := body[at + 1]) and not byte & 1 and (value_end := at + 2 + ((byte + (second << 7) - 0x80) >> 1)) <= end:
            value, at = _text(body[at + 2 : value_end]), value_end
        else:
            value, at = _read_text(body, at, end)
        headers = _read_headers(body, at, end) if at < end and body[at] else []
        at_ms = base_ms + delta_ms if append_ms is None else append_ms
        found.append(ReadRecord(offset, at_ms if at_ms >= 0 else None, key, value, headers))
        next_offset = offset + 1
        records_left -= 1
        bytes_left -= length
        at = end
    wanted.offset, wanted.records_left, wanted.bytes_left = next_offset, records_left, bytes_left
    if found:
        wanted.taken += len(found)
        wanted.last_offset = found[-1].offset
    return at, passed


def _has_many_headers(body: bytes, at: int, end: int) -> bool:
    """Look at the record whose key begins at `at`, and which is longer than _LONG_BYTES."""
    for _ in range(2):
        length, at = read_varint(body, at)
        at += max(length, 0)
    return at < end and read_varint(body, at)[0] > READ_HEADERS_MAX


def _read_headers(body: bytes, at: int, end: int) -> list[Header]:
    count, at = read_varint(body, at)
    if not 0 <= count <= end - at:
        raise Corrupt(f"impossible number of headers: {count}")
    headers: list[Header] = []
    for _ in range(count):
        length, at = read_varint(body, at)
        if length < 0 or at + length > end:
            raise Corrupt(f"a header ends outside its record: length={length}")
        name = body[at : at + length].decode(errors="replace")
        value, at = _read_text(body, at + length, end)
        headers.append((name, value))
    return headers


def _read_text(body: bytes, at: int, end: int) -> tuple[Text, int]:
    length, at = read_varint(body, at)
    if length < 0:
        return None, at
    stop = at + length
    if stop > end:
        raise Corrupt(f"a field ends outside its record: length={length} remaining={end - at}")
    return _text(body[at:stop]), stop


def _text(data: bytes) -> Text:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError:
        return Binary(data)
