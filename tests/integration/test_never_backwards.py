"""Promise 5: ListOffsets and Fetch on any broker see at once what any other has acknowledged."""

import asyncio
import random

import pytest

from broker.limits import FetchLimits
from tests.integration.test_membership import create
from tests.kit.async_client import AsyncClient, parse_listed, parse_read
from tests.kit.clustering import Member, SharedStores, running_cluster, shared_stores
from tests.kit.record_batches import record_batch

__all__ = ["shared_stores"]

CHECKS = 2_000
CHECKS_OF_MANY = 10_000
ROUNDS = 200
WORKERS = 10
PARTITIONS_EACH = 20
BATCH = bytes(record_batch(b"x"))


@pytest.mark.parametrize("checks", [CHECKS, pytest.param(CHECKS_OF_MANY, marks=[pytest.mark.slow, pytest.mark.long])])
async def test_what_one_broker_acknowledged_another_shows_at_once(shared_stores: SharedStores | None, checks: int) -> None:
    # A fetch answers a partition empty, and truthfully, whose GET takes longer than that: on a busy machine some do.
    fetch_limits = FetchLimits(late_after_s=30.0)
    checked = 0
    async with running_cluster(shared=shared_stores) as cluster:
        members = [await cluster.join(fetch_limits=fetch_limits) for _ in range(3)]
        await create(members[0], "t", partitions=WORKERS * PARTITIONS_EACH)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_check(members, worker, checks // WORKERS // PARTITIONS_EACH)) for worker in range(WORKERS)]
        checked = sum(task.result() for task in tasks)

    assert checked == checks


async def _check(members: list[Member], worker: int, checks: int) -> int:
    """Its own partitions, so that what must be seen is known exactly."""
    chance = random.Random(worker)
    clients = [await AsyncClient.connect(member.port) for member in members]
    mine = range(worker * PARTITIONS_EACH, (worker + 1) * PARTITIONS_EACH)
    ends = dict.fromkeys(mine, 0)
    for _ in range(checks):
        appender, asker = chance.sample(clients, 2)
        appended = await appender.produce("t", dict.fromkeys(mine, BATCH))
        assert appended == {partition: (0, end) for partition, end in ends.items()}
        asker.send_list_offsets("t", mine)
        asker.send_fetch("t", ends)
        listed, read = parse_listed(await asker.take()), parse_read(await asker.take())
        for partition, end in ends.items():
            assert listed[partition] == (0, end + 1)
            assert read[partition].high_watermark == end + 1
            assert read[partition].offsets == [end]
            ends[partition] = end + 1
    for client in clients:
        await client.close()
    return checks * PARTITIONS_EACH


async def test_a_reader_that_goes_round_the_brokers_never_sees_the_end_go_back(shared_stores: SharedStores | None) -> None:
    """While others append all the time, through whichever broker."""
    async with running_cluster(shared=shared_stores) as cluster:
        members = [await cluster.join() for _ in range(3)]
        await create(members[0], "t", partitions=1)
        asked = 0
        done = asyncio.Event()

        async def append(member: Member) -> None:
            async with await AsyncClient.connect(member.port) as client:
                while not done.is_set():
                    assert (await client.produce("t", {0: BATCH}))[0].error == 0

        async def go_round() -> None:
            nonlocal asked
            seen = 0
            clients = [await AsyncClient.connect(member.port) for member in members]
            for number in range(ROUNDS):
                client = clients[number % 3]
                end = (await client.list_offsets("t", [0]))[0].offset
                read = (await client.fetch("t", {0: end}))[0]
                assert (read.error, end >= seen, read.high_watermark >= end) == (0, True, True)
                seen = read.high_watermark
                asked += 1
            done.set()
            for client in clients:
                await client.close()
            assert seen > 0

        async with asyncio.TaskGroup() as group:
            for member in members:
                group.create_task(append(member))
            group.create_task(go_round())

    assert asked == ROUNDS
