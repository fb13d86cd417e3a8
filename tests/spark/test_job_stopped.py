"""SIGTERM and Ctrl-C to all processes of a job, as systemd and a shell send them: the job ends with a word, its exit code and no stack."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from confluent_kafka import Producer
from py4j.protocol import Py4JJavaError

from spark.stopping import INTERRUPTED, Stopping
from tests.kit.serving import Served, serving
from tests.spark.drivers import driver
from tests.spark.reading import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(900)

RECORDS: Final = 2_000
WITHIN_S: Final = 300.0
OF_THE_JVM: Final = "WARNING: Using incubator modules"
"""What it says first, whatever becomes of it."""
STOPPED: Final = re.compile(r"stopped by (SIGTERM|SIGINT) before it was done: run it again to go on")
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path / "data") as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        for number in range(RECORDS):
            producer.produce("flights", str(number))
        assert producer.flush(WITHIN_S) == 0
        yield broker


def said(folder: Path) -> str:
    """On standard error, by all jobs in this folder."""
    lines = (folder / "driver.log").read_text().splitlines()
    return "\n".join(line for line in lines if not line.startswith(OF_THE_JVM))


def has_begun(folder: Path) -> bool:
    """Whether there is a JVM, in which Spark starts for seconds."""
    return OF_THE_JVM in (folder / "driver.log").read_text()


def ended(running: "subprocess.Popen[str]") -> int:
    running.communicate(timeout=WITHIN_S)
    return running.returncode


def test_sparks_work_is_cancelled_at_a_signal_whose_handlers_are_the_former_ones_afterwards(spark: "SparkSession") -> None:
    before, stopping, driving = [signal.getsignal(one) for one in SIGNALS], Stopping(), os.getpid()

    def work(_number: int) -> None:
        os.kill(driving, signal.SIGTERM)
        time.sleep(WITHIN_S)

    rows = spark.sparkContext.parallelize([0], 1)
    try:
        with stopping.by_signals(), stopping.watched(spark, cancels=True), pytest.raises(Py4JJavaError, match="cancelled"):
            rows.foreach(work)
    finally:
        spark.sparkContext.setLogLevel("WARN")

    assert stopping.is_asked
    assert [signal.getsignal(one) for one in SIGNALS] == before
    assert spark.range(3).count() == 3


def test_a_job_that_is_stopped_while_it_is_imported_starts_no_spark(capsys: pytest.CaptureFixture[str]) -> None:
    from spark.jobs.audit import JOB
    from spark.jobs.job import main

    stopping = Stopping()
    with stopping.by_signals():
        os.kill(os.getpid(), signal.SIGTERM)
        assert stopping.wait(WITHIN_S)

    assert main(JOB, ["--table", "t"], stopping) == INTERRUPTED
    assert STOPPED.fullmatch(capsys.readouterr().err.strip())


@pytest.mark.parametrize(
    "signals",
    [
        pytest.param([signal.SIGTERM], id="when it has started", marks=[pytest.mark.slow, pytest.mark.long]),
        pytest.param([signal.SIGTERM, signal.SIGINT], id="at once"),
    ],
)
def test_a_job_that_is_stopped_while_spark_starts_says_so(tmp_path: Path, signals: list[signal.Signals]) -> None:
    with driver("spark.jobs", "audit", "--table", str(tmp_path / "table"), folder=tmp_path) as running:
        wait_until(lambda: has_begun(tmp_path), within_s=WITHIN_S)
        for one in signals:
            os.killpg(running.pid, one)

        assert ended(running) == INTERRUPTED
    assert STOPPED.fullmatch(said(tmp_path))


@pytest.mark.slow
@pytest.mark.long
def test_a_job_that_is_stopped_at_work_leaves_what_the_next_run_goes_on_from(served: Served, tmp_path: Path) -> None:
    where = ("--table", str(tmp_path / "table"), "--checkpoint", str(tmp_path / "checkpoint"), "--bootstrap-servers", served.bootstrap)
    writing, commits = ("materialize", "--topics", "flights", *where), tmp_path / "checkpoint" / "commits"
    for following, first, signals, codes in (
        (["--interval", "200ms"], 1, [signal.SIGTERM], {0}),
        ([], 5, [signal.SIGTERM], {INTERRUPTED}),
    ):
        (tmp_path / "driver.log").unlink(missing_ok=True)
        with driver("spark.jobs", *writing, *following, "--offsets-per-batch", "20", folder=tmp_path) as running:
            wait_until((commits / str(first)).exists, within_s=WITHIN_S)
            for one in signals:
                os.killpg(running.pid, one)
            code = ended(running)
        assert code in codes
        *progress, last = said(tmp_path).splitlines()
        assert [line for line in progress if not line.startswith("materialize: batch ")] == [], code
        assert (STOPPED if code else re.compile("materialize: batch .*")).fullmatch(last)

    for job in (writing, ("audit", *where)):
        with driver("spark.jobs", *job, folder=tmp_path) as running:
            printed, _ = running.communicate(timeout=WITHIN_S)
            assert running.returncode == 0, said(tmp_path)
    assert printed.splitlines()[-1].endswith("no gap, no duplicate")
