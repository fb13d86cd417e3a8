"""The WAL object, format 1: slices of many partitions behind a header that names them.

     0   8   magic "FOREBAYW"
     8   2   format (1)
    10   2   number of slices n
    12   4   bytes of the header, its checksum included
    16   8   epoch of the broker that wrote it
    24  26   object id (ULID, ASCII)
    50  36n  slices, in the order of their bytes:
                 0  16  topic id (UUID)
                16   4  partition
                20   8  position in the object
                28   8  length
     …   4   CRC-32C of all bytes before it
     …       the slices, back to back: record batches v2 as produced, base offset 0

All integers are big-endian and unsigned. Batches carry their own CRC-32C; the offset of a batch is not in here, since it is not known
when the object is written: the partition's index says it. Which batches of a slice count, the index says too.
"""

import struct
import uuid
from collections.abc import Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from runtime.ulid import ULID_LENGTH
from storage.errors import Corrupt, IncompatibleFormat
from storage.limits import WAL_OBJECT_SLICES_MAX
from storage.vocabulary import Buffer, ObjectId, PartitionId, TopicId

MAGIC: Final = b"FOREBAYW"
FMT: Final = 1
_FIXED: Final = struct.Struct(">8sHHIQ26s")
_SLICE: Final = struct.Struct(">16sIQQ")
_CHECKSUM: Final = struct.Struct(">I")
_PREFIX_CHARACTERS: Final = 6

assert _FIXED.size == 50
assert _SLICE.size == 36
assert ULID_LENGTH == 26


class Slice(NamedTuple):
    """The batches of one partition in one object."""

    partition: PartitionId
    position: int
    length: int


class WalHeader(NamedTuple):
    object_id: ObjectId
    broker_epoch: int
    slices: tuple[Slice, ...]


def object_key(object_id: ObjectId) -> str:
    """Keys sort as ids do; the first characters of a ULID change every 17 minutes, which keeps folders of the disk store small."""
    return f"wal/{object_id[:_PREFIX_CHARACTERS]}/{object_id}"


def header_bytes(slice_count: int) -> int:
    return _FIXED.size + _SLICE.size * slice_count + _CHECKSUM.size


def encode_header(object_id: ObjectId, broker_epoch: int, slices: Sequence[Slice]) -> bytes:
    """`slices` must lie back to back from the end of the header on."""
    assert 0 < len(slices) <= WAL_OBJECT_SLICES_MAX, f"an object has 1 to {WAL_OBJECT_SLICES_MAX} slices: {len(slices)}"
    size = header_bytes(len(slices))
    assert slices[0].position == size, "slices begin after the header"
    parts = [_FIXED.pack(MAGIC, FMT, len(slices), size, broker_epoch, object_id.encode("ascii"))]
    parts.extend(_SLICE.pack(uuid_bytes(s.partition.topic_id), s.partition.partition, s.position, s.length) for s in slices)
    body = b"".join(parts)
    return body + _CHECKSUM.pack(crc32c(body))


def decode_header(data: Buffer, *, key: str) -> WalHeader:
    """`data` begins at the object's first byte and holds at least the header. Raise `Corrupt` or `IncompatibleFormat`."""
    view = memoryview(data)
    if len(view) < _FIXED.size or bytes(view[:8]) != MAGIC:
        raise Corrupt(f"not a WAL object: key={key!r} bytes={len(view)}")
    _, fmt, count, size, broker_epoch, object_id = _FIXED.unpack_from(view)
    if fmt > FMT:
        raise IncompatibleFormat(f"WAL object of format {fmt}, this program knows up to {FMT}: key={key!r}")
    if size != header_bytes(count) or size > len(view):
        raise Corrupt(f"WAL header does not fit: key={key!r} slices={count} header_bytes={size} bytes={len(view)}")
    (expected,) = _CHECKSUM.unpack_from(view, size - _CHECKSUM.size)
    actual = crc32c(view[: size - _CHECKSUM.size])
    if actual != expected:
        raise Corrupt(f"checksum mismatch: key={key!r} part=header expected={expected:#010x} actual={actual:#010x}")
    slices = []
    for n in range(count):
        topic, partition, position, length = _SLICE.unpack_from(view, _FIXED.size + n * _SLICE.size)
        slices.append(Slice(PartitionId(TopicId(str(uuid.UUID(bytes=topic))), partition), position, length))
    return WalHeader(ObjectId(object_id.decode("ascii")), broker_epoch, tuple(slices))


def uuid_bytes(topic_id: TopicId) -> bytes:
    return bytes.fromhex(topic_id.replace("-", ""))
