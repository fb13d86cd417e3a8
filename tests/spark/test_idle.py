"""A query that has nothing to read costs the stores nothing (T9)."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

from tests.spark.acks import produce
from tests.spark.brokers import Brokers
from tests.spark.reading import streaming, wait_for, wait_until
from tests.spark.test_streams import numbered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(900)

PARTITIONS: Final = 4
METRICS_AGE_MAX_S: Final = 1.1
LOOKS: Final = 60
"""Of an idle query at the ends of its partitions: it looks again as soon as it knows that there is nothing."""


@pytest.mark.slow
@pytest.mark.long
def test_t9_looks_of_a_query_without_new_records_read_no_object_and_one_record_of_metadata_for_a_partition(
    spark: "SparkSession", brokers: Brokers, now_ms: int, tmp_path: Path
) -> None:
    if not brokers.are_ours:
        pytest.skip("it is about the stores of Forebay")
    topic = brokers.create("quiet", partitions=PARTITIONS)
    produce(brokers.bootstrap, topic, numbered(10, now_ms))

    with streaming(spark, brokers, tmp_path, subscribe=topic) as (query, streamed):
        wait_for(query, streamed, rows=10)
        looks = brokers.requests("ListOffsets")
        wait_until(lambda: brokers.requests("ListOffsets") >= looks + LOOKS)  # its batch is committed by now
    before = _at_rest(brokers)
    with streaming(spark, brokers, tmp_path, subscribe=topic):
        wait_until(lambda: brokers.requests("ListOffsets") >= before.looks + LOOKS)
    after = _at_rest(brokers)

    assert after.records_read == before.records_read
    assert after.metadata_read - before.metadata_read <= (after.looks - before.looks + LOOKS // 4) * PARTITIONS


class _Counted(NamedTuple):
    """By all brokers: requests for offsets, reads of records that are not in the tail cache, and reads of metadata."""

    looks: float
    records_read: float
    metadata_read: float


def _at_rest(brokers: Brokers) -> _Counted:
    """When nobody asks for anything, all counters are of one moment. Of a store's objects brokers read the marker, too, every ten seconds:
    records are what they read through the block cache.
    """
    time.sleep(METRICS_AGE_MAX_S)
    records_read = sum(
        value for one in brokers.served for name, value in one.metrics().items() if name.startswith("forebay_cache_requests_total")
    )
    return _Counted(brokers.requests("ListOffsets"), records_read, brokers.stores_asked("metadata", "get_many"))
