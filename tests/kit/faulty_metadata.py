"""A metadata store that loses what it is told to lose: requests, replies, or punctuality."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from enum import Enum

from runtime.clock import SystemClock
from storage.errors import Unavailable
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import DeleteRange, Key, NotApplied, OnChange, Record, Session, Subscription, Unknown, WriteOp, WriteOutcome


def paths_into(heard: list[str]) -> OnChange:
    """A subscriber that notes the paths of changes."""
    return lambda path, _version: heard.append(path)


class Fault(Enum):
    REFUSED = "not applied, and the reply says so"
    REQUEST_LOST = "not applied, no reply"
    REPLY_LOST = "applied, no reply"
    LATE = "no reply, applied when `deliver` is called"


class FaultyMetadata:
    """`faults[n]` befalls the n-th write (from 0); `all_faults` every write; `reads_fail` every read.

    Who asks a shard of `muted` waits until `speak` is called: for a read as for a write, which is then done.
    """

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
        self.muted: set[int] = set()
        self._spoken = asyncio.Event()
        self._late: list[Sequence[WriteOp]] = []
        self._chaos = chaos

    async def deliver(self) -> None:
        for ops in self._late:
            await self.store.write(ops)
        self._late.clear()

    def speak(self) -> None:
        """No shard is muted any more."""
        self.muted.clear()
        self._spoken.set()
        self._spoken = asyncio.Event()

    async def _heard(self, *partition_keys: str) -> None:
        while self.muted and any(self.shard_of(key) in self.muted for key in partition_keys):
            await self._spoken.wait()

    def shard_of(self, partition_key: str) -> int:
        return self.store.shard_of(partition_key)

    async def write(self, ops: Sequence[WriteOp]) -> WriteOutcome:
        number = len(self.writes)
        self.writes.append(ops)
        await self._dawdle()
        await self._heard(*(op.start.partition_key if isinstance(op, DeleteRange) else op.key.partition_key for op in ops))
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
        await self._heard(*(key.partition_key for key in keys))
        if self.reads_fail:
            raise Unavailable("reads fail")
        records = await self.store.get_many(keys)
        if self.after_read is not None:
            await self.after_read()
        await self._dawdle()
        return records

    async def get_ceiling(self, key: Key, *, within: str) -> Record | None:
        await self._heard(key.partition_key)
        return await self.store.get_ceiling(key, within=within)

    async def range_scan(self, start: Key, end: str) -> AsyncIterator[Record]:
        self.scans += 1
        await self._dawdle()
        await self._heard(start.partition_key)
        if self.reads_fail:
            raise Unavailable("reads fail")
        async for record in self.store.range_scan(start, end):
            yield record

    async def list(self, start: Key, end: str) -> list[str]:
        await self._heard(start.partition_key)
        return await self.store.list(start, end)

    async def open_session(self, *, timeout_ms: int) -> Session:
        return await self.store.open_session(timeout_ms=timeout_ms)

    def subscribe(self, callback: OnChange, *, prefix: str = "") -> Subscription:
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
