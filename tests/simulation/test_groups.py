"""Seeds of a group under failure: committed offsets never go back, a generation has one assignment, and members go on."""

import pytest

from sim.groups.world import run_seed

SEEDS_PER_TEST = 5
RANGES = [("none", 5), ("usual", 25), ("harsh", 25)]
GUESSES = [0.1, 0.5]


@pytest.mark.parametrize(
    ("faults", "first"), [(faults, first) for faults, count in RANGES for first in range(1, count + 1, SEEDS_PER_TEST)]
)
def test_these_seeds_find_nothing_wrong(faults: str, first: int) -> None:
    wrong = {seed: report.violations[:5] for seed in range(first, first + SEEDS_PER_TEST) if (report := run_seed(seed, faults)).violations}

    assert wrong == {}


@pytest.mark.parametrize("guesses", GUESSES)
@pytest.mark.parametrize("first", range(1, 11, SEEDS_PER_TEST))
@pytest.mark.parametrize("faults", ["none", "harsh"])
def test_brokers_that_take_each_other_for_dead_without_reason_do_no_harm(faults: str, first: int, guesses: float) -> None:
    reports = {seed: run_seed(seed, faults, guesses=guesses) for seed in range(first, first + SEEDS_PER_TEST)}

    assert {seed: report.violations[:5] for seed, report in reports.items() if report.violations} == {}


@pytest.mark.parametrize("seed", [1])
def test_a_seed_run_twice_takes_the_same_turns(seed: int) -> None:
    assert run_seed(seed, "harsh", guesses=0.1) == run_seed(seed, "harsh", guesses=0.1)


def test_the_seeds_do_rebalance_and_commit() -> None:
    reports = [run_seed(seed, "usual") for seed in range(1, 21)]

    # Of all together: what one seed does changes with every request that a broker makes more or less.
    assert sum(report.commits for report in reports) > 20 * len(reports)
    assert sum(report.looks for report in reports) > 20 * len(reports)
    assert sum(report.generations for report in reports) > 1.5 * len(reports)


def test_the_guesses_do_take_claims_from_brokers_that_live() -> None:
    reports = [run_seed(seed, "none", guesses=0.5) for seed in range(1, 11)]

    assert sum(report.wrong_guesses for report in reports) > len(reports)
    assert sum(report.lost_claims for report in reports) > 0
    assert all(report.commits > 10 for report in reports)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("guesses", [0.0, *GUESSES])
@pytest.mark.parametrize("first", [1_001, *(pytest.param(first, marks=pytest.mark.long) for first in range(1_101, 3_001, 100))])
def test_many_more_seeds_find_nothing_wrong(first: int, guesses: float) -> None:
    reports = {seed: run_seed(seed, "harsh", guesses=guesses) for seed in range(first, first + 100)}
    wrong = {seed: report.violations[:5] for seed, report in reports.items() if report.violations}

    assert wrong == {}
