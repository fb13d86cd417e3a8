"""Offsets of groups as brokers over one store have them: committed, counted, and taken over by another broker."""

import asyncio

from broker.cluster.leadership import COORDINATOR_SLOTS, slot_of
from broker.groups.state import GroupError
from storage.catalog.groups import topics_key
from storage.catalog.topics import Topic
from storage.metadata.keys import GroupKeys
from storage.vocabulary import PartitionId
from tests.kit.coordinating import Node, World, committed, simple


async def topic_of(node: Node, name: str = "t", partition_count: int = 1) -> Topic:
    topic = await node.topics.create(name, partition_count=partition_count, replication_factor=1, configs={})
    node.partitions.update(topic.partition(number) for number in range(partition_count))
    return topic


async def commit(node: Node, group: str, *partitions: PartitionId) -> None:
    node.partitions.update(partitions)
    now_ms = node.clock.now_ms()
    offsets = {partition: committed(1)._replace(committed_at_ms=now_ms) for partition in partitions}
    assert await node.coordinator.commit(group, simple(offsets)) is GroupError.NONE


async def keys_of(node: Node, group: str) -> int:
    """Records of the group and of its offsets."""
    group_keys = GroupKeys(group, slot_of(group))
    pages = [topics_key(group_keys, page) for page in range(9)]
    found = await node.metadata.get_many([group_keys.group, *pages, *map(group_keys.offset, node.partitions)])
    return sum(record is not None for record in found)


async def restarted(made: World, old: Node) -> Node:
    """Another broker in place of the old one; all groups are its own, and none is loaded."""
    new = await made.node(2)
    await old.lose_session()
    old.coordinator.stop()
    async with asyncio.timeout(25):
        while len(await new.coordinator.slots.own()) < COORDINATOR_SLOTS:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return new
