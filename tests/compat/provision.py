"""What a client that cannot make it finds made (`provided` in its client.toml): by confluent-kafka."""

from collections.abc import Sequence
from typing import Final

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.scenario import FIRST_TIMESTAMP_MS, PARTITIONS, RECORDS

TIMEOUT_S: Final = 30.0


def provide(steps: Sequence[str], bootstrap: str, prefix: str) -> None:
    """Leave behind what these steps would have. Topics that later steps make along the way belong to `create_topic`.

    Raise KafkaException.
    """
    if "create_topic" in steps:
        topics = [
            NewTopic(f"{prefix}-records", PARTITIONS, 1, config={"retention.ms": "86400000", "max.message.bytes": "200000"}),
            *(NewTopic(f"{prefix}-{name}", 1, 1) for name in ("codecs", "line", "once")),
        ]
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        for made in admin.create_topics(topics).values():
            made.result(TIMEOUT_S)
    if "produce" in steps:
        producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
        for number in range(RECORDS):
            producer.produce(
                f"{prefix}-records",
                None if number % 10 == 9 else f"value-{number}".encode(),
                f"key-{number}".encode(),
                partition=number % PARTITIONS,
                timestamp=FIRST_TIMESTAMP_MS + 1_000 * number,
                headers=[("index", str(number).encode()), ("empty", b"")],
            )
        left = producer.flush(TIMEOUT_S)
        assert left == 0, f"{left} records were not acknowledged"
