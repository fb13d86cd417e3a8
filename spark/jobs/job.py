"""What all jobs have in common: settings of the cluster and of the session, and a shell that says in a sentence what went wrong.

A job is a name, its settings, and a function that is handed a session. `python -m spark.jobs.NAME`, `forebay spark run NAME` and
`spark-submit spark/jobs/NAME.py` all call `main`. Streaming jobs also have a consumer group and files that show from outside how far they
are.
"""

import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from spark.checkpoints import committed_offsets
from spark.errors import SparkUnavailable
from spark.kafka_admin import KafkaCluster
from spark.offset_export import JSON_LINES, PROMETHEUS, OffsetExport
from spark.queries import explain
from spark.session import LOCAL, SessionSettings, open_session
from spark.settings import AnySettings, WrongSettings, load, setting
from spark.stopping import INTERRUPTED, Stopping

DONE: Final = 0
FAILED: Final = 1
"""The job could not go on, or an audit found differences."""
USAGE: Final = 2
UNAVAILABLE: Final = os.EX_UNAVAILABLE
_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""Set by `spark-submit`, which then has decided where to run."""
_HEARD_WITHIN_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings(AnySettings):
    bootstrap_servers: str = setting(
        help="Reach Kafka at these addresses. Name all brokers: a query ends with those it knows.",
        metavar="HOST:PORT,…",
        default="127.0.0.1:9092",
    )
    kafka: Mapping[str, str] = setting(help="Set this of the Kafka client, as in security.protocol=SSL. May be given often.", default={})
    master: str = setting(help=f"Run Spark here; spark-submit's --master is stronger. Without both: {LOCAL}.", metavar="URL", default="")
    driver_memory: str = setting(help="Give the driver this much memory. spark-submit has its own option.", metavar="SIZE", default="1g")
    shuffle_partitions: int = setting(help="Use this many partitions after a shuffle.", default=2)
    conf: Mapping[str, str] = setting(help="Set this of Spark, by its own name. May be given often.", default={})
    log_level: str = setting(help="Have Spark log at this level and above.", metavar="LEVEL", default="ERROR")

    def complaints(self) -> Iterator[str]:
        if not all(port.isdigit() for port in (one.rpartition(":")[2] for one in self.bootstrap_servers.split(","))):
            yield f"--bootstrap-servers={self.bootstrap_servers!r}: expected HOST:PORT, several separated by commas"
        if self.shuffle_partitions < 1:
            yield f"--shuffle-partitions={self.shuffle_partitions}: expected 1 or more"

    @property
    def cluster(self) -> KafkaCluster:
        return KafkaCluster(bootstrap_servers=self.bootstrap_servers, client=self.kafka)

    def session(self, name: str) -> SessionSettings:
        return SessionSettings(
            name=name,
            master=self.master or ("" if _SUBMITTED in os.environ else LOCAL),
            driver_memory=self.driver_memory,
            shuffle_partitions=self.shuffle_partitions,
            has_delta=True,
            outlives_sigterm=True,
            log_level=self.log_level,
            conf=self.conf,
        )


S = TypeVar("S", bound=JobSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkJob(Generic[S]):
    """`run` returns the exit code. It raises `JobFailed`."""

    name: str
    summary: str
    settings: type[S]
    run: Callable[[SparkSession, S, Stopping], int]
    is_stream: bool = False
    """It looks at `Stopping` by itself. Spark's work for any other job is cancelled."""


def main(job: SparkJob[Any], arguments: Sequence[str] | None = None, stopping: Stopping | None = None) -> int:
    """The exit code: 0 done, also when a job with an interval was stopped by a signal; 1 failed; 2 settings are wrong; 69 Spark cannot
    start; 130 stopped by SIGTERM or Ctrl-C before it was done.
    """
    try:
        settings = load(job.settings, job.name, sys.argv[1:] if arguments is None else arguments, os.environ, about=job.summary)
    except WrongSettings as error:
        return _say(f"{error}\n`{job.name} --help` lists the settings.", USAGE)
    stopping = stopping or Stopping()
    if stopping.is_asked:
        return _say(stopping.line, INTERRUPTED)
    try:
        with stopping.by_signals(), open_session(settings.session(f"forebay-{job.name}")) as spark, stopping.by_signals():
            return _run(job, spark, settings, stopping)
    except SparkUnavailable as error:
        return _say(str(error), UNAVAILABLE)


def _run(job: SparkJob[Any], spark: SparkSession, settings: JobSettings, stopping: Stopping) -> int:
    # What it says is in the error that it is about.
    PySparkLogger.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    if stopping.is_asked:
        # Parts of Spark that still start complain of the end, with stacks.
        spark.sparkContext.setLogLevel("OFF")
        return _say(stopping.line, INTERRUPTED)
    with stopping.watched(spark, cancels=not job.is_stream):
        try:
            code = job.run(spark, settings, stopping)
        except Exception as error:  # noqa: BLE001  # whatever Spark raises is said in its own words, without the stack of its JVM
            is_cancelled = not job.is_stream and stopping.wait(0)
            return _say(stopping.line, INTERRUPTED) if is_cancelled else _say(explain(error), FAILED)
    return _say(stopping.line, INTERRUPTED) if stopping.is_cut_short else code


def _say(message: str, code: int) -> int:
    sys.stderr.write(f"{message}\n")
    return code


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings(JobSettings):
    group: str = setting(
        help="Commit to this consumer group what is done, for tools that show lag. It may have no members.", metavar="NAME", default=""
    )
    metrics_file: tuple[str, ...] = setting(
        help=f"Write metrics to these files: {PROMETHEUS} for node_exporter's textfile collector, {JSON_LINES} for a line a batch.",
        metavar="PATH,…",
        default=(),
    )

    def complaints(self) -> Iterator[str]:
        yield from JobSettings.complaints(self)
        for file in self.metrics_files:
            if file.suffix not in (PROMETHEUS, JSON_LINES):
                yield f"--metrics-file={file}: expected a name that ends in {PROMETHEUS} or {JSON_LINES}"
            if not file.parent.is_dir():
                yield f"--metrics-file={file}: there is no folder {file.parent}"

    @property
    def metrics_files(self) -> tuple[Path, ...]:
        return tuple(Path(one) for one in self.metrics_file)


@contextmanager
def exported(spark: SparkSession, settings: StreamSettings, *, query: str, checkpoint: str) -> Iterator[None]:
    """Show from outside how far the query of this name is, which runs inside the block.

    What its checkpoint has as done is committed before and after: a driver may have been killed after a batch and before its commit.
    """
    if not settings.group and not settings.metrics_file:
        yield
        return
    export = OffsetExport(spark, settings.cluster, query=query, group=settings.group, metrics_files=settings.metrics_files)
    spark.streams.addListener(export)
    try:
        _hand_over(spark, checkpoint, export)
        yield
        export.wait_for_end(_HEARD_WITHIN_S)
        _hand_over(spark, checkpoint, export)
    finally:
        spark.streams.removeListener(export)
        if not export.close():
            sys.stderr.write(f"the group {settings.group} is behind what is done: the next run, or the job offsets, makes it good\n")


def _hand_over(spark: SparkSession, checkpoint: str, export: OffsetExport) -> None:
    if done := committed_offsets(spark, checkpoint):
        export.hand_over(done[1])
