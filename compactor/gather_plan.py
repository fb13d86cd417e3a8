"""Which ranges of WAL objects hold the slices that a round of compactions needs, pure: one GET of an object serves all its partitions."""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from storage.formats.control import Entry
from storage.limits import MIB
from storage.vocabulary import ObjectId

GAP_BYTES_MAX: Final = 1 * MIB
"""What is read for nothing between two spans rather than asking twice: a GET costs as much as 1 to 2 MiB of its bytes."""
GET_BYTES_MAX: Final = 16 * MIB
"""A range is not joined to another beyond this. A longer span is read alone, whole."""

Span = tuple[int, int]


class RangeRead(NamedTuple):
    """One GET: bytes begin..end (exclusive) of an object, and the spans in it, by position."""

    object_id: ObjectId
    begin: int
    end: int
    spans: tuple[Span, ...]


def plan_reads(entries: Iterable[Entry]) -> list[RangeRead]:
    """The reads of all spans of `entries`, each span once, by object and position. Inline entries need none."""
    by_object: dict[ObjectId, set[Span]] = {}
    for entry in entries:
        if not isinstance(entry.batches, bytes):
            by_object.setdefault(entry.object_id, set()).update(entry.batches)
    return [read for object_id in sorted(by_object) for read in _reads_of(object_id, sorted(by_object[object_id]))]


def _reads_of(object_id: ObjectId, spans: Sequence[Span]) -> list[RangeRead]:
    reads: list[RangeRead] = []
    joined: list[Span] = []
    begin = end = 0
    for position, length in spans:
        if joined and (position - end > GAP_BYTES_MAX or position + length - begin > GET_BYTES_MAX):
            reads.append(RangeRead(object_id, begin, end, tuple(joined)))
            joined = []
        if not joined:
            begin = end = position
        joined.append((position, length))
        end = max(end, position + length)
    if joined:
        reads.append(RangeRead(object_id, begin, end, tuple(joined)))
    return reads
