"""What a session of Spark is started with, and the one sentence that says what is missing."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from services.jars import assembled
from spark.class_archive import ClassArchive
from spark.errors import SparkUnavailable
from spark.requirements import found_java, found_pyspark, read_version
from spark.session import PINNED, SessionSettings, kept_jars, open_session, prepared

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(900)

SETTINGS: Final = SessionSettings(name="tests")
LOOKS_MAX: Final = 20_000


def java_that_says(folder: Path, said: str) -> None:
    (folder / "bin").mkdir()
    program = folder / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho '{said}' >&2\n")
    program.chmod(0o755)


def test_without_pyspark_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)

    with pytest.raises(SparkUnavailable, match=r"^Spark is not installed \(760 MB\)\. In a clone: [^\n]*$"), open_session(SETTINGS):
        pass


def test_without_java_it_is_said_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(SparkUnavailable, match=r"^Spark needs Java, and there is no `java` on the PATH\. Install [^\n]*17 or newer[^\n]*$"):
        found_java()


def test_a_java_home_without_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    with pytest.raises(SparkUnavailable, match=rf"JAVA_HOME is {tmp_path}, and there is no bin/java in it"):
        found_java()


@pytest.mark.parametrize("said", ['openjdk version "11.0.22" 2024-01-16', 'java version "1.8.0_402"'])
def test_a_java_that_is_too_old_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    java_that_says(tmp_path, said)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    with pytest.raises(SparkUnavailable, match=rf"^Spark needs Java 17 or newer, and {tmp_path}/bin/java is [\d._]+\. Install [^\n]*$"):
        found_java()


@pytest.mark.parametrize(
    ("said", "version", "release"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment', "17.0.15", 17),
        ('openjdk version "21" 2023-09-19', "21", 21),
        ('openjdk version "25-ea" 2025-09-16', "25-ea", 25),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\njava version "1.8.0_402"', "1.8.0_402", 8),
    ],
)
def test_the_release_of_a_java_is_read(said: str, version: str, release: int) -> None:
    assert read_version(said) == (version, release)


def test_a_java_that_does_not_say_what_it_is_is_refused() -> None:
    with pytest.raises(SparkUnavailable, match=r"does not say which Java it is: 'Error: could not find libjava\.so'"):
        read_version("Error: could not find\nlibjava.so")


def test_without_jars_it_is_said_how_to_get_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_CACHE", str(tmp_path))

    with pytest.raises(SparkUnavailable, match=rf"not in {tmp_path}/jars/spark-connector-\w+: run `make jars`[^\n]*$"):
        prepared(SETTINGS, found_pyspark(), tmp_path)


def test_the_jars_are_looked_for_where_they_are_kept() -> None:
    assert {jar.parent for jar in kept_jars()} == {assembled(PINNED)}


def test_a_session_without_a_name_or_a_partition_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a name"):
        SessionSettings(name=" ")
    with pytest.raises(ValueError, match="shuffle_partitions=0"):
        SessionSettings(name="tests", shuffle_partitions=0)


def test_where_spark_submit_decides_nothing_of_this_machine_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    settings = SessionSettings(name="submitted", master="", conf={"spark.sql.shuffle.partitions": "64"})

    assert prepared(settings, found_pyspark(), tmp_path) == {
        "spark.app.name": "submitted",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "64",
    }


def test_an_archive_of_classes_that_is_not_there_is_no_option_of_the_jvm(tmp_path: Path) -> None:
    archive = ClassArchive(tmp_path / "classes.jsa")

    assert archive.options() == []
    archive.path.touch()
    assert archive.options()[0] == f'"-XX:SharedArchiveFile={archive.path}"'


def test_workers_run_this_python_and_times_are_utc(spark: "SparkSession") -> None:
    assert spark.sparkContext.parallelize([0], 1).map(lambda _: sys.executable).collect() == [sys.executable]
    assert spark.sql("select cast(timestamp_millis(0) as string) as t").head() == ("1970-01-01 00:00:00",)


def test_a_test_that_ends_in_the_middle_of_an_answer_leaves_it_to_no_other(spark: "SparkSession", tmp_path: Path) -> None:
    heard, driver = tmp_path / "heard", os.getpid()

    def time_is_over(*_: object) -> None:
        heard.touch()
        pytest.fail("as pytest-timeout has it")

    def until_heard(_number: int) -> None:
        os.kill(driver, signal.SIGUSR1)
        for _ in range(LOOKS_MAX):
            if heard.exists():
                break
            time.sleep(0.01)

    waiting = spark.sparkContext.parallelize([0], 1)
    before = signal.signal(signal.SIGUSR1, time_is_over)
    try:
        with pytest.raises(pytest.fail.Exception) as kept:
            waiting.foreach(until_heard)
    finally:
        signal.signal(signal.SIGUSR1, before)

    assert kept.value.__traceback__ is not None, "it holds the connection"
    assert [spark.range(number).count() for number in (3, 5)] == [3, 5]
