"""What is known of the timestamps of a log's entries, in bounded memory, pure: each entry is gone through once, whatever is trimmed."""

from bisect import bisect_left
from collections import deque

from storage.formats.control import EntrySource


class EntryTimes:
    """The timestamps of the entries that cover the offsets from `start` up to `end` (exclusive).

    `_falling`: base, last offset and timestamp of entries that no later one exceeds, oldest first: the first is the greatest, and when it
    is trimmed the next one is. Entries without room are dropped, except for their greatest timestamp.
    `_rising`: some entries that exceed all before them: none before such an entry, nor it itself, reaches a later time.
    """

    __slots__ = ("_falling", "_kept_max", "_left_out", "_rising", "_top", "end", "start")

    def __init__(self, start: int, *, kept_max: int) -> None:
        self._kept_max = kept_max
        self._falling: deque[tuple[int, int, int]] = deque()
        self._rising: list[tuple[int, int]] = []
        self.begin_at(start)

    def begin_at(self, start: int) -> None:
        """Nothing is known from `start` on."""
        self.start = self.end = start
        self._falling.clear()
        self._rising.clear()
        self._left_out: int | None = None
        self._top = -2  # of all that was added, trimmed or not

    def add(self, entry: EntrySource) -> None:
        """The one that holds `end`, from `start` on. It may have taken the place of entries that were added before."""
        assert self.start <= entry.base <= self.end <= entry.last, f"not the next entry: {entry} start={self.start} end={self.end}"
        if entry.base < self.end:
            # What is forgotten with them is in `entry`, too.
            while self._falling and self._falling[-1][0] >= entry.base:
                self._falling.pop()
            while self._rising and self._rising[-1][0] >= entry.base:
                self._rising.pop()
        self.end = entry.last + 1
        timestamp = entry.max_timestamp
        while self._falling and self._falling[-1][2] < timestamp:
            self._falling.pop()
        if self._left_out is not None and timestamp > self._left_out:
            self._left_out = None
        if self._left_out is None and len(self._falling) < self._kept_max:
            self._falling.append((entry.base, entry.last, timestamp))
        else:
            self._left_out = timestamp if self._left_out is None else self._left_out
        if timestamp > self._top:
            self._top = timestamp
            self._rising.append((entry.base, timestamp))
            if len(self._rising) > self._kept_max:
                del self._rising[1::2]

    def trim(self, start: int) -> None:
        """The entries before `start` are gone. If it begins none of those that are known, nothing is known any more."""
        if not self.start <= start <= self.end:
            self.begin_at(start)
            return
        self.start = start
        while self._falling and self._falling[0][1] < start:
            self._falling.popleft()
        if self._falling and self._falling[0][0] < start:
            self.begin_at(start)
            return
        if self._rising and self._rising[0][0] < start:
            del self._rising[: bisect_left(self._rising, (start, -1))]

    def greatest(self) -> tuple[int, int] | None:
        """Base and timestamp of the first entry with the greatest timestamp; None if there is no entry, or it is not known any more."""
        if not self._falling:
            return None
        base, _, timestamp = self._falling[0]
        return base, timestamp

    def base_before(self, timestamp_ms: int) -> int:
        """The base of an entry, or `start`, before which no entry reaches the time."""
        index = bisect_left(self._rising, timestamp_ms, key=lambda rising: rising[1])
        return self._rising[index - 1][0] if index else self.start
