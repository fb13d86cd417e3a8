"""`changelog`: which record of a key makes its row, and that the table is exact however often and wherever a driver was killed.

The core with static frames; the MERGE of Delta Lake in drivers of their own (tests/spark/upserting.py), which are slow.
"""

import json
import random
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from spark.decoding import HEADERS, Decoding, dead_letters, json_columns
from spark.jobs.changelog import ChangelogSettings
from spark.settings import WrongSettings, load
from spark.upserts import changes, clashes, columns_of, judged, merge_of
from spark.vocabulary import KeyFormat
from tests.kit.serving import ROOT
from tests.spark.acks import Record, produce
from tests.spark.brokers import Brokers
from tests.spark.drivers import driver

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(1800)

AT: Final = datetime(2013, 1, 1, 10, tzinfo=UTC)
RAW: Final = Decoding(layout="raw")
ENDED_WITHIN_S: Final = 400.0
SOURCE: Final = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int, headers array<struct<key: "
    "string, value: binary>>"
)
Given = tuple[bytes | None, bytes | None, int, int, int]
"""Key, value, partition, offset, and seconds after ten."""


def records(spark: "SparkSession", *given: Given) -> "DataFrame":
    rows = [(key, value, "keyed", part, offset, AT + timedelta(seconds=at), 0, None) for key, value, part, offset, at in given]
    return spark.createDataFrame(rows, SOURCE)


def changed(frame: "DataFrame", decoding: Decoding = RAW, key_format: KeyFormat = "bytes") -> dict[Any, tuple[Any, ...]]:
    """By key: value, whether it deletes, partition and offset."""
    found = changes(judged(frame, decoding, key_format), decoding, key_format)
    rows = found.collect()
    assert len({row.kafka_key if key_format == "string" else bytes(row.kafka_key) for row in rows}) == len(rows)
    return {
        row.kafka_key if key_format == "string" else bytes(row.kafka_key): (
            bytes(row.value) if row.value is not None else None,
            row.forebay_deletes,
            row.kafka_partition,
            row.kafka_offset,
        )
        for row in rows
    }


def errors(frame: "DataFrame", decoding: Decoding = RAW, key_format: KeyFormat = "bytes") -> dict[int, str]:
    return {row.offset: row.error for row in dead_letters(judged(frame, decoding, key_format)).collect()}


def test_of_the_records_of_a_key_in_a_batch_the_one_with_the_greatest_offset_counts(spark: "SparkSession") -> None:
    # The later one has the earlier timestamp: within a partition only the offset says what is later.
    frame = records(
        spark, (b"a", b"1", 0, 7, 50), (b"a", b"2", 0, 9, 10), (b"a", b"3", 0, 8, 99), (b"b", b"4", 0, 10, 0), (b"", b"5", 1, 0, 0)
    )

    assert changed(frame) == {b"a": (b"2", False, 0, 9), b"b": (b"4", False, 0, 10), b"": (b"5", False, 1, 0)}


def test_a_record_without_a_value_deletes_unless_a_later_one_has_a_value(spark: "SparkSession") -> None:
    frame = records(spark, (b"a", b"1", 0, 0, 0), (b"a", None, 0, 1, 0), (b"b", None, 0, 2, 0), (b"b", b"", 0, 3, 0))

    assert changed(frame) == {b"a": (None, True, 0, 1), b"b": (b"", False, 0, 3)}


def test_of_the_last_records_of_two_partitions_the_one_with_the_later_timestamp_counts_and_of_equal_ones_the_greater_partition(
    spark: "SparkSession",
) -> None:
    frame = records(
        spark,
        *((b"a", b"old", 0, 900, 10), (b"a", b"new", 3, 2, 20)),
        *((b"b", b"new", 0, 901, 20), (b"b", b"old", 3, 3, 10)),
        *((b"c", b"low", 0, 902, 10), (b"c", b"high", 3, 4, 10)),
    )

    assert {key: found[0] for key, found in changed(frame).items()} == {b"a": b"new", b"b": b"new", b"c": b"high"}


def test_records_without_a_key_and_keys_that_are_no_strings_are_dead_letters(spark: "SparkSession") -> None:
    frame = records(spark, (None, b"1", 0, 0, 0), (b"\xff", b"2", 0, 1, 0), (b"k", b"3", 0, 2, 0), (None, None, 0, 3, 0))

    assert errors(frame) == {0: "there is no key", 3: "there is no key"}
    assert errors(frame, key_format="string") == {0: "there is no key", 1: "the key is not UTF-8", 3: "there is no key"}
    assert changed(frame, key_format="string") == {"k": (b"3", False, 0, 2)}


def test_a_value_that_is_not_as_the_schema_says_leaves_what_its_key_had_before(spark: "SparkSession") -> None:
    decoding = Decoding(layout="json", schema=json_columns("carrier STRING NOT NULL"))
    frame = records(
        spark,
        *((b"a", b'{"carrier": "UA"}', 0, 0, 0), (b"a", b"{", 0, 1, 0)),
        *((b"b", b"{}", 0, 2, 0), (b"c", b'{"carrier": "AA"}', 0, 3, 0), (b"c", None, 0, 4, 0)),
    )

    assert errors(frame, decoding) == {1: "the value is not JSON of this schema", 2: "carrier is missing"}
    found = changes(judged(frame, decoding, "bytes"), decoding, "bytes").orderBy("kafka_offset").collect()
    assert [(bytes(row.kafka_key), row.carrier, row.forebay_deletes, row.kafka_offset) for row in found] == [
        (b"a", "UA", False, 0),
        (b"c", None, True, 4),
    ]


def test_a_row_says_which_record_it_came_from(spark: "SparkSession") -> None:
    found = changes(judged(records(spark, (b"a", b"1", 2, 7, 5)), RAW, "bytes"), RAW, "bytes")

    assert columns_of(found).names == ["value", "headers", "kafka_key", "kafka_partition", "kafka_offset", "kafka_timestamp"]
    assert columns_of(found)["headers"].dataType == HEADERS
    (row,) = found.selectExpr("kafka_partition", "kafka_offset", "unix_millis(kafka_timestamp) as at").collect()
    assert tuple(row) == (2, 7, int((AT.timestamp() + 5) * 1000))


def test_names_of_columns_are_quoted_and_columns_that_the_schema_lost_become_null() -> None:
    statement = merge_of("delta.`/t`", "s", ["a`b", "kafka_key"], gone=["old"])

    assert "UPDATE SET t.`a``b` = s.`a``b`, t.`kafka_key` = s.`kafka_key`, t.`old` = NULL" in statement
    assert "INSERT (`a``b`, `kafka_key`) VALUES (s.`a``b`, s.`kafka_key`)" in statement


def test_fields_that_have_a_name_of_the_jobs_own_columns_are_found() -> None:
    assert clashes(json_columns("a STRING, Kafka_Key STRING, kafka_offset INT")) == ["Kafka_Key", "kafka_offset"]


def test_one_topic_is_asked_for_and_the_checkpoint_lies_elsewhere_than_the_table(tmp_path: Path) -> None:
    given = ["--table", str(tmp_path), "--checkpoint", f"{tmp_path}/", "--topic", "a,b", "--layout", "json"]

    with pytest.raises(WrongSettings) as raised:
        load(ChangelogSettings, "changelog", given, {})

    assert str(raised.value).splitlines() == [
        f"--checkpoint={tmp_path}/: expected another folder than the table's",
        "--layout json needs a --schema",
        "--topic='a,b': expected the name of one topic",
    ]


@pytest.mark.slow
@pytest.mark.long
def test_a_batch_that_is_done_again_changes_nothing_and_no_key_goes_back(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.upserting", "merges", str(tmp_path)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=ENDED_WITHIN_S,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])

    assert found["first"] == {"a": ["a1", 0, 0], "b": ["b1", 0, 1], "c": ["c1", 1, 0]}
    assert found["deleted"] == {"b": ["b2", 0, 3], "c": ["c1", 1, 0]}
    assert found["deleted again"] == found["deleted"]
    assert found["came back"] == {"a": ["a3", 0, 4], "b": ["b2", 0, 3], "c": ["c1", 1, 0]}
    assert found["deletion done again"] == found["came back"]
    assert found["versions of batches done again"] == 0
    assert found["older"] == found["came back"]
    assert found["other partition"] == {"a": ["a3", 0, 4], "b": ["b5", 1, 9], "c": ["c1", 1, 0]}
    assert found["widened"] == {"a": ["a6", None, "new"], "b": ["b5", None, None], "c": ["c1", None, None]}


@pytest.mark.slow
@pytest.mark.long
def test_a_batch_that_meets_another_writer_fails_whole_and_is_right_when_it_is_done_again(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.upserting", "conflict", str(tmp_path)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=ENDED_WITHIN_S,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])

    assert "Somebody else wrote to the table meanwhile. Nothing of this batch was written: start again." in found["said"]
    assert found["after the failure"] == {"a": ["a1", 0, 0]}
    assert found["done again"] == {"a": ["a2", 0, 2], "c": ["c1", 0, 3]}


KEYS: Final = 12
PARTITIONS: Final = 3
RECORDS: Final = 360


@pytest.mark.slow
@pytest.mark.long
def test_a_driver_killed_at_three_moments_leaves_the_last_value_of_each_key(brokers: Brokers, now_ms: int, tmp_path: Path) -> None:
    topic = brokers.create("changelogged", partitions=PARTITIONS)
    chance = random.Random(41)
    given, expected = history(chance, now_ms)
    produce(brokers.bootstrap, topic, given)
    job = ["changelog", "--bootstrap-servers", brokers.bootstrap, "--topic", topic, "--key-format", "string", "--offsets-per-batch", "120"]
    job += ["--table", str(tmp_path / "table"), "--checkpoint", str(tmp_path / "checkpoint")]

    for moment in ("before merge 1", "after merge 1", f"after merge {chance.randint(1, 2)}"):
        with driver("tests.spark.dying", moment, *job, folder=tmp_path) as running:
            assert running.wait(ENDED_WITHIN_S) == -signal.SIGKILL, (tmp_path / "driver.log").read_text()[-2000:]
    with driver("spark.jobs", *job, folder=tmp_path) as running:
        assert running.wait(ENDED_WITHIN_S) == 0, (tmp_path / "driver.log").read_text()[-2000:]
    with driver("tests.spark.upserting", "show", str(tmp_path), folder=tmp_path) as running:
        printed, _ = running.communicate(timeout=ENDED_WITHIN_S)

    assert json.loads(printed.splitlines()[-1]) == expected


def history(chance: random.Random, now_ms: int) -> tuple[list[Record], dict[str, list[Any]]]:
    """Upserts and deletes at random, and the rows that they make: value, partition and offset by key."""
    ends = [0] * PARTITIONS
    given: list[Record] = []
    rows: dict[str, list[Any]] = {}
    for number in range(RECORDS):
        key = chance.randrange(KEYS)
        partition = key % PARTITIONS
        value = None if chance.random() < 0.4 else b"%d" % number
        given.append(Record(partition=partition, key=b"key-%d" % key, value=value, timestamp_ms=now_ms + number))
        rows[f"key-{key}"] = [value.decode(), partition, ends[partition]] if value is not None else []
        ends[partition] += 1
    return given, {key: row for key, row in rows.items() if row}
