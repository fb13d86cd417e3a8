from typing import Any

from kio.schema.describe_producers.v0 import DescribeProducersRequest
from kio.schema.describe_producers.v0.request import TopicRequest
from kio.schema.errors import ErrorCode

from broker.handlers.log import describe_producers
from storage.errors import Unavailable
from storage.log.page_store import ActiveProducer
from tests.unit.broker.handlers.asking import Cluster, cluster, error_of


async def ask(broker: Cluster, *topics: tuple[str, tuple[int, ...]]) -> dict[tuple[str, int], Any]:
    asked: Any = tuple(TopicRequest(name=name, partition_indexes=partitions) for name, partitions in topics)  # type: ignore[arg-type]
    answer = await broker.ask(describe_producers.handle, DescribeProducersRequest(topics=asked))
    return {(topic.name, found.partition_index): found for topic in answer.topics for found in topic.partitions}


async def test_the_producers_of_each_partition_are_described() -> None:
    async with cluster() as broker:
        topic = await broker.create("t", partition_count=2)
        broker.producers.known[topic.partition(1)] = [ActiveProducer(7, 2, 40, 1_234, -1), ActiveProducer(9, 0, -1, -1, 17)]
        answers = await ask(broker, ("t", (0, 1)))

    assert [error_of(found) for found in answers.values()] == [ErrorCode.none] * 2
    assert answers["t", 0].active_producers == ()
    first, second = answers["t", 1].active_producers
    assert (first.producer_id, first.producer_epoch, first.last_sequence, first.last_timestamp) == (7, 2, 40, 1_234)
    assert (first.coordinator_epoch, first.current_txn_start_offset) == (-1, -1)
    assert (second.producer_id, second.last_sequence, second.current_txn_start_offset) == (9, -1, 17)


async def test_what_does_not_exist_or_cannot_be_read_is_said_by_partition() -> None:
    async with cluster() as broker:
        topic = await broker.create("t")
        broken = await broker.create("broken")
        broker.producers.known[broken.partition(0)] = Unavailable("x")
        answers = await ask(broker, ("t", (0, 1)), ("nothing", (0,)), ("broken", (0,)))

    assert topic.partition_count == 1
    assert {asked: error_of(found) for asked, found in answers.items()} == {
        ("t", 0): ErrorCode.none,
        ("t", 1): ErrorCode.unknown_topic_or_partition,
        ("nothing", 0): ErrorCode.unknown_topic_or_partition,
        ("broken", 0): ErrorCode.kafka_storage_error,
    }


async def test_a_catalog_that_does_not_answer_is_retriable() -> None:
    async with cluster() as broker:
        await broker.create("t")
        broker.metadata.reads_fail = True

        assert [error_of(found) for found in (await ask(broker, ("t", (0,)))).values()] == [ErrorCode.kafka_storage_error]
