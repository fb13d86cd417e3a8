"""Batches of a window get their offsets and leave it, pure. What is large is sent from where it was read: only its first bytes
are copied.

A cached piece is never written to: others send from it at the same time.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from storage.errors import Corrupt
from storage.formats.control import Entry
from storage.log.readplan import Window
from storage.log.tail import BatchRun
from storage.recordbatch import STAMP_BYTES, parse_header, restamp, verify, verify_parts
from storage.views import cut_views, split_views

KEPT_SHARE_MIN: Final = 1 / 4
"""What is a smaller part of the memory that it would keep alive is copied: reads under way are bounded by what they bring."""


def check_passed(views: Sequence[memoryview], found: Window, where: object) -> None:
    """Offsets are counted by the headers of the batches that are passed over: a wrong one would give all that follows a wrong offset."""
    if not found.passed:
        return
    end = found.positions[0] if found.positions else found.end_position
    batches = split_views(cut_views(views, found.passed[0], end), [position - found.passed[0] for position in (*found.passed[1:], end)])
    for position, batch in zip(found.passed, batches, strict=True):
        try:
            verify_parts(batch, where=where)
        except Corrupt as error:
            raise Corrupt(f"{error} position={position}") from None


def stamp(views: Sequence[memoryview], found: Window, where: object, entry: Entry, *, join_below_bytes: int) -> tuple[BatchRun, int]:
    """Check each of the kept batches and give it its offset. Batches before a damaged one are served: the next read reports it.

    Copies those of a smaller mean size than `join_below_bytes`.

    Returns them with their end in the window. Raises `Corrupt` if the first of them is damaged, or if they are more than `entry` says.
    """
    origin, end_position, end_offset = found.positions[0], found.end_position, found.end_offset
    positions = [position - origin for position in found.positions]
    kept = cut_views(views, origin, end_position)
    bounds = [*positions, end_position - origin]
    views_of = _joined if end_position - origin < max(join_below_bytes * len(positions), KEPT_SHARE_MIN * _whole_bytes(kept)) else _apart
    stamped = views_of(kept, found.starts, bounds, where)
    whole, starts = stamped.whole, found.starts
    if stamped.damage is not None:
        if not whole:
            raise Corrupt(f"{stamped.damage} offset={starts[0]}")
        end_position, end_offset = origin + positions[whole], starts[whole]
        starts, positions = starts[:whole], positions[:whole]
    if end_offset - 1 > entry.last:
        raise Corrupt(f"an entry has more records than it says: {where} end_offset={end_offset}")
    return BatchRun(starts[0], end_offset - 1, tuple(stamped.views), tuple(starts), tuple(positions)), end_position


def _whole_bytes(views: Sequence[memoryview]) -> int:
    return sum({id(view.obj): memoryview(view.obj).nbytes for view in views}.values())


class _Stamped(NamedTuple):
    """`damage` is what is wrong with the batch behind the `whole` ones; None if there is none."""

    views: list[memoryview]
    whole: int
    damage: str | None


def _joined(kept: Sequence[memoryview], starts: Sequence[int], bounds: Sequence[int], where: object) -> _Stamped:
    """A copy of all of them: for small batches cheaper than views of each."""
    buffer = memoryview(bytearray().join(kept))
    for index, (start, (begin, end)) in enumerate(zip(starts, pairwise(bounds), strict=True)):
        batch = buffer[begin:end]
        try:
            verify(batch, parse_header(batch), where=where)
        except Corrupt as error:
            return _Stamped([buffer[:begin].toreadonly()], index, str(error))
        restamp(buffer, begin, start)
    return _Stamped([buffer.toreadonly()], len(starts), None)


def _apart(kept: Sequence[memoryview], starts: Sequence[int], bounds: Sequence[int], where: object) -> _Stamped:
    """The first bytes of each, copied, and the rest where it is."""
    stamps = memoryview(bytearray(STAMP_BYTES * len(starts)))
    views: list[memoryview] = []
    for index, (start, batch) in enumerate(zip(starts, split_views(kept, bounds[1:]), strict=True)):
        try:
            verify_parts(batch, where=where)
        except Corrupt as error:
            return _Stamped(views, index, str(error))
        first = stamps[index * STAMP_BYTES : (index + 1) * STAMP_BYTES]
        first[:] = b"".join(cut_views(batch, 0, STAMP_BYTES))
        restamp(first, 0, start)
        views.append(first.toreadonly())
        views += cut_views(batch, STAMP_BYTES, bounds[index + 1] - bounds[index])
    return _Stamped(views, len(starts), None)
