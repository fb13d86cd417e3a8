"""Records that move into segments, and objects that go, while a query reads them: what is read stays exact (T13)."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.spark.acks import assert_exact, producing
from tests.spark.brokers import Brokers
from tests.spark.reading import read, streaming, wait_for, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(900)

PARTITIONS: Final = 2
SLOWLY: Final = {"maxOffsetsPerTrigger": "150"}
"""So that it reads long after the records were written."""


def test_t13_a_query_reads_exactly_what_was_written_while_the_objects_it_reads_are_replaced(
    spark: "SparkSession", brokers: Brokers, now_ms: int, tmp_path: Path
) -> None:
    topic = brokers.create("moved", partitions=PARTITIONS)
    with producing(brokers.bootstrap, topic, partitions=PARTITIONS, since_ms=now_ms, per_second=400) as rows:
        wait_until(lambda: len(rows) > 100)
        first = objects(brokers, "wal")
        segments = objects(brokers, "segments")
        with streaming(spark, brokers, tmp_path, subscribe=topic, **SLOWLY) as (query, streamed):
            wait_for(query, streamed, rows=150)
            if brokers.are_ours:
                wait_until(lambda: bool(objects(brokers, "segments") - segments) and not objects(brokers, "wal") & first, within_s=300)
            reading = len(streamed.rows)
            wait_for(query, streamed, rows=reading + 150)
    with streaming(spark, brokers, tmp_path / "whole", subscribe=topic) as (query, whole):
        wait_for(query, whole, rows=len(rows))

    assert_exact(whole.rows, rows)
    assert_exact(read(spark, brokers, subscribe=topic), rows)
    upto = {partition: max(row.offset for row in streamed.rows if row.partition == partition) for partition in range(PARTITIONS)}
    assert_exact(streamed.rows, [row for row in rows if row.offset <= upto[row.partition]])


def objects(brokers: Brokers, kind: str) -> set[str]:
    """The names of the objects of one kind that the bucket has."""
    assert brokers.objects is not None or not brokers.are_ours
    if not brokers.objects:
        return set()
    # Files and folders go meanwhile, which a glob does not bear.
    walked = ((Path(folder).relative_to(brokers.objects), names) for folder, _, names in os.walk(brokers.objects))
    return {name for folder, names in walked if kind in folder.parts for name in names}
