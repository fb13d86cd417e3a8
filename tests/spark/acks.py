"""The oracle: what a producer was told about each of its records is what Spark has to read, no more and no less."""

import contextlib
import itertools
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError, Message, Producer

from tests.spark.brokers import QUIET, WITHIN_S

CREATE_TIME: Final = 0
SHOWN: Final = 5
PAUSES_PER_S: Final = 20
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


def produce(bootstrap: str, topic: str, records: Iterable[Record], *, into: list[Row] | None = None, **settings: Any) -> list[Row]:
    """All of them, each acknowledged, in the order of the acknowledgements. `settings` by librdkafka's names with `_` for `.`."""
    rows = [] if into is None else into
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


@contextlib.contextmanager
def producing(bootstrap: str, topic: str, *, partitions: int, since_ms: int, per_second: int, **settings: Any) -> Iterator[list[Row]]:
    """A producer at its work while the block runs: the list grows with every acknowledgement, and is complete when the block is left."""
    rows: list[Row] = []
    over = threading.Event()

    def numbered() -> Iterator[Record]:
        for number in itertools.count():
            if number % (1 + per_second // PAUSES_PER_S) == 0 and over.wait(1 / PAUSES_PER_S):
                return
            yield Record(partition=number % partitions, key=b"%d" % number, value=b"value " * 20, timestamp_ms=since_ms + number)

    def run() -> None:
        produce(bootstrap, topic, numbered(), into=rows, **settings)

    with ThreadPoolExecutor(1, thread_name_prefix="producing") as pool:
        running = pool.submit(run)
        try:
            yield rows
        finally:
            over.set()
            running.result(2 * WITHIN_S)
