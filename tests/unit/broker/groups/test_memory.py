"""What clients say about themselves has a bound: of one member, of its group, of all groups; and each is reached here."""

import asyncio
from dataclasses import replace

import pytest
import structlog.testing

from broker.groups.coordinator import Coordinator
from broker.groups.group import Closed, CommitOffsets
from broker.groups.memory import GROUP_BYTES, GROUP_SHARE, HELD, MEMBER_BYTES, PROTOCOL_BYTES, REFUSED, SMALL_BYTES, growth_bytes
from broker.groups.state import Committed, Group, GroupError, GroupSettings, Leave, Protocol, Sync, SyncAnswer
from storage.limits import KIB, MIB
from storage.vocabulary import PartitionId
from tests.kit.coordinating import FIRST, Node, committed, join_of, of_member, simple, stable, world

SETTINGS = GroupSettings(initial_delay_s=0, member_bytes_max=256 * KIB, memory_bytes_max=2 * MIB)


def saying(size_bytes: int) -> tuple[Protocol, ...]:
    return (Protocol("range", bytes(size_bytes)),)


def held(node: Node) -> float:
    found = node.telemetry.registry.get_sample_value(HELD.name)
    assert found is not None
    return found


def refused(node: Node, bound: str) -> float:
    return node.telemetry.registry.get_sample_value(REFUSED.name, {"bound": bound}) or 0


def counted_anew(coordinator: Coordinator) -> int:
    groups = [loaded for loaded, _ in coordinator._groups.values()]
    return sum(
        GROUP_BYTES + growth_bytes(Group(group_id=one.group.group_id), one.group) + one.stored.growth_bytes({}) + one.stored.held_bytes
        for one in groups
    )


async def filled(node: Node, *, size_bytes: int = 200 * KIB) -> int:
    """How many groups of one member it took until a join was refused."""
    for number in range(1_000):
        joined = await node.coordinator.join(f"full-{number}", join_of(protocols=saying(size_bytes)))
        if joined.error:
            assert joined.error is GroupError.COORDINATOR_LOAD_IN_PROGRESS
            return number
    raise AssertionError("never full")


async def sync_of(node: Node, group: str, member_id: str, generation: int, *assignments: tuple[str, bytes]) -> SyncAnswer:
    return await node.coordinator.sync(
        group,
        Sync(
            token=0,
            member_id=member_id,
            instance_id=None,
            generation=generation,
            protocol_type=None,
            protocol=None,
            assignments=assignments,
        ),
    )


@pytest.mark.parametrize(
    "too_much",
    [
        {"protocols": saying(SETTINGS.member_bytes_max)},
        {"protocols": tuple(Protocol("", b"") for _ in range(SETTINGS.member_bytes_max // 100))},
        {"instance_id": "i" * SETTINGS.member_bytes_max},
        {"member_id": "m" * SETTINGS.member_bytes_max},
    ],
    ids=["metadata", "number of protocols", "instance id", "member id"],
)
async def test_a_member_that_says_too_much_is_refused_with_a_line_and_nothing_of_it_is_kept(too_much: dict[str, object]) -> None:
    async with world(settings=SETTINGS) as made:
        node = await made.node(1)
        with structlog.testing.capture_logs() as logged:
            joined = await node.coordinator.join("g", join_of(**too_much))  # type: ignore[arg-type]

        assert joined.error is GroupError.MESSAGE_TOO_LARGE
        assert held(node) == 0
        assert refused(node, "member") == 1
        assert [(line["bound"], line["group"]) for line in logged if line["event"] == "group_member_refused"] == [("member", "g")]


async def test_a_member_that_says_a_little_less_is_taken() -> None:
    async with world(settings=SETTINGS) as made:
        node = await made.node(1)
        joined = await node.coordinator.join("g", join_of(protocols=saying(SETTINGS.member_bytes_max - 2 * MEMBER_BYTES)))

        assert joined.error is GroupError.NONE


async def test_the_members_of_one_group_hold_a_quarter_of_the_memory() -> None:
    async with world(settings=replace(SETTINGS, member_bytes_max=SETTINGS.memory_bytes_max)) as made:
        node = await made.node(1)
        joined = await node.coordinator.join("g", join_of(protocols=saying(SETTINGS.memory_bytes_max // GROUP_SHARE)))
        smaller = await node.coordinator.join("g", join_of(protocols=saying(SETTINGS.memory_bytes_max // GROUP_SHARE - 8 * KIB)))

        assert (joined.error, smaller.error) == (GroupError.GROUP_MAX_SIZE_REACHED, GroupError.NONE)
        assert refused(node, "group") == 1


async def test_when_the_memory_is_full_members_are_asked_to_come_again_and_those_that_are_in_go_on() -> None:
    async with world(settings=SETTINGS) as made:
        node = await made.node(1)
        inside = await stable(node, "inside", protocols=saying(200 * KIB))
        await filled(node)
        await filled(node, size_bytes=SMALL_BYTES - 2 * MEMBER_BYTES)
        again = await node.coordinator.join("inside", join_of(member_id=inside.member_id, protocols=saying(200 * KIB)))
        synced = await sync_of(node, "inside", again.member_id, again.generation, (again.member_id, b"all"))
        more = await node.coordinator.join("inside", join_of(member_id=inside.member_id, protocols=saying(255 * KIB - MEMBER_BYTES)))

        assert (again.error, synced.error) == (GroupError.NONE, GroupError.NONE)
        assert more.error is GroupError.COORDINATOR_LOAD_IN_PROGRESS
        assert held(node) <= SETTINGS.memory_bytes_max + 2 * GROUP_BYTES
        assert refused(node, "memory") >= 2


async def test_ordinary_members_find_room_where_large_ones_have_used_up_their_share() -> None:
    async with world(settings=SETTINGS) as made:
        node = await made.node(1)
        await filled(node)
        held_by_large_ones = held(node)
        joined = await node.coordinator.join("g", join_of())

        assert held_by_large_ones <= SETTINGS.memory_bytes_max * 3 // 4
        assert joined.error is GroupError.NONE


async def test_ids_that_were_given_out_to_groups_that_nobody_joined_make_room() -> None:
    groups_max = SETTINGS.memory_bytes_max // GROUP_BYTES
    async with world(settings=SETTINGS) as made:
        node = await made.node(1)
        errors = {(await node.coordinator.join(f"g{number}", join_of(knows_member_ids=True))).error for number in range(3 * groups_max)}

        assert errors == {GroupError.MEMBER_ID_REQUIRED}
        assert held(node) <= SETTINGS.memory_bytes_max + GROUP_BYTES


async def test_an_assignment_that_is_too_large_is_refused() -> None:
    async with world(settings=SETTINGS) as made:
        node = await made.node(1)
        joined = await node.coordinator.join("g", join_of())
        synced = await sync_of(node, "g", joined.member_id, joined.generation, (joined.member_id, bytes(SETTINGS.member_bytes_max + 1)))

        assert synced.error is GroupError.MESSAGE_TOO_LARGE


async def test_assignments_of_those_who_are_no_members_are_not_kept() -> None:
    async with world(settings=SETTINGS) as made:
        node = await made.node(1)
        joined = await node.coordinator.join("g", join_of())
        before = held(node)
        synced = await sync_of(
            node, "g", joined.member_id, joined.generation, *((f"nobody-{number}", bytes(10 * KIB)) for number in range(20))
        )

        assert synced.error is GroupError.NONE
        assert held(node) == before


async def test_a_commit_that_finds_no_memory_is_to_come_again_and_one_in_place_of_another_is_taken() -> None:
    async with world(settings=SETTINGS) as made:
        node = await made.node(1)
        joined = await stable(node, "g")
        first = await node.coordinator.commit("g", of_member(joined, {FIRST: committed(1, "x" * 1_000)}))
        await filled(node)
        await filled(node, size_bytes=100)
        offsets = {FIRST._replace(partition=number): committed(1, "x" * 1_000) for number in range(1, 50)}
        beside = await node.coordinator.commit("g", of_member(joined, offsets))
        in_place = await node.coordinator.commit("g", of_member(joined, {FIRST: committed(2, "y" * 1_000)}))

        assert (first, beside, in_place) == (GroupError.NONE, GroupError.COORDINATOR_LOAD_IN_PROGRESS, GroupError.NONE)


async def test_a_group_that_commits_does_not_make_room_of_itself() -> None:
    async with world(settings=replace(SETTINGS, memory_bytes_max=2 * GROUP_BYTES)) as made:
        node = await made.node(1)
        offsets = {FIRST._replace(partition=number): committed(1, "x" * 1_000) for number in range(50)}
        error = await node.coordinator.commit("g", simple(offsets))

        assert error is GroupError.COORDINATOR_LOAD_IN_PROGRESS
        assert (await node.coordinator.find("g")).is_open


async def test_what_is_counted_is_what_there_is_whatever_happened_before() -> None:
    async with world(settings=SETTINGS) as made:
        node = await made.node(1)
        counts = []
        joined = await stable(node, "a", protocols=saying(5_000))
        counts.append((held(node), counted_anew(node.coordinator)))
        await node.coordinator.commit("a", of_member(joined, {FIRST: committed(1, "some text")}))
        await node.coordinator.commit("a", of_member(joined, {FIRST: committed(2, "longer text")}))
        counts.append((held(node), counted_anew(node.coordinator)))
        again = await node.coordinator.join("a", join_of(member_id=joined.member_id, protocols=saying(100)))
        counts.append((held(node), counted_anew(node.coordinator)))
        await node.coordinator.leave("a", Leave(token=0, members=((again.member_id, None),)))
        counts.append((held(node), counted_anew(node.coordinator)))
        await node.coordinator.join("b", join_of(knows_member_ids=True, new_member_id="b-1"))
        counts.append((held(node), counted_anew(node.coordinator)))
        node.coordinator.stop()

        assert [counted for counted, _ in counts] == [there for _, there in counts]
        assert held(node) == 0
        with pytest.raises(Closed):
            await node.coordinator.join("a", join_of())
        assert held(node) == 0


async def test_who_is_in_a_group_at_its_bound_comes_back_with_what_it_had_whether_it_knows_its_id_or_its_instance() -> None:
    async with world(settings=replace(SETTINGS, member_bytes_max=SETTINGS.memory_bytes_max)) as made:
        node = await made.node(1)
        bound_bytes = SETTINGS.memory_bytes_max // GROUP_SHARE
        said = saying(bound_bytes - MEMBER_BYTES - PROTOCOL_BYTES - 500)
        for group, fields in (("dynamic", {}), ("static", {"instance_id": "i"})):
            joined = await node.coordinator.join(group, join_of(protocols=said, new_member_id="m" * 60, **fields))  # type: ignore[arg-type]
            member_id = "" if fields else joined.member_id
            more = Protocol("x", b"")
            # Another name, so that its metadata changes and it waits for a new generation.
            again = await node.coordinator.join(
                group,
                join_of(member_id=member_id, new_member_id="n" * 60, protocols=(*saying(len(said[0].metadata) - 200), more), **fields),  # type: ignore[arg-type]
            )

            assert (joined.error, again.error) == (GroupError.NONE, GroupError.NONE), group


async def test_commits_that_are_on_their_way_at_once_do_not_hold_more_than_all_may() -> None:
    async with world(settings=SETTINGS) as made:
        node = await made.node(1)
        offsets = {FIRST._replace(partition=number): committed(1, "x" * 4_000) for number in range(10)}
        groups = [f"g{number}" for number in range(60)]
        for group in groups:
            await stable(node, group)
        errors = await asyncio.gather(*(node.coordinator.commit(group, simple_of(node, group, offsets)) for group in groups))

        assert set(errors) == {GroupError.NONE, GroupError.COORDINATOR_LOAD_IN_PROGRESS}
        assert held(node) <= SETTINGS.memory_bytes_max
        assert held(node) == counted_anew(node.coordinator)


def simple_of(node: Node, group: str, offsets: dict[PartitionId, Committed]) -> CommitOffsets:
    loaded = node.coordinator.loaded(group)
    assert loaded is not None
    (member_id,) = loaded.group.members
    return CommitOffsets(member_id=member_id, instance_id=None, generation=loaded.group.generation, offsets=offsets)


async def test_commits_of_one_group_that_travel_together_do_not_hold_more_than_all_may() -> None:
    async with world(settings=SETTINGS) as made:
        node = await made.node(1)
        joined = await stable(node, "g")
        commits = [
            of_member(joined, {FIRST._replace(partition=10 * number + one): committed(1, "x" * 4_000) for one in range(10)})
            for number in range(60)
        ]
        errors = await asyncio.gather(*(node.coordinator.commit("g", commit) for commit in commits))
        loaded = await node.coordinator.find("g")
        there = [all(loaded.stored.offset(partition) is not None for partition in commit.offsets) for commit in commits]

        assert set(errors) == {GroupError.NONE, GroupError.COORDINATOR_LOAD_IN_PROGRESS}
        assert there == [error is GroupError.NONE for error in errors], "what was refused was not written, what was taken was"
        assert held(node) <= SETTINGS.memory_bytes_max


async def test_ids_that_were_given_out_to_groups_with_offsets_make_room() -> None:
    async with world(settings=SETTINGS) as made:
        node = await made.node(1)
        for number in range(SETTINGS.memory_bytes_max // GROUP_BYTES):
            if (await node.coordinator.commit(f"held-{number}", simple({FIRST: committed(1)}))) is GroupError.NONE:
                await node.coordinator.join(f"held-{number}", join_of(knows_member_ids=True, session_timeout_s=1_800.0))
        joined = await node.coordinator.join("honest", join_of())

        assert joined.error is GroupError.NONE
