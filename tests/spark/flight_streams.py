"""Records of flights, batch by batch and without a broker: what a query makes of them, and what it counted."""

import base64
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark.jobs.flights import Tally
    from spark.vocabulary import Emission

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
START_MS: Final = 1_357_034_400_000
"""2013-01-01T10:00:00Z"""
WITHIN_S: Final = 100


def at(hours: float) -> int:
    return START_MS + round(hours * HOUR_MS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flight:
    """`value`: what the record has instead of a flight."""

    hours: float
    carrier: str = "UA"
    tailnum: str | None = "N1"
    origin: str = "EWR"
    dest: str = "IAH"
    dep_delay: int | None = 0
    value: bytes | None = None
    partition: int = 0
    offset: int = 0

    @property
    def body(self) -> bytes:
        fields = {name: getattr(self, name) for name in ("carrier", "tailnum", "origin", "dest", "dep_delay")}
        return json.dumps(fields | {"year": 2013}).encode() if self.value is None else self.value

    def as_record(self) -> dict[str, Any]:
        return record(self.body, at(self.hours), self.partition, self.offset)


def record(value: bytes, timestamp_ms: int, partition: int = 0, offset: int = 0) -> dict[str, Any]:
    """As Spark's Kafka source has it, in JSON."""
    return {
        "key": None,
        "value": base64.b64encode(value).decode(),
        "topic": "flights",
        "partition": partition,
        "offset": offset,
        "ms": timestamp_ms,
        "timestampType": 0,
        "headers": [],
    }


def read_records(lines: "DataFrame") -> "DataFrame":
    return lines.selectExpr("* except (ms)", "timestamp_millis(ms) as timestamp")


def schema_of_lines() -> str:
    return (
        "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, ms BIGINT, timestampType INT, "
        "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
    )


def static(spark: "SparkSession", folder: Path, *flights: Flight) -> "DataFrame":
    """The flights among the records."""
    from spark.flights import observed_flights

    file = folder / "records.json"
    file.write_text("".join(f"{json.dumps(one.as_record())}\n" for one in flights))
    return observed_flights(read_records(spark.read.schema(schema_of_lines()).json(str(file))))


@dataclass(slots=True)
class Run:
    tally: "Tally"
    batches: list[list[Mapping[str, Any]]] = field(default_factory=list)

    @property
    def rows(self) -> list[Mapping[str, Any]]:
        return [row for batch in self.batches for row in batch]


def streamed(
    spark: "SparkSession",
    folder: Path,
    batches: Sequence[Sequence[Mapping[str, Any]]],
    core: "Callable[[DataFrame], DataFrame]",
    mode: "Emission",
) -> Run:
    """Records of a batch are in a file, which is one batch of the query."""
    from spark.flights import observed_flights
    from spark.jobs.flights import Tally

    lines = folder / "lines"
    lines.mkdir()
    for number, batch in enumerate(batches):
        file = lines / f"{number}.json"
        file.write_text("".join(f"{json.dumps(one)}\n" for one in batch))
        os.utime(file, (number + 1, number + 1))
    run = Run(Tally())

    def take(frame: "DataFrame", number: int) -> None:
        run.batches.append([row.asDict(recursive=True) for row in as_numbers(frame).collect()])

    stream = read_records(spark.readStream.schema(schema_of_lines()).option("maxFilesPerTrigger", "1").json(str(lines)))
    writing = core(observed_flights(stream)).writeStream.foreachBatch(take).outputMode(mode).trigger(availableNow=True)
    query = writing.option("checkpointLocation", str(folder / "checkpoint")).start()
    try:
        assert query.awaitTermination(WITHIN_S), "the query did not end by itself"
        run.tally.take(query.recentProgress)
        run.tally.take(query.recentProgress)
    finally:
        query.stop()
    return run


def as_numbers(frame: "DataFrame") -> "DataFrame":
    """Timestamps in milliseconds, which mean the same in every time zone."""
    return frame.selectExpr(*(f"unix_millis({name}) as {name}" if kind == "timestamp" else name for name, kind in frame.dtypes))
