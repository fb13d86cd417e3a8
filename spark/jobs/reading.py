"""What the jobs have in common that read topics into a table, batch by batch: their settings, and what they check before they begin."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from spark.checkpoints import Checkpoint, Origin, open_checkpoint
from spark.decoding import Decoding, avro_columns, json_columns
from spark.errors import JobFailed
from spark.files import qualified
from spark.jobs.job import StreamSettings
from spark.kafka_admin import KafkaAdmin
from spark.protobuf import ProtobufSchema, protobuf_columns
from spark.settings import Duration, setting
from spark.tables import Table, changed_types
from spark.topics import TopicSource
from spark.vocabulary import Framing, Layout, UnknownFields

_DIGITS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class QuerySettings(StreamSettings):
    """Of every job that has a query write to a table."""

    table: str = setting(help="Write to the table in this folder.", metavar="PATH")
    checkpoint: str = setting(
        help="Keep in this folder how far the job is, and what state it has. Every job and table has its own.", metavar="PATH"
    )
    interval: Duration | None = setting(help="Write a batch this often, until stopped. Without it: all there is, then end.", default=None)
    starting: str = setting(help="Begin here without a checkpoint: earliest, latest, or JSON as Spark reads it.", default="earliest")
    offsets_per_batch: int | None = setting(help="Read at most this many offsets in a batch.", default=None)
    min_partitions: int | None = setting(help="Read with at least this many tasks: several of a partition.", default=None)
    fail_on_data_loss: bool = setting(help="Stop where records are gone before they were read.", default=True)

    def complaints(self) -> Iterator[str]:
        yield from StreamSettings.complaints(self)
        if same_folder(self.table, self.checkpoint):
            yield f"--checkpoint={self.checkpoint}: expected another folder than the table's"
        for name, value in (("--offsets-per-batch", self.offsets_per_batch), ("--min-partitions", self.min_partitions)):
            if value is not None and value < 1:
                yield f"{name}={value}: expected 1 or more"

    def source_of(self, *, topics: tuple[str, ...] = (), pattern: str = "") -> TopicSource:
        return TopicSource(
            cluster=self.cluster,
            topics=topics,
            pattern=pattern,
            starting=self.starting,
            offsets_per_batch=self.offsets_per_batch,
            min_partitions=self.min_partitions,
            options={"failOnDataLoss": str(self.fail_on_data_loss).lower()},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueSettings(QuerySettings):
    """Of those that make columns of values."""

    layout: Layout = setting(help="Write bytes as they are, or the fields of values as columns.", default="raw")
    schema: Path | None = setting(
        help="Read the columns from this file: SQL column definitions for JSON (NOT NULL: the field must be there), an Avro schema, or "
        "the descriptor set of a Protobuf schema.",
        default=None,
    )
    message: str = setting(
        help="Read this message of the Protobuf schema, by its full name, as in flights.v1.Flight.", metavar="NAME", default=""
    )
    framing: Framing = setting(help="Pass over what a schema registry's serializer writes before a value.", default="none")
    unknown_fields: UnknownFields = setting(help="Do this with a value, of JSON or Protobuf, that has other fields.", default="ignore")
    json: Mapping[str, str] = setting(help="Set this of Spark's JSON reader, as in timestampFormat=yyyy. May be given often.", default={})
    dead_letters: str = setting(
        help="Write records that are not as the schema says to the table in this folder. [default: the table's, with -dead-letters]",
        metavar="PATH",
        default="",
    )

    def complaints(self) -> Iterator[str]:
        yield from QuerySettings.complaints(self)
        if self.layout != "raw" and self.schema is None:
            yield f"--layout {self.layout} needs a --schema"
        if self.schema is not None and not self.schema.is_file():
            yield f"--schema={self.schema}: there is no such file"
        if self.layout == "protobuf" and not self.message:
            yield "--layout protobuf needs the name of a --message"
        if any(same_folder(self.dead_letters_path, one) for one in (self.table, self.checkpoint)):
            yield f"--dead-letters={self.dead_letters}: expected another folder than those of table and checkpoint"

    @property
    def dead_letters_path(self) -> str:
        return self.dead_letters or f"{self.table.rstrip('/')}-dead-letters"


def either(topics: tuple[str, ...], pattern: str) -> Iterator[str]:
    """What is wrong where a job reads several topics."""
    if bool(topics) == bool(pattern):
        yield "expected either --topics or --pattern"


def same_folder(one: str, other: str) -> bool:
    return one.rstrip("/") == other.rstrip("/")


def opened(
    spark: SparkSession,
    settings: QuerySettings,
    source: TopicSource,
    admin: KafkaAdmin,
    *,
    job: str,
    output: Table,
    written_as: str,
    decoding: Decoding | None = None,
) -> Checkpoint:
    """The checkpoint that settings name. Raise `JobFailed` where a topic is not there, or the checkpoint is of something else.

    `written_as`: what no later run may change about the rows. `decoding`: what none may change in the middle of a batch.
    """
    topics = source.known(admin)
    if absent := [name for name in source.topics if name not in topics]:
        raise JobFailed(f"There is no topic {absent[0]} at {settings.bootstrap_servers}. Create it, or name another.")
    origin = Origin(
        job=job,
        cluster_id=admin.cluster_id(),
        topics={topic.name: topic.id for topic in topics.values()},
        output=output_of(spark, output, written_as),
        values=hashlib.sha256(repr(decoding).encode()).hexdigest()[:_DIGITS] if decoding else "",
    )
    checkpoint = open_checkpoint(spark, settings.checkpoint, origin, source)
    if checkpoint.has_batches and output.is_gone(spark):
        raise JobFailed(
            f"The table {output.path} is gone, and {checkpoint.path} has what was in it as done. Bring it back, or name a new checkpoint, "
            "which begins again."
        )
    return checkpoint


def output_of(spark: SparkSession, output: Table, written_as: str) -> str:
    """What a checkpoint calls the table that its rows go to."""
    return f"{output.format}:{qualified(spark, output.path)}, {written_as}"


def decoding_of(settings: ValueSettings, spark: SparkSession) -> Decoding:
    """Raise `JobFailed` if the schema cannot be read."""
    if settings.schema is None or settings.layout == "raw":
        return Decoding(layout="raw")
    try:
        if settings.layout == "json":
            schema = json_columns(settings.schema.read_text())
            return Decoding(
                layout="json", schema=schema, framing=settings.framing, unknown_fields=settings.unknown_fields, options=settings.json
            )
        if settings.layout == "protobuf":
            message = ProtobufSchema(descriptors=settings.schema.read_bytes(), message=settings.message)
            return Decoding(
                layout="protobuf",
                schema=protobuf_columns(message),
                protobuf=message,
                framing=settings.framing,
                unknown_fields=settings.unknown_fields,
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
    kept = StructType([one for one in columns.fields if one.name not in table.partition_by or table.format == "delta"])
    if changed := list(changed_types(there, kept)):
        raise JobFailed(f"The table {table.path} cannot take these rows: {'; '.join(changed)}. Name another, or change the schema back.")
    if checkpoint.is_new and not table.read(spark).isEmpty():
        raise JobFailed(
            f"The table {table.path} has rows, and the checkpoint {checkpoint.path} is new: what is in the table would be there "
            "twice. Name the checkpoint that belongs to the table, or a new table."
        )
