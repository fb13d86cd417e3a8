"""Which records of a table go to a topic, in which order, and which of them are there. Functions of frames, with no session and no I/O.

A partition of the target gets the records that the table has of the partition with the same number: by source topic, and of each in the
order of offsets. This order never changes, so that the target has a prefix of it at any moment. A record says in its last
header `forebay.origin` which one it is.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sql

from spark.decoding import RAW

ORIGIN: Final = "forebay.origin"
WHERE: Final = ("topic", "partition", "offset")
LAST: Final = "partition int, last_topic string, last_offset long"
_PARSED: Final = r"^([^/]+)/([0-9]{1,10})/([0-9]{1,19})$"


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """What a partition of the target has of the table: `count` records, of which `last` is the last one, as topic and offset there."""

    count: int
    last: tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What the table has for a partition, of which `before` come no later than what the target has, and `has_last` is whether that one is
    among them. `unwritable`: rows with timestamps that no producer can send. `oldest_ms`: of those that are left."""

    count: int
    before: int
    has_last: bool
    unwritable: int
    oldest_ms: int | None

    @property
    def left(self) -> int:
        return self.count - self.before


def lacking(rows: DataFrame) -> list[str]:
    """Columns of the raw layout that a table does not have."""
    return [name for name in RAW.fieldNames() if name not in rows.columns]


def planned(rows: DataFrame, *, topics: Iterable[str] = (), since_ms: int | None = None, until_ms: int | None = None) -> DataFrame:
    """Rows of the raw layout, or dead letters, with timestamps in [since, until), of these topics or of all."""
    found = rows
    if chosen := list(topics):
        found = found.where(sql.col("topic").isin(chosen))
    if since_ms is not None:
        found = found.where(sql.col("timestamp") >= sql.timestamp_millis(sql.lit(since_ms)))
    if until_ms is not None:
        found = found.where(sql.col("timestamp") < sql.timestamp_millis(sql.lit(until_ms)))
    return found.select(*WHERE, sql.unix_millis("timestamp").alias("timestamp_ms"), "key", "value", "headers")


def repeated(plan: DataFrame) -> DataFrame:
    """Records that the table has more than once, or without saying where they were."""
    nowhere = sql.col("topic").isNull() | sql.col("partition").isNull() | sql.col("offset").isNull()
    return plan.groupBy(*WHERE).count().where((sql.col("count") > 1) | nowhere)


def counted(plan: DataFrame, lasts: DataFrame) -> dict[int, Planned]:
    """By partition. `lasts` has the columns of `LAST`, a row for each partition of the target that has records of the table."""
    place = sql.struct("topic", "offset")
    last = sql.struct("last_topic", "last_offset")
    is_there = sql.col("last_topic").isNotNull() & (place <= last)
    sums = (
        plan.join(sql.broadcast(lasts), "partition", "left")
        .groupBy("partition")
        .agg(
            sql.count("*").alias("count"),
            sql.count_if(is_there).alias("before"),
            sql.count_if(place == last).alias("last"),
            sql.count_if(sql.col("timestamp_ms").isNull() | (sql.col("timestamp_ms") <= 0)).alias("unwritable"),
            sql.min(sql.when(~is_there, sql.col("timestamp_ms"))).alias("oldest_ms"),
        )
    )
    return {
        row.partition: Planned(
            count=row["count"], before=row.before, has_last=row["last"] == 1, unwritable=row.unwritable, oldest_ms=row.oldest_ms
        )
        for row in sums.collect()
    }


def left_over(plan: DataFrame, lasts: DataFrame, tasks: Mapping[int, int]) -> DataFrame:
    """What the target does not have yet, in order; a partition of the target is the business of one task, by its number in `tasks`."""
    to_task = sql.create_map(*(sql.lit(one) for pair in tasks.items() for one in pair))
    is_left = sql.col("last_topic").isNull() | (sql.struct("topic", "offset") > sql.struct("last_topic", "last_offset"))
    rows = plan.join(sql.broadcast(lasts), "partition", "left").where(is_left).drop("last_topic", "last_offset")
    return rows.repartitionById(max(tasks.values()) + 1, to_task[sql.col("partition")]).sortWithinPartitions("partition", "topic", "offset")


def shared_out(left: Mapping[int, int], task_count: int) -> dict[int, int]:
    """A task for each partition that has records left, so that tasks have about as many records."""
    loads = [0] * min(task_count, len(left))
    tasks = {}
    for partition, count in sorted(left.items(), key=lambda one: (-one[1], one[0])):
        lightest = loads.index(min(loads))
        tasks[partition] = lightest
        loads[lightest] += count
    return tasks


def origins(records: DataFrame) -> DataFrame:
    """Of records of the target, as Spark's Kafka source gives them: `partition`, `at` (their offset), `source_topic`, `source_partition`
    and `source_offset`, null where they are no replayed ones."""
    ours = sql.filter("headers", lambda one: one["key"] == ORIGIN)
    origin = sql.try_element_at(ours, sql.lit(-1))["value"].cast("string")
    return records.select(
        "partition",
        sql.col("offset").alias("at"),
        _part(origin, 1).alias("source_topic"),
        _part(origin, 2).try_cast("int").alias("source_partition"),
        _part(origin, 3).try_cast("long").alias("source_offset"),
    )


def of_this_plan(found: DataFrame, plan: DataFrame) -> DataFrame:
    """Those of `origins` that the plan has for this partition."""
    named = plan.select(
        sql.col("topic").alias("source_topic"), sql.col("partition").alias("source_partition"), sql.col("offset").alias("source_offset")
    )
    in_place = found.where(sql.col("source_partition") == sql.col("partition"))
    return in_place.join(named, ["source_topic", "source_partition", "source_offset"], "left_semi")


def presences(ours: DataFrame) -> DataFrame:
    """By partition: how many records, the last of them, and `at`, where the first one is that does not come after the one before it."""
    place = sql.struct("source_topic", "source_offset")
    by_offset = Window.partitionBy("partition").orderBy("at")
    goes_back = place <= sql.lag(place).over(by_offset)
    return (
        ours.withColumn("back", sql.when(goes_back, sql.col("at")))
        .groupBy("partition")
        .agg(sql.count("*").alias("count"), sql.max(place).alias("last"), sql.min("back").alias("at"))
    )


def _part(origin: Column, number: int) -> Column:
    return sql.when(origin.rlike(_PARSED), sql.regexp_extract(origin, _PARSED, number))
