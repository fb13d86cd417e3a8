"""A branch that no seed takes is one whose guard nobody has seen work."""

import os

import pytest

from sim.coverage import count_branches, never_taken, outdated

SEEDS = (1, 1_000)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_a_thousand_seeds_take_every_branch_but_those_that_are_said_to_be_out_of_reach() -> None:
    """Fifteen minutes of CPU at most. A branch that is new here wants a seed that takes it, or a reason in sim/unreachable.py."""
    counts = count_branches(SEEDS, faults="harsh", jobs=len(os.sched_getaffinity(0)))

    assert never_taken(counts) == []
    assert outdated(counts) == [], "their names in sim/unreachable.py are outdated, or they were reached"
