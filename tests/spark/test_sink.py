"""Spark's Kafka sink, with the client's defaults, writes every row once, also where acknowledgements are lost (T22)."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.spark.acks import Row, assert_exact
from tests.spark.brokers import Brokers
from tests.spark.reading import FINISHED_WITHIN_S, read, stream_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(900)

ROWS: Final = 240
PARTITIONS: Final = 2
SMALL_BATCHES: Final = {"kafka.batch.size": "100", "kafka.linger.ms": "0", "kafka.retry.backoff.ms": "20"}
"""Many requests of few records, several under way at a time."""


def test_t22_rows_are_written_once_and_in_order_while_acknowledgements_are_lost(spark: "SparkSession", brokers: Brokers) -> None:
    topic = brokers.create("written", partitions=PARTITIONS)
    lost = brokers.lost_acks
    frame = spark.range(0, ROWS, 1, PARTITIONS).selectExpr(
        "cast(id as string) as value", f"cast(id * {PARTITIONS} div {ROWS} as int) as partition"
    )

    with brokers.losing_acks(every=9):
        to = SMALL_BATCHES | {"kafka.bootstrap.servers": brokers.behind_proxies.bootstrap, "topic": topic}
        frame.write.format("kafka").options(**to).save()

    assert brokers.lost_acks > lost + 1
    found = sorted(read(spark, brokers, subscribe=topic), key=lambda row: (row.partition, row.offset))
    assert [(row.partition, int(row.value or b"")) for row in found] == [(number * PARTITIONS // ROWS, number) for number in range(ROWS)]


@pytest.mark.slow
@pytest.mark.long
def test_t22_a_stream_into_a_topic_keeps_keys_values_headers_and_partitions_while_acknowledgements_are_lost(
    spark: "SparkSession", brokers: Brokers, deliveries: list[Row], tmp_path: Path
) -> None:
    topic = brokers.create("copied", partitions=4)
    lost = brokers.lost_acks
    frame = stream_of(spark, brokers, subscribe="deliveries-0").select("key", "value", "headers", "partition")

    with brokers.losing_acks(every=9):
        to = SMALL_BATCHES | {"kafka.bootstrap.servers": brokers.behind_proxies.bootstrap, "topic": topic}
        writing = frame.writeStream.format("kafka").options(**to).option("checkpointLocation", str(tmp_path))
        assert writing.trigger(availableNow=True).start().awaitTermination(FINISHED_WITHIN_S)

    assert brokers.lost_acks > lost + 1
    copied = read(spark, brokers, subscribe=topic)
    assert_exact([content(row) for row in copied], [content(row) for row in deliveries if row.topic == "deliveries-0"])
    assert len({(row.partition, row.offset) for row in copied}) == len(copied)


def content(row: Row) -> Row:
    """Without the place and the time, which are new."""
    return row._replace(topic="", offset=0, timestamp_ms=0)
