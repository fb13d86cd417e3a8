"""Brokers that come, go and lose their sessions while producers with sequences write: nothing is lost, repeated or out of order."""

import asyncio

import pytest

from tests.integration.test_leader_hops import PARTITIONS, Sent, produce, read_all
from tests.integration.test_membership import create, settled
from tests.kit.async_client import AsyncClient
from tests.kit.clustering import Cluster, running_cluster
from tests.kit.record_batches import record_batch

PAUSE_S = 0.3
REQUESTS = "forebay_kafka_requests_total"


def producing(group: asyncio.TaskGroup, cluster: Cluster, until: asyncio.Event) -> list[asyncio.Task[Sent]]:
    return [group.create_task(produce(cluster, name, until=until, **{"enable.idempotence": True})) for name in ("a", "b")]


async def judge(cluster: Cluster, tasks: list[asyncio.Task[Sent]]) -> None:
    """From whichever broker is left first."""
    stored = await read_all(cluster.members[0])
    count = 0
    for task in tasks:
        sent = task.result()
        assert not sent.errors
        assert sent.found_in(stored) == sent.values
        count += sum(map(len, sent.values.values()))
    assert sum(map(len, stored.values())) == count


@pytest.mark.parametrize("leader", ["self", "client", "partition"])
async def test_a_broker_leaves_and_one_joins_under_load(leader: str) -> None:
    async with running_cluster() as cluster:
        for _ in range(3):
            await cluster.join(leader=leader)
        await create(cluster.members[0], "t", partitions=PARTITIONS)
        async with asyncio.TaskGroup() as group:
            tasks = producing(group, cluster, done := asyncio.Event())
            await asyncio.sleep(PAUSE_S)
            busiest = max(cluster.members, key=lambda member: member.requests(REQUESTS, api="Produce"))
            await cluster.leave(busiest)
            await asyncio.sleep(PAUSE_S)
            joined = await cluster.join(leader=leader)
            await asyncio.sleep(PAUSE_S)
            done.set()
        await settled(joined, [1, 2, 3])
        await judge(cluster, tasks)


async def test_every_broker_in_turn_loses_its_session_under_load() -> None:
    async with running_cluster() as cluster:
        for number in range(3):
            await cluster.join(broker_id=number + 1, leader="partition")
        await create(cluster.members[0], "t", partitions=PARTITIONS)
        async with asyncio.TaskGroup() as group:
            tasks = producing(group, cluster, done := asyncio.Event())
            for _ in range(3):
                for member in cluster.members:
                    await asyncio.sleep(0.1)
                    await member.lose_session()
            await asyncio.sleep(PAUSE_S)
            done.set()
        await settled(cluster.members[0], [1, 2, 3])
        await judge(cluster, tasks)


async def test_what_a_leaving_broker_had_taken_is_committed_before_it_is_gone() -> None:
    async with running_cluster() as cluster:
        one, other = await cluster.join(flush_interval="2s"), await cluster.join()
        await create(one, "t", partitions=1)
        async with await AsyncClient.connect(one.port) as client:
            assert (await client.produce("t", {0: bytes(record_batch(b"first"))}))[0] == (0, 0)
            client.send_produce("t", {0: bytes(record_batch(b"taken"))})
            await client.writer.drain()
            while not one.requests("forebay_produce_buffer_bytes"):  # noqa: ASYNC110 - until the request has arrived
                await asyncio.sleep(0)
            await cluster.leave(one)
        values = await read_all(other, partitions=1)

    assert values == {0: [b"first", b"taken"]}
