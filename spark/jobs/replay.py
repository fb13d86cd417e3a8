"""`replay`: a table of the raw layout, or of dead letters, back to a topic: partitions, keys, values, headers and timestamps as they were.

There is no checkpoint. The target itself says how far an earlier run came: its partitions have nothing but a prefix of the records
that the table has for them, and the last one names itself in its header `forebay.origin`. A run that finds anything else there
refuses. Records of a killed producer that arrive late are waited for (`--settle`). Those that come later still take an offset that this
run's records were to have: the run fails at that acknowledgement, and the next one refuses, so that no repetition goes unsaid.

With `--onto-others` offsets prove nothing. There the whole target is read, before and after, and what it has twice is said.
"""

import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from spark.errors import JobFailed
from spark.jobs.job import DONE, JobSettings, SparkJob, main
from spark.kafka_admin import KafkaAdmin, kafka_admin
from spark.replaying import LAST, Planned, counted, lacking, left_over, planned, repeated, shared_out
from spark.sending import FIXED, Sending
from spark.session import SessionSettings
from spark.settings import Duration, setting
from spark.stopping import Stopping
from spark.tables import Table
from spark.targets import ReplayTarget
from spark.vocabulary import TableFormat

_ONE_ATTEMPT: Final = {"spark.task.maxFailures": "1", "spark.stage.maxConsecutiveAttempts": "1", "spark.speculation": "false"}
"""A task that Spark starts again, while the first one may still run, would send its records again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySettings(JobSettings):
    table: str = setting(help="Read the table in this folder: the raw layout of materialize, or dead letters.", metavar="PATH")
    format: TableFormat = setting(help="It is this kind of table.", default="delta")
    topic: str = setting(help="Write to this topic.", metavar="TOPIC")
    topics: tuple[str, ...] = setting(help="Write records of these topics only. [default: all in the table]", metavar="TOPIC,…", default=())
    from_timestamp: str = setting(
        help="Write records from this time on only, as in 2013-01-31T12:00:00Z; UTC where it has no zone.", metavar="TIME", default=""
    )
    to_timestamp: str = setting(help="Write records before this time only.", metavar="TIME", default="")
    rate: float | None = setting(help="Write at most this many records a second, all tasks together.", default=None)
    tasks: int = setting(help="Write with this many tasks, each to partitions of its own.", default=2)
    producer: Mapping[str, str] = setting(
        help="Set this of the producer, by librdkafka's names, as in compression.type=zstd. May be given often.", default={}
    )
    settle: Duration = setting(
        help="Begin when nothing has come to the topic for this long: a run that was killed may have records on their way.",
        default=Duration(10.0),
    )
    same_topic: bool = setting(
        help="Write to a topic though the table has records of it, or of one with its name elsewhere.", default=False
    )
    onto_others: bool = setting(
        help="Write to a topic that has other records. Of an earlier run, only what the topic still has is known.", default=False
    )
    dry_run: bool = setting(help="Say how many records would be written, and write none.", default=False)

    def complaints(self) -> Iterator[str]:
        yield from JobSettings.complaints(self)
        if self.rate is not None and not self.rate > 0:
            yield f"--rate={self.rate:g}: expected more than 0"
        if self.tasks < 1:
            yield f"--tasks={self.tasks}: expected 1 or more"
        for name in sorted({*FIXED, "transactional.id", "bootstrap.servers"} & {*self.producer}):
            yield f"--producer {name}=…: the job sets it, or its records would not be there once and in order"
        for flag, given in (("--from-timestamp", self.from_timestamp), ("--to-timestamp", self.to_timestamp)):
            try:
                milliseconds(given)
            except ValueError:
                yield f"{flag}={given!r}: expected a time, as in 2013-01-31T12:00:00Z"

    @property
    def source(self) -> Table:
        return Table(path=self.table, format=self.format)

    def session(self, name: str) -> SessionSettings:
        given = JobSettings.session(self, name)
        return SessionSettings(
            name=given.name,
            master=given.master,
            driver_memory=given.driver_memory,
            shuffle_partitions=given.shuffle_partitions,
            has_delta=given.has_delta,
            log_level=given.log_level,
            conf={**given.conf, **_ONE_ATTEMPT},
        )


def milliseconds(written: str) -> int | None:
    """Since 1970; None where nothing is written. Raise `ValueError`."""
    if not written:
        return None
    found = datetime.fromisoformat(written)
    found = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    since = found - datetime(1970, 1, 1, tzinfo=UTC)
    # The first millisecond that is not before it: timestamps of records are whole ones.
    return -(-(since.days * 86_400_000_000 + since.seconds * 1_000_000 + since.microseconds) // 1_000)


def plan_of(spark: SparkSession, settings: ReplaySettings) -> DataFrame:
    """Raise `JobFailed` where the table does not say which records it has, and each once."""
    rows = settings.source.read_as_it_is(spark)
    if absent := lacking(rows):
        raise JobFailed(
            f"The table {settings.table} has no column {absent[0]}: only a table that materialize wrote with --layout raw, or one of dead "
            "letters, has all that a record is made of."
        )
    plan = planned(
        rows, topics=settings.topics, since_ms=milliseconds(settings.from_timestamp), until_ms=milliseconds(settings.to_timestamp)
    )
    for row in repeated(plan).limit(1).collect():
        raise JobFailed(
            f"The table {settings.table} has {row['count']} rows of {row.topic}-{row.partition} offset {row.offset}, and each record must "
            "be there once, with its topic, partition and offset. `audit` lists what is wrong."
        )
    if not settings.same_topic and not plan.where(sql.col("topic") == settings.topic).isEmpty():
        raise JobFailed(
            f"The table {settings.table} has records of {settings.topic}, which is where they would go. Name another topic, or say "
            "--same-topic if that is what is wanted, or that topic is another cluster's."
        )
    return plan


def check_target(
    settings: ReplaySettings, config: Mapping[str, str], plans: Mapping[int, Planned], *, partition_count: int, now_ms: int
) -> None:
    """Raise `JobFailed` where the topic would not have the records, or not as they were."""
    topic = settings.topic
    if plans and max(plans) >= partition_count:
        raise JobFailed(
            f"The topic {topic} has {partition_count} partitions, and the table has records of partition {max(plans)}: records keep their "
            f"partition. Give the topic {max(plans) + 1} or more."
        )
    if "compact" in config.get("cleanup.policy", ""):
        raise JobFailed(f"The topic {topic} is compacted: its records go, and nobody can tell what was written. Name one that is not.")
    if config.get("message.timestamp.type", "CreateTime") != "CreateTime":
        raise JobFailed(f"The topic {topic} gives records its own time. Set its message.timestamp.type to CreateTime.")
    if unwritable := sum(one.unwritable for one in plans.values()):
        raise JobFailed(
            f"The table {settings.table} has {unwritable} records whose timestamp is 1970 or earlier, which the producer would replace by "
            "the time of day. Leave them out with --from-timestamp 1970-01-01T00:00:00.001Z."
        )
    oldest_ms = min((one.oldest_ms for one in plans.values() if one.oldest_ms is not None), default=now_ms)
    kept_ms = int(config.get("retention.ms", "-1"))
    if 0 <= kept_ms < now_ms - oldest_ms:
        raise JobFailed(
            f"The topic {topic} keeps records for {kept_ms / 1000:g} s (retention.ms), and the oldest that it is to get is older: it would "
            "be deleted at once. Set retention.ms to -1, or leave old ones out with --from-timestamp."
        )


def write(settings: ReplaySettings, plan: DataFrame, lasts: DataFrame, plans: Mapping[int, Planned]) -> int:
    """What is left. Return how many records that was."""
    left = {partition: one.left for partition, one in plans.items() if one.left}
    if not left:
        return 0
    tasks = shared_out(left, settings.tasks)
    of_tasks = {task: sum(left[one] for one, its in tasks.items() if its == task) for task in set(tasks.values())}
    total = sum(left.values())
    sending = Sending(
        topic=settings.topic,
        client={**settings.producer, "bootstrap.servers": settings.bootstrap_servers},
        firsts={} if settings.onto_others else {one: plans[one].before for one in left},
        rates={} if settings.rate is None else {task: settings.rate * count / total for task, count in of_tasks.items()},
    )
    rows = left_over(plan, lasts, tasks).rdd
    return sum(count for _, count in rows.mapPartitionsWithIndex(sending.run).collect())


def run(spark: SparkSession, settings: ReplaySettings, _: Stopping) -> int:
    plan = plan_of(spark, settings)
    with kafka_admin(spark, settings.cluster) as admin:
        topic = admin.topics([settings.topic]).get(settings.topic)
        if topic is None:
            raise JobFailed(f"There is no topic {settings.topic} at {settings.bootstrap_servers}. Create it, with the partitions it needs.")
        target = ReplayTarget(cluster=settings.cluster, topic=topic, has_others=settings.onto_others)
        if not settings.dry_run:
            target.settle(admin, settings.settle)
        lasts, plans = _found(spark, admin, target, plan)
        check_target(settings, admin.config(settings.topic), plans, partition_count=topic.partition_count, now_ms=int(time.time() * 1000))
        before = sum(one.before for one in plans.values())
        if settings.dry_run:
            left = sum(one.left for one in plans.values())
            sys.stdout.write(f"replay: would write {left:,} records to {settings.topic}; {before:,} are there already\n")
            return DONE
        written = write(settings, plan, lasts, plans)
        after = _found(spark, admin, target, plan)[1]
        if absent := [number for number, one in after.items() if one.left]:
            raise JobFailed(f"{settings.topic}-{absent[0]} lacks {after[absent[0]].left} records that were acknowledged. Start again.")
    sys.stdout.write(f"replay: {written:,} records written to {settings.topic}; {before:,} were there already\n")
    return DONE


def _found(spark: SparkSession, admin: KafkaAdmin, target: ReplayTarget, plan: DataFrame) -> tuple[DataFrame, dict[int, Planned]]:
    """What the target has. Raise `JobFailed` unless that is, of each partition, a prefix of the plan."""
    present = target.present(spark, admin, plan)
    lasts = spark.createDataFrame([(partition, *one.last) for partition, one in present.items()], LAST)
    plans = counted(plan, lasts)
    target.check(present, plans)
    return lasts, plans


JOB: Final = SparkJob(name="replay", summary="Write a table back to a topic.", settings=ReplaySettings, run=run)

if __name__ == "__main__":
    sys.exit(main(JOB))
