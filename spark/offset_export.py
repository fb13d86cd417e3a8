"""How far a streaming query is, for those who look from outside: offsets of a consumer group, and files of metrics.

Spark's Kafka source commits nothing, so that no tool sees it. In any session:

    export = OffsetExport(spark, cluster, query="flights", group="flights-in-spark", metrics_files=(Path("/var/lib/metrics/flights.prom"),))
    spark.streams.addListener(export)

Spark calls a listener in a thread of its own, after a batch was noted as done, and does not wait for it: a query is as fast with it as
without. A batch that ends as the query is stopped may go by without a call.
"""

import os
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Final, TextIO

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from spark.group_commits import AGAIN_AFTER_S, GroupCommits, Offsets
from spark.kafka_admin import KafkaCluster
from spark.query_metrics import QueryTotals, as_json, as_prometheus, measured

PROMETHEUS: Final = ".prom"
"""What node_exporter's textfile collector reads."""
JSON_LINES: Final = ".jsonl"
_CLOSE_WITHIN_S: Final = 25.0


class OffsetExport(StreamingQueryListener):
    """Follows the query of one name (or id) and no other. It raises nothing, and what fails is said once on `out`.

    A file that ends in .prom is written anew after each batch, all at once; to any other a line of JSON is added.
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
