"""What tools outside see of a query's progress: never more than is done, soon all of it, and no query that waits for it (offset export)."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from confluent_kafka import Consumer

from spark.checkpoints import committed_offsets
from spark.errors import JobFailed
from spark.jobs.job import StreamSettings
from spark.jobs.materialize import MaterializeSettings
from spark.jobs.materialize import run as materialize
from spark.jobs.offsets import OffsetsSettings, follow, run
from spark.kafka_admin import KafkaCluster, KafkaPartition, kafka_admin
from spark.offset_export import GroupCommits, OffsetExport, QueryTotals, as_json, as_prometheus, goes_back, measured
from spark.settings import Duration, WrongSettings, load
from spark.stopping import Stopping
from tests.kit.serving import ROOT
from tests.spark.acks import produce
from tests.spark.brokers import Brokers
from tests.spark.reading import FINISHED_WITHIN_S, available, stream_of, wait_until
from tests.spark.test_streams import numbered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(1200)

PARTITIONS: Final = 2
STARTED_WITHIN_S: Final = 400.0
SOON: Final = {"default.api.timeout.ms": "500", "request.timeout.ms": "500"}
PROGRESS: Final[dict[str, Any]] = {
    "id": "00000000-0000-0000-0000-000000000001",
    "name": 'the "days"',
    "batchId": 7,
    "timestamp": "2013-01-01T10:00:00.500Z",
    "numInputRows": 30,
    "processedRowsPerSecond": 12.5,
    "durationMs": {"triggerExecution": 2400},
    "stateOperators": [{"numRowsDroppedByWatermark": 2, "numRowsTotal": 11}, {"numRowsDroppedByWatermark": 1, "numRowsTotal": 4}],
    "sources": [
        {"endOffset": '{"a":{"0":10,"1":5}}', "latestOffset": '{"a":{"0":14,"1":5,"2":3}}'},
        {"endOffset": '{"a":{"1":4},"b":{"0":1}}', "latestOffset": None},
        {"endOffset": '{"logOffset":3}', "latestOffset": "12"},
    ],
}


def cluster_of(brokers: Brokers, **client: str) -> KafkaCluster:
    return KafkaCluster(bootstrap_servers=brokers.bootstrap, client=client)


def committed(spark: "SparkSession", brokers: Brokers, group: str) -> dict[int, int]:
    with kafka_admin(spark, cluster_of(brokers)) as admin:
        return {one.partition: offset for one, offset in admin.committed(group).items()}


def a_topic(brokers: Brokers, name: str, now_ms: int, *, records: int = 10) -> str:
    """With so many records in each partition."""
    topic = brokers.create(name, partitions=PARTITIONS)
    more(brokers, topic, now_ms, records=records)
    return topic


def more(brokers: Brokers, topic: str, now_ms: int, *, records: int) -> None:
    produce(brokers.bootstrap, topic, [one for number in range(PARTITIONS) for one in numbered(records, now_ms, partition=number)])


@contextlib.contextmanager
def listening(spark: "SparkSession", export: OffsetExport) -> Iterator[OffsetExport]:
    spark.streams.addListener(export)
    try:
        yield export
        assert export.wait_for_end(FINISHED_WITHIN_S)
    finally:
        spark.streams.removeListener(export)


def read_all(spark: "SparkSession", brokers: Brokers, topic: str, checkpoint: Path, *, name: str) -> None:
    rows = stream_of(spark, brokers, subscribe=topic, maxOffsetsPerTrigger="10").writeStream
    writing = rows.foreachBatch(lambda frame, _: frame.count()).queryName(name).option("checkpointLocation", str(checkpoint))
    assert writing.trigger(availableNow=True).start().awaitTermination(FINISHED_WITHIN_S)


def test_the_offsets_of_a_batch_are_those_that_its_last_source_has_come_to() -> None:
    found = measured(PROGRESS)

    assert found.ends == {KafkaPartition("a", 0): 10, KafkaPartition("a", 1): 4, KafkaPartition("b", 0): 1}
    assert found.behind == {KafkaPartition("a", 0): 4, KafkaPartition("a", 1): 1}
    assert (found.late_rows, found.state_rows, found.seconds) == (3, 15, 2.4)


def test_a_batch_that_is_told_of_twice_is_counted_once() -> None:
    totals = QueryTotals()

    for number in (7, 7, 8):
        totals.take(measured(PROGRESS | {"batchId": number}))

    assert (totals.rows, totals.late_rows) == (60, 6)


def test_metrics_are_written_as_prometheus_reads_them() -> None:
    totals = QueryTotals(commits=4, failed_commits=1)
    assert as_prometheus(totals) == ""
    totals.take(measured(PROGRESS))

    written = as_prometheus(totals)

    labels = 'query="the \\"days\\"",id="00000000-0000-0000-0000-000000000001"'
    for line in (
        f"forebay_spark_seen_timestamp_seconds{{{labels}}} 1357034400.5",
        f"forebay_spark_late_rows_total{{{labels}}} 3",
        f'forebay_spark_behind{{{labels},topic="a",partition="0"}} 4',
        f'forebay_spark_offset{{{labels},topic="b",partition="0"}} 1',
        f"forebay_spark_commit_failures_total{{{labels}}} 1",
    ):
        assert f"\n{line}\n" in written
    samples = [line.split("{")[0] for line in written.splitlines() if not line.startswith("#")]
    assert {line.split()[2] for line in written.splitlines() if line.startswith("# TYPE")} == set(samples)


def test_a_batch_is_a_line_of_json() -> None:
    (line,) = as_json(measured(PROGRESS)).splitlines()

    found = json.loads(line)
    assert (found["batch"], found["rows"], found["late_rows"], found["behind"]) == (7, 30, 3, {"a": {"0": 4, "1": 1}})


def test_a_group_goes_back_where_any_partition_would() -> None:
    a, b = KafkaPartition("a", 0), KafkaPartition("a", 1)

    assert goes_back({a: 5}, {a: 5, b: 0}) == []
    assert goes_back({a: 5, b: 2}, {a: 6, b: 1}) == ["a-1 from 2 to 1"]


def test_a_metrics_file_that_nobody_would_read_is_refused(tmp_path: Path) -> None:
    files = f"{tmp_path}/a.prom,{tmp_path}/b.jsonl,{tmp_path}/c.txt,/nowhere/d.prom"

    with pytest.raises(WrongSettings) as raised:
        load(StreamSettings, "x", ["--metrics-file", files], {})

    assert str(raised.value).splitlines() == [
        f"--metrics-file={tmp_path}/c.txt: expected a name that ends in .prom or .jsonl",
        "--metrics-file=/nowhere/d.prom: there is no folder /nowhere",
    ]


def a_checkpoint(folder: Path, planned: str, done: str = "v1\n{}") -> str:
    for name, text in (("offsets", planned), ("commits", done)):
        (folder / name).mkdir()
        (folder / name / "3").write_text(text)
    return str(folder)


def test_a_checkpoint_of_several_sources_is_as_far_as_the_last_of_them(spark: "SparkSession", tmp_path: Path) -> None:
    checkpoint = a_checkpoint(tmp_path, 'v1\n{"batchWatermarkMs":0}\n5\n{"a":{"0":7,"1":2}}\n-\n{"a":{"0":4}}')

    assert committed_offsets(spark, checkpoint) == (3, {KafkaPartition("a", 0): 4, KafkaPartition("a", 1): 2})


@pytest.mark.parametrize(
    ("planned", "done"),
    [
        ('v1\n{}\n{"a":{"0":7}}', ""),
        ("", "v1\n{}"),
        ('v1\n{}\n{"a":{"0":7', "v1\n{}"),
        ('v1\n{}\n{"logOffset":3}', "v1\n{}"),
    ],
)
def test_a_checkpoint_that_does_not_say_how_far_it_is_is_refused(spark: "SparkSession", tmp_path: Path, planned: str, done: str) -> None:
    with pytest.raises(JobFailed, match="is no checkpoint of a query that reads Kafka: of batch 3"):
        committed_offsets(spark, a_checkpoint(tmp_path, planned, done))


def test_the_group_follows_the_query_of_its_name_and_no_other(spark: "SparkSession", brokers: Brokers, now_ms: int, tmp_path: Path) -> None:
    topic = a_topic(brokers, "followed", now_ms)
    files = (tmp_path / "mine.prom", tmp_path / "mine.jsonl")
    export = OffsetExport(spark, cluster_of(brokers), query="mine", group="followed", metrics_files=files)

    with listening(spark, export):
        read_all(spark, brokers, topic, tmp_path / "mine", name="mine")
        assert export.wait_for_end(FINISHED_WITHIN_S)
        more(brokers, topic, now_ms, records=5)
        read_all(spark, brokers, topic, tmp_path / "other", name="other")
    assert export.close()

    assert committed(spark, brokers, "followed") == dict.fromkeys(range(PARTITIONS), 10)
    assert [json.loads(line)["rows"] for line in files[1].read_text().splitlines()] == [10, 10]
    written = files[0].read_text()
    assert 'forebay_spark_rows_total{query="mine",' in written
    assert [line.rpartition(" ")[2] for line in written.splitlines() if line.startswith("forebay_spark_behind{")] == ["0", "0"]
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["mine.jsonl", "mine.prom"]


@contextlib.contextmanager
def a_member(brokers: Brokers, group: str, topic: str) -> Iterator[None]:
    """Somebody reads in the group while the block runs."""
    consumer = Consumer({"bootstrap.servers": brokers.bootstrap, "group.id": group, "enable.auto.commit": False})
    try:
        consumer.subscribe([topic])
        wait_until(lambda: bool(consumer.poll(0.1) or consumer.assignment()))
        yield
    finally:
        consumer.close()


def test_a_group_with_members_is_left_alone_and_followed_when_they_are_gone(
    spark: "SparkSession", brokers: Brokers, now_ms: int, tmp_path: Path
) -> None:
    topic = a_topic(brokers, "with-members", now_ms)
    said = io.StringIO()
    export = OffsetExport(spark, cluster_of(brokers), query="members", group="with-members", again_after_s=0.05, out=said)

    with listening(spark, export), a_member(brokers, "with-members", topic):
        read_all(spark, brokers, topic, tmp_path / "checkpoint", name="members")
        commits = export.commits
        assert commits is not None
        wait_until(lambda: commits.failures > 2)
    wait_until(lambda: commits.commits > 0)

    assert export.close()
    assert committed(spark, brokers, "with-members") == dict.fromkeys(range(PARTITIONS), 10)
    first, second = said.getvalue().splitlines()
    assert first.startswith("the group with-members does not follow the query: Kafka at ")
    assert second == "the group with-members follows the query again"


def test_a_cluster_that_is_away_costs_the_query_nothing(spark: "SparkSession", brokers: Brokers, now_ms: int, tmp_path: Path) -> None:
    topic = a_topic(brokers, "away", now_ms)
    said = io.StringIO()
    nowhere = KafkaCluster(bootstrap_servers="127.0.0.1:1", client=SOON)
    export = OffsetExport(spark, nowhere, query="away", group="away", again_after_s=0.05, metrics_files=[Path("/nowhere/x.prom")], out=said)

    with listening(spark, export):
        read_all(spark, brokers, topic, tmp_path / "checkpoint", name="away")
        commits = export.commits
        assert commits is not None
        wait_until(lambda: commits.failures > 1)

    assert not export.close()
    lines = sorted(said.getvalue().splitlines())
    assert len(lines) == 2
    assert lines[0].startswith("the group away does not follow the query: Kafka at 127.0.0.1:1 does not list offsets")
    assert lines[1] == "the metrics file /nowhere/x.prom cannot be written: No such file or directory. The query goes on."


def test_a_query_does_not_wait_for_a_commit(spark: "SparkSession", brokers: Brokers, now_ms: int, tmp_path: Path) -> None:
    topic = a_topic(brokers, "waiting", now_ms)
    patient = KafkaCluster(bootstrap_servers="127.0.0.1:1", client=dict.fromkeys(SOON, "120000"))
    export = OffsetExport(spark, patient, query="waiting", group="waiting", out=io.StringIO())

    with listening(spark, export):
        read_all(spark, brokers, topic, tmp_path / "checkpoint", name="waiting")

    assert export.commits is not None
    assert export.commits.failures == 0, "it was over only when the first commit had failed"
    assert not export.close(within_s=0)


def test_a_group_that_is_ahead_is_never_set_back_by_a_query(spark: "SparkSession", brokers: Brokers, now_ms: int) -> None:
    topic = a_topic(brokers, "ahead", now_ms)
    with kafka_admin(spark, cluster_of(brokers)) as admin:
        admin.commit("ahead", {KafkaPartition(topic, 0): 7})
    commits = GroupCommits(spark, cluster_of(brokers), "ahead", again_after_s=0.05, out=io.StringIO())

    commits.hand_over({KafkaPartition(topic, 0): 6, KafkaPartition(topic, 1): 6})
    wait_until(lambda: commits.failures > 0)
    before = committed(spark, brokers, "ahead")
    commits.hand_over({KafkaPartition(topic, 0): 8})

    assert commits.close(within_s=FINISHED_WITHIN_S)
    assert (before, committed(spark, brokers, "ahead")) == ({0: 7}, {0: 8, 1: 6})


def settings_of(brokers: Brokers, checkpoint: Path, group: str, **given: Any) -> OffsetsSettings:
    return OffsetsSettings(bootstrap_servers=brokers.bootstrap, checkpoint=str(checkpoint), group=group, **given)


def test_what_any_query_has_done_is_committed_and_nothing_is_set_back_unasked(
    spark: "SparkSession", brokers: Brokers, now_ms: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = a_topic(brokers, "of-others", now_ms)
    available(spark, brokers, tmp_path, subscribe=topic)

    assert run(spark, settings_of(brokers, tmp_path, "of-others"), Stopping()) == 0
    assert committed(spark, brokers, "of-others") == dict.fromkeys(range(PARTITIONS), 10)
    with kafka_admin(spark, cluster_of(brokers)) as admin:
        admin.commit("of-others", {KafkaPartition(topic, 0): 3, KafkaPartition(topic, 1): 11})
    assert run(spark, settings_of(brokers, tmp_path, "of-others"), Stopping()) == 1
    assert f"would go back on {topic}-1 from 11 to 10. If the group is this query's: --backwards." in capsys.readouterr().err
    assert committed(spark, brokers, "of-others") == {0: 3, 1: 11}
    assert run(spark, settings_of(brokers, tmp_path, "of-others", backwards=True), Stopping()) == 0
    assert committed(spark, brokers, "of-others") == dict.fromkeys(range(PARTITIONS), 10)


def test_offsets_beyond_the_end_of_a_topic_are_of_another(spark: "SparkSession", brokers: Brokers, now_ms: int) -> None:
    topic = a_topic(brokers, "beyond", now_ms)

    with kafka_admin(spark, cluster_of(brokers)) as admin:
        with pytest.raises(JobFailed, match="beyond-0 ends at 10, and the checkpoint is at 11: the topic was made again"):
            follow(admin, "beyond", 3, {KafkaPartition(topic, 0): 11, KafkaPartition(topic, 1): 5}, may_go_back=True)
        assert admin.committed("beyond") == {}


def test_a_folder_without_a_checkpoint_is_refused(spark: "SparkSession", brokers: Brokers, tmp_path: Path) -> None:
    with pytest.raises(JobFailed, match=f"There is no checkpoint in {tmp_path}: expected the folder"):
        run(spark, settings_of(brokers, tmp_path, "x"), Stopping())


@pytest.mark.parametrize(
    ("note", "said"),
    [
        ({"cluster_id": "elsewhere"}, "is of the cluster elsewhere"),
        ({"topics": {"noted": "AAAAAAAAAAAAAAAAAAAAAA"}}, "The topic noted was deleted"),
    ],
)
def test_a_checkpoint_of_another_cluster_or_of_a_topic_that_is_gone_is_refused(
    spark: "SparkSession", brokers: Brokers, tmp_path: Path, note: Mapping[str, Any], said: str
) -> None:
    with kafka_admin(spark, cluster_of(brokers)) as admin:
        noted = {"id": "x", "job": "materialize", "cluster_id": admin.cluster_id(), "topics": {}, "output": "x"} | note
    a_checkpoint(tmp_path, 'v1\n{}\n{"noted":{"0":7}}')
    (tmp_path / "forebay.json").write_text(json.dumps(noted))

    with pytest.raises(JobFailed, match=said):
        run(spark, settings_of(brokers, tmp_path, "x"), Stopping())


@pytest.mark.slow
@pytest.mark.long
def test_with_an_interval_the_group_follows_until_it_is_stopped(
    spark: "SparkSession", brokers: Brokers, now_ms: int, tmp_path: Path
) -> None:
    topic = a_topic(brokers, "again", now_ms)
    available(spark, brokers, tmp_path, subscribe=topic)
    stopping = Stopping()
    codes: list[int] = []
    settings = settings_of(brokers, tmp_path, "again", interval=Duration(0.05))
    following = threading.Thread(target=lambda: codes.append(run(spark, settings, stopping)))
    following.start()
    try:
        wait_until(lambda: committed(spark, brokers, "again") == dict.fromkeys(range(PARTITIONS), 10))
        more(brokers, topic, now_ms, records=2)
        available(spark, brokers, tmp_path, subscribe=topic)
        wait_until(lambda: committed(spark, brokers, "again") == dict.fromkeys(range(PARTITIONS), 12))
    finally:
        stopping.ask()
        following.join(FINISHED_WITHIN_S)

    assert codes == [0]


def test_a_run_that_finds_nothing_new_makes_good_what_a_killed_one_did_not_commit(
    spark: "SparkSession", brokers: Brokers, now_ms: int, tmp_path: Path
) -> None:
    topic = a_topic(brokers, "made-good", now_ms)
    settings: dict[str, Any] = {
        "bootstrap_servers": brokers.bootstrap,
        "topics": (topic,),
        "table": str(tmp_path / "table"),
        "checkpoint": str(tmp_path / "checkpoint"),
        "format": "parquet",
    }
    assert materialize(spark, MaterializeSettings(**settings), Stopping()) == 0
    assert committed(spark, brokers, "made-good") == {}

    assert materialize(spark, MaterializeSettings(**settings, group="made-good"), Stopping()) == 0

    assert committed(spark, brokers, "made-good") == dict.fromkeys(range(PARTITIONS), 10)


@contextlib.contextmanager
def a_driver(brokers: Brokers, topic: str, folder: Path, *, group: str) -> Iterator["subprocess.Popen[str]"]:
    """`materialize` in a process of its own, killed with its JVM in the end."""
    command = [sys.executable, "-m", "spark.jobs", "materialize", "--bootstrap-servers", brokers.bootstrap, "--topics", topic]
    command += ["--table", str(folder / "table"), "--checkpoint", str(folder / "checkpoint"), "--offsets-per-batch", "20"]
    with (folder / "driver.log").open("a") as log:
        driver = subprocess.Popen(
            [*command, "--group", group], stdin=subprocess.DEVNULL, stdout=log, stderr=log, text=True, cwd=ROOT, start_new_session=True
        )
    try:
        yield driver
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)
        driver.wait(FINISHED_WITHIN_S)


def forebay_group(brokers: Brokers, command: str, group: str) -> Any:
    asked = [sys.executable, "-m", "forebay", "group", command, group, "--bootstrap", brokers.addresses[0], "--output", "json"]
    return json.loads(subprocess.run(asked, check=True, capture_output=True, text=True, cwd=ROOT).stdout)


@pytest.mark.slow
@pytest.mark.long
def test_the_group_of_a_driver_that_is_killed_is_never_ahead_of_it_and_in_the_end_where_it_is(
    spark: "SparkSession", brokers: Brokers, now_ms: int, tmp_path: Path
) -> None:
    topic = a_topic(brokers, "killed-and-followed", now_ms, records=120)
    checkpoint = str(tmp_path / "checkpoint")

    def batches_done() -> int:
        return len(list((tmp_path / "checkpoint" / "commits").glob("[0-9]*")))

    def kill_when(moment: Callable[[], bool]) -> None:
        with a_driver(brokers, topic, tmp_path, group="killed") as driver:
            wait_until(lambda: driver.poll() is not None or moment(), within_s=STARTED_WITHIN_S)
            assert driver.poll() is None, (tmp_path / "driver.log").read_text()
        done = committed_offsets(spark, checkpoint)
        assert done is not None
        assert all(offset <= done[1][KafkaPartition(topic, number)] for number, offset in committed(spark, brokers, "killed").items())

    kill_when(lambda: batches_done() > 0)
    before = committed(spark, brokers, "killed")
    kill_when(lambda: committed(spark, brokers, "killed") != before)
    before_batches = batches_done()
    kill_when(lambda: batches_done() > before_batches)
    with a_driver(brokers, topic, tmp_path, group="killed") as driver:
        assert driver.wait(STARTED_WITHIN_S) == 0, (tmp_path / "driver.log").read_text()

    assert committed(spark, brokers, "killed") == dict.fromkeys(range(PARTITIONS), 120)
    if brokers.are_ours:
        assert forebay_group(brokers, "describe", "killed")["state"] == "Empty"
        assert forebay_group(brokers, "lag", "killed")["lag"] == 0
