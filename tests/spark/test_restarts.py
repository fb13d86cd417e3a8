"""A driver that is killed in any phase of a batch leaves a table that is exact when it has been started again (T18)."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.kit.serving import ROOT
from tests.spark.acks import produce
from tests.spark.brokers import Brokers
from tests.spark.reading import FINISHED_WITHIN_S, wait_until
from tests.spark.test_streams import numbered

pytestmark = pytest.mark.timeout(600)

RECORDS: Final = 240
ENDED_WITHIN_S: Final = 240.0
PHASES: Final = ("planned", "written", "committed")


@pytest.mark.slow
@pytest.mark.long
def test_t18_a_driver_killed_in_each_phase_of_a_batch_leaves_an_exact_table(brokers: Brokers, now_ms: int, tmp_path: Path) -> None:
    topic = brokers.create("materialized", partitions=2)
    rows = produce(brokers.bootstrap, topic, [one for number in range(2) for one in numbered(RECORDS // 2, now_ms, partition=number)])

    for phase in PHASES:
        before = last(tmp_path, phase)
        with materializing(brokers, topic, tmp_path) as driver:
            wait_until(lambda before=before, phase=phase: driver.poll() is not None or last(tmp_path, phase) > before + 1)  # type: ignore[misc]
            assert driver.poll() is None, f"it was done before it was killed: {driver.stderr}"
    with materializing(brokers, topic, tmp_path) as driver:
        printed, _ = driver.communicate(timeout=ENDED_WITHIN_S)

    found = [tuple(json.loads(line)) for line in printed.splitlines() if line.startswith("[")]
    assert sorted(found) == sorted((row.partition, row.offset, (row.value or b"").decode()) for row in rows)


def last(folder: Path, phase: str) -> int:
    """The newest batch that has come so far: its offsets are planned, its rows are in the table, it is committed in the checkpoint."""
    within = {"planned": "checkpoint/offsets/*", "written": "table/_delta_log/*.json", "committed": "checkpoint/commits/*"}[phase]
    return max((int(path.stem) for path in folder.glob(within) if path.stem.isdigit()), default=-1)


@contextlib.contextmanager
def materializing(brokers: Brokers, topic: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A driver in a process of its own, killed with its JVM in the end."""
    command = [sys.executable, "-m", "tests.spark.materializing", brokers.bootstrap, topic, str(folder)]
    with (folder / "driver.log").open("a") as log:
        driver = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT, start_new_session=True
        )
    try:
        yield driver
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)
        driver.communicate(timeout=FINISHED_WITHIN_S)
