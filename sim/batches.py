"""Record batches of the simulation: real headers and checksums around a value that nobody else sends. Records are not meant to be read."""

import struct

from crc32c import crc32c

from storage.recordbatch import HEADER_BYTES, LENGTH_OFFSET_BYTES, MAGIC, NO_PRODUCER

TIMESTAMP_MS = 1_000


def encode(
    value: bytes,
    *,
    record_count: int,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = -1,
    first_seq: int = -1,
    timestamp_ms: int = TIMESTAMP_MS,
) -> bytes:
    """A batch whose header says what it should; `value` has at least RECORD_BYTES_MIN bytes for each record that it claims."""
    times = timestamp_ms, timestamp_ms
    body = struct.pack(">hiqqqhii", 0, record_count - 1, *times, producer_id, producer_epoch, first_seq, record_count) + value
    return struct.pack(">qiibI", 0, HEADER_BYTES - LENGTH_OFFSET_BYTES + len(value), -1, MAGIC, crc32c(body)) + body


def value_of(batch: bytes | memoryview) -> bytes:
    return bytes(batch[HEADER_BYTES:])
