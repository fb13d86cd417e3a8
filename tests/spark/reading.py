"""Reading through Spark's stock Kafka source, with `failOnDataLoss=true` unless a test says otherwise.

Names of options are Spark's; those with a dot go in as `**{"kafka.…": …}`.
"""

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamReader, DataStreamWriter, StreamingQuery

from runtime.clock import SystemClock
from tests.spark.acks import Row
from tests.spark.brokers import Brokers

FINISHED_WITHIN_S: Final = 100
ASK_EVERY_S: Final = 0.05
_AS_ROW: Final = (
    "topic",
    "partition",
    "offset",
    "key",
    "value",
    "headers",
    "unix_millis(timestamp) as timestamp_ms",
    "timestampType as timestamp_type",
)

_clock = SystemClock()


def options(brokers: Brokers, given: Mapping[str, Any]) -> dict[str, str]:
    """Values that are no text become JSON, as offsets by partition are written."""
    defaults = {"kafka.bootstrap.servers": brokers.bootstrap, "failOnDataLoss": "true", "includeHeaders": "true"}
    return defaults | {name: value if isinstance(value, str) else json.dumps(value) for name, value in given.items()}


def frame_of(spark: SparkSession, brokers: Brokers, **given: Any) -> DataFrame:
    return spark.read.format("kafka").options(**options(brokers, given)).load()


def rows_of(frame: DataFrame) -> list[Row]:
    return [
        Row(
            topic=row.topic,
            partition=row.partition,
            offset=row.offset,
            key=_bytes(row.key),
            value=_bytes(row.value),
            headers=tuple((one.key, _bytes(one.value)) for one in row.headers or ()),
            timestamp_ms=row.timestamp_ms,
            timestamp_type=row.timestamp_type,
        )
        for row in frame.selectExpr(*_AS_ROW).collect()
    ]


def read(spark: SparkSession, brokers: Brokers, **given: Any) -> list[Row]:
    """A batch read."""
    return rows_of(frame_of(spark, brokers, **given))


@dataclass(slots=True)
class Streamed:
    """What one run of a query gave, by batch."""

    batches: dict[int, list[Row]] = field(default_factory=dict)
    tasks: dict[int, int] = field(default_factory=dict)
    """How many read each batch."""

    @property
    def rows(self) -> list[Row]:
        return [row for number in sorted(self.batches) for row in self.batches[number]]

    @property
    def sizes(self) -> list[int]:
        return [len(self.batches[number]) for number in sorted(self.batches)]

    def take(self, frame: DataFrame, number: int) -> None:
        self.tasks[number] = frame.rdd.getNumPartitions()
        self.batches[number] = rows_of(frame)


def stream_of(spark: SparkSession, brokers: Brokers, **given: Any) -> DataFrame:
    reader: DataStreamReader = spark.readStream.format("kafka")
    return reader.options(**options(brokers, {"startingOffsets": "earliest"} | given)).load()


def available(spark: SparkSession, brokers: Brokers, checkpoint: Path, **given: Any) -> Streamed:
    """All that is there, from where the checkpoint is. Raise what ended the query."""
    streamed = Streamed()
    query = _writing(stream_of(spark, brokers, **given), streamed, checkpoint).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(FINISHED_WITHIN_S), "the query did not end by itself"
    finally:
        query.stop()
    return streamed


@contextlib.contextmanager
def streaming(spark: SparkSession, brokers: Brokers, checkpoint: Path, **given: Any) -> Iterator[tuple[StreamingQuery, Streamed]]:
    """A query that runs while the block does, one batch after the other."""
    streamed = Streamed()
    query = _writing(stream_of(spark, brokers, **given), streamed, checkpoint).start()
    try:
        yield query, streamed
    finally:
        query.stop()


def wait_for(query: StreamingQuery, streamed: Streamed, *, rows: int) -> None:
    """Until so many were given. Raise what ended the query."""
    give_up_s = _clock.monotonic_s() + FINISHED_WITHIN_S
    while len(streamed.rows) < rows:
        assert not query.awaitTermination(ASK_EVERY_S), "the query ended"
        assert _clock.monotonic_s() < give_up_s, f"{len(streamed.rows)} of {rows} rows within {FINISHED_WITHIN_S} s: {query.status}"


def _writing(frame: DataFrame, streamed: Streamed, checkpoint: Path) -> DataStreamWriter:
    return frame.writeStream.foreachBatch(streamed.take).option("checkpointLocation", str(checkpoint))


def _bytes(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)


def wait_until(holds: Callable[[], bool], *, within_s: float = FINISHED_WITHIN_S) -> None:
    give_up_s = _clock.monotonic_s() + within_s
    while not holds():
        assert _clock.monotonic_s() < give_up_s, f"it did not happen within {within_s} s"
        time.sleep(ASK_EVERY_S)
