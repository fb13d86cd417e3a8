"""A producer or a consumer of a load, in a process of its own: `python -m forebay.commands.bench.load.client`.

Standard input: its task as one line of JSON, then lines that say how far it may go. The end of input is its end. Standard output: a line of
JSON several times a second, how far it has come. What it means to send, and what it was answered, goes to a file as ranges.
"""

import base64
import bisect
import contextlib
import http.client
import itertools
import json
import os
import random
import resource
import sys
import threading
import time
import zlib
from collections import defaultdict
from collections.abc import Sequence
from io import FileIO
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from forebay.commands.bench.load.reconcile import AckedRange, DoubtfulRange, LoadPartition
from forebay.commands.bench.load.records import RunCollector, ValueMaker, sequence_of
from forebay.commands.bench.results import LatencyMs, latency_ms
from forebay.commands.bench.settings import Acks, Compression, ProduceLoad, produce_config, queue_records, turn_records
from forebay.kafka_client.failures import EXIT_FAILED
from runtime.clock import SystemClock

REPORT_EVERY_S: Final = 0.2
GIVE_UP_S: Final = 180.0
"""A producer that hears nothing for so long calls what is open unknown, and ends."""
LATENCIES_MAX: Final = 20_000
"""Latencies that a report is made of; of further ones none is kept."""
HTTP_TURN_RECORDS: Final = 500
HTTP_ANSWER_WITHIN_S: Final = 40.0
AUTO_COMMIT_MS: Final = 1_000
_POLL_S: Final = 0.05
_READ_RECORDS: Final = 500
_LINES_MAX: Final = 1_000
_STANDARD_INPUT: Final = 0

_clock = SystemClock()


class ProducerTask(msgspec.Struct, frozen=True, kw_only=True, tag="producer"):
    """`until`: the records it may send for now. `phases`: seconds and factor of the rate."""

    name: str
    number: int
    run: int
    bootstrap: str
    http: list[str]
    topics: dict[str, int]
    records: int
    until: int
    producers: int
    rate: float | None
    phases: list[tuple[float, float]]
    size: int
    keys: str
    codec: str
    idempotent: bool
    linger_ms: int
    uses_http: bool
    file: str


class ConsumerTask(msgspec.Struct, frozen=True, kw_only=True, tag="consumer"):
    """`sizes`: of the values of each producer."""

    name: str
    group: str
    run: int
    bootstrap: str
    topics: list[str]
    commits_each: bool
    sizes: dict[int, int]
    file: str


class ClientReport(msgspec.Struct, frozen=True, kw_only=True):
    """`done`: records acknowledged, or read."""

    at: float
    name: str
    sent: int
    done: int
    doubtful: int
    bytes: int
    latency_ms: LatencyMs | None
    cpu_s: float
    is_over: bool


class Told(msgspec.Struct, frozen=True):
    """`until`: records that may have been sent. `is_over`: finish and end."""

    until: int = 0
    is_over: bool = False


class ClientLink:
    """Hears the process that started this one, and ends this one at once when that is gone."""

    def __init__(self, source: FileIO, *, until: int = 0) -> None:
        self.until = until
        self.is_over = False
        self._source = source

    def watch(self) -> None:
        threading.Thread(target=self._read, name="link", daemon=True).start()

    def _read(self) -> None:
        for line in self._source:
            told = msgspec.json.decode(line, type=Told)
            self.until = max(self.until, told.until)
            self.is_over |= told.is_over
        if not self.is_over:
            os._exit(1)


class RangeFile:
    """Lines of JSON, written as a whole."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, lines: Sequence[Sequence[object]]) -> None:
        data = memoryview(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
        while data:
            data = data[os.write(self._descriptor, data) :]


class SendOutcomes:
    """Acknowledged and doubtful records, as ranges that are joined while they follow each other."""

    def __init__(self, file: RangeFile, producer: int) -> None:
        self._file = file
        self._producer = producer
        self._acked: dict[LoadPartition, AckedRange] = {}
        self._doubtful: dict[LoadPartition, DoubtfulRange] = {}
        self._lines: list[Sequence[object]] = []
        self._latencies_s: list[float] = []
        self.acked = self.doubtful = 0
        self.heard_s = _clock.monotonic_s()

    def delivered(self, error: KafkaError | None, message: Message) -> None:
        """As librdkafka reports it, for each record."""
        value, topic, partition = message.value(), message.topic(), message.partition()
        assert value is not None
        assert topic is not None
        assert partition is not None
        sequence = sequence_of(value)
        if error is not None:
            self.unknown(topic, partition, sequence, 1, str(error.name()))
            return
        offset = message.offset()
        self.stored(topic, partition, sequence, 1, -1 if offset is None else offset, message.latency() or 0.0)

    def stored(self, topic: str, partition: int, first: int, records: int, offset: int, latency_s: float) -> None:
        place = topic, partition
        self.acked += records
        self.heard_s = _clock.monotonic_s()
        if len(self._latencies_s) < LATENCIES_MAX:
            self._latencies_s.append(latency_s)
        known = self._acked.get(place)
        if known is not None:
            follows = known.offset + known.end - known.first == offset if known.offset >= 0 else offset < 0
            if known.end == first and follows:
                self._acked[place] = known._replace(end=first + records)
                return
            self._line("acked", known)
        self._acked[place] = AckedRange(self._producer, topic, partition, first, first + records, offset)

    def unknown(self, topic: str, partition: int, first: int, records: int, error: str) -> None:
        place = topic, partition
        self.doubtful += records
        known = self._doubtful.get(place)
        if known is not None:
            if (known.end, known.error) == (first, error):
                self._doubtful[place] = known._replace(end=first + records)
                return
            self._line("doubt", known)
        self._doubtful[place] = DoubtfulRange(self._producer, topic, partition, first, first + records, error)

    def take_latency(self) -> LatencyMs | None:
        """The latency of acknowledgements since the last call."""
        found = latency_ms(self._latencies_s)
        self._latencies_s.clear()
        return found

    def flush(self) -> None:
        for word, held in (("acked", self._acked), ("doubt", self._doubtful)):
            for known in held.values():
                self._line(word, known)
            held.clear()
        self._file.write(self._lines)
        self._lines.clear()

    def _line(self, word: str, known: AckedRange | DoubtfulRange) -> None:
        if isinstance(known, AckedRange):
            known = known._replace(at=_clock.monotonic_s())
        self._lines.append([word, *known])
        if len(self._lines) >= _LINES_MAX:
            self._file.write(self._lines)
            self._lines.clear()


class Outlet(Protocol):
    """A way to the brokers. SendOutcomes go to the `SendOutcomes` it was made with."""

    def room(self) -> int:
        """The number of records that it takes now."""

    def send(self, topic: str, partition: int, first: int, records: Sequence[tuple[bytes | None, bytes]]) -> None:
        """Keys and values, which are numbered from `first` on."""

    def poll(self, seconds: float) -> None: ...

    def give_up(self) -> None:
        """Take the outcome of all open records for unknown."""


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


class HttpOutlet:
    """`POST /produce`, to one broker after the other until one answers. With an id of a producer a repeat is recognised."""

    def __init__(self, task: ProducerTask, outcomes: SendOutcomes) -> None:
        self._addresses = itertools.cycle(task.http[task.number % len(task.http) :] + task.http[: task.number % len(task.http)])
        self._address = next(self._addresses)
        self._codec = task.codec
        self._outcomes = outcomes
        self._producer: dict[str, int] | None = None
        if task.idempotent:
            answer = self._asked("/producers", {}, repeats=True)
            self._producer = {"id": answer["id"], "epoch": answer["epoch"]}

    def room(self) -> int:
        return HTTP_TURN_RECORDS

    def send(self, topic: str, partition: int, first: int, records: Sequence[tuple[bytes | None, bytes]]) -> None:
        part: dict[str, Any] = {"topic": topic, "partition": partition, "records": [_as_json(key, value) for key, value in records]}
        body: dict[str, Any] = {"topic_partitions": [part], "compression": self._codec}
        if self._producer is not None:
            body["producer"], part["sequence"] = self._producer, first % 2**31
        began_s = _clock.monotonic_s()
        try:
            answer = self._asked("/produce", body, repeats=self._producer is not None)
        except HttpUnanswered as error:
            self._outcomes.unknown(topic, partition, first, len(records), str(error))
            return
        self._outcomes.stored(topic, partition, first, len(records), answer["results"][0]["start_offset"], _clock.monotonic_s() - began_s)

    def poll(self, seconds: float) -> None:
        time.sleep(seconds)

    def give_up(self) -> None:
        """Nothing is open between two requests."""

    def _asked(self, path: str, body: object, *, repeats: bool) -> Any:
        give_up_s = _clock.monotonic_s() + GIVE_UP_S
        while True:
            try:
                return self._answer(path, body)
            except HttpUnanswered as error:
                if not repeats or not error.is_retriable or _clock.monotonic_s() > give_up_s:
                    raise
            self._address = next(self._addresses)
            time.sleep(_POLL_S)

    def _answer(self, path: str, body: object) -> Any:
        connection = http.client.HTTPConnection(self._address, timeout=HTTP_ANSWER_WITHIN_S)
        try:
            connection.request("POST", path, json.dumps(body).encode(), {"content-type": "application/json"})
            response = connection.getresponse()
            status, answer = response.status, json.loads(response.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise HttpUnanswered(type(error).__name__, is_retriable=True) from error
        finally:
            connection.close()
        if status == http.client.OK:
            return answer
        wrong: dict[str, Any] = next((one for one in answer.get("results", []) if not one.get("ok")), {})
        is_retriable = bool(wrong.get("retriable", status == http.client.SERVICE_UNAVAILABLE))
        raise HttpUnanswered(str(wrong.get("error_type", f"status {status}")), is_retriable=is_retriable)


class HttpUnanswered(Exception):
    """Nothing was written, or nobody knows. `str()` says what came in place of a good answer."""

    def __init__(self, message: str, *, is_retriable: bool) -> None:
        super().__init__(message)
        self.is_retriable = is_retriable


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
        self._outlet: Outlet = HttpOutlet(task, self._outcomes) if task.uses_http else KafkaOutlet(task, self._outcomes)
        self._maker = ValueMaker(run=task.run, producer=task.number, size=task.size)
        self._keys = KeyChooser(task.keys, seed=task.number)
        self._has_keys = task.keys != "none"
        self._places = [(topic, partition) for topic, partitions in task.topics.items() for partition in range(partitions)]
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


class LoadConsumer:
    """A member of a group, until its time is over. What it is given, reads and commits is in its file."""

    def __init__(self, task: ConsumerTask, link: ClientLink) -> None:
        self._task = task
        self._link = link
        self._file = RangeFile(task.file)
        makers = {producer: ValueMaker(run=task.run, producer=producer, size=size) for producer, size in task.sizes.items()}
        self._runs = RunCollector(run=task.run, makers=makers)
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
        self._read = self._size_bytes = 0
        self._last_error = ""

    def run(self) -> None:
        reported_s = _clock.monotonic_s()
        self._consumer.subscribe(self._task.topics, on_assign=self._assigned)
        while not self._link.is_over:
            messages = self._consumer.consume(_READ_RECORDS, REPORT_EVERY_S)
            self._note(messages)
            if self._task.commits_each and messages:
                with contextlib.suppress(KafkaException):
                    # A member that was left behind cannot commit. What it read is read again.
                    self._committed(None, self._consumer.commit(asynchronous=False) or [])
            if _clock.monotonic_s() - reported_s > REPORT_EVERY_S:
                reported_s = _clock.monotonic_s()
                self._report(is_over=False)
        self._consumer.close()
        self._report(is_over=True)

    def _note(self, messages: Sequence[Message]) -> None:
        for message in messages:
            topic, partition, offset, value = message.topic(), message.partition(), message.offset(), message.value()
            if message.error() is None and topic is not None and partition is not None and offset is not None:
                self._runs.note(topic, partition, offset, value)
                self._read += 1
                self._size_bytes += len(value or b"")
            elif (error := str(message.error())) != self._last_error:
                self._last_error = error
                sys.stderr.write(f"{error}\n")
        now_s = _clock.monotonic_s()
        self._file.write([["read", now_s, self._task.name, *run] for run in self._runs.take()])

    def _assigned(self, _: Consumer, partitions: Sequence[TopicPartition]) -> None:
        now_s = _clock.monotonic_s()
        self._file.write([["began", now_s, self._task.name, one.topic, one.partition] for one in partitions])

    def _committed(self, error: KafkaError | None, partitions: Sequence[TopicPartition]) -> None:
        now_s = _clock.monotonic_s()
        done = [one for one in partitions if error is None and one.error is None and one.offset >= 0]
        self._file.write([["commit", now_s, self._task.name, one.topic, one.partition, one.offset] for one in done])

    def _report(self, *, is_over: bool) -> None:
        _say(self._task.name, sent=0, done=self._read, doubtful=0, size_bytes=self._size_bytes, latency=None, is_over=is_over)


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


def _as_json(key: bytes | None, value: bytes) -> dict[str, Any]:
    shown: dict[str, Any] = {"value": {"base64": base64.b64encode(value).decode()}}
    return shown if key is None else {**shown, "key": key.decode()}


def main() -> None:
    # Unbuffered: a thread waits in it when the process ends, and must hold no lock then.
    source = FileIO(_STANDARD_INPUT, closefd=False)
    task = msgspec.json.decode(source.readline(), type=ProducerTask | ConsumerTask)
    Path(task.file).parent.mkdir(parents=True, exist_ok=True)
    link = ClientLink(source, until=task.until if isinstance(task, ProducerTask) else 0)
    link.watch()
    if isinstance(task, ConsumerTask):
        LoadConsumer(task, link).run()
        return
    producer = LoadProducer(task, link)
    producer.run()
    sys.exit(0 if producer.is_done else EXIT_FAILED)


if __name__ == "__main__":
    main()
