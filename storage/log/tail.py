"""The tail cache: what this broker committed last, bytes ready to be sent (I8: filled only after the CAS). Readers wait here for more.

One FIFO over all partitions, bounded by bytes. A run pins the frame it came in, so small batches are joined into a buffer of their own, and
a batch that is a small part of its frame gets one; others are kept where the socket put them.
"""

import struct
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from runtime.frames import Account, Frame
from runtime.telemetry import Metric, Telemetry
from storage.log.batch import Batch
from storage.log.limits import DEFAULT_LIMITS, LogLimits
from storage.recordbatch import restamp
from storage.views import cut_views

_LAST_OFFSET_DELTA: Final = struct.Struct(">i")
"""At byte 23 of a batch."""


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


TAIL_BYTES: Final = Metric(
    "forebay_tail_cache_bytes",
    "Bytes of this broker's own last commits, with the whole of the requests that they came in",
    aggregation="sum",
)

FRAME_SHARE_MIN: Final = 16
"""A batch that is less than a sixteenth of its frame is copied: the rest of the frame may have been refused."""
DROPPED_KEPT_MAX: Final = 64
"""Slots of dropped runs that may stand before a list is shortened: keeps dropping cheap on average."""
RUN_OVERHEAD_BYTES: Final = 512
"""Counted on top of a run's bytes for the objects that describe it."""


class Tail:
    """The cached runs of one partition, oldest first; not necessarily contiguous, as other brokers commit in between."""

    __slots__ = ("_bases", "_head", "_runs")

    def __init__(self) -> None:
        self._bases: list[int] = []
        self._runs: list[BatchRun | None] = []
        self._head = 0

    def find(self, offset: int) -> BatchRun | None:
        """The run that holds `offset`."""
        index = bisect_right(self._bases, offset, self._head) - 1
        run = self._runs[index] if index >= self._head else None
        return run if run is not None and offset <= run.last else None

    def append(self, run: BatchRun) -> None:
        self._bases.append(run.base)
        self._runs.append(run)

    def drop_oldest(self) -> None:
        self._runs[self._head] = None
        self._head += 1
        if self._head == len(self._runs) or (self._head >= DROPPED_KEPT_MAX and self._head * 2 >= len(self._runs)):
            del self._bases[: self._head], self._runs[: self._head]
            self._head = 0


class TailCache(Account):
    """Counts the whole of every frame that it keeps a part of, once. A frame that it drops while others hold it counts with `readers`."""

    def __init__(self, *, bytes_max: int, telemetry: Telemetry, readers: Account, limits: LogLimits = DEFAULT_LIMITS) -> None:
        super().__init__()
        self._join_below_bytes = limits.join_below_bytes
        self._bytes_max = bytes_max
        self._readers = readers
        self._order: deque[tuple[Tail, int, Frame | None]] = deque()
        telemetry.gauge(TAIL_BYTES).set_function(lambda: self.held_bytes)

    @property
    def size_bytes(self) -> int:
        return self.held_bytes

    def add(self, tail: Tail, appended: Sequence[tuple[Batch, int]]) -> None:
        """Take the batches of one commit with their base offsets, stamp them, and make room."""
        if not appended:
            return
        for run in _runs_of(appended, self._join_below_bytes):
            frame = run.views[0].obj
            cost = RUN_OVERHEAD_BYTES
            if isinstance(frame, Frame):
                self._take_over(frame)
                self._order.append((tail, cost, frame))
            else:
                cost += run.size_bytes
                self._order.append((tail, cost, None))
            tail.append(run)
            self.held_bytes += cost
        while self.held_bytes > self._bytes_max:
            self._drop_oldest()

    def _take_over(self, frame: Frame) -> None:
        if frame.account is self:
            frame.runs += 1
        else:
            frame.runs = 1
            frame.move_to(self)

    def _drop_oldest(self) -> None:
        oldest, cost, frame = self._order.popleft()
        self.held_bytes -= cost
        if frame is not None:
            frame.runs -= 1
            if not frame.runs:
                # It dies here, unless somebody holds it.
                frame.move_to(self._readers)
        oldest.drop_oldest()


def _runs_of(appended: Sequence[tuple[Batch, int]], join_below_bytes: int) -> list[BatchRun]:
    if len(appended) > 1 and sum([batch.size_bytes for batch, _ in appended]) < join_below_bytes * len(appended):
        joined = bytearray().join([batch.view for batch, _ in appended])
        positions = []
        position = 0
        for batch, base_offset in appended:
            restamp(joined, position, base_offset)
            positions.append(position)
            position += batch.size_bytes
        last = base_offset + batch.record_count - 1
        view = memoryview(joined).toreadonly()
        return [BatchRun(appended[0][1], last, (view,), tuple([base for _, base in appended]), tuple(positions))]
    runs = []
    for batch, base_offset in appended:
        kept = batch.view
        if batch.size_bytes < join_below_bytes or batch.size_bytes * FRAME_SHARE_MIN < memoryview(kept.obj).nbytes:
            kept = memoryview(bytearray(kept))
        restamp(kept, 0, base_offset)
        runs.append(BatchRun(base_offset, base_offset + batch.record_count - 1, (kept.toreadonly(),), (base_offset,), (0,)))
    return runs


class Readers:
    """`tail` is filled and emptied by the `TailCache` of all partitions. `wakers` are entered and removed by who waits
    (broker/fetching/waiters.py), woken in the order in which they came.
    """

    __slots__ = ("tail", "wakers")

    def __init__(self) -> None:
        self.tail = Tail()
        self.wakers: dict[Callable[[], None], None] = {}

    def wake(self) -> None:
        for waker in tuple(self.wakers):
            waker()
