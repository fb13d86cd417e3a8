"""The steps of tests/compat/README.md, for both lines of kafka-python. What they call differently is a `Dialect`.

A script imports this when `kafka` can be imported, and calls `play`.
"""

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any, Protocol

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition, errors
from kafka.admin import ConfigResourceType
from kafka.structs import OffsetAndMetadata

from tests.compat.playing import BOOTSTRAP, KAFKA_ERRORS, PREFIX, Player, RefusedError, digest, line, records, until, values_of

TIMEOUT_S = 20.0
RECORDS, GROWN, LINE, ONCE, CODECS = (f"{PREFIX}-{name}" for name in ("records", "grown", "line", "once", "codecs"))
PAIR, RESUME = f"{PREFIX}-pair", f"{PREFIX}-resume"


def error_name(error: BaseException) -> str | None:
    if isinstance(error, RefusedError):
        return KAFKA_ERRORS.get(error.code)
    return KAFKA_ERRORS.get(error.errno) if isinstance(error, errors.KafkaError) else None


class Dialect(Protocol):
    """What one line of kafka-python calls in its own way. Raises what the client raises, or `RefusedError` with the code of the answer."""

    codecs: tuple[str, ...]
    producer_settings: dict[str, Any]
    broker_id_field: str
    without: frozenset[str]
    """Steps that the client has no call for."""

    def offset(self, offset: int) -> OffsetAndMetadata: ...

    def create_topic(self, client: KafkaAdminClient, name: str, partitions: int, config: dict[str, str]) -> None: ...

    def grow(self, client: KafkaAdminClient, name: str, partitions: int) -> None: ...

    def configs_of(self, client: KafkaAdminClient, kind: ConfigResourceType, name: str, *wanted: str) -> dict[str, str]: ...

    def alter_topic(self, client: KafkaAdminClient, name: str, config: dict[str, str]) -> None: ...

    def group_names(self, client: KafkaAdminClient) -> set[str]: ...

    def describe_group(self, client: KafkaAdminClient, group: str) -> tuple[str, str]:
        """Its state, and the type of its protocol."""
        ...

    def group_offset(self, client: KafkaAdminClient, group: str, partition: TopicPartition) -> int: ...

    def delete_group(self, client: KafkaAdminClient, group: str) -> None: ...


player = Player(error_name)
dialect: Dialect
"""Set by `play`, before any step."""


def play(spoken: Dialect) -> None:
    global dialect  # noqa: PLW0603 - the steps are functions without parameters, as those of all scripts
    dialect = spoken
    player.play(without=spoken.without)


@contextlib.contextmanager
def admin() -> Iterator[KafkaAdminClient]:
    with contextlib.closing(KafkaAdminClient(bootstrap_servers=BOOTSTRAP)) as client:
        yield client


@contextlib.contextmanager
def consumer_of(*topics: str, group: str | None = None, **settings: Any) -> Iterator[KafkaConsumer]:
    quick = {"session_timeout_ms": 10_000, "heartbeat_interval_ms": 500, "fetch_max_wait_ms": 100}
    wanted = {**quick, "group_id": group, "enable_auto_commit": False, "auto_offset_reset": "earliest", **settings}
    with contextlib.closing(KafkaConsumer(*topics, bootstrap_servers=BOOTSTRAP, **wanted)) as consumer:
        # A member that knows a topic only after it has joined joins again, and 3.0.12 drops what it is assigned then if a `poll`
        # ends before the answer: `need_rejoin` of its coordinator/consumer.py is false already, so no later poll looks at it.
        for topic in topics:
            consumer.partitions_for_topic(topic)
        yield consumer


class Member(threading.Thread):
    """A member of a group that reads until it is told to leave: two cannot join in one thread, each would wait for the other."""

    def __init__(self, topic: str, group: str, seen: set[tuple[int, int]] | None = None) -> None:
        super().__init__(daemon=True)
        self._topic, self._group = topic, group
        self._seen: set[tuple[int, int]] = set() if seen is None else seen
        self._leaving = threading.Event()
        self.partitions = 0
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            with consumer_of(self._topic, group=self._group) as consumer:
                while not self._leaving.is_set():
                    for batch in consumer.poll(timeout_ms=50).values():
                        self._seen.update((record.partition, record.offset) for record in batch)
                    self.partitions = len(consumer.assignment())
                if self._topic == RECORDS:
                    # The end of each of its partitions, which it need not have reached itself: the other may have read it before.
                    consumer.commit(dict.fromkeys(consumer.assignment(), dialect.offset(20)))
        except Exception as error:  # noqa: BLE001 - raised where it is waited for
            self.error = error

    def reaches(self, *wanted: int, beside: "Member | None" = None) -> None:
        """Wait until it, with the one beside, has these numbers of partitions."""
        members = [self, beside] if beside else [self]

        def is_so() -> bool:
            threading.Event().wait(0.02)
            for member in members:
                if member.error:
                    raise member.error
            return sorted(member.partitions for member in members) == sorted(wanted)

        until(is_so, f"{wanted} partitions")

    def leave(self) -> None:
        self._leaving.set()
        self.join(TIMEOUT_S)
        if self.error:
            raise self.error


def partitions_of(client: KafkaAdminClient, name: str) -> int:
    (found,) = client.describe_topics([name])
    return len(found["partitions"])


def create(name: str, partitions: int = 1, config: dict[str, str] | None = None) -> None:
    with admin() as client:
        dialect.create_topic(client, name, partitions, config or {})
        until(lambda: partitions_of(client, name) == partitions, f"{name} is there")


def read(consumer: KafkaConsumer, count: int) -> list[Any]:
    found: list[Any] = []

    def are_read() -> bool:
        for batch in consumer.poll(timeout_ms=200).values():
            found.extend(batch)
        return len(found) >= count

    until(are_read, f"{count} records")
    return found


def produce(topic: str, sending: list[dict[str, Any]], **settings: Any) -> list[Any]:
    with contextlib.closing(
        KafkaProducer(bootstrap_servers=BOOTSTRAP, **{"acks": "all", **dialect.producer_settings, **settings})
    ) as producer:
        sent = [producer.send(topic, **record) for record in sending]
        return [future.get(TIMEOUT_S) for future in sent]


@player.step
def cluster() -> object:
    with admin() as client:
        found = client.describe_cluster()
    return {
        "brokers": len(found["brokers"]),
        "controller": found["controller_id"] in {broker[dialect.broker_id_field] for broker in found["brokers"]},
    }


@player.step
def create_topic() -> object:
    create(RECORDS, 3, {"retention.ms": "86400000", "max.message.bytes": "200000"})
    with admin() as client:
        return {"partitions": partitions_of(client, RECORDS)}


@player.refused
def create_existing_topic() -> None:
    create(RECORDS)


@player.refused
def create_invalid_topic() -> None:
    create(f"{PREFIX} bad!")


@player.refused
def create_invalid_config() -> None:
    create(f"{PREFIX}-odd", config={"cleanup.policy": "sometimes"})


@player.step
def create_partitions() -> object:
    create(GROWN)
    with admin() as client:
        dialect.grow(client, GROWN, 4)
        until(lambda: partitions_of(client, GROWN) == 4, "4 partitions")
        return {"partitions": partitions_of(client, GROWN)}


@player.refused
def create_fewer_partitions() -> None:
    with admin() as client:
        dialect.grow(client, GROWN, 2)


@player.step
def describe_configs() -> object:
    with admin() as client:
        return dialect.configs_of(client, ConfigResourceType.TOPIC, RECORDS, "retention.ms", "max.message.bytes")


@player.step
def alter_configs() -> object:
    with admin() as client:
        dialect.alter_topic(client, GROWN, {"retention.ms": "3600000"})
        until(
            lambda: dialect.configs_of(client, ConfigResourceType.TOPIC, GROWN, "retention.ms") == {"retention.ms": "3600000"}, "it altered"
        )
        return dialect.configs_of(client, ConfigResourceType.TOPIC, GROWN, "retention.ms")


@player.step
def describe_broker_configs() -> object:
    with admin() as client:
        broker = client.describe_cluster()["brokers"][0][dialect.broker_id_field]
        return {"described": len(dialect.configs_of(client, ConfigResourceType.BROKER, str(broker))) > 0}


@player.step
def produce_() -> object:
    sending = [
        {"value": sent.value, "key": sent.key, "partition": sent.partition, "timestamp_ms": sent.timestamp_ms, "headers": sent.headers}
        for sent in records()
    ]
    ends = {"0": 0, "1": 0, "2": 0}
    for acknowledged in produce(RECORDS, sending):
        ends[str(acknowledged.partition)] = max(ends[str(acknowledged.partition)], acknowledged.offset + 1)
    return ends


@player.step
def codecs() -> object:
    create(CODECS)
    wanted = {codec: values_of(codec) for codec in dialect.codecs}
    for codec, values in wanted.items():
        produce(CODECS, [{"value": value} for value in values], compression_type=None if codec == "none" else codec)
    with consumer_of() as consumer:
        consumer.assign([TopicPartition(CODECS, 0)])
        found = [record.value for record in read(consumer, 10 * len(dialect.codecs))]
    return {codec: sum(value in found for value in values) for codec, values in wanted.items()}


@player.step
def consume() -> object:
    with consumer_of() as consumer:
        consumer.assign([TopicPartition(RECORDS, partition) for partition in range(3)])
        consumer.seek_to_beginning()
        found = read(consumer, 60)
    lines = [line(one.partition, one.offset, one.timestamp, one.key, one.value, one.headers) for one in found]
    return {"records": len(found), "digest": digest(lines)}


@player.step
def seek() -> object:
    with consumer_of() as consumer:
        consumer.assign([TopicPartition(RECORDS, 1)])
        consumer.seek(TopicPartition(RECORDS, 1), 7)
        found = read(consumer, 1)[0]
    return {"offset": found.offset, "key": found.key.decode()}


@player.step
def offsets() -> object:
    partition = TopicPartition(RECORDS, 0)
    with consumer_of() as consumer:
        return {"earliest": consumer.beginning_offsets([partition])[partition], "latest": consumer.end_offsets([partition])[partition]}


@player.step
def offsets_by_time() -> object:
    partition = TopicPartition(RECORDS, 0)
    with consumer_of() as consumer:
        found = consumer.offsets_for_times({partition: 1_600_000_006_001})[partition]
        none = consumer.offsets_for_times({partition: 1_700_000_000_000})[partition]
    return {"found": found.offset, "none": none and none.offset}


@player.step
def group_of_two() -> object:
    seen: set[tuple[int, int]] = set()
    first, second = Member(RECORDS, PAIR, seen), Member(RECORDS, PAIR, seen)
    first.start()
    try:
        first.reaches(3)
        second.start()
        first.reaches(1, 2, beside=second)
        until(lambda: threading.Event().wait(0.02) or len(seen) == 60, "all records are read")
        second.leave()
        first.reaches(3)
    finally:
        first.leave()
    return {"alone": 3, "together": [1, 2], "again": 3, "records": len(seen)}


@player.step
def commit_and_resume() -> object:
    create(LINE)
    produce(LINE, [{"value": f"line-{number}".encode()} for number in range(20)])
    partition = TopicPartition(LINE, 0)
    with consumer_of(LINE, group=RESUME, max_poll_records=10) as consumer:
        read(consumer, 10)
        consumer.commit({partition: dialect.offset(10)})
        committed = consumer.committed(partition)
    with consumer_of(LINE, group=RESUME) as resuming:
        return {"committed": committed, "resumed": read(resuming, 1)[0].value.decode()}


@player.step
def list_groups() -> object:
    with admin() as client:
        return {"listed": RESUME in dialect.group_names(client)}


@player.step
def describe_group() -> object:
    with admin() as client:
        member = Member(LINE, RESUME)
        member.start()
        try:
            member.reaches(1)
            state, protocol_type = dialect.describe_group(client, RESUME)
        finally:
            member.leave()
        empty, _ = dialect.describe_group(client, RESUME)
    return {"member": state, "empty": empty, "protocol_type": protocol_type}


@player.step
def list_group_offsets() -> object:
    with admin() as client:
        return {"offset": dialect.group_offset(client, RESUME, TopicPartition(LINE, 0))}


def delete(group: str) -> None:
    with admin() as client:
        dialect.delete_group(client, group)


@player.refused
def delete_busy_group() -> None:
    member = Member(LINE, RESUME)
    member.start()
    try:
        member.reaches(1)
        delete(RESUME)
    finally:
        member.leave()


@player.step
def delete_group() -> object:
    delete(RESUME)
    with admin() as client:
        return {"listed": RESUME in dialect.group_names(client)}


@player.refused
def delete_missing_group() -> None:
    delete(f"{PREFIX}-nobody")


@player.step
def delete_records() -> object:
    partition = TopicPartition(LINE, 0)
    with admin() as client, consumer_of() as consumer:
        deleted = client.delete_records({partition: 5})[partition]
        return {"low_watermark": deleted["low_watermark"], "earliest": consumer.beginning_offsets([partition])[partition]}


@player.refused
def fetch_out_of_range() -> None:
    with consumer_of(auto_offset_reset="none") as consumer:
        consumer.assign([TopicPartition(LINE, 0)])
        consumer.seek(TopicPartition(LINE, 0), 1_000)
        read(consumer, 1)


@player.step
def idempotent() -> object:
    create(ONCE)
    produce(ONCE, [{"value": str(number).encode()} for number in range(100)], enable_idempotence=True)
    with consumer_of() as consumer:
        return {"latest": consumer.end_offsets([TopicPartition(ONCE, 0)])[TopicPartition(ONCE, 0)]}


@player.refused
def message_too_large() -> None:
    produce(RECORDS, [{"value": os.urandom(300_000), "partition": 0}], max_request_size=1_000_000)


@player.refused
def missing_topic() -> None:
    with admin() as client:
        (found,) = client.describe_topics([f"{PREFIX}-nowhere"])
    if found["error_code"]:
        raise RefusedError(found["error_code"])


@player.step
def delete_topic() -> object:
    with admin() as client:
        client.delete_topics([GROWN])
        until(lambda: GROWN not in client.list_topics(), "the topic is gone")
        return {"listed": GROWN in client.list_topics()}


@player.refused
def delete_missing_topic() -> None:
    with admin() as client:
        client.delete_topics([f"{PREFIX}-nowhere"])
