"""What brokers cost the stores while nothing happens: requests are counted where they leave the broker, keep-alives excepted."""

import asyncio

from runtime.clock import SystemClock
from tests.integration.test_membership import create, settled
from tests.kit.async_client import AsyncClient
from tests.kit.clustering import Cluster, Member, running_cluster
from tests.kit.record_batches import record_batch

IDLE_S = 3.0
"""Less than process/http/probes.py `OBJECT_STORE_IDLE_S`, after which an object is put to see whether that works."""
METADATA_REQUESTS = "forebay_metadata_requests_total"
OBJECT_REQUESTS = "forebay_object_store_requests_total"
LOOKS_PER_S = 1 / 10
"""At whose store it is."""
PARTITIONS = 50

clock = SystemClock()


async def cluster_of_three(cluster: Cluster) -> list[Member]:
    members = [await cluster.join() for _ in range(3)]
    for number in range(5):
        await create(members[0], f"t{number}", partitions=PARTITIONS)
    for member in members:
        await settled(member, [1, 2, 3])
        async with await AsyncClient.connect(member.port) as client:
            await client.produce("t0", {partition: bytes(record_batch(b"x")) for partition in range(PARTITIONS)})
    return members


def requests_of(members: list[Member]) -> list[tuple[float, float]]:
    """To metadata and to the object store, by member."""
    return [(member.requests(METADATA_REQUESTS), member.requests(OBJECT_REQUESTS)) for member in members]


async def test_a_broker_without_clients_asks_metadata_less_than_once_a_second_and_puts_nothing_before_it_is_probed() -> None:
    async with running_cluster() as cluster:
        members = await cluster_of_three(cluster)
        assert all(metadata and objects for metadata, objects in requests_of(members)), "the counters count"
        before, began_s = requests_of(members), clock.monotonic_s()
        await asyncio.sleep(IDLE_S)
        after, passed_s = requests_of(members), clock.monotonic_s() - began_s

    for (metadata, objects), (more_metadata, more_objects) in zip(before, after, strict=True):
        assert more_metadata - metadata <= passed_s
        assert more_objects - objects <= 1 + LOOKS_PER_S * passed_s


async def test_a_reader_that_waits_for_fifty_partitions_costs_one_read_per_poll_and_shard_for_all_of_them() -> None:
    async with running_cluster(shards=1) as cluster:
        members = await cluster_of_three(cluster)
        async with await AsyncClient.connect(members[1].port) as client:
            client.send_fetch("t0", dict.fromkeys(range(PARTITIONS), 3), max_wait_ms=int(IDLE_S * 1_000))
            before, began_s = requests_of(members), clock.monotonic_s()
            await client.take()
            after, passed_s = requests_of(members), clock.monotonic_s() - began_s

    used = [more - metadata for (metadata, _), (more, _) in zip(before, after, strict=True)]
    assert used[0] <= passed_s
    assert used[2] <= passed_s
    # Hints of nothing have come, so it polls ten times a second.
    assert IDLE_S < used[1] <= 11 * passed_s + 2
    assert all(more - objects <= 1 + LOOKS_PER_S * passed_s for (_, objects), (_, more) in zip(before, after, strict=True))


async def test_a_reader_whose_hints_arrive_costs_one_read_a_second() -> None:
    async with running_cluster(shards=1) as cluster:
        members = await cluster_of_three(cluster)
        async with await AsyncClient.connect(members[1].port) as client:
            client.send_fetch("t0", dict.fromkeys(range(PARTITIONS), 3), max_wait_ms=30_000)
            await asyncio.sleep(0.3)
            async with await AsyncClient.connect(members[0].port) as producer:
                await producer.produce("t0", {0: bytes(record_batch(b"y"))})
            await client.take()
            client.send_fetch("t0", {0: 4} | dict.fromkeys(range(1, PARTITIONS), 3), max_wait_ms=int(IDLE_S * 1_000))
            before, began_s = requests_of(members), clock.monotonic_s()
            await client.take()
            after, passed_s = requests_of(members), clock.monotonic_s() - began_s

    assert after[1][0] - before[1][0] <= passed_s + 4
