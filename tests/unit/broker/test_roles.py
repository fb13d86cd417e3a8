"""Whom a broker sends on, and which brokers are named leaders, by their roles."""

from collections.abc import Collection
from dataclasses import dataclass

import pytest

from broker.cluster.leadership import Asker, ClientLeadership, Leadership, PartitionLeadership, SelfLeadership
from broker.cluster.roles import OwnRoles, placement_by_role
from runtime.ids import IdSource
from runtime.telemetry import Telemetry
from storage.catalog.brokers import ALL_ROLES, BrokerDirectory, Endpoint, Role
from storage.catalog.identity import open_cluster
from storage.vocabulary import TopicId
from tests.kit.faulty_metadata import FaultyMetadata, ManualClock

TOPIC = TopicId("00000000-0000-4000-8000-000000000001")
STRATEGIES = [SelfLeadership(), ClientLeadership(), PartitionLeadership()]


@dataclass(frozen=True)
class One:
    broker_id: int
    roles: Collection[Role] = ALL_ROLES
    rack: str | None = None

    def has_role(self, role: Role) -> bool:
        return role in self.roles


WRITERS = [One(1, {Role.PRODUCE, Role.ADMIN}), One(2, {Role.PRODUCE})]
READERS = [One(3, {Role.CONSUME}), One(4, {Role.CONSUME, Role.GROUPS})]


def placed(leadership: Leadership, live: list[One], client_id: str = "app", own_id: int = 1) -> list[list[int]]:
    place = placement_by_role(leadership, Asker(client_id, "10.0.0.1"), live, own_id=own_id)
    return [list(place(TOPIC, partition)) for partition in range(20)]


@pytest.mark.parametrize("leadership", STRATEGIES)
def test_leaders_have_the_role_that_the_client_wants_and_every_broker_is_placed_once(leadership: Leadership) -> None:
    for own_id in (1, 2, 3, 4):
        produced, consumed = (placed(leadership, [*READERS, *WRITERS], client_id, own_id) for client_id in ("app", "app, role=consume"))

        assert {one[0] for one in produced} <= {1, 2}
        assert {one[1] for one in produced} <= {3, 4}, "a replica to read from is the next one"
        assert {one[0] for one in consumed} <= {3, 4}
        assert all(sorted(one) == [1, 2, 3, 4] for one in produced + consumed)


@pytest.mark.parametrize("leadership", STRATEGIES)
def test_without_a_broker_of_the_role_any_is_a_leader(leadership: Leadership) -> None:
    assert {one[0] for one in placed(leadership, READERS, own_id=3)} <= {3, 4}
    assert {one[0] for one in placed(leadership, WRITERS, "role=consume")} <= {1, 2}
    assert placed(leadership, [], own_id=7) == [[7]] * 20


@pytest.mark.parametrize("leadership", STRATEGIES)
def test_brokers_with_all_roles_are_placed_as_the_strategy_places_them(leadership: Leadership) -> None:
    live = [One(1), One(2, rack="b"), One(3)]
    assert placed(leadership, live, "app") == placed(leadership, live, "app")
    assert {len(set(one)) for one in placed(leadership, live)} == {3}


async def test_a_request_is_refused_only_while_another_broker_has_the_role() -> None:
    metadata, clock, telemetry = FaultyMetadata(), ManualClock(), Telemetry()
    await open_cluster(metadata, IdSource(clock=clock), clock)
    own, other = BrokerDirectory(metadata, clock=clock), BrokerDirectory(metadata, clock=clock)
    await own.register(listeners=[Endpoint("P", "h", 1)], rack=None, version="0", broker_id=1, roles={Role.PRODUCE})
    roles = OwnRoles({Role.PRODUCE}, brokers=own, telemetry=telemetry)
    await roles.look()
    alone = roles.refuses(Role.ADMIN, "P")
    await other.register(listeners=[Endpoint("P", "h", 2)], rack=None, version="0", broker_id=2, roles={Role.ADMIN})
    clock.seconds += 2.0
    await roles.look()
    beside = [roles.refuses(role, "P") for role in Role]
    elsewhere = roles.refuses(Role.ADMIN, "OTHER")
    await other.deregister()
    clock.seconds += 2.0
    await roles.look()
    again = roles.refuses(Role.ADMIN, "P")

    assert alone is None
    assert beside == [None, None, None, "this broker has no role admin: ask for metadata, and one that has it"]
    assert again is None
    assert elsewhere is None, "no other broker is reached by that listener"
    value = telemetry.registry.get_sample_value
    assert value("forebay_role_stand_ins_total", {"role": "admin"}) == 3
    assert [value("forebay_role", {"role": role.value}) for role in Role] == [1, 0, 0, 0]
    await metadata.close()
