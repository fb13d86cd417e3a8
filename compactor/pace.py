"""How fast upkeep moves bytes: slowly while it keeps up, so that the disk, the network and the store are the brokers'."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final

from runtime.clock import Clock
from runtime.telemetry import Metric, Telemetry
from storage.objects.port import ObjectStat, ObjectStore, UnfinishedUpload
from storage.vocabulary import Buffer

BURST_S: Final = 0.25
"""After a pause the bytes of this time pass at once."""
FASTER_EVERY_S: Final = 300.0
"""A cycle that takes longer has much to do: it goes on at twice the pace, and at twice that after as long again. So what waits stays
bounded, however much is appended."""

PACED_SECONDS: Final = Metric("forebay_compactor_paced_seconds_total", "Time for which reads and writes of objects waited their turn")


class Pace:
    """Whose turn it is to move bytes, at `bytes_per_s`; 0 for no limit."""

    def __init__(self, bytes_per_s: int, *, clock: Clock, telemetry: Telemetry) -> None:
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._waited = telemetry.counter(PACED_SECONDS)
        self._cycle_began_s = self._free_s = clock.monotonic_s()

    def begin_cycle(self) -> None:
        """From here on time counts: see FASTER_EVERY_S."""
        self._cycle_began_s = self._clock.monotonic_s()

    @property
    def bytes_per_s(self) -> int:
        """The pace now."""
        return self._bytes_per_s << min(30, int((self._clock.monotonic_s() - self._cycle_began_s) / FASTER_EVERY_S))

    async def wait(self, size_bytes: int) -> None:
        """Return when what was asked for earlier has had its time. Cancelled: the bytes count all the same."""
        if not self._bytes_per_s:
            return
        now_s = self._clock.monotonic_s()
        turn_s = max(self._free_s, now_s - BURST_S)
        self._free_s = turn_s + size_bytes / self.bytes_per_s
        if turn_s > now_s:
            self._waited.inc(turn_s - now_s)
            await asyncio.sleep(turn_s - now_s)


class PacedObjects:
    """An `ObjectStore` whose bytes wait for their turn; what moves none does not."""

    def __init__(self, inner: ObjectStore, pace: Pace) -> None:
        self._inner = inner
        self._pace = pace

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> None:
        await self._pace.wait(sum(map(len, parts)))
        await self._inner.put_if_absent(key, parts)

    async def get_range(self, key: str, start: int, end: int) -> Buffer:
        await self._pace.wait(end - start)
        return await self._inner.get_range(key, start, end)

    async def get_parts(self, key: str, start: int, end: int, *, part_bytes: int) -> Sequence[Buffer]:
        await self._pace.wait(end - start)
        return await self._inner.get_parts(key, start, end, part_bytes=part_bytes)

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
