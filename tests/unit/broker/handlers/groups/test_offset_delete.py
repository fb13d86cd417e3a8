from typing import Any

from kio.schema.errors import ErrorCode

from broker.handlers.groups import offset_delete
from tests.unit.broker.handlers.asking import Cluster, cluster, error_of
from tests.unit.broker.handlers.grouped import commit, fetched, join, member, nested, request_of, sync

SUBSCRIBED_TO_T = b"\x00\x01\x00\x00\x00\x01\x00\x01t\xff\xff\xff\xff"


async def delete(broker: Cluster, topic: str, *partitions: int, group: str = "g") -> Any:
    named = tuple(nested(47, 0, "OffsetDeleteRequestPartition", partition_index=partition) for partition in partitions)
    topics = (nested(47, 0, "OffsetDeleteRequestTopic", name=topic, partitions=named),)
    answer = await broker.ask(offset_delete.handle, request_of(47, 0, group_id=group, topics=topics))
    return error_of(answer) or [error_of(partition) for partition in answer.topics[0].partitions]


async def test_offsets_are_forgotten_one_by_one() -> None:
    async with cluster() as broker:
        await broker.create("t", partition_count=3)
        await commit(broker, 9, {0: 1, 1: 2})

        assert await delete(broker, "t", 0, 2, 5) == [ErrorCode.none, ErrorCode.none, ErrorCode.unknown_topic_or_partition]
        assert await fetched(broker, 9, None) == {("t", 1): (2, "", 0)}


async def test_topics_that_a_member_wants_keep_theirs() -> None:
    async with cluster() as broker:
        await broker.create("t")
        await broker.create("other")
        await commit(broker, 9, {0: 1})
        await commit(broker, 9, {0: 1}, topic="other")
        protocols = (nested(11, 3, "JoinGroupRequestProtocol", name="range", metadata=SUBSCRIBED_TO_T),)
        joined = await join(broker, 3, protocols=protocols)
        await sync(broker, 5, joined, {})

        assert await delete(broker, "t", 0) == [ErrorCode.group_subscribed_to_topic]
        assert await delete(broker, "other", 0) == [ErrorCode.none]
        assert await fetched(broker, 9, None) == {("t", 0): (1, "", 0)}


async def test_a_group_whose_members_are_no_consumers_keeps_all() -> None:
    async with cluster() as broker:
        await broker.create("t")
        await join(broker, 3, protocol_type="connect")

        assert await delete(broker, "t", 0) is ErrorCode.non_empty_group


async def test_consumers_that_say_it_in_another_way_may_want_everything() -> None:
    async with cluster() as broker:
        await broker.create("t")
        await member(broker)

        assert await delete(broker, "t", 0, 5) == [ErrorCode.group_subscribed_to_topic, ErrorCode.unknown_topic_or_partition]


async def test_a_group_without_a_name_has_no_offsets() -> None:
    async with cluster() as broker:
        await broker.create("t")

        assert await delete(broker, "t", 0, group="") is ErrorCode.invalid_group_id


async def test_a_group_that_is_not_there_has_none() -> None:
    async with cluster() as broker:
        assert await delete(broker, "t", 0) == [ErrorCode.unknown_topic_or_partition]
        await broker.create("t")
        assert await delete(broker, "t", 0) is ErrorCode.group_id_not_found
        await broker.lose_registration()
        assert await delete(broker, "t", 0) is ErrorCode.not_coordinator


async def test_offsets_of_the_incarnation_that_has_the_name_are_forgotten_though_no_hint_told_of_it() -> None:
    async with cluster() as broker:
        broker.topics.close()
        old = await broker.create("t")
        other = await broker.other_topics()
        await other.delete(old)
        await other.create("t", partition_count=2, replication_factor=1, configs={})
        await commit(broker, 9, {0: 1, 1: 1})
        broker.topics._remember(old, float("inf"))

        assert await delete(broker, "t", 0, 1) == [ErrorCode.none, ErrorCode.none]
        assert await fetched(broker, 9, {"t": (0, 1)}) == {("t", 0): (-1, "", 0), ("t", 1): (-1, "", 0)}
