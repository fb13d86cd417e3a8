"""Producers go on where a topic was deleted and created again under them: at once, by whichever broker (ADR 28)."""

import asyncio
from typing import Final

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Producer
from kio.schema.errors import ErrorCode

from tests.integration.test_membership import create
from tests.integration.test_recreated_topics import CREATE, ask, connected, delete
from tests.kit.async_client import AsyncClient
from tests.kit.clustering import Cluster, Member, SharedStores, running_cluster, shared_stores
from tests.kit.record_batches import record_batch

__all__ = ["shared_stores"]

TOPIC: Final = "t"
BEFORE: Final = 5
AFTER: Final = 5
SHORT_MS: Final = 20_000
"""Less than a producer waits that nothing is proved for."""


def batch(sequence: int) -> bytes:
    return bytes(record_batch(b"%d" % sequence, producer_id=77, producer_epoch=0, base_sequence=sequence))


async def send(client: AsyncClient, sequence: int) -> int:
    return (await client.produce(TOPIC, {0: batch(sequence)}))[0].error


async def recreate(member: Member) -> None:
    """A client that names the topic meanwhile may create it first."""
    async with connected(member) as client:
        await delete(client)
        asked = [{"name": TOPIC, "num_partitions": 1, "replication_factor": 1}]
        (answer,) = (await ask(client, CREATE, topics=asked, timeout=10_000))["topics"]
    assert answer["error_code"] in (0, ErrorCode.topic_already_exists)


@pytest.mark.parametrize("brokers", [1, 2])
async def test_a_batch_that_goes_on_after_its_topic_was_created_again_is_taken_by_any_broker(
    shared_stores: SharedStores | None, brokers: int
) -> None:
    async with running_cluster(shared=shared_stores) as cluster:
        for _ in range(brokers):
            await cluster.join()
        first, last = cluster.members[0], cluster.members[-1]
        await create(first, TOPIC)
        async with connected(first) as client:
            for sequence in range(BEFORE):
                assert await send(client, sequence) == 0
        await recreate(first)
        async with connected(last) as client:
            answers = [await until_known(client, sequence) for sequence in range(BEFORE, BEFORE + AFTER)]
            ends = await client.list_offsets(TOPIC, range(1))

    assert answers == [0] * AFTER
    assert ends[0].offset == AFTER


async def until_known(client: AsyncClient, sequence: int) -> int:
    """The answer when the broker has heard of the new topic."""
    while (error := await send(client, sequence)) == ErrorCode.unknown_topic_or_partition:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    return error


async def test_a_batch_that_nothing_is_proved_for_is_one_to_try_again_and_no_disk_is_blamed() -> None:
    async with running_cluster() as cluster:
        member = await cluster.join()
        await create(member, TOPIC)
        async with connected(member) as client:
            answers = [await send(client, 5) for _ in range(3)]

    assert answers == [ErrorCode.not_leader_or_follower] * 3


async def test_librdkafka_goes_on_after_its_topic_was_created_again(shared_stores: SharedStores | None) -> None:
    delivered: list[bytes] = []
    failed: list[str] = []

    def heard(error: object, message: object) -> None:
        if error:
            failed.append(str(error))
        else:
            delivered.append(message.value())  # type: ignore[attr-defined]

    async with running_cluster(shared=shared_stores) as cluster:
        member = await cluster.join()
        await create(member, TOPIC)
        producer = Producer(
            {
                "log_level": 0,
                "bootstrap.servers": cluster.bootstrap,
                "enable.idempotence": True,
                "message.timeout.ms": SHORT_MS,
                "topic.metadata.refresh.interval.ms": 100,
            }
        )
        for number in range(BEFORE + AFTER):
            if number == BEFORE:
                await recreate(member)
            producer.produce(TOPIC, b"%d" % number, partition=0, on_delivery=heard)
            assert await asyncio.to_thread(producer.flush, 2 * SHORT_MS / 1_000) == 0

    assert (failed, delivered) == ([], [b"%d" % number for number in range(BEFORE + AFTER)])


async def test_aiokafka_goes_on_after_its_topic_was_created_again() -> None:
    async with running_cluster() as cluster:
        member = await cluster.join()
        await create(member, TOPIC)
        offsets = await aiokafka_across_a_creation(cluster, member)

    assert offsets == [*range(BEFORE), *range(AFTER)]


async def aiokafka_across_a_creation(cluster: Cluster, member: Member) -> list[int]:
    producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap, enable_idempotence=True, metadata_max_age_ms=200)
    await producer.start()
    try:
        offsets = []
        for number in range(BEFORE + AFTER):
            if number == BEFORE:
                await recreate(member)
            async with asyncio.timeout(SHORT_MS / 1_000):
                offsets.append((await producer.send_and_wait(TOPIC, b"%d" % number, partition=0)).offset)
        return offsets
    finally:
        await producer.stop()
