"""What a streaming query says of itself after each batch, as numbers: in Prometheus' text format, and as a line of JSON."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from spark.kafka_admin import KafkaPartition
from spark.topics import least, read_offsets

_PREFIX: Final = "forebay_spark"
_SERIES: Final = {
    "running": ("gauge", "Whether the query runs."),
    "seen_timestamp_seconds": ("gauge", "When the query was last heard of, after a batch or idle."),
    "batch": ("gauge", "The number of the last batch that is done."),
    "batch_seconds": ("gauge", "What the last batch took."),
    "rows_total": ("counter", "Rows that this run of the query has read."),
    "rows_per_second": ("gauge", "Rows read in the last batch, by the time it took."),
    "late_rows_total": ("counter", "Rows that came after the watermark, and were dropped."),
    "state_rows": ("gauge", "Rows in the query's state."),
    "offset": ("gauge", "The offset up to which the last batch has read a partition."),
    "behind": ("gauge", "Offsets between what the last batch has read of a partition, and its end when the batch was planned."),
    "commits_total": ("counter", "Commits of the consumer group."),
    "commit_failures_total": ("counter", "Commits of the consumer group that failed, and are made good later."),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchMeasured:
    query: str
    id: str
    """What its checkpoint is called by Spark: two queries may have one name."""
    number: int
    at: str
    """In ISO 8601, by Spark."""
    rows: int
    rows_per_second: float
    seconds: float
    late_rows: int
    state_rows: int
    ends: Mapping[KafkaPartition, int]
    """Of partitions of Kafka. One that several sources read is as far as the last of them."""
    behind: Mapping[KafkaPartition, int]


def measured(progress: Any) -> BatchMeasured:
    """Of what Spark calls a query's progress."""
    sources = [(read_offsets(one["endOffset"]) or {}, read_offsets(one["latestOffset"]) or {}) for one in progress["sources"]]
    ends = least([end for end, _ in sources])
    return BatchMeasured(
        query=str(progress["name"] or progress["id"]),
        id=str(progress["id"]),
        number=int(progress["batchId"]),
        at=str(progress["timestamp"]),
        rows=int(progress["numInputRows"]),
        rows_per_second=float(progress["processedRowsPerSecond"] or 0.0),
        seconds=progress["durationMs"].get("triggerExecution", 0) / 1000,
        late_rows=sum(int(one["numRowsDroppedByWatermark"]) for one in progress["stateOperators"]),
        state_rows=sum(int(one["numRowsTotal"]) for one in progress["stateOperators"]),
        ends=ends,
        behind={one: max(0, latest[one] - ends[one]) for _, latest in sources for one in latest if one in ends},
    )


@dataclass(slots=True)
class QueryTotals:
    """Of one run of a query. A batch that is reported twice is counted once."""

    last: BatchMeasured | None = None
    rows: int = 0
    late_rows: int = 0
    seen_at: str = ""
    is_running: bool = True
    commits: int = 0
    failed_commits: int = 0

    def take(self, batch: BatchMeasured) -> None:
        if self.last is None or batch.number > self.last.number:
            self.rows += batch.rows
            self.late_rows += batch.late_rows
        self.last = batch
        self.seen_at = batch.at


def as_prometheus(totals: QueryTotals) -> str:
    """Nothing before the first batch."""
    batch = totals.last
    if batch is None:
        return ""
    values = {
        "running": int(totals.is_running),
        "seen_timestamp_seconds": datetime.fromisoformat(totals.seen_at).timestamp(),
        "batch": batch.number,
        "batch_seconds": batch.seconds,
        "rows_total": totals.rows,
        "rows_per_second": batch.rows_per_second,
        "late_rows_total": totals.late_rows,
        "state_rows": batch.state_rows,
        "commits_total": totals.commits,
        "commit_failures_total": totals.failed_commits,
    }
    by_partition = {"offset": batch.ends, "behind": batch.behind}
    lines: list[str] = []
    for name, (kind, about) in _SERIES.items():
        lines += [f"# HELP {_PREFIX}_{name} {about}", f"# TYPE {_PREFIX}_{name} {kind}"]
        if name in values:
            lines.append(f"{_PREFIX}_{name}{_labels(query=batch.query, id=batch.id)} {values[name]}")
        else:
            lines += _by_partition(name, batch, by_partition[name])
    return "\n".join(lines) + "\n"


def as_json(batch: BatchMeasured) -> str:
    """One line, of the last batch alone."""
    return json.dumps(
        {
            "query": batch.query,
            "id": batch.id,
            "batch": batch.number,
            "at": batch.at,
            "rows": batch.rows,
            "rows_per_second": batch.rows_per_second,
            "batch_seconds": batch.seconds,
            "late_rows": batch.late_rows,
            "state_rows": batch.state_rows,
            "offsets": _by_topic(batch.ends),
            "behind": _by_topic(batch.behind),
        }
    )


def _by_partition(name: str, batch: BatchMeasured, values: Mapping[KafkaPartition, int]) -> Iterator[str]:
    for one, value in sorted(values.items()):
        labels = _labels(query=batch.query, id=batch.id, topic=one.topic, partition=str(one.partition))
        yield f"{_PREFIX}_{name}{labels} {value}"


def _by_topic(values: Mapping[KafkaPartition, int]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for one, value in sorted(values.items()):
        found.setdefault(one.topic, {})[str(one.partition)] = value
    return found


def _labels(**labels: str) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
