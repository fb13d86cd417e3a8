"""SIGTERM to all processes of a job, as systemd and a shell send it: the job ends with a word and its exit code, and without a stack."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Producer

from tests.kit.serving import Served, serving
from tests.spark.drivers import driver
from tests.spark.reading import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]

RECORDS: Final = 2_000
BEGUN_WITHIN_S: Final = 200.0
ENDED_WITHIN_S: Final = 200.0
OF_THE_JVM: Final = "WARNING: Using incubator modules"
"""What it says first, whatever becomes of it."""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path / "data") as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        for number in range(RECORDS):
            producer.produce("flights", str(number))
        assert producer.flush(BEGUN_WITHIN_S) == 0
        yield broker


def said(folder: Path) -> list[str]:
    """On standard error, by all jobs."""
    return [line for line in (folder / "driver.log").read_text().splitlines() if not line.startswith(OF_THE_JVM)]


def stopped(running: "subprocess.Popen[str]") -> int:
    os.killpg(running.pid, signal.SIGTERM)
    running.communicate(timeout=ENDED_WITHIN_S)
    return running.returncode


def test_a_job_that_is_stopped_says_so_and_shows_no_stack(served: Served, tmp_path: Path) -> None:
    where = ("--table", str(tmp_path / "table"), "--checkpoint", str(tmp_path / "checkpoint"), "--bootstrap-servers", served.bootstrap)
    following = ("materialize", "--topics", "flights", "--interval", "500ms", "--offsets-per-batch", "100", *where)

    with driver("spark.jobs", *following, folder=tmp_path) as running:
        wait_until((tmp_path / "checkpoint" / "commits" / "1").exists, within_s=BEGUN_WITHIN_S)
        assert (stopped(running), said(tmp_path)) == (0, [])
    (tmp_path / "driver.log").unlink()
    with driver("spark.jobs", "audit", *where, folder=tmp_path) as running:
        wait_until(lambda: OF_THE_JVM in (tmp_path / "driver.log").read_text(), within_s=BEGUN_WITHIN_S)
        assert (stopped(running), said(tmp_path)) == (130, ["stopped"])
    with driver("spark.jobs", "audit", *where, folder=tmp_path) as running:
        printed, _ = running.communicate(timeout=ENDED_WITHIN_S)
        assert running.returncode == 0
        assert printed.splitlines()[-1].endswith("no gap, no duplicate")
