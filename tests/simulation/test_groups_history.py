"""What the judgement of commits that nobody heard of finds, and what it lets pass."""

import math

from sim.groups.history import FetchedOffsets, GroupHistory, Tried, shown_from_nowhere


def looks(*shown: tuple[float, int]) -> list[FetchedOffsets]:
    return [FetchedOffsets(1, {0: offset}, began_s, began_s + 0.1) for began_s, offset in shown]


def test_an_offset_that_is_shown_after_its_commit_was_given_up_and_another_was_shown_is_from_nowhere() -> None:
    history = GroupHistory()
    history.note(Tried("m", 0, 7, 1.0, 2.0), *looks((0.5, -1), (3.0, -1), (4.0, 7)))

    assert shown_from_nowhere(history) == [
        "partition 0: a look at 4.100 s saw 7 after one at 3.000 s saw -1 and nobody committed it meanwhile"
    ]


def test_a_commit_that_nobody_heard_of_may_be_shown_by_the_first_look_after_it() -> None:
    history = GroupHistory()
    history.note(Tried("m", 0, 7, 1.0, 2.0), *looks((0.5, -1), (3.0, 7), (4.0, 7)))

    assert shown_from_nowhere(history) == []


def test_a_commit_may_be_shown_as_long_as_it_goes_on() -> None:
    history = GroupHistory()
    history.note(Tried("m", 0, 7, 1.0, 3.5), Tried("m", 0, 9, 4.2, math.inf), *looks((0.5, -1), (3.0, -1), (4.0, 7), (60.0, 9)))

    assert shown_from_nowhere(history) == []


def test_looks_that_overlap_are_in_no_order() -> None:
    history = GroupHistory()
    history.note(Tried("m", 0, 7, 1.0, 2.0), FetchedOffsets(1, {0: -1}, 1.5, 6.0), FetchedOffsets(2, {0: 7}, 5.0, 5.5))

    assert shown_from_nowhere(history) == []
