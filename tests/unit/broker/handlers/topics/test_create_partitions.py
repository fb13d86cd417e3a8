import asyncio
import datetime
from collections.abc import Sequence
from typing import Any

import pytest
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode

from broker.handlers.topics import create_partitions
from storage.metadata.port import WriteOp
from tests.kit.faulty_metadata import Fault
from tests.kit.record_batches import record_batch
from tests.unit.broker.handlers.asking import Cluster, cluster, error_of
from tests.unit.broker.handlers.logged import asking, nodes

FetchPartitionStatus = tuple[str, int, list[tuple[int, ...]] | None]


async def ask(
    broker: Cluster, *topics: FetchPartitionStatus, version: int = 3, timeout_ms: int = 30_000, validate_only: bool = False
) -> list[tuple[str, ErrorCode, str | None]]:
    cls: Any = load_request_schema(37, version)
    module = __import__(cls.__module__, fromlist=["x"])
    asked = tuple(
        module.CreatePartitionsTopic(
            name=name,
            count=count,
            assignments=None if assignments is None else tuple(module.CreatePartitionsAssignment(broker_ids=ids) for ids in assignments),
        )
        for name, count, assignments in topics
    )
    request: Any = cls(topics=asked, timeout=datetime.timedelta(milliseconds=timeout_ms), validate_only=validate_only)
    answer = await broker.ask(create_partitions.handle, request)
    return [(found.name, error_of(found), found.error_message) for found in answer.results]


async def count_of(broker: Cluster, name: str = "t") -> int:
    return (await broker.topics.lookup_now([name]))[name].partition_count


@pytest.mark.parametrize("version", range(4))
async def test_partitions_are_added(version: int) -> None:
    async with cluster() as broker:
        await broker.create("t", partition_count=2)
        await broker.create("u", replication_factor=2)
        results = await ask(broker, ("t", 5, None), ("u", 3, [(1, 2), (7, 8)]), version=version)

        assert results == [("t", ErrorCode.none, None), ("u", ErrorCode.none, None)]
        assert (await count_of(broker), await count_of(broker, "u")) == (5, 3)


async def test_validate_only_adds_nothing() -> None:
    async with cluster() as broker:
        await broker.create("t")
        results = await ask(broker, ("t", 5, None), ("nothing", 5, None), validate_only=True)

        assert [code for _, code, _ in results] == [ErrorCode.none, ErrorCode.unknown_topic_or_partition]
        assert await count_of(broker) == 1


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (("nothing", 5, None), ErrorCode.unknown_topic_or_partition),
        (("no/name", 5, None), ErrorCode.unknown_topic_or_partition),
        (("t", 2, None), ErrorCode.invalid_partitions),
        (("t", 1, None), ErrorCode.invalid_partitions),
        (("t", 0, None), ErrorCode.invalid_partitions),
        (("t", -1, None), ErrorCode.invalid_partitions),
        (("t", 10_001, None), ErrorCode.invalid_partitions),
        (("t", 4, [(1,)]), ErrorCode.invalid_replica_assignment),
        (("t", 3, [(1,), (1,)]), ErrorCode.invalid_replica_assignment),
        (("t", 3, []), ErrorCode.invalid_replica_assignment),
        (("t", 3, [()]), ErrorCode.invalid_replica_assignment),
        (("t", 3, [(1, 2)]), ErrorCode.invalid_replica_assignment),
        (("t", 3, [(-1,)]), ErrorCode.invalid_replica_assignment),
    ],
)
async def test_what_cannot_be_added_is_said_and_does_not_spoil_the_rest(wanted: FetchPartitionStatus, code: ErrorCode) -> None:
    async with cluster() as broker:
        await broker.create("t", partition_count=2)
        await broker.create("u")
        (name, refused, message), (_, added, _) = await ask(broker, wanted, ("u", 2, None))

        assert (name, refused, added) == (wanted[0], code, ErrorCode.none)
        assert message
        assert (await count_of(broker), await count_of(broker, "u")) == (2, 2)


async def test_one_request_adds_a_bounded_number_of_partitions() -> None:
    async with cluster() as broker:
        for name in ("t", "u", "v"):
            await broker.create(name)
        results = await ask(broker, ("t", 6_000, None), ("u", 6_000, None), ("v", 4_000, None), validate_only=True)

    assert [code for _, code, _ in results] == [ErrorCode.none, ErrorCode.invalid_partitions, ErrorCode.none]


async def test_an_assignment_that_names_a_broker_twice_is_refused() -> None:
    async with cluster() as broker:
        await broker.create("t", replication_factor=2)

        assert [code for _, code, _ in await ask(broker, ("t", 2, [(3, 3)]))] == [ErrorCode.invalid_replica_assignment]


async def test_a_topic_named_twice_is_left_alone() -> None:
    async with cluster() as broker:
        await broker.create("t")

        assert [(name, code) for name, code, _ in await ask(broker, ("t", 2, None), ("t", 3, None))] == [("t", ErrorCode.invalid_request)]
        assert await count_of(broker) == 1


async def test_partitions_that_another_broker_added_meanwhile_count() -> None:
    async with cluster() as broker:
        topic = await broker.create("t")
        other = await broker.other_topics()

        async def interfere() -> None:
            broker.metadata.after_read = None
            await other.add_partitions(topic, 4)

        broker.metadata.after_read = interfere
        results = await ask(broker, ("t", 3, None))

        assert [code for _, code, _ in results] == [ErrorCode.invalid_partitions]
        assert await count_of(broker) == 4


async def test_what_is_not_done_in_time_is_said() -> None:
    async def never(_: Sequence[WriteOp]) -> None:
        await asyncio.Event().wait()

    async with cluster() as broker:
        await broker.create("t")
        broker.metadata.before_write = never

        assert [code for _, code, _ in await ask(broker, ("t", 3, None), timeout_ms=20)] == [ErrorCode.request_timed_out]
        assert await count_of(broker) == 1


@pytest.mark.parametrize(
    ("fault", "are_logs_made", "code"),
    [
        (Fault.REFUSED, False, ErrorCode.kafka_storage_error),
        (Fault.REQUEST_LOST, False, ErrorCode.kafka_storage_error),
        (Fault.REQUEST_LOST, True, ErrorCode.request_timed_out),
    ],
)
async def test_a_store_that_fails_is_retriable_and_as_definite_as_it_is(fault: Fault, are_logs_made: bool, code: ErrorCode) -> None:
    async with cluster() as broker:
        topic = await broker.create("t")
        plan_and_logs = 1 + len({broker.metadata.shard_of(f"{topic.topic_id}/{number}") for number in (1, 2)})
        begun = len(broker.metadata.writes) + (plan_and_logs if are_logs_made else 0)
        broker.metadata.faults = dict.fromkeys(range(begun, begun + 100), fault)
        written = await ask(broker, ("t", 3, None))
        broker.metadata.reads_fail = True
        read = await ask(broker, ("t", 3, None))

    assert [written[0][1], read[0][1]] == [code, ErrorCode.kafka_storage_error]


async def test_a_broker_that_has_heard_of_nothing_serves_partitions_that_another_added() -> None:
    async with nodes(2, is_deaf=True) as (one, other):
        topic = await one.create("t")
        (before,) = await other.send(("t", 0, record_batch()))
        await one.topics.add_partitions(topic, 3)
        (produced,) = await other.send(("t", 2, record_batch()))
        fetched = await one.read_one(asking("t", partition=2))

        assert (before.error_code, produced.error_code, produced.base_offset) == (0, 0, 0)
        assert (fetched.error_code, fetched.high_watermark) == (0, 1)
