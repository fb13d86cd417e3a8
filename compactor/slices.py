"""Slices of WAL objects to batches at their offsets: checked, stamped, copied once."""

from collections.abc import Sequence
from typing import Protocol

from storage.errors import Corrupt
from storage.formats.control import Entry
from storage.formats.wal import object_key
from storage.log.readplan import scan
from storage.log.runs import BatchRun
from storage.objects.port import ObjectStore
from storage.recordbatch import parse_header, restamp, verify
from storage.vocabulary import Buffer, PartitionId


class Slices(Protocol):
    async def read(self, entry: Entry) -> Sequence[Buffer]:
        """The bytes of the spans of `entry`, in order. Raises `NotFound`, `EndsEarly`, `Unavailable`."""
        ...


class StoredSlices:
    """One GET per entry: from its first span to the end of its last."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    async def read(self, entry: Entry) -> Sequence[Buffer]:
        begin = min(position for position, _ in entry.spans)
        end = max(position + length for position, length in entry.spans)
        view = memoryview(await self._objects.get_range(object_key(entry.object_id), begin, end))
        return [view[position - begin : position - begin + length] for position, length in entry.spans]


def stamp(entry: Entry, parts: Sequence[Buffer], partition: PartitionId) -> BatchRun:
    """The batches of `entry`. Raise `Corrupt` for what is not what was written: no segment is made of it."""
    where = f"object={object_key(entry.object_id)!r} partition={partition} entry={entry.base}..{entry.last}"
    buffer = bytearray().join(parts)
    found = scan(buffer, base=entry.base, wanted=entry.base, bytes_max=len(buffer), where=where)
    if found.end_position != len(buffer) or found.end_offset != entry.last + 1:
        raise Corrupt(
            f"a slice has other batches than its entry says: {where} bytes={len(buffer)} "
            f"batches_end_at={found.end_position} next_offset={found.end_offset}"
        )
    view = memoryview(buffer)
    ends = (*found.positions[1:], len(buffer))
    for start, position, end in zip(found.starts, found.positions, ends, strict=True):
        batch = view[position:end]
        verify(batch, parse_header(batch), where=f"{where} offset={start}")
        restamp(view, position, start)
    return BatchRun(entry.base, entry.last, view, tuple(found.starts), tuple(found.positions))
