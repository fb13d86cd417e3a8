import asyncio

import pytest
from kio.schema.errors import ErrorCode

from broker.groups.state import GroupError
from broker.handlers.groups import heartbeat
from broker.limits import GroupLimits
from tests.unit.broker.handlers.asking import Cluster, cluster, error_of
from tests.unit.broker.handlers.grouped import join, member, request_of


async def beat(broker: Cluster, version: int, member_id: str, generation: int = 1, *, group: str = "g", **fields: str) -> ErrorCode:
    request = request_of(12, version, group_id=group, member_id=member_id, generation_id=generation, **fields)
    return error_of(await broker.ask(heartbeat.handle, request))


@pytest.mark.parametrize("version", range(5))
async def test_members_of_the_generation_are_alive_and_others_are_told(version: int) -> None:
    async with cluster() as broker:
        name = (await member(broker)).member_id
        asked = len(broker.metadata.reads)

        assert await beat(broker, version, name) is ErrorCode.none
        assert len(broker.metadata.reads) == asked
        assert await beat(broker, version, name, 0) is ErrorCode.illegal_generation
        assert await beat(broker, version, "nobody") is ErrorCode.unknown_member_id
        assert await beat(broker, version, name, group="") is ErrorCode.invalid_group_id


async def test_a_member_is_told_of_a_rebalance() -> None:
    async with cluster() as broker:
        name = (await member(broker)).member_id
        async with asyncio.TaskGroup() as group:
            joining = group.create_task(join(broker, 3))
            await asyncio.sleep(0)
            error = await beat(broker, 4, name)
            await join(broker, 3, member_id=name)
            await joining

    assert error is ErrorCode.rebalance_in_progress


async def test_a_static_member_that_was_replaced_is_fenced() -> None:
    async with cluster() as broker:
        first = await join(broker, 5, group_instance_id="i")
        async with asyncio.timeout(25):
            await join(broker, 5, group_instance_id="i")
            error = await beat(broker, 4, first.member_id, group_instance_id="i")

    assert error is ErrorCode.fenced_instance_id


async def test_a_broker_without_a_registration_coordinates_nothing() -> None:
    async with cluster() as broker:
        name = (await member(broker)).member_id
        await broker.lose_registration()

        assert await beat(broker, 4, name) is ErrorCode.not_coordinator


async def test_of_a_group_that_is_not_loaded_members_go_on() -> None:
    """As in Kafka. aiokafka gives up for an answer that it does not expect here, and that it is being loaded is one."""
    async with cluster(group_limits=GroupLimits(groups_loaded_max=1)) as broker:
        name = (await member(broker)).member_id
        (await broker.context.parts.groups.find("g")).close(GroupError.COORDINATOR_NOT_AVAILABLE)
        await join(broker, 3, group="other")

        assert await beat(broker, 4, name) is ErrorCode.none
