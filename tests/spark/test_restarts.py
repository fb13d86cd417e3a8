"""A driver that is killed in any phase of a batch leaves a table that is exact when it has been started again (T18)."""

import json
from pathlib import Path
from typing import Final

import pytest

from tests.spark.acks import produce
from tests.spark.brokers import Brokers
from tests.spark.drivers import driver
from tests.spark.reading import wait_until
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
        with driver("tests.spark.materializing", brokers.bootstrap, topic, str(tmp_path), folder=tmp_path) as running:
            wait_until(lambda before=before, phase=phase: running.poll() is not None or last(tmp_path, phase) > before + 1)  # type: ignore[misc]
            assert running.poll() is None, f"it was done before it was killed: {running.stderr}"
    with driver("tests.spark.materializing", brokers.bootstrap, topic, str(tmp_path), folder=tmp_path) as running:
        printed, _ = running.communicate(timeout=ENDED_WITHIN_S)

    found = [tuple(json.loads(line)) for line in printed.splitlines() if line.startswith("[")]
    assert sorted(found) == sorted((row.partition, row.offset, (row.value or b"").decode()) for row in rows)


def last(folder: Path, phase: str) -> int:
    """The newest batch that has come so far: its offsets are planned, its rows are in the table, it is committed in the checkpoint."""
    within = {"planned": "checkpoint/offsets/*", "written": "table/_delta_log/*.json", "committed": "checkpoint/commits/*"}[phase]
    return max((int(path.stem) for path in folder.glob(within) if path.stem.isdigit()), default=-1)
