"""Leaders that change with every Metadata response: what producers with sequences, and those without, make of it."""

import asyncio
import itertools
import random
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from confluent_kafka import Producer
from kio.schema.errors import ErrorCode

from broker.cluster.leadership import Placement, Question
from storage.vocabulary import TopicId
from tests.integration.test_membership import create
from tests.kit.async_client import AsyncClient, parse_produced
from tests.kit.clustering import Cluster, Member, SharedStores, running_cluster, shared_stores
from tests.kit.record_batches import record_batch

__all__ = ["shared_stores"]

PARTITIONS = 4
RECORDS = 3_000
"""Of each producer."""
FLUSH_S = 200.0
REFRESH_MS = 20
HOPS_MIN = 20
IN_FLIGHT_BATCHES = 250
REQUESTS = "forebay_kafka_requests_total"
REFUSALS = {ErrorCode.out_of_order_sequence_number, ErrorCode.not_leader_or_follower, ErrorCode.kafka_storage_error}

pytestmark = pytest.mark.timeout(600)


@dataclass
class Hopping:
    """The next live broker is the leader, with every answer of any broker that shares it."""

    numbers: Any = field(default_factory=itertools.count)

    def placement(self, question: Question) -> Placement:
        start = next(self.numbers)
        ids = [candidate.broker_id for candidate in question.live]

        def place(_topic_id: TopicId, _partition: int) -> Sequence[int]:
            return [ids[(start + number) % len(ids)] for number in range(len(ids))]

        return place


@asynccontextmanager
async def hopping_cluster(shared: SharedStores | None) -> AsyncIterator[tuple[Cluster, Hopping]]:
    """Two brokers, one of them slow, so that what was sent to it is overtaken by what was sent to the other afterwards."""
    hopping = Hopping()
    async with running_cluster(shared=shared) as cluster:
        for flush_interval in ("5ms", "60ms"):
            await cluster.join(leadership=hopping, flush_interval=flush_interval)
        await create(cluster.members[0], "t", partitions=PARTITIONS)
        yield cluster, hopping


async def read_all(member: Member, topic: str = "t", partitions: int = PARTITIONS) -> dict[int, list[bytes]]:
    """Every value of every partition, in the order of offsets, which are dense."""
    values: dict[int, list[bytes]] = {partition: [] for partition in range(partitions)}
    async with await AsyncClient.connect(member.port) as client:
        ends = await client.list_offsets(topic, range(partitions))
        for partition, end in ends.items():
            while len(values[partition]) < end.offset:
                read = (await client.fetch(topic, {partition: len(values[partition])}))[partition]
                found = [record for record in read.records if record[0] >= len(values[partition])]
                assert found
                assert [offset for offset, _ in found] == list(range(len(values[partition]), len(values[partition]) + len(found)))
                values[partition] += [value for _, value in found]
    return values


@dataclass
class Sent:
    """By one producer: its values by partition, in order, and the errors that deliveries ended with."""

    name: str
    values: dict[int, list[bytes]] = field(default_factory=lambda: {partition: [] for partition in range(PARTITIONS)})
    errors: list[str] = field(default_factory=list)

    def found_in(self, stored: dict[int, list[bytes]]) -> dict[int, list[bytes]]:
        """What is stored of it, in the order of offsets."""
        prefix = f"{self.name}:".encode()
        return {partition: [value for value in values if value.startswith(prefix)] for partition, values in stored.items()}


async def produce(cluster: Cluster, name: str, *, until: asyncio.Event | None = None, **settings: Any) -> Sent:
    """Numbered values, round robin, ten thousand a second at most: RECORDS of them, or as many as it takes until `until` is set."""
    sent = Sent(name)
    producer = Producer(
        {
            "log_level": 0,
            "bootstrap.servers": cluster.bootstrap,
            "topic.metadata.refresh.interval.ms": REFRESH_MS,
            "linger.ms": 1,
            "batch.num.messages": 20,
            **settings,
        }
    )
    for number in itertools.count():
        if number >= RECORDS if until is None else until.is_set():
            break
        partition = number % PARTITIONS
        value = f"{name}:{number}".encode()
        sent.values[partition].append(value)
        producer.produce("t", value, partition=partition, on_delivery=lambda error, _: sent.errors.append(str(error)) if error else None)
        if number % 100 == 0:
            producer.poll(0)
            await asyncio.sleep(0.01)
    left = await asyncio.to_thread(producer.flush, FLUSH_S)
    assert left == 0
    return sent


async def test_idempotent_producers_that_follow_every_hop_lose_repeat_and_reorder_nothing(shared_stores: SharedStores | None) -> None:
    async with hopping_cluster(shared_stores) as (cluster, hopping):
        everything_sent = await asyncio.gather(*(produce(cluster, name, **{"enable.idempotence": True}) for name in ("a", "b", "c")))
        stored = await read_all(cluster.members[0])
        hops = next(hopping.numbers)
        served = [member.requests(REQUESTS, api="Produce") for member in cluster.members]

    for sent in everything_sent:
        assert not sent.errors
        assert sent.found_in(stored) == sent.values
    assert sum(map(len, stored.values())) == 3 * RECORDS
    assert hops > HOPS_MIN
    assert min(served) > HOPS_MIN, "the producers went back and forth"


async def test_a_plain_producer_that_follows_every_hop_loses_and_repeats_nothing(shared_stores: SharedStores | None) -> None:
    """Its records may change places where it hops with requests in flight: nothing tells brokers what came first. `client` is for it."""
    async with hopping_cluster(shared_stores) as (cluster, _):
        sent = await produce(cluster, "a", **{"enable.idempotence": False, "acks": "all", "max.in.flight": 5})
        stored = await read_all(cluster.members[1])

    assert not sent.errors
    assert {partition: sorted(values) for partition, values in stored.items()} == {
        partition: sorted(values) for partition, values in sent.values.items()
    }


async def test_batches_in_flight_to_two_brokers_at_once_are_appended_once_and_in_order(shared_stores: SharedStores | None) -> None:
    """As a Java producer does when its leader changes: five batches under way, any of them to the old leader or the new one."""
    chance = random.Random(4)
    batches = [
        bytes(record_batch(str(number).encode(), producer_id=77, producer_epoch=0, base_sequence=number))
        for number in range(IN_FLIGHT_BATCHES)
    ]
    refused = 0
    async with hopping_cluster(shared_stores) as (cluster, _):
        clients = [await AsyncClient.connect(member.port) for member in cluster.members]
        waiting = deque(range(IN_FLIGHT_BATCHES))
        while waiting:
            head = waiting[0]
            under_way = [waiting.popleft() for _ in range(min(5, len(waiting)))]
            asked = [(number, chance.choice(clients)) for number in under_way]
            for number, client in asked:
                client.send_produce("t", {0: batches[number]})
            failed = []
            for number, client in asked:
                answer = parse_produced(await client.take())[0]
                if answer.error:
                    assert answer.error in REFUSALS
                    assert number != head, "the first that is missing follows what was appended: refusing it makes a producer start over"
                    failed.append(number)
            refused += len(failed)
            waiting.extendleft(reversed(failed))
        for client in clients:
            await client.close()
        values = await read_all(cluster.members[0])

    assert values[0] == [str(number).encode() for number in range(IN_FLIGHT_BATCHES)]
    assert refused, "no batch overtook another: nothing was tried"
