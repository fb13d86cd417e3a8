"""Brokers that are wrong on purpose are found, whatever seed the search begins at. Without that, clean seeds would prove nothing."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from random import SystemRandom
from typing import Final

import pytest

from sim.world import Plan, run_seed
from tests.simulation import (
    wrong_brokers,
    wrong_collector,
    wrong_compactor,
    wrong_early,
    wrong_log,
    wrong_merge,
    wrong_pages,
    wrong_purge,
    wrong_retention,
)

SEEDS_MAX: Final = 300
"""One seed in six, or more, finds a common fault (one in three finds most)."""
MISTAKES: Final = ("TypeError", "AttributeError", "NameError")
"""No broker dies of these by a fault of its own."""
SEEDS_OF_RARE_MAX: Final = 10_000
FIRST_SEED_MAX: Final = 2**31

pytestmark = pytest.mark.timeout(1_800)


@dataclass(frozen=True)
class WrongPart:
    """A fault to look for, and the kind of seeds to look in. `violation` is how its report begins; empty if any will do."""

    wrong: Callable[[], contextlib.AbstractContextManager[None]]
    violation: str = ""
    theme: str | None = None
    compactors: int = 0
    duties: str | None = None

    def __str__(self) -> str:
        return f"{self.wrong.__name__} {self.violation}".strip().replace(" ", "-")

    def is_found_within(self, seeds: int) -> bool:
        """Run seeds from a random one on until one complains of the fault."""
        first = SystemRandom().randrange(FIRST_SEED_MAX)
        plans = (
            Plan(seed, "harsh", theme=self.theme, compactors=self.compactors, duties=self.duties) for seed in range(first, first + seeds)
        )
        with self.wrong():
            return any(self._is_found_by(plan) for plan in plans)

    def _is_found_by(self, plan: Plan) -> bool:
        """By the checker, or by the code's own assertions, which end the seed before it."""
        try:
            violations = run_seed(plan).violations
            broken = [text for text in violations if any(f" died: {name}(" in text for name in MISTAKES)]
            assert not broken, f"the wrong part is wrong in itself: {broken[0]}"
            return any(self.violation in text.partition(":")[0] for text in violations)
        except ExceptionGroup as failures:
            _, others = failures.split(AssertionError)
            if others is not None:
                raise
            return not self.violation


COMMON: Final = (
    WrongPart(wrong_brokers.puts_without_condition, "lost ack"),
    WrongPart(wrong_brokers.shows_before_the_cas, "two values at one offset"),
    WrongPart(wrong_brokers.acks_before_the_cas, "lost ack"),
    WrongPart(wrong_brokers.commits_before_the_upload, "fsck"),
    WrongPart(wrong_brokers.tells_ends_from_memory, "stale end"),
    WrongPart(wrong_brokers.serves_what_it_once_knew, theme="trimming"),
    WrongPart(wrong_log.takes_the_page_it_knows_for_the_one_that_is_named),
    WrongPart(wrong_log.lets_unknown_producers_begin_with_any_sequence),
    WrongPart(wrong_log.puts_its_own_entry_beside_its_cas),
    WrongPart(wrong_log.numbers_every_commit_alike),
    WrongPart(wrong_log.keeps_the_bytes_of_what_it_has_answered),
    WrongPart(wrong_log.places_producers_by_the_pages_that_have_not_expired, theme="passing"),
    WrongPart(wrong_early.joins_a_commit_that_has_begun),
    WrongPart(wrong_early.deletes_pages_before_the_object_is_stored),
    WrongPart(wrong_early.gives_a_place_again_after_a_cut),
    WrongPart(wrong_early.sends_a_page_with_the_first_attempt_only),
    WrongPart(wrong_early.takes_one_absence_for_damage),
    WrongPart(wrong_pages.deletes_the_pages_behind_a_stored_object_with_it),
    WrongPart(wrong_pages.stores_the_object_of_another_from_the_pages_it_finds, compactors=2, duties="compact"),
    WrongPart(wrong_pages.collects_orphans_by_their_age, compactors=2, duties="collect"),
    WrongPart(wrong_pages.looks_in_one_partition_of_an_object_in_pieces, theme="sharing", compactors=2, duties="collect"),
    WrongPart(wrong_pages.deletes_no_page),
    WrongPart(wrong_pages.deletes_the_pages_that_it_compacts_before_its_cas, compactors=2, duties="compact"),
    WrongPart(wrong_pages.goes_on_behind_an_entry_that_it_does_not_find_at_once),
    WrongPart(wrong_compactor.forgets_the_segment_before, compactors=2, duties="compact"),
    WrongPart(wrong_compactor.deletes_its_object_when_it_lost, compactors=2, duties="compact"),
    WrongPart(wrong_compactor.puts_its_own_segment_beside_its_cas, compactors=3, duties="all"),
    WrongPart(wrong_merge.deletes_the_entries_of_its_sources_first, compactors=3, duties="merge"),
    WrongPart(wrong_merge.is_cleared_when_its_last_key_has_it, compactors=3, duties="merge"),
    WrongPart(wrong_merge.deletes_the_keys_of_its_sources_in_the_end, compactors=3, duties="merge"),
    WrongPart(wrong_collector.keeps_nothing_that_was_accepted, compactors=2, duties="collect"),
    WrongPart(wrong_retention.deletes_keys_by_their_base, compactors=2, duties="trim"),
    WrongPart(wrong_retention.deletes_keys_before_its_cas, compactors=2, duties="trim"),
    WrongPart(wrong_retention.deletes_all_that_is_old_wherever_it_lies, compactors=2, duties="trim"),
    WrongPart(wrong_retention.counts_what_goes_as_if_it_stayed, compactors=2, duties="trim"),
    WrongPart(wrong_retention.begins_the_log_in_the_middle_of_an_item, compactors=2, duties="trim"),
    WrongPart(wrong_retention.puts_the_chunk_after_its_cas, compactors=2, duties="trim"),
)
COSTLY: Final = (
    WrongPart(wrong_early.heeds_no_floor, compactors=2, duties="collect"),
    WrongPart(wrong_collector.forgets_what_is_pending, compactors=2, duties="collect"),
    WrongPart(wrong_log.drops_producers_without_spilling_them),
    WrongPart(wrong_collector.trusts_its_grace, compactors=2, duties="collect"),
    WrongPart(wrong_compactor.reads_by_the_index_below_the_cursor, compactors=2, duties="compact"),
    WrongPart(wrong_compactor.deletes_index_keys_by_their_base, compactors=2, duties="compact"),
    WrongPart(wrong_purge.removes_the_tombstone_too, compactors=2, duties="purge"),
)
"""Common ones whose seeds take longest, or that one seed in twenty finds: apart, in `make test-more`."""
RARE: Final = (
    WrongPart(wrong_brokers.refuses_for_certain_after_sending, "dirty read"),
    WrongPart(wrong_log.counts_no_bytes_of_what_it_carries),
    WrongPart(wrong_log.remembers_nobody_for_long),
    WrongPart(wrong_log.sweeps_pages_that_a_newer_record_names, theme="spilling"),
    WrongPart(wrong_collector.counts_no_deletion, compactors=2, duties="collect"),
    WrongPart(wrong_collector.counts_in_the_metadata_alone, compactors=2, duties="collect"),
    WrongPart(wrong_purge.goes_by_a_list_of_topics, compactors=2, duties="purge"),
    WrongPart(wrong_retention.empties_a_ring_that_is_in_no_index, compactors=2, duties="trim"),
    WrongPart(wrong_brokers.retries_what_is_unknown_as_new, "duplicate"),
    WrongPart(wrong_brokers.tells_ends_from_memory, "stale start"),
    WrongPart(wrong_brokers.drops_the_writers_of_the_living),
    WrongPart(wrong_log.commits_objects_that_were_revoked),
    WrongPart(wrong_log.forgets_what_was_lost, theme="stubborn"),
    WrongPart(wrong_log.takes_what_follows_a_lost_batch, theme="passing"),
    WrongPart(wrong_log.takes_an_absent_entry_for_an_attempt_that_was_not_applied, theme="churning"),
    WrongPart(wrong_log.takes_a_conflict_after_an_unknown_attempt_for_the_end_of_it),
    WrongPart(wrong_log.counts_whoever_registered_since_the_scan_as_dead),
    WrongPart(wrong_merge.is_cleared_when_it_was_sent, compactors=3, duties="merge"),
    WrongPart(wrong_merge.takes_the_place_of_a_merge_that_is_under_way, compactors=3, duties="merge"),
    WrongPart(wrong_merge.puts_itself_over_whatever_is_there, compactors=3, duties="merge"),
    WrongPart(wrong_merge.believes_a_scan_of_its_sources, compactors=3, duties="merge"),
    WrongPart(wrong_merge.puts_itself_over_a_later_merge, compactors=3, duties="merge"),
    WrongPart(wrong_merge.takes_no_answer_for_a_refusal_and_deletes_its_object, compactors=3, duties="merge"),
    WrongPart(wrong_collector.looks_before_it_revokes, compactors=2, duties="collect"),
    WrongPart(wrong_collector.lowers_the_floor, compactors=3, duties="collect"),
    WrongPart(wrong_collector.revokes_in_one_partition, compactors=2, duties="collect"),
    WrongPart(wrong_purge.goes_by_the_mark_of_a_deletion, compactors=2, duties="purge"),
    WrongPart(wrong_retention.moves_log_start_to_where_it_has_planned, compactors=2, duties="trim"),
    WrongPart(wrong_retention.takes_a_ring_of_which_a_part_is_in_segments_for_one_that_is_not_needed, compactors=2, duties="trim"),
    WrongPart(wrong_retention.puts_the_chunk_of_the_record_that_it_read_first, compactors=2, duties="trim"),
    WrongPart(wrong_retention.takes_whoever_is_not_on_its_list_for_gone, compactors=2, duties="trim"),
    WrongPart(wrong_retention.believes_any_list_of_brokers, compactors=2, duties="trim"),
)


@pytest.mark.parametrize("part", [*COMMON, *(pytest.param(part, marks=pytest.mark.slow) for part in COSTLY)], ids=str)
def test_the_checker_soon_finds_a_part_that(part: WrongPart) -> None:
    assert part.is_found_within(SEEDS_MAX)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(14_400)
@pytest.mark.parametrize("part", RARE, ids=str)
def test_the_checker_finds_a_part_that(part: WrongPart) -> None:
    assert part.is_found_within(SEEDS_OF_RARE_MAX)
