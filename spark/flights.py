"""Flights as `forebay demo` writes them, and the days of aircraft that they make.

Functions of frames and values, with no session and no I/O. A flight is a JSON object, with the scheduled departure as the record's
timestamp. A day is a chain of legs with no gap longer than a limit between two scheduled departures. In which order the legs are given
makes no difference: what the log says about the order is in the legs.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from spark.decoding import Decoding, typed_rows

FLIGHT: Final = StructType(
    [
        StructField("carrier", StringType(), nullable=False),
        StructField("tailnum", StringType()),
        StructField("origin", StringType(), nullable=False),
        StructField("dest", StringType(), nullable=False),
        StructField("dep_delay", IntegerType()),
    ]
)
"""What the jobs need of it. A flight with no departure delay did not depart."""
SCHEDULED: Final = "scheduled"
"""The event time."""
SEEN: Final = "flights"
"""What Spark calls the counts of a batch: `records`, and of them `rejected` and `without_tailnum`."""

_DECODING: Final = Decoding(layout="json", schema=FLIGHT)


def observed_flights(records: DataFrame) -> DataFrame:
    """Of records that are flights; all of them are counted, under `SEEN`."""
    decoded = _DECODING.decoded(records)
    is_flight = sql.col("error").isNull()
    counted = decoded.observe(
        SEEN,
        sql.count(sql.lit(1)).alias("records"),
        sql.count_if(~is_flight).alias("rejected"),
        sql.count_if(is_flight & ~has_tailnum("decoded.tailnum")).alias("without_tailnum"),
    )
    return typed_rows(counted).withColumnRenamed("kafka_timestamp", SCHEDULED)


def has_tailnum(column: str = "tailnum") -> Column:
    return sql.coalesce(sql.length(column) > 0, sql.lit(False))


class Leg(NamedTuple):
    """One flight of an aircraft, and where its record is. `dep_delay` in minutes; None: it was cancelled."""

    departure_ms: int
    topic: str
    partition: int
    offset: int
    origin: str
    dest: str
    dep_delay: int | None


class AircraftDay(NamedTuple):
    start_ms: int
    end_ms: int
    """The last departure."""
    legs: int
    cancelled: int
    airports: list[str]
    total_delay: int
    out_of_order: int


def chains(legs: Iterable[Leg], gap_ms: int) -> list[list[Leg]]:
    """Each in the order of departures, the earliest chain first."""
    found: list[list[Leg]] = []
    for leg in sorted(legs, key=lambda leg: leg[:4]):
        if found and leg.departure_ms - found[-1][-1].departure_ms <= gap_ms:
            found[-1].append(leg)
        else:
            found.append([leg])
    return found


def is_closed(chain: Sequence[Leg], gap_ms: int, watermark_ms: int) -> bool:
    """Whether no leg can join it any more: those at the watermark or before are too late."""
    return chain[-1].departure_ms + gap_ms <= watermark_ms


def day_of(chain: Sequence[Leg]) -> AircraftDay:
    delays = [leg.dep_delay for leg in chain if leg.dep_delay is not None]
    return AircraftDay(
        start_ms=chain[0].departure_ms,
        end_ms=chain[-1].departure_ms,
        legs=len(chain),
        cancelled=len(chain) - len(delays),
        airports=_airports(chain),
        total_delay=sum(delays),
        out_of_order=_out_of_order(chain),
    )


def _airports(chain: Sequence[Leg]) -> list[str]:
    """Where it was, one after the other. Where it departs from where it has arrived, the airport is there once."""
    found: list[str] = []
    for leg in chain:
        if not found or found[-1] != leg.origin:
            found.append(leg.origin)
        found.append(leg.dest)
    return found


def _out_of_order(chain: Iterable[Leg]) -> int:
    """Legs that a partition has after one that departs later. Partitions have no order among each other."""
    latest: dict[tuple[str, int], int] = {}
    found = 0
    for leg in sorted(chain, key=lambda leg: (leg.topic, leg.partition, leg.offset)):
        where = (leg.topic, leg.partition)
        found += leg.departure_ms < latest.get(where, leg.departure_ms)
        latest[where] = max(leg.departure_ms, latest.get(where, leg.departure_ms))
    return found
