"""A reader that is sent to another broker with every look at the metadata reads on as if nothing were (T6, T19)."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.spark.acks import assert_exact, producing
from tests.spark.brokers import Brokers
from tests.spark.reading import streaming, wait_for, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(900)

PARTITIONS: Final = 4
HOPPING: Final = {"kafka.metadata.max.age.ms": "50", "kafka.fetch.max.wait.ms": "50"}
"""The broker that is asked names itself, and a client asks any."""
SHORT, LONG = 2_000, 24_000
"""Records, at 400 a second."""


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("count", [SHORT, LONG], ids=["five seconds", "a minute"])
def test_t6_t19_ends_never_go_back_and_no_position_is_doubted_while_leaders_change(
    spark: "SparkSession", brokers: Brokers, spark_log: Path, now_ms: int, tmp_path: Path, count: int
) -> None:
    topic = brokers.create(f"hopping-{count}", partitions=PARTITIONS)
    said = spark_log.stat().st_size
    asked = {api: brokers.requests(api) for api in ("OffsetForLeaderEpoch", "Fetch", "ListOffsets")}
    refused = {api: brokers.refusals(api) for api in ("Fetch", "ListOffsets")}

    with (
        producing(brokers.bootstrap, topic, partitions=PARTITIONS, since_ms=now_ms, per_second=400) as rows,
        streaming(spark, brokers, tmp_path, subscribe=topic, **HOPPING) as (query, streamed),
    ):
        wait_until(lambda: len(rows) >= count)
        wait_for(query, streamed, rows=count)
    with streaming(spark, brokers, tmp_path / "whole", subscribe=topic, **HOPPING) as (query, whole):
        wait_for(query, whole, rows=len(rows))

    assert_exact(whole.rows, rows)
    upto = {partition: max(row.offset for row in streamed.rows if row.partition == partition) for partition in range(PARTITIONS)}
    assert_exact(streamed.rows, [row for row in rows if row.offset <= upto[row.partition]])
    warned = spark_log.read_bytes()[said:].decode()
    assert "ncorrect offsets" not in warned, warned
    assert "was changed from" not in warned, warned
    assert "truncat" not in warned, warned
    if brokers.are_ours:
        wait_until(lambda: brokers.requests("ListOffsets") > asked["ListOffsets"] + 50)
        assert {api: brokers.refusals(api) for api in refused} == refused
        assert brokers.requests("OffsetForLeaderEpoch") - asked["OffsetForLeaderEpoch"] <= brokers.requests("Fetch") - asked["Fetch"]
