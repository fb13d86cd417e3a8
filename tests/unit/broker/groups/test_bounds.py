"""How many groups, and how much work of one, a coordinator keeps; what members hold is in test_memory.py."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import structlog.testing

from broker.groups.coordinator import ByShard, Coordinator
from broker.groups.group import Closed
from broker.groups.memory import REFUSED
from broker.groups.state import GroupError, GroupSettings, Heartbeat, JoinAnswer, Leave
from broker.limits import GroupLimits
from storage.limits import KIB
from storage.metadata.port import Record
from storage.vocabulary import PartitionId
from tests.kit.coordinating import FIRST, TOPIC, Node, committed, join_of, simple, stable, world

TIMEOUT_S = 25.0


def heartbeat_of(joined: JoinAnswer) -> Heartbeat:
    return Heartbeat(token=0, member_id=joined.member_id, instance_id=None, generation=joined.generation)


def loaded_of(node: Node) -> int:
    return len(node.coordinator._groups)


async def outcomes(node: Node, names: list[str]) -> list[GroupError]:
    """NONE for each of these groups that could be loaded."""

    async def find(name: str) -> GroupError:
        try:
            await node.coordinator.find(name)
        except Closed as closed:
            return closed.error
        return GroupError.NONE

    return await asyncio.gather(*(find(name) for name in names))


async def test_a_group_more_than_may_be_loaded_is_to_come_again_and_finds_room_when_the_members_of_another_left() -> None:
    async with world(limits=GroupLimits(groups_loaded_max=3)) as made:
        node = await made.node(1)
        joined = [await stable(node, f"g{number}") for number in range(3)]
        with structlog.testing.capture_logs() as logged:
            refused = await outcomes(node, ["more"])
        await node.coordinator.leave("g0", Leave(token=0, members=((joined[0].member_id, None),)))
        taken = await outcomes(node, ["more"])

        assert (refused, taken) == ([GroupError.COORDINATOR_LOAD_IN_PROGRESS], [GroupError.NONE])
        (line,) = [line for line in logged if line["event"] == "group_member_refused"]
        assert line["bound"] == "groups"
        assert "groups.memory_bytes" not in line["fix"], "it would not help"
        assert node.telemetry.registry.get_sample_value(REFUSED.name, {"bound": "groups"}) == 1
        assert loaded_of(node) == 3


async def test_groups_whose_members_are_silent_make_room_long_before_their_sessions_end_and_are_there_when_they_speak() -> None:
    limits = GroupLimits(groups_loaded_max=3, look_for_silent_s=0.0, members_silent_s=5.0)
    async with world(limits=limits) as made:
        node = await made.node(1)
        joined = [await stable(node, f"g{number}", session_timeout_s=1_800.0) for number in range(3)]
        assert await outcomes(node, ["more"]) == [GroupError.COORDINATOR_LOAD_IN_PROGRESS]
        await asyncio.sleep(limits.members_silent_s + 0.001)
        assert await outcomes(node, ["more"]) == [GroupError.NONE]
        assert loaded_of(node) <= 3
        left = [await node.coordinator.heartbeat(f"g{number}", heartbeat_of(answer)) for number, answer in enumerate(joined)]

        assert left == [GroupError.NONE] * 3


async def test_groups_that_are_loaded_at_the_same_time_hold_no_more_than_all_may_and_one_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(settings=GroupSettings(initial_delay_s=0, memory_bytes_max=256 * KIB)) as made:
        first = await made.node(1)
        names = [f"g{number}" for number in range(8)]
        for name in names:
            offsets = {PartitionId(TOPIC, number): committed(number, "x" * 100) for number in range(200)}
            assert await first.coordinator.commit(name, simple(offsets)) is GroupError.NONE
        first.coordinator._close_all(list(first.coordinator._groups))
        held: list[int] = []
        scan = first.metadata.range_scan

        async def slowly(*asked: object) -> AsyncIterator[Record]:
            async for record in scan(*asked):
                held.append(first.coordinator._memory.held_bytes)
                await asyncio.sleep(0)
                yield record

        monkeypatch.setattr(first.metadata, "range_scan", slowly, raising=False)
        found = await outcomes(first, names)
        again = [await outcomes(first, [name]) for name in names]

        assert GroupError.COORDINATOR_LOAD_IN_PROGRESS in found
        assert GroupError.NONE in found
        assert 128 * KIB < max(held) < 512 * KIB
        assert again == [[GroupError.NONE]] * len(names)
        first.coordinator._close_all(list(first.coordinator._groups))
        assert first.coordinator._memory.held_bytes == 0


async def test_groups_that_nobody_is_in_make_room_so_that_any_number_is_served() -> None:
    async with world(limits=GroupLimits(groups_loaded_max=3)) as made:
        node = await made.node(1)
        for number in range(20):
            assert await node.coordinator.commit(f"g{number}", simple({FIRST: committed(number)})) is GroupError.NONE
            assert loaded_of(node) <= 3

        assert [(await node.coordinator.checked(f"g{number}")).stored.offset(FIRST) for number in range(20)] == [
            committed(number) for number in range(20)
        ]


async def test_groups_that_are_loaded_at_the_same_time_are_no_more_than_may_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(limits=GroupLimits(groups_loaded_max=3)) as made:
        node = await made.node(1)
        for number in range(2):
            await stable(node, f"g{number}")

        async def later() -> None:
            await asyncio.sleep(0.01)

        node.metadata.after_read = later
        # Whoever joins one of these keeps it: they are not let go again for the next.
        monkeypatch.setattr(Coordinator, "_let_go", lambda _self: None)
        found = await outcomes(node, [f"more-{number}" for number in range(20)])

        assert loaded_of(node) == 3
        assert sorted(found) == [GroupError.NONE, *[GroupError.COORDINATOR_LOAD_IN_PROGRESS] * 19]


async def test_more_jobs_than_may_wait_for_a_write_of_their_group_are_to_come_again() -> None:
    async with world(limits=GroupLimits(jobs_max=5)) as made:
        node = await made.node(1)
        await node.coordinator.commit("g", simple({FIRST: committed(0)}))
        node.metadata.muted = set(range(4))
        answered: dict[int, GroupError] = {}

        async def commit(number: int) -> None:
            try:
                answered[number] = await node.coordinator.commit("g", simple({FIRST: committed(number)}))
            except Closed as closed:
                answered[number] = closed.error

        async with asyncio.timeout(TIMEOUT_S), asyncio.TaskGroup() as clients:
            for number in range(1, 9):
                clients.create_task(commit(number))
            await asyncio.sleep(0.01)
            refused = dict(answered)
            node.metadata.speak()

        # One is being written, five wait.
        assert refused == dict.fromkeys((7, 8), GroupError.COORDINATOR_LOAD_IN_PROGRESS)
        assert answered == dict.fromkeys(range(1, 7), GroupError.NONE) | refused
        assert (await node.coordinator.checked("g")).stored.offset(FIRST) == committed(6)


async def test_no_more_commits_travel_together_than_may() -> None:
    async with world(limits=GroupLimits(commits_together_max=4)) as made:
        node = await made.node(1)
        partitions = [PartitionId(TOPIC, number) for number in range(9)]
        await node.coordinator.commit("g", simple({partition: committed(0) for partition in partitions}))
        before = len(node.metadata.writes)
        await asyncio.gather(*(node.coordinator.commit("g", simple({partition: committed(1)})) for partition in partitions))

        # The first at once, and the eight that wait for it in two writes.
        assert [len(ops) for ops in node.metadata.writes[before:]] == [1, 4, 4]


async def test_of_questions_that_come_too_late_for_their_answer_so_many_go_on_and_the_others_end() -> None:
    async with world() as made:
        node = await made.node(1)
        asking = ByShard(node.metadata, nursery=made.nursery, limits=GroupLimits(late_loads_max=2))
        gate = asyncio.Event()
        ended: list[str] = []

        async def act(name: str) -> str:
            try:
                await gate.wait()
            except asyncio.CancelledError:
                ended.append(name)
                raise
            return name

        for name in ("a", "b", "c", "d"):
            assert await asking.each(["g"], lambda _place, name=name: act(name), late="late", timeout_s=0.01) == ["late"]  # type: ignore[misc]
        await asyncio.sleep(0)

        assert ended == ["c", "d"]
        gate.set()
        await asyncio.sleep(0.01)
        assert not asking._late


async def test_who_waits_for_other_members_is_told_to_join_again_in_the_end() -> None:
    days_s = 30 * 86_400.0
    async with world(limits=GroupLimits(join_wait_s_max=0.05)) as made:
        node = await made.node(1)
        await stable(node, "g", new_member_id="first", rebalance_timeout_s=days_s)
        async with asyncio.timeout(TIMEOUT_S):
            second = await node.coordinator.join("g", join_of(new_member_id="second", rebalance_timeout_s=days_s))

        assert second.error is GroupError.REBALANCE_IN_PROGRESS


async def test_groups_whose_turn_has_not_come_when_a_question_has_taken_its_time_are_late() -> None:
    async with world() as made:
        node = await made.node(1)
        asking = ByShard(node.metadata, nursery=made.nursery)
        asked: list[int] = []

        async def act(place: int) -> str:
            asked.append(place)
            return "here"

        answers = await asking.each([f"g{number}" for number in range(1_000)], act, late="late", timeout_s=TIMEOUT_S, together_s=0.0)

        # One of each shard.
        assert len(asked) == 4
        assert [place for place, answer in enumerate(answers) if answer == "here"] == sorted(asked)
        assert answers.count("late") == 996
