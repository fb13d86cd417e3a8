"""When a group is looked at: when something is due in it, and never because others are."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from broker.groups.group import Closed, ConfirmOwnership, LoadedGroup
from broker.groups.state import GroupError, GroupSettings, GroupState, Heartbeat, JoinAnswer, Sync
from broker.limits import GroupLimits
from storage.metadata.port import WriteOp
from tests.kit.coordinating import FIRST, Node, committed, join_of, of_member, simple, stable, world
from tests.kit.faulty_metadata import Fault

TIMEOUT_S = 25.0
SESSION_S = 0.3


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    """Nothing but the timers of groups runs in it."""
    settings = GroupSettings(initial_delay_s=0, session_timeout_s_min=0.1)
    async with world(settings=settings, limits=GroupLimits(lost_check_s=3_600.0)) as made:
        yield await made.node(1)


async def is_in(loaded: LoadedGroup, state: GroupState) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while loaded.group.state is not state:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def beat(joined: JoinAnswer) -> Heartbeat:
    return Heartbeat(token=0, member_id=joined.member_id, instance_id=None, generation=joined.generation)


@pytest.mark.parametrize("instance_id", [None, "static"])
async def test_a_member_whose_session_ends_is_gone_by_then_and_not_before(node: Node, instance_id: str | None) -> None:
    joined = await node.coordinator.join("g", join_of(session_timeout_s=SESSION_S, instance_id=instance_id))
    loaded = await node.coordinator.find("g")
    sync = Sync(
        token=0,
        member_id=joined.member_id,
        instance_id=instance_id,
        generation=joined.generation,
        protocol_type=None,
        protocol=None,
        assignments=(),
    )
    await node.coordinator.sync("g", sync)
    expires_s = loaded.group.members[joined.member_id].expires_s
    await is_in(loaded, GroupState.EMPTY)

    assert node.clock.monotonic_s() >= expires_s


async def test_a_rebalance_goes_on_without_those_that_do_not_come(node: Node) -> None:
    await stable(node, "g", rebalance_timeout_s=SESSION_S, session_timeout_s=60.0)
    async with asyncio.timeout(TIMEOUT_S):
        second = await node.coordinator.join("g", join_of(new_member_id="second", rebalance_timeout_s=SESSION_S, session_timeout_s=60.0))

    assert (second.error, second.generation) == (GroupError.NONE, 2)
    assert list((await node.coordinator.find("g")).group.members) == ["second"]


async def test_an_id_that_nobody_comes_back_with_is_forgotten(node: Node) -> None:
    asked = await node.coordinator.join("g", join_of(knows_member_ids=True, session_timeout_s=SESSION_S))
    loaded = await node.coordinator.find("g")

    assert asked.error is GroupError.MEMBER_ID_REQUIRED
    async with asyncio.timeout(TIMEOUT_S):
        while loaded.group.pending:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_signs_of_life_put_the_end_off_and_set_no_timer(node: Node) -> None:
    joined = await stable(node, "g", session_timeout_s=60.0)
    loaded = await node.coordinator.find("g")
    timer = loaded._record.timer
    handle = timer._handle
    expires_s = loaded.group.members[joined.member_id].expires_s
    for number in range(100):
        await asyncio.sleep(0.01)
        assert await node.coordinator.heartbeat("g", beat(joined)) is GroupError.NONE
        await node.coordinator.commit("g", of_member(joined, {FIRST: committed(number)}))

    assert loaded.group.members[joined.member_id].expires_s > expires_s
    assert timer._handle is handle
    # It goes off when the end was before the signs of life, and finds nothing due.
    timer._look()
    assert loaded.group.state is GroupState.STABLE
    assert timer._handle not in (None, handle)


async def test_groups_without_members_have_no_timer(node: Node) -> None:
    for number in range(100):
        await node.coordinator.commit(f"g{number}", simple({FIRST: committed(1)}))
    loaded = [await node.coordinator.find(f"g{number}") for number in range(100)]

    assert not any(one._record.timer.is_set for one in loaded)
    await stable(node, "g0", session_timeout_s=SESSION_S)
    assert loaded[0]._record.timer.is_set
    await is_in(loaded[0], GroupState.EMPTY)
    await loaded[0].do(ConfirmOwnership(), deadline_s=TIMEOUT_S)
    assert not loaded[0]._record.timer.is_set


async def test_what_came_while_a_write_was_under_way_counts_before_the_time_that_passed(node: Node) -> None:
    joined = await stable(node, "g", session_timeout_s=SESSION_S)
    loaded = await node.coordinator.find("g")
    written = asyncio.Event()

    async def hold(_: Sequence[WriteOp]) -> None:
        await written.wait()

    node.metadata.before_write = hold
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(node.coordinator.commit("g", of_member(joined, {FIRST: committed(1)})))
        heartbeat = tasks.create_task(node.coordinator.heartbeat("g", beat(joined)))
        expires_s = loaded.group.members[joined.member_id].expires_s
        while node.clock.monotonic_s() < expires_s + SESSION_S:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        written.set()

    assert heartbeat.result() is GroupError.NONE
    assert loaded.group.state is GroupState.STABLE
    node.metadata.before_write = None
    await is_in(loaded, GroupState.EMPTY)


async def test_a_group_whose_write_failed_is_let_go_at_once(node: Node) -> None:
    joined = await stable(node, "g", session_timeout_s=SESSION_S)
    failed = await node.coordinator.find("g")
    node.metadata.faults[len(node.metadata.writes)] = Fault.REFUSED
    with pytest.raises(Closed):
        await node.coordinator.commit("g", of_member(joined, {FIRST: committed(1)}))

    assert not failed._record.timer.is_set
    assert node.coordinator._groups == {}
    assert await node.coordinator.find("g") is not failed
