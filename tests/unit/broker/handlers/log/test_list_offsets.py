import asyncio
import datetime
from typing import Any

import pytest
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode

from broker.handlers.log import list_offsets
from broker.limits import BrokerLimits
from storage.catalog.topics import Topic
from storage.errors import Corrupt, NotFound, Unavailable
from storage.log.fresh_reads import LogBounds
from storage.log.time_search import TimestampedOffset
from tests.unit.broker.handlers.asking import Cluster, cluster, error_of

NONE = (ErrorCode.none, -1, -1, -1)


def request(version: int, asked: list[tuple[str, int, int]], **partition_fields: int) -> Any:
    """`asked` is (topic, partition, timestamp)."""
    cls = load_request_schema(2, version)
    module = __import__(cls.__module__, fromlist=["x"])
    topics = tuple(
        module.ListOffsetsTopic(
            name=name,
            partitions=(module.ListOffsetsPartition(partition_index=partition, timestamp=timestamp, **partition_fields),),
        )
        for name, partition, timestamp in asked
    )
    more: dict[str, Any] = {}
    if version >= 2:
        more["isolation_level"] = 1
    if version >= 10:
        more["timeout"] = datetime.timedelta(seconds=1)
    return cls(replica_id=-1, topics=topics, **more)


async def ask(broker: Cluster, version: int, asked: list[tuple[str, int, int]], **fields: int) -> list[tuple[ErrorCode, int, int, int]]:
    answer = await broker.ask(list_offsets.handle, request(version, asked, **fields))
    assert [(topic.name, topic.partitions[0].partition_index) for topic in answer.topics] == [entry[:2] for entry in asked]
    return [
        (error_of(found), found.offset, found.timestamp, getattr(found, "leader_epoch", 0))
        for topic in answer.topics
        for found in topic.partitions
    ]


def set_bounds(broker: Cluster, topic: Topic, partition: int, log_start: int, high_watermark: int) -> None:
    broker.bounds.known[topic.partition(partition)] = LogBounds(log_start, high_watermark, 0)


@pytest.mark.parametrize("version", range(1, 11))
async def test_the_ends_of_the_log(version: int) -> None:
    async with cluster() as broker:
        set_bounds(broker, await broker.create("t", partition_count=2), 1, 5, 9)
        answers = await ask(broker, version, [("t", 1, -1), ("t", 0, -2)])
        earliest = await ask(broker, version, [("t", 1, -2)])

    assert answers == [(ErrorCode.none, 9, -1, 0), (ErrorCode.none, 0, -1, 0)]
    assert earliest == [(ErrorCode.none, 5, -1, 0)]


async def test_the_earliest_local_offset_is_the_log_start_and_nothing_is_tiered() -> None:
    async with cluster() as broker:
        set_bounds(broker, await broker.create("t", partition_count=2), 0, 5, 9)

        assert await ask(broker, 10, [("t", 0, -4), ("t", 1, -5)]) == [(ErrorCode.none, 5, -1, 0), NONE]


async def test_timestamps_are_searched_for() -> None:
    async with cluster() as broker:
        topic = await broker.create("t", partition_count=2)
        broker.timestamps.found = TimestampedOffset(7, 1_500)
        broker.timestamps.maximum = TimestampedOffset(8, 2_000)

        assert await ask(broker, 10, [("t", 0, 1_400), ("t", 1, -3)]) == [(ErrorCode.none, 7, 1_500, 0), (ErrorCode.none, 8, 2_000, 0)]
        assert broker.timestamps.searches == [(topic.partition(0), 1_400)]


async def test_what_there_is_none_of_is_minus_one() -> None:
    async with cluster() as broker:
        await broker.create("t", partition_count=2)

        assert await ask(broker, 10, [("t", 0, 0), ("t", 1, -3)]) == [NONE, NONE]


@pytest.mark.parametrize(("version", "timestamp"), [(6, -3), (7, -4), (8, -5), (10, -6), (10, -(2**62))])
async def test_a_negative_timestamp_of_another_version_is_not_supported(version: int, timestamp: int) -> None:
    async with cluster() as broker:
        await broker.create("t")

        assert await ask(broker, version, [("t", 0, timestamp)]) == [(ErrorCode.unsupported_version, -1, -1, -1)]


@pytest.mark.parametrize(("epoch", "code"), [(1, ErrorCode.unknown_leader_epoch), (-2, ErrorCode.fenced_leader_epoch), (0, ErrorCode.none)])
async def test_the_current_leader_epoch_is_checked(epoch: int, code: ErrorCode) -> None:
    async with cluster() as broker:
        await broker.create("t")

        assert [answer[0] for answer in await ask(broker, 4, [("t", 0, -1)], current_leader_epoch=epoch)] == [code]


async def test_what_does_not_exist_is_said_per_partition() -> None:
    async with cluster() as broker:
        await broker.create("t")
        answers = await ask(broker, 10, [("t", 0, -1), ("t", 1, -1), ("t", -1, -1), ("nothing", 0, -1), ("no/name", 0, -1)])

    assert [answer[0] for answer in answers] == [ErrorCode.none] + [ErrorCode.unknown_topic_or_partition] * 4


async def test_a_partition_named_twice_is_invalid_both_times() -> None:
    async with cluster() as broker:
        await broker.create("t", partition_count=2)
        answers = await ask(broker, 10, [("t", 0, -1), ("t", 0, -2), ("t", 1, -1)])

    assert [answer[0] for answer in answers] == [ErrorCode.invalid_request, ErrorCode.invalid_request, ErrorCode.none]


async def test_all_partitions_are_read_at_once() -> None:
    async with cluster() as broker:
        await broker.create("t", partition_count=40)
        await ask(broker, 10, [("t", partition, -1) for partition in range(40)])

        assert [len(call) for call in broker.bounds.calls] == [40]


@pytest.mark.parametrize(
    ("error", "code"), [(Unavailable("x"), ErrorCode.kafka_storage_error), (Corrupt("x"), ErrorCode.kafka_storage_error)]
)
async def test_one_unreadable_partition_does_not_spoil_the_others(error: Exception, code: ErrorCode) -> None:
    async with cluster() as broker:
        topic = await broker.create("t", partition_count=2)
        broker.bounds.known[topic.partition(0)] = error
        answers = await ask(broker, 10, [("t", 0, -1), ("t", 1, -1)])

    assert [answer[0] for answer in answers] == [code, ErrorCode.none]


async def test_a_search_that_fails_is_said_for_its_partition() -> None:
    async with cluster() as broker:
        await broker.create("t", partition_count=2)
        broker.timestamps.found = Unavailable("slow")
        answers = await ask(broker, 10, [("t", 0, 5), ("t", 1, -1)])

    assert [answer[0] for answer in answers] == [ErrorCode.kafka_storage_error, ErrorCode.none]


async def test_many_searches_are_all_answered() -> None:
    async with cluster() as broker:
        await broker.create("t", partition_count=100)
        broker.timestamps.found = TimestampedOffset(1, 1)
        answers = await ask(broker, 10, [("t", partition, 0) for partition in range(100)])

    assert answers == [(ErrorCode.none, 1, 1, 0)] * 100


async def test_a_topic_recreated_elsewhere_is_found_although_the_cache_is_behind() -> None:
    async with cluster() as broker:
        old = await broker.create("t")
        broker.topics.close()
        elsewhere = await broker.other_topics()
        await elsewhere.delete(old)
        new = await elsewhere.create("t", partition_count=2, replication_factor=1, configs={})
        set_bounds(broker, new, 1, 0, 3)

        assert await ask(broker, 10, [("t", 0, -1), ("t", 1, -1)]) == [(ErrorCode.none, 0, -1, 0), (ErrorCode.none, 3, -1, 0)]


async def test_a_topic_deleted_elsewhere_is_gone_although_the_cache_is_behind() -> None:
    async with cluster() as broker:
        old = await broker.create("t")
        broker.topics.close()
        await (await broker.other_topics()).delete(old)

        assert await ask(broker, 10, [("t", 0, -1)]) == [(ErrorCode.unknown_topic_or_partition, -1, -1, -1)]


async def test_topics_that_cannot_be_looked_up_are_a_retriable_error() -> None:
    async with cluster() as broker:
        broker.metadata.reads_fail = True

        assert [answer[0] for answer in await ask(broker, 10, [("t", 0, -1)])] == [ErrorCode.kafka_storage_error]


async def test_a_partition_gone_between_two_reads_is_not_invented() -> None:
    async with cluster() as broker:
        topic = await broker.create("t")
        broker.bounds.known[topic.partition(0)] = NotFound("gone")

        assert [answer[0] for answer in await ask(broker, 10, [("t", 0, -1)])] == [ErrorCode.unknown_topic_or_partition]


async def test_a_search_that_takes_too_long_is_refused_alone() -> None:
    async with cluster(limits=BrokerLimits(search_timeout_s=0.05)) as broker:
        topic = await broker.create("t", partition_count=3)
        for partition in range(3):
            set_bounds(broker, topic, partition, 0, 9)
        broker.timestamps.found = TimestampedOffset(3, 40)
        broker.timestamps.stuck = topic.partition(1)
        async with asyncio.timeout(25):
            answers = await ask(broker, 7, [("t", 0, 40), ("t", 1, 40), ("t", 2, 40)])

    assert answers == [(ErrorCode.none, 3, 40, 0), (ErrorCode.kafka_storage_error, -1, -1, -1), (ErrorCode.none, 3, 40, 0)]
