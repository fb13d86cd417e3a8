"""What one request may name, how much of it is done at a time, and what is remembered of topics for the next one."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from broker.handlers.log import delete_records, describe_producers, list_offsets
from broker.handling.configs import KEYS_MAX
from broker.limits import DEFAULT_BROKER_LIMITS, BrokerLimits
from storage.log.fresh_reads import LogBounds
from storage.vocabulary import PartitionId
from tests.kit.record_batches import record_batch
from tests.unit.broker.handlers.asking import cluster, error_of
from tests.unit.broker.handlers.configs import test_alter_configs, test_incremental_alter_configs
from tests.unit.broker.handlers.log import test_delete_records, test_describe_producers, test_list_offsets
from tests.unit.broker.handlers.logged import node
from tests.unit.broker.handlers.topics import test_create_partitions, test_create_topics, test_delete_topics

TOPIC = 2


@dataclass
class Slow:
    """Work that takes a moment, and how much of it was under way at most."""

    now: int = 0
    most: int = 0
    done: list[PartitionId] = field(default_factory=list)

    async def take(self, partition: PartitionId) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.001)
        self.now -= 1
        self.done.append(partition)

    async def trim(self, partition: PartitionId, before: int) -> int:
        await self.take(partition)
        return before

    async def of(self, partition: PartitionId) -> list[Any]:
        await self.take(partition)
        return []

    async def first_at_or_after(self, partition: PartitionId, timestamp_ms: int) -> None:
        await self.take(partition)


@pytest.mark.parametrize("is_incremental", [False, True], ids=["AlterConfigs", "IncrementalAlterConfigs"])
async def test_more_configs_of_a_resource_than_one_request_alters_are_refused_beside_a_resource_that_is_altered(
    is_incremental: bool,
) -> None:
    async with cluster() as broker:
        await broker.create("t")
        await broker.create("u")
        if is_incremental:
            ask: Any = test_incremental_alter_configs.ask
            many: Any = [("retention.ms", test_incremental_alter_configs.SET, "5")] * (KEYS_MAX + 1)
            one: Any = [("retention.ms", test_incremental_alter_configs.SET, "5")]
        else:
            ask = test_alter_configs.ask
            many = [("retention.ms", "5")] * (KEYS_MAX + 1)
            one = [("retention.ms", "5")]
        refused, done = await ask(broker, (TOPIC, "t", many), (TOPIC, "u", one))
        found = await broker.topics.lookup_now(["t", "u"])

    assert error_of(refused) is ErrorCode.invalid_request
    assert refused.error_message == "a request alters at most 1000 configs of a resource, and this one names 1001"
    assert error_of(done) is ErrorCode.none
    assert (found["t"].configs, found["u"].configs) == ({}, {"retention.ms": "5"})


async def test_so_many_partitions_are_trimmed_at_a_time_and_all_in_the_end() -> None:
    slow = Slow()
    async with cluster() as broker:
        await broker.create("t", partition_count=50)
        object.__setattr__(broker.context.parts, "trimmer", slow)
        answers = await test_delete_records.ask(broker, *(("t", number, 1) for number in range(50)))

    assert [code for _, _, _, code in answers] == [ErrorCode.none] * 50
    assert (slow.most, len(slow.done)) == (delete_records.TRIMS_MAX, 50)


async def test_so_many_partitions_are_looked_up_for_producers_at_a_time_and_all_in_the_end() -> None:
    slow = Slow()
    async with cluster() as broker:
        await broker.create("t", partition_count=50)
        object.__setattr__(broker.context.parts, "active_producers", slow)
        answers = await test_describe_producers.ask(broker, ("t", tuple(range(50))))

    assert {error_of(found) for found in answers.values()} == {ErrorCode.none}
    assert (slow.most, len(slow.done)) == (describe_producers.READS_MAX, 50)


async def test_so_many_partitions_are_searched_for_a_time_at_a_time_and_all_in_the_end() -> None:
    slow = Slow()
    async with cluster() as broker:
        topic = await broker.create("t", partition_count=50)
        for number in range(50):
            broker.bounds.known[topic.partition(number)] = LogBounds(0, 9, 0)
        object.__setattr__(broker.context.parts, "timestamps", slow)
        answers = await test_list_offsets.ask(broker, 5, [("t", number, 1_000) for number in range(50)])

    assert answers == [test_list_offsets.NONE] * 50
    assert (slow.most, len(slow.done)) == (list_offsets.SEARCHES_MAX, 50)


async def never(*_: object, **__: object) -> Any:
    await asyncio.Event().wait()


@pytest.mark.parametrize("api", ["CreateTopics", "CreatePartitions", "DeleteTopics", "DeleteRecords"])
async def test_a_store_that_never_answers_ends_a_request_that_would_wait_for_days(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    days_ms = 2**31 - 1
    assert DEFAULT_BROKER_LIMITS.administration_timeout_ms_max == 50_000, "less than a handler may take"
    async with cluster(limits=BrokerLimits(administration_timeout_ms_max=30)) as broker, asyncio.timeout(20):
        await broker.create("t")
        broker.metadata.before_write = never
        match api:
            case "CreateTopics":
                (created,) = await test_create_topics.ask(broker, test_create_topics.topic("new"), timeout_ms=days_ms)
                code = error_of(created)
            case "CreatePartitions":
                ((_, code, _),) = await test_create_partitions.ask(broker, ("t", 3, None), timeout_ms=days_ms)
            case "DeleteTopics":
                ((_, _, code),) = await test_delete_topics.ask(broker, ("t", None), timeout_ms=days_ms)
            case _:
                monkeypatch.setattr(broker.trimmer, "trim", never)
                ((_, _, _, code),) = await test_delete_records.ask(broker, ("t", 0, 1), timeout_ms=days_ms)

    assert code is ErrorCode.request_timed_out


async def test_rules_of_topics_that_were_forgotten_are_made_anew_from_the_topic() -> None:
    async with node(request_limits=BrokerLimits(topic_rules_kept_max=3)) as broker:
        for number in range(8):
            await broker.create(f"t{number}", max_message_bytes="1000" if number % 2 else "50")
        for _ in range(2):
            for number in range(8):
                (answer,) = await broker.send((f"t{number}", 0, record_batch(b"v")))

                assert answer.error_code == (ErrorCode.none if number % 2 else ErrorCode.message_too_large)
                assert len(broker.produce._rules) <= 3
