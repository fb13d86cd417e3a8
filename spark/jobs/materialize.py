"""`materialize`: topics into a table, each record once, as raw bytes or with the fields of its value as columns.

A batch is a range of offsets that Spark has noted before it reads them, and is appended to the table under its number (spark/tables.py):
what a killed driver had begun, the next one does again with the same records.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from spark.checkpoints import Checkpoint
from spark.decoding import DEAD_LETTERS, Decoding, dead_letters, typed_rows
from spark.jobs.job import DONE, SparkJob, exported, main
from spark.jobs.reading import ValueSettings, checked_table, decoding_of, either, opened
from spark.kafka_admin import KafkaAdmin, kafka_admin
from spark.queries import run_query
from spark.settings import setting
from spark.stopping import Stopping
from spark.tables import Table, TableBatch
from spark.topics import TopicSource
from spark.vocabulary import TableFormat

DATE: Final = "date"
"""The day of the record's timestamp, in UTC: a column only where a table is partitioned by it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaterializeSettings(ValueSettings):
    topics: tuple[str, ...] = setting(help="Read these topics.", metavar="TOPIC,…", default=())
    pattern: str = setting(help="Read the topics whose name this regular expression finds.", metavar="REGEX", default="")
    format: TableFormat = setting(help="Write this kind of table.", default="delta")
    partition_by: tuple[str, ...] = setting(
        help="Partition the table by these columns; `date` is the day of the record's timestamp.", metavar="COLUMN,…", default=()
    )

    def complaints(self) -> Iterator[str]:
        yield from ValueSettings.complaints(self)
        yield from either(self.topics, self.pattern)

    @property
    def source(self) -> TopicSource:
        return self.source_of(topics=self.topics, pattern=self.pattern)

    @property
    def output(self) -> Table:
        return Table(path=self.table, format=self.format, partition_by=self.partition_by)

    @property
    def rejected(self) -> Table:
        return Table(path=self.dead_letters_path, format=self.format)


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


def run(spark: SparkSession, settings: MaterializeSettings, stopping: Stopping) -> int:
    source = settings.source
    with kafka_admin(spark, settings.cluster) as admin:
        decoding = decoding_of(settings, spark)
        checkpoint = opened(
            spark, settings, source, admin, job=JOB.name, output=settings.output, written_as=settings.layout, decoding=decoding
        )
        records = source.stream(spark)
        decoded = decoding.decoded(records)
        columns = (dated(decoded, settings.output) if decoding.layout == "raw" else rows_of(decoded, settings.output)).schema
        checked_table(spark, settings.output, columns, checkpoint)
        checked_table(spark, settings.rejected, DEAD_LETTERS, checkpoint)
        settings.output.create(spark, columns)
        writing = Materializing(settings, decoding, checkpoint, admin)
        with exported(spark, settings, query=JOB.name, checkpoint=settings.checkpoint):
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
