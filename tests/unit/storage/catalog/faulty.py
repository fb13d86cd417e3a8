"""A metadata store that loses what it is told to lose: requests, replies, or punctuality."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from enum import Enum

from runtime.clock import SystemClock
from storage.errors import Unavailable
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import Key, NotApplied, Record, Session, Subscription, Unknown, WriteOp, WriteOutcome


class Fault(Enum):
    REFUSED = "not applied, and the reply says so"
    REQUEST_LOST = "not applied, no reply"
    REPLY_LOST = "applied, no reply"
    LATE = "no reply, applied when `deliver` is called"


class FaultyMetadata:
    """`faults[n]` befalls the n-th write (from 0); `all_faults` every write; `reads_fail` every read."""

    def __init__(self, store: MemoryMetadataStore | None = None, *, chaos: random.Random | None = None) -> None:
        self.store = store or MemoryMetadataStore(clock=SystemClock())
        self.faults: dict[int, Fault] = {}
        self.all_faults: Fault | None = None
        self.reads_fail = False
        self.writes: list[Sequence[WriteOp]] = []
        self.reads: list[Sequence[Key]] = []
        self.scans = 0
        self.before_write: Callable[[Sequence[WriteOp]], Awaitable[None]] | None = None
        self.after_read: Callable[[], Awaitable[None]] | None = None
        self._late: list[Sequence[WriteOp]] = []
        self._chaos = chaos

    async def deliver(self) -> None:
        for ops in self._late:
            await self.store.write(ops)
        self._late.clear()

    def shard_of(self, partition_key: str) -> int:
        return self.store.shard_of(partition_key)

    async def write(self, ops: Sequence[WriteOp]) -> WriteOutcome:
        number = len(self.writes)
        self.writes.append(ops)
        await self._dawdle()
        if self.before_write is not None:
            await self.before_write(ops)
        match self.all_faults or self.faults.get(number):
            case None:
                outcome = await self.store.write(ops)
                await self._dawdle()
                return outcome
            case Fault.REFUSED:
                return NotApplied("refused")
            case Fault.REQUEST_LOST:
                return Unknown("request lost")
            case Fault.REPLY_LOST:
                await self.store.write(ops)
                return Unknown("reply lost")
            case Fault.LATE:
                self._late.append(ops)
                return Unknown("late")

    async def get_many(self, keys: Sequence[Key]) -> list[Record | None]:
        self.reads.append(keys)
        await self._dawdle()
        if self.reads_fail:
            raise Unavailable("reads fail")
        records = await self.store.get_many(keys)
        if self.after_read is not None:
            await self.after_read()
        await self._dawdle()
        return records

    async def get_ceiling(self, key: Key, *, within: str) -> Record | None:
        return await self.store.get_ceiling(key, within=within)

    async def range_scan(self, start: Key, end: str) -> AsyncIterator[Record]:
        self.scans += 1
        await self._dawdle()
        if self.reads_fail:
            raise Unavailable("reads fail")
        async for record in self.store.range_scan(start, end):
            yield record

    async def list(self, start: Key, end: str) -> list[str]:
        return await self.store.list(start, end)

    async def open_session(self, *, timeout_ms: int) -> Session:
        return await self.store.open_session(timeout_ms=timeout_ms)

    def subscribe(self, callback: Callable[[str], None], *, prefix: str = "") -> Subscription:
        return self.store.subscribe(callback, prefix=prefix)

    async def probe(self) -> None:
        await self.store.probe()

    async def close(self) -> None:
        await self.store.close()

    async def _dawdle(self) -> None:
        if self._chaos is not None:
            for _ in range(self._chaos.randrange(4)):
                await asyncio.sleep(0)


class ManualClock:
    """Stands still until told."""

    def __init__(self) -> None:
        self.seconds = 1_000.0

    def monotonic_s(self) -> float:
        return self.seconds

    def now_ms(self) -> int:
        return int(self.seconds * 1_000)


def no_jitter(count: int) -> bytes:
    """Entropy that makes every pause zero. Not for names: all of them would be equal."""
    return bytes(count)
