import asyncio

import pytest
from kio.schema.errors import ErrorCode

from broker.handlers.groups import describe_groups
from tests.unit.broker.handlers.asking import cluster, error_of
from tests.unit.broker.handlers.grouped import commit, join, member, request_of


@pytest.mark.parametrize("version", range(7))
async def test_a_stable_group_is_shown_with_what_its_members_have(version: int) -> None:
    async with cluster() as broker:
        name = (await member(broker)).member_id
        answer = await broker.ask(describe_groups.handle, request_of(15, version, groups=("g",), include_authorized_operations=True))

    (group,) = answer.groups
    assert (error_of(group), group.group_state, group.protocol_type, group.protocol_data) == (ErrorCode.none, "Stable", "consumer", "range")
    (shown,) = group.members
    assert (shown.member_id, shown.client_id, shown.client_host) == (name, "client", "/127.0.0.1")
    assert (shown.member_metadata, shown.member_assignment) == (b"m", b"all")
    if version >= 3:
        assert group.authorized_operations > 0


@pytest.mark.parametrize("version", range(7))
async def test_a_group_that_is_not_there_is_dead(version: int) -> None:
    async with cluster() as broker:
        answer = await broker.ask(describe_groups.handle, request_of(15, version, groups=("absent",), include_authorized_operations=False))

    (group,) = answer.groups
    assert group.group_state == "Dead"
    assert error_of(group) is (ErrorCode.group_id_not_found if version == 6 else ErrorCode.none)


async def test_members_show_nothing_while_they_rebalance_and_simple_groups_have_none() -> None:
    async with cluster() as broker:
        await broker.create("t")
        await join(broker, 3)
        await commit(broker, 9, {0: 1}, group="simple")
        answer = await broker.ask(describe_groups.handle, request_of(15, 6, groups=("g", "simple"), include_authorized_operations=False))

    joining, simple = answer.groups
    assert joining.members[0].member_assignment == b""
    assert (joining.group_state, joining.members[0].member_metadata, joining.protocol_data) == ("CompletingRebalance", b"", "")
    assert (simple.group_state, simple.members, simple.protocol_type) == ("Empty", (), "")


async def test_another_broker_s_group_is_refused() -> None:
    async with cluster() as broker:
        await broker.lose_registration()
        answer = await broker.ask(describe_groups.handle, request_of(15, 6, groups=("g",), include_authorized_operations=False))

    assert error_of(answer.groups[0]) is ErrorCode.not_coordinator


async def test_what_a_member_was_given_is_shown_while_it_is_to_join_again() -> None:
    async with cluster() as broker:
        await member(broker)
        async with asyncio.TaskGroup() as tasks:
            joining = tasks.create_task(join(broker, 3))
            while not any(one.joining for one in (await broker.context.parts.groups.find("g")).group.members.values()):  # noqa: ASYNC110
                await asyncio.sleep(0)
            answer = await broker.ask(describe_groups.handle, request_of(15, 6, groups=("g",), include_authorized_operations=False))
            joining.cancel()

    (group,) = answer.groups
    assert group.group_state == "PreparingRebalance"
    assert sorted(shown.member_assignment for shown in group.members) == [b"", b"all"]
    assert not any(shown.member_metadata for shown in group.members)


async def test_a_group_that_is_named_again_is_described_once() -> None:
    async with cluster() as broker:
        answer = await broker.ask(describe_groups.handle, request_of(15, 6, groups=("g", "h", "g"), include_authorized_operations=False))

    assert [group.group_id for group in answer.groups] == ["g", "h"]
