from typing import Any

import pytest
from kio.schema.describe_topic_partitions.v0 import DescribeTopicPartitionsRequest
from kio.schema.describe_topic_partitions.v0.request import Cursor, TopicRequest
from kio.schema.errors import ErrorCode

from broker.handlers.topics import describe_topic_partitions
from broker.handling.kio_types import TOPIC_OPERATIONS
from tests.unit.broker.handlers.asking import Cluster, as_uuid, cluster, error_of


async def ask(broker: Cluster, *names: str, limit: int = 2_000, cursor: tuple[str, int] | None = None) -> Any:
    topics: Any = tuple(TopicRequest(name=name) for name in names)  # type: ignore[arg-type]
    at: Any = None if cursor is None else Cursor(topic_name=cursor[0], partition_index=cursor[1])  # type: ignore[arg-type]
    asked: Any = limit
    return await broker.ask(
        describe_topic_partitions.handle, DescribeTopicPartitionsRequest(topics=topics, response_partition_limit=asked, cursor=at)
    )


def partitions(answer: Any) -> list[tuple[str, int]]:
    return [(topic.name, found.partition_index) for topic in answer.topics for found in topic.partitions]


async def test_a_topic_is_described_with_leaders_and_replicas() -> None:
    async with cluster(broker_id=3) as broker:
        await broker.join(5)
        created = await broker.create("t", partition_count=2, replication_factor=3)
        answer = await ask(broker, "t")

    (topic,) = answer.topics
    assert (error_of(topic), topic.name, topic.topic_id, topic.is_internal) == (ErrorCode.none, "t", as_uuid(created), False)
    assert topic.topic_authorized_operations == TOPIC_OPERATIONS
    assert answer.next_cursor is None
    for number, found in enumerate(topic.partitions):
        assert (error_of(found), found.partition_index, found.leader_id, found.leader_epoch) == (ErrorCode.none, number, 3, 0)
        assert found.replica_nodes == found.isr_nodes == (3, 5)
        assert (found.eligible_leader_replicas, found.last_known_elr, found.offline_replicas) == ((), (), ())


async def test_no_names_are_all_topics_in_their_order() -> None:
    async with cluster() as broker:
        for name in ("b", "a", "c"):
            await broker.create(name)
        answer = await ask(broker)

    assert partitions(answer) == [("a", 0), ("b", 0), ("c", 0)]


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 2_000, 10**6])
async def test_pages_hold_every_partition_once(limit: int) -> None:
    async with cluster() as broker:
        for name, count in (("a", 3), ("b", 1), ("c", 4)):
            await broker.create(name, partition_count=count)
        found: list[tuple[str, int]] = []
        cursor: tuple[str, int] | None = None
        while True:
            answer = await ask(broker, "c", "a", "b", limit=limit, cursor=cursor)
            assert 0 < len(partitions(answer)) <= limit
            found += partitions(answer)
            if answer.next_cursor is None:
                break
            cursor = answer.next_cursor.topic_name, answer.next_cursor.partition_index

    assert found == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("c", 0), ("c", 1), ("c", 2), ("c", 3)]


@pytest.mark.parametrize("limit", [0, -1])
async def test_a_limit_below_one_is_one(limit: int) -> None:
    async with cluster() as broker:
        await broker.create("t", partition_count=2)
        answer = await ask(broker, "t", limit=limit)

    assert (partitions(answer), answer.next_cursor.partition_index) == ([("t", 0)], 1)


async def test_a_large_topic_comes_in_pages_of_the_broker_s_choice() -> None:
    async with cluster() as broker:
        await broker.create("t", partition_count=2_001)
        answer = await ask(broker, "t", limit=10**6)

    assert len(partitions(answer)) == 2_000
    assert (answer.next_cursor.topic_name, answer.next_cursor.partition_index) == ("t", 2_000)


async def test_a_cursor_whose_topic_is_gone_goes_on_with_the_next() -> None:
    async with cluster() as broker:
        await broker.create("a")
        await broker.create("c")

        assert partitions(await ask(broker, cursor=("b", 7))) == [("c", 0)]


async def test_a_cursor_behind_the_last_partition_goes_on_with_the_next_topic() -> None:
    async with cluster() as broker:
        await broker.create("a")
        await broker.create("c")

        assert partitions(await ask(broker, cursor=("a", 7))) == [("c", 0)]


async def test_what_is_not_there_is_said_by_topic_and_not_created() -> None:
    async with cluster(auto_create=True) as broker:
        await broker.create("t")
        answer = await ask(broker, "nothing", "no/name", "t")

        assert {topic.name: error_of(topic) for topic in answer.topics} == {
            "nothing": ErrorCode.unknown_topic_or_partition,
            "no/name": ErrorCode.invalid_topic_exception,
            "t": ErrorCode.none,
        }
        assert [topic.name for topic in await broker.topics.all()] == ["t"]


async def test_a_cursor_below_partition_0_is_refused() -> None:
    async with cluster() as broker:
        await broker.create("t")
        answer = await ask(broker, "t", cursor=("t", -1))

    assert [error_of(topic) for topic in answer.topics] == [ErrorCode.invalid_request]


async def test_internal_topics_are_said_to_be_internal() -> None:
    async with cluster() as broker:
        await broker.create("__consumer_offsets")
        answer = await ask(broker, "__consumer_offsets", "__transaction_state", "__mine")

    assert [(topic.name, topic.is_internal) for topic in answer.topics] == [
        ("__consumer_offsets", True),
        ("__mine", False),
        ("__transaction_state", True),
    ]
