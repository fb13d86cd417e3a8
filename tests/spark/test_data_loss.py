"""A stream whose next records are gone fails with Spark's own message, and goes on where a user allows it to (T10, T14)."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from pyspark.errors import StreamingQueryException

from tests.spark.acks import assert_exact, produce
from tests.spark.brokers import Brokers
from tests.spark.reading import available
from tests.spark.test_streams import numbered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(900)

SOON: Final = {"fetchOffset.retryIntervalMs": "100"}
"""Spark asks three times whether an end has really gone back."""


def test_t10_records_deleted_before_a_stream_read_them_fail_it_and_are_passed_over_where_that_is_allowed(
    spark: "SparkSession", brokers: Brokers, now_ms: int, tmp_path: Path
) -> None:
    topic = brokers.create("trimmed")
    given = {"subscribe": topic}
    rows = produce(brokers.bootstrap, topic, numbered(20, now_ms))
    assert_exact(available(spark, brokers, tmp_path, **given).rows, rows)
    later = produce(brokers.bootstrap, topic, numbered(20, now_ms, begin=20))
    brokers.delete_records(topic, 0, before=30)

    with pytest.raises(StreamingQueryException, match="Some data may have been lost because they are not available in Kafka any more"):
        available(spark, brokers, tmp_path, **given)
    streamed = available(spark, brokers, tmp_path, failOnDataLoss="false", **given)
    assert_exact(streamed.rows, [row for row in later if row.offset >= 30])


def test_t14_a_topic_that_is_deleted_and_created_again_fails_the_stream_that_read_the_former_one(
    spark: "SparkSession", brokers: Brokers, now_ms: int, tmp_path: Path
) -> None:
    topic = brokers.create("reborn")
    given = SOON | {"subscribe": topic}
    former = produce(brokers.bootstrap, topic, numbered(20, now_ms))
    assert_exact(available(spark, brokers, tmp_path / "one", **given).rows, former)
    brokers.delete(topic)
    brokers.create(topic)
    rows = produce(brokers.bootstrap, topic, numbered(5, now_ms, begin=100))
    assert [row.offset for row in rows] == [0, 1, 2, 3, 4]

    with pytest.raises(StreamingQueryException, match="offset was changed from 20 to 5"):
        available(spark, brokers, tmp_path / "one", **given)
    assert_exact(available(spark, brokers, tmp_path / "two", **given).rows, rows)
