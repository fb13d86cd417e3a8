import pytest
from kio.schema.errors import ErrorCode

from broker.handlers.groups import delete_groups
from tests.unit.broker.handlers.asking import cluster, error_of
from tests.unit.broker.handlers.grouped import commit, fetched, member, request_of


@pytest.mark.parametrize("version", range(3))
async def test_groups_without_members_go_with_their_offsets(version: int) -> None:
    async with cluster() as broker:
        await broker.create("t")
        await commit(broker, 9, {0: 1}, group="simple")
        await member(broker)
        answer = await broker.ask(delete_groups.handle, request_of(42, version, groups_names=("simple", "g", "absent")))

        assert [error_of(result) for result in answer.results] == [
            ErrorCode.none,
            ErrorCode.non_empty_group,
            ErrorCode.group_id_not_found,
        ]
        assert await fetched(broker, 9, None, group="simple") == {}


async def test_another_broker_s_group_is_refused() -> None:
    async with cluster() as broker:
        await broker.lose_registration()
        answer = await broker.ask(delete_groups.handle, request_of(42, 2, groups_names=("g",)))

    assert error_of(answer.results[0]) is ErrorCode.not_coordinator
