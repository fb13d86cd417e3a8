"""Real consumers in groups, on brokers of this process: rebalances, commits, static members, and coordinators that leave."""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as NativePartition
from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.find_coordinator.v6 import FindCoordinatorRequest

from runtime.clock import SystemClock
from tests.kit.async_client import AsyncClient
from tests.kit.clustering import Cluster, Member, running_cluster

TOPIC = "t"
PARTITIONS = 4
TIMEOUT_S = 60.0
CLOCK = SystemClock()
IDLE_S = 4.0
METADATA_REQUESTS = "forebay_metadata_requests_total"


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with running_cluster() as running:
        yield running


def create_topic(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(TIMEOUT_S)


def produce(bootstrap: str, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in numbers:
        producer.produce(TOPIC, str(number).encode(), partition=number % PARTITIONS)
    assert producer.flush(TIMEOUT_S) == 0


def ignore(*_: object) -> None:
    pass


def consumer(
    bootstrap: str,
    *,
    on_revoke: Callable[..., object] = ignore,
    **configs: Any,
) -> Consumer:
    conf = {
        "bootstrap.servers": bootstrap,
        "group.id": "g",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "session.timeout.ms": 6_000,
        "heartbeat.interval.ms": 300,
        "topic.metadata.refresh.interval.ms": 1_000,
    }
    made = Consumer(conf | {name.replace("_", "."): value for name, value in configs.items()})
    made.subscribe([TOPIC], on_revoke=on_revoke)
    return made


def poll_until(
    consumers: list[Consumer],
    is_done: Callable[[], bool],
    on_message: Callable[[Message], object],
    on_error: Callable[[KafkaError], object] = ignore,
) -> None:
    deadline_s = CLOCK.monotonic_s() + TIMEOUT_S
    while not is_done():
        assert CLOCK.monotonic_s() < deadline_s, "not done in time"
        for one in consumers:
            message = one.poll(0.05)
            if message is None:
                continue
            if (error := message.error()) is None:
                on_message(message)
            else:
                on_error(error)


def share(consumers: list[Consumer]) -> list[int]:
    return sorted(len(one.assignment()) for one in consumers)


def commit_all(one: Consumer) -> None:
    """What it has read. Without offsets the client leaves out the message that it read last."""
    one.commit(offsets=one.position(one.assignment()), asynchronous=False)


def committed(one: Consumer) -> dict[int, int]:
    partitions = [NativePartition(TOPIC, partition) for partition in range(PARTITIONS)]
    return {found.partition: found.offset for found in one.committed(partitions, timeout=TIMEOUT_S)}


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
async def test_two_members_share_the_partitions_and_one_takes_over_when_the_other_leaves(cluster: Cluster, strategy: str) -> None:
    bootstrap = (await cluster.join()).bootstrap

    def live() -> None:
        create_topic(bootstrap)
        got: Counter[bytes] = Counter()
        both = [consumer(bootstrap, partition_assignment_strategy=strategy) for _ in range(2)]
        poll_until(both, lambda: share(both) == [2, 2], ignore)
        produce(bootstrap, range(100))
        poll_until(both, lambda: len(got) == 100, lambda message: got.update([message.value()]))
        for one in both:
            commit_all(one)
        both[0].close()
        poll_until(both[1:], lambda: share(both[1:]) == [4], ignore)
        produce(bootstrap, range(100, 140))
        poll_until(both[1:], lambda: len(got) == 140, lambda message: got.update([message.value()]))
        commit_all(both[1])
        assert committed(both[1]) == dict.fromkeys(range(PARTITIONS), 35)
        both[1].close()
        assert max(got.values()) == 1

    await asyncio.to_thread(live)


async def test_a_member_goes_on_where_the_one_before_it_committed(cluster: Cluster) -> None:
    bootstrap = (await cluster.join()).bootstrap

    def live() -> None:
        create_topic(bootstrap)
        produce(bootstrap, range(40))
        first: list[bytes] = []
        one = consumer(bootstrap)
        poll_until([one], lambda: len(first) == 40, lambda message: first.append(message.value()))
        metadata = [NativePartition(TOPIC, partition, 7, "read up to seven") for partition in range(PARTITIONS)]
        one.commit(offsets=metadata, asynchronous=False)
        assert {found.metadata for found in one.committed(metadata, timeout=TIMEOUT_S)} == {"read up to seven"}
        one.close()
        again: list[bytes] = []
        other = consumer(bootstrap)
        poll_until([other], lambda: len(again) == 12, lambda message: again.append(message.value()))
        assert sorted(map(int, again)) == list(range(28, 40))
        other.close()

    await asyncio.to_thread(live)


async def test_a_static_member_that_restarts_causes_no_rebalance(cluster: Cluster) -> None:
    bootstrap = (await cluster.join()).bootstrap
    revoked = threading.Event()

    def live() -> None:
        create_topic(bootstrap)
        one = consumer(bootstrap, group_instance_id="static-a", on_revoke=lambda *_: revoked.set())
        other = consumer(bootstrap, group_instance_id="static-b")
        poll_until([one, other], lambda: share([one, other]) == [2, 2], ignore)
        revoked.clear()
        before = {(part.topic, part.partition) for part in other.assignment()}
        other.close()
        again = consumer(bootstrap, group_instance_id="static-b")
        poll_until([one, again], lambda: len(again.assignment()) == 2, ignore)
        assert {(part.topic, part.partition) for part in again.assignment()} == before
        assert not revoked.is_set()
        admin = AdminClient({"bootstrap.servers": bootstrap})
        described = admin.describe_consumer_groups(["g"])["g"].result(TIMEOUT_S)
        assert sorted(member.group_instance_id for member in described.members) == ["static-a", "static-b"]
        one.close()
        again.close()

    await asyncio.to_thread(live)


async def test_a_second_client_with_the_same_instance_id_fences_the_first(cluster: Cluster) -> None:
    bootstrap = (await cluster.join()).bootstrap

    def live() -> None:
        create_topic(bootstrap)
        errors: list[KafkaError] = []
        one = consumer(bootstrap, group_instance_id="same")
        poll_until([one], lambda: len(one.assignment()) == PARTITIONS, ignore)
        other = consumer(bootstrap, group_instance_id="same")
        poll_until([one, other], lambda: any(error.name() == "_FATAL" for error in errors), ignore, errors.append)
        assert len(other.assignment()) == PARTITIONS
        one.close()
        other.close()

    await asyncio.to_thread(live)


async def test_administrators_see_reset_and_delete_groups(cluster: Cluster) -> None:
    for _ in range(3):
        await cluster.join()
    bootstrap = cluster.bootstrap

    def live() -> None:
        create_topic(bootstrap)
        one = consumer(bootstrap)
        poll_until([one], lambda: len(one.assignment()) == PARTITIONS, ignore)
        admin = AdminClient({"bootstrap.servers": bootstrap})
        assert [(group.group_id, group.state.name) for group in admin.list_consumer_groups().result(TIMEOUT_S).valid] == [("g", "STABLE")]
        with pytest.raises(KafkaException, match="NON_EMPTY_GROUP"):
            admin.delete_consumer_groups(["g"])["g"].result(TIMEOUT_S)
        one.commit(offsets=[NativePartition(TOPIC, 0, 3)], asynchronous=False)
        one.close()
        assert admin.describe_consumer_groups(["g"])["g"].result(TIMEOUT_S).state.name == "EMPTY"
        admin.delete_consumer_groups(["g"])["g"].result(TIMEOUT_S)
        assert admin.list_consumer_groups().result(TIMEOUT_S).valid == []
        with pytest.raises(KafkaException, match="GROUP_ID_NOT_FOUND"):
            admin.delete_consumer_groups(["g"])["g"].result(TIMEOUT_S)

    await asyncio.to_thread(live)


class Assigned(ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self) -> None:
        self.count = 0

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        pass

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        self.count = len(assigned)


async def test_aiokafka_members_share_commit_and_resume(cluster: Cluster) -> None:
    bootstrap = (await cluster.join()).bootstrap
    await asyncio.to_thread(create_topic, bootstrap)
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap)
    await producer.start()
    for number in range(40):
        await producer.send_and_wait(TOPIC, str(number).encode(), partition=number % PARTITIONS)
    await producer.stop()

    async def started() -> tuple[AIOKafkaConsumer, Assigned]:
        made = AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id="aio",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=300,
            max_poll_interval_ms=10_000,
            rebalance_timeout_ms=10_000,
        )
        listener = Assigned()
        made.subscribe([TOPIC], listener=listener)
        await made.start()
        return made, listener

    (one, first), (other, second) = await asyncio.gather(started(), started())
    got: list[bytes] = []
    async with asyncio.timeout(TIMEOUT_S):
        while len(got) < 40 or (first.count, second.count) != (2, 2):
            for member in (one, other):
                for records in (await member.getmany(timeout_ms=50)).values():
                    got += [record.value for record in records]
        await one.commit()
        await other.commit()
        await other.stop()
        while first.count != PARTITIONS:
            await one.getmany(timeout_ms=50)
        assert [await one.committed(TopicPartition(TOPIC, partition)) for partition in range(PARTITIONS)] == [10] * PARTITIONS
        await one.stop()
    assert sorted(map(int, got)) == list(range(40))


NOT_COMMITTED = {
    "ILLEGAL_GENERATION",
    "UNKNOWN_MEMBER_ID",
    "REBALANCE_IN_PROGRESS",
    "_WAIT_COORD",
    "NOT_COORDINATOR",
    "_TRANSPORT",
    "_TIMED_OUT",
}


@dataclass
class Working:
    """A member in a thread of its own, which commits what it has processed."""

    bootstrap: str
    stop: threading.Event
    processed: dict[int, list[int]]
    high: dict[int, int] = field(default_factory=dict)
    thread: threading.Thread = field(init=False)
    failure: BaseException | None = None

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        one = consumer(self.bootstrap)
        try:
            while not self.stop.is_set():
                message = one.poll(0.1)
                if message is None or message.error() is not None:
                    continue
                self.processed[message.partition()].append(message.offset())
                try:
                    (done,) = one.commit(message=message, asynchronous=False)
                except KafkaException as error:
                    # What a rebalance or a coordinator that moves brings with it; anything else is a bug.
                    if not error.args[0].retriable() and error.args[0].name() not in NOT_COMMITTED:
                        raise
                else:
                    self.high[done.partition] = done.offset
        except BaseException as failure:  # noqa: BLE001 - told to the test
            self.failure = failure
        finally:
            one.close()


async def coordinator_of(cluster: Cluster, group: str) -> Member:
    """As a client that asks is told."""
    async with await AsyncClient.connect(cluster.members[0].port) as client:
        answer = await client.ask(FindCoordinatorRequest(coordinator_keys=(group,)))
    return next(member for member in cluster.members if member.broker_id == answer.coordinators[0].node_id)


@pytest.mark.parametrize("fate", ["leaves", "loses its session"])
async def test_members_go_on_without_their_coordinator_and_no_committed_offset_is_lost(cluster: Cluster, fate: str) -> None:
    for _ in range(3):
        await cluster.join()
    await asyncio.to_thread(create_topic, cluster.bootstrap)
    stop = threading.Event()
    processed: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
    workers = [Working(cluster.bootstrap, stop, processed) for _ in range(2)]
    count = 0

    async def produce_and_wait() -> None:
        nonlocal count
        await asyncio.to_thread(produce, cluster.bootstrap, range(count, count + 200))
        count += 200
        async with asyncio.timeout(TIMEOUT_S):
            while sum(len(set(offsets)) for offsets in processed.values()) < count:
                assert not any(worker.failure for worker in workers)
                await asyncio.sleep(0.05)

    try:
        await produce_and_wait()
        for _ in range(2):
            coordinator = await coordinator_of(cluster, "g")
            await (cluster.leave(coordinator) if fate == "leaves" else coordinator.lose_session())
            await produce_and_wait()
    finally:
        stop.set()
        for worker in workers:
            await asyncio.to_thread(worker.thread.join)
    assert not any(worker.failure for worker in workers)
    last = await asyncio.to_thread(lambda: committed(consumer(cluster.bootstrap)))
    for partition, offsets in processed.items():
        assert set(offsets) == set(range(count // PARTITIONS))
        assert last[partition] >= max(worker.high.get(partition, 0) for worker in workers)


async def test_a_group_that_nobody_uses_costs_less_than_a_request_a_second(cluster: Cluster) -> None:
    members = [await cluster.join() for _ in range(2)]
    await asyncio.to_thread(create_topic, cluster.bootstrap)
    await asyncio.to_thread(commit_simple, cluster.bootstrap)
    before, began_s = [member.requests(METADATA_REQUESTS) for member in members], CLOCK.monotonic_s()
    await asyncio.sleep(IDLE_S)

    used = [member.requests(METADATA_REQUESTS) - count for member, count in zip(members, before, strict=True)]
    passed_s = CLOCK.monotonic_s() - began_s
    assert all(count <= passed_s for count in used)
    assert all(before)


def commit_simple(bootstrap: str) -> None:
    """Offsets of a consumer that is in no group."""
    one = Consumer({"bootstrap.servers": bootstrap, "group.id": "simple"})
    one.commit(offsets=[NativePartition(TOPIC, 0, 1)], asynchronous=False)
    one.close()
