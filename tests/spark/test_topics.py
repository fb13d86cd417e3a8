"""What the source of our jobs asks brokers for (spark/topics.py)."""

import time
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

from spark.kafka_admin import KafkaCluster, KafkaPartition
from spark.topics import TopicSource
from tests.spark.acks import produce
from tests.spark.brokers import Brokers
from tests.spark.test_streams import numbered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORDS: Final = 9_999
"""Some 100 KiB: one Fetch. The last poll is not full, so that its consumer sends one more."""
POLLS_OF_KAFKA: Final = RECORDS // 500
LONG_WAIT_MS: Final = 20_000
METRICS_AGE_MAX_S: Final = 1.1


class _Asked(NamedTuple):
    """What a read of all records took: questions for offsets, and the seconds of all Fetches."""

    questions: float
    fetching_s: float


def test_both_ends_are_asked_for_once_for_thousands_of_records(spark: "SparkSession", brokers: Brokers, now_ms: int) -> None:
    topic = _filled(brokers, "polled", now_ms)

    asked = _read(brokers, spark, topic, {})
    by_default = _read(brokers, spark, topic, {"max.poll.records": "500"})

    assert by_default.questions - asked.questions >= POLLS_OF_KAFKA, "two for each poll but the first two"


def test_the_end_of_a_partition_is_not_waited_at_however_long_its_consumer_would(
    spark: "SparkSession", brokers: Brokers, now_ms: int
) -> None:
    topic = _filled(brokers, "ended", now_ms)

    asked = _read(brokers, spark, topic, {"fetch.max.wait.ms": str(LONG_WAIT_MS)})

    assert asked.fetching_s < LONG_WAIT_MS / 2_000


def _filled(brokers: Brokers, name: str, now_ms: int) -> str:
    if not brokers.are_ours:
        pytest.skip("it is about what Forebay counts")
    topic = brokers.create(name, partitions=1)
    produce(brokers.bootstrap, topic, numbered(RECORDS, now_ms), linger_ms=200)
    return topic


def _read(brokers: Brokers, spark: "SparkSession", topic: str, client: dict[str, str]) -> _Asked:
    source = TopicSource(cluster=KafkaCluster(bootstrap_servers=brokers.bootstrap, client=client), topics=(topic,))
    before = _counted(brokers)
    assert source.between(spark, {KafkaPartition(topic, 0): 0}, {KafkaPartition(topic, 0): RECORDS}).count() == RECORDS
    after = _counted(brokers)
    return _Asked(after.questions - before.questions, after.fetching_s - before.fetching_s)


def _counted(brokers: Brokers) -> _Asked:
    time.sleep(METRICS_AGE_MAX_S)
    fetching_s = sum(one.metrics()['forebay_kafka_request_duration_seconds_sum{api="Fetch"}'] for one in brokers.served)
    return _Asked(brokers.requests("ListOffsets"), fetching_s)
