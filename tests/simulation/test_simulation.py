"""Seeds of the simulation: whatever happens to the brokers, nothing is lost, repeated, reordered, invented or left unanswered."""

import os
import random
import subprocess
import sys

import pytest

import sim.__main__
from sim.themes import NAMES, theme_of
from sim.world import Plan, run_seed
from sim.worlds import LOG, Run
from tests.kit.serving import ROOT

SEEDS_PER_TEST = 10
RANGES = [("none", 10), ("usual", 30), ("harsh", 30)]


@pytest.mark.parametrize(
    ("faults", "first"), [(faults, first) for faults, count in RANGES for first in range(1, count + 1, SEEDS_PER_TEST)]
)
def test_these_seeds_find_nothing_wrong(faults: str, first: int) -> None:
    reports = {seed: run_seed(Plan(seed, faults)) for seed in range(first, first + SEEDS_PER_TEST)}
    wrong = [
        "\n  ".join((Run(LOG, seed, faults).command, *report.violations[:10])) for seed, report in reports.items() if report.violations
    ]

    assert not wrong, "\n".join(wrong)
    assert len({report.digest for report in reports.values()}) == SEEDS_PER_TEST, "each seed takes turns of its own"
    if faults == "none":
        assert all(report.appends > 0 and report.reads >= report.appends for report in reports.values())


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.long
@pytest.mark.parametrize("first", range(1_001, 3_001, 100))
def test_many_more_seeds_find_nothing_wrong(first: int) -> None:
    wrong = [Run(LOG, seed, "harsh").command for seed in range(first, first + 100) if run_seed(Plan(seed, "harsh")).violations]

    assert not wrong, "\n".join(wrong)


def test_each_theme_can_be_asked_for() -> None:
    assert set(NAMES) == set(sim.__main__.THEMES)
    assert {theme_of(random.Random(1), "harsh", name=name).name for name in NAMES} == set(NAMES)
    assert {theme_of(random.Random(seed), "harsh").name for seed in range(100)} == set(NAMES)
    assert {theme_of(random.Random(seed), "none").name for seed in range(100)} == {"usual"}


@pytest.mark.parametrize("seed", [1, 21])
def test_a_seed_run_twice_takes_the_same_turns(seed: int) -> None:
    """The second time in another process, whose sets of strings iterate in another order. (In seed 21 a broker reads its level again.)"""
    shown: list[str] = []
    report = run_seed(Plan(seed, "harsh"), show=shown.append)
    again = subprocess.run(
        [sys.executable, "-m", "sim", "replay", "--seed", str(seed), "--faults", "harsh"],
        capture_output=True,
        check=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "7"},
        text=True,
        timeout=800,  # what it does is the same however long it takes
    )

    assert again.stdout.splitlines() == shown
    assert f"digest={report.digest} " in again.stderr
