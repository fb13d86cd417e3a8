"""`pipeline`: what `forebay demo --pipeline` has Spark do. Flights go into a table as they come, and are summed up by carrier and hour
meanwhile, until SIGTERM says that no more come; then the rest is read, the table compared with the log, and the sums printed and drawn.
"""

import dataclasses
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from spark.drawing import HourlyDelay, draw_delays
from spark.jobs import audit, materialize, windows
from spark.jobs.audit import AuditSettings
from spark.jobs.job import JobSettings, SparkJob, main
from spark.jobs.materialize import MaterializeSettings
from spark.jobs.windows import WindowsSettings
from spark.settings import Duration, setting
from spark.stopping import Stopping
from spark.tables import Table

READING: Final = "reading"
"""The line that says that Spark is ready for what comes begins with it."""
CARRIERS: Final = {
    "9E": "Endeavor",
    "AA": "American",
    "AS": "Alaska",
    "B6": "JetBlue",
    "DL": "Delta",
    "EV": "ExpressJet",
    "F9": "Frontier",
    "FL": "AirTran",
    "HA": "Hawaiian",
    "MQ": "Envoy",
    "OO": "SkyWest",
    "UA": "United",
    "US": "US Airways",
    "VX": "Virgin America",
    "WN": "Southwest",
    "YV": "Mesa",
}
_NEW_YORK: Final = "America/New_York"


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSettings(JobSettings):
    topic: str = setting(help="Read flights from this topic.", metavar="TOPIC")
    folder: Path = setting(help="Keep tables and checkpoints in this folder.")
    picture: Path | None = setting(help="Draw the delays in this PNG file.", default=None)
    interval: Duration = setting(help="Write a batch this often.", default=Duration(2))

    def complaints(self) -> Iterator[str]:
        yield from JobSettings.complaints(self)
        if self.picture is not None and self.picture.suffix != ".png":
            yield f"--picture={self.picture}: expected a name that ends in .png"

    def of_flights(self) -> MaterializeSettings:
        given = self._shared() | self._places("flights")
        return MaterializeSettings(**given, topics=(self.topic,), interval=self.interval)

    def of_delays(self) -> WindowsSettings:
        given = self._shared() | self._places("delays")
        return WindowsSettings(**given, topics=(self.topic,), interval=self.interval)

    def of_audit(self) -> AuditSettings:
        return AuditSettings(**self._shared(), **self._places("flights"), topics=(self.topic,))

    def _shared(self) -> dict[str, Any]:
        return {one.name: getattr(self, one.name) for one in dataclasses.fields(JobSettings)}

    def _places(self, name: str) -> dict[str, Any]:
        return {"table": str(self.folder / name), "checkpoint": str(self.folder / f"{name}-checkpoint")}


def by_carrier(hourly: DataFrame) -> DataFrame:
    """Of the windows, a row for each carrier, the one with the most flights first. Means are weighted by flights that departed."""
    departed = sql.col("flights") - sql.col("cancelled")
    by_hour = (
        in_local_hours(hourly)
        .groupBy("carrier", "hour")
        .agg(
            sql.sum("flights").alias("flights"),
            sql.sum("cancelled").alias("cancelled"),
            sql.sum(sql.col("mean_delay") * departed).alias("minutes"),
            sql.max("max_delay").alias("max_delay"),
        )
    )
    left = sql.sum("flights") - sql.sum("cancelled")
    mean = sql.col("minutes") / sql.nullif(sql.col("flights") - sql.col("cancelled"), sql.lit(0))
    return (
        by_hour.withColumn("mean", mean)
        .groupBy("carrier")
        .agg(
            sql.sum("flights").alias("flights"),
            sql.sum("cancelled").alias("cancelled"),
            (sql.sum("minutes") / sql.nullif(left, sql.lit(0))).alias("mean_delay"),
            sql.max("max_delay").alias("max_delay"),
            sql.max_by("hour", "mean").alias("worst_hour"),
        )
        .orderBy(sql.desc("flights"))
    )


def by_carrier_and_hour(hourly: DataFrame) -> DataFrame:
    departed = sql.col("flights") - sql.col("cancelled")
    return (
        in_local_hours(hourly)
        .groupBy("carrier", "hour")
        .agg(
            sql.sum("flights").alias("flights"),
            (sql.sum(sql.col("mean_delay") * departed) / sql.nullif(sql.sum(departed), sql.lit(0))).alias("mean_delay"),
        )
    )


def in_local_hours(hourly: DataFrame) -> DataFrame:
    """The hour of the day as New York has it."""
    return hourly.withColumn("hour", sql.hour(sql.from_utc_timestamp("window_start", _NEW_YORK)))


def run(spark: SparkSession, settings: PipelineSettings, stopping: Stopping) -> int:
    flights, delays = settings.of_flights(), settings.of_delays()

    def flow(run_job: Callable[[Stopping], int]) -> int:
        try:
            return run_job(stopping)
        finally:
            # One that cannot go on ends the other.
            stopping.ask()

    with ThreadPoolExecutor(2, thread_name_prefix="flow") as pool:
        flowing = [
            pool.submit(flow, lambda asked: materialize.run(spark, flights, asked)),
            pool.submit(flow, lambda asked: windows.run(spark, delays, asked)),
        ]
        sys.stdout.write(f"{READING} {settings.topic} into {settings.folder}, a batch every {settings.interval:g} s\n")
        sys.stdout.flush()
        failed = [error for error in (one.exception() for one in flowing) if error is not None]
    if failed:
        raise failed[0]
    materialize.run(spark, dataclasses.replace(flights, interval=None), Stopping())
    windows.run(spark, dataclasses.replace(delays, interval=None), Stopping())
    _show(spark, settings)
    return audit.run(spark, settings.of_audit(), Stopping())


def _show(spark: SparkSession, settings: PipelineSettings) -> None:
    hourly = Table(path=settings.of_delays().table).read(spark).persist()
    try:
        sys.stdout.write("\n".join(["", *lines(by_carrier(hourly)), ""]) + "\n")
        if settings.picture is not None:
            found = [
                HourlyDelay(carrier=CARRIERS.get(row.carrier, row.carrier), hour=row.hour, flights=row.flights, mean_delay=row.mean_delay)
                for row in by_carrier_and_hour(hourly).collect()
            ]
            draw_delays(found, settings.picture)
            sys.stdout.write(f"drawn in {settings.picture}\n")
    finally:
        hourly.unpersist()


def lines(carriers: DataFrame) -> list[str]:
    """The delays table, for people."""
    header = f"{'carrier':<15} {'flights':>8} {'cancelled':>10} {'mean delay':>11} {'longest':>9} {'worst hour':>11}"
    return [header] + [
        f"{CARRIERS.get(row.carrier, row.carrier):<15} {row.flights:>8,} {row.cancelled:>10,} {_minutes(row.mean_delay):>11} "
        f"{_minutes(row.max_delay):>9} {'' if row.worst_hour is None else f'{row.worst_hour}:00':>11}"
        for row in carriers.collect()
    ]


def _minutes(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f} min"


JOB: Final = SparkJob(
    name="pipeline",
    summary="Flights into a table and into sums of delays, until SIGTERM; then an audit, and the sums printed and drawn.",
    settings=PipelineSettings,
    run=run,
    is_stream=True,
)

if __name__ == "__main__":
    sys.exit(main(JOB))
