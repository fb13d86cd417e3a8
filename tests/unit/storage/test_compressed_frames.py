"""What decompresses here, but not at every consumer, is refused where records are read; what producers write is not."""

import importlib
import struct
import tracemalloc
from typing import Any

import cramjam
import pytest
import xxhash

from storage.errors import Corrupt
from storage.limits import MIB
from storage.recordbatch import parse_header
from storage.records import GZIP, LZ4, SNAPPY, ZSTD, read_records
from tests.kit.record_batches import batch_of_records, compressed, record, record_batch

lz4_frame: Any = importlib.import_module("lz4.frame")

ONE, TWO = (record(b"value", offset_delta=delta) for delta in range(2))
SKIPPED = struct.pack("<II", 0x184D2A50, 3) + b"abc"
END = bytes(4)


def read(body: bytes, codec: int) -> None:
    read_batch(batch_of_records(body, 2, codec=codec, is_packed=True))


def read_batch(batch: bytearray) -> None:
    read_records(batch, parse_header(batch), earliest_ms=-(2**63), latest_ms=2**63 - 1)


def checksum(data: bytes) -> bytes:
    return struct.pack("<I", xxhash.xxh32_intdigest(data))


def frame(*blocks: bytes, flags: int = 0x60, between: bytes = b"") -> bytes:
    """An lz4 frame of these blocks, whose heads they have already."""
    described = bytes([flags, 0x40]) + between
    return b"\x04\x22\x4d\x18" + described + bytes([xxhash.xxh32_intdigest(described) >> 8 & 0xFF]) + b"".join(blocks) + END


def raw(data: bytes, *, is_checked: bool = False) -> bytes:
    return struct.pack("<I", len(data) | 0x8000_0000) + data + (checksum(data) if is_checked else b"")


def framed_snappy(*parts: bytes, version: int = 1) -> bytes:
    packed = [bytes(cramjam.snappy.compress_raw(part)) for part in parts]
    return b"\x82SNAPPY\x00" + struct.pack(">ii", version, 1) + b"".join(struct.pack(">i", len(block)) + block for block in packed)


def member(data: bytes, name: bytes = b"") -> bytes:
    made = bytes(cramjam.gzip.compress(data))
    return made if not name else made[:3] + bytes([made[3] | 0x08]) + made[4:10] + name + b"\x00" + made[10:]


BAD: dict[str, tuple[int, bytes, str]] = {
    "two gzip members": (GZIP, member(ONE) + member(TWO), "more than one gzip member"),
    "an empty gzip member behind": (GZIP, member(ONE + TWO) + member(b""), "more than one gzip member"),
    "an empty gzip member before": (GZIP, member(b"") + member(ONE + TWO), "first gzip member is empty"),
    "one with a long name": (GZIP, member(b"", b"n" * 5_000) + member(ONE + TWO), "first gzip member is empty"),
    "two lz4 frames": (LZ4, frame(raw(ONE)) + frame(raw(TWO)), "behind the first lz4 frame"),
    "an empty lz4 frame before": (LZ4, frame() + frame(raw(ONE + TWO)), "behind the first lz4 frame"),
    "an empty lz4 frame behind": (LZ4, frame(raw(ONE + TWO)) + frame(), "behind the first lz4 frame"),
    "a skipped frame before": (LZ4, SKIPPED + frame(raw(ONE + TWO)), "begin with an lz4 frame to be skipped"),
    "a skipped frame behind": (LZ4, frame(raw(ONE + TWO)) + SKIPPED, "behind the first lz4 frame"),
    "an lz4 block of no bytes": (LZ4, frame(raw(ONE), raw(b""), raw(TWO)), "behind the first lz4 frame"),
    "an lz4 block of nothing": (LZ4, frame(raw(ONE), b"\x01\x00\x00\x00\x00", raw(TWO)), "block holds nothing"),
    "an lz4 dictionary": (LZ4, frame(raw(ONE + TWO), flags=0x61, between=b"\x07\x00\x00\x00"), "dictionary"),
    "linked lz4 blocks": (LZ4, frame(raw(ONE + TWO), flags=0x40), "depend on each other"),
    "snappy of version 0": (SNAPPY, framed_snappy(ONE, TWO, version=0), "framing begins with version 1"),
    "an lz4 frame cut in its end": (LZ4, frame(raw(ONE + TWO))[:-1], "do not decompress"),
    "an lz4 frame without its checksum": (LZ4, frame(raw(ONE + TWO), flags=0x64), "do not decompress"),
    "half an lz4 head": (LZ4, frame()[:5], "do not decompress"),
    "half a gzip head": (GZIP, member(ONE + TWO)[:8], "do not decompress"),
}

GOOD: dict[str, tuple[int, bytes]] = {
    "gzip": (GZIP, member(ONE + TWO)),
    "gzip with a long name": (GZIP, member(ONE + TWO, b"n" * 5_000)),
    "lz4 in two blocks": (LZ4, frame(raw(ONE), raw(TWO))),
    "lz4 with block checksums": (LZ4, frame(raw(ONE, is_checked=True), raw(TWO, is_checked=True), flags=0x70)),
    "lz4 with a content checksum": (LZ4, frame(raw(ONE + TWO), flags=0x64) + checksum(ONE + TWO)),
    "lz4 with its size": (LZ4, frame(raw(ONE + TWO), flags=0x68, between=struct.pack("<Q", len(ONE + TWO)))),
    "lz4 by its own library": (
        LZ4,
        lz4_frame.compress(ONE + TWO, block_linked=False, content_checksum=True, block_checksum=True, store_size=True),
    ),
    "snappy in a block each": (SNAPPY, framed_snappy(ONE, TWO)),
    "snappy with an empty block": (SNAPPY, framed_snappy(ONE, b"", TWO)),
    "snappy of a later version": (SNAPPY, framed_snappy(ONE, TWO, version=9)),
    "two zstd frames": (ZSTD, compressed(ONE, ZSTD) + compressed(TWO, ZSTD)),
    "skipped zstd frames": (ZSTD, SKIPPED + compressed(ONE + TWO, ZSTD) + SKIPPED),
}


@pytest.mark.parametrize("case", BAD)
def test_what_only_some_consumers_read_is_refused(case: str) -> None:
    codec, body, cause = BAD[case]
    with pytest.raises(Corrupt, match=cause):
        read(body, codec)


@pytest.mark.parametrize("case", GOOD)
def test_what_every_consumer_reads_is_taken(case: str) -> None:
    codec, body = GOOD[case]
    read(body, codec)


@pytest.mark.parametrize("codec", range(1, 5))
def test_large_blocks_of_every_codec_are_taken(codec: int) -> None:
    read_batch(record_batch(*[bytes(range(256)) * 20] * 2_000, codec=codec))


@pytest.mark.parametrize("codec", range(5))
def test_a_long_batch_takes_no_buffer_that_is_filled_or_copied_in_one_go(codec: int) -> None:
    """Which holds the interpreter, and so everybody else, for as long as it takes: 50 ms for 64 MiB."""
    batch = record_batch(bytes(9 * MIB), codec=codec)
    tracemalloc.start()
    try:
        read_batch(batch)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 3 * MIB
