import asyncio

import pytest
from kio.schema.errors import ErrorCode

from tests.unit.broker.handlers.asking import cluster, error_of
from tests.unit.broker.handlers.grouped import join, member


@pytest.mark.parametrize("version", range(4))
async def test_an_old_client_becomes_a_member_at_once(version: int) -> None:
    async with cluster() as broker:
        answer = await join(broker, version)

    assert error_of(answer) is ErrorCode.none
    assert (answer.generation_id, answer.protocol_name, answer.leader) == (1, "range", answer.member_id)
    assert [one.member_id for one in answer.members] == [answer.member_id]


@pytest.mark.parametrize("version", range(4, 10))
async def test_a_newer_client_is_given_a_member_id_first(version: int) -> None:
    async with cluster() as broker:
        first = await join(broker, version)
        answer = await join(broker, version, member_id=first.member_id)

    assert error_of(first) is ErrorCode.member_id_required
    assert first.member_id.startswith("client-")
    assert (error_of(answer), answer.member_id, answer.generation_id) == (ErrorCode.none, first.member_id, 1)


@pytest.mark.parametrize("version", range(5, 10))
async def test_a_static_member_is_named_by_its_instance_id(version: int) -> None:
    async with cluster() as broker:
        answer = await join(broker, version, group_instance_id="i")

    assert error_of(answer) is ErrorCode.none
    assert [one.group_instance_id for one in answer.members] == ["i"]


@pytest.mark.parametrize("version", range(10))
async def test_what_is_wrong_is_refused_in_every_version(version: int) -> None:
    async with cluster() as broker:
        answers = [
            await join(broker, version, group=""),
            await join(broker, version, session_timeout_ms=5_999),
            await join(broker, version, member_id="nobody"),
            await join(broker, version, protocols=()),
        ]

    assert [error_of(answer) for answer in answers] == [
        ErrorCode.invalid_group_id,
        ErrorCode.invalid_session_timeout,
        ErrorCode.unknown_member_id,
        ErrorCode.inconsistent_group_protocol,
    ]


async def test_another_protocol_type_does_not_fit() -> None:
    async with cluster() as broker:
        await member(broker)
        answer = await join(broker, 3, protocol_type="connect")

    assert error_of(answer) is ErrorCode.inconsistent_group_protocol


async def test_a_group_of_another_broker_is_refused() -> None:
    async with cluster() as broker:
        await broker.lose_registration()
        answer = await join(broker)

    assert error_of(answer) is ErrorCode.not_coordinator


async def test_a_store_that_does_not_answer_makes_the_client_look_again() -> None:
    async with cluster() as broker:
        broker.metadata.reads_fail = True
        answer = await join(broker)

    assert error_of(answer) is ErrorCode.coordinator_not_available


async def test_a_join_waits_for_the_members_there_are() -> None:
    async with cluster() as broker:
        first = await member(broker)
        async with asyncio.TaskGroup() as group:
            second = group.create_task(join(broker, 3))
            await asyncio.sleep(0)
            again = group.create_task(join(broker, 3, member_id=first.member_id))

    assert second.result().generation_id == again.result().generation_id == 2
    assert len(again.result().members) == 2
