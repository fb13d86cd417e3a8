"""confluent-kafka's AdminClient: what it changes holds for producers and consumers, and what it is refused it is told."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    ElectionType,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
)

from tests.kit.serving import Served, serving

TIMEOUT_S = 30.0
# Parts of the client whose annotations are missing, or narrower than what it takes.
OFFSETS: Any = OffsetSpec
ANY_ACL: Any = AclBindingFilter


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("confluent-admin")) as broker:
        yield broker


@pytest.fixture(scope="module")
def admin(served: Served) -> Any:
    return AdminClient({"log_level": 0, "bootstrap.servers": served.bootstrap})


def create(admin: Any, name: str, partitions: int = 1, **config: str) -> str:
    configs = {key.replace("_", "."): value for key, value in config.items()}
    admin.create_topics([NewTopic(name, partitions, 1, config=configs)])[name].result(TIMEOUT_S)
    return name


def produce(served: Served, topic: str, *values: bytes, partition: int = 0, timestamp: int = 0) -> list[KafkaError | None]:
    errors: list[KafkaError | None] = []
    producer = Producer({"log_level": 0, "bootstrap.servers": served.bootstrap, "linger.ms": 0})
    for value in values:
        producer.produce(topic, value, partition=partition, timestamp=timestamp, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(TIMEOUT_S) == 0
    return errors


def first_record(served: Served, topic: str, offset: int, **settings: object) -> Any:
    consumer = Consumer({"log_level": 0, "bootstrap.servers": served.bootstrap, "group.id": "unused", **settings})
    consumer.assign([TopicPartition(topic, 0, offset)])
    try:
        return consumer.poll(TIMEOUT_S)
    finally:
        consumer.close()


def configs_of(admin: Any, kind: str, name: str) -> dict[str, ConfigEntry]:
    (answer,) = admin.describe_configs([ConfigResource(kind, name)]).values()
    configs: dict[str, ConfigEntry] = answer.result(TIMEOUT_S)
    return configs


def alter(admin: Any, topic: str, *changes: tuple[str, str | None, AlterConfigOpType]) -> None:
    entries = [ConfigEntry(name, value, incremental_operation=how) for name, value, how in changes]
    (answer,) = admin.incremental_alter_configs([ConfigResource("topic", topic, incremental_configs=entries)]).values()
    answer.result(TIMEOUT_S)


def offsets(admin: Any, topic: str, spec: Any, partition: int = 0) -> int:
    (answer,) = admin.list_offsets({TopicPartition(topic, partition): spec}, isolation_level=IsolationLevel.READ_UNCOMMITTED).values()
    offset: int = answer.result(TIMEOUT_S).offset
    return offset


def code_of(caught: pytest.ExceptionInfo[KafkaException]) -> int:
    code: int = caught.value.args[0].code()
    return code


def test_partitions_are_added_and_take_records(served: Served, admin: Any) -> None:
    topic = create(admin, "grown", 2)
    admin.create_partitions([NewPartitions(topic, 4)])[topic].result(TIMEOUT_S)

    assert sorted(admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions) == [0, 1, 2, 3]
    assert produce(served, topic, b"new", partition=3) == [None]
    assert offsets(admin, topic, OFFSETS.latest(), 3) == 1
    for count, code in ((4, KafkaError.INVALID_PARTITIONS), (1, KafkaError.INVALID_PARTITIONS)):
        with pytest.raises(KafkaException) as caught:
            admin.create_partitions([NewPartitions(topic, count)])[topic].result(TIMEOUT_S)
        assert code_of(caught) == code


def test_configs_are_altered_one_by_one_and_described_with_their_sources(admin: Any) -> None:
    topic = create(admin, "configured", retention_ms="60000", flush_ms="1")
    alter(
        admin,
        topic,
        ("retention.ms", "5000", AlterConfigOpType.SET),
        ("flush.ms", None, AlterConfigOpType.DELETE),
        ("cleanup.policy", "compact", AlterConfigOpType.APPEND),
    )
    configs = configs_of(admin, "topic", topic)

    assert (configs["retention.ms"].value, configs["retention.ms"].source) == ("5000", ConfigSource.DYNAMIC_TOPIC_CONFIG.value)
    assert (configs["flush.ms"].value, configs["flush.ms"].source) == (str(2**63 - 1), ConfigSource.DEFAULT_CONFIG.value)
    assert configs["cleanup.policy"].value == "delete,compact"
    assert configs["retention.ms"].synonyms["log.retention.ms"].value == "604800000"
    assert len(configs) >= 30


@pytest.mark.filterwarnings("ignore:alter_configs has been deprecated")
def test_configs_are_replaced_as_a_whole(admin: Any) -> None:
    topic = create(admin, "replaced", retention_ms="60000", flush_ms="1")
    (answer,) = admin.alter_configs([ConfigResource("topic", topic, set_config={"flush.ms": "2"})]).values()
    answer.result(TIMEOUT_S)
    configs = configs_of(admin, "topic", topic)

    assert (configs["flush.ms"].value, configs["retention.ms"].value) == ("2", "604800000")
    (refused,) = admin.alter_configs([ConfigResource("topic", topic, set_config={"flush.ms": "soon"})]).values()
    with pytest.raises(KafkaException) as caught:
        refused.result(TIMEOUT_S)
    assert code_of(caught) == KafkaError.INVALID_CONFIG


def test_a_name_that_no_topic_can_have_is_refused(admin: Any) -> None:
    with pytest.raises(KafkaException) as caught:
        create(admin, "no/name")
    assert code_of(caught) == KafkaError.TOPIC_EXCEPTION


def test_what_was_altered_is_enforced_at_once(served: Served, admin: Any) -> None:
    topic = create(admin, "enforced")
    assert produce(served, topic, b"x" * 5_000) == [None]
    alter(admin, topic, ("max.message.bytes", "1000", AlterConfigOpType.SET))

    (error,) = produce(served, topic, b"x" * 5_000)
    assert error is not None
    assert error.code() == KafkaError.MSG_SIZE_TOO_LARGE
    alter(admin, topic, ("max.message.bytes", None, AlterConfigOpType.DELETE))
    assert produce(served, topic, b"x" * 5_000) == [None]


def test_whose_time_records_carry_and_how_far_it_may_be_off_is_altered(served: Served, admin: Any) -> None:
    topic = create(admin, "times")
    alter(admin, topic, ("message.timestamp.before.max.ms", "60000", AlterConfigOpType.SET))
    (late,) = produce(served, topic, b"late", timestamp=5)
    alter(admin, topic, ("message.timestamp.type", "LogAppendTime", AlterConfigOpType.SET))
    (stamped,) = produce(served, topic, b"stamped", timestamp=5)

    assert late is not None
    assert late.code() == KafkaError.INVALID_TIMESTAMP
    assert stamped is None
    assert first_record(served, topic, 0).timestamp()[0] == TIMESTAMP_LOG_APPEND_TIME


@pytest.mark.parametrize(
    ("name", "value"), [("retention.sm", "1"), ("retention.ms", "soon"), ("compression.type", "brotli"), ("remote.storage.enable", "true")]
)
def test_what_cannot_be_configured_is_refused(admin: Any, name: str, value: str) -> None:
    topic = create(admin, f"refused-{name}-{value}")

    with pytest.raises(KafkaException) as caught:
        alter(admin, topic, (name, value, AlterConfigOpType.SET))
    assert code_of(caught) == KafkaError.INVALID_CONFIG


def test_a_topic_that_is_not_there_is_not_configured(admin: Any) -> None:
    with pytest.raises(KafkaException) as caught:
        alter(admin, "nobody-made-this", ("retention.ms", "1", AlterConfigOpType.SET))
    assert code_of(caught) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_the_broker_is_described_and_cannot_be_configured(admin: Any) -> None:
    (node,) = admin.describe_cluster().result(TIMEOUT_S).nodes
    configs = configs_of(admin, "broker", str(node.id))
    entries = [ConfigEntry("num.partitions", "3", incremental_operation=AlterConfigOpType.SET)]
    (answer,) = admin.incremental_alter_configs([ConfigResource("broker", str(node.id), incremental_configs=entries)]).values()

    assert {"advertised.listeners", "num.partitions", "log.retention.ms", "message.max.bytes"} <= set(configs)
    assert all(config.is_read_only for config in configs.values())
    with pytest.raises(KafkaException) as caught:
        answer.result(TIMEOUT_S)
    assert code_of(caught) == KafkaError.INVALID_REQUEST


def test_deleted_records_are_gone_for_offsets_and_consumers(served: Served, admin: Any) -> None:
    topic = create(admin, "trimmed")
    produce(served, topic, *(str(n).encode() for n in range(10)))
    (deleted,) = admin.delete_records([TopicPartition(topic, 0, 4)]).values()

    assert deleted.result(TIMEOUT_S).low_watermark == 4
    assert (offsets(admin, topic, OFFSETS.earliest()), offsets(admin, topic, OFFSETS.latest())) == (4, 10)
    message = first_record(served, topic, 0, **{"auto.offset.reset": "earliest"})
    assert (message.offset(), message.value()) == (4, b"4")
    (everything,) = admin.delete_records([TopicPartition(topic, 0, -1)]).values()
    assert everything.result(TIMEOUT_S).low_watermark == 10
    assert produce(served, topic, b"next") == [None]
    assert first_record(served, topic, 10).value() == b"next"


def test_records_that_are_not_there_or_must_stay_are_not_deleted(admin: Any) -> None:
    topic, compacted = create(admin, "short"), create(admin, "kept", cleanup_policy="compact")
    for name, offset, code in (
        (topic, 1, KafkaError.OFFSET_OUT_OF_RANGE),
        (compacted, 0, KafkaError.POLICY_VIOLATION),
    ):
        (answer,) = admin.delete_records([TopicPartition(name, 0, offset)]).values()
        with pytest.raises(KafkaException) as caught:
            answer.result(TIMEOUT_S)
        assert code_of(caught) == code


def test_topics_are_described(admin: Any) -> None:
    topic = create(admin, "described", 3)
    described = admin.describe_topics(TopicCollection([topic, "nobody-made-this"]))
    found = described[topic].result(TIMEOUT_S)

    assert [partition.id for partition in found.partitions] == [0, 1, 2]
    assert all(partition.leader is not None and len(partition.isr) == 1 for partition in found.partitions)
    with pytest.raises(KafkaException) as caught:
        described["nobody-made-this"].result(TIMEOUT_S)
    assert code_of(caught) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_offsets_are_listed_by_place_and_by_time(served: Served, admin: Any) -> None:
    topic = create(admin, "listed")
    before_ms = time.time_ns() // 1_000_000
    produce(served, topic, b"0", b"1", b"2")

    assert offsets(admin, topic, OFFSETS.earliest()) == 0
    assert offsets(admin, topic, OFFSETS.latest()) == 3
    assert offsets(admin, topic, OFFSETS.for_timestamp(before_ms - 60_000)) == 0
    assert offsets(admin, topic, OFFSETS.for_timestamp(before_ms + 3_600_000)) == -1
    assert 0 <= offsets(admin, topic, OFFSETS.max_timestamp()) <= 2


def test_no_leader_needs_an_election(admin: Any) -> None:
    topic = create(admin, "unelected")
    elected = admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition(topic, 0)]).result(TIMEOUT_S)

    (error,) = elected.values()
    assert error is not None
    assert error.code() == KafkaError.ELECTION_NOT_NEEDED


def test_without_an_authorizer_there_are_no_acls(admin: Any) -> None:
    everything = ANY_ACL(ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY)

    # The answer is SECURITY_DISABLED; librdkafka keeps that to itself.
    assert admin.describe_acls(everything).result(TIMEOUT_S) == []


def test_there_are_no_scram_users(admin: Any) -> None:
    assert admin.describe_user_scram_credentials().result(TIMEOUT_S) == {}
    with pytest.raises(KafkaException) as caught:
        admin.describe_user_scram_credentials(["alice"])["alice"].result(TIMEOUT_S)
    assert code_of(caught) == KafkaError.RESOURCE_NOT_FOUND
