"""Two brokers believe that they coordinate a group: only the one that took it over commits, begins generations and answers questions."""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiokafka.protocol.commit import OffsetCommitRequest, OffsetFetchRequest
from aiokafka.protocol.coordination import FindCoordinatorRequest
from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v3 import FindCoordinatorRequest as KioFindCoordinatorRequest

from services.faults.plan import Fault, Rule
from sim.groups.history import (
    GroupHistory,
    backwards,
    committed_unprocessed,
    generations_with_two_assignments,
    now_s,
    reread_below_a_commit,
    unprocessed,
)
from sim.groups.partitioned import PartitionedClient
from tests.chaos.group_load import Eye, Steady, Worker, running, wait_until
from tests.kit.clustering import SOON_S, Cluster, Member, running_cluster
from tests.kit.group_scenes import Raw, until
from tests.kit.native import native_services
from tests.kit.raw_client import RawClient
from tests.kit.seen_errors import TOPIC, aiokafka_client

GROUP = "g"
BROKERS = 3
PARTITIONS = 6
OFFSET_NEVER = -1
FAULTS_S = 3.0
NOT_COORDINATOR = int(ErrorCode.not_coordinator)


@dataclass
class World:
    """Brokers whose metadata may be partitioned, and a client of them all."""

    cluster: Cluster
    client: Any
    metadata: dict[int, PartitionedClient]

    async def coordinator(self, *, but: int | None = None) -> int:
        """As a broker names it that is not `but`; and another than that."""
        asked = next(member.broker_id for member in self.cluster.members if member.broker_id != but)
        async with asyncio.timeout(SOON_S):
            while True:
                found = await self.client.send(asked, FindCoordinatorRequest(GROUP, 0))
                if found.error_code == 0 and found.coordinator_id != but:
                    return int(found.coordinator_id)
                await asyncio.sleep(0.02)

    def member(self, broker_id: int) -> Member:
        return next(member for member in self.cluster.members if member.broker_id == broker_id)

    async def commit(self, one: Raw, node_id: int, partition: int, offset: int) -> int:
        told = await self.client.send(
            node_id, OffsetCommitRequest(GROUP, one.generation, one.member_id, -1, [(TOPIC, [(partition, offset, "")])])
        )
        return int(told.topics[0][1][0][1])

    async def committed(self, node_id: int) -> dict[int, int] | int:
        """By partition, or the error."""
        told = await self.client.send(node_id, OffsetFetchRequest(GROUP, [(TOPIC, [0, 1])]))
        if told.error_code:
            return int(told.error_code)
        return {partition: offset for partition, offset, _, _ in told.topics[0][1]}


@contextlib.asynccontextmanager
async def world() -> AsyncIterator[World]:
    async with running_cluster() as cluster:
        made: list[PartitionedClient] = []

        def wrap(store: Any) -> PartitionedClient:
            made.append(PartitionedClient(store))
            return made[-1]

        metadata = {}
        for _ in range(BROKERS):
            member = await cluster.join(wrap=wrap)
            metadata[member.broker_id] = made[-1]
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        await asyncio.to_thread(admin.create_topics([NewTopic(TOPIC, 2, 1)])[TOPIC].result, SOON_S)
        async with aiokafka_client(cluster.bootstrap) as client:
            await client.force_metadata_update()
            try:
                yield World(cluster, client, metadata)
            finally:
                for one in metadata.values():
                    one.return_to_the_world()


async def stable_member(world: World, node_id: int) -> Raw:
    one = Raw(world.client, GROUP, node_id)
    assert await one.join() == 0
    assert await one.sync() == 0
    assert await world.commit(one, node_id, 0, 10) == 0
    return one


async def test_a_coordinator_that_has_not_heard_that_it_was_replaced_commits_nothing_and_answers_no_question() -> None:
    async with world() as w:
        former = await w.coordinator()
        one = await stable_member(w, former)
        w.metadata[former].hears.clear()
        await w.member(former).lose_session()
        successor = await w.coordinator(but=former)
        at_successor = await w.commit(one, successor, 0, 20)
        late = [await w.commit(one, former, partition, 5) for partition in (0, 1)]
        stale = await w.committed(former)
        found = await w.committed(successor)

    assert at_successor == 0, "the member and its generation are known"
    assert late == [NOT_COORDINATOR, NOT_COORDINATOR]
    assert stale == NOT_COORDINATOR
    assert found == {0: 20, 1: OFFSET_NEVER}


async def test_what_a_paused_coordinator_was_about_to_write_changes_nothing_when_it_goes_on() -> None:
    async with world() as w:
        former = await w.coordinator()
        one = await stable_member(w, former)
        w.metadata[former].hears.clear()
        w.metadata[former].passes.clear()
        async with asyncio.TaskGroup() as tasks:
            # One for an offset that is there, one for a first; the group writes one after the other.
            late = [tasks.create_task(w.commit(one, former, partition, 5)) for partition in (0, 1)]
            await w.member(former).lose_session()
            successor = await w.coordinator(but=former)
            at_successor = await w.commit(one, successor, 0, 20)
            w.metadata[former].passes.set()
        found = await w.committed(successor)
        w.metadata[former].hears.set()

    assert at_successor == 0
    assert [task.result() for task in late] == [NOT_COORDINATOR, NOT_COORDINATOR]
    assert found == {0: 20, 1: OFFSET_NEVER}


async def test_members_of_before_are_told_by_the_successor_what_they_are() -> None:
    async with world() as w, aiokafka_client(w.cluster.bootstrap) as others:
        former = await w.coordinator()
        one = await stable_member(w, former)
        await others.force_metadata_update()
        await w.cluster.leave(w.member(former))
        successor = await w.coordinator(but=former)
        one.node_id = successor
        first = one.generation
        heard = await until_loaded(one)
        other = Raw(others, GROUP, successor)  # on a connection of its own: it waits there until the others have joined
        async with asyncio.TaskGroup() as tasks:
            joining = tasks.create_task(other.join())
            rebalancing = await until(one.heartbeat)
            assert await one.join() == 0
            assert await joining == 0
        old = await one.commit(first), await one.heartbeat(first)
        current = await one.heartbeat()
        stranger = Raw(w.client, GROUP, successor)
        stranger.member_id, stranger.generation = "nobody", one.generation
        unknown = await stranger.commit(), await stranger.heartbeat()
        found = await w.committed(successor)

    assert heard == 0, "it is as good a member as before"
    assert one.generation == first + 1
    assert rebalancing == ErrorCode.rebalance_in_progress
    assert old == (ErrorCode.illegal_generation,) * 2
    assert current == 0
    assert unknown == (ErrorCode.unknown_member_id,) * 2
    assert found == {0: 10, 1: OFFSET_NEVER}


async def until_loaded(one: Raw) -> int:
    """A heartbeat's answer, once the successor has the group."""
    async with asyncio.timeout(SOON_S):
        while (told := await one.heartbeat()) in (ErrorCode.not_coordinator, ErrorCode.coordinator_load_in_progress):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return told


@pytest.mark.timeout(600)
def test_no_committed_offset_is_lost_across_a_takeover_while_every_third_reply_of_oxia_is(tmp_path: Path) -> None:
    history, stopping = GroupHistory(), threading.Event()
    with native_services(tmp_path) as native, contextlib.ExitStack() as closing:
        brokers = [closing.enter_context(native.broker()) for _ in range(2)]
        bootstrap = ",".join(broker.bootstrap for broker in brokers)
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(SOON_S)
        load = Steady(bootstrap, TOPIC, PARTITIONS, records_per_s=100)
        workers = [Worker(name, bootstrap, TOPIC, GROUP, history, stopping) for name in ("one", "other")]
        eyes = [Eye(broker.kafka_port, TOPIC, PARTITIONS, GROUP, history, stopping) for broker in brokers]

        def go_on(since_s: float) -> None:
            # Each lost reply makes the coordinator load the group anew: 8 s on average until all commits got through, and a long tail.
            wait_until(lambda: history.recovered_s(since_s, PARTITIONS) is not None, within_s=120, what="commits of every partition")

        with running([*workers, *eyes]):
            with running([load]):
                go_on(now_s())
                native.oxia_proxy.plan.add(Rule(Fault.DROP_REPLY, methods={"Write"}, every=3))
                time.sleep(FAULTS_S)  # under load
                with RawClient(brokers[0].kafka_port) as client:
                    request: Any = KioFindCoordinatorRequest(key=GROUP, key_type=0)
                    port = client.ask(request).port
                # In order, so that its claims go at once.
                at_s = now_s()
                next(broker for broker in brokers if broker.kafka_port == port).terminate()
                go_on(at_s)
                lost = native.oxia_proxy.counts.struck(Fault.DROP_REPLY)
                native.oxia_proxy.plan.clear()
            wait_until(lambda: history.processed_count >= len(load.acked), within_s=90, what="every record is processed")

    assert lost > 5
    assert [worker.failure for worker in workers] == [None, None]
    assert load.failed == []
    assert unprocessed(history, load.acked) == {}
    assert backwards(history) == []
    assert reread_below_a_commit(history) == []
    assert committed_unprocessed(history) == []
    assert generations_with_two_assignments(history) == []
