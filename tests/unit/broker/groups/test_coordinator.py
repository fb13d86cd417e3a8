import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest

from broker.cluster.leadership import Candidate, slot_of, winner_of
from broker.groups.coordinator import GROUP_NAME_BYTES_MAX
from broker.groups.group import Closed, ConfirmOwnership, DeleteOffsets
from broker.groups.state import GroupError, GroupSettings, GroupState, Heartbeat, JoinAnswer
from storage.metadata import keys
from storage.metadata.keys import GroupKeys
from storage.metadata.port import Key, Record
from tests.kit.coordinating import FIRST, SECOND, Node, World, committed, join_of, of_member, simple, stable, world
from tests.kit.faulty_metadata import Fault

TIMEOUT_S = 25.0


def group_of(node_id: int, ids: list[int]) -> str:
    """A group that this one of the brokers coordinates."""
    live = [Candidate(broker_id, None) for broker_id in ids]
    return next(f"g{number}" for number in range(1_000) if winner_of(slot_of(f"g{number}"), live) == node_id)


async def taken_over(made: World, group: str, old: Node, new: Node) -> None:
    """The old coordinator is paused: it thinks it still holds what its session lost."""
    claim = old.coordinator.slots.find(slot_of(group))
    assert claim is not None
    await old.lose_session()
    old.coordinator.slots.is_valid = lambda _claim: True  # type: ignore[method-assign]
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            try:
                await new.coordinator.find(group)
                return
            except Closed:
                await asyncio.sleep(0.01)


async def test_what_is_committed_is_read_with_its_metadata() -> None:
    async with world() as made:
        node = await made.node(1)
        error = await node.coordinator.commit("g", simple({FIRST: committed(5, "where I was"), SECOND: committed(7)}))
        loaded = await node.coordinator.checked("g")

        assert error is GroupError.NONE
        assert loaded.stored.offsets == {FIRST: committed(5, "where I was"), SECOND: committed(7)}


async def test_a_later_commit_is_one_request_that_writes_offsets_alone() -> None:
    async with world() as made:
        node = await made.node(1)
        await node.coordinator.commit("g", simple({FIRST: committed(1), SECOND: committed(1)}))
        before = len(node.metadata.writes)
        await node.coordinator.commit("g", simple({FIRST: committed(2), SECOND: committed(2)}))

        assert [len(ops) for ops in node.metadata.writes[before:]] == [2]


async def test_commits_that_wait_together_travel_together() -> None:
    async with world() as made:
        node = await made.node(1)
        await node.coordinator.commit("g", simple({FIRST: committed(0)}))
        before = len(node.metadata.writes)
        errors = await asyncio.gather(*(node.coordinator.commit("g", simple({FIRST: committed(n)})) for n in range(20)))
        loaded = await node.coordinator.checked("g")

        assert set(errors) == {GroupError.NONE}
        assert len(node.metadata.writes) - before == 2
        assert loaded.stored.offset(FIRST) == committed(19)


async def test_a_question_about_a_group_does_not_make_it() -> None:
    async with world() as made:
        node = await made.node(1)
        loaded = await node.coordinator.checked("g")

        assert not loaded.exists
        assert not [ops for ops in node.metadata.writes if any(op.key.path.startswith("llog/groups/") for op in ops)]  # type: ignore[union-attr]


async def test_a_group_survives_its_coordinator_with_members_generation_and_offsets() -> None:
    async with world() as made:
        old = await made.node(1)
        group = group_of(1, [1])
        joined = await stable(old, group)
        await old.coordinator.commit(group, of_member(joined, {FIRST: committed(9)}))
        new = await made.node(2)
        await taken_over(made, group, old, new)
        heartbeat = Heartbeat(token=0, member_id=joined.member_id, instance_id=None, generation=joined.generation)

        assert await new.coordinator.heartbeat(group, heartbeat) is GroupError.NONE
        loaded = await new.coordinator.checked(group)
        (member,) = loaded.group.members.values()
        assert (member.assignment, member.protocols[0].metadata, loaded.group.state) == (b"all", b"meta", GroupState.STABLE)
        assert loaded.stored.offset(FIRST) == committed(9)


async def test_a_paused_coordinator_cannot_commit_over_its_successor() -> None:
    async with world() as made:
        old = await made.node(1)
        group = group_of(1, [1])
        joined = await stable(old, group)
        await old.coordinator.commit(group, of_member(joined, {FIRST: committed(9)}))
        new = await made.node(2)
        await taken_over(made, group, old, new)

        with pytest.raises(Closed, match="NOT_COORDINATOR"):
            await old.coordinator.commit(group, of_member(joined, {FIRST: committed(10)}))
        assert (await new.coordinator.checked(group)).stored.offset(FIRST) == committed(9)
        assert await new.coordinator.commit(group, of_member(joined, {FIRST: committed(11)})) is GroupError.NONE


async def test_a_paused_coordinator_does_not_acknowledge_the_first_commit_of_a_partition() -> None:
    async with world() as made:
        old = await made.node(1)
        group = group_of(1, [1])
        joined = await stable(old, group)
        new = await made.node(2)
        await taken_over(made, group, old, new)

        with pytest.raises(Closed, match="NOT_COORDINATOR"):
            await old.coordinator.commit(group, of_member(joined, {FIRST: committed(10)}))
        assert await new.coordinator.commit(group, of_member(joined, {FIRST: committed(3), SECOND: committed(4)})) is GroupError.NONE
        assert (await new.coordinator.checked(group)).stored.offsets == {FIRST: committed(3), SECOND: committed(4)}


async def test_a_paused_coordinator_begins_no_generation_and_answers_no_question() -> None:
    async with world() as made:
        old = await made.node(1)
        group = group_of(1, [1])
        joined = await stable(old, group)
        new = await made.node(2)
        await taken_over(made, group, old, new)

        with pytest.raises(Closed, match="NOT_COORDINATOR"):
            await old.coordinator.checked(group)
        assert (await new.coordinator.join(group, join_of(joined.member_id))).generation == 2
        with pytest.raises(Closed, match="NOT_COORDINATOR"):
            await old.coordinator.join(group, join_of(joined.member_id))


@pytest.mark.parametrize("what", ["group", "offsets"])
async def test_what_another_coordinator_has_deleted_is_not_answered_by_the_one_before_it(what: str) -> None:
    """Its question reads the record of the group: no hint is needed, and no time passes."""
    async with world() as made:
        old = await made.node(1)
        group = group_of(1, [1])
        await old.coordinator.commit(group, simple({FIRST: committed(9)}))
        assert (await old.coordinator.checked(group)).stored.offset(FIRST) == committed(9)
        new = await made.node(2)
        await taken_over(made, group, old, new)
        deletion = new.coordinator.delete(group) if what == "group" else new.coordinator.delete_offsets(group, DeleteOffsets((FIRST,)))
        assert await deletion is GroupError.NONE

        with pytest.raises(Closed, match="NOT_COORDINATOR"):
            await old.coordinator.checked(group)


async def test_a_commit_that_was_on_its_way_when_the_group_was_taken_over_changes_nothing_later() -> None:
    async with world() as made:
        old = await made.node(1)
        group = group_of(1, [1])
        await old.coordinator.commit(group, simple({FIRST: committed(9)}))
        old.metadata.faults[len(old.metadata.writes)] = Fault.LATE
        with pytest.raises(Closed, match="COORDINATOR_NOT_AVAILABLE"):
            await old.coordinator.commit(group, simple({FIRST: committed(10)}))
        new = await made.node(2)
        await taken_over(made, group, old, new)
        await old.metadata.deliver()
        await new.coordinator.find(group)

        assert await new.coordinator.commit(group, simple({FIRST: committed(12)})) is GroupError.NONE
        assert (await new.coordinator.checked(group)).stored.offset(FIRST) == committed(12)


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.REQUEST_LOST, Fault.REPLY_LOST])
async def test_a_commit_that_failed_can_be_made_again(fault: Fault) -> None:
    async with world() as made:
        node = await made.node(1)
        await node.coordinator.commit("g", simple({FIRST: committed(1)}))
        node.metadata.faults[len(node.metadata.writes)] = fault
        with pytest.raises(Closed, match="COORDINATOR_NOT_AVAILABLE"):
            await node.coordinator.commit("g", simple({FIRST: committed(2)}))

        loaded = await node.coordinator.checked("g")
        assert loaded.stored.offset(FIRST) == committed(2 if fault is Fault.REPLY_LOST else 1)
        assert await node.coordinator.commit("g", simple({FIRST: committed(2), SECOND: committed(2)})) is GroupError.NONE


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.REQUEST_LOST, Fault.REPLY_LOST])
async def test_members_join_again_when_their_generation_could_not_be_written(fault: Fault) -> None:
    async with world() as made:
        node = await made.node(1)
        await node.coordinator.find("g")
        node.metadata.faults[len(node.metadata.writes)] = fault
        with pytest.raises(Closed, match="COORDINATOR_NOT_AVAILABLE"):
            await node.coordinator.join("g", join_of(rebalance_timeout_s=0.2))

        joined = await stable(node, "g-other")
        assert joined.generation == 1
        again = await node.coordinator.join("g", join_of(new_member_id="m2", rebalance_timeout_s=0.1))
        assert again.error is GroupError.NONE


async def test_a_slot_goes_to_the_broker_that_has_become_its_winner() -> None:
    async with world() as made:
        one = await made.node(1)
        group = group_of(2, [1, 2])
        await one.coordinator.commit(group, simple({FIRST: committed(4)}))
        two = await made.node(2)
        async with asyncio.timeout(TIMEOUT_S):
            while (await one.coordinator.slots.holders([group]))[group] == 1:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

        assert (await two.coordinator.checked(group)).stored.offset(FIRST) == committed(4)
        with pytest.raises(Closed, match="NOT_COORDINATOR"):
            await one.coordinator.find(group)


async def test_who_holds_a_slot_is_named_before_who_would_win_it() -> None:
    async with world() as made:
        one = await made.node(1)
        group = group_of(2, [1, 2])
        assert (await one.coordinator.slots.holders([group])) == {group: 1}
        await one.coordinator.find(group)
        two = await made.node(2)

        assert (await two.coordinator.slots.holders([group])) == {group: 1}
        with pytest.raises(Closed, match="NOT_COORDINATOR"):
            await two.coordinator.find(group)


async def test_members_that_wait_are_sent_elsewhere_when_the_session_is_lost() -> None:
    async with world() as made:
        node = await made.node(1)
        await stable(node, "g")
        waiting = asyncio.gather(node.coordinator.join("g", join_of(new_member_id="m2")), return_exceptions=True)
        await asyncio.sleep(0)
        await node.lose_session()
        (error,) = await waiting

        assert isinstance(error, Closed)
        assert error.error is GroupError.NOT_COORDINATOR


async def test_a_broker_that_stops_coordinates_nothing() -> None:
    async with world() as made:
        node = await made.node(1)
        await stable(node, "g")
        node.coordinator.stop()

        with pytest.raises(Closed, match="NOT_COORDINATOR"):
            await node.coordinator.find("g")


async def test_the_dead_members_of_a_group_that_was_taken_over_are_out_after_their_session_timeout() -> None:
    async with world(settings=GroupSettings(initial_delay_s=0, session_timeout_s_min=0.1)) as made:
        node = await made.node(1)
        await node.coordinator.join("g", join_of(session_timeout_s=0.5))
        async with asyncio.timeout(30):
            while (await node.coordinator.find("g")).group.members:  # noqa: ASYNC110
                await asyncio.sleep(0.1)

        assert (await node.coordinator.find("g")).group.state is GroupState.EMPTY


async def test_a_group_that_is_deleted_is_gone_with_its_offsets() -> None:
    async with world() as made:
        node = await made.node(1)
        await node.coordinator.commit("g", simple({FIRST: committed(1), SECOND: committed(2)}))

        assert await node.coordinator.delete("g") is GroupError.NONE
        assert await node.coordinator.delete("g") is GroupError.GROUP_ID_NOT_FOUND
        assert not (await node.coordinator.checked("g")).stored.offsets
        group_keys = GroupKeys("g", slot_of("g"))
        assert await node.metadata.get_many([group_keys.group, group_keys.offset(FIRST), group_keys.offset(SECOND)]) == [None] * 3
        assert await node.coordinator.commit("g", simple({FIRST: committed(3)})) is GroupError.NONE


async def test_a_group_with_members_is_not_deleted() -> None:
    async with world() as made:
        node = await made.node(1)
        await stable(node, "g")

        assert await node.coordinator.delete("g") is GroupError.NON_EMPTY_GROUP


async def test_a_group_that_nobody_but_a_coming_member_is_in_can_be_deleted() -> None:
    async with world() as made:
        node = await made.node(1)
        await node.coordinator.commit("g", simple({FIRST: committed(1)}))
        given = await node.coordinator.join("g", join_of(knows_member_ids=True))

        assert await node.coordinator.delete("g") is GroupError.NONE
        assert (await node.coordinator.join("g", join_of(given.member_id))).error is GroupError.UNKNOWN_MEMBER_ID


async def test_offsets_that_are_deleted_are_not_there_after_a_takeover_either() -> None:
    async with world() as made:
        node = await made.node(1)
        await node.coordinator.commit("g", simple({FIRST: committed(1), SECOND: committed(2)}))
        await node.coordinator.delete_offsets("g", DeleteOffsets((FIRST,)))
        (await node.coordinator.find("g")).close(GroupError.NOT_COORDINATOR)

        assert (await node.coordinator.checked("g")).stored.offsets == {SECOND: committed(2)}


async def test_groups_are_listed_whether_they_are_loaded_or_not() -> None:
    async with world() as made:
        one = await made.node(1)
        names = [f"group/{number} ~ü%" for number in range(20)] + [""]
        for name in names:
            await one.coordinator.commit(name, simple({FIRST: committed(1)}))
        two = await made.node(2)
        await one.lose_session()
        one.coordinator.stop()
        async with asyncio.timeout(TIMEOUT_S):
            while len(listed := (await two.coordinator.listed()).groups) < len(names):  # noqa: ASYNC110
                await asyncio.sleep(0.05)

        assert sorted(group.group for group in listed) == sorted(names)  # type: ignore[union-attr]
        await two.coordinator.find(names[0])
        assert len((await two.coordinator.listed()).groups) == len(names)


async def test_a_group_name_that_is_too_long_for_a_key_is_refused() -> None:
    async with world() as made:
        node = await made.node(1)

        with pytest.raises(Closed, match="INVALID_GROUP_ID"):
            await node.coordinator.find("x" * (GROUP_NAME_BYTES_MAX + 1))


async def test_a_commit_of_more_offsets_than_a_request_takes_is_whole() -> None:
    async with world() as made:
        node = await made.node(1)
        offsets = {FIRST._replace(partition=number): committed(number, "x" * 100) for number in range(2_500)}
        assert await node.coordinator.commit("g", simple(offsets)) is GroupError.NONE
        (await node.coordinator.find("g")).close(GroupError.NOT_COORDINATOR)

        assert (await node.coordinator.checked("g")).stored.offsets == offsets


async def test_a_claim_names_its_broker() -> None:
    async with world() as made:
        node = await made.node(7)
        await node.coordinator.find("g")
        (record,) = await node.metadata.get_many([keys.coordinator(slot_of("g"))])

        assert record is not None
        assert json.loads(record.value)["broker_id"] == 7


async def test_a_takeover_that_was_overtaken_before_it_read_the_offsets_is_none() -> None:
    async with world() as made:
        old, new = await made.node(1), await made.node(2)
        group = group_of(1, [1, 2])
        await old.coordinator.commit(group, simple({FIRST: committed(3)}))
        (await old.coordinator.find(group)).close(GroupError.NOT_COORDINATOR)
        scan = old.metadata.range_scan

        async def overtaken(start: Key, end: str) -> AsyncIterator[Record]:
            if old.directory.session is not None:
                await taken_over(made, group, old, new)
            async for record in scan(start, end):
                yield record

        old.metadata.range_scan = overtaken  # type: ignore[method-assign]
        with pytest.raises(Closed):
            await old.coordinator.commit(group, simple({FIRST: committed(6)}))

        assert (await new.coordinator.checked(group)).stored.offset(FIRST) == committed(3)


async def test_who_waits_for_a_write_that_ends_before_it_began_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as made:
        node = await made.node(1)
        await node.coordinator.commit("g", simple({FIRST: committed(1)}))
        loaded = await node.coordinator.find("g")
        spawn = made.nursery.spawn

        def ending(coroutine: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
            task = spawn(coroutine, name=name)
            task.cancel()
            return task

        monkeypatch.setattr(made.nursery, "spawn", ending)
        with pytest.raises(Closed, match="COORDINATOR_NOT_AVAILABLE"):
            await loaded.do(ConfirmOwnership(), deadline_s=TIMEOUT_S)
        monkeypatch.undo()

        assert not loaded.is_open
        assert (await node.coordinator.checked("g")).stored.offset(FIRST) == committed(1)


async def test_that_there_is_no_such_group_is_not_said_from_memory() -> None:
    async with world() as made:
        old, new = await made.node(1), await made.node(2)
        group = group_of(1, [1, 2])
        assert not (await old.coordinator.find(group)).exists
        alone = await old.coordinator.commit(group, of_member(JoinAnswer(error=GroupError.NONE, member_id="m", generation=1), {}))
        await taken_over(made, group, old, new)
        joined = await stable(new, group)

        assert alone is GroupError.GROUP_ID_NOT_FOUND
        with pytest.raises(Closed, match="NOT_COORDINATOR"):
            await old.coordinator.commit(group, of_member(joined, {FIRST: committed(1)}))
