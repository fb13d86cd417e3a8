"""One Spark session for all that runs here: `with open_session(SessionSettings(name="…")) as spark: …`.

A failure to start is one sentence (`SparkUnavailable`) before a JVM is started. A program has one session at a time.

`make jars` keeps the jars that Spark needs beside pyspark: its Kafka connector, Avro and Delta Lake (docs/internals/adr/0023-spark-set.md).
They are found here without Maven and without a network. services/jars.py fetches and names them;
tests/spark/test_session.py compares the names.
"""

import contextlib
import hashlib
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spark.class_archive import archive_for
from spark.errors import SparkUnavailable
from spark.requirements import PySpark, cache_folder, found_java, found_pyspark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PINNED: Final = Path(__file__).resolve().parent / "spark-connector"
"""The folder of pom.xml and jars.sha256."""
_DIGITS: Final = 8
LOCAL: Final = "local[2]"
_HOST: Final = "127.0.0.1"
_SOON_READY: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_DELTA: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
_JARS_BY_SPARK: Final = {"spark.jars", "spark.jars.packages"}
"""Who sets these brings the jars."""
_LOG_SETTINGS: Final = "log4j2.configurationFile"
_LOG: Final = Path(__file__).resolve().parent / "log4j2.properties"
_FEW_FILES: Final = {
    # Delta reads its log in 50 tasks and lists a table's folder for VACUUM in 10,000 of them, however few files there are.
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
}


def kept_jars() -> tuple[Path, ...]:
    """Every jar of the set, in the order of their names. Raise `SparkUnavailable`."""
    folder = cache_folder() / "jars" / f"{PINNED.name}-{set_digest()}"
    jars = tuple(sorted(folder.glob("*.jar")))
    if not jars:
        raise SparkUnavailable(
            f"The jars of Spark's Kafka connector are not in {folder}: run `make jars` in the repository, once "
            "(it needs Maven), or let Spark fetch what `spark/README.md` lists: --conf spark.jars.packages=…."
        )
    return jars


def set_digest() -> str:
    """Of the versions and checksums that are pinned. Raise `SparkUnavailable` where the folder `spark` is not whole."""
    digest = hashlib.sha256()
    try:
        for part in ("pom.xml", "jars.sha256"):
            digest.update((PINNED / part).read_bytes())
    except OSError as error:
        raise SparkUnavailable(f"{PINNED} does not say which jars Spark needs ({error.strerror}): name them in the settings.") from error
    return digest.hexdigest()[:_DIGITS]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """`name` is what Spark calls the application. `jars`: None takes those of `make jars`.

    `master`: where it runs; empty where `spark-submit` says so, which then decides about memory, jars, Java and Python, too.
    `shuffle_partitions`: Spark's own 200 are for clusters. `java_options`: of the driver's JVM. `is_brief`: it starts soon and is slow
    afterwards, for tests. `has_delta`: tables of Delta Lake. `outlives_sigterm`: the JVM ends with this process and by no
    SIGTERM. `conf`, by Spark's names, is stronger than all of this.
    """

    name: str
    master: str = LOCAL
    jars: tuple[Path, ...] | None = None
    driver_memory: str = "1g"
    shuffle_partitions: int = 2
    java_options: tuple[str, ...] = ()
    is_brief: bool = False
    has_delta: bool = False
    outlives_sigterm: bool = False
    log_level: str = "WARN"
    conf: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise ValueError("a session needs a name: Spark shows it in its logs and pages")
        if self.shuffle_partitions < 1:
            raise ValueError(f"shuffle_partitions={self.shuffle_partitions}: expected 1 or more")

    @property
    def is_local(self) -> bool:
        return self.master.startswith("local")


@contextlib.contextmanager
def open_session(settings: SessionSettings) -> Iterator["SparkSession"]:
    """Stopped at the end, with whatever it runs. Raise `SparkUnavailable`."""
    pyspark = found_pyspark()
    from pyspark.sql import SparkSession

    with tempfile.TemporaryDirectory(prefix="forebay-spark-", ignore_cleanup_errors=True) as scratch:
        builder = SparkSession.builder
        for name, value in prepared(settings, pyspark, Path(scratch)).items():
            builder = builder.config(name, value)
        with _outliving_sigterm() if settings.outlives_sigterm else contextlib.nullcontext():
            session = builder.getOrCreate()
        try:
            session.sparkContext.setLogLevel(settings.log_level)
            yield session
        finally:
            session.stop()


@contextlib.contextmanager
def _outliving_sigterm() -> Iterator[None]:
    """Let a process that this thread starts inside the block ignore SIGTERM.

    systemd and a shell send a signal to all processes of a job. A JVM that ended by it in mid-answer would leave its Python nothing to say
    but stacks. It ends with the pipe from Python.
    """
    thread, is_inside = threading.get_ident(), True

    def ignore_sigterm() -> None:
        if is_inside and threading.get_ident() == thread:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)

    os.register_at_fork(after_in_child=ignore_sigterm)  # nothing unregisters it: it has no effect after the block
    try:
        yield
    finally:
        is_inside = False


def prepared(settings: SessionSettings, pyspark: PySpark, scratch: Path) -> dict[str, str]:
    """Spark's settings for this machine; where it runs here, those in the environment, too. Raise `SparkUnavailable`."""
    if not settings.master:
        return of_queries(settings) | dict(settings.conf)
    jars = _jars(settings)
    if absent := [str(jar) for jar in jars if not jar.is_file()]:
        raise SparkUnavailable(f"There is no jar {absent[0]}: run `make jars`, or name others in the settings.")
    java = found_java()
    options = [*settings.java_options, *(_SOON_READY if settings.is_brief else ())]
    if settings.is_local:
        # Spark would take whatever `python3` is on the PATH, which need not have what this one has.
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ.setdefault("SPARK_LOCAL_IP", _HOST)
        options += archive_for(java, pyspark).options()
        if not any(_LOG_SETTINGS in one for one in options):
            options += [f'"-D{_LOG_SETTINGS}={_LOG}"', f"-Dforebay.log.level={settings.log_level.lower()}"]
    return (
        of_queries(settings)
        | {
            "spark.master": settings.master,
            "spark.driver.memory": settings.driver_memory,
            "spark.driver.extraJavaOptions": " ".join(options),
        }
        | ({"spark.jars": ",".join(map(str, jars))} if jars else {})
        | (of_this_machine(settings, scratch) if settings.is_local else {})
        | dict(settings.conf)
    )


def _jars(settings: SessionSettings) -> tuple[Path, ...]:
    if settings.jars is not None:
        return settings.jars
    return () if _JARS_BY_SPARK & settings.conf.keys() else kept_jars()


def of_queries(settings: SessionSettings) -> dict[str, str]:
    """What is the same wherever it runs."""
    return {
        "spark.app.name": settings.name,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(settings.shuffle_partitions),
    } | (_DELTA if settings.has_delta else {})


def of_this_machine(settings: SessionSettings, scratch: Path) -> dict[str, str]:
    """Nothing listens beyond it, no page is served, and what Spark leaves behind goes with the session."""
    return {
        "spark.driver.host": _HOST,
        "spark.driver.bindAddress": _HOST,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.default.parallelism": str(settings.shuffle_partitions),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
    } | (_FEW_FILES if settings.has_delta else {})
