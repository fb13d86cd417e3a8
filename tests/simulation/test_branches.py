"""Branches of the log that seeds take: a guard that no seed reaches is one that nobody has seen work."""

import json
import os
import subprocess
import sys
from pathlib import Path
from random import SystemRandom
from typing import Final

import pytest

from tests.kit.serving import ROOT

SEEDS: Final = 400
PERCENT_MIN: Final = 85
"""What is left needs what no run has: damage of every kind, brokers that stop in order, deleted records, limits of thousands."""


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(7_200)
def test_fresh_harsh_seeds_take_the_branches_of_the_log(tmp_path: Path) -> None:
    first = SystemRandom().randrange(2**31)
    jobs = len(os.sched_getaffinity(0))
    coverage = [sys.executable, "-m", "coverage"]
    environ = {**os.environ, "COVERAGE_FILE": str(tmp_path / "data")}
    options = ["--faults", "harsh", "--world", "log", "--jobs", "1"]
    each = SEEDS // jobs
    running = [
        subprocess.Popen(
            [*coverage, "run", "--parallel-mode", "-m", "sim", "run", "--seeds", f"{begin}-{begin + each - 1}", *options],
            cwd=ROOT,
            env=environ,
        )
        for begin in range(first, first + each * jobs, each)
    ]
    assert [process.wait() for process in running] == [0] * jobs
    subprocess.run([*coverage, "combine", "-q"], cwd=ROOT, env=environ, check=True, timeout=600)
    subprocess.run([*coverage, "json", "-q", "-o", str(tmp_path / "found.json")], cwd=ROOT, env=environ, check=True, timeout=600)
    totals = json.loads((tmp_path / "found.json").read_text())["totals"]

    assert totals["num_branches"] > 1_000
    assert 100 * totals["covered_branches"] / totals["num_branches"] >= PERCENT_MIN
