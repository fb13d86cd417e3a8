"""Tables that are put in order: fewer files, the same rows, nothing deleted unasked, and a writer at its work that notices nothing."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from spark.files import Occupied, occupied
from spark.jobs.upkeep import TableSize, UpkeepDone, UpkeepSettings, run
from spark.settings import Duration, WrongSettings, load
from spark.stopping import Stopping
from spark.tables import Table
from tests.kit.serving import ROOT
from tests.spark.acks import producing
from tests.spark.brokers import Brokers
from tests.spark.reading import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(1200)

WITHIN_S: Final = 400.0


def test_settings_that_contradict_each_other_are_named() -> None:
    with pytest.raises(WrongSettings) as raised:
        load(UpkeepSettings, "upkeep", ["--tables", "", "--file-mb", "0", "--optimize", "false", "--zorder-by", "a"], {})

    assert str(raised.value).splitlines() == [
        "--tables is empty: name the folders of tables",
        "--file-mb=0: expected 1 or more",
        "--zorder-by needs --optimize true",
    ]


def test_by_default_nothing_is_deleted_and_a_week_is_kept() -> None:
    settings = load(UpkeepSettings, "upkeep", ["--tables", "a,b"], {})

    assert (settings.tables, settings.delete, settings.force, settings.keep) == (("a", "b"), False, False, Duration(7 * 86_400))


def test_the_report_says_what_there_is_before_and_after_and_what_would_be_deleted() -> None:
    before = TableSize(live=Occupied(1_200, 3_400_000), whole=Occupied(2_000, 9_900_000))
    after = TableSize(live=Occupied(1, 3_000_000), whole=Occupied(2_001, 12_900_000))

    assert str(UpkeepDone(before=before, after=after, old=1_500, was_deleted=False)) == (
        "1,200 files of 3.4 MB (with old ones and the log: 2,000 files of 9.9 MB) → 1 file of 3.0 MB (with old ones and the log: 2,001 "
        "files of 12.9 MB), 1,500 old files to be deleted with --delete"
    )
    assert str(UpkeepDone(before=after, after=after, old=0, was_deleted=True)).endswith(", no old files")


def test_a_folder_is_as_big_as_all_that_is_in_it(spark: "SparkSession", tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "one").write_bytes(b"123")
    (tmp_path / "a" / "b" / "two").write_bytes(b"45")

    assert occupied(spark, str(tmp_path)) == Occupied(2, 5)


def test_a_table_of_parquet_is_refused_because_nothing_is_safe(
    spark: "SparkSession", tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "written_by=x" / "batch=0" / "part-0.parquet"
    file.parent.mkdir(parents=True)
    file.touch()

    assert run(spark, UpkeepSettings(tables=(str(tmp_path),)), Stopping()) == 2
    assert f"The table {tmp_path} is Parquet, and nothing can be done to it safely" in capsys.readouterr().err


def test_an_upkeep_that_is_stopped_before_its_last_table_is_not_done(
    spark: "SparkSession", tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = [tmp_path / name for name in ("first", "second")]
    for table in tables:
        (table / "_delta_log").mkdir(parents=True)
        (table / "_delta_log" / f"{0:020}.json").touch()
    stopping = Stopping()
    stopping.ask()

    run(spark, UpkeepSettings(tables=tuple(map(str, tables))), stopping)

    assert stopping.is_cut_short
    printed = capsys.readouterr()
    assert printed.out == ""
    assert f"{tmp_path}/first: " not in printed.err, "nothing is said of cancelled work"
    assert f"{tmp_path}/second" not in printed.err


def test_a_folder_without_a_table_is_refused(spark: "SparkSession", tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(spark, UpkeepSettings(tables=(str(tmp_path),)), Stopping()) == 2
    assert capsys.readouterr().err == f"There is no Delta table in {tmp_path}.\n"


@pytest.mark.parametrize(
    ("name", "is_there"),
    [
        ("_staged_commits", False),
        (".00000000000000000000.json.0f1e.tmp", False),
        ("00000000000000000000.crc", False),
        ("00000000000000000000.json", True),
        ("00000000000000000010.checkpoint.parquet", True),
        ("00000000000000000010.checkpoint.0f1e.json", True),
        ("00000000000000000010.checkpoint.0000000001.0000000002.parquet", True),
    ],
)
def test_a_table_is_there_when_its_log_has_a_version(spark: "SparkSession", tmp_path: Path, name: str, is_there: bool) -> None:
    (tmp_path / "_delta_log").mkdir()
    (tmp_path / "_delta_log" / name).touch()

    assert Table(path=str(tmp_path)).is_there(spark) is is_there


def said(log: Path, *arguments: str) -> list[Any]:
    """The lines of JSON that a driver prints (tests/spark/tidying.py)."""
    with log.open("a") as errors:
        driver = [sys.executable, "-m", "tests.spark.tidying", *arguments]
        done = subprocess.run(driver, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=ROOT, timeout=WITHIN_S, check=False)
    assert done.returncode == 0, log.read_text()
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith(("{", "["))]


@pytest.mark.slow
@pytest.mark.long
def test_files_become_fewer_and_rows_stay_and_nothing_is_deleted_before_its_time(tmp_path: Path) -> None:
    found = {one["step"]: one for one in said(tmp_path / "driver.log", "alone", str(tmp_path))}

    assert {step: (one["code"], one["live"], one["files"]) for step, one in found.items()} == {
        "nothing": (0, 8, 8),
        "too short": (1, 8, 8),
        "by default": (0, 1, 9),
        "forced, and dry": (0, 1, 9),
        "forced": (0, 1, 1),
        "near": (0, 1, 6),
        "longer than the table says": (0, 1, 6),
        "as the table says": (0, 1, 1),
    }
    marks = [one["rows"] for one in found.values()]
    assert marks[:5] == [marks[0]] * 5
    assert marks[5:] == [marks[5]] * 3
    assert (marks[0][0], marks[5][0]) == (40, 60)


def operations(table: Path) -> list[str]:
    """Of the table's versions, from the first."""
    log = sorted((table / "_delta_log").glob("*[0-9].json"))
    lines = [json.loads(line) for file in log for line in file.read_text().splitlines()]
    return [line["commitInfo"]["operation"] for line in lines if "commitInfo" in line]


def has_written_after_an_optimization(table: Path) -> bool:
    done = operations(table)
    return "OPTIMIZE" in done and "WRITE" in done[done.index("OPTIMIZE") :]


@pytest.mark.slow
@pytest.mark.long
def test_a_table_is_exact_that_was_put_in_order_while_it_was_written_and_both_were_killed(
    brokers: Brokers, now_ms: int, tmp_path: Path
) -> None:
    topic = brokers.create("tidied", partitions=2)
    arguments = (brokers.bootstrap, topic, str(tmp_path))
    log = tmp_path / "driver.log"
    with producing(brokers.bootstrap, topic, partitions=2, since_ms=now_ms, per_second=20) as rows:
        with log.open("a") as out:
            command = [sys.executable, "-m", "tests.spark.tidying", "beside", *arguments]
            driver = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=ROOT, start_new_session=True)
        try:
            wait_until(lambda: driver.poll() is not None or has_written_after_an_optimization(tmp_path / "table"), within_s=WITHIN_S)
            assert driver.poll() is None, log.read_text()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(driver.pid, signal.SIGKILL)
            driver.wait(WITHIN_S)

    found = [tuple(one) for one in said(log, "finish", *arguments)]

    assert sorted(found) == sorted((row.partition, row.offset, (row.value or b"").decode()) for row in rows)
