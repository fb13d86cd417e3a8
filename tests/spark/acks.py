"""The oracle: what a producer was told about each of its records is what Spark has to read, no more and no less."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError, Message, Producer

from tests.spark.brokers import QUIET, WITHIN_S

CREATE_TIME: Final = 0
SHOWN: Final = 5
Headers = tuple[tuple[str, bytes | None], ...]


class Row(NamedTuple):
    """A record where it was stored, as the schema of Spark's source has it."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int
    timestamp_type: int = CREATE_TIME


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    value: bytes | None
    timestamp_ms: int
    partition: int = 0
    key: bytes | None = None
    headers: Headers = ()


def produce(bootstrap: str, topic: str, records: Iterable[Record], **settings: Any) -> list[Row]:
    """All of them, each acknowledged, in the order of the acknowledgements. `settings` by librdkafka's names with `_` for `.`."""
    rows: list[Row] = []
    refused: list[str] = []
    given = {name.replace("_", "."): value for name, value in settings.items()}
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 20} | QUIET | given)

    def send(record: Record) -> None:
        def delivered(error: KafkaError | None, message: Message) -> None:
            offset = message.offset()
            if error is not None or offset is None:
                refused.append(str(error))
                return
            rows.append(Row(topic, record.partition, offset, record.key, record.value, record.headers, record.timestamp_ms))

        producer.produce(
            topic,
            record.value,
            record.key,
            partition=record.partition,
            timestamp=record.timestamp_ms,
            headers=list(record.headers),
            on_delivery=delivered,
        )
        producer.poll(0)

    for record in records:
        send(record)
    assert producer.flush(WITHIN_S) == 0, "records were neither acknowledged nor refused"
    assert not refused, refused[:SHOWN]
    return rows


def assert_exact(read: Sequence[Row], acked: Sequence[Row]) -> None:
    """The same rows, each as often, in any order."""
    assert acked, "nothing was produced"
    missing, surplus = Counter(acked) - Counter(read), Counter(read) - Counter(acked)
    wrong = [
        f"{sum(odd.values())} rows {what}: {', '.join(shortened(row) for row in list(odd)[:SHOWN])}"
        for odd, what in ((missing, "were acknowledged and not read"), (surplus, "were read and not acknowledged, or once too often"))
        if odd
    ]
    assert not wrong, "\n".join([f"of {len(acked)} acknowledged", *wrong])


def shortened(row: Row) -> str:
    return str(row._replace(value=row.value and row.value[:40]))
