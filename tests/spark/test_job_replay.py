"""`replay`: a topic that has what the table has, each record once and in order, wherever a run was killed; and what it refuses to write to.

The topics are real ones. Tables are of Parquet, which the session of all tests can read.
"""

import itertools
import random
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from spark.errors import JobFailed
from spark.jobs.replay import ReplaySettings, check_target, milliseconds, plan_of, run, write
from spark.queries import explain
from spark.replaying import LAST, ORIGIN, Planned, counted, left_over, of_this_plan, origins, planned, presences, shared_out
from spark.sending import Acknowledged, RecordPace
from spark.settings import WrongSettings, load
from spark.stopping import Stopping
from spark.targets import is_quiet
from tests.spark.acks import Headers, Record, Row, produce
from tests.spark.brokers import Brokers
from tests.spark.drivers import driver
from tests.spark.reading import read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(1800)

RAW: Final = (
    "topic string, partition int, offset long, timestamp timestamp, timestamp_type int, key binary, value binary, "
    "headers array<struct<key: string, value: binary>>"
)
ENDED_WITHIN_S: Final = 400.0
TOPIC_CONFIG: Final = {"retention.ms": "-1"}


def rows_at(now_ms: int, *where: tuple[str, int, int], headers: Headers = ()) -> list[Row]:
    """Rows of these topics, partitions and offsets. Later offsets have earlier timestamps: only offsets say what is later."""
    return [Row(topic, part, at, b"k%d" % at, b"%s/%d" % (topic.encode(), at), headers, now_ms - at) for topic, part, at in where]


def frame_of(spark: "SparkSession", rows: Sequence[Row]) -> "DataFrame":
    given = [(one.topic, one.partition, one.offset, one.timestamp_ms, 0, one.key, one.value, list(one.headers)) for one in rows]
    return spark.createDataFrame(given, RAW.replace("timestamp timestamp", "timestamp long")).selectExpr(
        "* except (timestamp, timestamp_type, key, value, headers)",
        *("timestamp_millis(timestamp) as timestamp", "timestamp_type", "key", "value", "headers"),
    )


def table_of(spark: "SparkSession", folder: Path, rows: Sequence[Row], *, shuffled: bool = True) -> str:
    path = str(folder / "table")
    given = list(rows)
    if shuffled:
        random.Random(8).shuffle(given)
    frame_of(spark, given).write.mode("append").parquet(path)
    return path


def settings(brokers: Brokers, table: str, topic: str, *others: str) -> ReplaySettings:
    given = ["--bootstrap-servers", brokers.bootstrap, "--table", table, "--format", "parquet", "--topic", topic, "--settle", "0s"]
    return load(ReplaySettings, "replay", [*given, *others], {})


def replayed(rows: Sequence[Row], topic: str) -> list[Row]:
    """What the target has to have of them."""
    found = []
    for partition, its in itertools.groupby(
        sorted(rows, key=lambda one: (one.partition, one.topic, one.offset)), lambda one: one.partition
    ):
        for offset, one in enumerate(its):
            origin = (ORIGIN, f"{one.topic}/{one.partition}/{one.offset}".encode())
            found.append(Row(topic, partition, offset, one.key, one.value, (*one.headers, origin), one.timestamp_ms))
    return found


def in_order(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda one: (one.partition, one.offset))


def test_records_come_back_as_they_were_and_a_second_run_writes_what_the_table_got_since(
    spark: "SparkSession", brokers: Brokers, now_ms: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = brokers.create("replayed", partitions=3, config=TOPIC_CONFIG)
    odd: Headers = (("origin", b"a"), (ORIGIN, b"of/0/1"), ("null", None), ("empty", b""), ("origin", b"b"))
    rows = rows_at(now_ms, *(("was", number % 3, 7 * number) for number in range(40)), headers=odd)
    rows += [Row("was", 1, 500, None, None, (), now_ms), Row("was", 1, 501, b"", b"", (), now_ms)]
    table = table_of(spark, tmp_path, rows)

    assert run(spark, settings(brokers, table, topic), Stopping()) == 0
    assert in_order(read(spark, brokers, subscribe=topic)) == replayed(rows, topic)

    rows += rows_at(now_ms, ("was", 0, 900), ("was", 2, 901), ("wax", 0, 0))
    table_of(spark, tmp_path, rows[-3:])
    assert run(spark, settings(brokers, table, topic, "--dry-run"), Stopping()) == 0
    assert run(spark, settings(brokers, table, topic), Stopping()) == 0
    assert in_order(read(spark, brokers, subscribe=topic)) == replayed(rows, topic)

    assert capsys.readouterr().out.splitlines() == [
        f"replay: 42 records written to {topic}; 0 were there already",
        f"replay: would write 3 records to {topic}; 42 are there already",
        f"replay: 3 records written to {topic}; 42 were there already",
    ]


@pytest.mark.slow
@pytest.mark.long
def test_a_target_with_records_of_others_is_refused_unless_it_is_wanted_and_then_goes_on_behind_its_own(
    spark: "SparkSession", brokers: Brokers, now_ms: int, tmp_path: Path
) -> None:
    topic = brokers.create("shared", partitions=2, config=TOPIC_CONFIG)
    others = [Record(value=b"other", timestamp_ms=now_ms, partition=number, headers=((ORIGIN, b"else/0/7"),)) for number in range(2)]
    produce(brokers.bootstrap, topic, others)
    rows = rows_at(now_ms, *(("was", number % 2, number) for number in range(10)))
    table = table_of(spark, tmp_path, rows[:6])

    with pytest.raises(JobFailed, match=r"shared-\d does not have the first records of this table"):
        run(spark, settings(brokers, table, topic), Stopping())
    assert run(spark, settings(brokers, table, topic, "--onto-others"), Stopping()) == 0
    produce(brokers.bootstrap, topic, others)
    table_of(spark, tmp_path, rows[6:])
    assert run(spark, settings(brokers, table, topic, "--onto-others"), Stopping()) == 0

    found = in_order(read(spark, brokers, subscribe=topic))
    assert [one.value for one in found if one.partition == 0 and one.value != b"other"] == [b"was/%d" % at for at in (0, 2, 4, 6, 8)]
    assert [one.value for one in found if one.partition == 1 and one.value != b"other"] == [b"was/%d" % at for at in (1, 3, 5, 7, 9)]
    assert sum(one.value == b"other" for one in found) == 4


@pytest.mark.slow
@pytest.mark.long
def test_a_record_that_arrives_while_a_run_writes_fails_it_and_the_next_run_refuses(
    spark: "SparkSession", brokers: Brokers, now_ms: int, tmp_path: Path
) -> None:
    topic = brokers.create("raced", config=TOPIC_CONFIG)
    rows = rows_at(now_ms, *(("was", 0, number) for number in range(4)))
    given = settings(brokers, table_of(spark, tmp_path, rows), topic)
    plan = plan_of(spark, given)
    nothing = spark.createDataFrame([], LAST)
    plans = counted(plan, nothing)
    # Of a killed run: it was on its way when this one looked, and found an empty topic.
    late = replayed(rows, topic)[0]
    again = [Record(value=late.value, timestamp_ms=late.timestamp_ms, key=late.key, headers=late.headers)]
    produce(brokers.bootstrap, topic, again)

    with pytest.raises(Exception, match="JobFailed") as raised:
        write(given, plan, nothing, plans)
    assert explain(raised.value).startswith("raced-0 had 0 records, and has 1 now: somebody else writes there. What is there is in order")
    # It was in order all the same: the next run goes on behind it. One that is there twice is not.
    assert run(spark, given, Stopping()) == 0
    assert in_order(read(spark, brokers, subscribe=topic)) == replayed(rows, topic)
    produce(brokers.bootstrap, topic, again)
    with pytest.raises(JobFailed, match="it has 5 records, and up to its last one, was/0/0, there are 1"):
        run(spark, given, Stopping())


def test_an_acknowledgement_that_names_another_offset_than_the_next_is_noticed() -> None:
    alone, among = Acknowledged(7), Acknowledged(None)

    for offset in (7, 8, -1001, 10):
        alone.take(None, offset)
        among.take(None, 2 * offset)
    assert (alone.wrong, among.wrong, alone.count) == ("", "", 4)
    alone.take(None, 12)
    assert alone.wrong == "its record 11 got offset 12: somebody else writes there"
    among.take("too large", None)
    among.take("another", None)
    assert (among.wrong, among.count) == ("the broker does not take it: too large", 4)


def test_tables_that_cannot_be_replayed_are_refused(spark: "SparkSession", brokers: Brokers, now_ms: int, tmp_path: Path) -> None:
    twice = table_of(spark, tmp_path, rows_at(now_ms, ("was", 0, 3), ("was", 0, 4), ("was", 0, 3)))
    typed = str(tmp_path / "typed")
    spark.range(3).write.parquet(typed)

    def refused(table: str, topic: str, *others: str) -> str:
        with pytest.raises(JobFailed) as raised:
            plan_of(spark, settings(brokers, table, topic, *others))
        return str(raised.value)

    assert "2 rows of was-0 offset 3" in refused(twice, "target")
    assert "has no column topic" in refused(typed, "target")
    # Its own topic, in which one of the two is no longer.
    once = f"{tmp_path}/once"
    frame_of(spark, rows_at(now_ms, ("was", 0, 3), ("wax", 0, 4))).write.parquet(once)
    assert "has records of was, which is where they would go" in refused(once, "was")
    assert plan_of(spark, settings(brokers, once, "was", "--same-topic")).count() == 2
    assert plan_of(spark, settings(brokers, once, "was", "--topics", "wax")).count() == 1


@pytest.mark.parametrize(
    ("config", "planned_ms", "partitions", "said"),
    [
        ({}, 1, 3, "has 3 partitions, and the table has records of partition 3"),
        ({"cleanup.policy": "compact,delete"}, 1, 4, "is compacted"),
        ({"message.timestamp.type": "LogAppendTime"}, 1, 4, "gives records its own time"),
        ({"retention.ms": "1000"}, 8_999, 4, "keeps records for 1 s"),
    ],
)
def test_topics_that_would_not_have_the_records_as_they_were_are_refused(
    config: dict[str, str], planned_ms: int, partitions: int, said: str
) -> None:
    given = load(ReplaySettings, "replay", ["--table", "/t", "--topic", "target"], {})
    plans = {3: Planned(count=1, before=0, has_last=False, unwritable=0, oldest_ms=planned_ms)}

    with pytest.raises(JobFailed, match=said):
        check_target(given, config, plans, partition_count=partitions, now_ms=10_000)
    fine = {"cleanup.policy": "delete", "message.timestamp.type": "CreateTime", "retention.ms": "10000"}
    check_target(given, fine, plans, partition_count=4, now_ms=10_000)
    with pytest.raises(JobFailed, match="2 records whose timestamp is 1970 or earlier"):
        check_target(given, fine, {0: Planned(count=2, before=0, has_last=False, unwritable=2, oldest_ms=0)}, partition_count=1, now_ms=1)


def test_what_is_left_is_in_order_and_a_partition_is_one_tasks_business(spark: "SparkSession", now_ms: int) -> None:
    places = [(topic, part, at) for topic in ("b", "a") for part in range(5) for at in (12, 2, 100)]
    plan = planned(frame_of(spark, rows_at(now_ms, *places)))
    lasts = spark.createDataFrame([(1, "a", 100), (2, "b", 2), (3, "a", 1)], LAST)

    plans = counted(plan, lasts)
    tasks = shared_out({number: one.left for number, one in plans.items()}, 2)
    given = left_over(plan, lasts, tasks).rdd.glom().collect()

    assert {number: (one.count, one.before, one.has_last) for number, one in plans.items()} == {
        0: (6, 0, False),
        1: (6, 3, True),
        2: (6, 4, True),
        3: (6, 0, False),
        4: (6, 0, False),
    }
    assert [sorted({row.partition for row in task}) for task in given] == [
        sorted(part for part, its in tasks.items() if its == number) for number in range(2)
    ]
    assert [(row.topic, row.offset) for task in given for row in task if row.partition == 0] == [
        *(("a", 2), ("a", 12), ("a", 100), ("b", 2), ("b", 12), ("b", 100))
    ]
    assert [(row.topic, row.offset) for task in given for row in task if row.partition == 2] == [("b", 12), ("b", 100)]


def test_tasks_get_about_as_many_records_each() -> None:
    assert shared_out({0: 10, 1: 90, 2: 30, 3: 60}, 2) == {1: 0, 3: 1, 2: 1, 0: 0}
    assert shared_out({5: 1}, 8) == {5: 0}


def test_timestamps_and_topics_choose_what_is_written(spark: "SparkSession", now_ms: int) -> None:
    frame = frame_of(spark, rows_at(now_ms, *(("was", 0, at) for at in range(5)), ("wax", 0, 2)))

    found = planned(frame, topics=["was"], since_ms=now_ms - 3, until_ms=now_ms - 1).collect()

    assert sorted((row.topic, row.offset, row.timestamp_ms) for row in found) == [("was", 2, now_ms - 2), ("was", 3, now_ms - 3)]


def test_only_the_last_header_says_where_a_record_is_from(spark: "SparkSession", now_ms: int) -> None:
    def headers(*values: bytes | None) -> Headers:
        return (*((ORIGIN, value) for value in values), ("else", b"was/0/9"))

    given = [
        Row("target", 0, at, None, None, one, now_ms)
        for at, one in enumerate(
            [
                headers(b"was/0/1"),
                headers(b"else/0/3", b"was/0/2"),
                headers(),
                headers(b"was/1/2"),
                headers(b"was/0/x"),
                headers(None),
                headers(b"was/0/99999999999999999999999"),
                headers(b"was/0/2"),
            ]
        )
    ]
    plan = planned(frame_of(spark, rows_at(now_ms, ("was", 0, 1), ("was", 0, 2), ("was", 1, 2))))

    found = origins(frame_of(spark, given))
    (present,) = presences(of_this_plan(found, plan)).collect()

    assert [row["at"] for row in of_this_plan(found, plan).orderBy("at").collect()] == [0, 1, 7]
    assert (present["partition"], present["count"], tuple(present["last"]), present["at"]) == (0, 3, ("was", 2), 7)


class Times:
    """A clock that moves when somebody waits."""

    def __init__(self) -> None:
        self.now = 100.0

    def now_s(self) -> float:
        return self.now

    def sleep(self, wait_s: float) -> None:
        self.now += wait_s


def test_a_pace_is_kept_and_what_was_missed_is_not_made_up_for() -> None:
    times = Times()
    pace = RecordPace(50, now_s=times.now_s)

    for _ in range(101):
        times.sleep(pace.wait_s())
    assert times.now == pytest.approx(102.0)
    times.sleep(10)
    waits = [pace.wait_s() for _ in range(50)]
    # A tenth of a second's worth at once, which is 5 records and the one that is due; the rest at their pace.
    assert waits.count(0.0) == 6
    assert waits[-1] == pytest.approx(44 / 50)


@pytest.mark.parametrize(("seen", "is_still", "lasts_s"), [([3], True, 2.0), ([3, 3, 4, 5], True, 3.5), (list(range(99)), False, 12.5)])
def test_a_run_begins_when_nothing_has_come_for_a_while_and_not_where_records_keep_coming(
    seen: list[int], is_still: bool, lasts_s: float
) -> None:
    times = Times()
    looks = itertools.chain(seen, itertools.repeat(seen[-1]))

    def ends() -> dict[Any, int]:
        return {"target-0": next(looks)}

    assert is_quiet(ends, 2.0, now_s=times.now_s, sleep=times.sleep) == is_still
    assert times.now - 100.0 == lasts_s


def test_settings_that_would_break_its_promise_are_refused() -> None:
    given = ["--table", "/t", "--topic", "target", "--rate", "0", "--tasks", "0", "--from-timestamp", "yesterday"]

    with pytest.raises(WrongSettings) as raised:
        load(ReplaySettings, "replay", [*given, "--producer", "enable.idempotence=false", "--producer", "linger.ms=5"], {})

    assert str(raised.value).splitlines() == [
        "--rate=0: expected more than 0",
        "--tasks=0: expected 1 or more",
        "--producer enable.idempotence=…: the job sets it, or its records would not be there once and in order",
        "--from-timestamp='yesterday': expected a time, as in 2013-01-31T12:00:00Z",
    ]


@pytest.mark.parametrize(
    ("written", "found"),
    [("", None), ("1970-01-01", 0), ("1970-01-01T01:00:00+01:00", 0), ("1970-01-01T00:00:00.0011Z", 2), ("1969-12-31T23:59:59Z", -1000)],
)
def test_a_time_without_a_zone_is_utc_and_a_part_of_a_millisecond_is_the_next(written: str, found: int | None) -> None:
    assert milliseconds(written) == found


def test_no_task_of_a_replay_is_tried_twice() -> None:
    found = (
        load(ReplaySettings, "replay", ["--table", "/t", "--topic", "target", "--conf", "spark.task.maxFailures=9"], {}).session("r").conf
    )

    assert found["spark.task.maxFailures"] == found["spark.stage.maxConsecutiveAttempts"] == "1"
    assert found["spark.speculation"] == "false"


RECORDS: Final = 6_000
RATE: Final = 300
LOOK_EVERY_S: Final = 0.25


@pytest.mark.slow
@pytest.mark.long
def test_a_run_killed_at_three_moments_has_written_each_record_once_and_in_order_when_it_is_done(
    spark: "SparkSession", brokers: Brokers, now_ms: int, tmp_path: Path
) -> None:
    topic = brokers.create("replayed-by-the-killed", partitions=3, config=TOPIC_CONFIG)
    rows = rows_at(now_ms, *(("was", number % 3, number) for number in range(RECORDS)))
    job = ["replay", "--bootstrap-servers", brokers.bootstrap, "--table", table_of(spark, tmp_path, rows), "--format", "parquet"]
    job += ["--topic", topic, "--settle", "5s"]
    chance = random.Random(7)

    def there() -> int:
        return sum(brokers.end(topic, number) for number in range(3))

    written = 0
    for _ in range(3):
        goal = written + chance.randint(50, 900)
        with driver("spark.jobs", *job, "--rate", str(RATE), folder=tmp_path) as running:
            while running.poll() is None and there() < goal:
                time.sleep(LOOK_EVERY_S)
            assert running.poll() is None, (tmp_path / "driver.log").read_text()[-2000:]
        assert running.returncode == -signal.SIGKILL
        written = there()
        assert written < RECORDS, "it was done before it was killed"
    with driver("spark.jobs", *job, folder=tmp_path) as running:
        printed, _ = running.communicate(timeout=ENDED_WITHIN_S)
        assert running.returncode == 0, (tmp_path / "driver.log").read_text()[-2000:]

    assert in_order(read(spark, brokers, subscribe=topic)) == replayed(rows, topic)
    assert f"records written to {topic}" in printed
