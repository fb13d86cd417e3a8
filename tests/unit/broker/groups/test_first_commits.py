"""The first commit of a partition has no version to carry: however late it arrives, it is not shown after an answer that there is none."""

import asyncio
from collections.abc import Sequence

import pytest

from broker.cluster.leadership import slot_of
from broker.groups.group import Closed, DeleteOffsets
from broker.groups.state import Group, GroupError
from broker.groups.store import StoredGroup
from runtime.clock import SystemClock
from storage.errors import Fenced
from storage.metadata.keys import GroupKeys
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import ABSENT, Key, Put, Record, WriteOp
from tests.kit.coordinating import FIRST, SECOND, Node, committed, of_member, simple, stable, world
from tests.kit.faulty_metadata import Fault, FaultyMetadata
from tests.unit.broker.groups.test_coordinator import group_of, taken_over

KEYS = GroupKeys("g", slot_of("g"))
PLACE = b'{"fmt":1,"owner":1,"offset":-1,"leader_epoch":-1,"metadata":"","committed_at_ms":-1}'
SOON_S = 25.0
LATE_WRITES = pytest.mark.parametrize("late", [0, 1], ids=["the place is late", "the offset is late"])


async def commit_late(node: Node, group: str, late: int, offset: int = 10) -> None:
    """The first commit of a partition, of whose writes one is delivered late."""
    await node.coordinator.find(group)
    node.metadata.faults[len(node.metadata.writes) + late] = Fault.LATE
    with pytest.raises(Closed, match="COORDINATOR_NOT_AVAILABLE"):
        await node.coordinator.commit(group, simple({FIRST: committed(offset)}))


async def shown_anew(node: Node, group: str) -> dict[object, object]:
    """All offsets, as a coordinator says that loads them now."""
    (await node.coordinator.find(group)).close(GroupError.NOT_COORDINATOR)
    return dict((await node.coordinator.checked(group)).stored.offsets)


async def load(metadata: FaultyMetadata, owner: int) -> tuple[StoredGroup, Group]:
    return await StoredGroup.load(metadata, KEYS, group_id="g", owner=owner, clock=SystemClock())


async def stored_offset(metadata: FaultyMetadata, group: str) -> Record | None:
    (record,) = await metadata.store.get_many([GroupKeys(group, slot_of(group)).offset(FIRST)])
    return record


@LATE_WRITES
async def test_a_first_commit_that_arrives_after_the_next_coordinator_said_there_is_none_is_never_shown(late: int) -> None:
    async with world() as made:
        old = await made.node(1)
        group = group_of(1, [1])
        joined = await stable(old, group)
        old.metadata.faults[len(old.metadata.writes) + late] = Fault.LATE
        with pytest.raises(Closed, match="COORDINATOR_NOT_AVAILABLE"):
            await old.coordinator.commit(group, of_member(joined, {FIRST: committed(10)}))
        new = await made.node(2)
        await taken_over(made, group, old, new)
        assert (await new.coordinator.checked(group)).stored.offsets == {}
        await old.metadata.deliver()

        # The group's record names the topic from now on.
        assert await new.coordinator.commit(group, of_member(joined, {SECOND: committed(1)})) is GroupError.NONE
        assert await shown_anew(new, group) == {SECOND: committed(1)}
        assert await new.coordinator.commit(group, of_member(joined, {FIRST: committed(3)})) is GroupError.NONE
        assert await shown_anew(new, group) == {FIRST: committed(3), SECOND: committed(1)}


@LATE_WRITES
async def test_a_first_commit_that_arrives_after_the_same_broker_loaded_the_group_again_is_never_shown(late: int) -> None:
    async with world() as made:
        node = await made.node(1)
        await node.coordinator.commit("g", simple({SECOND: committed(1)}))
        await commit_late(node, "g", late)
        assert (await node.coordinator.checked("g")).stored.offsets == {SECOND: committed(1)}
        await node.metadata.deliver()

        assert await shown_anew(node, "g") == {SECOND: committed(1)}


@LATE_WRITES
async def test_an_offset_that_was_deleted_is_not_brought_back_by_its_first_commit(late: int) -> None:
    async with world() as made:
        node = await made.node(1)
        await node.coordinator.commit("g", simple({SECOND: committed(1)}))
        await commit_late(node, "g", late)
        assert await node.coordinator.commit("g", simple({FIRST: committed(10)})) is GroupError.NONE
        assert await node.coordinator.delete_offsets("g", DeleteOffsets((FIRST,))) is GroupError.NONE
        await node.metadata.deliver()

        assert await shown_anew(node, "g") == {SECOND: committed(1)}


@LATE_WRITES
async def test_the_offsets_of_a_group_that_was_deleted_are_not_brought_back_by_its_first_commit(late: int) -> None:
    async with world() as made:
        node = await made.node(1)
        await commit_late(node, "g", late)
        assert await node.coordinator.commit("g", simple({FIRST: committed(10)})) is GroupError.NONE
        assert await node.coordinator.delete("g") is GroupError.NONE
        await node.metadata.deliver()

        assert (await node.coordinator.checked("g")).stored.offsets == {}
        assert await node.coordinator.commit("g", simple({FIRST: committed(2)})) is GroupError.NONE
        assert await shown_anew(node, "g") == {FIRST: committed(2)}


async def test_a_coordinator_that_gave_its_group_up_answers_at_once_and_does_not_finish_a_first_commit() -> None:
    """Its first write was slow. Had it gone on to the second, the group would have its offset again after it was deleted."""
    async with world() as made:
        old = await made.node(1)
        group = group_of(1, [1])
        loaded = await old.coordinator.find(group)
        sent, delivered = asyncio.Event(), asyncio.Event()

        async def wait_for_delivery(_ops: Sequence[WriteOp]) -> None:
            sent.set()
            await delivered.wait()

        async def close() -> None:
            await sent.wait()
            loaded.close(GroupError.NOT_COORDINATOR)

        writes_before = len(old.metadata.writes)
        old.metadata.before_write = wait_for_delivery
        made.nursery.spawn(close(), name="close")
        with pytest.raises(Closed, match="NOT_COORDINATOR"):
            await loaded.do(simple({FIRST: committed(10)}), deadline_s=SOON_S)
        under_way = [task for task in asyncio.all_tasks() if task.get_name() == "group-write"]
        new = await made.node(2)
        await taken_over(made, group, old, new)
        assert await new.coordinator.commit(group, simple({FIRST: committed(3)})) is GroupError.NONE
        assert await new.coordinator.delete(group) is GroupError.NONE
        delivered.set()
        await asyncio.wait(under_way, timeout=SOON_S)

        assert await stored_offset(old.metadata, group) is not None
        assert len(old.metadata.writes) == writes_before + 1
        assert await shown_anew(new, group) == {}


async def test_an_empty_group_that_a_late_first_commit_leaves_after_its_deletion_goes_with_the_next_sweep() -> None:
    """Its record was to be put if there was none, and there was none again. ListGroups shows it until then."""
    async with world() as made:
        node = await made.node(1)
        await commit_late(node, "g", 0)
        assert await node.coordinator.commit("g", simple({FIRST: committed(10)})) is GroupError.NONE
        assert await node.coordinator.delete("g") is GroupError.NONE
        await node.metadata.deliver()
        left = (await node.coordinator.listed()).groups
        await node.coordinator.sweep()

        assert len(left) == 1
        assert (await node.coordinator.listed()).groups == []
        assert await stored_offset(node.metadata, "g") is None


async def test_a_place_without_an_offset_is_taken_away_by_whoever_loads_the_group() -> None:
    async with world() as made:
        node = await made.node(1)
        await commit_late(node, "g", 1)
        place = await stored_offset(node.metadata, "g")
        loaded = await node.coordinator.checked("g")

        assert place is not None
        assert (loaded.stored.offset(FIRST), loaded.stored.offset_count, list(loaded.stored.topic_ids)) == (None, 0, [])
        assert await stored_offset(node.metadata, "g") is None
        assert await node.coordinator.delete("g") is GroupError.NONE


async def test_a_place_is_read_as_no_offset_by_releases_that_know_of_none() -> None:
    async with world() as made:
        node = await made.node(1)
        await commit_late(node, "g", 1)
        place = await stored_offset(node.metadata, "g")

        assert place is not None
        fields = b'"offset":-1,"leader_epoch":-1,"metadata":"","committed_at_ms":-1,"expires_at_ms":null'
        assert place.value.startswith(b'{"fmt":1,"owner":')
        assert place.value.endswith(fields + b"}")


async def test_a_commit_of_minus_one_is_kept_as_it_was_made() -> None:
    async with world() as made:
        node = await made.node(1)
        await node.coordinator.commit("g", simple({FIRST: committed(-1, "mine"), SECOND: committed(-1)}))

        assert await shown_anew(node, "g") == {FIRST: committed(-1, "mine"), SECOND: committed(-1)}


async def test_only_a_first_commit_takes_a_second_request() -> None:
    async with world() as made:
        node = await made.node(1)
        counts = []
        await node.coordinator.find("g")
        for offsets in ({FIRST: committed(1)}, {FIRST: committed(2)}, {FIRST: committed(3), SECOND: committed(1)}, {SECOND: committed(2)}):
            writes, reads = len(node.metadata.writes), len(node.metadata.reads)
            assert await node.coordinator.commit("g", simple(offsets)) is GroupError.NONE
            counts.append(([len(ops) for ops in node.metadata.writes[writes:]], len(node.metadata.reads) - reads))

        assert counts == [([2, 1], 0), ([1], 0), ([2, 2], 0), ([1], 0)]


async def test_what_a_fenced_coordinator_left_is_replaced() -> None:
    store = MemoryMetadataStore(clock=SystemClock())
    found, group = await load(FaultyMetadata(store), 1)
    await found.save(group)
    await store.write([Put(KEYS.offset(FIRST), PLACE, ABSENT)])
    await found.commit(group, {FIRST: committed(5)})

    again, _ = await load(FaultyMetadata(store), 2)
    assert again.offsets == {FIRST: committed(5)}
    with pytest.raises(Fenced):
        await found.commit(group, {FIRST: committed(6)})
    await store.close()


async def test_what_the_next_coordinator_committed_is_not_taken_for_something_that_was_left_there() -> None:
    store = MemoryMetadataStore(clock=SystemClock())
    slow = FaultyMetadata(store)
    found, group = await load(slow, 1)
    await found.save(group)
    await store.write([Put(KEYS.offset(FIRST), PLACE, ABSENT)])
    following: list[StoredGroup] = []

    async def overtaken(keys: Sequence[Key]) -> list[Record | None]:
        """Another one takes the group over, and commits, between the write that met what was left and the read of that."""
        if not following:
            next_found, next_group = await load(FaultyMetadata(store), 2)
            following.append(next_found)
            await next_found.commit(next_group, {FIRST: committed(50)})
        return await store.get_many(keys)

    slow.get_many = overtaken  # type: ignore[method-assign]
    with pytest.raises(Fenced):
        await found.commit(group, {FIRST: committed(10)})

    again, _ = await load(FaultyMetadata(store), 3)
    assert (len(following), again.offsets) == (1, {FIRST: committed(50)})
    await store.close()
