import pytest
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator import v6

from broker.handlers.groups import find_coordinator
from tests.kit.faulty_metadata import FaultyMetadata
from tests.unit.broker.handlers.asking import INTERNAL, cluster, error_of
from tests.unit.broker.handlers.grouped import commit


@pytest.mark.parametrize("version", range(4))
async def test_one_key_is_answered_with_the_only_broker(version: int) -> None:
    key_type = {} if version == 0 else {"key_type": 0}
    async with cluster(broker_id=3) as broker:
        answer = await broker.ask(find_coordinator.handle, load_request_schema(10, version)(key="group", **key_type))

    assert error_of(answer) is ErrorCode.none
    assert (answer.node_id, answer.host, answer.port) == (3, "broker-3", 9003)


@pytest.mark.parametrize("version", [4, 5, 6])
async def test_several_keys_are_answered_one_by_one(version: int) -> None:
    async with cluster() as broker:
        request = load_request_schema(10, version)(key_type=0, coordinator_keys=("a", "", "b"))
        answer = await broker.ask(find_coordinator.handle, request, listener=INTERNAL)

    assert [(found.key, found.node_id, found.host, found.port, error_of(found)) for found in answer.coordinators] == [
        (key, 1, "internal", 7, ErrorCode.none) for key in ("a", "", "b")
    ]


async def test_all_brokers_name_the_same_coordinators_and_each_coordinates_some() -> None:
    groups = tuple(map(str, range(50)))
    async with cluster(broker_id=1) as broker:
        await broker.join(2)
        await broker.join(3)
        request = v6.FindCoordinatorRequest(coordinator_keys=groups)
        answer = await broker.ask(find_coordinator.handle, request)
        again = await broker.ask(find_coordinator.handle, request, client_id="another")

    named = [(found.key, found.node_id) for found in answer.coordinators]
    assert named == [(found.key, found.node_id) for found in again.coordinators]
    assert [key for key, _ in named] == list(groups)
    assert {node_id for _, node_id in named} == {1, 2, 3}
    assert all((found.host, found.port) == (f"broker-{found.node_id}", 9000 + found.node_id) for found in answer.coordinators)


async def test_the_broker_that_holds_a_slot_is_named_though_another_would_win_it() -> None:
    groups = tuple(map(str, range(50)))
    async with cluster(broker_id=1) as broker:
        await broker.join(2)
        before = await broker.ask(find_coordinator.handle, v6.FindCoordinatorRequest(coordinator_keys=groups))
        held = next(found.key for found in before.coordinators if found.node_id == 1)
        await commit(broker, 9, {}, group=held)
        for other in range(3, 9):
            await broker.join(other)
        after = await broker.ask(find_coordinator.handle, v6.FindCoordinatorRequest(coordinator_keys=groups))

    assert {found.key: found.node_id for found in after.coordinators}[held] == 1


async def test_a_coordinator_is_the_same_for_who_asks_by_a_listener_that_does_not_reach_it() -> None:
    groups = tuple(map(str, range(50)))
    async with cluster(broker_id=1) as broker:
        await broker.join(2, listener=INTERNAL)
        request = v6.FindCoordinatorRequest(coordinator_keys=groups)
        internal = await broker.ask(find_coordinator.handle, request, listener=INTERNAL)
        external = await broker.ask(find_coordinator.handle, request)

    for inside, outside in zip(internal.coordinators, external.coordinators, strict=True):
        if inside.node_id == 1:
            assert (outside.node_id, error_of(outside)) == (1, ErrorCode.none)
        else:
            assert (outside.node_id, error_of(outside)) == (-1, ErrorCode.coordinator_not_available)
    assert {inside.node_id for inside in internal.coordinators} == {1, 2}


@pytest.mark.parametrize("version", range(1, 7))
async def test_transactional_ids_are_refused_in_words_and_with_the_error_that_ends_clients_of_that_version(version: int) -> None:
    named = {"key": "t"} if version < 4 else {"coordinator_keys": ("t",)}
    async with cluster() as broker:
        answer = await broker.ask(find_coordinator.handle, load_request_schema(10, version)(key_type=1, **named))
    found = answer if version < 4 else answer.coordinators[0]

    # librdkafka, which asks with v2 at most, would ask again for ever for any other.
    assert error_of(found) is (ErrorCode.transactional_id_authorization_failed if version < 4 else ErrorCode.invalid_request)
    assert found.error_message.startswith("transactions are not served")
    assert (found.node_id, found.host, found.port) == (-1, "", -1)


@pytest.mark.parametrize("key_type", [2, 3, -1])
async def test_key_types_that_are_not_served_are_invalid(key_type: int) -> None:
    async with cluster() as broker:
        answer = await broker.ask(find_coordinator.handle, v6.FindCoordinatorRequest(key_type=key_type, coordinator_keys=("a",)))

    (found,) = answer.coordinators
    assert error_of(found) is ErrorCode.invalid_request
    assert (found.node_id, found.host, found.port) == (-1, "", -1)


async def test_a_listener_without_an_address_has_no_coordinator() -> None:
    async with cluster() as broker:
        answer = await broker.ask(find_coordinator.handle, v6.FindCoordinatorRequest(coordinator_keys=("a",)), listener="ELSEWHERE")

    assert error_of(answer.coordinators[0]) is ErrorCode.coordinator_not_available


async def test_a_store_that_does_not_answer_makes_the_client_ask_again() -> None:
    async with cluster() as broker:
        assert isinstance(broker.metadata, FaultyMetadata)
        broker.metadata.reads_fail = True
        answer = await broker.ask(find_coordinator.handle, v6.FindCoordinatorRequest(coordinator_keys=("a",)))

    assert error_of(answer.coordinators[0]) is ErrorCode.coordinator_not_available
