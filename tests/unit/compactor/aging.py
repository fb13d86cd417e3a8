"""A log that gets old by a clock which a test pushes ahead, and stores in front of which something happens."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from compactor.limits import DEFAULT_LIMITS, CompactorLimits
from compactor.plan import NO_LIMIT, RetentionLimits, TidyPolicy
from compactor.retention import Retention, RetentionResult
from storage.formats.manifest import encode
from storage.log.decide import FORGOTTEN_AFTER
from storage.metadata.keys import PartitionKeys
from storage.metadata.port import Applied, Put, WriteOp, WriteOutcome
from storage.recordbatch import parse_header
from tests.kit.record_batches import record_batch
from tests.kit.stepping_clock import SteppingClock
from tests.unit.compactor.compacting import compacting, listed_segments
from tests.unit.storage.log.rig import PARTITION, Rig, rig

KEYS = PartitionKeys(PARTITION)
HOUR_MS = 3_600_000
HOUR = RetentionLimits(HOUR_MS, NO_LIMIT)
ENDLESS = RetentionLimits(NO_LIMIT, NO_LIMIT)
POLICY = TidyPolicy(producer_expiration_ms=24 * HOUR_MS // FORGOTTEN_AFTER)
IDLE_S = 660.0
"""After so long without appends a partition is tidied."""


class Aging(NamedTuple):
    """A log of records that say how old they are by `clock`."""

    broker: Rig
    clock: SteppingClock
    limits: CompactorLimits

    def retention(self, metadata: Any = None) -> Retention:
        return Retention(metadata or self.broker.shared, self.clock, policy=POLICY, limits=self.limits)

    async def run(self, limits: RetentionLimits = HOUR) -> RetentionResult:
        return await self.retention().run(PARTITION, limits)

    async def append(self, count: int, *, age_h: float = 0.0) -> None:
        """So many entries, of two records each."""
        at_ms = self.clock.now_ms() - int(age_h * HOUR_MS)
        for _ in range(count):
            await self.broker.send(record_batch(b"x" * 50, b"y", base_timestamp=at_ms))

    async def compact(self) -> None:
        async with compacting(self.broker.shared, self.broker.objects) as compaction:
            await compaction.run(PARTITION)

    async def change(self, **fields: Any) -> None:
        (record,) = await self.broker.shared.get_many([KEYS.manifest])
        assert record is not None
        changed = msgspec.structs.replace(await self.broker.manifest(), **fields)
        assert isinstance(await self.broker.shared.write([Put(KEYS.manifest, encode(changed), record.version)]), Applied)

    async def segment_ends(self) -> list[int]:
        return [one.last for one in await listed_segments(self.broker.shared)]


@contextlib.asynccontextmanager
async def aging(*, old: int = 0, segments: int = 0, new: int = 0, limits: CompactorLimits = DEFAULT_LIMITS) -> AsyncIterator[Aging]:
    """`old` entries of two hours ago, in so many segments if any, then `new` ones."""
    async with rig() as broker:
        log = Aging(broker, SteppingClock(), limits)
        for _ in range(segments):
            await log.append(old // segments, age_h=2)
            await log.compact()
        await log.append(old % segments if segments else old, age_h=2)
        await log.append(new)
        yield log


async def base_offsets(broker: Rig, begin: int) -> list[int]:
    """Those of all batches from `begin` on, as a new broker on the same stores reads them."""
    found: list[int] = []
    async with rig(shared=broker.shared, objects=broker.objects.inner, epoch=8) as other:
        log = other.parts.partitions.get(PARTITION)
        await other.parts.manifest_reads.refresh([log])
        while begin < log.seen.high_watermark:
            run = await other.parts.reader.stored(log, begin, bytes_max=1 << 20)
            view = run.buffer
            while len(view):
                header = parse_header(view)
                found.append(header.base_offset)
                view = view[header.size_bytes :]
            begin = run.last + 1
    return found


class Counting:
    """The store inside; it counts."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name in {"get_many", "get_ceiling", "range_scan", "list", "write"}:
            self.calls.append(name)
        return getattr(self._inner, name)


class Meanwhile:
    """The store inside; `act` happens before its n-th write."""

    def __init__(self, inner: Any, act: Callable[[], Awaitable[None]], *, at: int = 0) -> None:
        self._inner = inner
        self._act = act
        self._left = at

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def write(self, ops: Sequence[WriteOp]) -> WriteOutcome:
        self._left -= 1
        if self._left == -1:
            await self._act()
        done: WriteOutcome = await self._inner.write(ops)
        return done
