"""The WAL object: slices of many partitions and a directory that names them. Format 1 has the directory in front of them:

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

In format 2 it is behind them. Slices of an early object are given their places one by one, before anybody knows how many follow:

     0   8   magic "FOREBAYW"
     8   2   format (2)
    10   2   0
    12   4   number of slices n
    16   8   epoch of the broker that wrote it
    24  26   object id (ULID, ASCII)
    50   8   position of the directory
    58   2   0
    60   4   CRC-32C of all bytes before it
    64       the slices, back to back
     …  36n  the directory: slices as in format 1
     …   4   CRC-32C of the directory

All integers are big-endian and unsigned. Batches carry their own CRC-32C; the offset of a batch is not in here, since it is not known
when the object is written: the partition's index says it. Which batches of a slice count, the index says too.
"""

import struct
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from runtime.ulid import ULID_LENGTH
from storage.errors import Corrupt, IncompatibleFormat
from storage.limits import WAL_OBJECT_SLICES_MAX
from storage.vocabulary import Buffer, ObjectId, PartitionId, TopicId

MAGIC: Final = b"FOREBAYW"
FMT: Final = 1
FMT_EARLY: Final = 2
_FIXED: Final = struct.Struct(">8sHHIQ26s")
_SLICE: Final = struct.Struct(">16sIQQ")
_HEAD: Final = struct.Struct(">8sHHIQ26sQH")
_CHECKSUM: Final = struct.Struct(">I")
HEAD_BYTES: Final = 64
"""The first slice of an object of format 2 begins here."""
HEADER_READ_BYTES: Final = 32 * 1024
"""The headers of objects with up to 900 slices; longer ones take a second GET."""
_PREFIX_CHARACTERS: Final = 6

assert _FIXED.size == 50
assert _HEAD.size + _CHECKSUM.size == HEAD_BYTES
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


def directory_bytes(slice_count: int) -> int:
    """How long the directory of format 2 is, its checksum included."""
    return _SLICE.size * slice_count + _CHECKSUM.size


def encode_header(object_id: ObjectId, broker_epoch: int, slices: Sequence[Slice]) -> bytes:
    """`slices` must lie back to back from the end of the header on."""
    assert 0 < len(slices) <= WAL_OBJECT_SLICES_MAX, f"an object has 1 to {WAL_OBJECT_SLICES_MAX} slices: {len(slices)}"
    size = header_bytes(len(slices))
    assert slices[0].position == size, "slices begin after the header"
    parts = [_FIXED.pack(MAGIC, FMT, len(slices), size, broker_epoch, object_id.encode("ascii"))]
    parts.extend(packed(one) for one in slices)
    return _with_checksum(b"".join(parts))


def packed(one: Slice) -> bytes:
    """As a directory has it."""
    return _SLICE.pack(uuid_bytes(one.partition.topic_id), one.partition.partition, one.position, one.length)


def encode_early(object_id: ObjectId, broker_epoch: int, directory: Buffer, *, end: int) -> tuple[bytes, bytes]:
    """What comes before and behind the slices in an object of format 2. `directory` are all its slices, each `packed`: they lie back to
    back from HEAD_BYTES up to `end`.
    """
    count, rest = divmod(len(directory), _SLICE.size)
    assert count, "an object without a slice is not stored"
    assert not rest, f"a directory is of whole slices: {len(directory)} bytes"
    head = _HEAD.pack(MAGIC, FMT_EARLY, 0, count, broker_epoch, object_id.encode("ascii"), end, 0)
    return _with_checksum(head), _with_checksum(bytes(directory))


def directory_of(data: Buffer, *, key: str, size_bytes: int) -> tuple[int, int]:
    """Where the directory begins and ends in an object of `size_bytes`, whose first bytes are `data`: HEAD_BYTES of them say it, or all of
    a smaller object. Raise `Corrupt` or `IncompatibleFormat`.
    """
    view = memoryview(data)
    if len(view) < _FIXED.size or bytes(view[:8]) != MAGIC:
        raise Corrupt(f"not a WAL object: key={key!r} bytes={len(view)}")
    _, fmt, count, size, _, _ = _FIXED.unpack_from(view)
    if fmt > FMT_EARLY:
        raise IncompatibleFormat(f"WAL object of format {fmt}, this program knows up to {FMT_EARLY}: key={key!r}")
    if fmt == FMT:
        if size != header_bytes(count) or size > size_bytes:
            raise Corrupt(f"WAL header does not fit: key={key!r} slices={count} header_bytes={size} bytes={size_bytes}")
        return 0, size
    if len(view) < HEAD_BYTES:
        raise Corrupt(f"WAL head is cut short: key={key!r} bytes={len(view)}")
    _check(view[:HEAD_BYTES], key=key, part="head")
    _, _, _, count, _, _, position, _ = _HEAD.unpack_from(view)
    end = position + directory_bytes(count)
    if end != size_bytes:
        raise Corrupt(f"WAL directory does not fit: key={key!r} slices={count} directory_at={position} bytes={size_bytes}")
    return position, end


def decode_header(data: Buffer, *, key: str, directory: Buffer = b"") -> WalHeader:
    """`data` begins at the object's first byte. In format 1 it holds at least the header; in format 2 `directory` is what `directory_of`
    names. Raise `Corrupt` or `IncompatibleFormat`.
    """
    view = memoryview(data)
    begin, end = directory_of(view, key=key, size_bytes=len(view) if not len(directory) else _size_of(view, key=key))
    _, fmt, count, _, broker_epoch, object_id = _FIXED.unpack_from(view)
    if fmt == FMT:
        _check(view[:end], key=key, part="header")
        records = view[_FIXED.size : end]
    else:
        count = _HEAD.unpack_from(view)[3]
        records = memoryview(directory) if len(directory) else view[begin:end]
        if len(records) != end - begin:
            raise Corrupt(f"WAL directory is cut short: key={key!r} bytes={len(records)} expected={end - begin}")
        _check(records, key=key, part="directory")
    slices = []
    for n in range(count):
        topic, partition, position, length = _SLICE.unpack_from(records, n * _SLICE.size)
        slices.append(Slice(PartitionId(TopicId(str(uuid.UUID(bytes=topic))), partition), position, length))
    return WalHeader(ObjectId(object_id.decode("ascii")), broker_epoch, tuple(slices))


async def read_header(
    get: Callable[[int, int], Awaitable[Buffer]], *, key: str, size_bytes: int, first_bytes: int = HEADER_READ_BYTES
) -> WalHeader:
    """The header of an object of `size_bytes`, of which `get` reads bytes begin..end (exclusive). One GET of `first_bytes` is enough but
    for a long directory, or one that is behind the slices. Raise `Corrupt`, `IncompatibleFormat`, and what `get` raises.
    """
    first = await get(0, min(size_bytes, first_bytes))
    begin, end = directory_of(first, key=key, size_bytes=size_bytes)
    if end <= len(first):
        return decode_header(first, key=key, directory=memoryview(first)[begin:end] if begin else b"")
    return decode_header(first, key=key, directory=await get(begin, end)) if begin else decode_header(await get(0, end), key=key)


def _size_of(view: memoryview, *, key: str) -> int:
    """What an object of format 2 says of its size."""
    if len(view) < HEAD_BYTES:
        raise Corrupt(f"WAL head is cut short: key={key!r} bytes={len(view)}")
    _, _, _, count, _, _, position, _ = _HEAD.unpack_from(view)
    return int(position) + directory_bytes(count)


def _with_checksum(body: bytes) -> bytes:
    return body + _CHECKSUM.pack(crc32c(body))


def _check(view: memoryview, *, key: str, part: str) -> None:
    """Raise `Corrupt` unless the last four bytes are the checksum of those before."""
    (expected,) = _CHECKSUM.unpack_from(view, len(view) - _CHECKSUM.size)
    actual = crc32c(view[: -_CHECKSUM.size])
    if actual != expected:
        raise Corrupt(f"checksum mismatch: key={key!r} part={part} expected={expected:#010x} actual={actual:#010x}")


def uuid_bytes(topic_id: TopicId) -> bytes:
    return bytes.fromhex(topic_id.replace("-", ""))
