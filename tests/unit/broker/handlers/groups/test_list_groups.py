import pytest
from kio.schema.errors import ErrorCode

from broker.cluster.leadership import slot_of
from broker.handlers.groups import list_groups
from storage.metadata.keys import GroupKeys
from storage.metadata.port import Put
from tests.unit.broker.handlers.asking import Cluster, cluster, error_of
from tests.unit.broker.handlers.grouped import commit, member, request_of


async def listed(broker: Cluster, version: int, **filters: tuple[str, ...]) -> list[str]:
    answer = await broker.ask(list_groups.handle, request_of(16, version, **filters))
    assert error_of(answer) is ErrorCode.none
    return [group.group_id for group in answer.groups]


@pytest.mark.parametrize("version", range(6))
async def test_groups_with_and_without_members_are_listed(version: int) -> None:
    async with cluster() as broker:
        await broker.create("t")
        await member(broker)
        await commit(broker, 9, {0: 1}, group="simple")
        answer = await broker.ask(list_groups.handle, request_of(16, version))

    assert [(group.group_id, group.protocol_type) for group in answer.groups] == [("g", "consumer"), ("simple", "")]
    if version >= 4:
        assert [group.group_state for group in answer.groups] == ["Stable", "Empty"]
    if version == 5:
        assert {group.group_type for group in answer.groups} == {"classic"}


async def test_states_and_types_filter() -> None:
    async with cluster() as broker:
        await broker.create("t")
        await member(broker)
        await commit(broker, 9, {0: 1}, group="simple")

        assert await listed(broker, 4, states_filter=("stable", "Dead")) == ["g"]
        assert await listed(broker, 5, states_filter=("Empty",), types_filter=("Classic",)) == ["simple"]
        assert await listed(broker, 5, types_filter=("consumer",)) == []


async def test_a_group_that_cannot_be_read_does_not_hide_the_others() -> None:
    async with cluster() as broker:
        await broker.create("t")
        await commit(broker, 9, {0: 1}, group="simple")
        await broker.metadata.write([Put(GroupKeys("broken", slot_of("broken")).group, b"nonsense", None)])

        assert await listed(broker, 5) == ["simple"]


async def test_a_store_that_does_not_answer_makes_the_client_ask_again() -> None:
    async with cluster() as broker:
        broker.metadata.reads_fail = True
        answer = await broker.ask(list_groups.handle, request_of(16, 5))

    assert error_of(answer) is ErrorCode.coordinator_not_available
