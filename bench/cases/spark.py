"""Spark's stock Kafka source and the job `materialize`, over a broker and over Apache Kafka in turns, in one session.

A query runs on the machine's own processors beside the broker that it reads from: its rows a second say little, and against Kafka's in the
same minute they say all. `times_kafka` is ours divided by theirs.
"""

import asyncio
import contextlib
import dataclasses
import io
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench import clients, meter, processes
from bench.cases.case import Case, Plan, answered, fresh_broker, metered
from bench.cases.compaction import compact_now
from bench.clients import Load
from bench.old_log import OldLog, write_old_log
from bench.processes import Target
from bench.results import CaseResult, Fact, Run, Work
from bench.stores import DISK, NATIVE, fresh
from bench.units import KIB
from runtime.clock import SystemClock
from spark.session import SessionSettings, open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORDS: Final = 1_000_000
PARTITIONS: Final = 12
TOPIC: Final = "rows"
QUERIES: Final = 3
PACE_ROWS_PER_S: Final = 5_000
PACED_S: Final = 30
TIMES_KAFKA: Final = 0.9
_TUNED: Final[dict[str, Fact]] = {"kafka.max.partition.fetch.bytes": 8 * 1024 * KIB, "kafka.fetch.max.bytes": 64 * 1024 * KIB}
LOOK_EVERY_S: Final = 0.02
_clock = SystemClock()


@dataclass(frozen=True, slots=True)
class Sides:
    """Both have the same records in the same topic."""

    spark: "SparkSession"
    ours: Target
    kafka: Target


def _read(spark: "SparkSession", target: Target, *, records: int, options: dict[str, Fact]) -> None:
    """The whole topic. Raise `Lost` if rows or bytes are missing."""
    given = {name: str(value) for name, value in options.items()}
    source = {"kafka.bootstrap.servers": target.bootstrap, "subscribe": TOPIC, "failOnDataLoss": "true"} | given
    frame = spark.read.format("kafka").options(**source).load()
    row = frame.selectExpr("count(*) as rows", "sum(length(value)) as bytes").collect()[0]
    if (row["rows"], row["bytes"]) != (records, records * KIB):
        raise clients.Lost(f"{row['rows']} rows of {row['bytes']} bytes were read, and {records} of 1 KiB were written")


def _measured(sides: Sides, work: Callable[[Target], None], *, records: int, repeats: int) -> list[Run]:
    """In turns, after one of each that is not counted: classes are loaded then, and plans compiled."""
    for target in (sides.kafka, sides.ours):
        work(target)
    runs = []
    for _ in range(repeats):
        theirs = metered(sides.kafka, lambda: work(sides.kafka), records=records, value_bytes=records * KIB)
        before = sides.ours.counters()
        ours = metered(sides.ours, lambda: work(sides.ours), records=records, value_bytes=records * KIB)
        after = sides.ours.counters()
        runs.append(_run_of(sides, ours, theirs, answered(after, before, "ListOffsets"), answered(after, before, "Fetch")))
    return runs


def _run_of(sides: Sides, ours: Work, theirs: Work, list_offsets: int, fetches: int) -> Run:
    facts: dict[str, Fact] = {
        "rows_per_s": ours.records / ours.seconds,
        "kafka_rows_per_s": theirs.records / theirs.seconds,
        "times_kafka": theirs.seconds / ours.seconds,
        "kafka_cpu_s_per_gib": theirs.cpu_s * 2**30 / theirs.value_bytes,
        "list_offsets_per_million_rows": list_offsets * 1e6 / ours.records,
    }
    counted = Work(ours.records, ours.value_bytes, fetches, ours.seconds, ours.user_s, ours.system_s, ours.loop_s)
    return Run(counted, None, meter.peak_rss_bytes(sides.ours.pid), facts)


@contextlib.contextmanager
def _session() -> Iterator["SparkSession"]:
    with open_session(SessionSettings(name="bench", has_delta=True, driver_memory="2g", log_level="ERROR")) as spark:
        yield spark


def _fill(target: Target, topic: str, records: int, *, bytes_per_s: float | None = None) -> None:
    load = Load(records=records, record_bytes=KIB, partitions=PARTITIONS, turn_records=1_000 if bytes_per_s is None else 100)
    with clients.producer(target.bootstrap, load) as made:
        clients.produce(made, topic, load, bytes_per_s=bytes_per_s)


def _create(targets: Sequence[Target], topic: str) -> None:
    for target in targets:
        clients.create_served_topics(target.bootstrap, [topic], PARTITIONS)


def _tail(plan: Plan, store: str) -> CaseResult:
    """What was written a moment ago: of a GiB, an eighth is in the tail cache."""
    records = plan.scaled(RECORDS)
    with _session() as spark, fresh_broker(plan, store, {}) as (_, ours), processes.kafka(plan.folder) as kafka:
        _create((ours, kafka), TOPIC)
        for target in (ours, kafka):
            _fill(target, TOPIC, records)
        sides = Sides(spark, ours, kafka)
        runs = _measured(sides, lambda target: _read(spark, target, records=records, options={}), records=records, repeats=plan.repeats)
    return _result("spark-tail", store, "a batch read of all that was written a moment ago", records, {}, runs)


def _segments(plan: Plan, store: str) -> CaseResult:
    with _compacted(plan, store) as (sides, records):
        runs = _measured(
            sides, lambda target: _read(sides.spark, target, records=records, options={}), records=records, repeats=plan.repeats
        )
    return _result("spark-segments", store, "a batch read of a log that was compacted, with Spark's defaults", records, {}, runs)


def _segments_tuned(plan: Plan, store: str) -> CaseResult:
    with _compacted(plan, store) as (sides, records):
        runs = _measured(
            sides, lambda target: _read(sides.spark, target, records=records, options=_TUNED), records=records, repeats=plan.repeats
        )
    return _result("spark-segments-tuned", store, "the same with larger fetches", records, _TUNED, runs)


def _three(plan: Plan, store: str) -> CaseResult:
    def all_of_them(sides: Sides, target: Target, records: int) -> None:
        with ThreadPoolExecutor(QUERIES) as pool:
            for one in [pool.submit(_read, sides.spark, target, records=records, options={}) for _ in range(QUERIES)]:
                one.result()

    with _compacted(plan, store) as (sides, records):
        runs = _measured(sides, lambda target: all_of_them(sides, target, records), records=QUERIES * records, repeats=plan.repeats)
    return _result("spark-three", store, f"{QUERIES} batch reads at once of a log that was compacted", QUERIES * records, {}, runs)


@contextlib.contextmanager
def _compacted(plan: Plan, store: str) -> Iterator[tuple[Sides, int]]:
    shape = OldLog(partitions=PARTITIONS, slices=plan.scaled(RECORDS // OldLog().records_per_slice))
    with _session() as spark, fresh(store, plan.folder) as place, processes.kafka(plan.folder) as kafka:
        asyncio.run(write_old_log(place.storage_url, place.metadata_url, shape, topic=TOPIC))
        compact_now(place)
        _create((kafka,), TOPIC)
        _fill(kafka, TOPIC, shape.records)
        with processes.broker(place, {}) as ours:
            yield Sides(spark, ours, kafka), shape.records


def _materialize(plan: Plan, store: str) -> CaseResult:
    """All there is into Delta Lake, then as it comes."""
    records = plan.scaled(RECORDS)
    paced = PACE_ROWS_PER_S * plan.scaled(PACED_S)
    numbers = iter(range(1_000))
    with (
        _session() as spark,
        fresh_broker(plan, store, {}) as (_, ours),
        processes.kafka(plan.folder) as kafka,
        tempfile.TemporaryDirectory(prefix="forebay-bench-spark-", dir=plan.folder) as made,
    ):
        _create((ours, kafka), TOPIC)
        for target in (ours, kafka):
            _fill(target, TOPIC, records)
        sides = Sides(spark, ours, kafka)

        def all_there_is(target: Target) -> None:
            _run_job(spark, target, TOPIC, Path(made) / str(next(numbers)))

        runs = _measured(sides, all_there_is, records=records, repeats=plan.repeats)
        behind = {name: _behind_s(spark, target, paced, Path(made) / name) for name, target in (("kafka", kafka), ("ours", ours))}
    facts: dict[str, Fact] = {"seconds_behind": behind["ours"], "kafka_seconds_behind": behind["kafka"]}
    runs = [Run(run.broker, run.null, run.peak_rss_bytes, {**run.facts, **facts}) for run in runs]
    what = f"materialize into Delta Lake; seconds behind: from the last of {PACE_ROWS_PER_S} records a second to its row"
    return _result("spark-materialize", store, what, records, {}, runs)


def _run_job(spark: "SparkSession", target: Target, topic: str, folder: Path) -> None:
    from spark.jobs import materialize
    from spark.jobs.materialize import MaterializeSettings
    from spark.stopping import Stopping

    settings = MaterializeSettings(
        bootstrap_servers=target.bootstrap, topics=(topic,), table=str(folder / "table"), checkpoint=str(folder / "checkpoint")
    )
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        materialize.run(spark, settings, Stopping())


def _behind_s(spark: "SparkSession", target: Target, records: int, folder: Path) -> float:
    """A query that writes a batch a second beside a paced producer: how long after the last acknowledgement all rows are in the table."""
    from spark.checkpoints import committed_offsets
    from spark.jobs import materialize
    from spark.jobs.materialize import MaterializeSettings
    from spark.settings import Duration
    from spark.stopping import Stopping

    topic = "paced"
    _create((target,), topic)
    stopping = Stopping()
    settings = MaterializeSettings(
        bootstrap_servers=target.bootstrap, topics=(topic,), table=str(folder / "table"), checkpoint=str(folder / "checkpoint")
    )
    every_second = dataclasses.replace(settings, interval=Duration(1))
    with ThreadPoolExecutor(1) as pool, contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        running = pool.submit(materialize.run, spark, every_second, stopping)
        try:
            _fill(target, topic, records, bytes_per_s=PACE_ROWS_PER_S * KIB)
            acknowledged_s = _clock.monotonic_s()
            while (waited_s := _clock.monotonic_s() - acknowledged_s) < clients.SETTLED_WITHIN_S and not running.done():
                committed = committed_offsets(spark, settings.checkpoint)
                if committed is not None and sum(committed[1].values()) == records:
                    return waited_s
                time.sleep(LOOK_EVERY_S)
            raise clients.Lost(f"not all of {records} rows are in the table after {waited_s:.0f} s")
        finally:
            stopping.ask()
            running.result(clients.SETTLED_WITHIN_S)


def _result(name: str, store: str, what: str, records: int, options: dict[str, Fact], runs: list[Run]) -> CaseResult:
    settings: dict[str, Fact] = {"records": records, "record_bytes": KIB, "partitions": PARTITIONS, "master": "local[2]", **options}
    return CaseResult(name, store, what, settings, runs, {}, {"times_kafka": TIMES_KAFKA})


CASES: Final = (
    Case("spark-tail", (DISK, NATIVE), _tail),
    Case("spark-segments", (DISK, NATIVE), _segments),
    Case("spark-segments-tuned", (DISK, NATIVE), _segments_tuned),
    Case("spark-three", (DISK, NATIVE), _three),
    Case("spark-materialize", (DISK, NATIVE), _materialize),
)
