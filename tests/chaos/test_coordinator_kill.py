"""A group of two whose coordinator is killed, again and again, or paused for longer than its session: members go on, after a kill
without a session that has to end, nothing is processed never, no committed offset goes back, and a coordinator that was replaced commits
nothing.

Three brokers as processes on a real Oxia and a real S3 server, a minute of steady load, and somebody who reads the committed offsets of
every broker ten times a second.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.find_coordinator.v3 import FindCoordinatorRequest
from kio.schema.heartbeat.v4 import HeartbeatRequest
from kio.schema.offset_commit.v8.request import OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic

from services.oxia import OxiaServer, running_oxia
from services.versitygw import S3Server, running_s3
from sim.groups.history import (
    AcknowledgedCommit,
    Assigned,
    FetchedOffsets,
    GroupHistory,
    Processed,
    backwards,
    committed_unprocessed,
    generations_with_two_assignments,
    longest_pause_s,
    now_s,
    reread_below_a_commit,
    unprocessed,
)
from tests.chaos.group_load import SESSION_TIMEOUT_S, Eye, Steady, Worker, running, wait_until
from tests.kit.raw_client import RawClient, frame_of
from tests.kit.serving import Served, serving

BROKERS = 3
PARTITIONS = 6
TOPIC, GROUP = "t", "g"
LOAD_S = 60.0
BROKER_SESSION_S = 10.0
PAUSE_S = BROKER_SESSION_S + 4.0
KILLS = 2
LOOKS = 40
RECOVERED_WITHIN_S = BROKER_SESSION_S + 2 * SESSION_TIMEOUT_S + 60.0
"""The claim of a paused coordinator ends with its session. Members that gave up meanwhile join anew, and who they were has to expire. The
rest is slack, for the judgement of what was lost: how soon members go on after a kill is judged by itself."""
DONE_WITHIN_S = 90.0
# What a coordinator that was replaced may say to a commit or a heartbeat.
FENCED = {"not_coordinator", "coordinator_not_available", "coordinator_load_in_progress", "unknown_member_id", "illegal_generation"}


@dataclass
class Cluster:
    """Brokers that are processes on one Oxia and one S3 server, by their ports, which they keep."""

    folder: Path
    oxia: OxiaServer
    s3: S3Server
    closing: contextlib.ExitStack
    brokers: dict[int, Served] = field(default_factory=dict)

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    def start(self, port: int | None = None) -> None:
        settings = {"metadata.url": self.oxia.url, "storage.url": self.s3.url()}
        served = self.closing.enter_context(serving(self.folder, kafka_port=port, settings=settings, environ=self.s3.environ))
        self.brokers[served.kafka_port] = served

    def coordinator(self) -> Served:
        """As all brokers that live have named it for a while: a slot follows its winner within about a second."""
        looks: list[set[int]] = []

        def is_settled() -> bool:
            looks.append(self._named())
            return len(looks) > LOOKS and all(look == looks[-1] for look in looks[-LOOKS:]) and len(looks[-1]) == 1

        wait_until(is_settled, within_s=RECOVERED_WITHIN_S, what="all brokers name one coordinator")
        return self.brokers[looks[-1].pop()]

    def deaths_noticed(self) -> int:
        return sum(deaths_noticed_by(broker) for broker in self.brokers.values())

    def _named(self) -> set[int]:
        ports = set()
        for port, broker in self.brokers.items():
            if broker.is_alive:
                with RawClient(port) as client:
                    request: Any = FindCoordinatorRequest(key=GROUP, key_type=0)
                    ports.add(client.ask(request).port)
        return ports


def deaths_noticed_by(broker: Served) -> int:
    return sum(event.get("event") == "broker_dead" for event in broker.events())


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with running_oxia(tmp_path / "oxia") as oxia, running_s3(tmp_path / "s3") as s3, contextlib.ExitStack() as closing:
        made = Cluster(tmp_path, oxia, s3, closing)
        for _ in range(BROKERS):
            made.start()
        yield made


def commit_of(member_id: str, generation: int) -> Any:
    """Back to offset 1, everywhere."""
    partition: Any = OffsetCommitRequestPartition
    topic: Any = OffsetCommitRequestTopic
    request: Any = OffsetCommitRequest
    partitions = tuple(partition(partition_index=index, committed_offset=1, committed_metadata="late") for index in range(PARTITIONS))
    return request(
        group_id=GROUP, generation_id_or_member_epoch=generation, member_id=member_id, topics=(topic(name=TOPIC, partitions=partitions),)
    )


def heartbeat_of(member_id: str, generation: int) -> Any:
    request: Any = HeartbeatRequest
    return request(group_id=GROUP, generation_id=generation, member_id=member_id)


@pytest.mark.timeout(600)
def test_a_group_of_two_survives_its_coordinator_again_and_again(cluster: Cluster, record_property: Any) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(20)
    history, stopping = GroupHistory(), threading.Event()
    load = Steady(cluster.bootstrap, TOPIC, PARTITIONS)
    workers = [Worker(name, cluster.bootstrap, TOPIC, GROUP, history, stopping) for name in ("one", "other")]
    eyes = [Eye(port, TOPIC, PARTITIONS, GROUP, history, stopping) for port in cluster.brokers]
    gaps: dict[str, list[float]] = {"killed": [], "paused": []}
    resumed: dict[str, list[float]] = {"killed": [], "paused": []}
    noticed: list[int] = []
    late: list[str] = []

    def commits(since_s: float, what: str) -> None:
        wait_until(
            lambda: history.recovered_s(since_s, PARTITIONS) is not None or any(worker.failure for worker in workers),
            within_s=RECOVERED_WITHIN_S,
            what=f"commits of every partition after {what}",
        )

    def steady() -> Served:
        """The coordinator, once members have got over what was before: else a gap would be a part of the one before."""
        broker = cluster.coordinator()
        commits(now_s(), "the last failure")
        return broker

    def go_on(what: str, since_s: float) -> None:
        commits(since_s, f"the coordinator was {what}")
        gaps[what].append(history.recovered_s(since_s, PARTITIONS) or 0.0)
        resumed[what].append(history.resumed_s(since_s) or 0.0)

    def kill() -> None:
        broker = steady()
        before = cluster.deaths_noticed() - deaths_noticed_by(broker)
        at_s = now_s()
        broker.kill9()
        cluster.start(broker.kafka_port)
        go_on("killed", at_s)
        noticed.append(cluster.deaths_noticed() - before)

    def pause() -> None:
        """What members send to it meanwhile, on old connections and new ones, waits in its sockets and is the first it reads afterwards."""
        broker = steady()
        asked = []
        with contextlib.ExitStack() as closing:
            for worker in workers:
                for make in (commit_of, heartbeat_of):
                    client = closing.enter_context(RawClient(broker.kafka_port))
                    asked.append((client, make(worker.says.member_id, worker.says.generation)))
            os.kill(broker.pid, signal.SIGSTOP)
            at_s = now_s()
            try:
                for client, request in asked:
                    client.send(frame_of(request))
                go_on("paused", at_s)
                time.sleep(max(0.0, at_s + PAUSE_S - now_s()))  # the length of the pause
                # Before it goes on: a moment later it may be the coordinator again, and then the commit of a member is good.
                for worker in workers:
                    client = closing.enter_context(RawClient(broker.kafka_port))
                    asked.append((client, commit_of(worker.says.member_id, worker.says.generation)))
                    client.send(frame_of(asked[-1][1]))
            finally:
                os.kill(broker.pid, signal.SIGCONT)
            late.extend(_errors_of(client.answer_to(request)) for client, request in asked)

    began_s = now_s()
    with running([*workers, *eyes]):
        with running([load]):
            wait_until(
                lambda: {w.held == frozenset() for w in workers} == {False}, within_s=DONE_WITHIN_S, what="both members have a share"
            )
            go_on("paused", began_s)
            first_s = gaps["paused"].pop()
            resumed["paused"].clear()
            kill()
            pause()
            for _ in range(KILLS - 1):
                kill()
            time.sleep(max(0.0, began_s + LOAD_S - now_s()))  # the length of the load
        wait_until(lambda: history.processed_count >= len(load.acked), within_s=DONE_WITHIN_S, what="every record is processed")
        end_s = now_s()
    pauses = {p: longest_pause_s(fact.at_s for fact in history.processed if fact.partition == p) for p in range(PARTITIONS)}
    figures = {
        "load_s": round(end_s - began_s, 1),
        "first_s": round(first_s, 1),
        "gaps_s": {what: [round(gap, 1) for gap in found] for what, found in gaps.items()},
        "resumed_s": {what: [round(pause, 1) for pause in found] for what, found in resumed.items()},
        "longest_pause_of_a_partition_s": round(max(pauses.values()), 1),
        "acked": len(load.acked),
        "processed_twice": len(history.processed) - len({(fact.partition, fact.offset) for fact in history.processed}),
        "commits": len(history.committed),
        "looks": len(history.seen),
        "generations": len({fact.generation for fact in history.assigned}),
    }
    record_property("figures", figures)
    print(figures, late)

    assert [worker.failure for worker in workers] == [None, None]
    # Of a paused one nobody knows before its session ends that it will not answer.
    assert len(resumed["killed"]) == KILLS
    assert all(noticed), "that it was killed was seen, else members waited until its session ended"
    assert load.failed == []
    assert len(load.acked) == load.sent
    assert unprocessed(history, load.acked) == {}
    assert backwards(history) == []
    assert reread_below_a_commit(history) == []
    assert committed_unprocessed(history) == []
    assert generations_with_two_assignments(history) == []
    assert late
    assert set(late) <= FENCED
    assert len(history.seen) > LOAD_S / 2, "somebody looked"
    assert len({fact.generation for fact in history.assigned}) > 1
    assert all(fact.generation > 0 for fact in history.assigned)


def _errors_of(answer: Any) -> str:
    """The one error of an answer, by its name."""
    if hasattr(answer, "error_code"):
        return str(answer.error_code.name)
    (error,) = {partition.error_code.name for topic in answer.topics for partition in topic.partitions}
    return str(error)


def test_the_judgement_finds_what_is_wrong() -> None:
    history = GroupHistory()
    history.note(
        Assigned("one", 1, frozenset({0, 1}), 0.0),
        Assigned("other", 1, frozenset({1}), 0.1),
        Processed("one", 0, 0, 10, 0.0, 1.0),
        AcknowledgedCommit("one", 0, 1, 1.1, 1.2),
        Processed("other", 0, 0, 10, 1.3, 1.4),
        AcknowledgedCommit("other", 0, 3, 1.5, 1.6),
        FetchedOffsets(1, {0: 3}, 1.7, 1.8),
        FetchedOffsets(2, {0: 1}, 1.75, 1.9),
        FetchedOffsets(2, {0: 1}, 1.81, 2.0),
    )

    assert len(generations_with_two_assignments(history)) == 1
    assert len(reread_below_a_commit(history)) == 1
    assert len(committed_unprocessed(history)) == 1
    assert len(backwards(history)) == 2, "both looks began after the commit of 3 was acknowledged"
    assert unprocessed(history, {(0, 0): 10, (0, 1): 11}) == {(0, 1): 11}
    assert longest_pause_s([1.0, 5.0, 2.0]) == 3.0
    assert history.recovered_s(1.15, 1) == pytest.approx(0.45)
    assert history.resumed_s(1.05) == pytest.approx(0.15)
    assert history.resumed_s(2.0) is None
