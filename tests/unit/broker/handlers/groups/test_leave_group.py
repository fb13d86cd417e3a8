import pytest
from kio.schema.errors import ErrorCode

from broker.handlers.groups import leave_group
from tests.unit.broker.handlers.asking import cluster, error_of
from tests.unit.broker.handlers.grouped import join, member, nested, request_of


@pytest.mark.parametrize("version", range(3))
async def test_one_member_leaves(version: int) -> None:
    async with cluster() as broker:
        name = (await member(broker)).member_id
        first = await broker.ask(leave_group.handle, request_of(13, version, group_id="g", member_id=name))
        again = await broker.ask(leave_group.handle, request_of(13, version, group_id="g", member_id=name))
        nameless = await broker.ask(leave_group.handle, request_of(13, version, group_id="", member_id=name))

    assert [error_of(answer) for answer in (first, again, nameless)] == [
        ErrorCode.none,
        ErrorCode.unknown_member_id,
        ErrorCode.invalid_group_id,
    ]


@pytest.mark.parametrize("version", range(3, 6))
async def test_several_members_leave_each_with_its_own_answer(version: int) -> None:
    async with cluster() as broker:
        static = await join(broker, 5, group_instance_id="i")
        members = (
            nested(13, version, "MemberIdentity", member_id="nobody"),
            nested(13, version, "MemberIdentity", member_id="another", group_instance_id="i"),
            nested(13, version, "MemberIdentity", member_id="", group_instance_id="i"),
        )
        answer = await broker.ask(leave_group.handle, request_of(13, version, group_id="g", members=members))

    assert error_of(answer) is ErrorCode.none
    assert [error_of(one) for one in answer.members] == [ErrorCode.unknown_member_id, ErrorCode.fenced_instance_id, ErrorCode.none]
    assert [one.group_instance_id for one in answer.members] == [None, "i", "i"]
    assert static.member_id


async def test_a_broker_without_a_registration_lets_nobody_go() -> None:
    async with cluster() as broker:
        await broker.lose_registration()
        answer = await broker.ask(leave_group.handle, request_of(13, 5, group_id="g", members=()))

    assert error_of(answer) is ErrorCode.not_coordinator
