"""Compressed records that decompress here, but not at every consumer: it shows in their frames.

Java's consumers read lz4 up to the end of the first frame, or up to a block that holds nothing, and refuse linked blocks.
librdkafka refuses a second lz4 frame, reads the first gzip member only, and aborts its process if that is empty.
Producers write one frame. Those of zstd may follow each other: every consumer reads them.
"""

import struct
import zlib
from typing import Final

from storage.errors import Corrupt
from storage.records import GZIP

_GZIP_WINDOW_BITS: Final = 31
_GZIP_SIZE_BYTES: Final = 4
_PROBE_BYTES: Final = 512
_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
_LZ4_SKIPPED_MAGIC: Final = 0x184D_2A50
_LZ4_FLAGS_AT: Final = 4
_LZ4_BLOCKS_AT: Final = 7
_LZ4_INDEPENDENT: Final = 0x20
_LZ4_BLOCK_CHECKSUMS: Final = 0x10
_LZ4_CONTENT_SIZE: Final = 0x08
_LZ4_CONTENT_CHECKSUM: Final = 0x04
_LZ4_DICTIONARY: Final = 0x01
_LZ4_RAW: Final = 0x8000_0000
_CHECKSUM_BYTES: Final = 4
_SNAPPY_MAGIC: Final = b"\x82SNAPPY\x00"
_SNAPPY_VERSION: Final = struct.Struct(">8xi")
_UINT32: Final = struct.Struct("<I")


def check_frames(body: memoryview, codec: int) -> None:
    """Raises `Corrupt` for what only some consumers read. What does not decompress at all may pass; looks at the heads of blocks alone."""
    match codec:
        case 1:
            _check_first_member(body)
        case 2:
            _check_snappy(body)
        case 3:
            _check_lz4(body)
        case _:
            pass


def check_size(body: memoryview, codec: int, size_bytes: int) -> None:
    """To be asked of what has passed `check_frames` and decompresses to `size_bytes`."""
    if codec == GZIP and int.from_bytes(body[-_GZIP_SIZE_BYTES:], "little") != size_bytes & 0xFFFF_FFFF:
        raise Corrupt("there is more than one gzip member, of which librdkafka's consumers read the first")


def _check_first_member(body: memoryview) -> None:
    """The size of the last member is that of all unless a member before it holds something, or it is the only one that does."""
    reader = zlib.decompressobj(_GZIP_WINDOW_BITS)
    try:
        for begin in range(0, len(body), _PROBE_BYTES):
            if reader.decompress(body[begin : begin + _PROBE_BYTES], 1):
                return
            if reader.eof:
                raise Corrupt("the first gzip member is empty, which ends librdkafka's consumers")
    except zlib.error:
        return


def _check_snappy(body: memoryview) -> None:
    if len(body) < _SNAPPY_VERSION.size or bytes(body[: len(_SNAPPY_MAGIC)]) != _SNAPPY_MAGIC:
        return
    (version,) = _SNAPPY_VERSION.unpack_from(body)
    if version < 1:
        raise Corrupt(f"snappy's framing begins with version 1, which Java's consumers ask for: version={version}")


def _check_lz4(body: memoryview) -> None:
    if len(body) < _LZ4_BLOCKS_AT:
        return
    if bytes(body[: len(_LZ4_MAGIC)]) != _LZ4_MAGIC:
        if _UINT32.unpack_from(body)[0] & ~0xF == _LZ4_SKIPPED_MAGIC:
            raise Corrupt("the records begin with an lz4 frame to be skipped, which Java's consumers do not do")
        return
    flags = body[_LZ4_FLAGS_AT]
    if not flags & _LZ4_INDEPENDENT:
        raise Corrupt("lz4 blocks depend on each other, which Java's consumers do not read")
    if flags & _LZ4_DICTIONARY:
        raise Corrupt("the lz4 frame names a dictionary, which Java's consumers do not read")
    at = _LZ4_BLOCKS_AT + (8 if flags & _LZ4_CONTENT_SIZE else 0)
    beside_bytes = _UINT32.size + (_CHECKSUM_BYTES if flags & _LZ4_BLOCK_CHECKSUMS else 0)
    end = len(body) - _UINT32.size
    while at <= end:
        (size,) = _UINT32.unpack_from(body, at)
        if not size & ~_LZ4_RAW:
            if at + _UINT32.size + (_CHECKSUM_BYTES if flags & _LZ4_CONTENT_CHECKSUM else 0) < len(body):
                raise Corrupt("there is something behind the first lz4 frame, where consumers stop")
            return
        if size == 1:
            raise Corrupt("an lz4 block holds nothing, where Java's consumers stop")
        at += beside_bytes + (size & ~_LZ4_RAW)
