"""A producer or a consumer of a load, in a process of its own: `python -m forebay.commands.bench.load.client`.

Standard input: its task as one line of JSON, then lines that say how far it may go. The end of input is its end. Standard output: a line of
JSON several times a second, how far it has come. What it means to send, and what it was answered, goes to a file as ranges.
"""

import bisect
import contextlib
import itertools
import os
import random
import resource
import sys
import threading
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import Any, Final

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from forebay.commands.bench.load.by_http import (
    HTTP_TURN_RECORDS,
    HttpGroupMember,
    HttpOutlet,
    HttpPolling,
    OneBrokerRoute,
    OwnerRoute,
    bytes_of,
)
from forebay.commands.bench.load.reconcile import LoadPartition
from forebay.commands.bench.load.tasks import (
    AUTO_COMMIT_MS,
    GIVE_UP_S,
    READ_RECORDS,
    ClientReport,
    ConsumerTask,
    Outlet,
    ProducerTask,
    RangeFile,
    RunCollector,
    SendOutcomes,
    Told,
    ValueMaker,
)
from forebay.commands.bench.results import LatencyMs
from forebay.commands.bench.settings import Acks, Compression, ProduceLoad, produce_config, queue_records, turn_records
from forebay.kafka_client.failures import EXIT_FAILED
from runtime.clock import SystemClock

REPORT_EVERY_S: Final = 0.2
_POLL_S: Final = 0.05
_STANDARD_INPUT: Final = 0

_clock = SystemClock()


class ClientLink:
    """Hears the process that started this one, and ends this one at once when that is gone."""

    def __init__(self, source: FileIO, *, until: int = 0, brokers: Mapping[int, str] | None = None) -> None:
        """`brokers`: the HTTP addresses of those that live, by number."""
        self.until = until
        self.brokers = brokers or {}
        self.is_over = False
        self._source = source

    def watch(self) -> None:
        threading.Thread(target=self._read, name="link", daemon=True).start()

    def _read(self) -> None:
        for line in self._source:
            told = msgspec.json.decode(line, type=Told)
            self.until = max(self.until, told.until)
            self.is_over |= told.is_over
            if told.brokers is not None:
                self.brokers = told.brokers
        if not self.is_over:
            os._exit(1)


class KafkaOutlet:
    """librdkafka."""

    def __init__(self, task: ProducerTask, outcomes: SendOutcomes) -> None:
        load = ProduceLoad(
            records=task.records,
            record_bytes=task.size,
            partitions=sum(task.topics.values()),
            producers=task.producers,
            compression=Compression(task.codec),
            acks=Acks.ALL,
            rate=task.rate,
            warm_up=0,
            linger_ms=task.linger_ms,
        )
        self._producer = Producer(
            {
                **produce_config(load),
                "bootstrap.servers": task.bootstrap,
                "client.id": task.name,
                "enable.idempotence": task.idempotent,
                "on_delivery": outcomes.delivered,
                "log_level": 3,
            }
        )
        self._room = queue_records(task.size, producers=task.producers)

    def room(self) -> int:
        return self._room - len(self._producer)

    def send(self, topic: str, partition: int, first: int, records: Sequence[tuple[bytes | None, bytes]]) -> None:  # noqa: ARG002 - in values
        messages: list[dict[str, Any]] = [{"key": key, "value": value} for key, value in records]
        if self._producer.produce_batch(topic, messages, partition=partition) < len(messages):
            raise KafkaException(next(message["_error"] for message in messages if "_error" in message))

    def poll(self, seconds: float) -> None:
        self._producer.poll(seconds)

    def give_up(self) -> None:
        self._producer.purge()
        self._producer.flush(1.0)


class KeyChooser:
    """Keys of a partition's records, if the load has keys: `none`, `uniform:N` or `zipf:N`."""

    def __init__(self, keys: str, *, seed: int) -> None:
        kind, _, count = keys.partition(":")
        self._keys = [f"key-{number}".encode() for number in range(int(count or 0))]
        weights = [1.0 / (number + 1) if kind == "zipf" else 1.0 for number in range(len(self._keys))]
        self._sums = list(itertools.accumulate(weights))
        self._random = random.Random(seed)  # noqa: S311 - a load, no secret

    def next(self) -> bytes | None:
        if not self._keys:
            return None
        return self._keys[bisect.bisect(self._sums, self._random.random() * self._sums[-1], hi=len(self._keys) - 1)]


class LoadProducer:
    """Hands records over in turns, each a partition's. What it is about to hand over is in its file before."""

    def __init__(self, task: ProducerTask, link: ClientLink) -> None:
        self._task = task
        self._link = link
        self._file = RangeFile(task.file)
        self._outcomes = SendOutcomes(self._file, task.number)
        self._places = [(topic, partition) for topic, partitions in task.topics.items() for partition in range(partitions)]
        self._outlet = self._made_outlet()
        self._maker = ValueMaker(run=task.run, producer=task.number, size=task.size)
        self._keys = KeyChooser(task.keys, seed=task.number)
        self._has_keys = task.keys != "none"
        self._turn = task.number
        self._following: dict[LoadPartition, int] = defaultdict(int)
        self._sent = 0
        self.is_done = True
        """False: it could not send all records."""

    def run(self) -> None:
        task, outcomes = self._task, self._outcomes
        turn = HTTP_TURN_RECORDS if task.uses_http else turn_records(task.size)
        began_s = reported_s = _clock.monotonic_s()
        while (settled := outcomes.acked + outcomes.doubtful) < task.records:
            now_s = _clock.monotonic_s()
            due = min(task.records, self._link.until, self._due(now_s - began_s))
            count = min(due - self._sent, turn, self._outlet.room())
            if count > 0 and not self._handed_over(count):
                break
            if settled == self._sent:
                outcomes.heard_s = now_s
            elif now_s - outcomes.heard_s > GIVE_UP_S:
                self.is_done = False
                break
            self._outlet.poll(0.0 if count > 0 else _POLL_S)
            if now_s - reported_s > REPORT_EVERY_S:
                reported_s = now_s
                self._report(is_over=False)
        self._outlet.give_up()
        self._report(is_over=True)

    def _made_outlet(self) -> Outlet:
        task = self._task
        if not task.uses_http:
            return KafkaOutlet(task, self._outcomes)
        if task.routing is None:
            return HttpOutlet(task, self._outcomes, OneBrokerRoute(task.brokers, first=task.number))
        return HttpOutlet(task, self._outcomes, OwnerRoute(task.routing, self._places, lambda: self._link.brokers))

    def _handed_over(self, count: int) -> bool:
        """False when the library takes no more, as of a producer that is fenced. What it has not sent is unknown."""
        try:
            self._hand_over(count)
        except KafkaException as error:
            sys.stderr.write(f"{self._task.name} gave up: {error.args[0].str()}\n")
            self.is_done = False
            return False
        return True

    def _due(self, elapsed_s: float) -> int:
        if self._task.rate is None:
            return self._task.records
        due, last = 0.0, 1.0
        for seconds, last in self._task.phases:
            passed_s = min(seconds, elapsed_s)
            due += passed_s * last
            elapsed_s -= passed_s
        return int(self._task.rate * (due + elapsed_s * last)) + 1

    def _hand_over(self, count: int) -> None:
        chosen: dict[LoadPartition, list[bytes | None]] = defaultdict(list)
        if self._has_keys:
            for _ in range(count):
                key = self._keys.next()
                chosen[self._places[zlib.crc32(key or b"") % len(self._places)]].append(key)
        else:
            chosen[self._places[self._turn % len(self._places)]] = [None] * count
            self._turn += 1
        begun = [(place, self._following[place], keys) for place, keys in chosen.items()]
        self._file.write([["sent", self._task.number, *place, first, first + len(keys)] for place, first, keys in begun])
        for place, first, keys in begun:
            self._following[place] = first + len(keys)
            self._sent += len(keys)
            self._outlet.send(*place, first, [(key, self._maker.value(first + number)) for number, key in enumerate(keys)])

    def _report(self, *, is_over: bool) -> None:
        outcomes = self._outcomes
        outcomes.flush()
        _say(
            self._task.name,
            sent=self._sent,
            done=outcomes.acked,
            doubtful=outcomes.doubtful,
            size_bytes=outcomes.acked * self._task.size,
            latency=outcomes.take_latency(),
            is_over=is_over,
        )


class ReadRanges:
    """Writes the assignments, reads and commits of a member of a group to its file, as ranges."""

    def __init__(self, task: ConsumerTask) -> None:
        self._name = task.name
        self._file = RangeFile(task.file)
        makers = {producer: ValueMaker(run=task.run, producer=producer, size=size) for producer, size in task.sizes.items()}
        self._runs = RunCollector(run=task.run, makers=makers)
        self._records = self._size_bytes = 0

    def began(self, places: Sequence[LoadPartition]) -> None:
        now_s = _clock.monotonic_s()
        self._file.write([["began", now_s, self._name, *place] for place in places])

    def note(self, topic: str, partition: int, offset: int, value: bytes | None) -> None:
        self._runs.note(topic, partition, offset, value)
        self._records += 1
        self._size_bytes += len(value or b"")

    def flush(self) -> None:
        now_s = _clock.monotonic_s()
        self._file.write([["read", now_s, self._name, *run] for run in self._runs.take()])

    def committed(self, offsets: Sequence[tuple[str, int, int]]) -> None:
        now_s = _clock.monotonic_s()
        self._file.write([["commit", now_s, self._name, *one] for one in offsets])

    def report(self, *, is_over: bool) -> None:
        _say(self._name, sent=0, done=self._records, doubtful=0, size_bytes=self._size_bytes, latency=None, is_over=is_over)


class LoadConsumer:
    """A member of a group by librdkafka, until its time is over."""

    def __init__(self, task: ConsumerTask, link: ClientLink) -> None:
        self._task = task
        self._link = link
        self._ranges = ReadRanges(task)
        self._consumer = Consumer(
            {
                "bootstrap.servers": task.bootstrap,
                "group.id": task.group,
                "client.id": task.name,
                "enable.auto.commit": not task.commits_each,
                "auto.commit.interval.ms": AUTO_COMMIT_MS,
                "auto.offset.reset": "earliest",
                "allow.auto.create.topics": False,
                "session.timeout.ms": 10_000,
                "on_commit": self._committed,
                "log_level": 3,
            }
        )
        self._last_error = ""

    def run(self) -> None:
        reported_s = _clock.monotonic_s()
        self._consumer.subscribe(self._task.topics, on_assign=self._assigned)
        while not self._link.is_over:
            messages = self._consumer.consume(READ_RECORDS, REPORT_EVERY_S)
            self._note(messages)
            if self._task.commits_each and messages:
                with contextlib.suppress(KafkaException):
                    # A member that was left behind cannot commit. What it read is read again.
                    self._committed(None, self._consumer.commit(asynchronous=False) or [])
            if _clock.monotonic_s() - reported_s > REPORT_EVERY_S:
                reported_s = _clock.monotonic_s()
                self._ranges.report(is_over=False)
        self._consumer.close()
        self._ranges.report(is_over=True)

    def _note(self, messages: Sequence[Message]) -> None:
        for message in messages:
            topic, partition, offset, value = message.topic(), message.partition(), message.offset(), message.value()
            if message.error() is None and topic is not None and partition is not None and offset is not None:
                self._ranges.note(topic, partition, offset, value)
            elif (error := str(message.error())) != self._last_error:
                self._last_error = error
                sys.stderr.write(f"{error}\n")
        self._ranges.flush()

    def _assigned(self, _: Consumer, partitions: Sequence[TopicPartition]) -> None:
        self._ranges.began([(one.topic, one.partition) for one in partitions])

    def _committed(self, error: KafkaError | None, partitions: Sequence[TopicPartition]) -> None:
        done = [one for one in partitions if error is None and one.error is None and one.offset >= 0]
        self._ranges.committed([(one.topic, one.partition, one.offset) for one in done])


class HttpLoadConsumer:
    """A member of a group over HTTP, until its time is over."""

    def __init__(self, task: ConsumerTask, link: ClientLink) -> None:
        self._link = link
        self._ranges = ReadRanges(task)
        self._polling = HttpPolling(
            HttpGroupMember(task.http, task.group, task.topics, first=task.number),
            commits_each=task.commits_each,
            began=self._assigned,
            read=self._note,
        )

    def run(self) -> None:
        reported_s = _clock.monotonic_s()
        while not self._link.is_over:
            self._committed(self._polling.turn())
            if _clock.monotonic_s() - reported_s > REPORT_EVERY_S:
                reported_s = _clock.monotonic_s()
                self._ranges.report(is_over=False)
        self._committed(self._polling.finish())
        self._ranges.report(is_over=True)

    def _assigned(self, assigned: Any) -> None:
        self._ranges.began([(one["topic"], one["partition"]) for one in assigned])

    def _note(self, results: Any) -> None:
        for one in results:
            for record in one["records"]:
                self._ranges.note(one["topic"], one["partition"], record["offset"], bytes_of(record["value"]))
        self._ranges.flush()

    def _committed(self, results: Sequence[Any]) -> None:
        if results:
            self._ranges.committed([(one["topic"], one["partition"], one["offset"]) for one in results])


def _say(name: str, *, sent: int, done: int, doubtful: int, size_bytes: int, latency: LatencyMs | None, is_over: bool) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    report = ClientReport(
        at=_clock.monotonic_s(),
        name=name,
        sent=sent,
        done=done,
        doubtful=doubtful,
        bytes=size_bytes,
        latency_ms=latency,
        cpu_s=round(used.ru_utime + used.ru_stime, 3),
        is_over=is_over,
    )
    sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
    sys.stdout.buffer.flush()


def main() -> None:
    # Unbuffered: a thread waits in it when the process ends, and must hold no lock then.
    source = FileIO(_STANDARD_INPUT, closefd=False)
    task = msgspec.json.decode(source.readline(), type=ProducerTask | ConsumerTask)
    Path(task.file).parent.mkdir(parents=True, exist_ok=True)
    if isinstance(task, ConsumerTask):
        link = ClientLink(source)
        link.watch()
        (HttpLoadConsumer if task.uses_http else LoadConsumer)(task, link).run()
        return
    link = ClientLink(source, until=task.until, brokers=task.brokers)
    link.watch()
    producer = LoadProducer(task, link)
    producer.run()
    sys.exit(0 if producer.is_done else EXIT_FAILED)


if __name__ == "__main__":
    main()
