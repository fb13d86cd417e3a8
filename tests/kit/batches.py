"""Record batches for tests: real bytes with a real CRC, records not meant to be read."""

import struct

from crc32c import crc32c

from storage.recordbatch import HEADER_BYTES


def batch_bytes(
    count: int = 1,
    *,
    producer_id: int = -1,
    producer_epoch: int = -1,
    first_seq: int = -1,
    max_timestamp: int = 1_000,
    payload: bytes = b"x" * 20,
) -> bytearray:
    """A batch of `count` records whose record bytes are `payload`."""
    body = struct.pack(">hiqqqhii", 0, count - 1, max_timestamp, max_timestamp, producer_id, producer_epoch, first_seq, count) + payload
    head = struct.pack(">qiibI", 0, HEADER_BYTES - 12 + len(payload), -1, 2, crc32c(body))
    return bytearray(head + body)
