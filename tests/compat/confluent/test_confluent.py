"""confluent-kafka (librdkafka, newest): every codec with and without idempotence, offsets, time, admin, errors."""

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from tests.kit.serving import Served, serving

TIMEOUT_S = 30.0


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("confluent")) as broker:
        yield broker


@pytest.fixture(scope="module")
def admin(served: Served) -> AdminClient:
    return AdminClient({"log_level": 0, "bootstrap.servers": served.bootstrap})


def create(admin: AdminClient, name: str, partitions: int = 1, **config: str) -> str:
    configs = {key.replace("_", "."): value for key, value in config.items()}
    admin.create_topics([NewTopic(name, partitions, 1, config=configs)])[name].result(TIMEOUT_S)
    return name


def consumer_of(served: Served, **settings: object) -> Consumer:
    return Consumer({"log_level": 0, "bootstrap.servers": served.bootstrap, "group.id": "unused", "enable.auto.commit": False, **settings})


def read(served: Served, topic: str, count: int, *, partition: int = 0, offset: int = 0, **settings: object) -> list[Message]:
    consumer = consumer_of(served, **settings)
    consumer.assign([TopicPartition(topic, partition, offset)])
    messages: list[Message] = []
    give_up = time.monotonic() + TIMEOUT_S  # noqa: TID251
    while len(messages) < count and time.monotonic() < give_up:  # noqa: TID251
        for message in consumer.consume(count, 0.5):
            if message.error():
                raise KafkaException(message.error())
            messages.append(message)
    consumer.close()
    return messages


@pytest.mark.parametrize("idempotent", [False, True], ids=["plain", "idempotent"])
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_is_produced_is_consumed_whole(served: Served, admin: AdminClient, codec: str, idempotent: bool) -> None:
    topic = create(admin, f"whole-{codec}-{idempotent}")
    producer = Producer(
        {"log_level": 0, "bootstrap.servers": served.bootstrap, "compression.type": codec, "enable.idempotence": idempotent, "linger.ms": 5}
    )
    sent: list[tuple[bytes | None, bytes | None, int]] = []
    offsets: list[int] = []
    for n in range(2_000):
        key, value = (None if n % 7 == 0 else f"k{n}".encode()), (None if n % 11 == 0 else f"value {n} ".encode() * 5)
        sent.append((key, value, 1_700_000_000_000 + n))
        producer.produce(
            topic,
            value,
            key,
            timestamp=1_700_000_000_000 + n,
            headers=[("n", str(n).encode()), ("none", None)],
            on_delivery=lambda error, message: offsets.append(-1 if error else message.offset()),
        )
        producer.poll(0)
    assert producer.flush(TIMEOUT_S) == 0

    messages = read(served, topic, 2_000)
    assert offsets == list(range(2_000))
    assert [(m.key(), m.value(), m.timestamp()[1]) for m in messages] == sent
    assert messages[5].headers() == [("n", b"5"), ("none", None)]


def test_default_settings_work_as_they_come(served: Served) -> None:
    producer = Producer({"log_level": 0, "bootstrap.servers": served.bootstrap})
    producer.produce("made-by-producing", b"hello")
    assert producer.flush(TIMEOUT_S) == 0

    assert [m.value() for m in read(served, "made-by-producing", 1)] == [b"hello"]


def test_watermarks_and_offsets_by_time(served: Served, admin: AdminClient) -> None:
    topic = create(admin, "times")
    producer = Producer({"log_level": 0, "bootstrap.servers": served.bootstrap})
    for n in range(100):
        producer.produce(topic, str(n).encode(), timestamp=1_000 + 10 * n)
    producer.flush(TIMEOUT_S)
    consumer = consumer_of(served)

    assert consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=TIMEOUT_S) == (0, 100)
    for at_ms, expected in ((0, 0), (1_255, 26), (5_000, -1)):
        (found,) = consumer.offsets_for_times([TopicPartition(topic, 0, at_ms)], timeout=TIMEOUT_S)
        assert found.offset == expected
    consumer.close()


def test_reading_begins_inside_a_batch(served: Served, admin: AdminClient) -> None:
    topic = create(admin, "inside")
    producer = Producer({"log_level": 0, "bootstrap.servers": served.bootstrap, "linger.ms": 100})
    for n in range(500):
        producer.produce(topic, str(n).encode())
    producer.flush(TIMEOUT_S)

    messages = read(served, topic, 3, offset=497)
    assert [(m.offset(), m.value()) for m in messages] == [(497, b"497"), (498, b"498"), (499, b"499")]


def test_a_reader_at_the_end_gets_what_comes(served: Served, admin: AdminClient) -> None:
    topic = create(admin, "tail")
    consumer = consumer_of(served, **{"fetch.wait.max.ms": 10_000})
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert consumer.consume(1, 0.3) == []
    producer = Producer({"log_level": 0, "bootstrap.servers": served.bootstrap})
    producer.produce(topic, b"late")
    producer.flush(TIMEOUT_S)

    (message,) = consumer.consume(1, TIMEOUT_S)
    assert message.value() == b"late"
    consumer.close()


def test_an_offset_out_of_range_resets_as_the_client_is_told(served: Served, admin: AdminClient) -> None:
    topic = create(admin, "range")
    producer = Producer({"log_level": 0, "bootstrap.servers": served.bootstrap})
    producer.produce(topic, b"only")
    producer.flush(TIMEOUT_S)

    (message,) = read(served, topic, 1, offset=1_000, **{"auto.offset.reset": "earliest"})
    assert message.offset() == 0
    with pytest.raises(KafkaException) as caught:
        read(served, topic, 1, offset=1_000, **{"auto.offset.reset": "error"})
    assert caught.value.args[0].code() == KafkaError._AUTO_OFFSET_RESET


def test_log_append_time_is_the_brokers(served: Served, admin: AdminClient) -> None:
    topic = create(admin, "appended", message_timestamp_type="LogAppendTime")
    producer = Producer({"log_level": 0, "bootstrap.servers": served.bootstrap})
    producer.produce(topic, b"x", timestamp=5)
    producer.flush(TIMEOUT_S)

    (message,) = read(served, topic, 1)
    kind, at_ms = message.timestamp()
    assert kind == TIMESTAMP_LOG_APPEND_TIME
    assert abs(at_ms - time.time_ns() // 1_000_000) < 3_600_000


def test_a_record_that_is_too_large_is_refused_with_its_error(served: Served, admin: AdminClient) -> None:
    topic = create(admin, "small", max_message_bytes="1000")
    errors: list[KafkaError | None] = []
    producer = Producer({"log_level": 0, "bootstrap.servers": served.bootstrap})
    producer.produce(topic, b"x" * 5_000, on_delivery=lambda error, _: errors.append(error))
    producer.produce(topic, b"x" * 500, on_delivery=lambda error, _: errors.append(error))
    producer.flush(TIMEOUT_S)

    assert KafkaError.MSG_SIZE_TOO_LARGE in [error.code() for error in errors if error is not None]


def test_topics_are_created_described_and_deleted(served: Served, admin: AdminClient) -> None:
    topic = create(admin, "life", 4, retention_ms="60000")

    described = admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic]
    assert sorted(described.partitions) == [0, 1, 2, 3]
    (configs,) = [f.result(TIMEOUT_S) for f in admin.describe_configs([ConfigResource("topic", topic)]).values()]
    assert configs["retention.ms"].value == "60000"
    assert configs["max.message.bytes"].value == "1048588"
    with pytest.raises(KafkaException) as twice:
        create(admin, "life")
    assert twice.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
    admin.delete_topics([topic])[topic].result(TIMEOUT_S)
    assert topic not in admin.list_topics(timeout=TIMEOUT_S).topics


def test_a_topic_that_was_deleted_and_made_again_begins_empty_at_zero(served: Served, admin: AdminClient) -> None:
    topic = create(admin, "again")
    producer = Producer({"log_level": 0, "bootstrap.servers": served.bootstrap})
    for n in range(10):
        producer.produce(topic, f"old {n}".encode())
    producer.flush(TIMEOUT_S)
    admin.delete_topics([topic])[topic].result(TIMEOUT_S)
    create(admin, topic)
    fresh = Producer({"log_level": 0, "bootstrap.servers": served.bootstrap})
    fresh.produce(topic, b"new")
    fresh.flush(TIMEOUT_S)

    assert [(m.offset(), m.value()) for m in read(served, topic, 1)] == [(0, b"new")]


def test_a_transactional_producer_fails_at_once_and_is_told_why(served: Served) -> None:
    producer = Producer({"log_level": 0, "bootstrap.servers": served.bootstrap, "transactional.id": "t"})
    with pytest.raises(KafkaException, match="transactions are not served") as refused:
        producer.init_transactions(TIMEOUT_S)

    assert refused.value.args[0].fatal()
    assert not refused.value.args[0].retriable()


def test_the_operations_on_the_cluster_are_told(admin: AdminClient) -> None:
    described = admin.describe_cluster(include_authorized_operations=True).result(TIMEOUT_S)

    assert {operation.name for operation in described.authorized_operations} == {
        *("CREATE", "ALTER", "DESCRIBE", "CLUSTER_ACTION", "DESCRIBE_CONFIGS", "ALTER_CONFIGS", "IDEMPOTENT_WRITE")
    }


def test_records_are_deleted_though_no_time_is_given(served: Served, admin: AdminClient) -> None:
    topic = create(admin, "without-time")
    producer = Producer({"log_level": 0, "bootstrap.servers": served.bootstrap})
    for n in range(10):
        producer.produce(topic, f"{n}".encode())
    producer.flush(TIMEOUT_S)
    asked = TopicPartition(topic, 0, 5)

    assert admin.delete_records([asked], operation_timeout=0)[asked].result(TIMEOUT_S).low_watermark == 5


@pytest.mark.parametrize("sent", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("kept", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_what_a_topic_keeps_in_its_own_codec_is_consumed_whole_and_in_order(
    served: Served, admin: AdminClient, kept: str, sent: str
) -> None:
    topic = create(admin, f"kept-{kept}-{sent}", compression_type=kept)
    producer = Producer(
        {"log_level": 0, "bootstrap.servers": served.bootstrap, "compression.type": sent, "enable.idempotence": True, "batch.size": 4_000}
    )
    values = [b"value %d " % n * 20 for n in range(500)]
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(TIMEOUT_S) == 0

    assert [(m.offset(), m.value()) for m in read(served, topic, len(values))] == list(enumerate(values))
