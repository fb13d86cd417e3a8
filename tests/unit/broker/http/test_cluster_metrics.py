"""`/metrics/cluster`, as a Prometheus reads it."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from broker.groups.state import GroupError
from broker.http.cluster_metrics import GROUP_OFFSETS_SHOWN_MAX, PARTITIONS_SHOWN_MAX, ClusterRead, GroupRead, PartitionRead, families_of
from storage.catalog.groups import GroupHead
from storage.catalog.topics import Topic
from storage.errors import Unavailable
from storage.log.fresh_reads import LogBounds
from storage.vocabulary import TopicId
from tests.kit.clustering import Member, running_cluster
from tests.kit.coordinating import committed, simple, stable
from tests.kit.http_asking import Http, http_of

Series = dict[tuple[str, ...], float]


async def page(http: Http) -> Series:
    """By name and the values of the labels, in the order of their names."""
    async with http.session.get("/metrics/cluster", headers={"host": "any.name.example"}) as response:
        assert response.status == 200
        assert response.content_type == "text/plain"
        text = await response.text()
    return {
        (sample.name, *sample.labels.values()): sample.value for family in text_string_to_metric_families(text) for sample in family.samples
    }


async def commit(members: Sequence[Member], group: str, topic: str, offset: int) -> None:
    """To partition 0, by the broker that coordinates the group."""
    parts = members[0].broker.http.parts
    partition = (await parts.topics.lookup([topic]))[topic].partition(0)
    holder = (await parts.groups.slots.holders([group]))[group]
    (coordinator,) = [member.broker.http.parts.groups for member in members if member.broker.broker_id == holder]
    assert await coordinator.commit(group, simple({partition: committed(offset)})) is GroupError.NONE


async def test_partitions_brokers_and_groups_have_kafka_exporter_s_names() -> None:
    async with running_cluster() as cluster:
        member, other = await cluster.join(), await cluster.join()
        async with http_of(member) as http:
            await member.broker.http.parts.topics.create("orders", partition_count=2, replication_factor=1, configs={})
            await http.produced("orders", 0, ["a", "b", "c"])
            await http.produced("orders", 1, ["a"])
            await commit([member, other], "g", "orders", 1)
            found = await page(http)

    assert found["kafka_brokers",] == 2
    assert sum(name[0] == "kafka_broker_info" for name in found) == 2
    assert found["kafka_topic_partitions", "orders"] == 2
    assert found["kafka_topic_partition_current_offset", "0", "orders"] == 3
    assert found["kafka_topic_partition_oldest_offset", "0", "orders"] == 0
    assert found["kafka_topic_partition_leader", "0", "orders"] == member.broker.broker_id
    assert found["kafka_topic_partition_under_replicated_partition", "1", "orders"] == 0
    assert found["kafka_consumergroup_members", "g"] == 0
    assert found["kafka_consumergroup_current_offset", "g", "0", "orders"] == 1
    assert found["kafka_consumergroup_lag", "g", "0", "orders"] == 2
    assert found["kafka_consumergroup_lag", "g", "1", "orders"] == -1
    assert found["kafka_consumergroup_lag_sum", "g", "orders"] == 2
    assert found["kafka_consumergroup_current_offset_sum", "g", "orders"] == 1


async def test_groups_of_every_broker_are_on_the_page_of_any_and_are_not_loaded_for_it() -> None:
    async with running_cluster() as cluster:
        first, second = await cluster.join(), await cluster.join()
        names = [f"g{number}" for number in range(20)]
        async with http_of(first) as http:
            await http.produced("t", 0, ["a"])
            for name in names:
                await commit([first, second], name, "t", 0)
            found = await page(http)

        assert [name for name in names if found["kafka_consumergroup_lag_sum", name, "t"] == 1] == names
        assert any(first.broker.http.parts.groups.loaded(name) is None for name in names)


async def test_by_topic_there_are_sums_alone(http: Http) -> None:
    async with http_of(http.member, metrics={"granularity": "topic"}) as by_topic:
        await by_topic.produced("orders", 0, ["a", "b"])
        await commit([http.member], "g", "orders", 1)
        found = await page(by_topic)

    assert found["kafka_consumergroup_lag_sum", "g", "orders"] == 1
    assert [name for name in found if name[0].startswith("kafka_topic_partition_")] == []
    assert [name for name in found if name[0] == "kafka_consumergroup_lag"] == []


async def test_a_page_is_kept_for_half_a_minute(http: Http) -> None:
    await http.produced("orders", 0, ["a"])
    before = await page(http)
    await http.produced("orders", 0, ["b"])

    assert await page(http) == before


async def test_while_nothing_can_be_read_scrapes_are_refused_by_one_read(http: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    async def away() -> list[Topic]:
        asked.append(1)
        raise Unavailable("away")

    monkeypatch.setattr(http.member.broker.http.parts.topics, "all", away)
    for _ in range(5):
        status, answer = await http.get("/metrics/cluster")
        assert (status, answer["error_type"]) == (503, "StorageUnavailable")
    assert asked == [1]


async def test_members_are_counted_as_the_group_is_stored(http: Http) -> None:
    parts = http.member.broker.http.parts

    class Here:
        coordinator = parts.groups

    await stable(Here, "g")  # type: ignore[arg-type]
    assert (await page(http))["kafka_consumergroup_members", "g"] == 1


@pytest.mark.parametrize(("partition_count", "is_by_partition"), [(PARTITIONS_SHOWN_MAX, True), (PARTITIONS_SHOWN_MAX + 1, False)])
def test_a_cluster_of_very_many_partitions_is_shown_by_topic(partition_count: int, is_by_partition: bool) -> None:
    topic = Topic(name="t", topic_id=TopicId("i"), partition_count=partition_count, replication_factor=1, configs={}, created_at_ms=0)
    one = PartitionRead(LogBounds(0, 1, 0), [1])
    partitions = {topic.partition(number): one for number in range(partition_count)}
    names = [family.name for family in families_of(ClusterRead([], [topic], partitions, []), by_partition=True)]

    assert ("kafka_topic_partition_current_offset" in names) is is_by_partition


def test_very_many_offsets_of_groups_are_shown_by_topic() -> None:
    count = PARTITIONS_SHOWN_MAX
    topic = Topic(name="t", topic_id=TopicId("i"), partition_count=count, replication_factor=1, configs={}, created_at_ms=0)
    partitions = {topic.partition(number): PartitionRead(LogBounds(0, 3, 0), [1]) for number in range(count)}
    head = GroupHead(fmt=1, group="", state="Empty", protocol_type=None, topics=())
    groups = [GroupRead(replace(head, group=f"g{number}"), dict.fromkeys(partitions, 1)) for number in range(3)]
    families = {family.name: family for family in families_of(ClusterRead([], [topic], partitions, groups), by_partition=True)}

    assert len(families["kafka_consumergroup_lag"].samples) == GROUP_OFFSETS_SHOWN_MAX // count * count
    assert [sample.value for sample in families["kafka_consumergroup_lag_sum"].samples] == [2 * count] * 3
