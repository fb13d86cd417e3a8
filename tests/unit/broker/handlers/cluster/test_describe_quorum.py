from typing import Any

import pytest
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode

from broker.handlers.cluster import describe_quorum
from tests.unit.broker.handlers.asking import Cluster, cluster, error_of


async def ask(broker: Cluster, *asked: tuple[str, int], version: int = 2) -> Any:
    cls: Any = load_request_schema(55, version)
    module = __import__(cls.__module__, fromlist=["x"])
    request = cls(
        topics=tuple(
            module.TopicData(topic_name=name, partitions=(module.PartitionData(partition_index=partition),)) for name, partition in asked
        )
    )
    return await broker.ask(describe_quorum.handle, request)


@pytest.mark.parametrize("version", range(3))
async def test_the_live_brokers_are_told_as_voters_and_the_one_that_answers_as_the_leader(version: int) -> None:
    async with cluster(broker_id=2) as broker:
        await broker.join(5)
        answer = await ask(broker, ("__cluster_metadata", 0), version=version)
        now_ms = broker.clock.now_ms()
    (partition,) = answer.topics[0].partitions

    assert (error_of(answer), error_of(partition), answer.topics[0].topic_name) == (ErrorCode.none, ErrorCode.none, "__cluster_metadata")
    assert (partition.leader_id, partition.leader_epoch, partition.high_watermark, partition.observers) == (2, 0, 0, ())
    assert [(voter.replica_id, voter.log_end_offset) for voter in partition.current_voters] == [(2, 0), (5, 0)]
    if version >= 1:
        assert {voter.last_fetch_timestamp for voter in partition.current_voters} == {now_ms}
    if version >= 2:
        assert [(node.node_id, node.listeners[0].host, node.listeners[0].port) for node in answer.nodes] == [
            (2, "broker-2", 9002),
            (5, "broker-5", 9005),
        ]


@pytest.mark.parametrize("asked", [("__cluster_metadata", 1), ("t", 0), ("", 0), ("__cluster_metadata", -1)])
async def test_any_other_partition_is_unknown(asked: tuple[str, int]) -> None:
    async with cluster() as broker:
        await broker.create("t")
        answer = await ask(broker, asked)
    (partition,) = answer.topics[0].partitions

    assert (error_of(answer), error_of(partition)) == (ErrorCode.none, ErrorCode.unknown_topic_or_partition)
    assert (partition.current_voters, answer.nodes) == ((), ())


async def test_brokers_that_cannot_be_read_are_an_error() -> None:
    async with cluster() as broker:
        broker.metadata.reads_fail = True
        answer = await ask(broker, ("__cluster_metadata", 0))

    assert (error_of(answer), answer.topics) == (ErrorCode.kafka_storage_error, ())
