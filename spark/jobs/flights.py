"""What jobs about flights have in common: where they read, where they write, and what they say in the end.

A batch is a range of offsets and a version of the state, both of which Spark has noted: what a killed driver had begun, the next one does
again, from the same records and the same state.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from spark.checkpoints import Checkpoint
from spark.flights import SEEN, observed_flights
from spark.jobs.job import exported
from spark.jobs.reading import QuerySettings, checked_table, either, opened
from spark.kafka_admin import KafkaAdmin, kafka_admin
from spark.queries import batches_after, run_query
from spark.settings import Duration, setting
from spark.stopping import Stopping
from spark.tables import Table, TableBatch
from spark.topics import TopicSource
from spark.vocabulary import Emission

_STATE: Final = {
    # What transformWithState needs; sums that no memory of a JVM has to hold are good for windows, too.
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightSettings(QuerySettings):
    topics: tuple[str, ...] = setting(help="Read flights from these topics.", metavar="TOPIC,…", default=())
    pattern: str = setting(help="Read flights from the topics whose name this regular expression finds.", metavar="REGEX", default="")
    watermark: Duration = setting(
        help="Wait this long for flights that come late: one that departs longer than this before the latest of the batches before is "
        "dropped, and counted. The default drops nothing of a year, and closes nothing of it either.",
        default=Duration(365 * 86_400),
    )

    def complaints(self) -> Iterator[str]:
        yield from QuerySettings.complaints(self)
        yield from either(self.topics, self.pattern)

    @property
    def source(self) -> TopicSource:
        return self.source_of(topics=self.topics, pattern=self.pattern)

    @property
    def output(self) -> Table:
        return Table(path=self.table)


@dataclass(slots=True)
class Tally:
    """What one run of a query did, from Spark's own progress of each batch."""

    records: int = 0
    rejected: int = 0
    without_tailnum: int = 0
    written: int = 0
    late: int = 0
    """What an operator dropped: its input rows, which need not be records."""
    state_rows: int | None = None
    """After the last batch; None where there was none."""
    watermark: str = ""
    _batch: int = -1

    def take(self, recent: Sequence[Any]) -> None:
        """What `StreamingQuery.recentProgress` is, in which much is the same as before."""
        for progress in batches_after(self._batch, recent):
            self._batch = progress["batchId"]
            self._add(progress)

    def _add(self, progress: Any) -> None:
        seen = progress["observedMetrics"].get(SEEN)
        if seen is not None:
            self.records += seen["records"]
            self.rejected += seen["rejected"]
            self.without_tailnum += seen["without_tailnum"]
        for operator in progress["stateOperators"]:
            self.late += operator["numRowsDroppedByWatermark"]
            self.state_rows = operator["numRowsTotal"]
        self.watermark = progress["eventTime"].get("watermark", self.watermark)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightQuery:
    """`core`: from flights to rows of the table. `written_as`: what a checkpoint's state is made of, which no later run may change.

    `write` may be called again for the batch it was called for last, with the same rows.
    """

    job: str
    core: Callable[[DataFrame], DataFrame]
    written_as: str
    emission: Emission
    write: Callable[[DataFrame, TableBatch], None]


class FlightBatches:
    def __init__(self, query: FlightQuery, checkpoint: Checkpoint, admin: KafkaAdmin, tally: Tally) -> None:
        self._query = query
        self._checkpoint = checkpoint
        self._admin = admin
        self._tally = tally

    def write(self, rows: DataFrame, number: int) -> None:
        # Before: nothing of another topic is written. After: what came of it meanwhile is at least said.
        self._checkpoint.check_topics(self._admin)
        rows = rows.persist()
        try:
            # Counted even where the table has the batch and takes nothing: it is this that runs the operators, once. A batch whose state
            # was not written again is one that Spark refuses, now and at every start.
            count = rows.count()
            if count:
                self._query.write(rows, TableBatch(writer=self._checkpoint.id, number=number))
            self._tally.written += count
        finally:
            rows.unpersist()
        self._checkpoint.check_topics(self._admin)


def run_flights(spark: SparkSession, settings: FlightSettings, stopping: Stopping, query: FlightQuery) -> Tally:
    """Raise `JobFailed`."""
    for name, value in _STATE.items():
        spark.conf.set(name, settings.conf.get(name, value))
    source, table, tally = settings.source, settings.output, Tally()
    with kafka_admin(spark, settings.cluster) as admin:
        checkpoint = opened(spark, settings, source, admin, job=query.job, output=table, written_as=query.written_as)
        rows = query.core(observed_flights(source.stream(spark)))
        checked_table(spark, table, rows.schema, checkpoint)
        table.create(spark, rows.schema)
        batches = FlightBatches(query, checkpoint, admin, tally)
        with exported(spark, settings, query=query.job, checkpoint=settings.checkpoint):
            run_query(
                rows,
                batches.write,
                output_mode=query.emission,
                name=query.job,
                checkpoint=settings.checkpoint,
                interval=settings.interval,
                stopping=stopping,
                on_progress=tally.take,
            )
    return tally
