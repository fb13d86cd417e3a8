import asyncio
import datetime
from typing import Any

import pytest
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode

from broker.handlers.log import delete_records
from broker.limits import BrokerLimits
from sim.loop import VirtualLoop
from storage.errors import NotFound, OffsetOutOfRange, OutcomeUnknown, StorageError, Unavailable
from storage.log.partition import AGE_S_MAX
from storage.vocabulary import PartitionId
from tests.kit.record_batches import record_batch
from tests.unit.broker.handlers.asking import Cluster, cluster
from tests.unit.broker.handlers.logged import asking, node, nodes, offsets_of


async def ask(
    broker: Cluster, *asked: tuple[str, int, int], version: int = 2, timeout_ms: int = 30_000
) -> list[tuple[str, int, int, ErrorCode]]:
    cls: Any = load_request_schema(21, version)
    module = __import__(cls.__module__, fromlist=["x"])
    topics: dict[str, list[Any]] = {}
    for name, partition, offset in asked:
        topics.setdefault(name, []).append(module.DeleteRecordsPartition(partition_index=partition, offset=offset))
    request: Any = cls(
        topics=tuple(module.DeleteRecordsTopic(name=name, partitions=tuple(partitions)) for name, partitions in topics.items()),
        timeout=datetime.timedelta(milliseconds=timeout_ms),
    )
    answer = await broker.ask(delete_records.handle, request)
    return [
        (topic.name, found.partition_index, found.low_watermark, ErrorCode(found.error_code))
        for topic in answer.topics
        for found in topic.partitions
    ]


@pytest.mark.parametrize("version", range(3))
async def test_each_partition_is_trimmed_and_told_its_start(version: int) -> None:
    async with cluster() as broker:
        topic = await broker.create("t", partition_count=2)
        other = await broker.create("u", cleanup_policy="compact,delete")
        broker.trimmer.known[topic.partition(1)] = 42
        answers = await ask(broker, ("t", 0, 7), ("t", 1, -1), ("u", 0, 0), version=version)

        assert answers == [("t", 0, 7, ErrorCode.none), ("t", 1, 42, ErrorCode.none), ("u", 0, 0, ErrorCode.none)]
        assert sorted(broker.trimmer.calls) == sorted([(topic.partition(0), 7), (topic.partition(1), -1), (other.partition(0), 0)])


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (("nothing", 0, 1), ErrorCode.unknown_topic_or_partition),
        (("no/name", 0, 1), ErrorCode.unknown_topic_or_partition),
        (("t", 1, 1), ErrorCode.unknown_topic_or_partition),
        (("t", -1, 1), ErrorCode.unknown_topic_or_partition),
        (("t", 0, -2), ErrorCode.offset_out_of_range),
        (("compacted", 0, 1), ErrorCode.policy_violation),
        (("__consumer_offsets", 0, 1), ErrorCode.invalid_topic_exception),
    ],
)
async def test_what_cannot_be_deleted_is_said_and_does_not_spoil_the_rest(asked: tuple[str, int, int], code: ErrorCode) -> None:
    async with cluster() as broker:
        await broker.create("t")
        await broker.create("u")
        await broker.create("compacted", cleanup_policy="compact")
        await broker.create("__consumer_offsets")
        refused, deleted = await ask(broker, asked, ("u", 0, 3))

        assert refused == (*asked[:2], -1, code)
        assert deleted == ("u", 0, 3, ErrorCode.none)
        assert len(broker.trimmer.calls) == 1


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OffsetOutOfRange("x", log_start=0, high_watermark=1), ErrorCode.offset_out_of_range),
        (NotFound("x"), ErrorCode.unknown_topic_or_partition),
        (Unavailable("x"), ErrorCode.kafka_storage_error),
        (OutcomeUnknown("x"), ErrorCode.request_timed_out),
    ],
)
async def test_what_the_log_reports_is_told_by_partition(error: StorageError, code: ErrorCode) -> None:
    async with cluster() as broker:
        topic = await broker.create("t", partition_count=2)
        broker.trimmer.known[topic.partition(0)] = error

        assert await ask(broker, ("t", 0, 1), ("t", 1, 1)) == [("t", 0, -1, code), ("t", 1, 1, ErrorCode.none)]


async def test_a_partition_named_twice_is_left_alone() -> None:
    async with cluster() as broker:
        await broker.create("t")
        answers = await ask(broker, ("t", 0, 1), ("t", 0, 2))

        assert answers == [("t", 0, -1, ErrorCode.invalid_request)] * 2
        assert broker.trimmer.calls == []


@pytest.mark.parametrize("timeout_ms", [0, 1, -1, -(2**31)])
async def test_a_timeout_that_leaves_no_time_deletes_all_the_same(timeout_ms: int) -> None:
    async with cluster() as broker:
        topic = await broker.create("t")

        assert await ask(broker, ("t", 0, 5), timeout_ms=timeout_ms) == [("t", 0, 5, ErrorCode.none)]
        assert broker.trimmer.calls == [(topic.partition(0), 5)]


async def test_what_is_not_done_in_time_is_said_by_partition() -> None:
    class Slow:
        async def trim(self, partition: PartitionId, before: int) -> int:
            if partition.partition == 1:
                await asyncio.Event().wait()
            return before

    async with cluster(limits=BrokerLimits(deletion_timeout_ms_min=20)) as broker:
        await broker.create("t", partition_count=2)
        object.__setattr__(broker.context.parts, "trimmer", Slow())
        answers = await ask(broker, ("t", 0, 1), ("t", 1, 1), timeout_ms=20)

    assert answers == [("t", 0, 1, ErrorCode.none), ("t", 1, -1, ErrorCode.request_timed_out)]


@pytest.mark.parametrize(("offset", "is_deleted"), [(1, True), (-2, False)])
def test_it_is_answered_when_no_broker_serves_any_more_what_was_deleted(offset: int, is_deleted: bool) -> None:
    """Others serve what they know to be there for AGE_S_MAX; a refusal waits for nothing."""

    async def main() -> tuple[float, ErrorCode]:
        async with cluster() as broker:
            await broker.create("t")
            began_s = asyncio.get_running_loop().time()
            ((*_, error),) = await ask(broker, ("t", 0, offset))
            return asyncio.get_running_loop().time() - began_s, error

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        waited_s, error = runner.run(main())

    assert (error is ErrorCode.none) is is_deleted
    assert (waited_s > AGE_S_MAX) is is_deleted


async def test_a_catalog_that_does_not_answer_is_retriable() -> None:
    async with cluster() as broker:
        await broker.create("t")
        broker.metadata.reads_fail = True

        assert await ask(broker, ("t", 0, 1)) == [("t", 0, -1, ErrorCode.kafka_storage_error)]


async def test_fetch_honours_what_was_deleted_though_the_tail_cache_has_it() -> None:
    async with node() as broker:
        topic = await broker.create("t")
        for _ in range(4):
            await broker.send(("t", 0, record_batch()))
        count = broker.log_of(topic).seen.high_watermark
        await broker.log.parts.trimmer.trim(topic.partition(0), count - 1)
        below = await broker.read_one(asking("t", offset=0))
        kept = await broker.read_one(asking("t", offset=count - 1))

        assert below.error_code == ErrorCode.offset_out_of_range
        assert (below.log_start_offset, below.high_watermark) == (count - 1, count)
        assert (kept.error_code, kept.log_start_offset) == (ErrorCode.none, count - 1)
        assert offsets_of(kept)[-1] == count - 1


async def test_another_broker_honours_it_once_it_has_read_the_manifest() -> None:
    async with nodes(2) as (one, other):
        topic = await one.create("t")
        for _ in range(4):
            await one.send(("t", 0, record_batch()))
        await other.read_one(asking("t", offset=0))
        await one.log.parts.trimmer.trim(topic.partition(0), 3)
        (bounds,) = await other.log.parts.manifest_reads.read([topic.partition(0)])
        below = await other.read_one(asking("t", offset=2))

        assert not isinstance(bounds, StorageError)
        assert (bounds.log_start, bounds.high_watermark) == (3, 4)
        assert (below.error_code, below.log_start_offset) == (ErrorCode.offset_out_of_range, 3)
