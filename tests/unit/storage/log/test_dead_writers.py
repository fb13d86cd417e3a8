"""Only brokers that are certainly gone leave `writers` (review C, Y)."""

import asyncio

from runtime.clock import SystemClock
from runtime.supervision import Nursery
from runtime.telemetry import Telemetry
from storage.errors import Unavailable
from storage.formats.manifest import Manifest, WriterEntry
from storage.log.batch import Appended
from storage.log.commit import DeadWriters
from storage.log.limits import DEFAULT_LIMITS, LogLimits
from storage.log.partition import BrokerEpoch
from tests.kit.batches import batch_bytes
from tests.unit.storage.log.rig import rig
from tests.unit.storage.log.test_commit import replace_manifest

MANY = range(1, DEFAULT_LIMITS.writers_kept_max + 5)


def named(*epochs: int) -> Manifest:
    return Manifest(writers={epoch: WriterEntry(1, 1) for epoch in epochs})


class Registry:
    """What a scan of brokers/ finds; while there is a gate, it has found it and its answer is on the way."""

    def __init__(self, *live: int) -> None:
        self.found = frozenset(live)
        self.scans = 0
        self.gate: asyncio.Event | None = None
        self.fails = False

    async def live(self) -> frozenset[int]:
        self.scans += 1
        found = self.found
        if self.gate is not None:
            await self.gate.wait()
        if self.fails:
            raise Unavailable("away")
        return found


def watched(registry: Registry, nursery: Nursery, *, limits: LogLimits = DEFAULT_LIMITS) -> DeadWriters:
    epoch = BrokerEpoch(1, registered_epoch=lambda: 1, live=registry.live)
    return DeadWriters(epoch=epoch, clock=SystemClock(), nursery=nursery, telemetry=Telemetry(), limits=limits)


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_writer_is_dead_once_a_scan_that_began_after_it_was_read_does_not_show_it() -> None:
    async with Nursery() as nursery:
        dead = watched(Registry(1, 2, 900), nursery)
        assert list(dead.of(named(*MANY))) == [], "no commit waits for the scan"
        await turns()

        assert set(dead.of(named(*MANY))) == {*MANY} - {1, 2}


async def test_a_broker_that_registered_while_the_scan_was_under_way_is_not_dead() -> None:
    async with Nursery() as nursery:
        registry = Registry(*MANY)
        registry.gate = asyncio.Event()
        dead = watched(registry, nursery)
        dead.of(named(*MANY))
        await turns()
        with_newcomer = named(*MANY, 50)
        dead.of(with_newcomer)
        registry.gate.set()
        await turns()

        assert list(dead.of(with_newcomer)) == []


async def test_many_living_writers_are_looked_for_once_in_a_while() -> None:
    async with Nursery() as nursery:
        registry = Registry(*MANY, 900)
        dead = watched(registry, nursery)
        for _ in range(20):
            dead.of(named(*MANY))
            await turns()
        assert registry.scans == 1
        dead = watched(registry, nursery, limits=LogLimits(dead_writers_look_every_s=0.0))
        for _ in range(3):
            dead.of(named(*MANY))
            await turns()

        assert registry.scans == 4


async def test_commits_go_on_while_the_registry_cannot_be_read() -> None:
    async with rig(epoch=900) as broker:
        registry = Registry()
        registry.fails = True
        broker.epoch.live = registry.live
        await replace_manifest(broker.shared, named(*MANY))

        assert await broker.send(batch_bytes(1)) == [Appended(0, 0)]
        assert await broker.send(batch_bytes(1)) == [Appended(1, 0)]
        assert registry.scans == 1
        assert set((await broker.manifest()).writers) == {*MANY, 900}
