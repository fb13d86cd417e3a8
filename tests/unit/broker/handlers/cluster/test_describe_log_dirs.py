from typing import Any

import pytest
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode

from broker.handlers.cluster import describe_log_dirs
from broker.handlers.cluster.describe_log_dirs import size_bytes
from storage.errors import Corrupt, Unavailable
from storage.log.fresh_reads import LogBounds
from tests.unit.broker.handlers.asking import Cluster, cluster, error_of


async def ask(broker: Cluster, *topics: tuple[str, tuple[int, ...]], everything: bool = False, version: int = 5) -> Any:
    cls: Any = load_request_schema(35, version)
    module = __import__(cls.__module__, fromlist=["x"])
    asked = None if everything else tuple(module.DescribableLogDirTopic(topic=name, partitions=partitions) for name, partitions in topics)
    answer = await broker.ask(describe_log_dirs.handle, cls(topics=asked))
    (folder,) = answer.results
    return folder


def sizes(folder: Any) -> dict[tuple[str, int], int]:
    return {(topic.name, found.partition_index): found.partition_size for topic in folder.topics for found in topic.partitions}


@pytest.mark.parametrize("version", range(1, 6))
async def test_all_partitions_are_in_one_directory_with_their_sizes(version: int) -> None:
    async with cluster() as broker:
        one, other = await broker.create("one", partition_count=2), await broker.create("other")
        broker.bounds.known[one.partition(1)] = LogBounds(log_start=0, high_watermark=10, bytes_total=1_000)
        broker.bounds.known[other.partition(0)] = LogBounds(log_start=8, high_watermark=10, bytes_total=500)
        folder = await ask(broker, everything=True, version=version)

    assert (error_of(folder), folder.log_dir) == (ErrorCode.none, "object-store")
    assert sizes(folder) == {("one", 0): 0, ("one", 1): 1_000, ("other", 0): 100}
    assert all(found.offset_lag == 0 and not found.is_future_key for topic in folder.topics for found in topic.partitions)
    if version >= 4:
        assert (folder.total_bytes, folder.usable_bytes) == (-1, -1)


@pytest.mark.parametrize(("log_start", "expected"), [(0, 100), (1, 66), (3, 0)])
def test_a_size_shrinks_with_the_log(log_start: int, expected: int) -> None:
    assert size_bytes(LogBounds(log_start=log_start, high_watermark=3, bytes_total=100)) == expected


async def test_partitions_are_asked_for_and_those_that_do_not_exist_are_left_out() -> None:
    async with cluster() as broker:
        await broker.create("t", partition_count=3)
        folder = await ask(broker, ("t", (2, 0, 9)), ("nothing", (0,)), ("no/name", (0,)), ("t", (0, 1)))

    assert sorted(sizes(folder)) == [("t", 0), ("t", 1), ("t", 2)]


async def test_a_cluster_without_topics_is_an_empty_directory() -> None:
    async with cluster() as broker:
        every, none = await ask(broker, everything=True), await ask(broker, ("nothing", (0,)))

    assert (error_of(every), every.topics, none.topics) == (ErrorCode.none, (), ())


async def test_a_partition_whose_record_is_broken_is_left_out() -> None:
    async with cluster() as broker:
        topic = await broker.create("t", partition_count=2)
        broker.bounds.known[topic.partition(0)] = Corrupt("x")
        folder = await ask(broker, everything=True)

    assert (error_of(folder), list(sizes(folder))) == (ErrorCode.none, [("t", 1)])


async def test_a_store_that_does_not_answer_is_an_error_of_the_directory() -> None:
    async with cluster() as broker:
        topic = await broker.create("t")
        broker.bounds.known[topic.partition(0)] = Unavailable("x")
        bounds = await ask(broker, everything=True)
        broker.metadata.reads_fail = True
        catalog = await ask(broker, ("t", (0,)))

    assert [error_of(bounds), error_of(catalog)] == [ErrorCode.kafka_storage_error] * 2
    assert (bounds.topics, catalog.topics) == ((), ())
