"""Streams of Spark's Kafka source read everything once, in batches of the size asked for, and see topics grow (T2, T15, T17)."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.spark.acks import Record, Row, assert_exact, produce
from tests.spark.brokers import QUIET, Brokers
from tests.spark.reading import available, streaming, wait_for, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(900)

A_WHILE: Final = "1h"
"""Longer than any test."""


def numbered(count: int, now_ms: int, *, partition: int = 0, begin: int = 0) -> list[Record]:
    return [Record(partition=partition, value=b"%d" % number, timestamp_ms=now_ms + number) for number in range(begin, begin + count)]


def test_t2_a_stream_of_a_pattern_reads_topics_that_are_created_while_it_runs_and_none_that_are_internal(
    spark: "SparkSession", brokers: Brokers, now_ms: int, tmp_path: Path
) -> None:
    rows = produce(brokers.bootstrap, brokers.create("wide-first"), numbered(3, now_ms))
    commit_an_offset(brokers, rows[0])

    with streaming(spark, brokers, tmp_path, subscribePattern="wide-.*|__consumer_offsets") as (query, streamed):
        wait_for(query, streamed, rows=3)
        rows += produce(brokers.bootstrap, brokers.create("wide-second", partitions=2), numbered(4, now_ms, partition=1))
        wait_for(query, streamed, rows=7)

    assert_exact(streamed.rows, rows)


def test_t2_a_stream_of_assigned_partitions_reads_these_alone(
    spark: "SparkSession", brokers: Brokers, deliveries: list[Row], tmp_path: Path
) -> None:
    streamed = available(spark, brokers, tmp_path, assign={"deliveries-0": [1, 3], "deliveries-2": [0]})

    chosen = {("deliveries-0", 1), ("deliveries-0", 3), ("deliveries-2", 0)}
    assert_exact(streamed.rows, [row for row in deliveries if (row.topic, row.partition) in chosen])


def test_t15_partitions_that_are_added_to_a_topic_are_read_from_their_beginning(
    spark: "SparkSession", brokers: Brokers, now_ms: int, tmp_path: Path
) -> None:
    topic = brokers.create("growing", partitions=2)
    rows = produce(brokers.bootstrap, topic, numbered(3, now_ms))

    with streaming(spark, brokers, tmp_path, subscribe=topic) as (query, streamed):
        wait_for(query, streamed, rows=3)
        brokers.grow(topic, partitions=4)
        rows += produce(brokers.bootstrap, topic, numbered(3, now_ms, partition=3) + numbered(1, now_ms, partition=1))
        wait_for(query, streamed, rows=7)

    assert_exact(streamed.rows, rows)


def test_t17_a_run_over_what_is_available_takes_batches_of_the_size_asked_for_and_ends_and_the_next_has_no_rows(
    spark: "SparkSession", brokers: Brokers, now_ms: int, tmp_path: Path
) -> None:
    topic = brokers.create("measured")
    rows = produce(brokers.bootstrap, topic, numbered(100, now_ms))

    streamed = available(spark, brokers, tmp_path, subscribe=topic, maxOffsetsPerTrigger="30")
    assert streamed.sizes == [30, 30, 30, 10]
    assert_exact(streamed.rows, rows)
    assert available(spark, brokers, tmp_path, subscribe=topic, maxOffsetsPerTrigger="30").batches == {}


def test_t17_a_stream_waits_until_there_are_as_many_offsets_as_it_was_told_to(
    spark: "SparkSession", brokers: Brokers, now_ms: int, tmp_path: Path
) -> None:
    topic = brokers.create("awaited")
    few, more = numbered(10, now_ms), numbered(40, now_ms, begin=10)
    given = {"subscribe": topic, "minOffsetsPerTrigger": "50", "maxTriggerDelay": A_WHILE}

    # The first batch waits for nothing: of an empty topic it would be an empty one.
    rows = produce(brokers.bootstrap, topic, numbered(50, now_ms, begin=50))
    with streaming(spark, brokers, tmp_path, **given) as (query, streamed):
        wait_for(query, streamed, rows=50)
        rows += produce(brokers.bootstrap, topic, few)
        seen = len(query.recentProgress)
        wait_until(lambda: len(query.recentProgress) > seen + 1)  # it has looked, and taken nothing
        rows += produce(brokers.bootstrap, topic, more)
        wait_for(query, streamed, rows=100)

    assert streamed.sizes == [50, 50]
    assert_exact(streamed.rows, rows)


def commit_an_offset(brokers: Brokers, row: Row) -> None:
    """So that there is an internal topic, where a broker has those."""
    consumer = Consumer({"bootstrap.servers": brokers.bootstrap, "group.id": "committing"} | QUIET)
    try:
        consumer.commit(offsets=[TopicPartition(row.topic, row.partition, row.offset)], asynchronous=False)
    finally:
        consumer.close()
