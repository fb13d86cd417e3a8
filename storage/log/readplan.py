"""Where batches lie inside a window of an object's bytes, pure: headers only, records stay bytes.

Slices of WAL objects hold batches without offsets, which are counted from the entry's base (`scan`); segments hold batches with their own
offsets, and some offsets are missing between them (`scan_stamped`).
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from storage.errors import Corrupt
from storage.recordbatch import HEADER_BYTES, LENGTH_OFFSET_BYTES, MAGIC
from storage.views import cut_views

_SHAPE: Final = struct.Struct(">i4xb6xi")
"""batch length, magic, last offset delta: bytes 8 to 26 of a batch."""
_SHAPE_BEGINS: Final = 8
_STAMPED_SHAPE: Final = struct.Struct(">qi4xb6xi")
"""base offset before them."""


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
