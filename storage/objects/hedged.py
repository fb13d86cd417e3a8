"""Reads that take unusually long are sent a second time, and the first answer counts.

A store of many machines answers a few reads of a hundred very late, whatever is read. Asking again when the usual time has passed
cuts these, for a few more requests. A budget bounds them, so that a store that is slow as a whole is not asked twice for everything.
"""

import asyncio
from bisect import bisect_left
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final, TypeVar

from runtime.clock import Clock
from runtime.telemetry import Metric, Telemetry
from storage.objects.port import ObjectStat, ObjectStore, UnfinishedUpload
from storage.objects.requests import ATTEMPT
from storage.vocabulary import Buffer

T = TypeVar("T")

WINDOW_READS: Final = 1_000
"""The latest reads of a size class whose times count."""
WARM_READS: Final = 50
"""Below this number of reads of a class nothing is known, and nothing is asked twice."""
QUANTILE: Final = 0.95
DELAY_S_MIN: Final = 0.02
BUDGET_SHARE: Final = 0.05
"""Second requests per request."""
BUDGET_MAX: Final = 10.0
"""Second requests saved up."""

_BOUNDS_S: Final = tuple(0.001 * 1.25**step for step in range(60))
"""Upper bounds of the buckets of times: 1 ms to 520 s, a quarter apart."""
_CLASS_BOUNDS_BYTES: Final = (256 * 1024, 2 * 1024 * 1024, 8 * 1024 * 1024)
"""Reads of very different sizes take different times."""

HEDGES: Final = Metric(
    "forebay_object_store_hedges_total",
    "Reads sent a second time because the first answer was late: won (the second came first), lost (the first came first or both failed).",
    ("outcome",),
)


class LatencyWindow:
    """The times of the latest WINDOW_READS reads, in buckets. A time is known to a quarter of itself."""

    def __init__(self) -> None:
        self._buckets: deque[int] = deque()
        self._counts = [0] * (len(_BOUNDS_S) + 1)

    def __len__(self) -> int:
        return len(self._buckets)

    def add(self, seconds: float) -> None:
        bucket = bisect_left(_BOUNDS_S, seconds)
        self._buckets.append(bucket)
        self._counts[bucket] += 1
        if len(self._buckets) > WINDOW_READS:
            self._counts[self._buckets.popleft()] -= 1

    def quantile_s(self, share: float) -> float:
        """The time that `share` of the reads did not exceed; 0 without reads."""
        left = share * len(self._buckets)
        for bucket, count in enumerate(self._counts):
            left -= count
            if left <= 0 and count:
                return _BOUNDS_S[min(bucket, len(_BOUNDS_S) - 1)]
        return 0.0


class HedgedObjectStore:
    """An `ObjectStore` whose ranged reads are hedged. All else is the inner store's."""

    def __init__(self, inner: ObjectStore, *, clock: Clock, telemetry: Telemetry) -> None:
        self._inner = inner
        self._clock = clock
        self._windows = tuple(LatencyWindow() for _ in range(len(_CLASS_BOUNDS_BYTES) + 1))
        self._budget = BUDGET_MAX
        hedges = telemetry.counter(HEDGES)
        self._won, self._lost = hedges.labels("won"), hedges.labels("lost")

    async def get_range(self, key: str, start: int, end: int) -> Buffer:
        """As the port says. Of two requests the later one is cancelled; an error counts only when no other request can still answer."""
        return await self._hedged(end - start, lambda: self._inner.get_range(key, start, end))

    async def get_parts(self, key: str, start: int, end: int, *, part_bytes: int) -> Sequence[Buffer]:
        """As `get_range`."""
        return await self._hedged(end - start, lambda: self._inner.get_parts(key, start, end, part_bytes=part_bytes))

    async def _hedged(self, size_bytes: int, request: Callable[[], Awaitable[T]]) -> T:
        window = self._windows[bisect_left(_CLASS_BOUNDS_BYTES, size_bytes)]
        self._budget = min(BUDGET_MAX, self._budget + BUDGET_SHARE)
        began_s = self._clock.monotonic_s()
        if len(window) < WARM_READS:
            found = await request()
        else:
            delay_s = max(DELAY_S_MIN, window.quantile_s(QUANTILE))
            found = await self._race(request, delay_s)
        window.add(self._clock.monotonic_s() - began_s)
        return found

    async def _race(self, request: Callable[[], Awaitable[T]], delay_s: float) -> T:
        async with asyncio.TaskGroup() as group:
            first = group.create_task(_outcome(request))
            await asyncio.wait((first,), timeout=delay_s)
            tasks = [first]
            if not first.done() and self._budget >= 1.0:
                self._budget -= 1.0
                tasks.append(group.create_task(_second(request)))
            answer, winner = await _first_answer(tasks)
            for task in tasks:
                task.cancel()
        if len(tasks) > 1:
            (self._won if winner is tasks[1] and not isinstance(answer, Exception) else self._lost).inc()
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> None:
        await self._inner.put_if_absent(key, parts)

    async def stat(self, key: str) -> ObjectStat:
        return await self._inner.stat(key)

    def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectStat]:
        return self._inner.list(prefix, start_after=start_after)

    async def delete_many(self, keys: Sequence[str]) -> None:
        await self._inner.delete_many(keys)

    def unfinished_uploads(self, prefix: str, *, start_after: str = "") -> AsyncIterator[UnfinishedUpload]:
        return self._inner.unfinished_uploads(prefix, start_after=start_after)

    async def abort_upload(self, key: str, upload_id: str) -> None:
        await self._inner.abort_upload(key, upload_id)

    async def probe(self) -> None:
        await self._inner.probe()

    async def close(self) -> None:
        await self._inner.close()


async def _outcome(request: Callable[[], Awaitable[T]]) -> T | Exception:
    """What a read ends in, as a value: a failed one must not end the group that the other one runs in."""
    try:
        return await request()
    except Exception as error:  # noqa: BLE001 - raised by whoever asks for the outcome
        return error


async def _second(request: Callable[[], Awaitable[T]]) -> T | Exception:
    ATTEMPT.set("hedge")
    return await _outcome(request)


async def _first_answer(tasks: Sequence[asyncio.Task[T | Exception]]) -> tuple[T | Exception, asyncio.Task[T | Exception]]:
    """The first bytes, else the last error."""
    pending = set(tasks)
    while True:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        # Both may have ended: bytes count before an error.
        for task in sorted(done, key=lambda ended: isinstance(ended.result(), Exception)):
            if not isinstance(task.result(), Exception) or not pending:
                return task.result(), task
