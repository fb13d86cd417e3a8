import pytest
from kio.schema.errors import ErrorCode

from broker.groups.state import GroupError
from broker.handlers.groups import sync_group
from broker.limits import GroupLimits
from tests.unit.broker.handlers.asking import cluster, error_of
from tests.unit.broker.handlers.grouped import join, request_of, sync

NAMED = {"protocol_type": "consumer", "protocol_name": "range"}


@pytest.mark.parametrize("version", range(6))
async def test_the_leader_gets_what_it_gave_itself(version: int) -> None:
    async with cluster() as broker:
        joined = await join(broker, 3)
        answer = await sync(broker, version, joined, {joined.member_id: b"mine"})

    assert (error_of(answer), answer.assignment) == (ErrorCode.none, b"mine")
    if version == 5:
        assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")


@pytest.mark.parametrize("version", range(6))
async def test_who_does_not_belong_there_is_refused(version: int) -> None:
    async with cluster() as broker:
        joined = await join(broker, 3)
        stale = await sync(broker, version, joined, {}, generation=0)
        nobody = await broker.ask(
            sync_group.handle, request_of(14, version, group_id="g", member_id="nobody", generation_id=1, assignments=(), **NAMED)
        )
        nameless = await broker.ask(
            sync_group.handle, request_of(14, version, group_id="", member_id="nobody", generation_id=1, assignments=(), **NAMED)
        )

    assert error_of(stale) is ErrorCode.illegal_generation
    assert error_of(nobody) is ErrorCode.unknown_member_id
    assert error_of(nameless) is ErrorCode.invalid_group_id


async def test_another_broker_s_group_is_refused() -> None:
    async with cluster() as broker:
        joined = await join(broker, 3)
        await broker.lose_registration()
        answer = await sync(broker, 5, joined, {})

    assert error_of(answer) is ErrorCode.not_coordinator


@pytest.mark.parametrize("missing", ["protocol_type", "protocol_name"])
async def test_who_does_not_name_the_protocol_is_refused_before_anything_else(missing: str) -> None:
    async with cluster() as broker:
        named = NAMED | {missing: None}
        answer = await broker.ask(
            sync_group.handle, request_of(14, 5, group_id="", member_id="nobody", generation_id=1, assignments=(), **named)
        )

    assert error_of(answer) is ErrorCode.inconsistent_group_protocol


async def test_of_a_group_that_is_not_loaded_for_want_of_room_members_are_told_to_join_again() -> None:
    """Java's consumers give up for an answer that they do not expect here, and that it is being loaded is one."""
    async with cluster(group_limits=GroupLimits(groups_loaded_max=1)) as broker:
        joined = await join(broker, 3)
        (await broker.context.parts.groups.find("g")).close(GroupError.COORDINATOR_NOT_AVAILABLE)
        await join(broker, 3, group="other")
        answer = await sync(broker, 5, joined, {joined.member_id: b"mine"})

    assert error_of(answer) is ErrorCode.rebalance_in_progress
