"""Flights as `forebay demo` writes them: a JSON object each, with the scheduled departure as the record's timestamp.

Functions of frames, with no session and no I/O.
"""

from typing import Final

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
