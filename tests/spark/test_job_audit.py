"""What an audit finds between a table and the log, each fault by its name. Static frames, no broker."""

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest

from spark.decoding import RAW

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark.jobs.audit import Audited

pytestmark = pytest.mark.timeout(900)

AT: Final = datetime(2013, 1, 1, tzinfo=UTC)
END: Final = 6
PLANNED: Final = 8
TOPIC: Final = "flights"


def row(offset: int, **given: Any) -> dict[str, Any]:
    usual = {
        "topic": TOPIC,
        "partition": 0,
        "offset": offset,
        "timestamp": AT + timedelta(seconds=offset),
        "timestamp_type": 0,
        "key": b"key",
        "value": b"value",
        "headers": [("origin", b"a")],
    }
    return usual | given


def audited(spark: "SparkSession", log: list[dict[str, Any]], table: list[dict[str, Any]], *, explains_gaps: bool = False) -> "Audited":
    from spark.jobs.audit import compared, judged, marked, summed
    from spark.kafka_admin import KafkaPartition

    one = KafkaPartition(TOPIC, 0)
    ranges = spark.createDataFrame(
        [(TOPIC, 0, 1, END, PLANNED, explains_gaps)],
        "topic string, partition int, start long, end long, planned long, may_be_gone boolean",
    )
    kinds = compared(marked(frame(spark, log), is_typed=False), marked(frame(spark, table), is_typed=False), ranges)
    (found,) = judged({one: 1}, {one: END}, summed(kinds), explains_gaps={TOPIC: explains_gaps})
    return found


def frame(spark: "SparkSession", rows: list[dict[str, Any]]) -> "DataFrame":
    return spark.createDataFrame([tuple(one[name] for name in RAW.fieldNames()) for one in rows], RAW)


LOG: Final = [row(offset) for offset in range(1, END)]


def test_a_table_with_each_record_once_is_clean(spark: "SparkSession") -> None:
    found = audited(spark, LOG, LOG)

    assert found.is_clean
    assert (found.records, found.same, found.gap) == (5, 5, 0)


def test_every_difference_has_its_name(spark: "SparkSession") -> None:
    table = [row(1), row(2), row(2), row(3, value=b"other"), row(5), row(5, key=b"other")]

    found = audited(spark, LOG, table)

    assert found.counts == {"missing": 1, "invented": 0, "duplicate": 2, "different": 1}
    assert (found.records, found.same, found.is_clean) == (5, 1, False)


def test_whatever_of_a_record_was_changed_is_found(spark: "SparkSession") -> None:
    changes: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({}, {"key": b""}),
        ({}, {"key": None}),
        ({}, {"value": None}),
        ({}, {"value": b"valu"}),
        ({}, {"timestamp": AT}),
        ({}, {"timestamp_type": 1}),
        ({}, {"headers": []}),
        ({}, {"headers": None}),
        ({}, {"headers": [("origin", None)]}),
        ({}, {"headers": [("origin", b"")]}),
        ({}, {"headers": [("origin", b"a"), ("origin", b"a")]}),
        ({}, {"headers": [("other", b"a")]}),
        ({"key": b"a", "value": None}, {"key": None, "value": b"a"}),
        ({"key": b"ab", "value": b"c"}, {"key": b"a", "value": b"bc"}),
        ({"key": None}, {"key": b""}),
    ]
    log = [row(offset, **was) for offset, (was, _) in enumerate(changes, 1)]
    table = [row(offset, **(was | now)) for offset, (was, now) in enumerate(changes, 1)]

    assert audited(spark, log, table).counts == {"missing": 0, "invented": 0, "duplicate": 0, "different": len(changes)}


def test_a_row_that_the_log_never_had_is_invented_and_one_whose_record_is_gone_is_not(spark: "SparkSession") -> None:
    log, table = [*LOG[:2], *LOG[3:]], [row(0), *LOG, row(END), row(END + 1), row(PLANNED), row(1_000)]

    found = audited(spark, log, table)
    compacted = audited(spark, log, table, explains_gaps=True)

    assert found.counts == {"missing": 0, "invented": 3, "duplicate": 0, "different": 0}
    assert (found.expired, found.uncommitted) == (1, 2)
    assert compacted.counts["invented"] == 2
    assert compacted.expired == 2


def test_an_offset_that_nobody_has_is_a_gap_unless_the_topic_explains_it(spark: "SparkSession") -> None:
    both = [*LOG[:2], *LOG[3:]]

    assert audited(spark, both, both).gap == 1
    assert not audited(spark, both, both).is_clean
    assert audited(spark, both, both, explains_gaps=True).is_clean


def test_the_verdict_counts_all_that_is_wrong_over_all_partitions(spark: "SparkSession") -> None:
    from spark.jobs.audit import verdict

    clean, wrong = audited(spark, LOG, LOG), audited(spark, [*LOG[:3], *LOG[4:]], [row(0), *LOG[:1], *LOG[:1], row(5)])

    assert verdict([clean]) == "audit: 5 of 5 records, no gap, no duplicate"
    assert verdict([clean, wrong]) == "audit: 6 of 9 records, 2 missing, 1 duplicate, 1 gap; 1 expired"
