"""`materialize` in the session of these tests, so into Parquet: what it writes, and what it refuses. Delta: test_job_kills.py."""

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spark.errors import JobFailed
from tests.spark.acks import Record, Row, assert_exact, produce
from tests.spark.brokers import Brokers
from tests.spark.reading import rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark.jobs.materialize import MaterializeSettings

pytestmark = pytest.mark.timeout(900)

SCHEMA = "-- of a flight\ncarrier STRING NOT NULL,\ndep_delay INT"


def settings(brokers: Brokers, folder: Path, **given: Any) -> "MaterializeSettings":
    from spark.jobs.materialize import MaterializeSettings

    usual = {
        "bootstrap_servers": brokers.bootstrap,
        "table": str(folder / "table"),
        "checkpoint": str(folder / "checkpoint"),
        "format": "parquet",
    }
    return MaterializeSettings(**usual | given)


def materialize(spark: "SparkSession", made: "MaterializeSettings") -> int:
    from spark.jobs import materialize
    from spark.stopping import Stopping

    assert list(made.complaints()) == []
    return materialize.run(spark, made, Stopping())


def audit(spark: "SparkSession", made: "MaterializeSettings") -> int:
    from spark.jobs.audit import AuditSettings, run
    from spark.stopping import Stopping

    given = AuditSettings(bootstrap_servers=made.bootstrap_servers, table=made.table, format=made.format, checkpoint=made.checkpoint)
    return run(spark, given, Stopping())


def flights(brokers: Brokers, topic: str, now_ms: int, *values: bytes | None) -> list[Row]:
    records = [Record(value=value, key=b"key", timestamp_ms=now_ms, headers=(("a", None),)) for value in values]
    return produce(brokers.bootstrap, topic, records)


def test_records_become_rows_once_and_an_audit_is_content(
    spark: "SparkSession", brokers: Brokers, now_ms: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = brokers.create("raw-rows", partitions=1)
    made = settings(brokers, tmp_path, topics=(topic,), offsets_per_batch=2, partition_by=("date",))
    acked = flights(brokers, topic, now_ms, b"1", b"2", None)

    materialize(spark, made)
    acked += flights(brokers, topic, now_ms, b"3")
    materialize(spark, made)
    materialize(spark, made)

    rows = made.output.read(spark).withColumnRenamed("timestamp_type", "timestampType")
    assert_exact(rows_of(rows), acked)
    assert audit(spark, made) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.partition(" into ")[0] for line in said if line.startswith("materialize")] == [
        "materialize: 3 records",
        "materialize: 1 records",
        "materialize: 0 records",
    ]
    assert said[-1] == "audit: 4 of 4 records, no gap, no duplicate"


def test_an_audit_names_what_a_table_has_lost(
    spark: "SparkSession", brokers: Brokers, now_ms: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = brokers.create("lost-rows", partitions=1)
    made = settings(brokers, tmp_path, topics=(topic,), offsets_per_batch=1)
    flights(brokers, topic, now_ms, b"1", b"2")
    materialize(spark, made)
    (lost,) = (tmp_path / "table").glob("written_by=*/batch=0/*.parquet")
    lost.unlink()

    assert audit(spark, made) == 1

    said = capsys.readouterr().out.splitlines()
    assert said[-2:] == [f"{topic}-0 offset 0: missing", "audit: 1 of 2 records, 1 missing"]


def test_fields_become_columns_and_the_rest_dead_letters_which_an_audit_counts(
    spark: "SparkSession", brokers: Brokers, now_ms: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = brokers.create("typed-rows", partitions=1)
    schema = tmp_path / "flights.ddl"
    schema.write_text(SCHEMA)
    made = settings(brokers, tmp_path, topics=(topic,), layout="json", schema=schema)
    flights(brokers, topic, now_ms, b'{"carrier": "UA", "dep_delay": 7}', b"{", b'{"carrier": "AA"}')

    materialize(spark, made)

    assert [tuple(row)[:2] for row in made.output.read(spark).orderBy("kafka_offset").collect()] == [("UA", 7), ("AA", None)]
    assert [(row.offset, row.error) for row in made.rejected.read(spark).collect()] == [(1, "the value is not JSON of this schema")]
    assert audit(spark, made) == 0
    said = capsys.readouterr().out.splitlines()
    assert f"materialize: 3 records into {made.table}, 1 of them dead letters in {made.table}-dead-letters" in said
    assert said[-1] == "audit: 3 of 3 records, no gap, no duplicate"


def a_schema(folder: Path, columns: str = SCHEMA) -> Path:
    schema = folder / "flights.ddl"
    schema.write_text(columns)
    return schema


def test_an_audit_takes_no_checkpoint_but_that_of_the_table_and_looks_at_all_it_has(
    spark: "SparkSession", brokers: Brokers, now_ms: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [brokers.create(f"audited-{name}", partitions=1) for name in "ab"]
    for name in names:
        flights(brokers, name, now_ms, b"1", b"2")
    (tmp_path / "other").mkdir()
    made, other = settings(brokers, tmp_path, pattern="audited-[ab]"), settings(brokers, tmp_path / "other", topics=(names[0],))
    for one in (made, other):
        materialize(spark, one)

    with pytest.raises(JobFailed, match=r"The checkpoint .*/other/checkpoint belongs to parquet:.*/other/table, raw, and not to"):
        audit(spark, replace(made, checkpoint=other.checkpoint))
    assert audit(spark, made) == 0
    for file in (tmp_path / "table").rglob("*.parquet"):
        if spark.read.parquet(str(file)).first().topic == names[1]:
            file.unlink()

    assert audit(spark, made) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "audit: 2 of 4 records, 2 missing"


def test_topics_that_come_are_noted_so_that_they_are_known_when_they_are_made_again(
    spark: "SparkSession", brokers: Brokers, now_ms: int, tmp_path: Path
) -> None:
    brokers.create("coming-a", partitions=1)
    made = settings(brokers, tmp_path, pattern="coming-.*")
    flights(brokers, "coming-a", now_ms, b"1")
    materialize(spark, made)
    brokers.create("coming-b", partitions=1)
    flights(brokers, "coming-b", now_ms, b"1")
    materialize(spark, made)
    brokers.delete("coming-b")
    brokers.create("coming-b", partitions=1)
    flights(brokers, "coming-b", now_ms, b"2", b"3")

    with pytest.raises(JobFailed, match="The topic coming-b was deleted and made again"):
        materialize(spark, made)


def test_a_batch_that_is_half_done_is_finished_with_the_schema_it_was_begun_with(
    spark: "SparkSession", brokers: Brokers, now_ms: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spark.tables import Table

    topic = brokers.create("half-done", partitions=1)
    made = settings(brokers, tmp_path, topics=(topic,), layout="json", schema=a_schema(tmp_path), unknown_fields="dead-letters")
    flights(brokers, topic, now_ms, b'{"carrier": "UA", "tail": 1}', b'{"carrier": "AA"}')
    append = Table.append

    def append_rows_and_no_dead_letters(table: Table, *given: Any) -> None:
        if table.path.endswith("-dead-letters"):
            raise OSError("killed")
        append(table, *given)

    monkeypatch.setattr(Table, "append", append_rows_and_no_dead_letters)
    with pytest.raises(JobFailed, match="killed"):
        materialize(spark, made)
    monkeypatch.undo()

    a_schema(tmp_path, f"{SCHEMA}, tail INT")
    with pytest.raises(JobFailed, match=r"Batch 0 of .*/checkpoint is half done, with another schema, .* Run once more with those"):
        materialize(spark, made)
    a_schema(tmp_path)
    materialize(spark, made)
    a_schema(tmp_path, f"{SCHEMA}, tail INT")
    materialize(spark, made)

    assert [row.carrier for row in made.output.read(spark).collect()] == ["AA"]
    assert [row.offset for row in made.rejected.read(spark).collect()] == [0]


def test_a_writer_that_was_killed_at_its_first_batch_can_be_started_again(
    spark: "SparkSession", brokers: Brokers, now_ms: int, tmp_path: Path
) -> None:
    topic = brokers.create("first-batch", partitions=1)
    made = settings(brokers, tmp_path, topics=(topic,))
    (tmp_path / "table" / "written_by=somebody" / "batch=0" / "_temporary" / "0").mkdir(parents=True)
    (tmp_path / "table" / "written_by=somebody" / "batch=0" / "_temporary" / "0" / "part-0.parquet").write_bytes(b"half")
    flights(brokers, topic, now_ms, b"1")

    materialize(spark, made)

    assert made.output.read(spark).count() == 1


def test_a_driver_that_ended_as_it_planned_its_first_batch_can_be_started_again(
    spark: "SparkSession", brokers: Brokers, now_ms: int, tmp_path: Path
) -> None:
    topic = brokers.create("first-plan", partitions=1)
    made = settings(brokers, tmp_path, topics=(topic,))
    materialize(spark, made)
    for file in [*(tmp_path / "checkpoint" / "offsets").iterdir(), *(tmp_path / "checkpoint" / "commits").iterdir()]:
        file.unlink()
    (tmp_path / "checkpoint" / "offsets" / ".0.5c3b.tmp").write_text("v1")
    flights(brokers, topic, now_ms, b"1")

    materialize(spark, made)

    assert made.output.read(spark).count() == 1


def test_of_two_drivers_that_begin_a_checkpoint_at_once_one_is_refused(
    spark: "SparkSession", brokers: Brokers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = brokers.create("begun-twice", partitions=1)
    made = settings(brokers, tmp_path, topics=(topic,))
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "forebay.json").write_text("the other's")
    monkeypatch.setattr("spark.checkpoints.read_text", lambda *_: None)  # as it was a moment ago

    with pytest.raises(JobFailed, match=r"The checkpoint .*/checkpoint cannot be begun: .* If another driver has just begun it"):
        materialize(spark, made)

    assert (tmp_path / "checkpoint" / "forebay.json").read_text() == "the other's"


def test_dead_letters_have_a_folder_of_their_own(brokers: Brokers, tmp_path: Path) -> None:
    made = settings(brokers, tmp_path, topics=("a",), dead_letters=f"{tmp_path / 'table'}/", offsets_per_batch=0)

    assert list(made.complaints()) == [
        "--offsets-per-batch=0: expected 1 or more",
        f"--dead-letters={tmp_path}/table/: expected another folder than those of table and checkpoint",
    ]


def test_a_checkpoint_goes_with_its_table_and_its_topic(spark: "SparkSession", brokers: Brokers, now_ms: int, tmp_path: Path) -> None:
    topic = brokers.create("one-topic", partitions=1)
    made = settings(brokers, tmp_path, topics=(topic,))
    flights(brokers, topic, now_ms, b"1")
    materialize(spark, made)

    with pytest.raises(JobFailed, match=r"rows for parquet:file:/.*/table, raw, and this is parquet:file:/.*/other, raw\. Name"):
        materialize(spark, settings(brokers, tmp_path, topics=(topic,), table=str(tmp_path / "other")))
    with pytest.raises(JobFailed, match=r"has rows, and the checkpoint .*/second is new: .* would be there twice"):
        materialize(spark, settings(brokers, tmp_path, topics=(topic,), checkpoint=str(tmp_path / "second")))
    with pytest.raises(JobFailed, match=r"belongs to rows for .*/table, raw, and this is .*/table, json"):
        materialize(spark, settings(brokers, tmp_path, topics=(topic,), layout="json", schema=a_schema(tmp_path)))
    with pytest.raises(JobFailed, match="There is no topic of-nobody at"):
        materialize(spark, settings(brokers, tmp_path, topics=("of-nobody",)))

    note = tmp_path / "checkpoint" / "forebay.json"
    noted = note.read_text()
    note.with_name(f".{note.name}.crc").unlink()  # Hadoop compares
    note.write_text(re.sub(r'"cluster_id": "[^"]*"', '"cluster_id": "another"', noted))
    with pytest.raises(JobFailed, match=r"belongs to the cluster another, and this is [\w-]+\. Name the one that belongs to it"):
        materialize(spark, made)
    note.write_text(noted)
    (tmp_path / "table").rename(tmp_path / "moved")
    with pytest.raises(JobFailed, match=r"The table .*/table is gone, and .*/checkpoint has what was in it as done\. Bring it back"):
        materialize(spark, made)
    (tmp_path / "moved").rename(tmp_path / "table")

    brokers.delete(topic)
    brokers.create(topic, partitions=1)
    flights(brokers, topic, now_ms, b"1", b"2", b"3")

    with pytest.raises(JobFailed, match=r"The topic one-topic was deleted and made again \(its id was [\w-]{22}, and is [\w-]{22}\)"):
        materialize(spark, made)
    assert made.output.read(spark).count() == 1


def test_a_topic_made_again_under_a_running_query_ends_it(
    spark: "SparkSession", brokers: Brokers, now_ms: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spark.tables import Table

    topic = brokers.create("made-again", partitions=1)
    made = settings(brokers, tmp_path, topics=(topic,), offsets_per_batch=1)
    flights(brokers, topic, now_ms, b"1", b"2", b"3")
    append = Table.append

    def append_and_make_again(table: Table, *given: Any) -> None:
        append(table, *given)
        brokers.delete(topic)
        brokers.create(topic, partitions=1)
        flights(brokers, topic, now_ms, b"a", b"b", b"c")

    monkeypatch.setattr(Table, "append", append_and_make_again)
    with pytest.raises(JobFailed, match="The topic made-again was deleted and made again"):
        materialize(spark, made)

    assert [bytes(row.value) for row in made.output.read(spark).collect()] == [b"1"]


def test_a_schema_may_gain_columns_and_not_change_them(spark: "SparkSession", brokers: Brokers, now_ms: int, tmp_path: Path) -> None:
    topic = brokers.create("changing", partitions=1)
    schema = tmp_path / "flights.ddl"
    schema.write_text(SCHEMA)
    made = settings(brokers, tmp_path, topics=(topic,), layout="json", schema=schema)
    flights(brokers, topic, now_ms, b'{"carrier": "UA"}')
    materialize(spark, made)

    schema.write_text("carrier STRING, dep_delay STRING")
    with pytest.raises(JobFailed, match=r"dep_delay is int in the table, and string in the new rows\. Name another"):
        materialize(spark, made)
    schema.write_text("carrier STRING, dep_delay INTEGERR")
    with pytest.raises(JobFailed, match=r"The schema .*flights\.ddl cannot be read: .*INTEGERR"):
        materialize(spark, made)


def test_records_that_are_gone_end_a_query_and_say_what_to_do(spark: "SparkSession", brokers: Brokers, now_ms: int, tmp_path: Path) -> None:
    topic = brokers.create("gone-records", partitions=1)
    made = settings(brokers, tmp_path, topics=(topic,))
    flights(brokers, topic, now_ms, b"1")
    materialize(spark, made)
    flights(brokers, topic, now_ms, b"2", b"3", b"4")
    brokers.delete_records(topic, 0, before=3)

    with pytest.raises(JobFailed, match="Records that were next are gone: retention or DeleteRecords was faster"):
        materialize(spark, made)
    materialize(spark, settings(brokers, tmp_path, topics=(topic,), fail_on_data_loss=False))

    assert [bytes(row.value) for row in made.output.read(spark).orderBy("offset").collect()] == [b"1", b"4"]
