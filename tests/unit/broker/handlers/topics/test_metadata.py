import asyncio
import uuid
from collections.abc import Sequence
from typing import Any

import pytest
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode

from broker.cluster.leadership import ClientLeadership, Leadership, PartitionLeadership, Placement, Question, SelfLeadership
from broker.handlers.topics import metadata
from broker.handling.topics import TOPICS_MAX
from storage.catalog.topic import INTERNAL as INTERNAL_TOPICS
from storage.catalog.topic import INTERNAL_PARTITIONS, NEVER_A_TOPIC
from storage.catalog.topic_configs import validate
from storage.errors import Unavailable
from storage.vocabulary import TopicId
from tests.kit.faulty_metadata import Fault
from tests.unit.broker.handlers.asking import CLIENT_ID, INTERNAL, LISTENER, Cluster, as_uuid, cluster, error_of

VERSIONS = range(14)


def request(version: int, topics: list[str | uuid.UUID | None] | None, **fields: Any) -> Any:
    cls = load_request_schema(3, version)
    module = __import__(cls.__module__, fromlist=["x"])
    named = []
    for topic in topics or ():
        ids = {"topic_id": topic if isinstance(topic, uuid.UUID) else None} if version >= 10 else {}
        named.append(module.MetadataRequestTopic(name=None if isinstance(topic, uuid.UUID) else topic, **ids))
    if 8 <= version <= 10:
        fields.setdefault("include_cluster_authorized_operations", False)
    if version >= 8:
        fields.setdefault("include_topic_authorized_operations", False)
    return cls(topics=None if topics is None else tuple(named), **fields)


async def ask(
    broker: Cluster,
    version: int,
    topics: list[str | uuid.UUID | None] | None,
    listener: str = LISTENER,
    client_id: str = CLIENT_ID,
    **fields: Any,
) -> Any:
    return await broker.ask(metadata.handle, request(version, topics, **fields), listener=listener, client_id=client_id)


def codes(answer: Any) -> dict[str | None, ErrorCode]:
    return {topic.name: error_of(topic) for topic in answer.topics}


@pytest.mark.parametrize("version", VERSIONS)
async def test_all_live_brokers_are_listed_and_this_one_leads_every_partition(version: int) -> None:
    async with cluster(broker_id=2) as broker:
        topic = await broker.create("t", partition_count=3)
        await broker.join(7, rack="zone-b")
        await broker.join(1)
        answer = await ask(broker, version, ["t"])

    assert [(found.node_id, found.host, found.port) for found in answer.brokers] == [
        (1, "broker-1", 9001),
        (2, "broker-2", 9002),
        (7, "broker-7", 9007),
    ]
    if version >= 1:
        assert [found.rack for found in answer.brokers] == [None, "zone-a", "zone-b"]
        assert answer.controller_id == 2
    if version >= 2:
        assert answer.cluster_id == "cluster-of-this-test-00"
    (found,) = answer.topics
    assert (found.name, error_of(found)) == ("t", ErrorCode.none)
    assert [(partition.partition_index, partition.leader_id, error_of(partition)) for partition in found.partitions] == [
        (number, 2, ErrorCode.none) for number in range(3)
    ]
    assert all(partition.replica_nodes == partition.isr_nodes == (2,) for partition in found.partitions)
    if version >= 7:
        assert all(partition.leader_epoch == 0 for partition in found.partitions)
    if version >= 10:
        assert found.topic_id == as_uuid(topic)
    if version >= 13:
        assert error_of(answer) is ErrorCode.none


@pytest.mark.parametrize(("replication_factor", "count"), [(1, 1), (2, 2), (3, 3), (32_767, 3)])
@pytest.mark.parametrize("leadership", [SelfLeadership(), ClientLeadership(), PartitionLeadership()])
async def test_replicas_are_padded_with_live_brokers_without_repeats(replication_factor: int, count: int, leadership: Leadership) -> None:
    async with cluster(broker_id=2, leadership=leadership) as broker:
        await broker.create("t", replication_factor=replication_factor)
        await broker.join(7)
        await broker.join(1)
        answer = await ask(broker, 12, ["t"])

    (partition,) = answer.topics[0].partitions
    assert len(partition.replica_nodes) == len(set(partition.replica_nodes)) == count
    assert set(partition.replica_nodes) <= {1, 2, 7}
    assert partition.replica_nodes[0] == partition.leader_id
    assert partition.isr_nodes == partition.replica_nodes
    assert partition.offline_replicas == ()


async def test_one_broker_leads_everything_for_a_client_of_its_zone_if_leaders_go_by_client() -> None:
    async with cluster(broker_id=2, leadership=ClientLeadership()) as broker:
        await broker.create("t", partition_count=20)
        for broker_id, rack in ((1, "zone-b"), (3, "zone-b"), (4, None)):
            await broker.join(broker_id, rack=rack)
        answers = [await ask(broker, 12, ["t"], client_id=f"client-{number},zone=zone-b") for number in range(20)]

    leaders = [{partition.leader_id for partition in answer.topics[0].partitions} for answer in answers]
    assert {len(found) for found in leaders} == {1}
    assert set.union(*leaders) == {1, 3}


async def test_partitions_have_their_own_leaders_if_leaders_go_by_partition() -> None:
    async with cluster(broker_id=2, leadership=PartitionLeadership()) as broker:
        await broker.create("t", partition_count=50)
        await broker.join(7)
        one, other = await ask(broker, 12, ["t"], client_id="one"), await ask(broker, 12, ["t"], client_id="other")

    leaders = [partition.leader_id for partition in one.topics[0].partitions]
    assert set(leaders) == {2, 7}
    assert leaders == [partition.leader_id for partition in other.topics[0].partitions]


@pytest.mark.parametrize("leadership", [SelfLeadership(), ClientLeadership(), PartitionLeadership()])
async def test_a_broker_that_lost_its_registration_names_the_others(leadership: Leadership) -> None:
    async with cluster(broker_id=2, leadership=leadership) as broker:
        await broker.create("t", partition_count=20)
        await broker.join(7)
        await broker.join(9)
        await broker.lose_registration()
        answer = await ask(broker, 12, ["t"])

    assert [found.node_id for found in answer.brokers] == [7, 9]
    assert {partition.leader_id for partition in answer.topics[0].partitions} <= {7, 9}
    assert answer.controller_id == 7


async def test_after_an_outage_a_broker_that_is_about_to_return_is_listed_and_leads_nothing() -> None:
    async with cluster(broker_id=2, leadership=PartitionLeadership()) as broker:
        await broker.create("t", partition_count=20)
        await broker.join(7)
        await ask(broker, 12, ["t"])
        await broker.lose_registration()
        answer = await ask(broker, 12, ["t"])

    assert [found.node_id for found in answer.brokers] == [2, 7], "librdkafka fails what is on its way to a broker that is not listed"
    assert {partition.leader_id for partition in answer.topics[0].partitions} == {7}


async def test_a_broker_that_lost_its_registration_and_is_alone_still_leads() -> None:
    async with cluster(broker_id=2) as broker:
        await broker.create("t")
        await broker.lose_registration()
        answer = await ask(broker, 12, ["t"])

    assert [found.node_id for found in answer.brokers] == [2]
    assert answer.topics[0].partitions[0].leader_id == 2


async def test_only_brokers_that_the_listener_reaches_lead() -> None:
    async with cluster(broker_id=2, leadership=PartitionLeadership()) as broker:
        await broker.create("t", partition_count=20, replication_factor=3)
        await broker.join(7, listener=INTERNAL)
        answer = await ask(broker, 12, ["t"])

    assert {partition.replica_nodes for partition in answer.topics[0].partitions} == {(2,)}


async def test_addresses_are_those_of_the_listener_that_was_asked_by() -> None:
    async with cluster() as broker:
        await broker.join(2, listener=INTERNAL)
        internal = await ask(broker, 12, [], INTERNAL)
        external = await ask(broker, 12, [])

    assert [(found.host, found.port) for found in internal.brokers] == [("internal", 7), ("broker-2", 9002)]
    assert [found.node_id for found in external.brokers] == [1]


@pytest.mark.parametrize("version", VERSIONS)
async def test_no_topics_and_all_topics_are_told_apart_except_by_version_zero(version: int) -> None:
    async with cluster() as broker:
        await broker.create("b")
        await broker.create("a")
        none = await ask(broker, version, [])
        every = none if version == 0 else await ask(broker, version, None)

    assert [topic.name for topic in every.topics] == ["a", "b"]
    assert len(none.topics) == (2 if version == 0 else 0)


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_topic_that_is_not_there_is_created_where_that_is_allowed(version: int) -> None:
    fields = {"allow_auto_topic_creation": True} if version >= 4 else {}
    async with cluster(partition_count=4) as broker:
        answer = await ask(broker, version, ["new"], **fields)
        created = await broker.topics.lookup_now(["new"])

    assert codes(answer) == {"new": ErrorCode.none}
    assert len(answer.topics[0].partitions) == 4
    assert created["new"].partition_count == 4


@pytest.mark.parametrize(
    ("version", "auto_create", "fields"), [(12, True, {"allow_auto_topic_creation": False}), (12, False, {}), (1, False, {})]
)
async def test_a_topic_that_is_not_there_is_unknown_where_creation_is_not_allowed(
    version: int, auto_create: bool, fields: dict[str, bool]
) -> None:
    async with cluster(auto_create=auto_create) as broker:
        answer = await ask(broker, version, ["new"], **fields)

        assert codes(answer) == {"new": ErrorCode.unknown_topic_or_partition}
        assert await broker.topics.all() == []


@pytest.mark.parametrize("allow", [True, False])
async def test_an_illegal_name_is_an_invalid_topic(allow: bool) -> None:
    async with cluster() as broker:
        answer = await ask(broker, 12, ["no/such", "", "."], allow_auto_topic_creation=allow)

    assert codes(answer) == {
        "no/such": ErrorCode.invalid_topic_exception,
        "": ErrorCode.invalid_topic_exception,
        ".": ErrorCode.invalid_topic_exception,
    }


async def test_a_name_that_collides_is_not_created() -> None:
    async with cluster() as broker:
        await broker.create("a.b")
        answer = await ask(broker, 12, ["a_b", "x.y", "x_y", "a.b"])

    assert codes(answer) == {
        "a_b": ErrorCode.invalid_topic_exception,
        "x.y": ErrorCode.none,
        "x_y": ErrorCode.invalid_topic_exception,
        "a.b": ErrorCode.none,
    }


async def test_a_race_of_creators_is_no_error() -> None:
    async with cluster() as broker:
        elsewhere = await broker.other_topics()

        async def rival_creates(_: object) -> None:
            broker.metadata.before_write = None
            await elsewhere.create("new", partition_count=2, replication_factor=1, configs={})

        broker.metadata.before_write = rival_creates
        answer = await ask(broker, 12, ["new"])

    assert codes(answer) == {"new": ErrorCode.none}
    assert len(answer.topics[0].partitions) == 2


async def test_creation_that_fails_is_retriable() -> None:
    async with cluster() as broker:
        broker.metadata.all_faults = Fault.REFUSED
        answer = await ask(broker, 12, ["new"])

    assert codes(answer) == {"new": ErrorCode.kafka_storage_error}


async def test_one_request_creates_so_many_topics_and_no_more() -> None:
    async with cluster() as broker:
        answer = await ask(broker, 12, [f"t{number}" for number in range(TOPICS_MAX + 2)])

    assert [error_of(topic) for topic in answer.topics].count(ErrorCode.unknown_topic_or_partition) == 2


@pytest.mark.parametrize(("partition_count", "created"), [(4_000, 2), (10_000, 1)])
async def test_one_request_creates_no_more_partitions_by_naming_topics_than_by_asking_for_them(partition_count: int, created: int) -> None:
    async with cluster(partition_count=partition_count) as broker:
        answer = await ask(broker, 12, [f"t{number}" for number in range(5)])

    assert [error_of(topic) for topic in answer.topics].count(ErrorCode.unknown_topic_or_partition) == 5 - created


@pytest.mark.parametrize("version", [12, 13])
async def test_topics_are_found_by_id(version: int) -> None:
    unknown = uuid.UUID(int=5)
    async with cluster() as broker:
        topic = await broker.create("t")
        broker.topics.forget("t")
        answer = await ask(broker, version, [as_uuid(topic), unknown, as_uuid(topic)])

    assert [(found.name, found.topic_id, error_of(found)) for found in answer.topics] == [
        ("t", as_uuid(topic), ErrorCode.none),
        (None, unknown, ErrorCode.unknown_topic_id),
    ]


@pytest.mark.parametrize("version", [10, 11])
async def test_versions_without_ids_refuse_them(version: int) -> None:
    async with cluster() as broker:
        topic = await broker.create("t")
        answer = await ask(broker, version, [as_uuid(topic), "t"])

    assert [(found.name, error_of(found)) for found in answer.topics] == [("", ErrorCode.invalid_request), ("t", ErrorCode.invalid_request)]


async def test_a_topic_without_name_and_id_is_an_invalid_request() -> None:
    async with cluster() as broker:
        answer = await ask(broker, 12, [None])

    assert codes(answer) == {"": ErrorCode.invalid_request}


async def test_a_topic_named_twice_is_answered_once() -> None:
    async with cluster() as broker:
        answer = await ask(broker, 12, ["t", "u", "t"])

    assert [topic.name for topic in answer.topics] == ["t", "u"]


@pytest.mark.parametrize("version", [8, 9, 10, 11, 12, 13])
async def test_operations_are_given_when_asked_for(version: int) -> None:
    async with cluster() as broker:
        await broker.create("t")
        asked = await ask(broker, version, ["t"], include_topic_authorized_operations=True)
        not_asked = await ask(broker, version, ["t"])

    # READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS
    assert asked.topics[0].topic_authorized_operations == sum(1 << code for code in (3, 4, 5, 6, 7, 8, 10, 11))
    assert not_asked.topics[0].topic_authorized_operations == -(2**31)


@pytest.mark.parametrize("version", [8, 9, 10])
async def test_operations_on_the_cluster_are_given_when_asked_for(version: int) -> None:
    async with cluster() as broker:
        await broker.create("t")
        asked = await ask(broker, version, ["t"], include_cluster_authorized_operations=True)
        not_asked = await ask(broker, version, ["t"])

    # CREATE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE
    assert asked.cluster_authorized_operations == sum(1 << code for code in (5, 7, 8, 9, 10, 11, 12))
    assert not_asked.cluster_authorized_operations == -(2**31)
    assert (codes(asked), asked.brokers, asked.controller_id) == (codes(not_asked), not_asked.brokers, not_asked.controller_id)


async def test_topics_that_cannot_be_read_are_retriable_one_by_one() -> None:
    async with cluster() as broker:
        await broker.context.parts.brokers.live()
        await ask(broker, 12, [])
        broker.metadata.reads_fail = True
        answer = await ask(broker, 12, ["t", uuid.UUID(int=3)])

    assert [error_of(topic) for topic in answer.topics] == [ErrorCode.kafka_storage_error] * 2


async def test_all_topics_that_cannot_be_read_are_not_answered_with_none() -> None:
    async with cluster() as broker:
        await ask(broker, 12, [])
        broker.metadata.reads_fail = True

        with pytest.raises(Unavailable):
            await ask(broker, 12, None)


async def test_a_topic_deleted_here_is_gone_at_once() -> None:
    async with cluster(auto_create=False) as broker:
        topic = await broker.create("t")
        await broker.topics.delete(topic)
        answer = await ask(broker, 12, ["t", as_uuid(topic)])

    assert [error_of(found) for found in answer.topics] == [ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id]


@pytest.mark.parametrize("shape", [(1_000, 1), (1, 1_000)])
async def test_others_have_their_turn_while_a_thousand_partitions_are_answered(shape: tuple[int, int]) -> None:
    topic_count, partition_count = shape
    async with cluster(broker_id=2, leadership=PartitionLeadership()) as broker:
        names: list[str | uuid.UUID | None] = [f"t{number}" for number in range(topic_count)]
        for name in names:
            await broker.create(str(name), partition_count=partition_count)
        await ask(broker, 13, names)
        turns = 0

        async def count_turns() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as group:
            counting = group.create_task(count_turns())
            answer = await ask(broker, 13, names)
            counting.cancel()

    assert sum(len(topic.partitions) for topic in answer.topics) == 1_000
    assert turns >= (1_000 + topic_count * metadata.TOPIC_AS_PARTITIONS) // metadata.PLACED_AT_ONCE


async def test_a_topic_named_many_times_is_placed_once() -> None:
    asked: list[int] = []

    class Counting(SelfLeadership):
        def placement(self, question: Question) -> Placement:
            place = super().placement(question)

            def counted(topic_id: TopicId, partition: int) -> Sequence[int]:
                asked.append(partition)
                return place(topic_id, partition)

            return counted

    async with cluster(broker_id=2, leadership=Counting()) as broker:
        topic = await broker.create("t", partition_count=3)

        answer = await ask(broker, 13, ["t", "t", "t", as_uuid(topic), as_uuid(topic)])

    assert [len(found.partitions) for found in answer.topics] == [3, 3]
    assert asked == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize("name", INTERNAL_TOPICS)
async def test_an_internal_topic_that_a_client_names_is_made_as_kafka_makes_it(name: str) -> None:
    async with cluster() as broker:
        (absent,) = (await ask(broker, 12, [name], allow_auto_topic_creation=False)).topics
        (created,) = (await ask(broker, 12, [name])).topics
        (listed,) = (await ask(broker, 12, None)).topics
        found = (await broker.topics.lookup_now([name]))[name]

    assert (error_of(absent), absent.is_internal) == (ErrorCode.unknown_topic_or_partition, True)
    assert (error_of(created), created.is_internal, listed.is_internal) == (ErrorCode.none, True, True)
    assert (found.partition_count, found.configs) == (INTERNAL_PARTITIONS, INTERNAL_TOPICS[name])
    assert validate(dict(found.configs)) == found.configs


@pytest.mark.parametrize("version", [0, 4, 13])
async def test_the_log_of_controllers_is_no_topic_whoever_names_it(version: int) -> None:
    async with cluster() as broker:
        answer = await ask(broker, version, [NEVER_A_TOPIC, "t"])

    assert codes(answer) == {NEVER_A_TOPIC: ErrorCode.unknown_topic_or_partition, "t": ErrorCode.none}
    if version >= 1:
        assert [topic.is_internal for topic in answer.topics] == [False, False]
