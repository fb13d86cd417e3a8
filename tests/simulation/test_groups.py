"""Seeds of a group under failure: committed offsets never go back, a generation has one assignment, and members go on."""

import pytest

from tests.simulation.group_world import run_seed

SEEDS_PER_TEST = 5
RANGES = [("none", 5), ("usual", 25), ("harsh", 25)]


@pytest.mark.parametrize(
    ("faults", "first"), [(faults, first) for faults, count in RANGES for first in range(1, count + 1, SEEDS_PER_TEST)]
)
def test_these_seeds_find_nothing_wrong(faults: str, first: int) -> None:
    wrong = {seed: report.violations[:5] for seed in range(first, first + SEEDS_PER_TEST) if (report := run_seed(seed, faults)).violations}

    assert wrong == {}


@pytest.mark.parametrize("seed", [1])
def test_a_seed_run_twice_takes_the_same_turns(seed: int) -> None:
    assert run_seed(seed, "harsh") == run_seed(seed, "harsh")


def test_the_seeds_do_rebalance_and_commit() -> None:
    reports = [run_seed(seed, "usual") for seed in range(1, 6)]

    assert all(report.commits > 10 and report.looks > 10 for report in reports)
    assert sum(report.generations for report in reports) > 2 * len(reports)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1_001, 3_001, 100))
def test_many_more_seeds_find_nothing_wrong(first: int) -> None:
    wrong = {seed: report.violations[:5] for seed in range(first, first + 100) if (report := run_seed(seed, "harsh")).violations}

    assert wrong == {}
