"""Where batches lie inside a window of slice bytes, pure: headers only, records stay bytes."""

import struct
from dataclasses import dataclass
from typing import Final

from storage.errors import Corrupt
from storage.recordbatch import HEADER_BYTES, LENGTH_OFFSET_BYTES, MAGIC
from storage.vocabulary import Buffer

_SHAPE: Final = struct.Struct(">i4xb6xi")
"""batch length, magic, last offset delta: bytes 8 to 26 of a batch."""


@dataclass(slots=True)
class Window:
    """Whole batches found in a window. `starts` are their offsets, `positions` where they begin in the window.

    `end_offset` and `end_position` are those of the first batch that is not wholly inside; `missing_bytes` is how much of the window's
    first batch that holds a wanted offset is missing (0 if one is whole).
    """

    starts: list[int]
    positions: list[int]
    end_offset: int
    end_position: int
    missing_bytes: int


def scan(window: Buffer, *, base: int, wanted: int, bytes_max: int, where: str) -> Window:
    """Walk the batches of `window`, the first of which begins at offset `base`; keep those from the one that holds `wanted` on.

    Stops after `bytes_max` of kept bytes, but keeps at least one batch if it is whole. Raises `Corrupt` for what is no batch.
    """
    starts: list[int] = []
    positions: list[int] = []
    offset, position, size = base, 0, len(window)
    kept_from = 0
    while size - position >= HEADER_BYTES:
        length, magic, last_delta = _SHAPE.unpack_from(window, position + 8)
        batch_bytes = length + LENGTH_OFFSET_BYTES
        if magic != MAGIC or batch_bytes < HEADER_BYTES or last_delta < 0:
            raise Corrupt(f"not a record batch: {where} position={position} magic={magic} length={length} last_offset_delta={last_delta}")
        following = offset + last_delta + 1
        if following > wanted:
            if not starts:
                kept_from = position
            if batch_bytes > size - position:
                missing = 0 if starts else batch_bytes - (size - position)
                return Window(starts, positions, offset, position, missing)
            if starts and position + batch_bytes - kept_from > bytes_max:
                break
            starts.append(offset)
            positions.append(position)
        elif batch_bytes > size - position:
            # A batch that is passed over and ends outside: the next window begins behind it.
            return Window(starts, positions, following, position + batch_bytes, 0)
        offset = following
        position += batch_bytes
    missing = HEADER_BYTES - (size - position) if position < size and not starts else 0
    return Window(starts, positions, offset, position, missing)
