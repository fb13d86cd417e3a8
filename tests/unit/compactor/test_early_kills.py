"""kill -9 at each step of storing an early object: nothing acknowledged is lost, nothing is there twice, and upkeep does what is left."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from runtime.clock import SystemClock
from runtime.ids import IdSource
from runtime.telemetry import Telemetry
from storage.log.batch import Appended, AppendedBefore
from storage.log.flush import EarlySettings, FlushSettings
from storage.log.limits import LogLimits
from storage.metadata import keys as metadata_keys
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import DeleteRange, WriteOp, WriteOutcome
from storage.objects.memory import MemoryObjectStore
from storage.opening import open_stores
from storage.vocabulary import Buffer
from tests.kit.batches import batch_bytes
from tests.unit.compactor.compacting import compacting
from tests.unit.compactor.test_collector import Stored
from tests.unit.storage.log.rig import PARTITION, Rig, rig

EARLY = EarlySettings(bytes_per_s=1 << 30)
SLOW = FlushSettings(interval_s=60.0, gather_s=60.0)
BATCHES = 5
LIMITS = LogLimits(early_pages_per_delete=2, early_delete_after_s=0.0, early_delete_pause_s=0.0)
"""Five pages go with three range deletes."""
STEPS = {
    "sealed, its PUT not begun": (0, False),
    "its PUT applied without an answer": (0, True),
    "before the first range delete": (1, False),
    "behind the first of three range deletes": (1, True),
    "before the last range delete": (3, False),
    "behind the last range delete": (3, True),
}


class Dying:
    """Counts what a broker does to its stores once it has sealed: PUTs and range deletes. At the n-th it dies: before it, or when it is
    done. From then on nothing of it reaches a store.
    """

    def __init__(self, at: int, *, is_done: bool) -> None:
        self._at = at
        self._is_done = is_done
        self._count = 0
        self.is_dead = asyncio.Event()
        self.put: tuple[str, list[Buffer]] = "", []
        """The last PUT that was begun: it may be on its way still when the broker has died."""

    async def effect(self, call: Callable[[], Awaitable[Any]]) -> Any:
        await self._hang_if_dead()
        number, self._count = self._count, self._count + 1
        if number == self._at and not self._is_done:
            await self._die()
        done = await call()
        if number == self._at:
            await self._die()
        return done

    async def _die(self) -> None:
        self.is_dead.set()
        await self._hang_if_dead()

    async def _hang_if_dead(self) -> None:
        if self.is_dead.is_set():
            await asyncio.Event().wait()

    def metadata(self, inner: Any) -> Any:
        return _DyingMetadata(inner, self)

    def objects(self, inner: Any) -> Any:
        return _DyingObjects(inner, self)


class _DyingMetadata:
    def __init__(self, inner: Any, dying: Dying) -> None:
        self._inner = inner
        self._dying = dying

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def write(self, ops: Sequence[WriteOp]) -> WriteOutcome:
        done: WriteOutcome
        if any(isinstance(op, DeleteRange) for op in ops):
            done = await self._dying.effect(lambda: self._inner.write(ops))
        else:
            done = await self._inner.write(ops)
        return done


class _DyingObjects:
    def __init__(self, inner: Any, dying: Dying) -> None:
        self._inner = inner
        self._dying = dying

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> None:
        self._dying.put = key, [b"".join(parts)]
        await self._dying.effect(lambda: self._inner.put_if_absent(key, parts))


class Pair(NamedTuple):
    metadata: Any
    objects: Any


Open = Callable[[], contextlib.AbstractAsyncContextManager[Pair]]


@pytest.fixture(params=["in memory", "embedded"])
def opening(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """The stores of one life of a broker: those of an embedded one, SQLite and a folder, are opened once more after each."""
    memory = Pair(MemoryMetadataStore(clock=SystemClock(), shards=1), MemoryObjectStore(clock=SystemClock()))

    @contextlib.asynccontextmanager
    async def open_pair() -> AsyncIterator[Pair]:
        if request.param == "in memory":
            yield memory
            return
        clock = SystemClock()
        async with open_stores(
            storage_url=f"file://{tmp_path}/objects",
            metadata_url=f"sqlite:///{tmp_path}/metadata.db",
            clock=clock,
            ids=IdSource(clock=clock),
            telemetry=Telemetry(),
        ) as stores:
            yield Pair(stores.metadata, stores.objects)

    return open_pair


def numbered(number: int) -> bytearray:
    return batch_bytes(producer_id=9, producer_epoch=0, first_seq=number, payload=b"early %d" % number)


def life(pair: Pair, *, epoch: int) -> contextlib.AbstractAsyncContextManager[Rig]:
    return rig(shared=pair.metadata, objects=pair.objects, epoch=epoch, early=EARLY, flush=SLOW, limits=LIMITS)


async def pages_of(pair: Pair) -> list[str]:
    start, end = metadata_keys.early_pages(metadata_keys.PartitionKeys(PARTITION).partition_key)
    return list(await pair.metadata.list(start, end))


async def die(opening: Open, dying: Dying) -> bytes:
    """One life of a broker: it appends, acknowledges, seals, and dies. Return what it acknowledged, as it is read."""
    async with opening() as pair, life(Pair(dying.metadata(pair.metadata), dying.objects(pair.objects)), epoch=7) as broker:
        for number in range(BATCHES):
            assert await broker.send(numbered(number)) == [Appended(number, 0)]
        acknowledged = await broker.read_all()
        storing = asyncio.get_running_loop().create_task(broker.parts.appender.store_early())
        async with asyncio.timeout(25):
            await dying.is_dead.wait()
        storing.cancel()
    return acknowledged


async def appends_once(broker: Rig, acknowledged: bytes) -> bytes:
    """Return what the next life reads, once it has everything of the one before, takes no batch of it again, and goes on behind it."""
    assert await broker.read_all() == acknowledged
    assert await broker.send(numbered(BATCHES - 1)) == [AppendedBefore(BATCHES - 1, 0)]
    assert await broker.send(numbered(BATCHES)) == [Appended(BATCHES, 0)]
    found = await broker.read_all()
    assert found[: len(acknowledged)] == acknowledged
    return found


@pytest.mark.parametrize("step", STEPS)
async def test_a_broker_that_is_killed_at_any_step_of_a_store_reads_everything_when_it_is_back(opening: Open, step: str) -> None:
    at, is_done = STEPS[step]
    acknowledged = await die(opening, Dying(at, is_done=is_done))

    async with opening() as pair, life(pair, epoch=8) as broker:
        found = await appends_once(broker, acknowledged)
        await broker.parts.appender.store_early()
    async with opening() as pair, life(pair, epoch=9) as broker:
        assert await broker.read_all() == found


@pytest.mark.parametrize("step", STEPS)
async def test_upkeep_takes_what_a_killed_broker_left_and_leaves_no_page_behind(opening: Open, step: str) -> None:
    at, is_done = STEPS[step]
    acknowledged = await die(opening, Dying(at, is_done=is_done))

    async with opening() as pair, life(pair, epoch=8) as broker:
        stored = Stored(broker, pair.metadata, pair.objects)
        await stored.collect()
        assert await broker.read_all() == acknowledged, "a collection takes nothing that is needed"
        async with compacting(pair.metadata, pair.objects) as compaction:
            await compaction.run(PARTITION)
        report = await stored.collect()
        assert (report.failed, report.pages.failed, await pages_of(pair)) == ({}, {}, [])
        assert [key for key in await stored.keys() if key.startswith("wal/")] == []
        await appends_once(broker, acknowledged)


@pytest.mark.parametrize("upkeep", ["none", "compacted", "compacted and collected"])
async def test_a_put_that_was_under_way_when_its_broker_was_killed_may_land_at_any_time(opening: Open, upkeep: str) -> None:
    dying = Dying(0, is_done=False)
    acknowledged = await die(opening, dying)

    async with opening() as pair, life(pair, epoch=8) as broker:
        stored = Stored(broker, pair.metadata, pair.objects)
        if upkeep != "none":
            async with compacting(pair.metadata, pair.objects) as compaction:
                await compaction.run(PARTITION)
        if upkeep == "compacted and collected":
            await stored.collect()
        await pair.objects.put_if_absent(*dying.put)
        found = await appends_once(broker, acknowledged)
        await broker.parts.appender.store_early()
        await stored.collect()
        assert await broker.read_all() == found
        if upkeep != "none":
            assert await pages_of(pair) == []
