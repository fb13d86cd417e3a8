"""What producers cost the stores: PUTs and writes of metadata, counted where they leave the broker, for sparse, medium and full loads."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from storage.limits import FLUSH_PARTITIONS_MAX, MIB
from tests.integration.test_membership import create
from tests.kit.async_client import Appended, AsyncClient
from tests.kit.clustering import Member, running_cluster
from tests.kit.record_batches import record_batch

PARTITIONS = 100
SPARSE_RECORDS, SPARSE_PAUSE_S = 30, 0.1
IN_FLIGHT, MEDIUM_PARTITIONS, MEDIUM_ROUNDS = 5, 12, 200
LARGE_BYTES, LARGE_ROUNDS = 1_000_000, 3
OTHERS_PER_S = 1.0
"""Writes that a broker makes for itself: less than one a second (test_idle_cost.py)."""


@dataclass(frozen=True)
class Cost:
    """`commits` are compare-and-sets of manifests, of which one request to the metadata store may carry many."""

    puts: float
    writes: float
    early_commits: float
    conflicts: float
    seconds: float


@dataclass
class Meter:
    member: Member

    def read(self) -> Cost:
        count = self.member.requests
        return Cost(
            puts=count("forebay_object_store_requests_total", op="put"),
            writes=count("forebay_metadata_requests_total", op="write"),
            early_commits=count("forebay_early_commits_total"),
            conflicts=count("forebay_commit_conflicts_total"),
            seconds=asyncio.get_running_loop().time(),
        )

    def since(self, before: Cost) -> Cost:
        now = self.read()
        return Cost(**{name: getattr(now, name) - getattr(before, name) for name in Cost.__dataclass_fields__})


@asynccontextmanager
async def broker(*, early: str) -> AsyncIterator[tuple[Meter, AsyncClient]]:
    """With a topic of PARTITIONS that have been written to; as far from its stores as it is by default on S3 and Oxia."""
    async with running_cluster() as cluster:
        member = await cluster.join(early_bytes_per_second=early, flush_interval="250ms")
        await create(member, "t", partitions=PARTITIONS)
        async with await AsyncClient.connect(member.port) as client:
            await produced(client, dict.fromkeys(range(PARTITIONS), bytes(record_batch(b"first"))))
            yield Meter(member), client


async def produced(client: AsyncClient, batches: Mapping[int, bytes]) -> None:
    answers: Mapping[int, Appended] = await client.produce("t", batches)
    assert {answer.error for answer in answers.values()} == {0}


async def test_a_record_now_and_then_is_one_write_of_metadata_and_no_object() -> None:
    async with broker(early="4MiB") as (meter, client):
        before = meter.read()
        for number in range(SPARSE_RECORDS):
            await produced(client, {number * 7 % PARTITIONS: bytes(record_batch(b"a" * 100))})
            await asyncio.sleep(SPARSE_PAUSE_S)
        cost = meter.since(before)

    assert cost.puts == 0
    assert cost.early_commits == SPARSE_RECORDS
    assert SPARSE_RECORDS <= cost.writes <= SPARSE_RECORDS + OTHERS_PER_S * cost.seconds + 1


async def test_without_that_it_is_an_object_for_each_interval_that_has_records() -> None:
    async with broker(early="0B") as (meter, client):
        before = meter.read()
        for number in range(SPARSE_RECORDS // 3):
            await produced(client, {number * 7 % PARTITIONS: bytes(record_batch(b"a" * 100))})
        cost = meter.since(before)

    assert cost.puts == SPARSE_RECORDS // 3, "each waited for its own"
    assert cost.early_commits == 0


async def test_producers_that_have_several_requests_under_way_share_commits_and_store_no_object() -> None:
    async with broker(early="4MiB") as (meter, _):
        clients = [await AsyncClient.connect(meter.member.port) for _ in range(IN_FLIGHT)]
        before = meter.read()

        async def produce(client: AsyncClient) -> None:
            for number in range(MEDIUM_ROUNDS):
                await produced(client, {number % MEDIUM_PARTITIONS: bytes(record_batch(b"a" * 100))})

        async with asyncio.TaskGroup() as tasks:
            for client in clients:
                tasks.create_task(produce(client))
        cost = meter.since(before)
        for client in clients:
            await client.close()

    records = IN_FLIGHT * MEDIUM_ROUNDS
    assert cost.puts == 0
    assert cost.conflicts == 0
    assert cost.early_commits < records, "some found a commit that they could join"
    assert cost.writes <= cost.early_commits + OTHERS_PER_S * cost.seconds + 1


@pytest.mark.parametrize("early", ["0B", "4MiB"])
async def test_a_full_load_stores_objects_of_eight_mebibytes_and_writes_metadata_once_for_each_shard_of_them(early: str) -> None:
    batch = bytes(record_batch(bytes(LARGE_BYTES)))
    async with broker(early=early) as (meter, client):
        before = meter.read()
        for _ in range(LARGE_ROUNDS):
            await produced(client, dict.fromkeys(range(16), batch))
        cost = meter.since(before)

    stored_bytes = LARGE_ROUNDS * 16 * len(batch)
    assert cost.early_commits == 0
    assert cost.puts <= stored_bytes / (7 * MIB)
    assert FLUSH_PARTITIONS_MAX >= 16
    assert cost.writes <= 4 * cost.puts + OTHERS_PER_S * cost.seconds + 1, "a write for each of four shards"
