"""What streaming jobs have in common beyond `JobSettings`: a consumer group and files that show from outside how far they are."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from spark.checkpoints import committed_offsets
from spark.jobs.job import JobSettings
from spark.offset_export import JSON_LINES, PROMETHEUS, OffsetExport
from spark.settings import setting

_HEARD_WITHIN_S: Final = 10.0


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
