from typing import Any

import pytest
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode

from broker.handlers.topics import alter_partition_reassignments
from tests.unit.broker.handlers.asking import Cluster, cluster, error_of

FetchPartitionStatus = tuple[str, int, tuple[int, ...] | None]


async def ask(broker: Cluster, *wanted: FetchPartitionStatus, version: int = 1, **fields: bool) -> Any:
    cls: Any = load_request_schema(45, version)
    module = __import__(cls.__module__, fromlist=["x"])
    topics = tuple(
        module.ReassignableTopic(name=name, partitions=(module.ReassignablePartition(partition_index=partition, replicas=replicas),))
        for name, partition, replicas in wanted
    )
    return await broker.ask(alter_partition_reassignments.handle, cls(topics=topics, **fields))


def errors(answer: Any) -> list[ErrorCode]:
    return [error_of(found) for topic in answer.responses for found in topic.partitions]


@pytest.mark.parametrize("version", range(2))
async def test_a_valid_assignment_is_accepted_and_changes_nothing(version: int) -> None:
    async with cluster() as broker:
        await broker.join(2)
        topic = await broker.create("t")
        answer = await ask(broker, ("t", 0, (2, 1)), version=version)

        assert (error_of(answer), errors(answer)) == (ErrorCode.none, [ErrorCode.none])
        assert (await broker.topics.lookup_now(["t"]))["t"] == topic


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (("nothing", 0, (1,)), ErrorCode.unknown_topic_or_partition),
        (("t", 1, (1,)), ErrorCode.unknown_topic_or_partition),
        (("t", 0, None), ErrorCode.no_reassignment_in_progress),
        (("t", 0, ()), ErrorCode.invalid_replica_assignment),
        (("t", 0, (1, 1)), ErrorCode.invalid_replica_assignment),
        (("t", 0, (-1,)), ErrorCode.invalid_replica_assignment),
        (("t", 0, (9,)), ErrorCode.invalid_replica_assignment),
    ],
)
async def test_what_cannot_be_assigned_is_said_and_does_not_spoil_the_rest(wanted: FetchPartitionStatus, code: ErrorCode) -> None:
    async with cluster() as broker:
        await broker.create("t")
        await broker.create("u")

        assert errors(await ask(broker, wanted, ("u", 0, (1,)))) == [code, ErrorCode.none]


async def test_another_number_of_replicas_is_refused_where_the_request_forbids_it() -> None:
    async with cluster() as broker:
        await broker.join(2)
        await broker.create("t")
        answer = await ask(broker, ("t", 0, (1, 2)), allow_replication_factor_change=False)

    assert errors(answer) == [ErrorCode.invalid_replication_factor]
    assert not answer.allow_replication_factor_change


async def test_a_store_that_does_not_answer_is_retriable() -> None:
    async with cluster() as broker:
        await broker.create("t")
        broker.metadata.reads_fail = True
        answer = await ask(broker, ("t", 0, (1,)))

    assert (error_of(answer), answer.responses) == (ErrorCode.kafka_storage_error, ())
