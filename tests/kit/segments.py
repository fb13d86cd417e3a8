"""Segments for tests, of small batches in small blocks, and their bytes changed under a right checksum."""

import struct
from typing import Final

from crc32c import crc32c

from storage.formats.segment import Segment, SegmentFooter, SegmentWriter, decode_footer
from storage.recordbatch import restamp
from storage.vocabulary import ObjectId, PartitionId, TopicId
from tests.kit.batches import batch_bytes

PARTITION: Final = PartitionId(TopicId("8e66447a-4af2-46f2-9663-5c2cb2777f87"), 3)
ID: Final = ObjectId("01JGFJJZ005591T038X855YAFS")
KEY: Final = "segments/8e66447a-4af2-46f2-9663-5c2cb2777f87/00003/01JGFJJZ005591T038X855YAFS"
BATCH_BYTES: Final = len(batch_bytes())
TRAILER_BYTES: Final = 14
AFTER_FOOTER: Final = 4 + TRAILER_BYTES
"""What lies behind the facts: checksum and trailer."""
FACTS_COUNT_AT: Final = 106


def stamped(base: int, count: int = 1, *, max_timestamp: int = 1_000, payload: bytes = b"x" * 20) -> bytearray:
    batch = batch_bytes(count, max_timestamp=max_timestamp, payload=payload)
    restamp(batch, 0, base)
    return batch


def segment(*batches: bytes | bytearray, base: int = 0, last: int, block_bytes: int = 2 * BATCH_BYTES) -> Segment:
    writer = SegmentWriter(PARTITION, ID, base, block_bytes=block_bytes)
    for batch in batches:
        writer.add(batch)
    return writer.finish(last)


def three_blocks() -> Segment:
    """Offsets 10 to 30, of which 12 to 14 and 20 to 30 have no batch; block 1 has the greatest timestamp."""
    times = {10: 1_000, 11: 1_200, 15: 1_100, 16: 1_500, 17: 1_500}
    batches = [stamped(base, 3 if base == 17 else 1, max_timestamp=time) for base, time in times.items()]
    return segment(*batches, base=10, last=30)


def bytes_of(made: Segment) -> bytes:
    return b"".join(made.parts)


def decoded(footer: bytes, made: Segment) -> SegmentFooter:
    """A footer that may have another length than the one that was written."""
    return decode_footer(footer, size_bytes=made.size_bytes - len(made.parts[-1]) + len(footer), key=made.key)


def resealed(footer: bytes | bytearray) -> bytes:
    """With the length and the checksum that it should have."""
    body = bytes(footer[:-AFTER_FOOTER])
    return body + struct.pack(">I", crc32c(body)) + struct.pack(">IH8s", len(footer), 1, b"FOREBAYE")


def with_facts(footer: bytes, *facts: bytes, count: int | None = None) -> bytes:
    """`footer` has none."""
    body = bytearray(footer[:-AFTER_FOOTER]) + b"".join(facts)
    struct.pack_into(">I", body, FACTS_COUNT_AT, len(facts) if count is None else count)
    return resealed(body + bytes(AFTER_FOOTER))


def fact(tag: int, content: bytes = b"", *, flags: int = 0, length: int | None = None) -> bytes:
    return struct.pack(">HHI", tag, flags, len(content) if length is None else length) + content
