"""Record batches of the simulation: as producers write them, around a value that nobody else sends."""

import struct

from crc32c import crc32c

from storage.recordbatch import HEADER_BYTES, LENGTH_OFFSET_BYTES, MAGIC, NO_PRODUCER

TIMESTAMP_MS = 1_000
_BEFORE_VALUE = b"\x00\x00\x00\x01"
"""Attributes, time delta 0, offset delta 0 and no key: how the first record begins."""


def encode(
    value: bytes,
    *,
    record_count: int,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = -1,
    first_seq: int = -1,
    timestamp_ms: int = TIMESTAMP_MS,
) -> bytes:
    """A batch whose first record has `value`, and the others nothing."""
    body = b"".join([_record(value if delta == 0 else b"", delta) for delta in range(record_count)])
    times = timestamp_ms, timestamp_ms
    covered = struct.pack(">hiqqqhii", 0, record_count - 1, *times, producer_id, producer_epoch, first_seq, record_count) + body
    return struct.pack(">qiibI", 0, HEADER_BYTES - LENGTH_OFFSET_BYTES + len(body), -1, MAGIC, crc32c(covered)) + covered


def value_of(batch: bytes | memoryview) -> bytes:
    """Raise `ValueError` if the first record is not one of `encode`'s."""
    _, at = _read_varint(batch, HEADER_BYTES)
    if bytes(batch[at : at + 4]) != _BEFORE_VALUE:
        raise ValueError(f"not a record of the simulation: {bytes(batch[HEADER_BYTES : at + 4])!r}")
    size, at = _read_varint(batch, at + 4)
    return bytes(batch[at : at + size])


def _record(value: bytes, offset_delta: int) -> bytes:
    body = _BEFORE_VALUE[:2] + _varint(offset_delta) + _BEFORE_VALUE[3:] + _varint(len(value)) + value + b"\x00"
    return _varint(len(body)) + body


def _varint(number: int) -> bytes:
    number <<= 1
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])


def _read_varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    number = shift = 0
    while data[at] >= 0x80:
        number |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
    return (number | data[at] << shift) >> 1, at + 1
