"""`audit`: a table against the log it was made from. Per partition, the table must have each record of [start, committed) once, as it is.

    missing     the log has the record, the table has not
    invented    the table has a record that the log has not
    duplicate   the table has the record more than once
    different   key, value, headers or timestamp are not those of the log (of a typed table: key or timestamp)
    gap         neither has the offset, and the topic is not one whose records are compacted away

Rows from before the log's start, which retention took, and rows of a batch that is not committed yet, are counted and are no difference.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sql

from spark.checkpoints import committed_offsets, noted_origin, planned_offsets
from spark.decoding import raw_rows
from spark.errors import JobFailed
from spark.files import qualified
from spark.jobs.job import DONE, FAILED, JobSettings, SparkJob, main
from spark.kafka_admin import KafkaAdmin, KafkaPartition, KafkaTopic, kafka_admin
from spark.settings import setting
from spark.stopping import Stopping
from spark.tables import Table
from spark.topics import TopicSource, partitions_of
from spark.vocabulary import Gaps, TableFormat, TableStart

WHERE: Final = ["topic", "partition", "offset"]
KINDS: Final = ("missing", "invented", "duplicate", "different")
_FINE: Final = ("same", "expired", "uncommitted")
_SHOWN: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSettings(JobSettings):
    table: str = setting(help="Check the table in this folder.", metavar="PATH")
    format: TableFormat = setting(help="It is this kind of table.", default="delta")
    topics: tuple[str, ...] = setting(help="Compare with these topics. [default: those in the table]", metavar="TOPIC,…", default=())
    dead_letters: str = setting(
        help="Count what is in the table in this folder, too. [default: the table's, with -dead-letters, if there is one]",
        metavar="PATH",
        default="",
    )
    checkpoint: str = setting(
        help="Compare up to the last batch that this checkpoint knows as done. [default: up to the last offset in the table]",
        metavar="PATH",
        default="",
    )
    starting: TableStart = setting(help="Compare from the log's start on, or from the first offset in the table.", default="log")
    gaps: Gaps = setting(
        help="Offsets that not even the log has: fine where the topic is compacted (auto), anywhere, as with transactions, or nowhere.",
        default="auto",
    )
    differences: str = setting(help="Write the differences to a new table in this folder.", metavar="PATH", default="")

    @property
    def audited(self) -> Table:
        return Table(path=self.table, format=self.format)

    @property
    def rejected(self) -> Table:
        return Table(path=self.dead_letters or f"{self.table.rstrip('/')}-dead-letters", format=self.format)


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """What was found in a partition. `records` are those of the log in [start, end), `same` those the table has once, as they are."""

    partition: KafkaPartition
    start: int
    end: int
    records: int
    same: int
    counts: Mapping[str, int]
    """By kind of difference."""
    gap: int
    """Offsets that nobody has and nothing explains."""
    expired: int
    uncommitted: int

    @property
    def is_clean(self) -> bool:
        return not self.gap and not any(self.counts.values())


def marked(rows: DataFrame, *, is_typed: bool) -> DataFrame:
    """Where each row is, and a mark of what it is. A null and nothing are not the same."""
    known = [_mark("key"), sql.col("timestamp").cast("double")]
    if not is_typed:
        headers = sql.transform("headers", lambda one: sql.struct(one["key"], one["value"].isNull(), one["value"]))
        known += [_mark("value"), sql.size("headers"), headers, sql.col("timestamp_type")]
    return rows.select(*WHERE, sql.xxhash64(*known).alias("mark"))


def _mark(name: str) -> Column:
    return sql.struct(sql.col(name).isNull(), sql.col(name))


def typed_as_raw(rows: DataFrame) -> DataFrame:
    """What an audit reads of a typed table."""
    return rows.select(*(sql.col(f"kafka_{name}").alias(name) for name in (*WHERE, "key", "timestamp")))


def compared(log: DataFrame, table: DataFrame, ranges: DataFrame) -> DataFrame:
    """Every offset that either has, with its `kind`. `log` and `table` are `marked`.

    `ranges` has topic, partition, `start` and `end` of what is compared, `planned`, before which a batch under way may have written, and
    `may_be_gone`: whether the log may have lost records in between, as a compacted topic does.
    """
    rows = table.groupBy(*WHERE).agg(sql.count("*").alias("rows"), sql.min("mark").alias("least"), sql.max("mark").alias("most"))
    joined = log.join(rows, WHERE, "full_outer").join(sql.broadcast(ranges), ["topic", "partition"], "left")
    kind = (
        sql.when(sql.col("rows").isNull(), "missing")
        .when(sql.col("rows") > 1, "duplicate")
        .when(sql.col("mark").isNotNull() & (sql.col("mark") == sql.col("least")), "same")
        .when(sql.col("mark").isNotNull(), "different")
        .when(sql.col("offset") < sql.col("start"), "expired")
        .when((sql.col("offset") >= sql.col("end")) & (sql.col("offset") < sql.col("planned")), "uncommitted")
        .when((sql.col("offset") < sql.col("end")) & sql.col("may_be_gone"), "expired")
        .otherwise("invented")
    )
    return joined.select(*WHERE, "rows", kind.alias("kind"), sql.col("mark").isNotNull().alias("is_in_log"))


def summed(kinds: DataFrame) -> dict[KafkaPartition, dict[str, int]]:
    """How many there are of each kind in a partition, and `log`: how many the log has."""
    counted = kinds.groupBy("topic", "partition").agg(
        sql.count_if("is_in_log").alias("log"),
        *(sql.count_if(sql.col("kind") == kind).alias(kind) for kind in (*KINDS, *_FINE)),
    )
    return {
        KafkaPartition(row.topic, row.partition): {name: int(row[name]) for name in ("log", *KINDS, *_FINE)} for row in counted.collect()
    }


def judged(
    starts: Mapping[KafkaPartition, int],
    ends: Mapping[KafkaPartition, int],
    counts: Mapping[KafkaPartition, Mapping[str, int]],
    *,
    explains_gaps: Mapping[str, bool],
) -> list[Audited]:
    """`explains_gaps`: whether a topic may have offsets that have no record any more."""
    nothing = dict.fromkeys(("log", *KINDS, *_FINE), 0)
    found = []
    for partition in sorted({*ends, *counts}):
        count = counts.get(partition, nothing)
        start, end = starts.get(partition, 0), ends.get(partition, 0)
        holes = max(0, end - start) - count["log"]
        found.append(
            Audited(
                partition=partition,
                start=start,
                end=end,
                records=count["log"],
                same=count["same"],
                counts={kind: count[kind] for kind in KINDS},
                gap=0 if explains_gaps.get(partition.topic, False) else holes,
                expired=count["expired"],
                uncommitted=count["uncommitted"],
            )
        )
    return found


def verdict(found: list[Audited]) -> str:
    """The line everything is about."""
    same, records = sum(one.same for one in found), sum(one.records for one in found)
    line = f"audit: {same} of {records} records"
    kinds = {kind: sum(one.counts[kind] for one in found) for kind in KINDS} | {"gap": sum(one.gap for one in found)}
    aside = {"expired": sum(one.expired for one in found), "uncommitted": sum(one.uncommitted for one in found)}
    wrong = [f"{count} {kind}" for kind, count in kinds.items() if count]
    beside = "".join(f"; {count} {kind}" for kind, count in aside.items() if count)
    return f"{line}, {', '.join(wrong)}{beside}" if wrong else f"{line}, no gap, no duplicate{beside}"


def lines(found: list[Audited]) -> list[str]:
    """A table of the partitions, for people."""
    header = ("partition", "start", "end", "records", "same", *KINDS, "gap")
    rows = [
        (str(one.partition), *map(str, (one.start, one.end, one.records, one.same, *(one.counts[kind] for kind in KINDS), one.gap)))
        for one in found
    ]
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    return ["  ".join([row[0].ljust(widths[0]), *(map(str.rjust, row[1:], widths[1:]))]) for row in (header, *rows)]


def run(spark: SparkSession, settings: AuditSettings, _: Stopping) -> int:
    # Before the table: what is done by now is in what is read of it.
    committed = _committed(spark, settings)
    rows, is_typed = _rows(spark, settings)
    table = marked(rows, is_typed=is_typed).persist()
    try:
        with kafka_admin(spark, settings.cluster) as admin:
            return _audit(spark, settings, admin, table, committed, is_typed=is_typed)
    finally:
        table.unpersist()


def _audit(
    spark: SparkSession,
    settings: AuditSettings,
    admin: KafkaAdmin,
    table: DataFrame,
    committed: Mapping[KafkaPartition, int] | None,
    *,
    is_typed: bool,
) -> int:
    if settings.topics:
        table = table.where(sql.col("topic").isin(list(settings.topics)))
    seen = {
        KafkaPartition(row.topic, row.partition): (int(row.first), int(row.last))
        for row in table.groupBy("topic", "partition").agg(sql.min("offset").alias("first"), sql.max("offset").alias("last")).collect()
    }
    names = settings.topics or tuple(sorted({one.topic for one in (*seen, *(committed or ()))}))
    topics = admin.topics(names)
    if absent := [name for name in names if name not in topics]:
        raise JobFailed(f"There is no topic {absent[0]} at {settings.bootstrap_servers}, which the table has rows of.")
    if not topics:
        raise JobFailed(f"The table {settings.table} is empty. Name the topics that it was made from: --topics.")
    if settings.checkpoint:
        check_origin(spark, settings, admin, topics)
    partitions = partitions_of(topics)
    log_starts, log_ends = admin.starts(partitions), admin.ends(partitions)
    ends = _ends(settings, partitions, seen, committed, log_ends)
    planned = planned_offsets(spark, settings.checkpoint) if settings.checkpoint else {}
    starts = log_starts
    if settings.starting == "table":
        starts = {one: max(start, seen[one][0]) if one in seen else start for one, start in starts.items()}
    starts = {one: min(start, ends[one]) for one, start in starts.items()}
    source = TopicSource(cluster=settings.cluster, topics=tuple(topics))
    asked = {one: start for one, start in starts.items() if start < ends[one]}
    records = raw_rows(source.between(spark, asked, {one: ends[one] for one in asked})) if asked else None
    log = marked(records, is_typed=is_typed) if records is not None else table.limit(0)
    may_be_gone = {name: settings.gaps == "allowed" or (settings.gaps == "auto" and admin.is_compacted(name)) for name in topics}
    ranges = spark.createDataFrame(
        [(one.topic, one.partition, starts[one], ends[one], planned.get(one, 0), may_be_gone[one.topic]) for one in partitions],
        "topic string, partition int, start long, end long, planned long, may_be_gone boolean",
    )
    kinds = compared(log, table, ranges).persist()
    try:
        found = judged(starts, ends, summed(kinds), explains_gaps=may_be_gone)
        different = kinds.where(sql.col("kind").isin(list(KINDS))).select(*WHERE, "kind", "rows")
        _report(settings, found, different)
    finally:
        kinds.unpersist()
    return DONE if all(one.is_clean for one in found) else FAILED


def _committed(spark: SparkSession, settings: AuditSettings) -> Mapping[KafkaPartition, int] | None:
    if not settings.checkpoint:
        return None
    committed = committed_offsets(spark, settings.checkpoint)
    if committed is None:
        raise JobFailed(f"The checkpoint {settings.checkpoint} has no batch that is done: there is nothing to compare yet.")
    return committed[1]


def check_origin(spark: SparkSession, settings: AuditSettings, admin: KafkaAdmin, topics: Mapping[str, KafkaTopic]) -> None:
    """Raise `JobFailed` if the checkpoint is not that of the table, of this cluster, and of topics that are still the same."""
    origin = noted_origin(spark, settings.checkpoint)
    output = f"{settings.format}:{qualified(spark, settings.table)},"
    if origin is None:
        raise JobFailed(f"The checkpoint {settings.checkpoint} was not made by a job: it does not say which table it belongs to.")
    if not origin.output.startswith(output):
        raise JobFailed(f"The checkpoint {settings.checkpoint} belongs to {origin.output}, and not to {settings.format}:{settings.table}.")
    if origin.cluster_id != (here := admin.cluster_id()):
        raise JobFailed(f"The checkpoint {settings.checkpoint} is of the cluster {origin.cluster_id}, and this is {here}.")
    for name, topic in topics.items():
        if origin.topics.get(name, topic.id) != topic.id:
            raise JobFailed(f"The topic {name} was deleted and made again: the table has records of the one before.")


def _ends(
    settings: AuditSettings,
    partitions: list[KafkaPartition],
    seen: Mapping[KafkaPartition, tuple[int, int]],
    committed: Mapping[KafkaPartition, int] | None,
    log_ends: Mapping[KafkaPartition, int],
) -> dict[KafkaPartition, int]:
    """Of each partition, the offset before which the table has to be complete. Without a checkpoint a partition that the table has no row
    of is missing as a whole: nothing says that it was not read yet."""
    if committed is None:
        return {one: min(seen[one][1] + 1, log_ends[one]) if one in seen else log_ends[one] for one in partitions}
    if beyond := [one for one in partitions if committed.get(one, 0) > log_ends[one]]:
        one = beyond[0]
        raise JobFailed(
            f"{settings.checkpoint} has {one} as read up to {committed[one]}, and it ends at {log_ends[one]}: it is another topic."
        )
    return {one: committed.get(one, 0) for one in partitions}


def _rows(spark: SparkSession, settings: AuditSettings) -> tuple[DataFrame, bool]:
    """Of the table and of its dead letters, and whether it is a typed one. Raise `JobFailed` if it is no table of `materialize`."""
    rows = settings.audited.read(spark)
    is_typed = "kafka_offset" in rows.columns
    if not is_typed and not {*WHERE, "key", "value", "headers", "timestamp", "timestamp_type"} <= set(rows.columns):
        raise JobFailed(f"The table {settings.table} has no offsets: `materialize` did not write it. It has {', '.join(rows.columns)}.")
    known = typed_as_raw(rows) if is_typed else rows
    if settings.rejected.is_there(spark):
        known = known.unionByName(settings.rejected.read(spark).select(*known.columns))
    elif settings.dead_letters:
        raise JobFailed(f"There is no {settings.format} table in {settings.dead_letters}.")
    return known, is_typed


def _report(settings: AuditSettings, found: list[Audited], different: DataFrame) -> None:
    out = sys.stdout
    out.write("\n".join([*lines(found), ""]))
    if not all(one.is_clean for one in found):
        for row in different.orderBy(*WHERE).limit(_SHOWN).collect():
            out.write(f"{row.topic}-{row.partition} offset {row.offset}: {row.kind}{f', {row.rows} rows' if (row.rows or 0) > 1 else ''}\n")
    if settings.differences:
        Table(path=settings.differences, format=settings.format).write_new(different)
        out.write(f"differences are in {settings.differences}\n")
    out.write(f"{verdict(found)}\n")


JOB: Final = SparkJob(
    name="audit", summary="Compare a table with the log, record by record. Ends with 1 if they differ.", settings=AuditSettings, run=run
)

if __name__ == "__main__":
    sys.exit(main(JOB))
