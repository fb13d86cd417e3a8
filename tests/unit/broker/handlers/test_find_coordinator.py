import pytest
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator import v6

from broker.handlers import find_coordinator
from tests.unit.broker.handlers.asking import INTERNAL, cluster, error_of
from tests.unit.storage.catalog.faulty import FaultyMetadata


@pytest.mark.parametrize("version", range(4))
async def test_one_key_is_answered_with_this_broker(version: int) -> None:
    key_type = {} if version == 0 else {"key_type": 1}
    async with cluster(broker_id=3) as broker:
        answer = await broker.ask(find_coordinator.handle, load_request_schema(10, version)(key="group", **key_type))

    assert error_of(answer) is ErrorCode.none
    assert (answer.node_id, answer.host, answer.port) == (3, "broker-3", 9003)


@pytest.mark.parametrize("version", [4, 5, 6])
@pytest.mark.parametrize("key_type", [0, 1])
async def test_several_keys_are_answered_one_by_one(version: int, key_type: int) -> None:
    async with cluster() as broker:
        request = load_request_schema(10, version)(key_type=key_type, coordinator_keys=("a", "", "b"))
        answer = await broker.ask(find_coordinator.handle, request, listener=INTERNAL)

    assert [(found.key, found.node_id, found.host, found.port, error_of(found)) for found in answer.coordinators] == [
        (key, 1, "internal", 7, ErrorCode.none) for key in ("a", "", "b")
    ]


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
