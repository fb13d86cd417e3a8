"""Brokers that share their stores: who is listed, who leads, and what a lost registration changes."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from confluent_kafka import Consumer, TopicPartition
from kio.schema.create_topics import v5 as create_v5
from kio.schema.find_coordinator import v3 as find_v3
from kio.schema.metadata import v9 as metadata_v9

from broker.cluster.leadership import Asker, Candidate, Question, leadership_of
from storage.catalog.brokers import BrokerRecord, Endpoint
from storage.metadata import keys
from storage.metadata.port import Put
from storage.vocabulary import TopicId
from tests.kit.async_client import AsyncClient, Read
from tests.kit.clustering import SOON_S, Cluster, Member, running_cluster
from tests.kit.record_batches import record_batch

PARTITIONS = 12


async def metadata_of(member: Member, *topics: str, client_id: str = "raw") -> Any:
    request = metadata_v9.MetadataRequest(
        topics=tuple(metadata_v9.request.MetadataRequestTopic(name=name) for name in topics),
        allow_auto_topic_creation=True,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )
    async with await AsyncClient.connect(member.port, client_id=client_id) as client:
        return await client.ask(request)


async def create(member: Member, name: str, *, partitions: int = PARTITIONS, replicas: int = 1) -> None:
    topic = create_v5.request.CreatableTopic(name=name, num_partitions=partitions, replication_factor=replicas, assignments=(), configs=())
    async with await AsyncClient.connect(member.port) as client:
        answer = await client.ask(create_v5.CreateTopicsRequest(topics=(topic,)))
    assert [found.error_code for found in answer.topics] == [0]


async def leaders_of(member: Member, topic: str, *, client_id: str = "raw") -> list[int]:
    answer = await metadata_of(member, topic, client_id=client_id)
    return [partition.leader_id for partition in answer.topics[0].partitions]


async def three(cluster: Cluster, **options: Any) -> list[Member]:
    return [await cluster.join(rack=rack, **options) for rack in ("a", "b", "b")]


async def settled(member: Member, expected: Sequence[int]) -> None:
    """Until the member lists these brokers: others are seen within a second."""
    async with asyncio.timeout(SOON_S):
        while [found.node_id for found in (await metadata_of(member)).brokers] != list(expected):  # noqa: ASYNC110 - asked as clients ask
            await asyncio.sleep(0.02)


async def test_every_broker_lists_all_with_racks_and_addresses_and_itself_as_controller() -> None:
    async with running_cluster() as cluster:
        members = await three(cluster)
        answers = [await metadata_of(member) for member in members]

    for own_id, answer in enumerate(answers, start=1):
        assert [(found.node_id, found.host, found.port, found.rack) for found in answer.brokers] == [
            (number + 1, "127.0.0.1", member.port, "abb"[number]) for number, member in enumerate(members)
        ]
        assert answer.controller_id == own_id


@pytest.mark.parametrize("strategy", ["self", "client", "partition"])
async def test_leaders_are_named_by_the_strategy_of_the_settings(strategy: str) -> None:
    async with running_cluster() as cluster:
        members = await three(cluster, leader=strategy)
        await create(members[0], "t", replicas=2)
        answers = [await metadata_of(member, "t", client_id="app,zone=b") for member in members]

    live = [Candidate(1, "a"), Candidate(2, "b"), Candidate(3, "b")]
    for member, answer in zip(members, answers, strict=True):
        topic = answer.topics[0]
        leaders = [partition.leader_id for partition in topic.partitions]
        if strategy == "self":
            assert set(leaders) == {member.broker_id}
        if strategy == "client":
            question = Question(Asker("app,zone=b", "127.0.0.1"), member.broker_id, live)
            assert set(leaders) == {leadership_of("client").placement(question)(TopicId("any"), 0)[0]}
        if strategy == "partition":
            assert set(leaders) == {2, 3}
            assert leaders == [partition.leader_id for partition in answers[0].topics[0].partitions]
        for partition in topic.partitions:
            assert partition.replica_nodes == partition.isr_nodes
            assert partition.replica_nodes[0] == partition.leader_id
            assert len(partition.replica_nodes) == 2


async def test_all_brokers_name_the_same_coordinator_of_a_group() -> None:
    async with running_cluster() as cluster:
        named: dict[str, set[int]] = {}
        for member in await three(cluster):
            async with await AsyncClient.connect(member.port) as client:
                for group in map(str, range(30)):
                    answer = await client.ask(find_v3.FindCoordinatorRequest(key=group, key_type=0))
                    named.setdefault(group, set()).add(answer.node_id)

    assert {len(found) for found in named.values()} == {1}
    assert set.union(*named.values()) == {1, 2, 3}


@pytest.mark.parametrize("strategy", ["self", "client", "partition"])
async def test_any_broker_serves_any_partition_whoever_is_named_its_leader(strategy: str) -> None:
    async with running_cluster() as cluster:
        members = await three(cluster, leader=strategy)
        await create(members[0], "t")
        for round_, member in enumerate(members):
            async with await AsyncClient.connect(member.port) as client:
                produced = await client.produce("t", {partition: bytes(record_batch(b"x")) for partition in range(PARTITIONS)})
                read = await client.fetch("t", dict.fromkeys(range(PARTITIONS), 0))

            assert set(produced.values()) == {(0, round_)}
            assert all(found.error == 0 and found.offsets == list(range(round_ + 1)) for found in read.values())


async def test_a_broker_that_leaves_is_unlisted_and_its_partitions_are_led_by_others() -> None:
    async with running_cluster() as cluster:
        members = await three(cluster, leader="partition")
        await create(members[0], "t")
        before = await leaders_of(members[0], "t")
        await cluster.leave(members[2])
        await settled(members[0], [1, 2])
        after = await leaders_of(members[0], "t")

    assert {old for old, new in zip(before, after, strict=True) if old != new} <= {3}
    assert set(after) == {1, 2}


async def test_a_broker_that_lost_its_session_registers_again_under_its_id_with_a_new_epoch() -> None:
    async with running_cluster() as cluster:
        one, other = await cluster.join(broker_id=7), await cluster.join()
        await create(one, "t", partitions=1)
        async with await AsyncClient.connect(one.port) as client:
            before = await client.produce("t", {0: bytes(record_batch(b"before", producer_id=5, producer_epoch=0, base_sequence=0))})
            (old,) = await cluster.metadata.get_many([keys.broker(7)])
            await one.lose_session()
            at_once = await client.produce("t", {0: bytes(record_batch(b"at once", producer_id=5, producer_epoch=0, base_sequence=1))})
            await settled(other, [1, 7])
            after = await client.produce("t", {0: bytes(record_batch(b"after", producer_id=5, producer_epoch=0, base_sequence=2))})
            again = await client.produce("t", {0: bytes(record_batch(b"before", producer_id=5, producer_epoch=0, base_sequence=0))})
        (new,) = await cluster.metadata.get_many([keys.broker(7)])

    assert [before[0], at_once[0], after[0], again[0]] == [(0, 0), (0, 1), (0, 2), (0, 0)]
    assert old is not None
    assert new is not None
    assert new.version > old.version


async def test_a_broker_that_cannot_register_again_serves_and_names_the_others() -> None:
    async with running_cluster() as cluster:
        one, other = await cluster.join(broker_id=7), await cluster.join()
        await create(one, "t", partitions=3)
        await take_id(cluster, one, 7)
        listed = await metadata_of(one, "t")
        async with await AsyncClient.connect(one.port) as client:
            produced = await client.produce("t", {0: bytes(record_batch(b"x"))})
            read: dict[int, Read] = await client.fetch("t", {0: 0})

        assert [(found.node_id, found.port) for found in listed.brokers] == [(1, other.port), (7, 1)]
        assert {partition.leader_id for partition in listed.topics[0].partitions} <= {1, 7}
        assert produced[0] == (0, 0)
        assert read[0].offsets == [0]


async def test_a_broker_whose_assigned_id_was_taken_meanwhile_gets_another() -> None:
    async with running_cluster() as cluster:
        one = await cluster.join()
        await take_id(cluster, one, 1)
        async with asyncio.timeout(SOON_S):
            while one.broker_id == 1:  # noqa: ASYNC110 - the pause of the code under test
                await asyncio.sleep(0.02)
        listed = await metadata_of(one)

    assert one.broker_id == 2
    assert [found.node_id for found in listed.brokers] == [1, 2]


async def take_id(cluster: Cluster, member: Member, broker_id: int) -> None:
    """The member loses its session, and somebody else takes its id before it can."""
    (record,) = await cluster.metadata.get_many([keys.broker(broker_id)])
    assert record is not None
    session = await cluster.metadata.open_session(timeout_ms=60_000)
    stranger = msgspec.structs.replace(
        msgspec.json.decode(record.value, type=BrokerRecord),
        listeners=(Endpoint("PLAINTEXT", "127.0.0.1", 1),),
        session_id=session.session_id,
    )
    await member.lose_session()
    await cluster.metadata.write([Put(keys.broker(broker_id), msgspec.json.encode(stranger), None, session=session.session_id)])


async def test_a_reader_that_names_its_rack_is_sent_there_once_and_served_wherever_it_stays() -> None:
    async with running_cluster() as cluster:
        far, near = await cluster.join(rack="a"), await cluster.join(rack="b")
        await create(far, "t", partitions=1)
        async with await AsyncClient.connect(far.port) as client, await AsyncClient.connect(near.port) as moved:
            await client.produce("t", {0: bytes(record_batch(b"x"))})
            sent = (await client.fetch("t", {0: 0}, rack="b", max_wait_ms=10_000))[0]
            stays = (await client.fetch("t", {0: 0}, rack="b"))[0]
            there = (await moved.fetch("t", {0: 0}, rack="b"))[0]

    assert (sent.preferred_replica, sent.offsets, sent.high_watermark) == (near.broker_id, [], 1)
    assert (stays.preferred_replica, stays.offsets) == (-1, [0])
    assert (there.preferred_replica, there.offsets) == (-1, [0])


async def test_a_consumer_that_names_its_rack_reads_from_the_broker_that_stands_there() -> None:
    async with running_cluster() as cluster:
        far, near = await cluster.join(rack="a"), await cluster.join(rack="b")
        await create(far, "t", partitions=1, replicas=2)
        async with await AsyncClient.connect(far.port) as client:
            await client.produce("t", {0: bytes(record_batch(b"x"))})
        # Bootstrapped at the far one, which names itself leader.
        consumer = Consumer(
            {
                "log_level": 0,
                "bootstrap.servers": far.bootstrap,
                "client.rack": "b",
                "group.id": "unused",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 50,
            }
        )
        consumer.assign([TopicPartition("t", 0, 0)])
        message = await asyncio.to_thread(consumer.poll, SOON_S)
        await asyncio.to_thread(consumer.close)

    assert message is not None
    assert (message.error(), message.value()) == (None, b"x")
    assert near.requests("forebay_kafka_requests_total", api="Fetch") > 0


async def test_a_broker_says_in_its_readiness_that_it_has_no_registration() -> None:
    async with running_cluster() as cluster:
        member = await cluster.join(broker_id=7)
        before = member.broker.readiness.sum_up().checks["registration"]
        await take_id(cluster, member, 7)
        async with asyncio.timeout(SOON_S):
            while (lost := member.broker.readiness.sum_up().checks["registration"]).ok:  # noqa: ASYNC110 - asked as health is
                await asyncio.sleep(0.01)

    assert before.ok
    assert "lost" in str(lost.error) or "taken" in str(lost.error)
