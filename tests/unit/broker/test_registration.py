import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from broker import registration
from broker.registration import RegisteredLife
from runtime.clock import SystemClock
from runtime.supervision import Nursery
from storage.catalog.brokers import BrokerDirectory, Endpoint, Registration
from storage.errors import AlreadyExists, Unavailable
from storage.log.broker_epoch import BrokerEpoch
from storage.metadata import keys
from storage.metadata.port import Record
from tests.unit.storage.catalog.faulty import Fault, FaultyMetadata

HERE = (Endpoint("PLAINTEXT", "here", 9092),)
ELSEWHERE = (Endpoint("PLAINTEXT", "elsewhere", 9092),)


@dataclass
class Living:
    metadata: FaultyMetadata
    directory: BrokerDirectory
    life: RegisteredLife
    heard: "asyncio.Queue[str | None]" = field(default_factory=lambda: asyncio.Queue(maxsize=100))

    async def lose_session(self) -> None:
        assert self.directory._session is not None
        await self.directory._session.close()

    async def hear(self) -> str | None:
        """The next change."""
        async with asyncio.timeout(10):
            return await self.heard.get()

    async def record(self, broker_id: int) -> Record | None:
        (record,) = await self.metadata.get_many([keys.broker(broker_id)])
        return record

    async def rival(self, broker_id: int) -> Registration:
        directory = BrokerDirectory(self.metadata, clock=SystemClock())
        return await directory.register(listeners=ELSEWHERE, rack=None, version="0", broker_id=broker_id)


@contextlib.asynccontextmanager
async def living(fixed_id: int | None = None) -> AsyncIterator[Living]:
    metadata = FaultyMetadata()
    directory = BrokerDirectory(metadata, clock=SystemClock())
    heard: asyncio.Queue[str | None] = asyncio.Queue(maxsize=100)
    life = RegisteredLife(
        directory, metadata=metadata, listeners=HERE, rack="a", version="0", fixed_id=fixed_id, on_change=heard.put_nowait
    )
    yield Living(metadata, directory, life, heard)
    await life.end()
    await metadata.close()


@contextlib.asynccontextmanager
async def staying(living: Living) -> AsyncIterator[BrokerEpoch]:
    epoch = await living.life.begin()
    assert await living.hear() is None
    async with Nursery() as nursery:
        nursery.spawn(living.life.stay(), name="stay")
        yield epoch


@pytest.fixture(autouse=True)
def short_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "REGISTER_PAUSE_S", 0.01)


async def test_the_epoch_is_that_of_the_registration_and_knows_the_others() -> None:
    async with living() as broker:
        other = await broker.rival(1)
        epoch = await broker.life.begin()
        record = await broker.record(2)

        assert broker.life.broker_id == 2
        assert record is not None
        assert epoch.current == record.version
        assert epoch.is_registered(epoch.current)
        assert await epoch.live() == {epoch.current, other.epoch}


async def test_an_id_that_is_taken_at_the_start_is_told() -> None:
    async with living(fixed_id=3) as broker:
        await broker.rival(3)

        with pytest.raises(AlreadyExists):
            await broker.life.begin()


async def test_a_lost_registration_is_told_and_made_again_under_the_same_id_with_a_greater_epoch() -> None:
    async with living(fixed_id=3) as broker, staying(broker) as epoch:
        old = epoch.current
        await broker.lose_session()
        lost, found = await broker.hear(), await broker.hear()
        record = await broker.record(3)

        assert (lost, found) == ("the session was lost", None)
        assert record is not None
        assert epoch.current == record.version > old
        assert epoch.is_registered(epoch.current)


async def test_it_is_made_again_as_often_as_it_is_lost() -> None:
    async with living() as broker, staying(broker) as epoch:
        epochs = [epoch.current]
        for _ in range(5):
            await broker.lose_session()
            assert await broker.hear() is not None
            assert await broker.hear() is None
            epochs.append(epoch.current)

        assert epochs == sorted(set(epochs))
        assert broker.life.broker_id == 1


async def test_a_store_that_refuses_is_asked_until_it_does_not() -> None:
    async with living() as broker, staying(broker) as epoch:
        broker.metadata.reads_fail = True
        broker.metadata.all_faults = Fault.REQUEST_LOST
        await broker.lose_session()
        heard = [await broker.hear() for _ in range(3)]
        is_registered_meanwhile = epoch.is_registered(epoch.current)
        broker.metadata.reads_fail, broker.metadata.all_faults = False, None
        while await broker.hear() is not None:
            pass

        assert all(heard)
        assert not is_registered_meanwhile
        assert epoch.is_registered(epoch.current)


async def test_a_given_id_that_somebody_took_is_waited_for() -> None:
    async with living(fixed_id=3) as broker, staying(broker):
        await broker.lose_session()
        rival = BrokerDirectory(broker.metadata, clock=SystemClock())
        await rival.register(listeners=ELSEWHERE, rack=None, version="0", broker_id=3)
        heard = [await broker.hear() for _ in range(4)]
        await rival.deregister()
        while await broker.hear() is not None:
            pass

        assert "taken by the live broker at PLAINTEXT://elsewhere:9092" in str(heard[-1])
        assert broker.life.broker_id == 3


async def test_an_assigned_id_that_somebody_took_is_replaced() -> None:
    async with living() as broker, staying(broker):
        await broker.lose_session()
        await broker.rival(1)
        while await broker.hear() is not None:
            pass

        assert broker.life.broker_id == 2


async def test_the_end_takes_the_record_away_and_nothing_brings_it_back() -> None:
    async with living() as broker, staying(broker) as epoch:
        await broker.life.end()
        await broker.life.end()
        await asyncio.sleep(0.03)

        assert await broker.record(1) is None
        assert not epoch.is_registered(epoch.current)
        assert broker.heard.empty()


async def test_an_end_while_the_registration_is_being_made_again_is_one_all_the_same() -> None:
    async with living() as broker, staying(broker):
        reached, go_on = asyncio.Event(), asyncio.Event()

        async def hold(_: object) -> None:
            reached.set()
            await go_on.wait()

        broker.metadata.before_write = hold
        await broker.lose_session()
        await reached.wait()
        await broker.life.end()
        broker.metadata.before_write = None
        go_on.set()
        await asyncio.sleep(0.05)

        assert await broker.record(1) is None


async def test_a_begin_that_fails_leaves_nothing_behind() -> None:
    async with living() as broker:
        broker.metadata.reads_fail = True
        broker.metadata.all_faults = Fault.REFUSED

        with pytest.raises(Unavailable):
            await broker.life.begin()
        assert broker.heard.empty()
