"""Brokers that are wrong on purpose are found out: what makes the silence of the other seeds worth something."""

import contextlib
from collections.abc import Callable, Mapping
from typing import Final

import pytest

from sim.world import Plan, run_seed
from tests.kit import found_seeds
from tests.simulation import (
    wrong_brokers,
    wrong_collector,
    wrong_compactor,
    wrong_inline,
    wrong_log,
    wrong_merge,
    wrong_purge,
    wrong_retention,
)

SEEDS_MAX: Final = 300

Wrong = Callable[[], contextlib.AbstractContextManager[None]]

pytestmark = pytest.mark.timeout(1_800)


class Search:
    """Seeds from the one that found the fault last, or from the first; the report of the test says which has found it."""

    def __init__(self, begins: Mapping[str, int], note: Callable[[str, object], None]) -> None:
        self._begins = begins
        self._note = note

    def find(
        self,
        wrong: Wrong,
        *,
        expected: str = "",
        theme: str | None = None,
        compactors: int = 0,
        duties: str | None = None,
        seeds_max: int = SEEDS_MAX,
    ) -> None:
        """Run seeds with `wrong` until one complains, of `expected` if that is given; fail if none of `seeds_max` does."""
        name = f"{wrong.__name__}: {expected}" if expected else wrong.__name__
        first = self._begins.get(name, 1)
        plans = (Plan(seed, "harsh", theme=theme, compactors=compactors, duties=duties) for seed in range(first, first + seeds_max))
        with wrong():
            found = next((plan.seed for plan in plans if _is_found(plan, expected)), None)

        assert found is not None, f"not found by {seeds_max} seeds: {name}"
        self._note(found_seeds.FOUND_AT, (name, found))


def _is_found(plan: Plan, expected: str) -> bool:
    """By the checker, or by the code's own assertions before it: they end the seed."""
    try:
        return any(expected in text.partition(":")[0] for text in run_seed(plan).violations)
    except ExceptionGroup as failures:
        _, others = failures.split(AssertionError)
        if others is not None or expected:
            raise
        return True


@pytest.fixture(
    params=[pytest.param(True, id="near"), pytest.param(False, id="from-the-first", marks=[pytest.mark.slow, pytest.mark.long])]
)
def search(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> Search:
    """Begin where each was found last, which takes seconds; the slow tier shows that no seed was picked."""
    return Search(found_seeds.read() if request.param else {}, record_property)


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        (wrong_brokers.retries_what_is_unknown_as_new, "duplicate"),
        (wrong_brokers.puts_without_condition, "lost ack"),
        (wrong_brokers.shows_before_the_cas, "two values at one offset"),
        (wrong_brokers.acks_before_the_cas, "lost ack"),
        (wrong_brokers.commits_before_the_upload, "fsck"),
        (wrong_brokers.tells_ends_from_memory, "stale end"),
        (wrong_brokers.tells_ends_from_memory, "stale start"),
        (wrong_brokers.refuses_for_certain_after_sending, "dirty read"),
    ],
)
def test_the_checker_finds_a_broker_that(search: Search, wrong: Wrong, expected: str) -> None:
    search.find(wrong, expected=expected)


@pytest.mark.parametrize(
    "wrong",
    [
        wrong_log.drops_producers_without_spilling_them,
        wrong_log.takes_the_page_it_knows_for_the_one_that_is_named,
        wrong_log.commits_objects_that_were_revoked,
        wrong_log.lets_strangers_begin_with_any_sequence,
        wrong_log.puts_its_own_entry_beside_its_cas,
        wrong_log.numbers_every_commit_alike,
        wrong_log.keeps_the_bytes_of_what_it_has_answered,
        wrong_log.counts_no_bytes_of_what_it_carries,
        wrong_log.remembers_nobody_for_long,
        wrong_inline.leaves_the_bytes_behind_when_the_ring_leaves,
        wrong_inline.joins_a_commit_that_has_begun,
    ],
)
def test_the_checker_soon_finds_a_log_that(search: Search, wrong: Wrong) -> None:
    search.find(wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        wrong_compactor.deletes_index_keys_by_their_base,
        wrong_compactor.forgets_the_segment_before,
        wrong_compactor.deletes_its_object_when_it_lost,
        wrong_compactor.reads_by_the_index_below_the_cursor,
    ],
)
def test_the_checker_soon_finds_a_compactor_that(search: Search, wrong: Wrong) -> None:
    search.find(wrong, compactors=2, duties="compact")


def test_the_checker_finds_a_compactor_that_puts_its_own_segment_beside_its_cas(search: Search) -> None:
    search.find(wrong_compactor.puts_its_own_segment_beside_its_cas, compactors=3, duties="all")


@pytest.mark.parametrize(
    "wrong",
    [
        wrong_merge.deletes_the_entries_of_its_sources_first,
        wrong_merge.is_cleared_when_it_was_sent,
        wrong_merge.is_cleared_when_its_last_key_has_it,
        wrong_merge.deletes_the_keys_of_its_sources_in_the_end,
    ],
)
def test_the_checker_soon_finds_a_merger_that(search: Search, wrong: Wrong) -> None:
    search.find(wrong, compactors=3, duties="merge")


@pytest.mark.parametrize(
    "wrong", [wrong_merge.takes_the_place_of_a_merge_that_is_under_way, wrong_merge.puts_itself_over_whatever_is_there]
)
def test_the_checker_finds_among_a_hundred_seeds_a_merger_that(search: Search, wrong: Wrong) -> None:
    search.find(wrong, compactors=3, duties="merge")


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrong",
    [
        wrong_merge.believes_a_scan_of_its_sources,
        wrong_merge.puts_itself_over_a_later_merge,
        wrong_merge.takes_no_answer_for_a_refusal_and_deletes_its_object,
    ],
)
def test_the_checker_finds_a_merger_that(search: Search, wrong: Wrong) -> None:
    search.find(wrong, compactors=3, duties="merge", seeds_max=3_000)


@pytest.mark.parametrize(
    ("wrong", "compactors"),
    [
        (wrong_collector.trusts_its_grace, 2),
        (wrong_collector.looks_before_it_revokes, 2),
        (wrong_collector.forgets_what_is_pending, 2),
        (wrong_collector.lowers_the_floor, 3),
        (wrong_collector.counts_no_deletion, 2),
        (wrong_collector.counts_in_the_metadata_alone, 2),
        (wrong_collector.keeps_nothing_that_was_accepted, 2),
    ],
)
def test_the_checker_soon_finds_a_collector_that(search: Search, wrong: Wrong, compactors: int) -> None:
    search.find(wrong, compactors=compactors, duties="collect")


@pytest.mark.slow
def test_the_checker_finds_a_collector_that_revokes_in_one_partition(search: Search) -> None:
    search.find(wrong_collector.revokes_in_one_partition, compactors=2, duties="collect", seeds_max=3_000)


@pytest.mark.parametrize(
    "wrong", [wrong_purge.goes_by_the_mark_of_a_deletion, wrong_purge.goes_by_a_list_of_topics, wrong_purge.removes_the_tombstone_too]
)
def test_the_checker_soon_finds_a_purge_that(search: Search, wrong: Wrong) -> None:
    search.find(wrong, compactors=2, duties="purge")


@pytest.mark.parametrize(
    "wrong",
    [
        wrong_retention.deletes_keys_by_their_base,
        wrong_retention.deletes_keys_before_its_cas,
        wrong_retention.deletes_all_that_is_old_wherever_it_lies,
        wrong_retention.counts_what_goes_as_if_it_stayed,
        wrong_retention.begins_the_log_in_the_middle_of_an_item,
        wrong_retention.moves_log_start_to_where_it_has_planned,
    ],
)
def test_the_checker_soon_finds_retention_that(search: Search, wrong: Wrong) -> None:
    search.find(wrong, compactors=2, duties="trim")


@pytest.mark.parametrize(
    ("wrong", "seeds_max"),
    [
        (wrong_retention.empties_a_ring_that_is_in_no_index, 10),
        (wrong_retention.takes_a_ring_of_which_a_part_is_in_segments_for_one_that_is_not_needed, 60),
        (wrong_retention.puts_the_chunk_after_its_cas, 10),
        (wrong_retention.puts_the_chunk_of_the_record_that_it_read_first, 60),
        (wrong_retention.takes_whoever_is_not_on_its_list_for_gone, 60),
    ],
)
def test_the_checker_soon_finds_tidying_that(search: Search, wrong: Wrong, seeds_max: int) -> None:
    search.find(wrong, compactors=2, duties="trim", seeds_max=seeds_max)


def test_the_checker_soon_finds_tidying_that_believes_any_list_of_brokers(search: Search) -> None:
    search.find(wrong_retention.believes_any_list_of_brokers, compactors=2, duties="trim")


@pytest.mark.parametrize(
    ("wrong", "theme", "seeds_max"),
    [
        (wrong_brokers.serves_what_it_once_knew, "trimming", 20),
        (wrong_log.forgets_what_was_lost, "stubborn", SEEDS_MAX),
        (wrong_log.takes_what_follows_a_lost_batch, "passing", 2 * SEEDS_MAX + 100),
        (wrong_log.sweeps_pages_that_a_newer_record_names, "spilling", SEEDS_MAX),
        (wrong_log.places_producers_by_the_pages_that_have_not_expired, "passing", SEEDS_MAX),
    ],
)
def test_the_checker_soon_finds_by_its_theme_a_log_that(search: Search, wrong: Wrong, theme: str, seeds_max: int) -> None:
    search.find(wrong, theme=theme, seeds_max=seeds_max)


@pytest.mark.slow
def test_the_checker_finds_by_its_theme_a_log_that_takes_an_absent_entry_for_an_attempt_that_was_not_applied(search: Search) -> None:
    search.find(wrong_log.takes_an_absent_entry_for_an_attempt_that_was_not_applied, theme="churning")


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrong",
    [
        wrong_log.takes_a_conflict_after_an_unknown_attempt_for_the_end_of_it,
        wrong_log.counts_whoever_registered_since_the_scan_as_dead,
        wrong_brokers.drops_the_writers_of_the_living,
    ],
)
def test_the_checker_finds_a_log_that(search: Search, wrong: Wrong) -> None:
    """Up to 90 s of CPU each: what these do wrong takes several rare things at once to show."""
    search.find(wrong)
