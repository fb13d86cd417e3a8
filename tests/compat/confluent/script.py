"""confluent-kafka plays the steps of tests/compat/README.md."""

import os
import sys

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, NewTopic, ResourceType

from tests.compat.playing import BOOTSTRAP, KAFKA_ERRORS, PREFIX, Player, digest, line, records, until, values_of

TIMEOUT_S = 20.0
RECORDS, GROWN, LINE, ONCE, CODECS = (f"{PREFIX}-{name}" for name in ("records", "grown", "line", "once", "codecs"))
PAIR, RESUME = f"{PREFIX}-pair", f"{PREFIX}-resume"
COMMON = {"bootstrap.servers": BOOTSTRAP}


def error_name(error: BaseException) -> str | None:
    """By code: librdkafka's own names are not all Kafka's."""
    found = error.args[0] if isinstance(error, KafkaException) else None
    if not isinstance(found, KafkaError):
        return None
    if found.code() == KafkaError._AUTO_OFFSET_RESET and "Offset out of range" in found.str():
        return "OFFSET_OUT_OF_RANGE"
    return KAFKA_ERRORS.get(found.code())


player = Player(error_name)
admin = AdminClient(COMMON)


def create(name: str, partitions: int = 1, config: dict[str, str] | None = None) -> None:
    admin.create_topics([NewTopic(name, partitions, 1, config=config or {})])[name].result(TIMEOUT_S)


def partitions_of(name: str) -> int:
    return len(admin.list_topics(name, timeout=TIMEOUT_S).topics[name].partitions)


def described(kind: ResourceType, name: str, *wanted: str) -> dict[str, str]:
    (found,) = admin.describe_configs([ConfigResource(kind, name)]).values()
    entries = found.result(TIMEOUT_S)
    return {key: entries[key].value for key in wanted or entries}


def group_names() -> list[str]:
    return [group.group_id for group in admin.list_consumer_groups().result(TIMEOUT_S).valid]


def consumer_of(group: str = "unused", **settings: object) -> Consumer:
    quick = {"session.timeout.ms": 10_000, "heartbeat.interval.ms": 500, "fetch.wait.max.ms": 100}
    return Consumer({**COMMON, **quick, "group.id": group, "enable.auto.commit": False, "auto.offset.reset": "earliest", **settings})


def checked(message: Message) -> Message:
    if message.error():
        raise KafkaException(message.error())
    return message


def read(count: int, *assigned: TopicPartition, **settings: object) -> list[Message]:
    consumer = consumer_of(**settings)
    found: list[Message] = []
    try:
        consumer.assign(list(assigned))
        until(lambda: found.extend(map(checked, consumer.consume(count, 0.2))) or len(found) >= count, f"{len(found)} of {count} records")
    finally:
        consumer.close()
    return found


def produce(topic: str, sending: list[dict[str, object]], **settings: object) -> list[Message]:
    """Each acknowledged; raise the first refusal."""
    delivered: list[tuple[KafkaError | None, Message]] = []
    producer = Producer({**COMMON, "acks": "all", **settings})
    for record in sending:
        producer.produce(topic, on_delivery=lambda error, message: delivered.append((error, message)), **record)
    if producer.flush(TIMEOUT_S):
        raise TimeoutError("not all records were acknowledged")
    for error, _ in delivered:
        if error:
            raise KafkaException(error)
    return [message for _, message in delivered]


@player.step
def cluster() -> object:
    found = admin.describe_cluster().result(TIMEOUT_S)
    return {"brokers": len(found.nodes), "controller": found.controller.id in {node.id for node in found.nodes}}


@player.step
def create_topic() -> object:
    create(RECORDS, 3, {"retention.ms": "86400000", "max.message.bytes": "200000"})
    until(lambda: partitions_of(RECORDS) == 3, "3 partitions")
    found = admin.describe_topics(TopicCollection([RECORDS]))[RECORDS].result(TIMEOUT_S)
    return {"partitions": len(found.partitions)}


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
    admin.create_partitions([NewPartitions(GROWN, 4)])[GROWN].result(TIMEOUT_S)
    until(lambda: partitions_of(GROWN) == 4, "4 partitions")
    return {"partitions": partitions_of(GROWN)}


@player.refused
def create_fewer_partitions() -> None:
    admin.create_partitions([NewPartitions(GROWN, 2)])[GROWN].result(TIMEOUT_S)


@player.step
def describe_configs() -> object:
    return described(ResourceType.TOPIC, RECORDS, "retention.ms", "max.message.bytes")


@player.step
def alter_configs() -> object:
    entry = ConfigEntry("retention.ms", "3600000", incremental_operation=AlterConfigOpType.SET)
    (altered,) = admin.incremental_alter_configs([ConfigResource(ResourceType.TOPIC, GROWN, incremental_configs=[entry])]).values()
    altered.result(TIMEOUT_S)
    until(lambda: described(ResourceType.TOPIC, GROWN, "retention.ms") == {"retention.ms": "3600000"}, "the config altered")
    return described(ResourceType.TOPIC, GROWN, "retention.ms")


@player.step
def describe_broker_configs() -> object:
    broker = next(iter(admin.list_topics(timeout=TIMEOUT_S).brokers))
    return {"described": len(described(ResourceType.BROKER, str(broker))) > 0}


@player.step
def produce_() -> object:
    sending = [
        {"value": sent.value, "key": sent.key, "partition": sent.partition, "timestamp": sent.timestamp_ms, "headers": sent.headers}
        for sent in records()
    ]
    ends = {"0": 0, "1": 0, "2": 0}
    for message in produce(RECORDS, sending):
        ends[str(message.partition())] = max(ends[str(message.partition())], message.offset() + 1)
    return ends


@player.step
def codecs() -> object:
    create(CODECS)
    wanted = {codec: values_of(codec) for codec in ("none", "gzip", "snappy", "lz4", "zstd")}
    for codec, values in wanted.items():
        produce(CODECS, [{"value": value} for value in values], **{"compression.type": codec})
    found = [message.value() for message in read(50, TopicPartition(CODECS, 0, 0))]
    return {codec: sum(value in found for value in values) for codec, values in wanted.items()}


@player.step
def consume() -> object:
    found = read(60, *(TopicPartition(RECORDS, partition, 0) for partition in range(3)))
    lines = [line(m.partition(), m.offset(), m.timestamp()[1], m.key(), m.value(), m.headers() or []) for m in found]
    return {"records": len(found), "digest": digest(lines)}


@player.step
def seek() -> object:
    consumer = consumer_of()
    try:
        consumer.assign([TopicPartition(RECORDS, 1, 0)])
        checked(consumer.poll(TIMEOUT_S))
        consumer.seek(TopicPartition(RECORDS, 1, 7))
        found = checked(consumer.poll(TIMEOUT_S))
        return {"offset": found.offset(), "key": found.key().decode()}
    finally:
        consumer.close()


@player.step
def offsets() -> object:
    consumer = consumer_of()
    try:
        earliest, latest = consumer.get_watermark_offsets(TopicPartition(RECORDS, 0), TIMEOUT_S)
        return {"earliest": earliest, "latest": latest}
    finally:
        consumer.close()


@player.step
def offsets_by_time() -> object:
    consumer = consumer_of()
    try:
        (found,) = consumer.offsets_for_times([TopicPartition(RECORDS, 0, 1_600_000_006_001)], TIMEOUT_S)
        (none,) = consumer.offsets_for_times([TopicPartition(RECORDS, 0, 1_700_000_000_000)], TIMEOUT_S)
        return {"found": found.offset, "none": none.offset if none.offset >= 0 else None}
    finally:
        consumer.close()


def commit_all(member: Consumer) -> None:
    """The end of each of its partitions, which it need not have reached itself: the other may have read it before."""
    member.commit(offsets=[TopicPartition(RECORDS, one.partition, 20) for one in member.assignment()], asynchronous=False)


@player.step
def group_of_two() -> object:
    seen: set[tuple[int, int]] = set()
    first, second = consumer_of(PAIR), consumer_of(PAIR)

    def sizes(*members: Consumer) -> list[int]:
        for member in members:
            message = member.poll(0.05)
            if message is not None:
                seen.add((checked(message).partition(), message.offset()))
        return sorted(len(member.assignment()) for member in members)

    try:
        first.subscribe([RECORDS])
        until(lambda: sizes(first) == [3] and len(seen) > 0, "A has all partitions")
        second.subscribe([RECORDS])
        until(lambda: sizes(first, second) == [1, 2], "the partitions are shared out")
        until(lambda: sizes(first, second) == [1, 2] and len(seen) == 60, "all records are read")
        commit_all(second)
        second.close()
        until(lambda: sizes(first) == [3], "A has all partitions again")
        commit_all(first)
    finally:
        first.close()
        second.close()
    return {"alone": 3, "together": [1, 2], "again": 3, "records": len(seen)}


@player.step
def commit_and_resume() -> object:
    create(LINE)
    produce(LINE, [{"value": f"line-{number}".encode()} for number in range(20)])
    consumer = consumer_of(RESUME)
    consumer.subscribe([LINE])
    try:
        for _ in range(10):
            checked(consumer.poll(TIMEOUT_S))
        (committed,) = consumer.commit(offsets=[TopicPartition(LINE, 0, 10)], asynchronous=False)
    finally:
        consumer.close()
    resuming = consumer_of(RESUME)
    resuming.subscribe([LINE])
    try:
        return {"committed": committed.offset, "resumed": checked(resuming.poll(TIMEOUT_S)).value().decode()}
    finally:
        resuming.close()


@player.step
def list_groups() -> object:
    return {"listed": RESUME in group_names()}


def state_of(group: str) -> str:
    found = admin.describe_consumer_groups([group])[group].result(TIMEOUT_S)
    return "".join(word.capitalize() for word in found.state.name.split("_"))


def joined(group: str) -> Consumer:
    """A member that has its partition."""
    member = consumer_of(group)
    member.subscribe([LINE])
    until(lambda: (member.poll(0.05), member.assignment())[1], "the member has its partition")
    return member


@player.step
def describe_group() -> object:
    member = joined(RESUME)
    try:
        state = state_of(RESUME)
        (found,) = admin.list_groups(RESUME, TIMEOUT_S)
    finally:
        member.close()
    until(lambda: state_of(RESUME) == "Empty", "the group is empty")
    return {"member": state, "empty": state_of(RESUME), "protocol_type": found.protocol_type}


@player.step
def list_group_offsets() -> object:
    asked = ConsumerGroupTopicPartitions(RESUME, [TopicPartition(LINE, 0)])
    found = admin.list_consumer_group_offsets([asked])[RESUME].result(TIMEOUT_S)
    return {"offset": found.topic_partitions[0].offset}


def delete(group: str) -> None:
    admin.delete_consumer_groups([group])[group].result(TIMEOUT_S)


@player.refused
def delete_busy_group() -> None:
    member = joined(RESUME)
    try:
        delete(RESUME)
    finally:
        member.close()


@player.step
def delete_group() -> object:
    until(lambda: state_of(RESUME) == "Empty", "the group is empty")
    delete(RESUME)
    return {"listed": RESUME in group_names()}


@player.refused
def delete_missing_group() -> None:
    delete(f"{PREFIX}-nobody")


@player.step
def delete_records() -> object:
    (deleted,) = admin.delete_records([TopicPartition(LINE, 0, 5)]).values()
    low_watermark = deleted.result(TIMEOUT_S).low_watermark
    consumer = consumer_of()
    try:
        return {"low_watermark": low_watermark, "earliest": consumer.get_watermark_offsets(TopicPartition(LINE, 0), TIMEOUT_S)[0]}
    finally:
        consumer.close()


@player.refused
def fetch_out_of_range() -> None:
    read(1, TopicPartition(LINE, 0, 1_000), **{"auto.offset.reset": "error"})


@player.step
def idempotent() -> object:
    create(ONCE)
    produce(ONCE, [{"value": str(number).encode()} for number in range(100)], **{"enable.idempotence": True})
    consumer = consumer_of()
    try:
        return {"latest": consumer.get_watermark_offsets(TopicPartition(ONCE, 0), TIMEOUT_S)[1]}
    finally:
        consumer.close()


@player.refused
def message_too_large() -> None:
    produce(RECORDS, [{"value": os.urandom(300_000), "partition": 0}], **{"message.max.bytes": 1_000_000})


@player.refused
def missing_topic() -> None:
    admin.describe_topics(TopicCollection([f"{PREFIX}-nowhere"]))[f"{PREFIX}-nowhere"].result(TIMEOUT_S)


@player.step
def delete_topic() -> object:
    admin.delete_topics([GROWN])[GROWN].result(TIMEOUT_S)
    until(lambda: GROWN not in admin.list_topics(timeout=TIMEOUT_S).topics, "the topic is gone")
    return {"listed": GROWN in admin.list_topics(timeout=TIMEOUT_S).topics}


@player.refused
def delete_missing_topic() -> None:
    name = f"{PREFIX}-nowhere"
    admin.delete_topics([name])[name].result(TIMEOUT_S)


player.play()
sys.exit(0)
