import asyncio
import datetime
from typing import Any

import pytest
from kio.index import load_request_schema
from kio.schema.create_topics import v7
from kio.schema.create_topics.v7.request import CreatableReplicaAssignment, CreatableTopic, CreatableTopicConfig
from kio.schema.errors import ErrorCode

from broker.handlers.topics import create_topics
from storage.catalog.topic_configs import TOPIC_CONFIGS
from storage.metadata import keys
from storage.metadata.port import Applied, Delete
from tests.kit.faulty_metadata import Fault
from tests.unit.broker.handlers.asking import Cluster, as_uuid, cluster, error_of
from tests.unit.storage.catalog.deposed import DeposedMetadata


def topic(
    name: str = "t",
    partitions: int = -1,
    replication_factor: int = -1,
    assignments: list[tuple[int, list[int]]] | None = None,
    configs: dict[str, str | None] | None = None,
) -> Any:
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replication_factor,
        assignments=tuple(
            CreatableReplicaAssignment(partition_index=index, broker_ids=tuple(broker_ids)) for index, broker_ids in assignments or ()
        ),
        configs=tuple(CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()),
    )


async def ask(broker: Cluster, *topics: Any, validate_only: bool = False, timeout_ms: int = 30_000) -> list[Any]:
    timeout = datetime.timedelta(milliseconds=timeout_ms)
    request = v7.CreateTopicsRequest(topics=topics, timeout=timeout, validate_only=validate_only)
    answer = await broker.ask(create_topics.handle, request)
    return list(answer.topics)


@pytest.mark.parametrize("version", range(2, 8))
async def test_a_topic_is_created_and_described_as_far_as_the_version_can(version: int) -> None:
    cls = load_request_schema(19, version)
    module = __import__(cls.__module__, fromlist=["x"])
    asked = module.CreatableTopic(
        name="t",
        num_partitions=3,
        replication_factor=2,
        assignments=(),
        configs=(module.CreatableTopicConfig(name="retention.ms", value="1000"),),
    )
    async with cluster() as broker:
        answer = await broker.ask(create_topics.handle, cls(topics=(asked,), timeout=datetime.timedelta(seconds=9), validate_only=False))
        created = (await broker.topics.lookup_now(["t"]))["t"]

    (found,) = answer.topics
    assert (found.name, error_of(found), found.error_message) == ("t", ErrorCode.none, None)
    assert (created.partition_count, created.replication_factor, created.configs) == (3, 2, {"retention.ms": "1000"})
    if version >= 5:
        assert (found.num_partitions, found.replication_factor) == (3, 2)
        configs = {config.name: (config.value, config.config_source) for config in found.configs}
        assert set(configs) == set(TOPIC_CONFIGS)
        assert (configs["retention.ms"], configs["segment.ms"]) == (("1000", 1), ("604800000", 5))
    if version >= 7:
        assert found.topic_id == as_uuid(created)


async def test_minus_one_stands_for_the_defaults() -> None:
    async with cluster(partition_count=6) as broker:
        (found,) = await ask(broker, topic())

    assert (error_of(found), found.num_partitions, found.replication_factor) == (ErrorCode.none, 6, 1)


async def test_any_replication_factor_is_kept() -> None:
    async with cluster() as broker:
        (found,) = await ask(broker, topic(replication_factor=32_767))
        created = (await broker.topics.lookup_now(["t"]))["t"]

    assert found.replication_factor == created.replication_factor == 32_767


REFUSALS = [
    (topic("a/b"), ErrorCode.invalid_topic_exception, "character"),
    (topic(""), ErrorCode.invalid_topic_exception, "empty"),
    (topic(partitions=0), ErrorCode.invalid_partitions, "number of partitions 0"),
    (topic(partitions=-2), ErrorCode.invalid_partitions, "number of partitions -2"),
    (topic(partitions=10_001), ErrorCode.invalid_partitions, "10001 partitions: one request may create 10000"),
    (topic(replication_factor=0), ErrorCode.invalid_replication_factor, "replication factor 0"),
    (topic(replication_factor=-2), ErrorCode.invalid_replication_factor, "replication factor -2"),
    (topic(configs={"retension.ms": "5"}), ErrorCode.invalid_config, "Did you mean retention.ms?"),
    (topic(configs={"retention.ms": "x"}), ErrorCode.invalid_config, "retention.ms=x"),
    (topic(configs={"retention.ms": None}), ErrorCode.invalid_config, "no value"),
    (topic(configs={"compression.type": "brotli"}), ErrorCode.invalid_config, "must be one of uncompressed"),
    (topic(partitions=2, assignments=[(0, [1])]), ErrorCode.invalid_request, "number of partitions must be -1"),
    (topic(replication_factor=1, assignments=[(0, [1])]), ErrorCode.invalid_request, "replication factor must be -1"),
    (topic(assignments=[(0, [1]), (2, [1])]), ErrorCode.invalid_replica_assignment, "without gaps or repeats"),
    (topic(assignments=[(0, [1]), (0, [1])]), ErrorCode.invalid_replica_assignment, "without gaps or repeats"),
    (topic(assignments=[(1, [1])]), ErrorCode.invalid_replica_assignment, "without gaps or repeats"),
    (topic(assignments=[(0, [])]), ErrorCode.invalid_replica_assignment, "no broker"),
    (topic(assignments=[(0, [1, 1])]), ErrorCode.invalid_replica_assignment, "twice"),
    (topic(assignments=[(0, [-1])]), ErrorCode.invalid_replica_assignment, "negative"),
    (topic(assignments=[(0, [1, 2]), (1, [1])]), ErrorCode.invalid_replica_assignment, "the same number of replicas"),
]


@pytest.mark.parametrize("validate_only", [True, False])
@pytest.mark.parametrize(("asked", "code", "words"), REFUSALS)
async def test_what_is_wrong_is_named_and_nothing_is_created(asked: Any, code: ErrorCode, words: str, validate_only: bool) -> None:
    async with cluster() as broker:
        (found,) = await ask(broker, asked, validate_only=validate_only)

        assert (error_of(found), found.topic_id, found.num_partitions, found.replication_factor) == (code, None, -1, -1)
        assert words in found.error_message
        assert await broker.topics.all() == []


async def test_a_manual_assignment_gives_partitions_and_replicas() -> None:
    async with cluster() as broker:
        (found,) = await ask(broker, topic(assignments=[(1, [4, 5]), (0, [5, 6])]))

    assert (error_of(found), found.num_partitions, found.replication_factor) == (ErrorCode.none, 2, 2)


async def test_a_topic_that_exists_is_said_before_anything_else_is_wrong() -> None:
    async with cluster() as broker:
        await broker.create("t")
        (found,) = await ask(broker, topic(partitions=0))

    assert error_of(found) is ErrorCode.topic_already_exists


async def test_a_topic_deleted_elsewhere_may_be_created_although_the_cache_is_behind() -> None:
    async with cluster() as broker:
        old = await broker.create("t")
        broker.topics.close()
        await (await broker.other_topics()).delete(old)
        (found,) = await ask(broker, topic())

    assert error_of(found) is ErrorCode.none


async def test_a_topic_named_twice_is_refused_once_and_the_others_are_created() -> None:
    async with cluster() as broker:
        answers = await ask(broker, topic("twice"), topic("once"), topic("twice"))

        assert [(found.name, error_of(found)) for found in answers] == [("twice", ErrorCode.invalid_request), ("once", ErrorCode.none)]
        assert [created.name for created in await broker.topics.all()] == ["once"]


@pytest.mark.parametrize("validate_only", [True, False])
async def test_names_that_collide_are_refused_also_within_one_request(validate_only: bool) -> None:
    async with cluster() as broker:
        await broker.create("a.b")
        answers = await ask(broker, topic("a_b"), topic("x.y"), topic("x_y"), validate_only=validate_only)

    assert [error_of(found) for found in answers] == [ErrorCode.invalid_topic_exception, ErrorCode.none, ErrorCode.invalid_topic_exception]
    assert answers[0].error_message == "topic 'a_b' collides with existing topic 'a.b'"


async def test_validation_alone_creates_nothing() -> None:
    async with cluster() as broker:
        (found,) = await ask(broker, topic(partitions=2), validate_only=True)

        assert (error_of(found), found.topic_id, found.num_partitions) == (ErrorCode.none, None, 2)
        assert await broker.topics.all() == []


async def test_the_partitions_of_one_request_are_bounded_together() -> None:
    async with cluster() as broker:
        answers = await ask(
            broker, topic("a", partitions=6_000), topic("b", partitions=6_000), topic("c", partitions=4_000), validate_only=True
        )

    assert [error_of(found) for found in answers] == [ErrorCode.none, ErrorCode.invalid_partitions, ErrorCode.none]


async def test_what_is_not_done_in_time_is_timed_out() -> None:
    async with cluster() as broker:
        never = asyncio.Event()

        async def hang_at_the_second_topic(_: object) -> None:
            if len(broker.metadata.writes) > second:
                await never.wait()

        second = len(broker.metadata.writes) + 3
        broker.metadata.before_write = hang_at_the_second_topic
        answers = await ask(broker, topic("a"), topic("b"), topic("c"), timeout_ms=20)

    assert [error_of(found) for found in answers] == [ErrorCode.none, ErrorCode.request_timed_out, ErrorCode.request_timed_out]


@pytest.mark.parametrize("timeout_ms", [0, -5])
async def test_no_time_at_all_is_honoured(timeout_ms: int) -> None:
    async with cluster() as broker:

        async def take_time(_: object) -> None:
            await asyncio.sleep(0.001)

        broker.metadata.before_write = take_time
        (found,) = await ask(broker, topic(), timeout_ms=timeout_ms)

    assert error_of(found) is ErrorCode.request_timed_out


@pytest.mark.parametrize(
    ("fault", "written", "code"),
    [
        (Fault.REFUSED, 0, ErrorCode.kafka_storage_error),
        (Fault.REQUEST_LOST, 0, ErrorCode.kafka_storage_error),
        (Fault.REFUSED, 2, ErrorCode.kafka_storage_error),
        (Fault.REQUEST_LOST, 2, ErrorCode.request_timed_out),
    ],
)
async def test_a_store_that_fails_is_retriable_and_as_definite_as_it_is(fault: Fault, written: int, code: ErrorCode) -> None:
    async with cluster() as broker:
        begun = len(broker.metadata.writes) + written
        broker.metadata.faults = dict.fromkeys(range(begun, begun + 100), fault)
        (found,) = await ask(broker, topic())

    assert error_of(found) is code


async def test_a_store_that_cannot_be_read_is_retriable() -> None:
    async with cluster() as broker:
        broker.metadata.reads_fail = True
        (found,) = await ask(broker, topic())

    assert error_of(found) is ErrorCode.kafka_storage_error


async def test_a_race_that_is_lost_is_a_topic_that_exists() -> None:
    async with cluster() as broker:
        elsewhere = await broker.other_topics()

        async def rival_creates(_: object) -> None:
            broker.metadata.before_write = None
            await elsewhere.create("t", partition_count=1, replication_factor=1, configs={})

        broker.metadata.before_write = rival_creates
        (found,) = await ask(broker, topic())

    assert error_of(found) is ErrorCode.topic_already_exists


@pytest.mark.parametrize("is_cached", [False, True])
async def test_a_topic_that_a_deposed_leader_still_has_is_not_said_to_exist(is_cached: bool) -> None:
    metadata = DeposedMetadata()
    async with cluster(metadata=metadata) as broker:
        old = await broker.create("t")
        if not is_cached:
            broker.topics.forget("t")
        metadata.depose()
        deleted = await metadata.store.write([Delete(keys.topic("t"))])
        assert isinstance(deleted, Applied)
        (made,) = await ask(broker, topic())
        metadata.elect()

        assert error_of(made) is ErrorCode.none
        found = (await broker.topics.lookup_now(["t"]))["t"]
        assert found.topic_id == str(made.topic_id) != old.topic_id


@pytest.mark.parametrize("validate_only", [False, True])
async def test_the_log_of_controllers_cannot_be_created(validate_only: bool) -> None:
    async with cluster() as broker:
        refused, made = await ask(broker, topic("__cluster_metadata"), topic("__consumer_offsets"), validate_only=validate_only)

    assert (error_of(refused), refused.error_message) == (
        ErrorCode.invalid_request,
        "Creation of internal topic __cluster_metadata is prohibited.",
    )
    assert error_of(made) is ErrorCode.none
