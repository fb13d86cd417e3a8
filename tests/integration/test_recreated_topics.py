"""A topic that is deleted and created again under load, by brokers that both serve it: no record of one incarnation shows in another."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.kit.async_client import AsyncClient, Read
from tests.kit.clustering import Cluster, Member, SharedStores, running_cluster, shared_stores
from tests.kit.kafka_messages import frame, plain
from tests.kit.record_batches import record_batch

__all__ = ["shared_stores"]

TOPIC = "t"
PARTITIONS = 2
CYCLES = 8
ACKED_PER_CYCLE = 40
"""An incarnation is deleted when so many records were acknowledged since it was there."""
TIMEOUT_S = 60.0
CREATE, DELETE, METADATA, FETCH = (19, 7), (20, 6), (3, 12), (1, 13)
GONE = {ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id, ErrorCode.inconsistent_topic_id}


@dataclass
class Seen:
    """`acked`: value → partition, offset and how many incarnations there had been when its request was sent and when it was answered."""

    acked: dict[bytes, tuple[int, int, int, int]] = field(default_factory=dict)
    read: dict[tuple[uuid.UUID, int, int], bytes] = field(default_factory=dict)
    contradictions: list[str] = field(default_factory=list)
    refused: set[ErrorCode] = field(default_factory=set)
    incarnations: list[uuid.UUID] = field(default_factory=list)
    began: int = 0
    """Creations that were asked for."""
    is_over: bool = False
    is_written: bool = False
    """Nothing is under way any more: what an empty answer to a read lacks now, it lacks for good."""


async def ask(client: AsyncClient, api: tuple[int, int], **fields: Any) -> dict[str, Any]:
    sent = frame(*api, fields, correlation_id=1)
    client.writer.write(len(sent).to_bytes(4, "big") + sent)
    return plain(*api, b"\0\0\0\0" + await client.take())


@asynccontextmanager
async def connected(member: Member) -> AsyncIterator[AsyncClient]:
    async with await AsyncClient.connect(member.port) as client:
        yield client


async def create(client: AsyncClient, seen: Seen) -> None:
    seen.began += 1
    asked = [{"name": TOPIC, "num_partitions": PARTITIONS, "replication_factor": 1}]
    (answer,) = (await ask(client, CREATE, topics=asked, timeout=10_000))["topics"]
    assert answer["error_code"] == 0, answer
    seen.incarnations.append(uuid.UUID(answer["topic_id"]))


async def delete(client: AsyncClient) -> None:
    (answer,) = (await ask(client, DELETE, topics=[{"name": TOPIC}], timeout=10_000))["responses"]
    assert answer["error_code"] == 0, answer


async def produce(member: Member, seen: Seen, name: str) -> None:
    async with connected(member) as client:
        number = 0
        while not seen.is_over:
            number += 1
            value, partition, before = f"{name}-{number}".encode(), number % PARTITIONS, len(seen.incarnations)
            found = (await client.produce(TOPIC, {partition: bytes(record_batch(value))}))[partition]
            if found.error:
                seen.refused.add(ErrorCode(found.error))
                await asyncio.sleep(0.001)
            else:
                seen.acked[value] = partition, found.base_offset, before, seen.began


async def read(member: Member, seen: Seen) -> None:
    """Every incarnation by its id, for as long as it is there."""
    async with connected(member) as client:
        begun = 0
        while not (seen.is_written and begun == len(seen.incarnations)):
            if begun == len(seen.incarnations):
                await asyncio.sleep(0.001)
                continue
            await read_incarnation(client, seen, seen.incarnations[begun])
            begun += 1


async def read_incarnation(client: AsyncClient, seen: Seen, topic_id: uuid.UUID) -> None:
    offsets = dict.fromkeys(range(PARTITIONS), 0)
    while True:
        asked = [{"partition": partition, "fetch_offset": offset, "partition_max_bytes": 1 << 20} for partition, offset in offsets.items()]
        whole = {"max_wait": 50, "min_bytes": 1, "max_bytes": 1 << 24, "session_epoch": -1}
        is_written = seen.is_written
        answer = await ask(client, FETCH, **whole, topics=[{"topic_id": topic_id, "partitions": asked}])
        assert answer["error_code"] == 0, answer
        is_empty = True
        for part in answer["responses"][0]["partitions"]:
            if part["error_code"] == ErrorCode.kafka_storage_error:
                is_empty = False  # a machine that is busy has not read its manifest in time: clients ask again
                continue
            if part["error_code"]:
                assert ErrorCode(part["error_code"]) in GONE, part
                return
            index = part["partition_index"]
            for offset, value in Read(0, 0, -1, bytes.fromhex(part["records"] or "")).records:
                if offset < offsets[index]:
                    continue
                if offset != offsets[index]:
                    seen.contradictions.append(f"{topic_id} {index}: {offset} comes after {offsets[index] - 1}")
                if seen.read.setdefault((topic_id, index, offset), value) != value:
                    seen.contradictions.append(f"{topic_id} {index} {offset} was {seen.read[topic_id, index, offset]!r}, is {value!r}")
                offsets[index], is_empty = offset + 1, False
        if is_empty and is_written and topic_id == seen.incarnations[-1]:
            return


async def acknowledged(seen: Seen, more: int) -> None:
    """Return when so many more records are."""
    wanted = len(seen.acked) + more
    while len(seen.acked) < wanted:  # noqa: ASYNC110 - the producers say so by what they have got, not to somebody
        await asyncio.sleep(0.001)


async def recreate(cluster: Cluster, seen: Seen) -> None:
    """Through both brokers in turn."""
    for cycle in range(CYCLES):
        await acknowledged(seen, ACKED_PER_CYCLE)
        async with connected(cluster.members[cycle % 2]) as client:
            await delete(client)
        async with connected(cluster.members[(cycle + cycle // 2) % 2]) as client:
            await create(client, seen)
    await acknowledged(seen, ACKED_PER_CYCLE)
    seen.is_over = True


@pytest.fixture
async def seen(shared_stores: SharedStores | None) -> Seen:
    found = Seen()
    async with running_cluster(shared=shared_stores) as cluster, asyncio.timeout(TIMEOUT_S):
        for _ in range(2):
            await cluster.join()
        async with connected(cluster.members[0]) as client:
            await create(client, found)
        async with asyncio.TaskGroup() as group:
            for member in cluster.members:
                group.create_task(read(member, found))
            async with asyncio.TaskGroup() as writing:
                for number, member in enumerate(cluster.members):
                    writing.create_task(produce(member, found, f"p{number}"))
                writing.create_task(recreate(cluster, found))
            found.is_written = True
    return found


async def test_every_incarnation_has_offsets_and_records_of_its_own(seen: Seen) -> None:
    last = seen.incarnations[-1]
    homes: dict[bytes, set[tuple[uuid.UUID, int, int]]] = {}
    for place, value in seen.read.items():
        homes.setdefault(value, set()).add(place)
    in_the_last = {value for value, places in homes.items() if any(topic_id == last for topic_id, _, _ in places)}
    surely_in_the_last = {value for value, (_, _, before, _) in seen.acked.items() if before == len(seen.incarnations)}
    surely_before_it = {value for value, (_, _, _, began) in seen.acked.items() if began < len(seen.incarnations)}
    misplaced = {
        value: (where[:2], homes[value])
        for value, where in seen.acked.items()
        if value in homes and not any((partition, offset) == where[:2] for _, partition, offset in homes[value])
    }

    assert len(set(seen.incarnations)) == CYCLES + 1
    assert seen.contradictions == []
    assert {value: places for value, places in homes.items() if len(places) > 1} == {}
    assert misplaced == {}
    assert surely_in_the_last - in_the_last == set()
    assert surely_before_it & in_the_last == set()
    assert len(surely_before_it) >= CYCLES * ACKED_PER_CYCLE
    assert seen.refused <= GONE
