"""`sessions`: the flights of an aircraft, put together to its days: chains with no gap longer than `--gap` between two departures.

A day is written once, when the watermark is so far past its last departure that no flight can join it; until then its legs are in the
state, and one that comes late is put in its place. Exact when a driver was killed, as spark/jobs/flights.py says.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, StatefulProcessor, StatefulProcessorHandle, TimerValues
from pyspark.sql.types import ArrayType, IntegerType, LongType, StringType, StructField, StructType

from spark.flights import SCHEDULED, AircraftDay, Leg, chains, day_of, has_tailnum, is_closed
from spark.jobs.flights import FlightQuery, FlightSettings, Tally, run_flights
from spark.jobs.job import DONE, SparkJob, main
from spark.settings import Duration, setting
from spark.stopping import Stopping

LEG: Final = StructType(
    [
        StructField("departure_ms", LongType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("origin", StringType()),
        StructField("dest", StringType()),
        StructField("dep_delay", IntegerType()),
    ]
)
"""What the state keeps of a flight."""
DAY: Final = StructType(
    [
        StructField("tailnum", StringType()),
        StructField("start_ms", LongType()),
        StructField("end_ms", LongType()),
        StructField("legs", IntegerType()),
        StructField("cancelled", IntegerType()),
        StructField("airports", ArrayType(StringType())),
        StructField("total_delay", LongType()),
        StructField("out_of_order", IntegerType()),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionsSettings(FlightSettings):
    gap: Duration = setting(help="End an aircraft's day where it does not depart for longer than this.", default=Duration(8 * 3_600))

    def complaints(self) -> Iterator[str]:
        yield from FlightSettings.complaints(self)
        if round(self.gap * 1000) < 1:
            yield f"--gap={self.gap:g}s: expected a millisecond or more"


class AircraftDays(StatefulProcessor):
    """Of one aircraft: the legs of days that are not closed, and one timer, at which the first of them may be.

    A leg costs no look at those before it: the timer only ever is too early, and is set again when it went off.
    """

    def __init__(self, gap_ms: int) -> None:
        self._gap_ms = gap_ms

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._legs = handle.getListState("legs", LEG)

    def handleInputRows(  # noqa: N802
        self,
        key: Any,  # noqa: ARG002
        rows: Iterator[Any],
        timerValues: TimerValues,  # noqa: ARG002, N803
    ) -> Iterator[Row]:
        came = [Leg(*(row[name] for name in Leg._fields)) for row in rows]
        if came:
            self._legs.appendList([tuple(leg) for leg in came])
            self._wake_by(min(leg.departure_ms for leg in came) + self._gap_ms)
        return iter(())

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: ARG002, N803
    ) -> Iterator[Row]:
        watermark_ms = timerValues.getCurrentWatermarkInMs()
        found = chains((Leg(*leg) for leg in self._legs.get()), self._gap_ms)
        closed = [chain for chain in found if is_closed(chain, self._gap_ms, watermark_ms)]
        still_open = found[len(closed) :]
        if still_open:
            self._legs.put([tuple(leg) for chain in still_open for leg in chain])
            # The one that went off is taken away when this returns.
            self._handle.registerTimer(still_open[0][-1].departure_ms + self._gap_ms)
        else:
            self._legs.clear()
        return iter([Row(tailnum=key[0], **day_of(chain)._asdict()) for chain in closed])

    def _wake_by(self, due_ms: int) -> None:
        timers_ms = list(self._handle.listTimers())
        if any(timer_ms <= due_ms for timer_ms in timers_ms):
            return
        for timer_ms in timers_ms:
            self._handle.deleteTimer(timer_ms)
        self._handle.registerTimer(due_ms)


def aircraft_days(flights: DataFrame, gap: Duration, watermark: Duration) -> DataFrame:
    """A row for each day of each aircraft. Flights of which no aircraft is known are none of them.

    Rows rather than frames of pandas: an aircraft has a few flights in a batch, and their numbers stay whole where one is null.
    """
    legs = flights.where(has_tailnum()).withWatermark(SCHEDULED, watermark.for_spark)
    days = (
        legs.select(
            "tailnum",
            SCHEDULED,
            sql.unix_millis(SCHEDULED).alias("departure_ms"),
            *(sql.col(f"kafka_{name}").alias(name) for name in ("topic", "partition", "offset")),
            "origin",
            "dest",
            "dep_delay",
        )
        .groupBy("tailnum")
        .transformWithState(AircraftDays(round(gap * 1000)), DAY, "Append", "EventTime")
    )
    return days.select(
        "tailnum",
        sql.timestamp_millis("start_ms").alias("start"),
        sql.timestamp_millis("end_ms").alias("end"),
        *(name for name in AircraftDay._fields if not name.endswith("_ms")),
    )


def run(spark: SparkSession, settings: SessionsSettings, stopping: Stopping) -> int:
    query = FlightQuery(
        job=JOB.name,
        core=lambda flights: aircraft_days(flights, settings.gap, settings.watermark),
        written_as=f"days that a gap of more than {settings.gap.for_spark} ends",
        emission="append",
        write=settings.output.append,
    )
    sys.stdout.write(f"{summary(run_flights(spark, settings, stopping, query), settings)}\n")
    return DONE


def summary(tally: Tally, settings: SessionsSettings) -> str:
    parts = [f"sessions: {tally.records:,} records, {tally.written:,} days written to {settings.table}"]
    if tally.rejected:
        parts.append(f"{tally.rejected:,} records were no flights, and are in no day")
    if tally.without_tailnum:
        parts.append(f"{tally.without_tailnum:,} flights have no tailnum, and are in no day")
    if tally.state_rows:
        parts.append(
            f"{tally.state_rows:,} aircraft have days that are open and not in the table yet (the watermark is {tally.watermark}; later "
            "flights move it)"
        )
    if tally.late:
        parts.append(f"{tally.late:,} flights were too late and dropped (numRowsDroppedByWatermark); a longer --watermark keeps them")
    return "; ".join(parts)


JOB: Final = SparkJob(
    name="sessions",
    summary="Put the flights of an aircraft together to its days.",
    settings=SessionsSettings,
    run=run,
    is_stream=True,
)

if __name__ == "__main__":
    sys.exit(main(JOB))
