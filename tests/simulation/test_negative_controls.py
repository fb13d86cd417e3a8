"""Brokers that are wrong on purpose are found out: what makes the silence of the other seeds worth something."""

import contextlib
from collections.abc import Callable

import pytest

from sim.world import Plan, run_seed
from tests.simulation import wrong_brokers

SEEDS_MAX = 300


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        (wrong_brokers.retries_what_is_unknown_as_new, "duplicate"),
        (wrong_brokers.puts_without_condition, "lost ack"),
        (wrong_brokers.shows_before_the_cas, "two values at one offset"),
        (wrong_brokers.acks_before_the_cas, "lost ack"),
        (wrong_brokers.commits_before_the_upload, "fsck"),
        (wrong_brokers.tells_ends_from_memory, "stale end"),
        (wrong_brokers.refuses_for_certain_after_sending, "dirty read"),
        (wrong_brokers.drops_the_writers_of_the_living, "duplicate"),
    ],
)
def test_the_checker_finds_a_broker_that(wrong: Callable[[], contextlib.AbstractContextManager[None]], expected: str) -> None:
    with wrong():
        found = next((seed for seed in range(1, SEEDS_MAX + 1) if expected in _classes(seed)), None)

    assert found is not None, f"not found by {SEEDS_MAX} seeds: {expected}"


def _classes(seed: int) -> set[str]:
    return {text.partition(":")[0] for text in run_seed(Plan(seed, "harsh")).violations}
