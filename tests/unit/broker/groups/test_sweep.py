"""Offsets that are forgotten, by brokers over one store, with a clock that is moved."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from broker.cluster.leadership import slot_of
from broker.groups.coordinator import GROUP_NAME_BYTES_MAX
from broker.groups.group import Closed, DeleteOffsets, LoadedGroup
from broker.groups.memory import GROUP_BYTES, MEMBER_BYTES
from broker.groups.state import GroupError, GroupSettings, GroupState, Leave, Protocol
from broker.limits import GroupLimits
from storage.catalog.groups import topics_key
from storage.errors import Unavailable
from storage.metadata import keys
from storage.metadata.keys import GroupKeys
from storage.metadata.oxia.requests import check_ops
from storage.metadata.port import Put, WriteOp
from storage.vocabulary import PartitionId
from tests.kit.coordinating import FIRST, Node, committed, join_of, of_member, simple, stable, world
from tests.kit.faulty_metadata import Fault
from tests.kit.group_offsets import commit, keys_of, restarted, topic_of
from tests.unit.broker.groups.test_coordinator import group_of, taken_over

HOUR_MS = 3_600_000
SETTINGS = GroupSettings(initial_delay_s=0, offsets_retention_ms=HOUR_MS)
SUBSCRIBED_TO_T = b"\x00\x01\x00\x00\x00\x01\x00\x01t\xff\xff\xff\xff"


async def leave(node: Node, group: str, member_id: str) -> None:
    answer = await node.coordinator.leave(group, Leave(token=0, members=((member_id, None),)))
    assert answer.errors == (GroupError.NONE,)


def count(node: Node, name: str, **labels: str) -> float:
    registry: CollectorRegistry = node.telemetry.registry
    return registry.get_sample_value(name, labels) or 0.0


async def test_a_group_that_nobody_uses_is_forgotten_whole_a_retention_time_after_its_last_commit() -> None:
    async with world(settings=SETTINGS) as made:
        node = await made.node(1)
        topic = await topic_of(node)
        await commit(node, "g", topic.partition(0))
        made.clock.wall_ms += HOUR_MS - 1
        await node.coordinator.sweep()
        assert await keys_of(node, "g") == 2
        made.clock.wall_ms += 1
        await node.coordinator.sweep()

        assert await keys_of(node, "g") == 0
        assert (await node.coordinator.listed()).groups == []
        assert count(node, "forebay_group_offsets_expired_total", cause="retention") == 1
        assert count(node, "forebay_groups_expired_total") == 1


async def test_a_group_that_was_forgotten_is_not_kept_in_memory() -> None:
    async with world(settings=SETTINGS) as made:
        node = await made.node(1)
        topic = await topic_of(node)
        await commit(node, "g", topic.partition(0))
        made.clock.wall_ms += HOUR_MS
        await node.coordinator.sweep()
        async with asyncio.timeout(25):
            while count(node, "forebay_groups", state="Empty"):  # noqa: ASYNC110
                await asyncio.sleep(0.02)

        assert (await node.coordinator.listed()).groups == []


async def test_groups_without_members_make_room_for_the_offsets_of_others() -> None:
    async with world(settings=replace(SETTINGS, memory_bytes_max=3 * GROUP_BYTES + MEMBER_BYTES)) as made:
        node = await made.node(1)
        topic = await topic_of(node, partition_count=2)
        joined = await stable(node, "live")
        await node.coordinator.commit("live", of_member(joined, {topic.partition(number): committed(1) for number in range(2)}))
        for number in range(6):
            await commit(node, f"g{number}", topic.partition(0), topic.partition(1))

        assert count(node, "forebay_groups", state="Empty") <= 2
        assert count(node, "forebay_groups", state="Stable") == 1
        assert len((await node.coordinator.find("g0")).stored.offsets) == 2


async def test_the_time_of_a_group_with_members_begins_when_the_last_one_left() -> None:
    async with world(settings=SETTINGS) as made:
        node = await made.node(1)
        topic = await topic_of(node)
        joined = await stable(node, "g")
        await node.coordinator.commit("g", of_member(joined, {topic.partition(0): committed(1)}))
        made.clock.wall_ms += 10 * HOUR_MS
        await node.coordinator.sweep()
        assert await keys_of(node, "g") == 2
        await leave(node, "g", joined.member_id)
        made.clock.wall_ms += HOUR_MS - 1
        await node.coordinator.sweep()
        assert await keys_of(node, "g") == 2
        made.clock.wall_ms += 1
        await node.coordinator.sweep()

        assert await keys_of(node, "g") == 0


async def test_since_when_a_group_is_empty_is_known_to_its_next_coordinator() -> None:
    async with world(settings=SETTINGS) as made:
        old = await made.node(1)
        topic = await topic_of(old)
        group = group_of(1, [1])
        joined = await stable(old, group)
        await old.coordinator.commit(group, of_member(joined, {topic.partition(0): committed(1)}))
        made.clock.wall_ms += 10 * HOUR_MS
        await leave(old, group, joined.member_id)
        new = await made.node(2)
        await taken_over(made, group, old, new)
        made.clock.wall_ms += HOUR_MS - 1
        await new.coordinator.sweep()
        assert await keys_of(new, group) == 2
        made.clock.wall_ms += 1
        await new.coordinator.sweep()

        assert await keys_of(new, group) == 0


async def test_consumers_lose_the_offsets_of_topics_that_they_do_not_want_any_more() -> None:
    async with world(settings=SETTINGS) as made:
        node = await made.node(1)
        wanted, other = await topic_of(node, "t"), await topic_of(node, "other")
        joined = await stable(node, "g", protocols=(Protocol("range", SUBSCRIBED_TO_T),))
        offsets = {topic.partition(0): committed(1)._replace(committed_at_ms=made.clock.wall_ms) for topic in (wanted, other)}
        await node.coordinator.commit("g", of_member(joined, offsets))
        made.clock.wall_ms += HOUR_MS
        await node.coordinator.sweep()

        assert set((await node.coordinator.find("g")).stored.offsets) == {wanted.partition(0)}
        assert (await node.coordinator.find("g")).group.state is GroupState.STABLE


async def test_offsets_of_a_deleted_topic_go_with_the_next_sweep_whoever_the_group_is() -> None:
    async with world(settings=SETTINGS) as made:
        node = await made.node(1)
        gone, kept = await topic_of(node, "gone"), await topic_of(node, "t")
        joined = await stable(node, "g")
        offsets = {topic.partition(0): committed(1)._replace(committed_at_ms=made.clock.wall_ms) for topic in (gone, kept)}
        await node.coordinator.commit("g", of_member(joined, offsets))
        await node.coordinator.commit("simple", simple(offsets))
        await node.topics.delete(gone)
        await node.coordinator.sweep()

        assert [await keys_of(node, group) for group in ("g", "simple")] == [2, 2]
        assert count(node, "forebay_group_offsets_expired_total", cause="topic_deleted") == 2


async def test_a_group_that_is_not_loaded_loses_the_offsets_of_a_deleted_topic_too() -> None:
    async with world(settings=SETTINGS) as made:
        old = await made.node(1)
        gone, kept = await topic_of(old, "gone"), await topic_of(old, "t")
        await commit(old, "g", gone.partition(0), kept.partition(0))
        await old.topics.delete(gone)
        new = await restarted(made, old)
        await new.coordinator.sweep()
        again = len(new.metadata.writes)
        await new.coordinator.sweep()

        assert await keys_of(new, "g") == 2
        assert set((await new.coordinator.find("g")).stored.topic_ids) == {kept.topic_id}
        assert len(new.metadata.writes) == again


async def test_a_group_that_is_not_loaded_is_left_alone_until_its_time_and_its_offsets_are_read_once() -> None:
    async with world(settings=SETTINGS) as made:
        old = await made.node(1)
        topic = await topic_of(old)
        await commit(old, "simple", topic.partition(0))
        joined = await stable(old, "left")
        await old.coordinator.commit("left", of_member(joined, {topic.partition(0): committed(1)}))
        await leave(old, "left", joined.member_id)
        new = await restarted(made, old)
        await new.coordinator.sweep()
        scans, writes = new.metadata.scans, len(new.metadata.writes)
        await new.coordinator.sweep()
        shards = 4

        assert new.metadata.scans - scans <= shards
        assert len(new.metadata.writes) == writes
        assert not new.coordinator._groups
        made.clock.wall_ms += HOUR_MS
        await new.coordinator.sweep()
        assert [await keys_of(new, group) for group in ("simple", "left")] == [0, 0]


async def test_a_group_whose_members_died_with_their_coordinator_becomes_empty_though_nobody_asks_for_it() -> None:
    async with world(settings=replace(SETTINGS, session_timeout_s_min=0.1)) as made:
        old = await made.node(1)
        topic = await topic_of(old)
        joined = await stable(old, "g", session_timeout_s=1.0)
        await old.coordinator.commit("g", of_member(joined, {topic.partition(0): committed(1)}))
        new = await restarted(made, old)
        await new.coordinator.sweep()
        async with asyncio.timeout(30):
            while (await new.coordinator.find("g")).group.members:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        made.clock.wall_ms += HOUR_MS
        await new.coordinator.sweep()

        assert await keys_of(new, "g") == 0


async def test_a_coordinator_that_was_replaced_forgets_nothing() -> None:
    async with world(settings=SETTINGS) as made:
        old = await made.node(1)
        topic = await topic_of(old)
        group = group_of(1, [1])
        await commit(old, group, topic.partition(0))
        new = await made.node(2)
        await taken_over(made, group, old, new)
        made.clock.wall_ms += HOUR_MS
        await commit(new, group, topic.partition(0))

        loaded, _ = old.coordinator._groups[group]
        assert loaded.find_forgettable({topic.topic_id: "t"}).is_over
        old.coordinator.slots.own = lambda: asyncio.sleep(0, list(range(64)))  # type: ignore[method-assign, assignment, return-value]
        await old.coordinator.sweep()
        assert await keys_of(new, group) == 2
        assert not loaded.is_open


async def test_a_commit_that_comes_first_keeps_its_offset() -> None:
    async with world(settings=SETTINGS) as made:
        node = await made.node(1)
        topic = await topic_of(node)
        await commit(node, "g", topic.partition(0))
        made.clock.wall_ms += HOUR_MS
        loaded = await node.coordinator.find("g")
        names = {topic.topic_id: "t"}
        assert loaded.find_forgettable(names).has_work
        await asyncio.gather(commit(node, "g", topic.partition(0)), node.coordinator.sweep())

        assert await keys_of(node, "g") == 2


async def test_a_store_that_does_not_answer_ends_a_sweep_and_changes_nothing() -> None:
    async with world(settings=SETTINGS) as made:
        node = await made.node(1)
        topic = await topic_of(node)
        await commit(node, "g", topic.partition(0))
        made.clock.wall_ms += HOUR_MS
        node.metadata.reads_fail = True
        with pytest.raises(Unavailable):
            await node.coordinator.sweep()
        node.metadata.reads_fail = False

        assert await keys_of(node, "g") == 2
        await node.coordinator.sweep()
        assert await keys_of(node, "g") == 0


async def test_a_group_that_cannot_be_read_does_not_keep_the_others_from_being_swept() -> None:
    async with world(settings=SETTINGS) as made:
        old = await made.node(1)
        topic = await topic_of(old)
        for group in ("a", "b", "c"):
            await commit(old, group, topic.partition(0))
        await old.metadata.write([Put(GroupKeys("b", slot_of("b")).group, b"nonsense", None)])
        new = await restarted(made, old)
        made.clock.wall_ms += HOUR_MS
        await new.coordinator.sweep()

        assert [await keys_of(new, group) for group in ("a", "b", "c")] == [0, 2, 0]


@pytest.mark.parametrize("broken", ["offset", "name of the topic", "page of topics", "state"])
async def test_whatever_of_a_group_cannot_be_read_the_others_are_swept(broken: str) -> None:
    async with world(settings=SETTINGS) as made:
        old = await made.node(1)
        topic, other = await topic_of(old), await topic_of(old, "other")
        groups = ("a", "b", "c", "d")
        for group in groups:
            await commit(old, group, (other if group == "b" else topic).partition(0))
        new = await restarted(made, old)
        group_keys = GroupKeys("b", slot_of("b"))
        (record,) = await new.metadata.get_many([group_keys.group])
        assert record is not None
        damaged = {
            "offset": [Put(group_keys.offset(other.partition(0)), b"nonsense", None)],
            "name of the topic": [Put(keys.topic_id(other.topic_id), b"nonsense", None)],
            "page of topics": [
                Put(group_keys.group, record.value.replace(b'"topic_pages":0', b'"topic_pages":1'), None),
                Put(topics_key(group_keys, 0), b"nonsense", None),
            ],
            "state": [Put(group_keys.group, record.value.replace(b'"Empty"', b'"Assigning"'), None)],
        }
        await new.metadata.write(damaged[broken])
        made.clock.wall_ms += HOUR_MS
        await new.coordinator.sweep()

        found = await new.metadata.get_many([GroupKeys(group, slot_of(group)).group for group in groups])
        # By its commit: what the topic of an offset is called does not matter in a group without members.
        assert [record is not None for record in found] == [False, broken != "name of the topic", False, False]


async def test_a_group_in_a_state_that_there_is_not_can_be_asked_for_and_harms_nobody() -> None:
    async with world(settings=SETTINGS) as made:
        node = await made.node(1)
        topic = await topic_of(node)
        await commit(node, "g", topic.partition(0))
        (await node.coordinator.find("g")).close(GroupError.NOT_COORDINATOR)
        group_key = GroupKeys("g", slot_of("g")).group
        (record,) = await node.metadata.get_many([group_key])
        assert record is not None
        await node.metadata.write([Put(group_key, record.value.replace(b'"Empty"', b'"Assigning"'), None)])

        with pytest.raises(Closed, match="COORDINATOR_LOAD_IN_PROGRESS"):
            await node.coordinator.find("g")


async def test_offsets_are_forgotten_without_being_asked_for() -> None:
    every = GroupSettings(initial_delay_s=0, offsets_retention_ms=HOUR_MS, retention_check_s=0.05)
    async with world(settings=every) as made:
        node = await made.node(1)
        topic = await topic_of(node)
        await commit(node, "g", topic.partition(0))
        made.clock.wall_ms += HOUR_MS
        async with asyncio.timeout(25):
            while await keys_of(node, "g"):  # noqa: ASYNC110
                await asyncio.sleep(0.02)

        assert (await node.coordinator.listed()).groups == []


async def test_a_broker_without_groups_sweeps_with_a_read_and_a_scan_a_shard() -> None:
    async with world(settings=SETTINGS) as made:
        node = await made.node(1)
        await node.coordinator.sweep()
        reads, scans, writes = len(node.metadata.reads), node.metadata.scans, len(node.metadata.writes)
        await node.coordinator.sweep()

        assert (len(node.metadata.reads) - reads, len(node.metadata.writes) - writes) == (1, 0)
        assert node.metadata.scans - scans <= 4 + 1


@pytest.mark.parametrize("topic_count", [256, 257, 3_000])
async def test_a_group_may_have_offsets_in_thousands_of_topics(topic_count: int) -> None:
    chance = random.Random(topic_count)
    async with world(settings=SETTINGS) as made:
        old = await made.node(1)
        ids = [f"{chance.getrandbits(128):032x}" for _ in range(topic_count)]
        partitions = [PartitionId(f"{one[:8]}-{one[8:12]}-{one[12:16]}-{one[16:20]}-{one[20:]}", 0) for one in ids]  # type: ignore[arg-type]
        await commit(old, "g", *partitions[: topic_count // 2])
        await commit(old, "g", *partitions[topic_count // 2 :])
        new = await restarted(made, old)
        assert set((await new.coordinator.find("g")).stored.offsets) == set(partitions)

        deleted = [Put(keys.topic_id(one.topic_id), b'{"fmt":1,"name":"t","deleted_logs":1}', None) for one in partitions]
        for first in range(0, len(deleted), 1_000):
            await new.metadata.write(deleted[first : first + 1_000])
        await new.coordinator.sweep()
        assert await keys_of(new, "g") == 0


async def test_a_group_in_many_topics_that_is_not_loaded_loses_those_that_are_gone() -> None:
    async with world(settings=SETTINGS, limits=GroupLimits(topics_named_max=2)) as made:
        old = await made.node(1)
        topics = [await topic_of(old, f"t{number}") for number in range(4)]
        await commit(old, "g", *(topic.partition(0) for topic in topics))
        await old.topics.delete(topics[0])
        new = await restarted(made, old)
        await new.coordinator.sweep()

        assert set((await new.coordinator.find("g")).stored.topic_ids) == {topic.topic_id for topic in topics[1:]}


async def test_groups_are_counted_by_state_with_members_slots_rebalances_commits_and_takeovers() -> None:
    async with world(settings=SETTINGS) as made:
        node = await made.node(1)
        joined = await stable(node, "g")
        await node.coordinator.commit("g", of_member(joined, {FIRST: committed(1)}))
        await node.coordinator.commit("g", simple({FIRST: committed(1)}))
        await node.coordinator.commit("simple", simple({FIRST: committed(1)}))
        again = await node.coordinator.join("g", join_of(joined.member_id))
        await leave(node, "g", again.member_id)
        (await node.coordinator.find("g")).close(GroupError.NOT_COORDINATOR)
        await node.coordinator.find("g")

        assert count(node, "forebay_groups", state="Empty") == 2
        assert count(node, "forebay_groups", state="Stable") == count(node, "forebay_group_members") == 0
        assert count(node, "forebay_coordinator_slots") == len({slot_of("g"), slot_of("simple")})
        assert count(node, "forebay_group_rebalances_total", cause="join") == 2
        assert count(node, "forebay_group_rebalances_total", cause="leave") == 0
        assert count(node, "forebay_group_commits_total", error="NONE") == 2
        assert count(node, "forebay_group_commits_total", error="UNKNOWN_MEMBER_ID") == 1
        assert count(node, "forebay_group_commit_duration_seconds_count") == 3
        assert count(node, "forebay_group_takeover_duration_seconds_count") == 1


async def test_a_commit_that_finds_no_coordinator_is_counted_as_that() -> None:
    async with world(settings=SETTINGS) as made:
        node = await made.node(1)
        node.coordinator.stop()
        with pytest.raises(Closed):
            await node.coordinator.commit("g", simple({FIRST: committed(1)}))

        assert count(node, "forebay_group_commits_total", error="NOT_COORDINATOR") == 1


async def test_a_store_that_fails_in_the_middle_of_a_takeover_is_asked_again() -> None:
    async with world(settings=SETTINGS) as made:
        old = await made.node(1)
        topics = [await topic_of(old, f"t{number}") for number in range(40)]
        await commit(old, "g", *(topic.partition(0) for topic in topics))
        new = await restarted(made, old)
        await new.coordinator.slots.claim(slot_of("g"))

        async def fail(_: object) -> None:
            new.metadata.reads_fail = True

        new.metadata.before_write = fail
        with pytest.raises(Closed, match="COORDINATOR_LOAD_IN_PROGRESS"):
            await new.coordinator.find("g")
        new.metadata.before_write, new.metadata.reads_fail = None, False

        assert len((await new.coordinator.find("g")).stored.offsets) == 40


async def test_a_paused_coordinator_names_no_topics_over_its_successor() -> None:
    async with world(settings=SETTINGS, limits=GroupLimits(topics_named_max=1)) as made:
        old = await made.node(1)
        group = group_of(1, [1])
        partitions = [(await topic_of(old, f"t{number}")).partition(0) for number in range(4)]
        await commit(old, group, *partitions[:2])
        new = await made.node(2)
        await taken_over(made, group, old, new)

        with pytest.raises(Closed, match="NOT_COORDINATOR"):
            await commit(old, group, partitions[2])
        await commit(new, group, partitions[3])
        (await new.coordinator.find(group)).close(GroupError.NOT_COORDINATOR)
        assert set((await new.coordinator.find(group)).stored.offsets) == {*partitions[:2], partitions[3]}


@pytest.mark.parametrize("seed", range(30))
async def test_no_offset_is_lost_however_topics_come_and_go_and_coordinators_change(seed: int) -> None:
    chance = random.Random(seed)
    async with world(settings=SETTINGS, limits=GroupLimits(topics_named_max=2, topics_page_max=3)) as made:
        node = await made.node(1)
        partitions = [(await topic_of(node, f"t{number}")).partition(0) for number in range(15)]
        may: dict[PartitionId, set[int]] = {partition: {-1} for partition in partitions}
        for number in range(60):
            chosen = chance.sample(partitions, chance.randrange(1, 8))
            faulty = chance.random() < 0.25
            if faulty:
                node.metadata.faults[len(node.metadata.writes) + chance.randrange(3)] = chance.choice(
                    [Fault.REFUSED, Fault.REQUEST_LOST, Fault.REPLY_LOST]
                )
            deletes = chance.random() < 0.4
            try:
                if deletes:
                    await node.coordinator.delete_offsets("g", DeleteOffsets(tuple(chosen)))
                else:
                    await node.coordinator.commit("g", simple({partition: committed(number) for partition in chosen}))
            except Closed:
                assert faulty or node.metadata.faults
                for partition in chosen:
                    may[partition] |= {-1 if deletes else number}
            else:
                may |= {partition: {-1 if deletes else number} for partition in chosen}
            if chance.random() < 0.2:
                (await find(node, "g")).close(GroupError.NOT_COORDINATOR)
            stored = (await find(node, "g")).stored
            found = {partition: -1 if (one := stored.offset(partition)) is None else one.offset for partition in partitions}
            assert all(offset in may[partition] for partition, offset in found.items())
            may = {partition: {offset} for partition, offset in found.items()}


async def test_no_request_is_too_large_however_long_the_name_of_the_group_is() -> None:
    async with world(settings=SETTINGS) as made:
        node = await made.node(1)
        topic = await topic_of(node, partition_count=1_500)
        partitions = [topic.partition(number) for number in range(1_500)]

        async def check(ops: Sequence[WriteOp]) -> None:
            check_ops(ops, node.metadata.shard_of)

        node.metadata.before_write = check
        name = "g" * GROUP_NAME_BYTES_MAX
        await commit(node, name, *partitions)
        await commit(node, name, *partitions)
        (await node.coordinator.find(name)).close(GroupError.NOT_COORDINATOR)
        assert set((await node.coordinator.find(name)).stored.offsets) == set(partitions)
        assert await node.coordinator.delete_offsets(name, DeleteOffsets(tuple(partitions))) is GroupError.NONE

        assert (await node.coordinator.find(name)).stored.offsets == {}


async def find(node: Node, group: str) -> LoadedGroup:
    """Asked again as long as faults befall it."""
    while True:
        try:
            return await node.coordinator.find(group)
        except Closed:
            continue
