"""`materialize`: topics into a table, each record once, as raw bytes or with the fields of its value as columns.

A batch is a range of offsets that Spark has noted before it reads them, and is appended to the table under its number (spark/tables.py):
what a killed driver had begun, the next one does again with the same records.
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import StructType

from spark.checkpoints import Checkpoint, Origin, open_checkpoint
from spark.decoding import Decoding, dead_letters, typed_rows
from spark.errors import JobFailed
from spark.jobs.job import DONE, JobSettings, SparkJob, main
from spark.kafka_admin import KafkaAdmin, kafka_admin
from spark.queries import Stopping, run_query
from spark.schemas import avro_columns, json_columns
from spark.settings import Duration, setting
from spark.tables import Table, TableBatch, changed_types
from spark.topics import TopicSource
from spark.vocabulary import Framing, Layout, TableFormat, UnknownFields

DATE: Final = "date"
"""The day of the record's timestamp, in UTC: a column only where a table is partitioned by it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaterializeSettings(JobSettings):
    topics: tuple[str, ...] = setting(help="Read these topics.", metavar="TOPIC,…", default=())
    pattern: str = setting(help="Read the topics whose name this regular expression finds.", metavar="REGEX", default="")
    table: str = setting(help="Write to the table in this folder.", metavar="PATH")
    checkpoint: str = setting(help="Keep in this folder how far the job is. Every job and table has its own.", metavar="PATH")
    format: TableFormat = setting(help="Write this kind of table.", default="delta")
    layout: Layout = setting(help="Write bytes as they are, or the fields of values as columns.", default="raw")
    schema: Path | None = setting(
        help="Read the columns from this file: SQL column definitions for JSON (NOT NULL: the field must be there), an Avro schema, or "
        "the descriptor set of a Protobuf schema.",
        default=None,
    )
    message: str = setting(help="Read this message of the Protobuf schema.", metavar="NAME", default="")
    framing: Framing = setting(help="Pass over what a schema registry's serializer writes before a value.", default="none")
    unknown_fields: UnknownFields = setting(help="Do this with a JSON object that has other fields.", default="ignore")
    json: Mapping[str, str] = setting(help="Set this of Spark's JSON reader, as in timestampFormat=yyyy. May be given often.", default={})
    dead_letters: str = setting(
        help="Write records that are not as the schema says to the table in this folder. [default: the table's, with -dead-letters]",
        metavar="PATH",
        default="",
    )
    partition_by: tuple[str, ...] = setting(
        help="Partition the table by these columns; `date` is the day of the record's timestamp.", metavar="COLUMN,…", default=()
    )
    interval: Duration | None = setting(help="Write a batch this often, until stopped. Without it: all there is, then end.", default=None)
    starting: str = setting(help="Begin here without a checkpoint: earliest, latest, or JSON as Spark reads it.", default="earliest")
    offsets_per_batch: int | None = setting(help="Read at most this many offsets in a batch.", default=None)
    min_partitions: int | None = setting(help="Read with at least this many tasks: several of a partition.", default=None)
    fail_on_data_loss: bool = setting(help="Stop where records are gone before they were read.", default=True)

    def complaints(self) -> Iterator[str]:
        yield from JobSettings.complaints(self)
        if bool(self.topics) == bool(self.pattern):
            yield "expected either --topics or --pattern"
        if self.layout != "raw" and self.schema is None:
            yield f"--layout {self.layout} needs a --schema"
        if self.schema is not None and not self.schema.is_file():
            yield f"--schema={self.schema}: there is no such file"
        if self.layout == "protobuf" and not self.message:
            yield "--layout protobuf needs the name of a --message"
        if self.table.rstrip("/") == self.checkpoint.rstrip("/"):
            yield f"--checkpoint={self.checkpoint}: expected another folder than the table's"

    @property
    def source(self) -> TopicSource:

        return TopicSource(
            cluster=self.cluster,
            topics=self.topics,
            pattern=self.pattern,
            starting=self.starting,
            offsets_per_batch=self.offsets_per_batch,
            min_partitions=self.min_partitions,
            options={"failOnDataLoss": str(self.fail_on_data_loss).lower()},
        )

    @property
    def output(self) -> Table:

        return Table(path=self.table, format=self.format, partition_by=self.partition_by)

    @property
    def rejected(self) -> Table:

        return Table(path=self.dead_letters or f"{self.table.rstrip('/')}-dead-letters", format=self.format)


class Materializing:
    """Writes batches. `write` may be called again for the batch it was called for last."""

    def __init__(self, settings: MaterializeSettings, decoding: Decoding, checkpoint: Checkpoint, admin: KafkaAdmin) -> None:
        self._decoding = decoding
        self._checkpoint = checkpoint
        self._admin = admin
        self._output = settings.output
        self._rejected = settings.rejected
        self.rejected_rows = 0

    def write(self, records: DataFrame, number: int) -> None:

        batch = TableBatch(writer=self._checkpoint.id, number=number)
        # Before: nothing of another topic is written. After: what came of it meanwhile is at least said.
        self._checkpoint.check_topics(self._admin)
        decoded = self._decoding.decoded(records)
        if self._decoding.layout == "raw":
            self._output.append(dated(decoded, self._output), batch)
        else:
            decoded = decoded.persist()
            try:
                rejected = dead_letters(decoded)
                self._output.append(rows_of(decoded, self._output), batch)
                if count := rejected.count():
                    self._rejected.append(rejected, batch)
                    self.rejected_rows += count
            finally:
                decoded.unpersist()
        self._checkpoint.check_topics(self._admin)


def rows_of(decoded: DataFrame, table: Table) -> DataFrame:

    return dated(typed_rows(decoded), table)


def dated(rows: DataFrame, table: Table) -> DataFrame:

    if DATE not in table.partition_by or DATE in rows.columns:
        return rows
    return rows.withColumn(DATE, sql.to_date("kafka_timestamp" if "kafka_timestamp" in rows.columns else "timestamp"))


def decoding_of(settings: MaterializeSettings, spark: SparkSession) -> Decoding:
    """Raise `JobFailed` if the schema cannot be read."""

    if settings.schema is None or settings.layout == "raw":
        return Decoding(layout="raw")
    try:
        if settings.layout == "json":
            schema = json_columns(settings.schema.read_text())
            return Decoding(
                layout="json", schema=schema, framing=settings.framing, unknown_fields=settings.unknown_fields, options=settings.json
            )
        written = settings.schema.read_text()
        return Decoding(layout="avro", schema=avro_columns(spark, written), avro_schema=written, framing=settings.framing)
    except (OSError, PySparkException, ValueError) as error:
        raise JobFailed(f"The schema {settings.schema} cannot be read: {str(error).strip().splitlines()[0]}") from error


def checked_table(spark: SparkSession, table: Table, columns: StructType, checkpoint: Checkpoint) -> None:
    """Raise `JobFailed` where the table's columns have other types, or the table has rows that this checkpoint knows nothing of."""

    there = table.schema(spark)
    if there is None:
        return
    if changed := list(changed_types(there, columns)):
        raise JobFailed(f"The table {table.path} cannot take these rows: {'; '.join(changed)}. Name another, or change the schema back.")
    if checkpoint.is_new and not table.read(spark).isEmpty():
        raise JobFailed(
            f"The table {table.path} has rows, and the checkpoint {checkpoint.path} is new: what is in the table would be there "
            "twice. Name the checkpoint that belongs to the table, or a new table."
        )


def run(spark: SparkSession, settings: MaterializeSettings, stopping: Stopping) -> int:

    source = settings.source
    with kafka_admin(spark, settings.cluster) as admin:
        topics = source.known(admin)
        if absent := [name for name in settings.topics if name not in topics]:
            raise JobFailed(f"There is no topic {absent[0]} at {settings.bootstrap_servers}. Create it, or name another.")
        origin = Origin(
            job="materialize",
            cluster_id=admin.cluster_id(),
            topics={topic.name: topic.id for topic in topics.values()},
            output=f"{settings.format}:{settings.table}",
        )
        decoding = decoding_of(settings, spark)
        checkpoint = open_checkpoint(spark, settings.checkpoint, origin)
        records = source.stream(spark)
        decoded = decoding.decoded(records)
        columns = (dated(decoded, settings.output) if decoding.layout == "raw" else rows_of(decoded, settings.output)).schema
        checked_table(spark, settings.output, columns, checkpoint)
        settings.output.create(spark, columns)
        writing = Materializing(settings, decoding, checkpoint, admin)
        rows = run_query(
            records,
            writing.write,
            name=JOB.name,
            checkpoint=settings.checkpoint,
            interval=settings.interval,
            stopping=stopping,
        )
    rejected = f", {writing.rejected_rows:,} of them dead letters in {settings.rejected.path}" if writing.rejected_rows else ""
    sys.stdout.write(f"materialize: {rows:,} records into {settings.table}{rejected}\n")
    return DONE


JOB: Final = SparkJob(
    name="materialize",
    summary="Write topics to a table, each record once.",
    settings=MaterializeSettings,
    run=run,
    is_stream=True,
)

if __name__ == "__main__":
    sys.exit(main(JOB))
