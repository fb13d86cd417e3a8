"""`upkeep`: small files of Delta tables are put together, and files that no version within `--keep` needs are deleted.

Rows stay what they are: they are written to other files, and who reads an older version reads the older files until these are deleted.
It may run beside a job that appends to the table.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark.errors import JobFailed
from spark.files import Occupied, names_in, occupied
from spark.jobs.job import DONE, FAILED, USAGE, JobSettings, SparkJob, main
from spark.queries import explain
from spark.settings import Duration, setting
from spark.stopping import Stopping
from spark.tables import WRITER_COLUMN, Table

_HOUR_S: Final = 3_600.0
_WEEK: Final = Duration(7 * 24 * _HOUR_S)
_MIB: Final = 1 << 20
_TARGET: Final = "spark.databricks.delta.optimize.maxFileSize"
_SMALL: Final = "spark.databricks.delta.optimize.minFileSize"
_RETENTION: Final = "delta.deletedFileRetentionDuration"
_TOO_SHORT: Final = "DELTA_VACUUM_RETENTION_PERIOD_TOO_SHORT"
_CHECK: Final = "spark.databricks.delta.retentionDurationCheck.enabled"
_IGNORES: Final = "spark.databricks.delta.vacuum.retentionWindowIgnore.enabled"
"""Delta 4.4 takes what the table says for what VACUUM says, unless this is off: more than a week would not be kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpkeepSettings(JobSettings):
    tables: tuple[str, ...] = setting(help="Look after the Delta tables in these folders.", metavar="PATH,…")
    optimize: bool = setting(help="Put small files together.", default=True)
    zorder_by: tuple[str, ...] = setting(
        help="Put rows together whose values in these columns are near each other; all files are written again.",
        metavar="COLUMN,…",
        default=(),
    )
    file_mb: int = setting(help="Make files of about this many MiB; smaller ones are put together.", default=256)
    keep: Duration = setting(help="Keep what any version of this last time needs.", default=_WEEK)
    delete: bool = setting(help="Delete what is not kept. Without it: say what would be deleted.", default=False)
    force: bool = setting(
        help="Keep less than the table says a file has to be kept. Readers of older versions then fail, and so may writers at their work.",
        default=False,
    )
    interval: Duration | None = setting(help="Do it again this often, until stopped. Without it: once.", default=None)

    def complaints(self) -> Iterator[str]:
        yield from JobSettings.complaints(self)
        if not self.tables:
            yield "--tables is empty: name the folders of tables"
        if self.file_mb < 1:
            yield f"--file-mb={self.file_mb}: expected 1 or more"
        if self.zorder_by and not self.optimize:
            yield "--zorder-by needs --optimize true"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSize:
    """`live` files are those of the newest version; `whole` is what the folder has, with older ones and the log."""

    live: Occupied
    whole: Occupied

    def __str__(self) -> str:
        return f"{self.live} (with old ones and the log: {self.whole})"


@dataclass(frozen=True, slots=True, kw_only=True)
class UpkeepDone:
    """`old`: files that no kept version needs."""

    before: TableSize
    after: TableSize
    old: int
    was_deleted: bool

    def __str__(self) -> str:
        deleted = "deleted" if self.was_deleted else "to be deleted with --delete"
        return f"{self.before} → {self.after}, {f'{self.old:,} old files {deleted}' if self.old else 'no old files'}"


def tidy(spark: SparkSession, table: Table, settings: UpkeepSettings) -> UpkeepDone:
    """Raise `JobFailed` if another writer came between, which leaves the table as it was."""
    before = size_of(spark, table)
    file_bytes = str(settings.file_mb * _MIB)
    conf = {_TARGET: file_bytes, _SMALL: file_bytes, _IGNORES: "false", _CHECK: str(not settings.force).lower()}
    with _configured(spark, conf):
        if settings.keep < _WEEK or _RETENTION in properties_of(spark, table):
            vacuum(spark, table, settings.keep, is_dry=True)  # refused before anything is done
        if settings.optimize:
            nearby = ", ".join(f"`{name}`" for name in settings.zorder_by)
            spark.sql(f"OPTIMIZE {table.in_sql(spark)}{f' ZORDER BY ({nearby})' if nearby else ''}").collect()
        old = vacuum(spark, table, settings.keep, is_dry=True)
        if settings.delete and old:
            vacuum(spark, table, settings.keep, is_dry=False)
    return UpkeepDone(before=before, after=size_of(spark, table), old=old, was_deleted=settings.delete)


def vacuum(spark: SparkSession, table: Table, keep: Duration, *, is_dry: bool) -> int:
    """How many files there are to delete. Raise `JobFailed` if the table says that they have to be kept for longer."""
    statement = f"VACUUM {table.in_sql(spark)} RETAIN {keep / _HOUR_S:f} HOURS{' DRY RUN' if is_dry else ''}"
    try:
        return len(spark.sql(statement).collect())
    except PySparkException as error:
        if error.getCondition() == _TOO_SHORT:
            raise JobFailed(
                f"The table {table.path} keeps files for longer than {keep / _HOUR_S:g} hours, for who reads older versions or is writing: "
                f"keep more, change its property {_RETENTION}, or say --force if nobody reads or writes."
            ) from error
        raise


def properties_of(spark: SparkSession, table: Table) -> Mapping[str, str]:
    (detail,) = spark.sql(f"DESCRIBE DETAIL {table.in_sql(spark)}").collect()
    return dict(detail.properties)


def size_of(spark: SparkSession, table: Table) -> TableSize:
    (detail,) = spark.sql(f"DESCRIBE DETAIL {table.in_sql(spark)}").collect()
    return TableSize(live=Occupied(files=detail.numFiles, bytes=detail.sizeInBytes), whole=occupied(spark, table.path))


def run(spark: SparkSession, settings: UpkeepSettings, stopping: Stopping) -> int:
    tables = [Table(path=path.rstrip("/")) for path in settings.tables]
    for table in tables:
        if not table.is_there(spark):
            return _refused(spark, table)
    while True:
        failed = 0
        for table in tables:
            failed += not _tidied(spark, table, settings, stopping)
            if stopping.is_asked and (failed or table is not tables[-1]):
                stopping.cut_short()
                return DONE
        if settings.interval is None:
            return FAILED if failed else DONE
        if stopping.wait(settings.interval):
            return DONE


def _refused(spark: SparkSession, table: Table) -> int:
    if any(name.startswith(f"{WRITER_COLUMN}=") for name in names_in(spark, table.path)):
        sys.stderr.write(
            f"The table {table.path} is Parquet, and nothing can be done to it safely: a batch is a folder that may be written over, and "
            "readers take all files that they find. Write a Delta table instead (--format delta).\n"
        )
    else:
        sys.stderr.write(f"There is no Delta table in {table.path}.\n")
    return USAGE


def _tidied(spark: SparkSession, table: Table, settings: UpkeepSettings, stopping: Stopping) -> bool:
    """Say what came of it. What fails for one table is no reason to leave the others. Of cancelled work nothing is said."""
    try:
        sys.stdout.write(f"upkeep: {table.path}: {tidy(spark, table, settings)}\n")
    except (JobFailed, PySparkException, Py4JJavaError) as error:
        if not stopping.is_asked:
            sys.stderr.write(f"{table.path}: {explain(error)}\n")
        return False
    return True


@contextmanager
def _configured(spark: SparkSession, conf: Mapping[str, str]) -> Iterator[None]:
    before = {name: spark.conf.get(name, None) for name in conf}
    for name, value in conf.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


JOB: Final = SparkJob(
    name="upkeep",
    summary="Put small files of Delta tables together, and delete files that no version needs any more.",
    settings=UpkeepSettings,
    run=run,
)

if __name__ == "__main__":
    sys.exit(main(JOB))
