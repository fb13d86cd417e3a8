"""`changelog`: a topic whose records have keys, as a table of the last value of each key. A record without a value deletes its key's row.

A batch is a range of offsets that Spark has noted before it reads them. One MERGE makes it part of the table and, in the same commit, notes
its number there: done again after a kill, it changes nothing, whatever it did at first. Records without a key, and those whose value is
not as the schema says, are dead letters and leave the row of their key as it was.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from spark.checkpoints import Checkpoint
from spark.decoding import DEAD_LETTERS, Decoding, dead_letters
from spark.errors import JobFailed
from spark.jobs.job import DONE, SparkJob, exported, main
from spark.jobs.reading import ValueSettings, checked_table, decoding_of, opened
from spark.kafka_admin import KafkaAdmin, kafka_admin
from spark.queries import run_query
from spark.settings import setting
from spark.stopping import Stopping
from spark.tables import Table, TableBatch
from spark.topics import TopicSource
from spark.upserts import changes, clashes, columns_of, judged, merge_of
from spark.vocabulary import KeyFormat

_VIEW: Final = "forebay_changes"
_WRITER: Final = "spark.databricks.delta.write.txnAppId"
_NUMBER: Final = "spark.databricks.delta.write.txnVersion"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangelogSettings(ValueSettings):
    topic: str = setting(help="Read this topic.", metavar="TOPIC")
    key_format: KeyFormat = setting(help="Have keys in the table as bytes, or as the string whose UTF-8 they are.", default="bytes")

    def complaints(self) -> Iterator[str]:
        yield from ValueSettings.complaints(self)
        if not self.topic or "," in self.topic:
            yield f"--topic={self.topic!r}: expected the name of one topic"

    @property
    def source(self) -> TopicSource:
        return self.source_of(topics=(self.topic,))

    @property
    def output(self) -> Table:
        return Table(path=self.table)

    @property
    def rejected(self) -> Table:
        return Table(path=self.dead_letters_path)


class Upserting:
    """Writes batches. `write` may be called again for the batch it was called for last."""

    def __init__(self, settings: ChangelogSettings, decoding: Decoding, checkpoint: Checkpoint, admin: KafkaAdmin) -> None:
        self._decoding = decoding
        self._key_format = settings.key_format
        self._checkpoint = checkpoint
        self._admin = admin
        self._output = settings.output
        self._rejected = settings.rejected
        self.rejected_rows = 0

    def write(self, records: DataFrame, number: int) -> None:
        batch = TableBatch(writer=self._checkpoint.id, number=number)
        # Before: nothing of another topic is written. After: what came of it meanwhile is at least said.
        self._checkpoint.check_topics(self._admin)
        found = judged(records, self._decoding, self._key_format).persist()
        try:
            merge(changes(found, self._decoding, self._key_format), self._output, batch)
            rejected = dead_letters(found)
            if count := rejected.count():
                self._rejected.append(rejected, batch)
                self.rejected_rows += count
        finally:
            found.unpersist()
        self._checkpoint.check_topics(self._admin)


def merge(changed: DataFrame, table: Table, batch: TableBatch) -> None:
    """All changes or none, and once, however often this is called for the same batch: also where a change undoes one of another batch."""
    session = changed.sparkSession
    columns = columns_of(changed).names
    known = {name.lower() for name in columns}
    gone = [name for name in table.read(session).columns if name.lower() not in known]
    changed.createOrReplaceTempView(_VIEW)
    try:
        with _once(session, batch):
            session.sql(merge_of(table.in_sql(session), _VIEW, columns, gone=gone))
    finally:
        session.catalog.dropTempView(_VIEW)


@contextmanager
def _once(session: SparkSession, batch: TableBatch) -> Iterator[None]:
    """Delta skips a statement whose number its writer has had, and notes the number in the commit of one that it runs."""
    session.conf.set(_WRITER, batch.writer)
    session.conf.set(_NUMBER, str(batch.number))
    try:
        yield
    finally:
        session.conf.unset(_WRITER)
        session.conf.unset(_NUMBER)


def widened(spark: SparkSession, table: Table, columns: DataFrame) -> None:
    """Make the table, or give it the columns that it does not have. `columns` is a frame without rows."""
    table.create(spark, columns.schema)
    there = {name.lower() for name in table.read(spark).columns}
    if not {name.lower() for name in columns.columns} <= there:
        columns.write.format(table.format).option("mergeSchema", "true").mode("append").save(table.path)


def run(spark: SparkSession, settings: ChangelogSettings, stopping: Stopping) -> int:
    source = settings.source
    with kafka_admin(spark, settings.cluster) as admin:
        decoding = decoding_of(settings, spark)
        if taken := clashes(decoding.schema):
            raise JobFailed(
                f"The schema {settings.schema} has a field {taken[0]}, which is a column of the job. Leave it out of the schema."
            )
        written_as = f"{settings.layout}, keys as {settings.key_format}"
        checkpoint = opened(spark, settings, source, admin, job=JOB.name, output=settings.output, written_as=written_as, decoding=decoding)
        records = source.stream(spark)
        columns = columns_of(changes(judged(records, decoding, settings.key_format), decoding, settings.key_format))
        checked_table(spark, settings.output, columns, checkpoint)
        checked_table(spark, settings.rejected, DEAD_LETTERS, checkpoint)
        widened(spark, settings.output, spark.createDataFrame([], columns))
        writing = Upserting(settings, decoding, checkpoint, admin)
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
    sys.stdout.write(f"changelog: {rows:,} records into {settings.table}{rejected}\n")
    return DONE


JOB: Final = SparkJob(
    name="changelog",
    summary="Keep a table of the last value of each key of a topic.",
    settings=ChangelogSettings,
    run=run,
    is_stream=True,
)

if __name__ == "__main__":
    sys.exit(main(JOB))
