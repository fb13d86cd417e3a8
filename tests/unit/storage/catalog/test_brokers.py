import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from runtime.clock import SystemClock
from runtime.ids import IdSource
from storage.catalog.brokers import (
    BLOCKS_LISTENER,
    CACHE_AGE_S,
    HTTP_LISTENER,
    LIVE_STALE_S,
    RETURN_GRACE_S,
    BrokerDirectory,
    Endpoint,
    Registration,
    Role,
    able,
    decode_broker,
)
from storage.catalog.identity import open_cluster
from storage.errors import AlreadyExists, Corrupt, IncompatibleFormat, Unavailable
from storage.formats.levels import LEVEL_OF_ROLES
from storage.metadata import keys
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import Delete, Put, Record
from tests.kit.faulty_metadata import Fault, FaultyMetadata, ManualClock, paths_into


def listeners(port: int) -> tuple[Endpoint, ...]:
    return (Endpoint("PLAINTEXT", "broker", port),)


async def register(directory: BrokerDirectory, *, broker_id: int | None = None, port: int = 9092) -> Registration:
    return await directory.register(listeners=listeners(port), rack="a", version="0.1", broker_id=broker_id)


@pytest.fixture
async def metadata() -> AsyncIterator[FaultyMetadata]:
    metadata = FaultyMetadata()
    yield metadata
    await metadata.close()


def event_of_first_read(metadata: FaultyMetadata) -> asyncio.Event:
    event = asyncio.Event()

    async def after_read() -> None:
        event.set()

    metadata.after_read = after_read
    return event


async def lose_session(directory: BrokerDirectory) -> None:
    assert directory._session is not None
    await directory._session.close()
    await asyncio.sleep(0)


async def live_ids(directory: BrokerDirectory) -> list[int]:
    return [record.broker_id for record in await directory.live()]


async def test_ids_are_assigned_from_one_on_and_gaps_are_filled(metadata: FaultyMetadata) -> None:
    directories = [BrokerDirectory(metadata, clock=ManualClock()) for _ in range(3)]
    assert [(await register(directory)).broker_id for directory in directories] == [1, 2, 3]

    await directories[1].deregister()

    assert (await register(BrokerDirectory(metadata, clock=ManualClock()))).broker_id == 2


@pytest.mark.parametrize("seed", range(20))
async def test_brokers_that_start_together_get_different_ids(seed: int) -> None:
    metadata = FaultyMetadata(chaos=random.Random(seed))

    registrations = await asyncio.gather(*(register(BrokerDirectory(metadata, clock=ManualClock())) for _ in range(5)))

    assert sorted(registration.broker_id for registration in registrations) == [1, 2, 3, 4, 5]
    assert len({registration.epoch for registration in registrations}) == 5
    await metadata.close()


async def test_the_epoch_is_the_version_of_the_record(metadata: FaultyMetadata) -> None:
    registration = await register(BrokerDirectory(metadata, clock=ManualClock()), broker_id=7)

    (record,) = await metadata.get_many([keys.broker(7)])
    assert record is not None
    assert registration == Registration(7, record.version)


async def test_registering_again_gives_a_greater_epoch(metadata: FaultyMetadata) -> None:
    directory = BrokerDirectory(metadata, clock=ManualClock())
    first = await register(directory, broker_id=7)

    second = await register(directory, broker_id=7)

    assert second.broker_id == 7
    assert second.epoch > first.epoch


async def test_registering_again_takes_the_record_over_without_a_gap(metadata: FaultyMetadata) -> None:
    changes: list[str] = []
    directory = BrokerDirectory(metadata, clock=ManualClock())
    await register(directory, broker_id=7)
    await asyncio.sleep(0)
    metadata.subscribe(paths_into(changes))

    again = await register(directory, broker_id=7)
    await asyncio.sleep(0.01)

    (record,) = await metadata.get_many([keys.broker(7)])
    assert record is not None
    assert record.version == again.epoch
    assert changes == [keys.broker(7).path], "one put, and no deletion before it"


async def test_an_id_that_another_broker_holds_is_refused_with_its_address(metadata: FaultyMetadata) -> None:
    await register(BrokerDirectory(metadata, clock=ManualClock()), broker_id=3, port=9092)
    late = BrokerDirectory(metadata, clock=ManualClock())

    with pytest.raises(AlreadyExists, match=r"broker\.id 3 is taken by the live broker at PLAINTEXT://broker:9092\. Set another"):
        await register(late, broker_id=3, port=9093)

    assert await live_ids(late) == [3]


async def test_an_id_that_an_earlier_life_of_the_broker_holds_is_waited_for(metadata: FaultyMetadata) -> None:
    earlier = BrokerDirectory(metadata, clock=ManualClock())
    old = await register(earlier, broker_id=3)
    holder_was_read = event_of_first_read(metadata)
    waiting = asyncio.get_running_loop().create_task(register(BrokerDirectory(metadata, clock=ManualClock()), broker_id=3))
    await asyncio.wait_for(holder_was_read.wait(), timeout=25)

    await earlier.deregister()

    assert (await waiting).epoch > old.epoch


async def test_an_earlier_life_that_does_not_end_is_another_broker(metadata: FaultyMetadata) -> None:
    await register(BrokerDirectory(metadata, clock=ManualClock()), broker_id=3)
    clock = ManualClock()
    holder_was_read = event_of_first_read(metadata)
    waiting = asyncio.get_running_loop().create_task(register(BrokerDirectory(metadata, clock=clock), broker_id=3))
    await asyncio.wait_for(holder_was_read.wait(), timeout=25)

    clock.seconds += 13

    with pytest.raises(AlreadyExists, match="taken"):
        await waiting


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.REQUEST_LOST, Fault.REPLY_LOST])
async def test_registration_survives_any_fault_of_its_write(metadata: FaultyMetadata, fault: Fault) -> None:
    metadata.faults[0] = fault
    directory = BrokerDirectory(metadata, clock=ManualClock())

    registration = await register(directory)

    (record,) = await metadata.get_many([keys.broker(1)])
    assert record is not None
    assert registration == Registration(1, record.version)
    assert await live_ids(directory) == [1]


async def test_a_registration_that_arrives_late_does_not_count(metadata: FaultyMetadata) -> None:
    metadata.faults[0] = Fault.LATE
    directory = BrokerDirectory(metadata, clock=ManualClock())
    await register(directory)
    await directory.deregister()

    await metadata.deliver()

    assert await live_ids(BrokerDirectory(metadata, clock=ManualClock())) == []


async def test_who_has_deregistered_names_the_others_and_itself_only_when_it_is_alone(metadata: FaultyMetadata) -> None:
    clock = ManualClock()
    leaving, other = BrokerDirectory(metadata, clock=clock), BrokerDirectory(metadata, clock=clock)
    await register(leaving)
    await register(other)
    await leaving.deregister()
    with_another = await live_ids(leaving)
    await other.deregister()
    clock.seconds += CACHE_AGE_S

    assert with_another == [2]
    assert await live_ids(leaving) == [1]
    assert leaving.session is None


async def test_a_registration_that_fails_leaves_no_session_behind(metadata: FaultyMetadata) -> None:
    metadata.faults[0] = Fault.REPLY_LOST
    metadata.reads_fail = True
    directory = BrokerDirectory(metadata, clock=ManualClock())

    with pytest.raises(Unavailable):
        await register(directory, broker_id=1)

    metadata.reads_fail = False
    assert await live_ids(directory) == []


async def test_live_brokers_come_by_id_with_what_they_announced(metadata: FaultyMetadata) -> None:
    first, second = BrokerDirectory(metadata, clock=ManualClock()), BrokerDirectory(metadata, clock=ManualClock())
    await register(second, broker_id=12, port=2)
    await register(first, broker_id=2, port=1)

    live = await first.live()

    assert [record.broker_id for record in live] == [2, 12]
    assert [record.endpoint("PLAINTEXT") for record in live] == [Endpoint("PLAINTEXT", "broker", 1), Endpoint("PLAINTEXT", "broker", 2)]
    assert live[0].endpoint("SSL") is None
    assert (live[0].rack, live[0].version, live[0].started_at_ms) == ("a", "0.1", 1_000_000)


async def test_a_broker_sees_itself_while_it_is_registered_even_when_its_record_is_not_there(metadata: FaultyMetadata) -> None:
    directory = BrokerDirectory(metadata, clock=ManualClock())
    await register(directory, broker_id=5)
    await register(BrokerDirectory(metadata, clock=ManualClock()), broker_id=9)
    await metadata.store.write([Delete(keys.broker(5))])

    assert await live_ids(directory) == [5, 9]


async def test_a_broker_that_lost_its_registration_sees_the_others_only(metadata: FaultyMetadata) -> None:
    directory = BrokerDirectory(metadata, clock=ManualClock())
    await register(directory, broker_id=5)
    await register(BrokerDirectory(metadata, clock=ManualClock()), broker_id=9)
    seen_before = await live_ids(directory)
    await lose_session(directory)

    assert (seen_before, await live_ids(directory)) == ([5, 9], [9])
    assert directory.own_id == 5
    assert not directory.is_registered


async def test_a_broker_that_lost_its_id_to_another_sees_that_one(metadata: FaultyMetadata) -> None:
    directory = BrokerDirectory(metadata, clock=ManualClock())
    await register(directory, broker_id=5, port=1)
    await lose_session(directory)
    await register(BrokerDirectory(metadata, clock=ManualClock()), broker_id=5, port=2)

    assert [record.endpoint("PLAINTEXT") for record in await directory.live()] == [Endpoint("PLAINTEXT", "broker", 2)]


async def test_a_broker_that_lost_its_registration_and_knows_of_no_other_sees_itself(metadata: FaultyMetadata) -> None:
    directory = BrokerDirectory(metadata, clock=ManualClock())
    await register(directory, broker_id=5)
    await lose_session(directory)

    assert await live_ids(directory) == [5]


async def listed_ids(directory: BrokerDirectory) -> list[int]:
    return [record.broker_id for record in directory.listed(await directory.live())]


async def test_brokers_that_lost_the_store_together_are_listed_until_each_had_time_to_return(metadata: FaultyMetadata) -> None:
    clock = ManualClock()
    first, second = BrokerDirectory(metadata, clock=clock), BrokerDirectory(metadata, clock=clock)
    await register(first, broker_id=5, port=1)
    await register(second, broker_id=9, port=2)
    before = await listed_ids(first), await listed_ids(second)
    await lose_session(first)
    await lose_session(second)
    clock.seconds += CACHE_AGE_S
    neither = await listed_ids(first), await listed_ids(second)
    await register(second, broker_id=9, port=2)
    clock.seconds += CACHE_AGE_S
    one = await listed_ids(first), await listed_ids(second), await live_ids(first), await live_ids(second)
    await register(first, broker_id=5, port=1)
    clock.seconds += CACHE_AGE_S

    assert before == neither == ([5, 9], [5, 9])
    assert one == ([5, 9], [5, 9], [9], [9]), "to be chosen for anything a broker has to be registered"
    assert await listed_ids(first) == await live_ids(first) == [5, 9], "each once"


@pytest.mark.parametrize("registers", [True, False], ids=["registered_again", "not_registered_yet"])
async def test_a_broker_that_does_not_return_from_an_outage_is_listed_no_longer(metadata: FaultyMetadata, *, registers: bool) -> None:
    clock = ManualClock()
    first, second = BrokerDirectory(metadata, clock=clock), BrokerDirectory(metadata, clock=clock)
    await register(first, broker_id=5, port=1)
    await register(second, broker_id=9, port=2)
    await listed_ids(first)
    await lose_session(first)
    await lose_session(second)
    clock.seconds += CACHE_AGE_S
    await listed_ids(first)
    if registers:
        await register(first, broker_id=5, port=1)
    clock.seconds += RETURN_GRACE_S - 0.1
    waited_for = await listed_ids(first)
    clock.seconds += 0.2

    assert (waited_for, await listed_ids(first)) == ([5, 9], [5])


async def test_a_broker_that_leaves_by_itself_is_listed_no_longer_by_anybody(metadata: FaultyMetadata) -> None:
    clock = ManualClock()
    first, second = BrokerDirectory(metadata, clock=clock), BrokerDirectory(metadata, clock=clock)
    await register(first, broker_id=5, port=1)
    await register(second, broker_id=9, port=2)
    await listed_ids(first)
    await listed_ids(second)
    await second.deregister()
    clock.seconds += CACHE_AGE_S

    assert (await listed_ids(first), await listed_ids(second)) == ([5], [5])


async def test_who_was_there_before_a_second_outage_is_learned_after_the_first(metadata: FaultyMetadata) -> None:
    clock = ManualClock()
    first, second = BrokerDirectory(metadata, clock=clock), BrokerDirectory(metadata, clock=clock)
    await register(first, broker_id=5, port=1)
    await listed_ids(first)
    await lose_session(first)
    await register(first, broker_id=5, port=1)
    await register(second, broker_id=9, port=2)
    clock.seconds += RETURN_GRACE_S
    with_another = await listed_ids(first)
    await lose_session(first)
    await lose_session(second)
    await register(first, broker_id=5, port=1)
    clock.seconds += CACHE_AGE_S

    assert (with_another, await listed_ids(first), await live_ids(first)) == ([5, 9], [5, 9], [5])


async def test_while_the_store_is_away_the_last_list_is_given_for_a_minute(metadata: FaultyMetadata) -> None:
    clock = ManualClock()
    directory = BrokerDirectory(metadata, clock=clock)
    await register(directory, broker_id=5)
    await register(BrokerDirectory(metadata, clock=clock), broker_id=9)
    await live_ids(directory)
    await lose_session(directory)
    metadata.reads_fail = True

    clock.seconds += LIVE_STALE_S
    assert await live_ids(directory) == [5, 9], "nobody can say that the others live: this one does"

    clock.seconds += 0.1
    with pytest.raises(Unavailable):
        await directory.live()


async def test_a_list_that_was_never_read_is_not_invented(metadata: FaultyMetadata) -> None:
    directory = BrokerDirectory(metadata, clock=ManualClock())
    await register(directory, broker_id=5)
    metadata.reads_fail = True

    with pytest.raises(Unavailable):
        await directory.live()


async def test_the_list_is_cached_for_a_second_and_dropped_on_a_hint(metadata: FaultyMetadata) -> None:
    clock = ManualClock()
    directory = BrokerDirectory(metadata, clock=clock)
    await register(directory)
    await asyncio.sleep(0)
    await directory.live()
    scans = metadata.scans

    await directory.live()
    assert metadata.scans == scans

    clock.seconds += CACHE_AGE_S
    await directory.live()
    assert metadata.scans == scans + 1

    await register(BrokerDirectory(metadata, clock=clock), port=2)
    await asyncio.sleep(0)
    assert await live_ids(directory) == [1, 2]


async def test_the_list_that_was_read_last_is_given_without_a_request(metadata: FaultyMetadata) -> None:
    clock = ManualClock()
    directory = BrokerDirectory(metadata, clock=clock)
    assert directory.last_seen() == []
    await register(directory)
    assert [broker.broker_id for broker in directory.last_seen()] == [1], "itself, as it knows of no other"
    await register(BrokerDirectory(metadata, clock=clock), port=2)
    await directory.live()
    scans, clock.seconds = metadata.scans, clock.seconds + 10 * LIVE_STALE_S

    assert [broker.broker_id for broker in directory.last_seen()] == [1, 2]
    assert metadata.scans == scans
    await directory.deregister()
    assert [broker.broker_id for broker in directory.last_seen()] == [2]


@pytest.mark.parametrize("name", [HTTP_LISTENER, BLOCKS_LISTENER])
async def test_an_address_where_kafka_is_not_spoken_makes_no_other_broker(metadata: FaultyMetadata, name: str) -> None:
    clock = ManualClock()
    directory = BrokerDirectory(metadata, clock=clock)
    await directory.register(listeners=(*listeners(1), Endpoint(name, "broker", 8070)), rack="a", version="0.1", broker_id=7)
    [broker] = await directory.live()

    assert broker.endpoint(name) == Endpoint(name, "broker", 8070)
    assert broker.kafka_listeners == listeners(1)


async def test_concurrent_questions_share_a_scan() -> None:
    metadata = FaultyMetadata(chaos=random.Random(2))
    directory = BrokerDirectory(metadata, clock=ManualClock())

    await asyncio.gather(*(directory.live() for _ in range(20)))

    assert metadata.scans <= 2


async def test_the_loss_of_the_session_is_announced_and_the_others_see_it() -> None:
    clock = SystemClock()
    store = MemoryMetadataStore(clock=clock)
    other = store.client()
    directory = BrokerDirectory(store, clock=clock, session_timeout_ms=2_000)
    await register(directory)
    store.crash()

    await directory.wait_lost()

    assert await live_ids(BrokerDirectory(other, clock=clock)) == []


async def test_a_broker_of_a_newer_format_is_not_misread(metadata: FaultyMetadata) -> None:
    await metadata.write([Put(keys.broker(1), b'{"fmt":3}', None)])

    with pytest.raises(IncompatibleFormat):
        await BrokerDirectory(metadata, clock=ManualClock()).live()


def test_an_endpoint_is_written_as_kafka_writes_it() -> None:
    assert str(Endpoint("PLAINTEXT", "::1", 9092)) == "PLAINTEXT://[::1]:9092"


async def with_roles(metadata: FaultyMetadata, *roles: Role, port: int = 9092, level: int = LEVEL_OF_ROLES) -> BrokerDirectory:
    clock = ManualClock()
    await open_cluster(metadata, IdSource(clock=clock), clock, level_max=level)
    directory = BrokerDirectory(metadata, clock=clock)
    addresses = listeners(port) if port else ()
    await directory.register(listeners=addresses, rack=None, version="0.1", broker_id=None, roles=roles)
    return directory


async def test_the_record_of_a_broker_with_all_roles_is_what_older_releases_wrote(metadata: FaultyMetadata) -> None:
    await with_roles(metadata, *Role)
    await with_roles(metadata, Role.CONSUME, port=9093)
    whole, fewer = await metadata.get_many([keys.broker(1), keys.broker(2)])

    assert whole is not None
    assert fewer is not None
    assert (b"roles" in whole.value, decode_broker(whole).fmt) == (False, 1)
    assert (b'"roles":["consume"]' in fewer.value, decode_broker(fewer).fmt) == (True, 2)
    assert [role for role in Role if decode_broker(fewer).has_role(role)] == [Role.CONSUME]


async def test_fewer_roles_wait_for_their_format_level(metadata: FaultyMetadata) -> None:
    with pytest.raises(IncompatibleFormat, match=r"needs format level 4, and this cluster is at 3: .* run: forebay cluster upgrade"):
        await with_roles(metadata, Role.PRODUCE, level=LEVEL_OF_ROLES - 1)

    assert await with_roles(metadata, *Role, level=LEVEL_OF_ROLES - 1)


async def test_a_writer_without_an_address_is_no_broker_to_others_and_its_epoch_lives(metadata: FaultyMetadata) -> None:
    broker = await with_roles(metadata, *Role)
    writer = await with_roles(metadata, Role.PRODUCE, port=0)

    assert await live_ids(broker) == [1]
    assert writer.registered_epoch in await broker.epochs_now()


async def test_if_no_broker_has_a_role_all_of_them_have_it(metadata: FaultyMetadata) -> None:
    directory = await with_roles(metadata, Role.PRODUCE, Role.CONSUME)
    await with_roles(metadata, Role.CONSUME, Role.ADMIN, port=9093)
    live = await directory.live()

    named = {role: [broker.broker_id for broker in able(live, role)] for role in Role}
    assert named == {Role.PRODUCE: [1], Role.CONSUME: [1, 2], Role.ADMIN: [2], Role.GROUPS: [1, 2]}
    assert able([], Role.GROUPS) == []


@pytest.mark.parametrize(("fmt", "roles"), [(1, b',"roles":["produce"]'), (2, b""), (2, b',"roles":[]')])
def test_a_record_whose_roles_and_format_contradict_is_damaged(fmt: int, roles: bytes) -> None:
    text = b'{"fmt":%d,"broker_id":1,"listeners":[],"rack":null,"version":"0","started_at_ms":1,"session_id":1%s}' % (fmt, roles)
    with pytest.raises(Corrupt, match="contradict"):
        decode_broker(Record("llog/brokers/0000000001", text, 1))
