"""A steady producer of numbered records, members of a group that process them, and eyes on what the group has committed."""

import contextlib
import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from kio.schema.offset_fetch.v7.request import OffsetFetchRequest, OffsetFetchRequestTopic

from sim.groups.history import AcknowledgedCommit, Assigned, FetchedOffsets, GroupHistory, Processed, now_s
from tests.kit.raw_client import RawClient
from tests.kit.serving import HOST

SESSION_TIMEOUT_S = 6.0
LOOK_EVERY_S = 0.1
LEAVE_WITHIN_S = 90.0
FLUSH_WITHIN_S = 200.0
RECORDS_PER_COMMIT = 100

# What a rebalance or a coordinator that moves brings with it. Anything else is a bug.
NOT_COMMITTED = {
    "ILLEGAL_GENERATION",
    "UNKNOWN_MEMBER_ID",
    "REBALANCE_IN_PROGRESS",
    "NOT_COORDINATOR",
    "COORDINATOR_NOT_AVAILABLE",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "_WAIT_COORD",
    "_TRANSPORT",
    "_TIMED_OUT",
    "_NO_OFFSET",
}
_JOINED = re.compile(r"JoinGroup response: GenerationId (\d+), .* my MemberId (\S+), ")


@dataclass
class Steady:
    """Sends numbered records round robin at a steady rate until told to stop."""

    bootstrap: str
    topic: str
    partitions: int
    records_per_s: int = 200
    acked: dict[tuple[int, int], int] = field(default_factory=dict)
    """(partition, offset) → number."""
    failed: list[str] = field(default_factory=list)
    sent: int = 0
    stopping: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        settings: dict[str, str | int | bool] = {
            "bootstrap.servers": self.bootstrap,
            "enable.idempotence": True,
            "linger.ms": 20,
            "message.timeout.ms": 120_000,
            "socket.timeout.ms": 6_000,
            "reconnect.backoff.max.ms": 500,
            "log_level": 0,
        }
        producer = Producer(settings)
        began_s = now_s()
        while not self.stopping.is_set():
            while self.sent < (now_s() - began_s) * self.records_per_s:
                partition = self.sent % self.partitions
                producer.produce(self.topic, str(self.sent).encode(), partition=partition, on_delivery=self._heard(self.sent, partition))
                self.sent += 1
            producer.poll(0.01)
        assert producer.flush(FLUSH_WITHIN_S) == 0, "records were neither acknowledged nor refused"

    def _heard(self, number: int, partition: int) -> Callable[[object, Message], None]:
        def heard(error: object, message: Message) -> None:
            offset = message.offset()
            if error is not None or offset is None:
                self.failed.append(f"{number}: {error}")
            else:
                self.acked[partition, offset] = number

        return heard


class _Generations(logging.Handler):
    """What the client says of itself: no call of it tells the generation."""

    def __init__(self) -> None:
        super().__init__()
        self.generation = -1
        self.member_id = ""
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        self.lines.append(f"{now_s():.2f} {line}")
        if found := _JOINED.search(line):
            self.generation, self.member_id = int(found[1]), found[2]


@dataclass
class Worker:
    """A member of the group: it commits what it has processed, synchronously, before it takes more."""

    name: str
    bootstrap: str
    topic: str
    group: str
    history: GroupHistory
    stopping: threading.Event
    failure: BaseException | None = None
    assigned_s: float = 0.0
    held: frozenset[int] = frozenset()
    says: _Generations = field(default_factory=_Generations)

    def run(self) -> None:
        logger = logging.Logger(self.name)
        logger.addHandler(self.says)
        settings: dict[str, Any] = {
            "bootstrap.servers": self.bootstrap,
            "group.id": self.group,
            "client.id": self.name,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": int(SESSION_TIMEOUT_S * 1_000),
            "heartbeat.interval.ms": 500,
            "socket.timeout.ms": 6_000,
            "reconnect.backoff.max.ms": 500,
            "fetch.wait.max.ms": 100,
            "debug": "cgrp",
        }
        consumer = Consumer(settings, logger=logger)
        consumer.subscribe([self.topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke)
        try:
            while not self.stopping.is_set():
                self._work(consumer)
        except BaseException as failure:  # noqa: BLE001 - told to the test
            self.failure = failure
        finally:
            consumer.close()

    def _work(self, consumer: Consumer) -> None:
        nexts: dict[int, int] = {}
        for message in consumer.consume(RECORDS_PER_COMMIT, 0.1):
            if message.error() is not None:
                continue
            partition, offset, value = message.partition(), message.offset(), message.value()
            assert partition is not None
            assert offset is not None
            assert value is not None
            self.history.note(Processed(self.name, partition, offset, int(value), self.assigned_s, now_s()))
            nexts[partition] = offset + 1
        wanted = [TopicPartition(self.topic, partition, offset) for partition, offset in nexts.items() if partition in self.held]
        if not wanted:
            return
        began_s = now_s()
        try:
            done = consumer.commit(offsets=wanted, asynchronous=False)
        except KafkaException as error:
            if not error.args[0].retriable() and error.args[0].name() not in NOT_COMMITTED:
                raise
            return
        at_s = now_s()
        assert done is not None
        self.history.note(*(AcknowledgedCommit(self.name, one.partition, one.offset, began_s, at_s) for one in done if one.error is None))

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.assigned_s = now_s()
        self.held = frozenset(partition.partition for partition in partitions)
        self.history.note(Assigned(self.name, self.says.generation, self.held, self.assigned_s))

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.held = frozenset()


@dataclass
class Eye:
    """Asks one broker for the group's offsets, again and again; a broker that is not the coordinator says so, and that is no look."""

    port: int
    topic: str
    partitions: int
    group: str
    history: GroupHistory
    stopping: threading.Event
    answers: int = 0

    def run(self) -> None:
        while not self.stopping.is_set():
            with contextlib.suppress(OSError, AssertionError):
                self._watch()
            self.stopping.wait(LOOK_EVERY_S)

    def _watch(self) -> None:
        socket.create_connection((HOST, self.port), 5.0).close()  # whether anybody listens
        with RawClient(self.port) as client:
            while not self.stopping.is_set():
                self._look(client)
                self.stopping.wait(LOOK_EVERY_S)

    def _look(self, client: RawClient) -> None:
        topic: Any = OffsetFetchRequestTopic(name=self.topic, partition_indexes=tuple(range(self.partitions)))
        request: Any = OffsetFetchRequest(group_id=self.group, topics=(topic,), require_stable=False)
        began_s = now_s()
        answer = client.ask(request)
        self.answers += 1
        if answer.error_code == 0:
            found = {one.partition_index: one.committed_offset for one in answer.topics[0].partitions}
            self.history.note(FetchedOffsets(self.port, found, began_s, now_s()))


@contextlib.contextmanager
def running(parts: Sequence[Steady | Worker | Eye]) -> Iterator[None]:
    """Each in a thread of its own. Whoever leaves has told them to stop."""
    threads = [threading.Thread(target=part.run, name=type(part).__name__) for part in parts]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for part in parts:
            part.stopping.set()
        deadline_s = now_s() + LEAVE_WITHIN_S
        for thread in threads:
            thread.join(max(0.0, deadline_s - now_s()))
        assert not any(thread.is_alive() for thread in threads), "a thread did not end"


def wait_until(is_done: Callable[[], object], *, within_s: float, what: str) -> None:
    give_up_s = now_s() + within_s
    while not is_done():
        assert now_s() < give_up_s, f"not within {within_s:.0f} s: {what}"
        time.sleep(0.05)
