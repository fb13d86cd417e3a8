"""The stores of a simulated cluster: the ones in memory, as far away as real ones are, and counted."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bench.scale.loads import ScaleSettings
from runtime.clock import Clock
from runtime.supervision import Nursery
from storage.errors import AlreadyExists, NotFound
from storage.limits import WRITE_REQUEST_OPS_MAX
from storage.metadata.keys import CONTROL_SUFFIX
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import Applied, DeleteRange, Key, OnChange, Put, Record, Session, Status, Subscription, WriteOp, WriteOutcome
from storage.objects.memory import MemoryObjectStore
from storage.vocabulary import Buffer


@dataclass(slots=True)
class Counts:
    """Requests and bytes of all brokers since the counts were last cleared."""

    write_requests: int = 0
    write_ops: int = 0
    commits: int = 0
    conflicts: int = 0
    read_requests: int = 0
    read_keys: int = 0
    hints: int = 0
    puts: int = 0
    put_bytes: int = 0
    gets: int = 0
    get_bytes: int = 0
    batches: int = 0

    def clear(self) -> None:
        for name in self.__slots__:
            setattr(self, name, 0)


class _Waiting(NamedTuple):
    ops: Sequence[WriteOp]
    outcome: asyncio.Future[WriteOutcome]


class _Line:
    __slots__ = ("is_served", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[_Waiting] = deque()
        self.is_served = False


class DistantMetadata:
    """One broker's client of the shared records. As the client of Oxia (docs/adr/0006), it has one write request per shard under way; what
    arrives meanwhile travels in the next.
    """

    def __init__(self, inner: MemoryMetadataStore, settings: ScaleSettings, counts: Counts, nursery: Nursery) -> None:
        self._inner = inner
        self._settings = settings
        self._counts = counts
        self._nursery = nursery
        self._lines: dict[int, _Line] = {}

    def shard_of(self, partition_key: str) -> int:
        return self._inner.shard_of(partition_key)

    async def write(self, ops: Sequence[WriteOp]) -> WriteOutcome:
        first = ops[0].start if isinstance(ops[0], DeleteRange) else ops[0].key
        line = self._lines.setdefault(self.shard_of(first.partition_key), _Line())
        outcome: asyncio.Future[WriteOutcome] = asyncio.get_running_loop().create_future()
        line.waiting.append(_Waiting(ops, outcome))
        if not line.is_served:
            line.is_served = True
            self._nursery.spawn(self._serve(line), name="writes")
        return await outcome

    async def _serve(self, line: _Line) -> None:
        while line.waiting:
            together: list[_Waiting] = []
            ops: list[WriteOp] = []
            while line.waiting and len(ops) + len(line.waiting[0].ops) <= WRITE_REQUEST_OPS_MAX:
                waiting = line.waiting.popleft()
                together.append(waiting)
                ops += waiting.ops
            await asyncio.sleep(self._settings.oxia_write_s / 2)
            outcome = await self._inner.write(ops)
            assert isinstance(outcome, Applied)
            self._count(ops, outcome)
            await asyncio.sleep(self._settings.oxia_write_s / 2)
            first = 0
            for waiting in together:
                end = first + len(waiting.ops)
                if not waiting.outcome.done():
                    waiting.outcome.set_result(Applied(outcome.results[first:end]))
                first = end
        line.is_served = False

    def _count(self, ops: Sequence[WriteOp], outcome: Applied) -> None:
        counts = self._counts
        counts.write_requests += 1
        counts.write_ops += len(ops)
        for op, result in zip(ops, outcome.results, strict=True):
            if isinstance(op, Put) and op.key.path.endswith(CONTROL_SUFFIX):
                if result.status is Status.OK:
                    counts.commits += 1
                else:
                    counts.conflicts += 1

    async def get_many(self, keys: Sequence[Key]) -> list[Record | None]:
        self._counts.read_requests += 1
        self._counts.read_keys += len(keys)
        await asyncio.sleep(self._settings.oxia_read_s / 2)
        records = await self._inner.get_many(keys)
        await asyncio.sleep(self._settings.oxia_read_s / 2)
        return records

    async def get_ceiling(self, key: Key, *, within: str) -> Record | None:
        self._counts.read_requests += 1
        self._counts.read_keys += 1
        await asyncio.sleep(self._settings.oxia_read_s)
        return await self._inner.get_ceiling(key, within=within)

    def range_scan(self, start: Key, end: str) -> AsyncIterator[Record]:
        self._counts.read_requests += 1
        return self._inner.range_scan(start, end)

    async def list(self, start: Key, end: str) -> list[str]:
        self._counts.read_requests += 1
        return await self._inner.list(start, end)

    async def open_session(self, *, timeout_ms: int) -> Session:
        return await self._inner.open_session(timeout_ms=timeout_ms)

    def subscribe(self, callback: OnChange, *, prefix: str = "") -> Subscription:
        """Hints take as long as answers do."""
        loop, counts, late_s = asyncio.get_running_loop(), self._counts, self._settings.oxia_write_s / 2

        def heard(path: str, version: int | None) -> None:
            counts.hints += 1
            loop.call_later(late_s, callback, path, version)

        return self._inner.subscribe(heard, prefix=prefix)

    async def probe(self) -> None:
        await self._inner.probe()

    async def close(self) -> None:
        await self._inner.close()


class DistantObjects(MemoryObjectStore):
    """Objects stay in the pieces that they came in: their batches share one buffer, so that gigabytes take no memory."""

    def __init__(self, settings: ScaleSettings, counts: Counts, clock: Clock) -> None:
        super().__init__(clock=clock)
        self._settings = settings
        self._counts = counts
        self._pieces: dict[str, tuple[Buffer, ...]] = {}

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> None:
        pieces = tuple(parts)
        await asyncio.sleep(self._settings.put_s)
        if key in self._pieces:
            raise AlreadyExists(f"object exists: key={key!r}")
        self._pieces[key] = pieces
        self._counts.puts += 1
        self._counts.put_bytes += sum(map(len, pieces))

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        self._counts.gets += 1
        self._counts.get_bytes += end - start
        await asyncio.sleep(self._settings.get_s)
        pieces = self._pieces.get(key)
        if pieces is None:
            raise NotFound(f"no such object: key={key!r}")
        found = bytearray()
        position = 0
        for piece in pieces:
            if position < end and position + len(piece) > start:
                found += piece[max(0, start - position) : end - position]
            position += len(piece)
        return bytes(found)
