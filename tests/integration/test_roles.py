"""Brokers that leave some roles to others: where clients go, their refusals, and who stands in (docs/guides/deploy.md#roles)."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from kio.schema.errors import ErrorCode

from process.settings.errors import StartError
from tests.kit.async_client import AsyncClient
from tests.kit.clustering import HOST, Cluster, Member, SharedStores, running_cluster, shared_stores
from tests.kit.kafka_messages import frame, plain
from tests.kit.record_batches import record_batch

__all__ = ["shared_stores"]

SOON_S: Final = 60.0
METADATA, PRODUCE, FETCH, CREATE = (3, 12), (0, 9), (1, 12), (19, 7)
RECORDS: Final = 60


async def ask(member: Member, api: tuple[int, int], client_id: str = "test", **fields: Any) -> dict[str, Any]:
    async with await AsyncClient.connect(member.port) as client:
        sent = frame(*api, fields, correlation_id=1, client_id=client_id)
        client.writer.write(len(sent).to_bytes(4, "big") + sent)
        return plain(*api, b"\0\0\0\0" + await client.take())


async def leaders(member: Member, topic: str, client_id: str = "test") -> tuple[set[int], list[int], int]:
    """Leaders of the topic's partitions, the replicas of the first, and the controller."""
    found = await ask(member, METADATA, client_id, topics=[{"topic_id": None, "name": topic}], allow_auto_topic_creation=False)
    partitions = found["topics"][0]["partitions"]
    return {one["leader_id"] for one in partitions}, partitions[0]["replica_nodes"], found["controller_id"]


async def create(member: Member, topic: str, *, partitions: int = 4, replicas: int = 1) -> ErrorCode:
    asked = [{"name": topic, "num_partitions": partitions, "replication_factor": replicas, "assignments": [], "configs": []}]
    answer = await ask(member, CREATE, topics=asked, timeout=30_000, validate_only=False)
    return ErrorCode(answer["topics"][0]["error_code"])


async def produced(member: Member, topic: str) -> ErrorCode:
    records = [{"index": 0, "records": bytes(record_batch(b"v"))}]
    answer = await ask(
        member, PRODUCE, transactional_id=None, acks=-1, timeout=30_000, topic_data=[{"name": topic, "partition_data": records}]
    )
    return ErrorCode(answer["responses"][0]["partition_responses"][0]["error_code"])


async def three(cluster: Cluster) -> tuple[Member, Member, Member]:
    """A broker for writers, one for readers, and one for groups and administration; each knows of the others."""
    writer = await cluster.join(broker_id=1, roles="produce")
    reader = await cluster.join(broker_id=2, roles="consume")
    other = await cluster.join(broker_id=3, roles="groups,admin")
    for member in (writer, reader, other):
        await answers(lambda member=member: _count(member), 3)
    for member in (reader, other):
        await answers(lambda member=member: produced(member, "none"), ErrorCode.not_leader_or_follower)
    return writer, reader, other


async def answers(asking: Callable[[], Awaitable[Any]], expected: object) -> None:
    async with asyncio.timeout(SOON_S):
        for _ in itertools.count():
            if await asking() == expected:
                return
            await asyncio.sleep(0.05)


async def _count(member: Member) -> int:
    return len((await ask(member, METADATA, topics=[], allow_auto_topic_creation=False))["brokers"])


async def test_metadata_name_brokers_for_what_they_are_there_for() -> None:
    async with running_cluster() as cluster:
        writer, reader, other = await three(cluster)
        created = await create(other, "t", replicas=2)
        named = [await leaders(member, "t") for member in (writer, reader, other)]
        to_read = [await leaders(member, "t", "app,role=consume") for member in (writer, reader, other)]

        assert created is ErrorCode.none
        assert [one for one, _, _ in named] == [{1}, {1}, {1}]
        assert [(replicas[0], set(replicas[1:]) < {2, 3}) for _, replicas, _ in named] == [(1, True)] * 3
        assert [controller for _, _, controller in named] == [3, 3, 3]
        assert [one for one, _, _ in to_read] == [{2}, {2}, {2}]


async def test_producers_are_sent_on_as_kafka_would_and_administration_is_refused_to_nobody() -> None:
    async with running_cluster() as cluster:
        writer, reader, other = await three(cluster)
        await create(other, "t")

        assert [await create(member, f"t-{member.broker.broker_id}") for member in (writer, reader, other)] == [ErrorCode.none] * 3
        assert [await produced(member, "t") for member in (writer, reader, other)] == [
            ErrorCode.none,
            ErrorCode.not_leader_or_follower,
            ErrorCode.not_leader_or_follower,
        ]


async def test_a_reader_is_sent_on_once_by_a_broker_that_leaves_reading_to_others_and_served_if_it_stays() -> None:
    async with running_cluster() as cluster:
        writer, reader, other = await three(cluster)
        await create(other, "t", partitions=1)
        await produced(writer, "t")
        asked = {"partition": 0, "current_leader_epoch": -1, "fetch_offset": 0, "partition_max_bytes": 1_000_000, "log_start_offset": -1}
        fields: dict[str, Any] = {
            "max_wait": 100,
            "min_bytes": 1,
            "max_bytes": 1_000_000,
            "isolation_level": 0,
            "session_id": 0,
            "session_epoch": -1,
            "topics": [{"topic": "t", "partitions": [asked | {"last_fetched_epoch": -1}]}],
            "forgotten_topics_data": [],
            "rack_id": "",
        }

        async def fetched(client: AsyncClient) -> tuple[int, bool, int]:
            sent = frame(*FETCH, fields, correlation_id=1)
            client.writer.write(len(sent).to_bytes(4, "big") + sent)
            answer = plain(*FETCH, b"\0\0\0\0" + await client.take())["responses"][0]["partitions"][0]
            return answer["preferred_read_replica"], bool(answer["records"]), answer["error_code"]

        async def by_a_new_connection() -> tuple[int, bool, int]:
            async with await AsyncClient.connect(writer.port) as client:
                return await fetched(client)

        await answers(by_a_new_connection, (2, False, 0))  # from when it knows of the reader on
        told = []
        for member in (writer, reader):
            async with await AsyncClient.connect(member.port) as client:
                told += [await fetched(client), await fetched(client)]

    assert told == [(2, False, 0), (-1, True, 0), (-1, True, 0), (-1, True, 0)]


async def test_the_last_broker_standing_serves_everything() -> None:
    async with running_cluster() as cluster:
        writer, reader, other = await three(cluster)
        await create(other, "t")
        await cluster.leave(writer)
        await cluster.leave(other)
        await answers(lambda: produced(reader, "t"), ErrorCode.none)
        stood_in = reader.broker.telemetry.registry.get_sample_value("forebay_role_stand_ins_total", {"role": "produce"})

        assert await create(reader, "another") is ErrorCode.none
        assert (await leaders(reader, "t"))[0] == {2}
        assert (stood_in or 0) >= 1


async def test_clients_of_several_families_see_no_error(shared_stores: SharedStores | None) -> None:
    async with running_cluster(shared=shared_stores) as cluster:
        writer, reader, other = await three(cluster)
        servers = ",".join(f"{HOST}:{member.port}" for member in (reader, other, writer))
        await asyncio.to_thread(_create_topic, servers)
        async with AIOKafkaProducer(bootstrap_servers=servers, enable_idempotence=True) as producer:
            for number in range(RECORDS):
                await producer.send_and_wait("t", b"%d" % number)
        await asyncio.to_thread(_produce, servers)
        found = await asyncio.gather(
            _by_aiokafka(servers, "group-a"), asyncio.to_thread(_by_librdkafka, servers, "group-b", "app,role=consume")
        )

    expected = sorted([*[b"%d" % number for number in range(RECORDS)], *[b"c%d" % number for number in range(RECORDS)]])
    assert [sorted(one) for one in found] == [expected, expected]


def _create_topic(servers: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    (created,) = admin.create_topics([NewTopic("t", 4, 2)]).values()
    created.result(SOON_S)


def _produce(servers: str) -> None:
    failed: list[object] = []
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True})
    for number in range(RECORDS):
        producer.produce("t", b"c%d" % number, on_delivery=lambda error, _message: failed.append(error) if error else None)
    assert producer.flush(SOON_S) == 0
    assert failed == []


async def _by_aiokafka(servers: str, group: str) -> Sequence[bytes]:
    found: list[bytes] = []
    async with AIOKafkaConsumer("t", bootstrap_servers=servers, group_id=group, auto_offset_reset="earliest") as consumer:
        async with asyncio.timeout(SOON_S):
            while len(found) < 2 * RECORDS:
                found.append((await consumer.getone()).value)
        await consumer.commit()
    return found


def _by_librdkafka(servers: str, group: str, client_id: str) -> Sequence[bytes]:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": group, "auto.offset.reset": "earliest", "client.id": client_id})
    consumer.subscribe(["t"])
    found: list[bytes] = []
    for _ in range(int(SOON_S)):
        for message in consumer.consume(1_000, 1.0):
            assert message.error() is None, message.error()
            found.append(bytes(message.value() or b""))
        if len(found) == 2 * RECORDS:
            break
    consumer.commit(asynchronous=False)
    consumer.close()
    return found


@pytest.mark.parametrize(("roles", "message"), [("", "must name one or more of"), ("produce,prodce", "has 'prodce', which is none of")])
async def test_roles_that_are_none_are_named(roles: str, message: str) -> None:
    async with running_cluster() as cluster:
        with pytest.raises((ValueError, StartError), match=message):
            await cluster.join(roles=roles)
