"""How far a streaming query is, shown from outside: offsets of a consumer group, and files of metrics.

Spark's Kafka source commits nothing, so that no tool sees it. In any session:

    export = OffsetExport(spark, cluster, query="flights", group="flights-in-spark", metrics_files=(Path("/var/lib/metrics/flights.prom"),))
    spark.streams.addListener(export)

Spark calls a listener in a thread of its own, after a batch was noted as done, and does not wait for it: a query is as fast with it as
without. A batch that ends as the query is stopped may go by without a call. The group's offsets follow the query's, and no record is read
by their help. Metrics are numbers in Prometheus' text format, and a line of JSON.
"""

import contextlib
import json
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TextIO

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from spark.errors import JobFailed
from spark.kafka_admin import KafkaAdmin, KafkaCluster, KafkaPartition
from spark.topics import least, read_offsets

AGAIN_AFTER_S: Final = 10.0
_ANSWER_WITHIN_MS: Final = 10_000
"""Nobody waits for a commit but the end of a job."""
Offsets = Mapping[KafkaPartition, int]
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
PROMETHEUS: Final = ".prom"
"""What node_exporter's textfile collector reads."""
JSON_LINES: Final = ".jsonl"
_CLOSE_WITHIN_S: Final = 25.0


def goes_back(committed: Offsets, wanted: Offsets) -> list[str]:
    """Where a commit would set the group back, a phrase each."""
    return [
        f"{one} from {committed[one]} to {offset}" for one, offset in sorted(wanted.items()) if one in committed and offset < committed[one]
    ]


class GroupCommits:
    """Commits the newest offsets that it was handed, in a thread of its own, so that a query never waits for it.

    A group that is ahead of the query is left as it is: it is another query's, or the query was begun again. What fails is said once, and
    tried again with what is newest then. `spark` has to outlive it.
    """

    def __init__(
        self, spark: SparkSession, cluster: KafkaCluster, group: str, *, again_after_s: float = AGAIN_AFTER_S, out: TextIO = sys.stderr
    ) -> None:
        deadlines = {"default.api.timeout.ms": str(_ANSWER_WITHIN_MS), "request.timeout.ms": str(_ANSWER_WITHIN_MS)}
        quick = KafkaCluster(bootstrap_servers=cluster.bootstrap_servers, client=deadlines | dict(cluster.client))
        self._connect: Callable[[], KafkaAdmin] = lambda: KafkaAdmin(spark, quick)
        self._admin: KafkaAdmin | None = None
        self._group = group
        self._again_after_s = again_after_s
        self._out = out
        self._changed = threading.Condition()
        self._wanted: dict[KafkaPartition, int] = {}
        self._is_ending = False
        self._said = ""
        self.commits = 0
        self.failures = 0
        self._thread = threading.Thread(target=self._run, name=f"commits of {group}", daemon=True)
        self._thread.start()

    def hand_over(self, offsets: Offsets) -> None:
        """At once. Those that were handed over later are the ones that count."""
        with self._changed:
            self._wanted |= offsets
            self._changed.notify()

    def close(self, *, within_s: float) -> bool:
        """Try once more what is not committed yet, and end. Return whether all of it is."""
        with self._changed:
            self._is_ending = True
            self._changed.notify()
        self._thread.join(within_s)
        with self._changed:
            return not self._wanted and not self._thread.is_alive()

    def _run(self) -> None:
        has_failed = False
        while True:
            with self._changed:
                if not self._wanted and not self._is_ending:
                    self._changed.wait()
                elif has_failed and not self._is_ending:
                    self._changed.wait(self._again_after_s)
                wanted, is_last = dict(self._wanted), self._is_ending
            if wanted:
                has_failed = not self._commit(wanted)
            with self._changed:
                if wanted and not has_failed:
                    self._wanted = {one: offset for one, offset in self._wanted.items() if wanted.get(one) != offset}
                is_done = is_last and (has_failed or not self._wanted)
            if is_done:
                break
        if self._admin is not None:
            with contextlib.suppress(Py4JError):  # the session may have stopped meanwhile, and the client with it
                self._admin.close()

    def _commit(self, wanted: Offsets) -> bool:
        try:
            self._admin = self._admin or self._connect()
            if back := goes_back(self._admin.committed(self._group), wanted):
                self._fail(f"it is ahead of the query ({back[0]}). If that is as it should be: the job offsets, with --backwards")
                return False
            self._admin.commit(self._group, wanted)
        except (JobFailed, Py4JError) as error:
            self._fail(str(error))
            return False
        self.commits += 1
        if self._said:
            self._said = ""
            self._out.write(f"the group {self._group} follows the query again\n")
        return True

    def _fail(self, why: str) -> None:
        self.failures += 1
        if not self._said:
            self._said = why
            self._out.write(f"the group {self._group} does not follow the query: {why}. The query goes on.\n")


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


class OffsetExport(StreamingQueryListener):
    """Follows the query of one name (or id) and no other. It raises nothing, and what fails is said once on `out`.

    A file that ends in .prom is written again after each batch, all at once; to any other a line of JSON is added.
    """

    def __init__(
        self,
        spark: SparkSession,
        cluster: KafkaCluster,
        *,
        query: str,
        group: str = "",
        metrics_files: Iterable[Path] = (),
        again_after_s: float = AGAIN_AFTER_S,
        out: TextIO = sys.stderr,
    ) -> None:
        self._query = query
        self._files = tuple(metrics_files)
        self._out = out
        self.commits = GroupCommits(spark, cluster, group, again_after_s=again_after_s, out=out) if group else None
        self._totals = QueryTotals()
        self._run = ""
        self._ended = threading.Event()
        self._ended.set()
        self._writing = threading.Lock()
        self._has_failed: set[Path] = set()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802  # Spark's name
        """Spark waits for this one."""
        if self._query in (event.name, str(event.id)):
            self._follow(str(event.runId))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        progress = event.progress
        if self._query not in (progress.name, str(progress.id)):
            return
        if self._run != str(progress.runId):
            self._follow(str(progress.runId))
        batch = measured(progress)
        self._totals.take(batch)
        if batch.ends:
            self.hand_over(batch.ends)
        for file in self._files:
            if file.suffix != PROMETHEUS:
                self._write(file, f"{as_json(batch)}\n")
        self._write_metrics()

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        if str(event.runId) == self._run and self._totals.last is not None:
            self._totals.seen_at = str(event.timestamp)
            self._write_metrics()

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        if str(event.runId) == self._run:
            self._totals.is_running = False
            self._write_metrics()
            self._ended.set()

    def hand_over(self, offsets: Offsets) -> None:
        """What is known from elsewhere to be done."""
        if self.commits is not None:
            self.commits.hand_over(offsets)

    def wait_for_end(self, within_s: float) -> bool:
        """Whether Spark has said of the query's run, if there was one, that it has ended: all calls about its batches come before."""
        return self._ended.wait(within_s)

    def close(self, *, within_s: float = _CLOSE_WITHIN_S) -> bool:
        """Commit what is not committed yet. Return whether the group has all."""
        has_all = self.commits is None or self.commits.close(within_s=within_s)
        self._write_metrics()
        return has_all

    def _follow(self, run: str) -> None:
        self._run = run
        self._totals = QueryTotals()
        self._ended.clear()

    def _write_metrics(self) -> None:
        if self.commits is not None:
            self._totals.commits, self._totals.failed_commits = self.commits.commits, self.commits.failures
        with self._writing:
            for file in self._files:
                if file.suffix == PROMETHEUS and self._totals.last is not None:
                    self._write(file, as_prometheus(self._totals))

    def _write(self, file: Path, text: str) -> None:
        try:
            if file.suffix == PROMETHEUS:
                # Under another name first: the collector may read at any moment.
                temporary = file.with_name(f".{file.name}.{os.getpid()}")
                temporary.write_text(text)
                temporary.replace(file)
            else:
                with file.open("a") as lines:
                    lines.write(text)
        except OSError as error:
            if file not in self._has_failed:
                self._out.write(f"the metrics file {file} cannot be written: {error.strerror}. The query goes on.\n")
            self._has_failed.add(file)
        else:
            self._has_failed.discard(file)
