"""Record batches as producers write them, and as none should: real records, every header field to be set."""

import struct
from collections.abc import Sequence
from typing import Any

import cramjam
from crc32c import crc32c

NOW_MS = 1_700_000_000_000


def varint(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def record(value: bytes, *, offset_delta: int, timestamp_delta: int = 0, key: bytes | None = None) -> bytes:
    keyed = varint(-1) if key is None else varint(len(key)) + key
    body = b"\x00" + varint(timestamp_delta) + varint(offset_delta) + keyed + varint(len(value)) + value + varint(0)
    return varint(len(body)) + body


def compressed(records: bytes, codec: int) -> bytes:
    match codec:
        case 1:
            return bytes(cramjam.gzip.compress(records))
        case 2:
            return bytes(cramjam.snappy.compress_raw(records))
        case 3:
            # Apache Kafka takes no blocks that depend on each other.
            compressor = cramjam.lz4.Compressor(block_linked=False)
            compressor.compress(records)
            return bytes(compressor.finish())
        case 4:
            return bytes(cramjam.zstd.compress(records))
        case _:
            return records


def record_batch(
    *values: bytes,
    keys: Sequence[bytes | None] = (),
    timestamps: Sequence[int] = (),
    codec: int = 0,
    attributes: int = 0,
    base_offset: int = 0,
    batch_length: int | None = None,
    magic: int = 2,
    crc: int | None = None,
    last_offset_delta: int | None = None,
    base_timestamp: int = NOW_MS,
    max_timestamp: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    record_count: int | None = None,
) -> bytearray:
    """One batch of `values` (one record `value` if none is given); what is not set is right."""
    values = values or (b"value",)
    times = timestamps or (base_timestamp,) * len(values)
    records = b"".join(
        record(value, offset_delta=delta, timestamp_delta=time - base_timestamp, key=keys[delta] if keys else None)
        for delta, (value, time) in enumerate(zip(values, times, strict=True))
    )
    body = compressed(records, codec)
    covered = struct.pack(
        ">hiqqqhii",
        codec | attributes,
        len(values) - 1 if last_offset_delta is None else last_offset_delta,
        base_timestamp,
        max(times) if max_timestamp is None else max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        len(values) if record_count is None else record_count,
    )
    covered += body
    length = 9 + len(covered) if batch_length is None else batch_length
    return bytearray(struct.pack(">qiibI", base_offset, length, -1, magic, crc32c(covered) if crc is None else crc) + covered)


def batch_of_records(records: bytes, count: int, *, codec: int = 0, is_packed: bool = False, **header: Any) -> bytearray:
    """A batch of these bytes, whatever they are, with a header that fits them; `is_packed`: they are compressed already."""
    made = record_batch(codec=codec, record_count=count, last_offset_delta=count - 1, **header)[:61]
    made += records if is_packed else compressed(records, codec)
    struct.pack_into(">i", made, 8, len(made) - 12)
    struct.pack_into(">I", made, 17, crc32c(made[21:]))
    return made
