"""Reads of the object store that outlive whoever asked for them: a fetch that leaves without a slow one finds it under way the next time.

Who asks for what is being read joins it, and may take the runs that have come before the others come. What nobody waits for any more reads
the run it is at, which the block cache keeps, and ends; of these there is a bounded number, and the one that was left first makes room. A
read that begins anew where one was left says so.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Protocol

from runtime.clock import Clock
from runtime.lru import LruCache
from runtime.supervision import Nursery
from storage.errors import StorageError, without_frames
from storage.log.limits import DEFAULT_LIMITS, LogLimits
from storage.log.partition import PartitionLog
from storage.log.segments import Elsewhere
from storage.log.tail import BatchRun
from storage.objects.requests import CAUSE
from storage.vocabulary import PartitionId


class Reads(Protocol):
    """The part of a `Reader` that flights need."""

    def cached(self, log: PartitionLog, offset: int) -> BatchRun | None: ...

    def stored_here(
        self, log: PartitionLog, offset: int, *, bytes_max: int, at_least_one: bool, is_in_order: bool
    ) -> BatchRun | Elsewhere | None: ...

    async def stored_within(
        self,
        log: PartitionLog,
        offset: int,
        *,
        bytes_max: int,
        at_least_one: bool,
        is_in_order: bool,
        is_awaited: Callable[[], bool],
    ) -> BatchRun | None: ...


class Flight:
    """Runs from `offset` on, in order, as they come. When it `is_done`, `error` is what ended it, and `is_too_large` says that the batch
    behind the last run does not fit into the `left_bytes`. `was_left`: an earlier read was left here, and has ended since then.
    """

    __slots__ = (
        "began_s",
        "bytes_max",
        "error",
        "is_done",
        "is_too_large",
        "left_bytes",
        "left_offset",
        "log",
        "offset",
        "runs",
        "task",
        "wakers",
        "was_left",
    )

    def __init__(self, log: PartitionLog, offset: int, bytes_max: int, began_s: float) -> None:
        self.log = log
        self.offset = offset
        self.bytes_max = self.left_bytes = bytes_max
        self.began_s = began_s
        self.runs: list[BatchRun] = []
        self.error: StorageError | None = None
        self.is_done = False
        self.is_too_large = self.was_left = False
        self.left_offset = offset
        """Where the last one that left it goes on."""
        self.wakers: dict[Callable[[], None], None] = {}
        self.task: asyncio.Task[None] | None = None

    @property
    def end(self) -> int:
        """The offset behind what was read so far."""
        return self.runs[-1].last + 1 if self.runs else self.offset


class Flights:
    def __init__(self, reads: Reads, *, nursery: Nursery, clock: Clock, limits: LogLimits = DEFAULT_LIMITS) -> None:
        self._unattended_max, self._unattended_bytes_max = limits.unattended_max, limits.unattended_bytes_max
        self._reads = reads
        self._nursery = nursery
        self._clock = clock
        self._ends = LruCache[tuple[PartitionId, int], None](limits.fetch_places_kept_max)
        """Where fetches ended: one that begins there is in order."""
        self._left = LruCache[tuple[PartitionId, int], None](limits.fetch_places_kept_max)
        """Where fetches left a read that went on, and has ended."""
        self._flights: dict[tuple[PartitionLog, int, bool], Flight] = {}
        self._unattended: OrderedDict[Flight, int] = OrderedDict()
        """With what each may still bring."""
        self._unattended_bytes = 0

    def __len__(self) -> int:
        """Reads under way."""
        return len(self._flights)

    def may_be_left(self, flights: Collection[Flight]) -> bool:
        """Whether all of them may be left without ending one that others have left."""
        size_bytes = sum([flight.left_bytes for flight in flights])
        return (
            len(self._unattended) + len(flights) <= self._unattended_max
            and self._unattended_bytes + size_bytes <= self._unattended_bytes_max
        )

    @property
    def unattended(self) -> int:
        """How many of these nobody waits for."""
        return len(self._unattended)

    def spare(self, log: PartitionLog, offset: int, *, bytes_max: int, at_least_one: bool) -> BatchRun | Elsewhere | None:
        """What a read of `offset` would bring first, if that is in memory: nobody has to wait for it. None if the batch is too large."""
        run = self._reads.stored_here(
            log,
            offset,
            bytes_max=bytes_max,
            at_least_one=at_least_one,
            is_in_order=(log.partition, offset) in self._ends,
        )
        if isinstance(run, BatchRun):
            self._ends.put((log.partition, run.last + 1), None)
        return run

    def join(
        self, log: PartitionLog, offset: int, *, bytes_max: int, runs_max: int, at_least_one: bool, wake: Callable[[], None]
    ) -> Flight:
        """The read of `offset` that is under way, or a new one of at most `bytes_max` bytes, but for a first batch that is larger if
        `at_least_one`, and `runs_max` runs. `wake` is called when a run has come, and when it is done. Leave it in the end.
        """
        key = log, offset, at_least_one
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = Flight(log, offset, bytes_max, self._clock.monotonic_s())
            is_under_way = (log, offset, not at_least_one) in self._flights
            flight.was_left = (log.partition, offset) in self._left and not is_under_way
            flight.task = self._nursery.spawn(self._fly(flight, runs_max, at_least_one), name="stored-read")
        elif flight in self._unattended:
            self._attend(flight)
        flight.wakers[wake] = None
        return flight

    def leave(self, flight: Flight, wake: Callable[[], None], *, goes_on_at: int = -1) -> None:
        """`goes_on_at`: the offset behind what was taken of it, if something was."""
        flight.wakers.pop(wake, None)
        if flight.is_done:
            return
        flight.left_offset = max(flight.offset, goes_on_at)
        if goes_on_at > flight.offset:
            self._ends.put((flight.log.partition, goes_on_at), None)
        if flight.wakers:
            return
        self._unattended[flight] = flight.left_bytes
        self._unattended_bytes += flight.left_bytes
        while len(self._unattended) > self._unattended_max or self._unattended_bytes > self._unattended_bytes_max:
            oldest = next(iter(self._unattended))
            self._attend(oldest)
            assert oldest.task is not None
            oldest.task.cancel()

    def _attend(self, flight: Flight) -> None:
        self._unattended_bytes -= self._unattended.pop(flight, 0)

    async def _fly(self, flight: Flight, runs_max: int, at_least_one: bool) -> None:
        CAUSE.set("fetch")
        log = flight.log
        goes_on = (log.partition, flight.offset) in self._ends
        try:
            while True:
                left_bytes = flight.left_bytes
                run = await self._reads.stored_within(
                    log,
                    flight.end,
                    bytes_max=left_bytes,
                    at_least_one=at_least_one and not flight.runs,
                    # Several runs of one fetch follow each other wherever its consumer goes next.
                    is_in_order=goes_on and bool(flight.wakers),
                    is_awaited=lambda: bool(flight.wakers),
                )
                if run is None:
                    flight.is_too_large = True
                    break
                flight.runs.append(run)
                flight.left_bytes = max(0, left_bytes - run.size_bytes)
                end = flight.end
                if not flight.left_bytes or len(flight.runs) >= runs_max or not flight.wakers:
                    break
                if flight.left_bytes < run.following_bytes:
                    flight.is_too_large = True
                    break
                if end >= log.seen.high_watermark or self._reads.cached(log, end) is not None:
                    break
                for wake in flight.wakers:
                    wake()
        except StorageError as error:
            flight.error = without_frames(error)
        finally:
            if flight.runs:
                self._ends.put((log.partition, flight.end), None)
            flight.is_done = True
            del self._flights[log, flight.offset, at_least_one]
            if flight.wakers:
                self._left.pop((log.partition, flight.offset))
            else:
                self._left.put((log.partition, flight.left_offset), None)
            self._attend(flight)
            for wake in flight.wakers:
                wake()
