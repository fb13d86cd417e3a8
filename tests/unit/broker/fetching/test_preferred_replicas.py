import gc
import weakref
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from broker.cluster.leadership import Asker, Candidate, ClientLeadership, Leadership, PartitionLeadership, Question, SelfLeadership
from broker.cluster.roles import ASK_AGAIN_S, PreferredReplicas
from storage.catalog.brokers import BrokerDirectory, Endpoint
from storage.vocabulary import PartitionId, TopicId
from tests.kit.faulty_metadata import FaultyMetadata, ManualClock

PARTITIONS = [PartitionId(TopicId("00000000-0000-4000-8000-000000000001"), number) for number in range(50)]
OWN = 1


@dataclass(eq=False)
class Connection:
    client_id: str | None = "app"
    client_host: str = "10.0.0.1"
    listener: str = "PLAINTEXT"


@dataclass
class Zones:
    """Broker 1 in rack a; 2 and 3 in rack b, 4 in rack c, where it is reached by another listener."""

    metadata: FaultyMetadata
    clock: ManualClock
    directory: BrokerDirectory

    def replicas(self, leadership: Leadership | None = None, *, rack: str | None = "a") -> PreferredReplicas:
        return PreferredReplicas(brokers=self.directory, leadership=leadership or SelfLeadership(), rack=rack, clock=self.clock)


@pytest.fixture
async def zones() -> AsyncIterator[Zones]:
    metadata, clock = FaultyMetadata(), ManualClock()
    directory = BrokerDirectory(metadata, clock=clock)
    for broker_id, rack, listener in ((OWN, "a", "PLAINTEXT"), (2, "b", "PLAINTEXT"), (3, "b", "PLAINTEXT"), (4, "c", "INTERNAL")):
        registering = directory if broker_id == OWN else BrokerDirectory(metadata, clock=clock)
        await registering.register(listeners=[Endpoint(listener, "h", broker_id)], rack=rack, version="0", broker_id=broker_id)
    yield Zones(metadata, clock, directory)
    await metadata.close()


async def test_a_reader_of_another_rack_is_sent_to_a_broker_that_stands_there(zones: Zones) -> None:
    near = await zones.replicas().near("b", Connection())

    assert near is not None
    assert {near(partition) for partition in PARTITIONS} <= {2, 3}


@pytest.mark.parametrize("leadership", [SelfLeadership(), ClientLeadership(), PartitionLeadership()])
async def test_who_is_near_is_among_the_first_replicas(zones: Zones, leadership: Leadership) -> None:
    live = [Candidate(record.broker_id, record.rack) for record in await zones.directory.live() if record.broker_id != 4]
    connection = Connection()
    near = await zones.replicas(leadership).near("b", connection)
    place = leadership.placement(Question(Asker(connection.client_id, connection.client_host), OWN, live))

    assert near is not None
    for partition in PARTITIONS:
        assert near(partition) in place(partition.topic_id, partition.partition)[:2], "two racks, two replicas"


@pytest.mark.parametrize("rack", ["a", "", "nowhere", "c"])
async def test_a_reader_without_a_nearer_broker_that_it_can_reach_stays(zones: Zones, rack: str) -> None:
    assert await zones.replicas().near(rack, Connection()) is None


async def test_a_broker_without_a_rack_sends_readers_to_theirs(zones: Zones) -> None:
    assert await zones.replicas(rack=None).near("b", Connection()) is not None


async def test_who_comes_back_is_served_for_a_while(zones: Zones) -> None:
    replicas, connection = zones.replicas(), Connection()
    sent = await replicas.near("b", connection)
    zones.clock.seconds += ASK_AGAIN_S - 1
    back = await replicas.near("b", connection)
    other_reader = await replicas.near("b", Connection())
    zones.clock.seconds += 1
    again = await replicas.near("b", connection)

    assert back is None
    assert all(near is not None for near in (sent, other_reader, again))


async def test_a_store_that_does_not_answer_sends_nobody_away(zones: Zones) -> None:
    zones.metadata.reads_fail = True

    assert await zones.replicas().near("b", Connection()) is None


async def test_connections_that_are_gone_are_forgotten(zones: Zones) -> None:
    replicas, connection = zones.replicas(), Connection()
    gone = weakref.ref(connection)
    assert await replicas.near("b", connection) is not None
    del connection
    gc.collect()

    assert gone() is None
