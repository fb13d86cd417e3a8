"""Records of a keyed topic as changes of a table that has the last value of each key. Functions of frames, with no session and no I/O.

Of two records of a key in one partition, the one with the greater offset is the later. Of two in different partitions, as there are after
partitions were added, it is the one with the greater timestamp, and of equal ones the one in the partition with the greater number.
"""

from collections.abc import Iterable
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.types import StructType

from spark.decoding import Decoding
from spark.vocabulary import KeyFormat

KEY: Final = "kafka_key"
WHERE: Final = ("kafka_partition", "kafka_offset", "kafka_timestamp")
"""Of the record that a row came from."""
DELETES: Final = "forebay_deletes"
"""Whether a change takes the row of its key away."""

_ERROR: Final = "error"
_DECODED: Final = "decoded"
_ROW: Final = "forebay_row"


def judged(records: DataFrame, decoding: Decoding, key_format: KeyFormat) -> DataFrame:
    """Raw rows with `error`, null for those that are changes, and of a typed layout `decoded`. A record without a value is no error."""
    decoded = decoding.decoded(records)
    of_value = sql.col(_ERROR) if decoding.layout != "raw" else sql.lit(None).cast("string")
    of_key = sql.when(sql.col("key").isNull(), "there is no key")
    if key_format == "string":
        of_key = of_key.when(~sql.is_valid_utf8(sql.col("key").cast("string")), "the key is not UTF-8")
    return decoded.withColumn(_ERROR, sql.coalesce(of_key, sql.when(sql.col("value").isNotNull(), of_value)))


def changes(records: DataFrame, decoding: Decoding, key_format: KeyFormat) -> DataFrame:
    """Of what `judged` gives: for each key its last record, as the row that it makes, with `DELETES`."""
    fields = [sql.col("value"), sql.col("headers")] if decoding.layout == "raw" else [sql.col(f"{_DECODED}.*")]
    key = sql.col("key").cast("string") if key_format == "string" else sql.col("key")
    rows = records.where(sql.col(_ERROR).isNull()).select(
        *fields,
        key.alias(KEY),
        *(sql.col(name.removeprefix("kafka_")).alias(name) for name in WHERE),
        sql.col("value").isNull().alias(DELETES),
    )
    whole = sql.struct(*(sql.col(_quoted(name)) for name in rows.columns))
    of_each_partition = rows.groupBy(KEY, "kafka_partition").agg(sql.max_by(whole, "kafka_offset").alias(_ROW))
    later = sql.struct(sql.col(f"{_ROW}.kafka_timestamp"), sql.col(f"{_ROW}.kafka_partition"))
    return of_each_partition.groupBy(KEY).agg(sql.max_by(_ROW, later).alias(_ROW)).select(f"{_ROW}.*")


def columns_of(changed: DataFrame) -> StructType:
    """Of the table."""
    return changed.drop(DELETES).schema


def merge_of(table: str, source: str, columns: Iterable[str], *, gone: Iterable[str] = ()) -> str:
    """The statement that makes `source`, a view of `changes`, part of `table`. `gone`: columns that only the table has still."""
    names = [_quoted(name) for name in columns]
    sets = [*(f"t.{name} = s.{name}" for name in names), *(f"t.{_quoted(name)} = NULL" for name in gone)]
    is_later = (
        "CASE WHEN t.kafka_partition = s.kafka_partition THEN s.kafka_offset > t.kafka_offset "
        "ELSE struct(s.kafka_timestamp, s.kafka_partition) > struct(t.kafka_timestamp, t.kafka_partition) END"
    )
    inserted = ", ".join(f"s.{name}" for name in names)
    clauses = [
        f"MERGE INTO {table} AS t",
        f"USING {source} AS s",
        f"ON t.{KEY} = s.{KEY}",
        f"WHEN MATCHED AND {is_later} AND s.{DELETES} THEN DELETE",
        f"WHEN MATCHED AND {is_later} THEN UPDATE SET {', '.join(sets)}",
        f"WHEN NOT MATCHED AND NOT s.{DELETES} THEN INSERT ({', '.join(names)}) VALUES ({inserted})",  # noqa: S608  # names of columns, quoted
    ]
    return " ".join(clauses)


def clashes(schema: StructType) -> list[str]:
    """Fields of the values that have the name of a column which the job writes itself."""
    own = {KEY, *WHERE, DELETES}
    return [one.name for one in schema.fields if one.name.lower() in own]


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
