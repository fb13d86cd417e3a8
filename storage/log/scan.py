"""Batches inside a window of an object's bytes, pure: where they lie (by their headers), and how they leave the window with their offsets.

Slices of WAL objects hold batches without offsets, which are counted from the entry's base (`scan`); segments hold batches with their own
offsets, and some offsets are missing between them (`scan_stamped`). `stamp` never writes to a cached piece, because others send from it at
the same time: it copies the first bytes of a large batch and sends the rest from where it was read.
"""

import struct
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import pairwise
from typing import Final, NamedTuple

import msgspec

from storage.errors import Corrupt
from storage.formats.manifest import Entry
from storage.recordbatch import (
    HEADER_BYTES,
    LENGTH_OFFSET_BYTES,
    MAGIC,
    STAMP_BYTES,
    cut_views,
    parse_header,
    restamp,
    split_views,
    verify,
    verify_parts,
)

_SHAPE: Final = struct.Struct(">i4xb6xi")
"""batch length, magic, last offset delta: bytes 8 to 26 of a batch."""
_LAST_OFFSET_DELTA: Final = struct.Struct(">i")
"""At byte 23 of a batch."""
_SHAPE_BEGINS: Final = 8
_STAMPED_SHAPE: Final = struct.Struct(">qi4xb6xi")
"""base offset before them."""
KEPT_SHARE_MIN: Final = 1 / 4
"""What is a smaller part of the memory that it would keep alive is copied: reads under way are bounded by what they bring."""


class BatchRun(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Batches that hold offsets base..last (inclusive), in one view or in several that follow each other. `starts[i]` is the base offset of
    batch i, `positions[i]` where it begins.

    `has_gaps`: offsets may be missing before the first batch and between batches, as in segments. `following_bytes`: without room for so
    many there is no use in reading on; 0 if that is not known.
    """

    base: int
    last: int
    views: tuple[memoryview, ...]
    starts: tuple[int, ...]
    positions: tuple[int, ...]
    has_gaps: bool = False
    following_bytes: int = 0

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.views))

    @property
    def buffer(self) -> memoryview:
        """All of them: a copy if they lie in several views."""
        return self.views[0] if len(self.views) == 1 else memoryview(b"".join(self.views))

    def from_offset(self, offset: int, bytes_max: int, *, at_least_one: bool) -> tuple[Sequence[memoryview], int] | None:
        """Whole batches from the one that holds `offset` on, or the first one behind it, up to `bytes_max`; and the offset after them.

        None if not even the first fits and `at_least_one` is false.
        """
        assert self.base <= offset <= self.last
        positions = self.positions
        first = bisect_right(self.starts, offset) - 1
        if self.has_gaps and (first < 0 or (self.starts[first] < offset and self._last_of(first) < offset)):
            first += 1
        start = positions[first]
        end = self.size_bytes
        if end - start <= bytes_max:
            return self.views if not start else cut_views(self.views, start, end), self.last + 1
        after = bisect_right(positions, start + bytes_max) - 1
        if after == first:
            if not at_least_one:
                return None
            after = first + 1
        if after == len(positions):
            return cut_views(self.views, start, end), self.last + 1
        return cut_views(self.views, start, positions[after]), self.starts[after]

    def _last_of(self, index: int) -> int:
        position = self.positions[index] + 23
        (delta,) = _LAST_OFFSET_DELTA.unpack(b"".join(cut_views(self.views, position, position + _LAST_OFFSET_DELTA.size)))
        return self.starts[index] + int(delta)


class Gap(Enum):
    TO_THE_END = auto()
    """The segment has no batch at or behind the offset: the next entry has it."""


class Elsewhere(Enum):
    TO_BE_READ = auto()
    """It is not all in memory, or not well."""


@dataclass(slots=True)
class Window:
    """Whole batches found in a window. `starts` are the offsets of the kept ones, `positions` where they begin in the window, `passed`
    where those before them begin: offsets are counted by their headers, so whoever serves what follows must check these, too.

    `end_offset` and `end_position` are those of the first batch that is not wholly inside; `missing_bytes` is how much of it is missing
    if none was kept (0 if that is not known, or one was). `first_bytes` is the size of the batch that holds the wanted offset, 0 if it
    is not known.
    """

    starts: list[int]
    positions: list[int]
    passed: list[int]
    end_offset: int
    end_position: int
    missing_bytes: int
    first_bytes: int


def scan(views: Sequence[memoryview], *, base: int, wanted: int, bytes_max: int, where: object) -> Window:
    """Walk the batches of the window that `views` are together, the first of which begins at offset `base`; keep those from the one that
    holds `wanted` on.

    Stops after `bytes_max` of kept bytes, but keeps at least one batch if it is whole. Raises `Corrupt` for what is no batch; behind kept
    batches it stops there instead: the next read raises.
    """
    starts: list[int] = []
    positions: list[int] = []
    passed: list[int] = []
    offset, position, size = base, 0, sum(map(len, views))
    kept_from = first_bytes = 0
    following_views = iter(views)
    view, begin, end = memoryview(b""), 0, 0
    while size - position >= HEADER_BYTES:
        while position >= end:
            view, begin = next(following_views), end
            end += len(view)
        if position + HEADER_BYTES <= end:
            length, magic, last_delta = _SHAPE.unpack_from(view, position - begin + _SHAPE_BEGINS)
        else:
            head = b"".join(cut_views(views, position, position + HEADER_BYTES))
            length, magic, last_delta = _SHAPE.unpack_from(head, _SHAPE_BEGINS)
        batch_bytes = length + LENGTH_OFFSET_BYTES
        if magic != MAGIC or batch_bytes < HEADER_BYTES or last_delta < 0:
            if starts:
                return Window(starts, positions, passed, offset, position, 0, first_bytes)
            raise Corrupt(f"not a record batch: {where} position={position} magic={magic} length={length} last_offset_delta={last_delta}")
        following = offset + last_delta + 1
        if following > wanted and not starts:
            first_bytes = batch_bytes
        if batch_bytes > size - position:
            missing = 0 if starts else batch_bytes - (size - position)
            return Window(starts, positions, passed, offset, position, missing, first_bytes)
        if following <= wanted:
            passed.append(position)
        elif starts and position + batch_bytes - kept_from > bytes_max:
            break
        else:
            if not starts:
                kept_from = position
            starts.append(offset)
            positions.append(position)
        offset = following
        position += batch_bytes
    missing = HEADER_BYTES - (size - position) if position < size and not starts else 0
    return Window(starts, positions, passed, offset, position, missing, first_bytes)


def first_batch_bytes(views: Sequence[memoryview], wanted: int) -> int:
    """What the first batch of a window says of its size, if it reaches `wanted`; 0 if not. Nothing was checked."""
    head = b"".join(cut_views(views, 0, HEADER_BYTES))
    if len(head) < HEADER_BYTES:
        return 0
    base, length, _, last_delta = _STAMPED_SHAPE.unpack_from(head)
    return int(length) + LENGTH_OFFSET_BYTES if base + last_delta >= wanted else 0


def scan_stamped(views: Sequence[memoryview], *, wanted: int, bytes_max: int, where: object) -> Window:
    """Walk the batches of the window that `views` are together, which begins with one, by their own offsets; keep those from the first that
    reaches `wanted` on: its offsets may all be above it.

    Stops after `bytes_max` of kept bytes, but keeps at least one batch if it is whole. `passed` stays empty, since nothing is counted by
    what is passed over, and `end_offset` is the one after the last kept batch, `wanted` if none is. Raises `Corrupt` for what is no batch
    and for offsets that do not rise, also behind kept batches: the block was checked, so whoever wrote it was wrong.
    """
    starts: list[int] = []
    positions: list[int] = []
    position, size, last = 0, sum(map(len, views)), -1
    end_offset = wanted
    kept_from = first_bytes = missing = 0
    following = iter(views)
    view, begin, end = memoryview(b""), 0, 0
    while size - position >= HEADER_BYTES:
        while position >= end:
            view, begin = next(following), end
            end += len(view)
        if position + _STAMPED_SHAPE.size <= end:
            base, length, magic, last_delta = _STAMPED_SHAPE.unpack_from(view, position - begin)
        else:
            head = b"".join(cut_views(views, position, position + _STAMPED_SHAPE.size))
            base, length, magic, last_delta = _STAMPED_SHAPE.unpack(head)
        batch_bytes = length + LENGTH_OFFSET_BYTES
        if magic != MAGIC or batch_bytes < HEADER_BYTES or last_delta < 0:
            raise Corrupt(f"not a record batch: {where} position={position} magic={magic} length={length} last_offset_delta={last_delta}")
        if base <= last:
            raise Corrupt(f"offsets of batches do not rise: {where} position={position} base_offset={base} after={last}")
        last = base + last_delta
        if last >= wanted and not starts:
            first_bytes = batch_bytes
        if batch_bytes > size - position:
            missing = 0 if starts else batch_bytes - (size - position)
            return Window(starts, positions, [], end_offset, position, missing, first_bytes)
        if last >= wanted:
            if not starts:
                kept_from = position
            elif position + batch_bytes - kept_from > bytes_max:
                return Window(starts, positions, [], end_offset, position, 0, first_bytes)
            starts.append(base)
            positions.append(position)
            end_offset = last + 1
        position += batch_bytes
    missing = HEADER_BYTES - (size - position) if position < size and not starts else 0
    return Window(starts, positions, [], end_offset, position, missing, first_bytes)


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
