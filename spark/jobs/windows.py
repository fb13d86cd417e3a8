"""`windows`: how late flights departed, by carrier and hour of the scheduled departure, which is the event time.

    update    the table has each window as far as it is known, and is brought up to date by every batch
    append    the table has each window once, when the watermark has passed its end; those that are open are in the state alone

Both ways the table is exact when a driver was killed: a batch is appended once, or merged again into the rows that it has made already.
To a topic (`--to-topic`) it is written at least once.
"""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from spark.errors import JobFailed
from spark.flights import SCHEDULED
from spark.jobs.flights import FlightQuery, FlightSettings, Tally, run_flights
from spark.jobs.job import DONE, SparkJob, main
from spark.kafka_admin import KafkaCluster, kafka_admin
from spark.settings import Duration, setting
from spark.stopping import Stopping
from spark.tables import Table, TableBatch
from spark.vocabulary import Emission

KEY: Final = ("carrier", "window_start")
_VIEW: Final = "forebay_windows"


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowsSettings(FlightSettings):
    window: Duration = setting(help="Sum up as much time as this.", default=Duration(3_600))
    mode: Emission = setting(
        help="Write a window with every batch that changes it, or once, when the watermark has passed its end.",
        default="update",
    )
    to_topic: str = setting(
        help="Write the windows to this topic, too, at least once: key `CARRIER START`, value JSON.", metavar="TOPIC", default=""
    )

    def complaints(self) -> Iterator[str]:
        yield from FlightSettings.complaints(self)
        if round(self.window * 1000) < 1:
            yield f"--window={self.window:g}s: expected a millisecond or more"
        if self.to_topic and (self.to_topic in self.topics or (self.pattern and re.search(self.pattern, self.to_topic))):
            yield f"--to-topic={self.to_topic}: expected a topic that the job does not read"


def delays(flights: DataFrame, window: Duration, watermark: Duration) -> DataFrame:
    """A row for each carrier and window in which it has flights. Minutes; cancelled flights have no delay."""
    hours = flights.withWatermark(SCHEDULED, watermark.for_spark).groupBy("carrier", sql.window(SCHEDULED, window.for_spark))
    return hours.agg(
        sql.count(sql.lit(1)).alias("flights"),
        sql.count_if(sql.col("dep_delay").isNull()).alias("cancelled"),
        sql.avg("dep_delay").alias("mean_delay"),
        sql.max("dep_delay").alias("max_delay"),
    ).select(
        "carrier",
        sql.col("window.start").alias("window_start"),
        sql.col("window.end").alias("window_end"),
        "flights",
        "cancelled",
        "mean_delay",
        "max_delay",
    )


def as_records(windows: DataFrame) -> DataFrame:
    """For Spark's Kafka sink."""
    start = sql.date_format("window_start", "yyyy-MM-dd'T'HH:mm:ss'Z'")
    fields = sql.struct(*windows.columns)
    return windows.select(
        sql.concat_ws(" ", "carrier", start).alias("key"),
        sql.to_json(fields, {"ignoreNullFields": "false", "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'"}).alias("value"),
    )


def merge(windows: DataFrame, table: Table) -> None:
    """A window is in the table as the last batch that changed it has it, however often that batch is merged."""
    same = " AND ".join(f"known.{name} = now.{name}" for name in KEY)
    session = windows.sparkSession
    windows.createOrReplaceTempView(_VIEW)
    clauses = [
        f"MERGE INTO {table.in_sql(session)} AS known USING {_VIEW} AS now ON {same}",
        "WHEN MATCHED THEN UPDATE SET *",
        "WHEN NOT MATCHED THEN INSERT *",
    ]
    session.sql(" ".join(clauses))


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSink:
    table: Table
    mode: Emission
    cluster: KafkaCluster
    to_topic: str

    def write(self, windows: DataFrame, batch: TableBatch) -> None:
        if self.mode == "update":
            merge(windows, self.table)
        else:
            self.table.append(windows, batch)
        if self.to_topic:
            as_records(windows).write.format("kafka").options(**self.cluster.for_spark, topic=self.to_topic).save()


def run(spark: SparkSession, settings: WindowsSettings, stopping: Stopping) -> int:
    if settings.to_topic:
        with kafka_admin(spark, settings.cluster) as admin:
            if not admin.topics([settings.to_topic]):
                raise JobFailed(f"There is no topic {settings.to_topic} to write to. Create it, or name another.")
    sink = WindowSink(table=settings.output, mode=settings.mode, cluster=settings.cluster, to_topic=settings.to_topic)
    query = FlightQuery(
        job=JOB.name,
        core=lambda flights: delays(flights, settings.window, settings.watermark),
        written_as=f"{settings.mode} of windows of {settings.window.for_spark}",
        emission=settings.mode,
        write=sink.write,
    )
    sys.stdout.write(f"{summary(run_flights(spark, settings, stopping, query), settings)}\n")
    return DONE


def summary(tally: Tally, settings: WindowsSettings) -> str:
    """Spark drops what is too late after it has summed up a batch: what it counts then are windows, with a flight or more each."""
    written = "written or brought up to date" if settings.mode == "update" else "written"
    parts = [f"windows: {tally.records:,} records, {tally.written:,} windows {written} in {settings.table}"]
    if tally.rejected:
        parts.append(f"{tally.rejected:,} records were no flights, and are in no window")
    if tally.state_rows and settings.mode == "append":
        parts.append(
            f"{tally.state_rows:,} windows are open and not in the table yet (the watermark is {tally.watermark}; later flights move it)"
        )
    if tally.late:
        parts.append(
            f"{tally.late:,} sums of late flights were dropped (numRowsDroppedByWatermark), each of one flight or more of a carrier and "
            "window; a longer --watermark keeps them"
        )
    return "; ".join(parts)


JOB: Final = SparkJob(
    name="windows",
    summary="Sum delays up by carrier and hour, as event time has it.",
    settings=WindowsSettings,
    run=run,
    is_stream=True,
)

if __name__ == "__main__":
    sys.exit(main(JOB))
