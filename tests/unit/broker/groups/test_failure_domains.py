"""One of four metadata shards is silent: what the coordinator of groups does all the same for those of the other three."""

import asyncio
import itertools

import pytest

from broker.cluster.leadership import slot_of
from broker.groups.group import Closed
from broker.groups.state import GroupError
from broker.limits import GroupLimits
from storage.metadata import keys
from storage.metadata.port import Delete
from tests.kit.coordinating import Node, stable, world
from tests.kit.group_offsets import commit, keys_of, restarted, topic_of
from tests.unit.broker.groups.test_sweep import HOUR_MS, SETTINGS

SOON_S = 25.0


def by_shard(node: Node, *, each: int = 2) -> dict[int, list[str]]:
    """So many groups of every shard but that of the claims, the first shard being the one that sweeps come to first."""
    found: dict[int, list[str]] = {}
    for slot in range(64):
        shard = node.metadata.shard_of(keys.group_partition_key(slot))
        if shard != node.metadata.shard_of(keys.ROOT):
            found.setdefault(shard, [])
    for number in range(200):
        groups = found.get(node.metadata.shard_of(keys.group_partition_key(slot_of(f"g{number}"))))
        if groups is not None and len(groups) < each:
            groups.append(f"g{number}")
    return found


@pytest.mark.parametrize("is_loaded", [False, True])
async def test_a_sweep_goes_on_with_the_other_shards_when_one_is_silent(is_loaded: bool) -> None:
    limits = GroupLimits(silent_after_s=0.05, sweep_deadline_s=0.2)
    async with world(settings=SETTINGS, limits=limits) as made, asyncio.timeout(3 * SOON_S):
        node = await made.node(1)
        topic = await topic_of(node)
        groups = by_shard(node)
        for group in itertools.chain(*groups.values()):
            await commit(node, group, topic.partition(0))
        if not is_loaded:
            node = await restarted(made, node)
        made.clock.wall_ms += HOUR_MS
        first, *others = groups
        node.metadata.muted.add(first)
        await node.coordinator.sweep()
        node.metadata.speak()

        assert [await keys_of(node, group) for group in groups[first]] == [2, 2]
        for shard in others:
            assert [await keys_of(node, group) for group in groups[shard]] == [0, 0]
        await node.coordinator.sweep()
        assert [await keys_of(node, group) for group in groups[first]] == [0, 0]


async def test_a_shard_that_falls_silent_while_it_is_swept_is_left_until_the_next_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = GroupLimits(silent_after_s=0.05, request_deadline_s=0.1)
    async with world(settings=SETTINGS, limits=limits) as made, asyncio.timeout(3 * SOON_S):
        node = await made.node(1)
        topic = await topic_of(node)
        groups = by_shard(node)
        for group in itertools.chain(*groups.values()):
            await commit(node, group, topic.partition(0))
        node = await restarted(made, node)
        made.clock.wall_ms += HOUR_MS
        first, *others = groups
        find = node.coordinator.find
        asked = []

        async def silenced(group: str) -> object:
            asked.append(group)
            if group in groups[first]:
                node.metadata.muted.add(first)
            return await find(group)

        monkeypatch.setattr(node.coordinator._sweep, "_find", silenced)
        await node.coordinator.sweep()
        node.metadata.speak()

        assert len(set(asked) & set(groups[first])) == 1
        for shard in others:
            assert [await keys_of(node, group) for group in groups[shard]] == [0, 0]


async def test_offsets_that_are_old_are_forgotten_though_nobody_can_read_which_topics_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(settings=SETTINGS, limits=GroupLimits(silent_after_s=0.05)) as made, asyncio.timeout(3 * SOON_S):
        node = await made.node(1)
        topic = await topic_of(node)
        (group, *_), *_ = by_shard(node).values()
        await commit(node, group, topic.partition(0))
        made.clock.wall_ms += HOUR_MS
        own = await node.coordinator.slots.own()

        async def known() -> list[int]:
            node.metadata.muted.add(node.metadata.shard_of(keys.ROOT))
            return own

        monkeypatch.setattr(node.coordinator.slots, "own", known)
        await node.coordinator.sweep()
        node.metadata.speak()

        assert await keys_of(node, group) == 0


async def test_members_hear_at_once_that_their_coordinator_lost_its_registration_though_the_shard_of_claims_is_silent() -> None:
    async with world() as made, asyncio.timeout(3 * SOON_S):
        node = await made.node(1)
        await stable(node, "g")
        loaded = await node.coordinator.find("g")
        reads = len(node.metadata.reads)
        node.metadata.muted.add(node.metadata.shard_of(keys.ROOT))
        while len(node.metadata.reads) == reads:  # noqa: ASYNC110 - the check of the slots is under way, and will not end
            await asyncio.sleep(0.02)
        await node.lose_session()
        async with asyncio.timeout(SOON_S):
            while loaded.is_open:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        with pytest.raises(Closed) as closed:
            await node.coordinator.find("g")
        node.metadata.speak()

        assert closed.value.error is GroupError.NOT_COORDINATOR


async def test_a_slot_that_was_taken_is_given_up_though_the_shard_of_another_slot_s_groups_is_silent() -> None:
    async with world(settings=SETTINGS) as made, asyncio.timeout(3 * SOON_S):
        node = await made.node(1)
        topic = await topic_of(node)
        (silent, (stuck, *_)), (_, (taken, *_)), *_ = by_shard(node).items()
        await commit(node, stuck, topic.partition(0))
        await commit(node, taken, topic.partition(0))
        loaded = await node.coordinator.find(taken)
        node.metadata.muted.add(silent)
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(node.coordinator.checked(stuck))
            await node.metadata.store.client().write([Delete(keys.coordinator(slot_of(taken)))])
            async with asyncio.timeout(SOON_S):
                while loaded.is_open:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            assert not waiting.done()
            node.metadata.speak()
