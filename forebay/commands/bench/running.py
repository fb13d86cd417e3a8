"""The four loads: a topic, clients, a warm-up, and what is measured behind it. Every function raises `ClientFailed`.

A topic is the load's own, and gone afterwards whatever happens, or it has a name and stays.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, TypeVar

from confluent_kafka.admin import AdminClient

from forebay.commands.bench import settings
from forebay.commands.bench.clients import (
    PARTITION,
    Acknowledgements,
    Arrivals,
    LoadSender,
    Passage,
    WaitingConsumer,
    opened_consumers,
    opened_producers,
    random_values,
    read_records,
)
from forebay.commands.bench.results import BenchLoad, Measured, bench_report, report_table
from forebay.commands.bench.settings import Acks, Compression, ConsumeLoad, EndToEndLoad, ProduceLoad, ReadShares, RequestsLoad
from forebay.commands.topic import administration
from forebay.commands.topic.administration import bounds, counted
from forebay.commands.topic.producing import without_collection
from forebay.kafka_client.connection import ClusterConnection, interrupted_between_calls, uninterrupted
from forebay.kafka_client.failures import EXIT_NOT_FOUND, EXIT_USAGE, ClientFailed
from forebay.kafka_client.options import Terminal
from forebay.kafka_client.text import Progress, progress
from runtime.clock import Clock
from runtime.ids import IdSource

PREFIX: Final = "forebay-bench"
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchTopic:
    """What was asked for. Without a name the topic is made for the load alone. A topic that is there has its own configs and replicas."""

    name: str | None
    partitions: int | None
    configs: Mapping[str, str]
    replication_factor: int | None


class TopicInUse(NamedTuple):
    name: str
    partitions: int


@contextlib.contextmanager
def topic_for(
    connection: ClusterConnection, admin: AdminClient, wanted: BenchTopic, *, default_partitions: int, terminal: Terminal, clock: Clock
) -> Iterator[TopicInUse]:
    """Raise `ClientFailed`, also if a topic that was made for the load alone could not be deleted."""
    partitions = default_partitions if wanted.partitions is None else wanted.partitions
    if wanted.name is None:
        name = f"{PREFIX}-{IdSource(clock=clock).next_ulid().lower()}"
        with _deleted_afterwards(connection, admin, name, terminal):
            yield _created(connection, admin, name, wanted, partitions, clock)
        return
    try:
        found = existing_topic(connection, admin, wanted)
    except ClientFailed as failed:
        if failed.exit_code != EXIT_NOT_FOUND:
            raise
        found = _created(connection, admin, wanted.name, wanted, partitions, clock)
        terminal.say(f'Created topic "{wanted.name}" with {counted(partitions, "partition")}. It stays.')
    yield found


def existing_topic(connection: ClusterConnection, admin: AdminClient, wanted: BenchTopic) -> TopicInUse:
    """The topic of that name, which must be there and be as it was asked for."""
    assert wanted.name is not None, "only a topic with a name can be there"
    count = len(administration.look_up_topic(connection, admin, wanted.name).partitions)
    if wanted.partitions not in {None, count}:
        raise ClientFailed(
            f'Topic "{wanted.name}" has {counted(count, "partition")}, not {wanted.partitions:,}: '
            "leave --partitions out, or name another topic.",
            exit_code=EXIT_USAGE,
        )
    if wanted.configs or wanted.replication_factor is not None:
        raise ClientFailed(
            f'Topic "{wanted.name}" exists, and -c and -r are for a topic that is created. Change it: forebay topic alter {wanted.name}',
            exit_code=EXIT_USAGE,
        )
    return TopicInUse(wanted.name, count)


def _created(connection: ClusterConnection, admin: AdminClient, name: str, wanted: BenchTopic, partitions: int, clock: Clock) -> TopicInUse:
    administration.create(
        connection,
        admin,
        name,
        partitions=partitions,
        replication_factor=wanted.replication_factor,
        configs=wanted.configs,
        clock=clock,
    )
    return TopicInUse(name, partitions)


@contextlib.contextmanager
def _deleted_afterwards(connection: ClusterConnection, admin: AdminClient, name: str, terminal: Terminal) -> Iterator[None]:
    """Also when its creation was interrupted: it may or may not be there then."""
    try:
        yield
    except BaseException:
        try:
            _delete(connection, admin, name)
        except ClientFailed as failed:
            terminal.warn(str(failed))
        raise
    _delete(connection, admin, name)


def _delete(connection: ClusterConnection, admin: AdminClient, name: str) -> None:
    """Raise `ClientFailed`, which says how to do it later. A topic that is gone already is no failure."""
    try:
        with uninterrupted():
            administration.delete(connection, admin, name)
    except ClientFailed as failed:
        if failed.exit_code == EXIT_NOT_FOUND:
            return
        raise ClientFailed(
            f'Topic "{name}" is left: {failed} Delete it later: forebay topic delete {name}', exit_code=failed.exit_code
        ) from failed


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRun:
    """Where a load goes, and where its result does."""

    connection: ClusterConnection
    admin: AdminClient
    topic: BenchTopic
    terminal: Terminal
    clock: Clock

    @contextlib.contextmanager
    def in_topic(self, *, partitions: int) -> Iterator[TopicInUse]:
        """With this many partitions, unless it was asked for others, or is there."""
        with (
            interrupted_between_calls(),
            without_collection(),
            topic_for(
                self.connection, self.admin, self.topic, default_partitions=partitions, terminal=self.terminal, clock=self.clock
            ) as topic,
        ):
            yield topic

    def show(self, load: BenchLoad, measured: Measured, topic: TopicInUse) -> None:
        report = bench_report(load, measured, bootstrap=self.connection.named, topic=topic.name)
        self.terminal.show(report, report_table(report))

    def progress(self, records: int) -> contextlib.AbstractContextManager[Progress]:
        return progress(quiet=self.terminal.quiet, whole=records, clock=self.clock)


@dataclass(frozen=True, slots=True, kw_only=True)
class SendPlan:
    """What is sent, in which order. `room` is the number of records that one of the producers has at a time."""

    records: int
    record_bytes: int
    warm_up: int
    turn_records: int
    room: int
    producers: int = 1
    rate: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeOptions:
    """What was asked for; None where it follows from the topic."""

    records: int | None
    record_bytes: int | None
    consumers: int
    compression: Compression | None
    warm_up: int | None


def run_produce(run: BenchRun, load: ProduceLoad) -> None:
    with run.in_topic(partitions=load.partitions) as topic:
        load = replace(load, partitions=topic.partitions)
        measured = _sent(run, topic, settings.produce_config(load), _bulk(load))
    run.show(load, measured, topic)


def run_requests(run: BenchRun, load: RequestsLoad) -> None:
    with run.in_topic(partitions=load.partitions) as topic:
        load = replace(load, partitions=topic.partitions)
        # One record more than are under way would wait in the client, and its latency would not be that of a request.
        sent = SendPlan(records=load.records, record_bytes=load.record_bytes, warm_up=load.warm_up, turn_records=1, room=load.in_flight)
        measured = _sent(run, topic, settings.requests_config(load), sent)
    run.show(load, measured, topic)


def run_consume(run: BenchRun, asked: ConsumeOptions) -> None:
    """Read a topic that is there, or one that is written before."""
    if run.topic.name is None:
        load = _written_load(run, asked)
        with run.in_topic(partitions=load.partitions) as topic:
            _check_consumers(load.consumers, topic)
            offsets = _fill(run, topic, load)
            measured = _consumed(run, topic, load, offsets)
        if measured.records != load.records:
            raise ClientFailed(f"{measured.records:,} records came of {load.records:,} that were written: the result means nothing.")
    else:
        with interrupted_between_calls(), without_collection():
            topic = existing_topic(run.connection, run.admin, run.topic)
            _check_consumers(asked.consumers, topic)
            offsets, found = _there(run, topic, asked)
            load = ConsumeLoad(
                records=found.measured,
                record_bytes=None,
                partitions=topic.partitions,
                consumers=asked.consumers,
                compression=None,
                warm_up=found.warm_up,
            )
            measured = _consumed(run, topic, load, offsets)
        if not measured.records:
            raise ClientFailed(f'Topic "{topic.name}" has fewer records than offsets, and none was left to measure. Give --warm-up 0.')
    run.show(load, measured, topic)


def run_end_to_end(run: BenchRun, load: EndToEndLoad) -> None:
    values = random_values(load.record_bytes, entropy=os.urandom)
    token = os.urandom(settings.TOKEN_BYTES)
    arrivals = Arrivals(token, load.warm_up + load.records)
    acknowledgements = Acknowledgements()
    config = {**settings.prompt_producer_config(), "on_delivery": acknowledgements.heard}
    with run.in_topic(partitions=load.partitions) as topic:
        end = bounds(run.connection, run.admin, topic.name, (PARTITION,))[PARTITION].end
        consumer = WaitingConsumer(run.connection.consumer_of_thread(settings.reading_config()), topic.name, end, arrivals, run.clock)
        with (
            contextlib.closing(consumer),
            opened_producers(run.connection, config, topic.name) as (producer,),
            run.progress(load.warm_up + load.records) as shown,
        ):
            passage = Passage(run.connection, producer, topic.name, values, acknowledgements, token=token, clock=run.clock)
            measured = passage.pass_on(consumer, arrivals, per_s=load.rate, warm_up=load.warm_up, moved=shown.moved)
    run.show(load, measured, topic)


def _bulk(load: ProduceLoad) -> SendPlan:
    return SendPlan(
        records=load.records,
        record_bytes=load.record_bytes,
        warm_up=load.warm_up,
        turn_records=settings.turn_records(load.record_bytes),
        room=settings.queue_records(load.record_bytes, producers=load.producers),
        producers=load.producers,
        rate=load.rate,
    )


def _sent(run: BenchRun, topic: TopicInUse, config: dict[str, Any], what: SendPlan) -> Measured:
    values = random_values(what.record_bytes, entropy=os.urandom)
    acknowledgements = Acknowledgements()
    config = {**config, "on_delivery": acknowledgements.heard}
    with (
        opened_producers(run.connection, config, topic.name, count=what.producers) as producers,
        run.progress(what.warm_up + what.records) as shown,
    ):
        sender = LoadSender(
            run.connection,
            producers,
            topic.name,
            values,
            acknowledgements,
            partitions=topic.partitions,
            turn_records=what.turn_records,
            room=what.room,
            clock=run.clock,
        )
        sender.send(what.warm_up, per_s=what.rate, moved=shown.moved)
        latencies_s, seconds, cpu_s = _timed(run.clock, lambda: sender.send(what.records, per_s=what.rate, moved=shown.moved))
    return Measured(len(latencies_s), len(latencies_s) * what.record_bytes, seconds, cpu_s, latencies_s)


def _written_load(run: BenchRun, asked: ConsumeOptions) -> ConsumeLoad:
    records = settings.RECORDS if asked.records is None else asked.records
    return ConsumeLoad(
        records=records,
        record_bytes=settings.RECORD_BYTES if asked.record_bytes is None else asked.record_bytes,
        partitions=run.topic.partitions or settings.PARTITIONS,
        consumers=asked.consumers,
        compression=asked.compression or Compression.NONE,
        warm_up=settings.warm_up_records(records) if asked.warm_up is None else asked.warm_up,
    )


def _fill(run: BenchRun, topic: TopicInUse, load: ConsumeLoad) -> dict[int, int]:
    """Write what is to read, and return where each partition begins."""
    assert load.record_bytes is not None, "records that are written have a size"
    assert load.compression is not None, "records that are written are compressed, or are not"
    written = ProduceLoad(
        records=load.records + load.warm_up,
        record_bytes=load.record_bytes,
        partitions=topic.partitions,
        producers=1,
        compression=load.compression,
        acks=Acks.ALL,
        rate=None,
        warm_up=0,
    )
    _sent(run, topic, settings.produce_config(written), _bulk(written))
    there = bounds(run.connection, run.admin, topic.name, range(topic.partitions))
    found = sum(partition.end - partition.start for partition in there.values())
    if found != written.records:
        raise ClientFailed(f"{written.records:,} records were acknowledged, and the topic has {found:,}: the result would mean nothing.")
    return {number: partition.start for number, partition in there.items()}


def _there(run: BenchRun, topic: TopicInUse, asked: ConsumeOptions) -> tuple[dict[int, int], ReadShares]:
    """Where each partition begins, and which records are read."""
    there = bounds(run.connection, run.admin, topic.name, range(topic.partitions))
    count = sum(partition.end - partition.start for partition in there.values())
    if not count:
        raise ClientFailed(
            f'Topic "{topic.name}" has no records to read. Write some: forebay bench produce --topic {topic.name}', exit_code=EXIT_NOT_FOUND
        )
    found = settings.shares(count, records=asked.records, warm_up=asked.warm_up)
    if found.measured < 1:
        raise ClientFailed(
            f'Topic "{topic.name}" has {count:,} records. A --warm-up of {found.warm_up:,} leaves none to measure: give a smaller one.',
            exit_code=EXIT_USAGE,
        )
    return {number: partition.start for number, partition in there.items()}, found


def _check_consumers(consumers: int, topic: TopicInUse) -> None:
    if consumers > topic.partitions:
        raise ClientFailed(
            f"{consumers:,} consumers are too many: each reads partitions of its own, and there are {topic.partitions:,}.",
            exit_code=EXIT_USAGE,
        )


def _consumed(run: BenchRun, topic: TopicInUse, load: ConsumeLoad, offsets: dict[int, int]) -> Measured:
    """Consumers of the warm-up have read ahead, so others read on from where these were."""
    config = settings.reading_config()
    positions = dict(offsets)
    with run.progress(load.warm_up + load.records) as shown:
        if load.warm_up:
            with opened_consumers(run.connection, config, topic.name, count=load.consumers) as consumers:
                read_records(
                    run.connection,
                    consumers,
                    topic.name,
                    offsets,
                    load.warm_up,
                    moved=shown.moved,
                    clock=run.clock,
                    positions=positions,
                )
        with opened_consumers(run.connection, config, topic.name, count=load.consumers) as consumers:
            reading, seconds, cpu_s = _timed(
                run.clock,
                lambda: read_records(run.connection, consumers, topic.name, positions, load.records, moved=shown.moved, clock=run.clock),
            )
    return Measured(reading.records, reading.size_bytes, seconds, cpu_s)


def _timed(clock: Clock, work: Callable[[], T]) -> tuple[T, float, float]:
    """What comes of it, the seconds it takes, and the CPU of this process meanwhile."""
    began_s, used_s = clock.monotonic_s(), time.process_time()
    outcome = work()
    return outcome, clock.monotonic_s() - began_s, time.process_time() - used_s
