"""Tables that jobs write to and read from: Delta Lake and Parquet.

A batch is appended once, however often it is written: Delta keeps the number of a writer's last batch beside the rows; in Parquet a batch
is a folder, which is written over.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from spark.errors import JobFailed
from spark.files import has_data, names_in, qualified
from spark.vocabulary import TableFormat

WRITER_COLUMN: Final = "written_by"
"""In Parquet only: a folder for each writer, in it one for each batch."""
BATCH_COLUMN: Final = "batch"
_VERSION: Final = re.compile(r"\d{20}(\.checkpoint.*)?\.(json|parquet)")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableBatch:
    """One batch of the writer that a checkpoint names."""

    writer: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    path: str
    format: TableFormat = "delta"
    partition_by: tuple[str, ...] = ()

    def is_there(self, spark: SparkSession) -> bool:
        if self.format == "delta":
            # A writer that is killed as it makes the table leaves a log without a version.
            return any(_VERSION.fullmatch(name) for name in names_in(spark, f"{self.path}/_delta_log"))
        # A writer that is killed at its first batch leaves folders without a file.
        return has_data(spark, self.path, ".parquet")

    def is_gone(self, spark: SparkSession) -> bool:
        """Whether there is nothing of it, not even what a batch without rows leaves."""
        return not self.is_there(spark) and (self.format == "delta" or not names_in(spark, self.path))

    def schema(self, spark: SparkSession) -> StructType | None:
        return self.read(spark).schema if self.is_there(spark) else None

    def read(self, spark: SparkSession) -> DataFrame:
        """Raise `JobFailed` if there is none."""
        try:
            found = spark.read.format(self.format).options(**({"mergeSchema": "true"} if self.format == "parquet" else {})).load(self.path)
        except AnalysisException as error:
            raise JobFailed(f"There is no {self.format} table in {self.path}: {_first_line(error)}") from error
        return found.drop(WRITER_COLUMN, BATCH_COLUMN) if self.format == "parquet" else found

    def read_as_it_is(self, spark: SparkSession) -> DataFrame:
        """The rows of now, however often they are read and whatever is written meanwhile. Raise `JobFailed` if there is no table."""
        if self.format == "parquet":
            return self.read(spark)  # its files are listed once
        self.read(spark)
        version = spark.sql(f"DESCRIBE HISTORY {self.in_sql(spark)} LIMIT 1").collect()[0]["version"]
        return spark.read.format(self.format).option("versionAsOf", version).load(self.path)

    def append(self, rows: DataFrame, batch: TableBatch) -> None:
        """All of them or none, and once, however often this is called for the same batch. New columns are added."""
        writer = rows.write.format(self.format)
        if self.format == "parquet":
            folder = f"{self.path}/{WRITER_COLUMN}={batch.writer}/{BATCH_COLUMN}={batch.number}"
            writer.partitionBy(*self.partition_by).mode("overwrite").save(folder)
            return
        if self.partition_by:
            writer = writer.partitionBy(*self.partition_by)
        once = {"txnAppId": batch.writer, "txnVersion": str(batch.number), "mergeSchema": "true"}
        writer.options(**once).mode("append").save(self.path)

    def write_new(self, rows: DataFrame) -> None:
        """Raise `JobFailed` if one is there."""
        if self.is_there(rows.sparkSession):
            raise JobFailed(f"There is a table in {self.path} already. Name a folder that has none.")
        rows.write.format(self.format).mode("error").save(self.path)

    def create(self, spark: SparkSession, schema: StructType) -> None:
        """Empty, so that it can be read before there is a row; one that is there stays as it is. Parquet has no such thing."""
        if self.format == "parquet" or self.is_there(spark):
            return
        empty = spark.createDataFrame([], schema)
        try:
            writer = empty.write.format(self.format)
            (writer.partitionBy(*self.partition_by) if self.partition_by else writer).mode("ignore").save(self.path)
        except Py4JJavaError as error:
            raise JobFailed(f"The table {self.path} cannot be made: {error.java_exception.getMessage()}") from error

    def in_sql(self, spark: SparkSession) -> str:
        """Delta takes no path for a table that is not a whole one."""
        return f"{self.format}.`{qualified(spark, self.path)}`"


def changed_types(before: StructType, now: StructType) -> Iterable[str]:
    """What the table cannot take: columns whose type is another one. Columns that are new, or gone, are none."""
    known = {one.name.lower(): one for one in before.fields}
    for one in now.fields:
        was = known.get(one.name.lower())
        # What may be null in it is no other type: files keep none of that.
        if was is not None and was.dataType.simpleString() != one.dataType.simpleString():
            yield f"{one.name} is {was.dataType.simpleString()} in the table, and {one.dataType.simpleString()} in the new rows"


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
