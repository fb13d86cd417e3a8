"""A run: consecutive batches of one partition in one buffer, checked and stamped with their offsets. What Fetch sends."""

import struct
from bisect import bisect_right
from typing import Final

import msgspec

_LAST_OFFSET_DELTA: Final = struct.Struct(">i")
"""At byte 23 of a batch."""


class BatchRun(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Batches that hold offsets base..last (inclusive). `starts[i]` is the base offset of batch i, `positions[i]` where it begins.

    `has_gaps`: offsets may be missing before the first batch and between batches, as in segments.
    """

    base: int
    last: int
    buffer: memoryview
    starts: tuple[int, ...]
    positions: tuple[int, ...]
    has_gaps: bool = False

    @property
    def size_bytes(self) -> int:
        return len(self.buffer)

    def from_offset(self, offset: int, bytes_max: int, *, at_least_one: bool) -> tuple[memoryview, int] | None:
        """Whole batches from the one that holds `offset` on, or the first one behind it, up to `bytes_max`; and the offset after them.

        None if not even the first fits and `at_least_one` is false.
        """
        assert self.base <= offset <= self.last
        positions = self.positions
        first = bisect_right(self.starts, offset) - 1
        if self.has_gaps and (first < 0 or self._last_of(first) < offset):
            first += 1
        start = positions[first]
        end = len(self.buffer)
        if end - start <= bytes_max:
            return self.buffer[start:] if start else self.buffer, self.last + 1
        after = bisect_right(positions, start + bytes_max) - 1
        if after == first:
            if not at_least_one:
                return None
            after = first + 1
        if after == len(positions):
            return self.buffer[start:], self.last + 1
        return self.buffer[start : positions[after]], self.starts[after]

    def _last_of(self, index: int) -> int:
        (delta,) = _LAST_OFFSET_DELTA.unpack_from(self.buffer, self.positions[index] + 23)
        return self.starts[index] + int(delta)
