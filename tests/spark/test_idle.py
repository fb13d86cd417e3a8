"""A query that has nothing to read costs the stores nothing (T9)."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.spark.acks import produce
from tests.spark.brokers import Brokers
from tests.spark.reading import streaming, wait_for, wait_until
from tests.spark.test_streams import numbered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)

PARTITIONS: Final = 4
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
        wait_until(lambda: brokers.requests("ListOffsets") >= looks + LOOKS)  # what it read at first has been counted by now
        looks, read, asked = brokers.requests("ListOffsets"), objects_read(brokers), metadata_read(brokers)
        wait_until(lambda: brokers.requests("ListOffsets") >= looks + LOOKS)
        looked = brokers.requests("ListOffsets") - looks

        assert objects_read(brokers) == read
        assert metadata_read(brokers) - asked <= (looked + LOOKS // 4) * PARTITIONS


def objects_read(brokers: Brokers) -> float:
    return brokers.stores_asked("object_store", "get")


def metadata_read(brokers: Brokers) -> float:
    return brokers.stores_asked("metadata", "get_many")
