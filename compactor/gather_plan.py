"""Which ranges of WAL objects hold the slices that a round of compactions needs, pure: one GET of an object serves all its partitions."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from storage.formats.control import Entry
from storage.vocabulary import ObjectId

Span = tuple[int, int]


class RangeRead(NamedTuple):
    """One GET: bytes begin..end (exclusive) of an object, and the spans in it, by position."""

    object_id: ObjectId
    begin: int
    end: int
    spans: tuple[Span, ...]


def plan_reads(entries: Iterable[Entry], *, gap_bytes_max: int, get_bytes_max: int) -> list[RangeRead]:
    """The reads of all spans of `entries`, each span once, by object and position. Inline entries need none.

    Two spans are read together if no more than `gap_bytes_max` lie between them, and the read has no more than `get_bytes_max`.
    """
    by_object: dict[ObjectId, set[Span]] = {}
    for entry in entries:
        if not isinstance(entry.batches, bytes):
            by_object.setdefault(entry.object_id, set()).update(entry.batches)
    found: list[RangeRead] = []
    for object_id in sorted(by_object):
        found += _reads_of(object_id, sorted(by_object[object_id]), gap_bytes_max=gap_bytes_max, get_bytes_max=get_bytes_max)
    return found


def _reads_of(object_id: ObjectId, spans: Sequence[Span], *, gap_bytes_max: int, get_bytes_max: int) -> list[RangeRead]:
    reads: list[RangeRead] = []
    joined: list[Span] = []
    begin = end = 0
    for position, length in spans:
        if joined and (position - end > gap_bytes_max or position + length - begin > get_bytes_max):
            reads.append(RangeRead(object_id, begin, end, tuple(joined)))
            joined = []
        if not joined:
            begin = end = position
        joined.append((position, length))
        end = max(end, position + length)
    if joined:
        reads.append(RangeRead(object_id, begin, end, tuple(joined)))
    return reads
