"""The lifecycle of a broker, and that an epoch counts as registered only while its record is certainly there."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import pytest
from structlog.testing import capture_logs

from broker.cluster.registration import BrokerLifecycle
from broker.limits import BrokerLimits
from runtime.clock import SystemClock
from runtime.supervision import Nursery
from runtime.telemetry import Telemetry
from storage.catalog.brokers import BrokerDirectory, Endpoint, Registration
from storage.errors import AlreadyExists, OutcomeUnknown, StorageError, Unavailable
from storage.log.batch import Appended
from storage.log.limits import LogLimits
from storage.log.partition import BrokerEpoch
from storage.metadata import keys
from storage.metadata.memory import MemorySession
from storage.metadata.port import Put, Record
from storage.objects.memory import MemoryObjectStore
from tests.kit.batches import batch_bytes
from tests.kit.faulty_metadata import Fault
from tests.unit.storage.catalog.deposed import DeposedMetadata
from tests.unit.storage.log.rig import PARTITION, Rig, rig

HERE = (Endpoint("PLAINTEXT", "here", 9092),)
ELSEWHERE = (Endpoint("PLAINTEXT", "elsewhere", 9092),)


class SlowClose:
    """As of a session whose shard does not answer: its end is under way until it `may_end`."""

    def __init__(self, close: Callable[[], Awaitable[None]]) -> None:
        self.has_begun = asyncio.Event()
        self.may_end = asyncio.Event()
        self._close = close

    async def __call__(self) -> None:
        self.has_begun.set()
        await self.may_end.wait()
        await self._close()


@dataclass
class Living:
    metadata: DeposedMetadata
    directory: BrokerDirectory
    lifecycle: BrokerLifecycle
    telemetry: Telemetry
    heard: "asyncio.Queue[str | None]" = field(default_factory=lambda: asyncio.Queue(maxsize=100))

    async def lose_session(self) -> None:
        assert self.directory._session is not None
        await self.directory._session.close()

    def close_slowly(self) -> "SlowClose":
        """The session behind the registration will be."""
        session = self.directory._session
        assert session is not None
        slow = SlowClose(session.close)
        session.close = slow  # type: ignore[method-assign]
        return slow

    async def hear(self) -> str | None:
        """The next change."""
        async with asyncio.timeout(25):
            return await self.heard.get()

    async def record(self, broker_id: int) -> Record | None:
        (record,) = await self.metadata.get_many([keys.broker(broker_id)])
        return record

    async def rival(self, broker_id: int) -> Registration:
        directory = BrokerDirectory(self.metadata, clock=SystemClock())
        return await directory.register(listeners=ELSEWHERE, rack=None, version="0", broker_id=broker_id)


@contextlib.asynccontextmanager
async def living(fixed_id: int | None = None, *, pause_s: float = 0.01) -> AsyncIterator[Living]:
    metadata = DeposedMetadata()
    directory = BrokerDirectory(metadata, clock=SystemClock())
    heard: asyncio.Queue[str | None] = asyncio.Queue(maxsize=100)
    telemetry = Telemetry()
    lifecycle = BrokerLifecycle(
        directory,
        listeners=HERE,
        rack="a",
        version="0",
        fixed_id=fixed_id,
        telemetry=telemetry,
        on_change=heard.put_nowait,
        limits=BrokerLimits(register_pause_s=pause_s),
    )
    yield Living(metadata, directory, lifecycle, telemetry, heard)
    await lifecycle.end()
    await metadata.close()


@contextlib.asynccontextmanager
async def staying(living: Living) -> AsyncIterator[BrokerEpoch]:
    epoch = await living.lifecycle.begin()
    assert await living.hear() is None
    async with Nursery() as nursery:
        nursery.spawn(living.lifecycle.stay(), name="stay")
        yield epoch


async def test_the_epoch_is_that_of_the_registration_and_knows_the_others() -> None:
    async with living() as broker:
        other = await broker.rival(1)
        epoch = await broker.lifecycle.begin()
        record = await broker.record(2)

        assert broker.lifecycle.broker_id == 2
        assert record is not None
        assert epoch.current == record.version
        assert epoch.is_registered(epoch.current)
        assert await epoch.live() == {epoch.current, other.epoch}


async def test_an_id_that_is_taken_at_the_start_is_told() -> None:
    async with living(fixed_id=3) as broker:
        await broker.rival(3)

        with pytest.raises(AlreadyExists):
            await broker.lifecycle.begin()


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
        assert broker.lifecycle.broker_id == 1
        assert broker.telemetry.registry.get_sample_value("forebay_sessions_lost_total") == 5


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
        assert broker.lifecycle.broker_id == 3


async def test_an_assigned_id_that_somebody_took_is_replaced() -> None:
    async with living() as broker, staying(broker):
        await broker.lose_session()
        await broker.rival(1)
        while await broker.hear() is not None:
            pass

        assert broker.lifecycle.broker_id == 2


async def test_the_end_takes_the_record_away_and_nothing_brings_it_back() -> None:
    async with living() as broker, staying(broker) as epoch:
        await broker.lifecycle.end()
        await broker.lifecycle.end()
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
        await broker.lifecycle.end()
        broker.metadata.before_write = None
        go_on.set()
        await asyncio.sleep(0.05)

        assert await broker.record(1) is None


async def test_a_begin_that_fails_leaves_nothing_behind() -> None:
    async with living() as broker:
        broker.metadata.reads_fail = True
        broker.metadata.all_faults = Fault.REFUSED

        with pytest.raises(Unavailable):
            await broker.lifecycle.begin()
        assert broker.heard.empty()


def believed_lost(directory: BrokerDirectory) -> None:
    """The broker takes its session for lost; the store still has it, until it is closed or its time is over."""
    session = directory._session
    assert isinstance(session, MemorySession)
    session.end()


async def test_the_epoch_is_the_new_one_while_the_former_session_is_still_being_closed() -> None:
    async with living() as broker, staying(broker) as epoch:
        old = epoch.current
        closing = broker.close_slowly()
        believed_lost(broker.directory)
        await asyncio.wait_for(closing.has_begun.wait(), 25)
        record = await broker.record(1)
        seen = (epoch.is_registered(old), epoch.is_registered(epoch.current), epoch.current)
        heard = [await broker.hear(), await broker.hear()]
        closing.may_end.set()

        assert record is not None
        assert seen == (False, True, record.version)
        assert heard == ["the session was lost", None]


@pytest.mark.parametrize("begun", ["before the loss", "while the former session is being closed"])
async def test_a_batch_whose_outcome_got_lost_around_a_new_registration_is_never_appended_twice(
    begun: str,
) -> None:
    """The review's D: another broker drops what is written under an epoch that nobody has any more, and this one took it for its own."""
    limits = LogLimits(writers_kept_max=0)
    async with living() as broker, staying(broker) as epoch, contextlib.AsyncExitStack() as closing:
        rival = BrokerDirectory(broker.metadata, clock=SystemClock())
        theirs = await rival.register(listeners=ELSEWHERE, rack=None, version="0", broker_id=2)
        objects = MemoryObjectStore(clock=SystemClock())
        one = await closing.enter_async_context(rig(shared=broker.metadata.store, objects=objects, registered=epoch, limits=limits))
        other_epoch = BrokerEpoch(theirs.epoch, registered_epoch=lambda: rival.registered_epoch, live=rival.epochs_now)
        other = await closing.enter_async_context(rig(shared=broker.metadata.store, objects=objects, registered=other_epoch, limits=limits))
        await one.parts.manifest_reads.refresh([one.parts.partitions.get(PARTITION)])

        sent = await sent_in_doubt(one) if begun == "before the loss" else None
        slow = broker.close_slowly()
        believed_lost(broker.directory)
        await asyncio.wait_for(slow.has_begun.wait(), 25)
        sent = sent or await sent_in_doubt(one)
        for number in range(1, OTHERS_COMMITS + 1):
            assert await other.send(batch_bytes(1)) == [Appended(number, 0)]
        assert (set((await other.manifest()).writers) == {theirs.epoch}) is (begun == "before the loss")
        one.metadata.reads_fail = False
        (settled,) = await asyncio.wait_for(sent, 25)
        slow.may_end.set()

        assert (await other.manifest()).sequence_counter == 1 + OTHERS_COMMITS, "each batch was sent once"
        if begun == "before the loss":
            assert isinstance(settled, OutcomeUnknown), "its entry is gone with its epoch"
        else:
            assert settled == Appended(0, 0)


OTHERS_COMMITS = 20
"""The first of them looks for dead writers, in the background; a later one drops them."""


async def sent_in_doubt(one: Rig) -> "asyncio.Future[list[Appended | StorageError]]":
    """A batch that is appended and whose reply is lost; reads fail from then on."""
    one.metadata.faults.append("reply lost")
    sent = one.send(batch_bytes(1))
    one.metadata.writes.clear()
    while not one.metadata.writes:  # noqa: ASYNC110 - until the request is sent
        await asyncio.sleep(0)
    one.metadata.reads_fail = True
    return sent


async def test_a_list_of_brokers_from_a_deposed_leader_makes_nobody_dead() -> None:
    async with living() as broker, staying(broker) as epoch:
        broker.metadata.depose()
        rival = BrokerDirectory(broker.metadata.store, clock=SystemClock())
        younger = await rival.register(listeners=ELSEWHERE, rack=None, version="0", broker_id=2)
        with pytest.raises(Unavailable, match="for certain"):
            await epoch.live()
        gone = await epoch.gone([younger.epoch])
        broker.metadata.elect()

        assert gone == frozenset()
        assert await epoch.live() == {epoch.current, younger.epoch}
        assert await epoch.gone([younger.epoch, younger.epoch + 1_000]) == {younger.epoch + 1_000}


async def test_a_list_that_is_fresh_and_records_that_are_not_make_nobody_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    async with living() as broker, staying(broker) as epoch:
        younger = await broker.rival(2)
        list_paths = broker.metadata.list
        broker.metadata.depose()
        broker.metadata.elect()

        async def listed_by_the_leader(start: keys.Key, end: str) -> list[str]:
            paths = await list_paths(start, end)
            broker.metadata._past = {}
            return paths

        monkeypatch.setattr(broker.metadata, "list", listed_by_the_leader)
        gone = await epoch.gone([younger.epoch])
        broker.metadata.elect()

        assert gone == frozenset()


@pytest.mark.parametrize("fault", [Fault.REQUEST_LOST, Fault.REFUSED])
async def test_a_list_without_its_sentinel_proves_nothing(fault: Fault) -> None:
    async with living() as broker, staying(broker) as epoch:
        broker.metadata.all_faults = fault
        gone = await epoch.gone([epoch.current + 1_000])
        broker.metadata.all_faults = None

        assert gone == frozenset()
        assert await epoch.gone([epoch.current + 1_000]) == {epoch.current + 1_000}


async def test_a_sentinel_whose_reply_is_lost_is_one_and_none_stays_behind() -> None:
    async with living() as broker, staying(broker) as epoch:
        broker.metadata.faults[len(broker.metadata.writes)] = Fault.REPLY_LOST
        live = await asyncio.gather(*(epoch.live() for _ in range(5)))
        start, end = keys.brokers_and_sentinels()

        assert set(live) == {frozenset({epoch.current})}
        assert await broker.metadata.list(start, end) == [keys.broker(1).path]


async def test_a_broker_without_a_registration_calls_nobody_dead() -> None:
    async with living() as broker:
        epoch = await broker.lifecycle.begin()
        believed_lost(broker.directory)

        with pytest.raises(Unavailable, match="not registered"):
            await epoch.live()
        assert await epoch.gone([epoch.current + 1]) == frozenset()


async def test_sentinels_are_no_brokers() -> None:
    async with living() as broker:
        await broker.lifecycle.begin()
        session = broker.directory.session
        assert session is not None
        sentinel = Put(keys.broker_sentinel(session.session_id, 99), b"{}", None, session=session.session_id)
        await broker.metadata.write([sentinel])

        assert [record.broker_id for record in await broker.directory.live()] == [1]
        assert (await broker.rival(2)).broker_id == 2
        assert (
            await BrokerDirectory(broker.metadata, clock=SystemClock()).register(
                listeners=ELSEWHERE, rack=None, version="0", broker_id=None
            )
        ).broker_id == 3


async def test_a_store_that_refuses_for_long_is_in_the_log_for_the_first_time_and_for_every_tenth(monkeypatch: pytest.MonkeyPatch) -> None:
    async with living(pause_s=0.0) as broker, staying(broker):

        async def refuse(**_: object) -> Registration:
            raise Unavailable("the store is away")

        register = broker.directory.register
        monkeypatch.setattr(broker.directory, "register", refuse)
        with capture_logs() as logged:
            await broker.lose_session()
            heard = [await broker.hear() for _ in range(1 + 21)]
        monkeypatch.setattr(broker.directory, "register", register)
        while await broker.hear() is not None:
            pass

    assert set(heard) == {"the session was lost", "the store is away"}
    assert [line["attempts"] for line in logged if line["event"] == "register_failed"] == [1, 11, 21]
