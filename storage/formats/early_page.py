"""The early page: bytes of slices whose object is not stored yet. It lies in the metadata store under the place that they will have.

     0   4   magic "FBEP"
     4   2   format (1)
     6   2   number of partitions n
     8   4   CRC-32C of all other bytes
    12  20n  partitions, each:
                 0  16  topic id (UUID)
                16   4  partition
     …       bytes of the object, from the position that the key names on

All integers are big-endian and unsigned. The key is llog/early/{object id}-{position:010} (storage/metadata/keys.py). A page is put once,
and its bytes never change: a place in an object is given once (E1). The page names the partitions that have slices in it. A collector that
finds a page without its object looks in these partitions for entries.
"""

import struct
import uuid
from collections.abc import Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from storage.errors import Corrupt, IncompatibleFormat
from storage.formats.wal import uuid_bytes
from storage.limits import EARLY_PAGE_BYTES_MAX, METADATA_VALUE_BYTES_MAX
from storage.vocabulary import Buffer, PartitionId, TopicId

MAGIC: Final = b"FBEP"
FMT: Final = 1
_FIXED: Final = struct.Struct(">4sHH")
_CHECKSUM: Final = struct.Struct(">I")
_PARTITION: Final = struct.Struct(">16sI")
_HEADER_BYTES: Final = _FIXED.size + _CHECKSUM.size
PARTITIONS_MAX: Final = (METADATA_VALUE_BYTES_MAX - EARLY_PAGE_BYTES_MAX - _HEADER_BYTES) // _PARTITION.size


class EarlyPage(NamedTuple):
    partitions: tuple[PartitionId, ...]
    data: memoryview


def encode_page(partitions: Sequence[PartitionId], data: Buffer) -> bytes:
    assert 0 < len(partitions) <= PARTITIONS_MAX, f"a page is of 1 to {PARTITIONS_MAX} partitions: {len(partitions)}"
    assert 0 < len(data) <= EARLY_PAGE_BYTES_MAX, f"a page has 1 to {EARLY_PAGE_BYTES_MAX} bytes: {len(data)}"
    fixed = _FIXED.pack(MAGIC, FMT, len(partitions))
    named = b"".join([_PARTITION.pack(uuid_bytes(one.topic_id), one.partition) for one in partitions])
    checksum = crc32c(data, crc32c(named, crc32c(fixed)))
    return b"".join((fixed, _CHECKSUM.pack(checksum), named, data))


def decode_page(value: bytes, *, path: str) -> EarlyPage:
    """Raise `Corrupt` or `IncompatibleFormat`."""
    view = memoryview(value)
    if len(view) < _HEADER_BYTES or bytes(view[:4]) != MAGIC:
        raise Corrupt(f"not an early page: key={path!r} bytes={len(view)}")
    _, fmt, count = _FIXED.unpack_from(view)
    if fmt > FMT:
        raise IncompatibleFormat(f"early page of format {fmt}, this program knows up to {FMT}: key={path!r}")
    begin = _HEADER_BYTES + _PARTITION.size * count
    if not count or begin >= len(view):
        raise Corrupt(f"an early page is cut short: key={path!r} partitions={count} bytes={len(view)}")
    (expected,) = _CHECKSUM.unpack_from(view, _FIXED.size)
    actual = crc32c(view[_HEADER_BYTES:], crc32c(view[: _FIXED.size]))
    if actual != expected:
        raise Corrupt(f"checksum mismatch: key={path!r} part=early page expected={expected:#010x} actual={actual:#010x}")
    partitions = []
    for n in range(count):
        topic, partition = _PARTITION.unpack_from(view, _HEADER_BYTES + n * _PARTITION.size)
        partitions.append(PartitionId(TopicId(str(uuid.UUID(bytes=topic))), partition))
    return EarlyPage(tuple(partitions), view[begin:])
