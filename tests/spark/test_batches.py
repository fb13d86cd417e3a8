"""Batch reads of Spark's Kafka source give exactly what was acknowledged, from and to wherever one asks (T1, T3, T4, T8, T16)."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from pyspark.errors import PySparkException

from tests.spark.acks import Record, Row, assert_exact, produce
from tests.spark.brokers import Brokers
from tests.spark.reading import available, frame_of, read, rows_of, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(900)

EARLIEST, LATEST = -2, -1
STEP_MS: Final = 1_000
TIMED: Final = 20
"""Records of each partition of a topic whose records are STEP_MS apart."""
MANY: Final = 3_000
LARGE_BYTES: Final = 5_000_000
DEPRECATED: Final = "spark.sql.streaming.kafka.useDeprecatedOffsetFetching"


@pytest.fixture(scope="session")
def timed(brokers: Brokers, now_ms: int) -> list[Row]:
    brokers.create("timed", partitions=2)
    records = [
        Record(partition=number % 2, value=b"%d" % number, timestamp_ms=now_ms + STEP_MS * (number // 2)) for number in range(2 * TIMED)
    ]
    return produce(brokers.bootstrap, "timed", records)


@pytest.fixture(scope="session")
def many(brokers: Brokers, now_ms: int) -> list[Row]:
    """In few batches, so that a range of offsets begins in the middle of one."""
    brokers.create("many", partitions=2)
    records = [Record(partition=number % 2, value=b"%d" % number, timestamp_ms=now_ms + number) for number in range(2 * MANY)]
    return produce(brokers.bootstrap, "many", records, linger_ms=500, batch_num_messages=1_000)


@pytest.fixture
def by_consumer(spark: "SparkSession") -> Iterator[None]:
    """The driver asks a consumer for offsets, as it did before Spark 3.4, instead of an admin client."""
    spark.conf.set(DEPRECATED, "true")
    yield
    spark.conf.unset(DEPRECATED)


def test_t1_a_batch_read_is_exact_whatever_the_codec(spark: "SparkSession", brokers: Brokers, deliveries: list[Row]) -> None:
    assert_exact(read(spark, brokers, subscribe="deliveries-0,deliveries-1,deliveries-2"), deliveries)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.usefixtures("by_consumer")
def test_t8_a_driver_that_asks_a_consumer_for_offsets_reads_the_same(
    spark: "SparkSession", brokers: Brokers, deliveries: list[Row]
) -> None:
    joined = brokers.requests("JoinGroup")

    assert_exact(read(spark, brokers, subscribe="deliveries-0,deliveries-1,deliveries-2"), deliveries)
    if brokers.are_ours:
        wait_until(lambda: brokers.requests("JoinGroup") > joined)


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (
            {"startingOffsets": {"timed": {"0": EARLIEST, "1": 5}}, "endingOffsets": {"timed": {"0": 7, "1": LATEST}}},
            lambda row, _: row.offset < 7 if row.partition == 0 else row.offset >= 5,
        ),
        (
            {"startingTimestamp": 4_500, "endingTimestamp": 12_000},
            lambda row, since_ms: 4_500 <= since_ms < 12_000,
        ),
        (
            {
                "startingOffsetsByTimestamp": {"timed": {"0": 6_000, "1": 0}},
                "endingOffsetsByTimestamp": {"timed": {"0": 1_000_000, "1": 2_001}},
            },
            lambda row, since_ms: since_ms >= 6_000 if row.partition == 0 else since_ms < 2_001,
        ),
    ],
    ids=["offsets", "timestamps", "timestamps by partition"],
)
def test_t3_a_batch_read_begins_and_ends_where_it_is_told(
    spark: "SparkSession",
    brokers: Brokers,
    timed: list[Row],
    now_ms: int,
    chosen: dict[str, Any],
    expected: Callable[[Row, int], bool],
) -> None:
    given = {name: since(now_ms, value) if "Timestamp" in name else value for name, value in chosen.items()}

    assert_exact(read(spark, brokers, subscribe="timed", **given), [row for row in timed if expected(row, row.timestamp_ms - now_ms)])


def test_t3_no_record_as_late_as_the_start_is_sparks_own_error_and_may_mean_the_end(
    spark: "SparkSession", brokers: Brokers, timed: list[Row], now_ms: int
) -> None:
    asked = {"subscribe": "timed", "startingTimestamp": str(now_ms + STEP_MS * TIMED)}

    with pytest.raises(PySparkException, match="No offset matched from request of topic-partition timed"):
        read(spark, brokers, **asked)
    assert read(spark, brokers, startingOffsetsByTimestampStrategy="latest", **asked) == []
    assert timed


def test_t4_an_empty_topic_has_no_rows_and_one_record_is_one_row(spark: "SparkSession", brokers: Brokers, now_ms: int) -> None:
    topic = brokers.create("nearly-empty", partitions=3)

    assert read(spark, brokers, subscribe=topic) == []
    one = produce(brokers.bootstrap, topic, [Record(partition=1, value=b"one", timestamp_ms=now_ms)])
    assert_exact(read(spark, brokers, subscribe=topic), one)


def test_t4_a_partition_that_ends_where_it_begins_has_no_rows(spark: "SparkSession", brokers: Brokers, timed: list[Row]) -> None:
    rows = read(
        spark,
        brokers,
        subscribe="timed",
        startingOffsets={"timed": {"0": 9, "1": EARLIEST}},
        endingOffsets={"timed": {"0": 9, "1": LATEST}},
    )

    assert_exact(rows, [row for row in timed if row.partition == 1])


def test_t4_a_record_larger_than_a_fetch_of_its_partition_is_read(spark: "SparkSession", brokers: Brokers, now_ms: int) -> None:
    topic = brokers.create("large", config={"max.message.bytes": str(2 * LARGE_BYTES)})
    records = [Record(value=bytes([number]) * size, timestamp_ms=now_ms) for number, size in enumerate((10, LARGE_BYTES, 10))]
    rows = produce(brokers.bootstrap, topic, records, message_max_bytes=2 * LARGE_BYTES)

    assert_exact(read(spark, brokers, subscribe=topic), rows)


def test_t16_a_partition_that_is_read_by_several_tasks_is_read_once(spark: "SparkSession", brokers: Brokers, many: list[Row]) -> None:
    frame = frame_of(spark, brokers, subscribe="many", minPartitions="16")

    assert frame.rdd.getNumPartitions() == 16
    assert_exact(rows_of(frame), many)


def test_t16_a_task_of_a_stream_reads_no_more_records_than_it_may(
    spark: "SparkSession", brokers: Brokers, many: list[Row], tmp_path: Path
) -> None:
    streamed = available(spark, brokers, tmp_path, subscribe="many", maxRecordsPerPartition="1000")

    assert streamed.tasks == {0: 2 * MANY // 1_000}
    assert_exact(streamed.rows, many)


def since(now_ms: int, value: Any) -> Any:
    """Times counted from the first record's, as Spark wants them."""
    if isinstance(value, dict):
        return {name: since(now_ms, one) for name, one in value.items()}
    return now_ms + value
