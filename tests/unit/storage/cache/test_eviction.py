"""The order in which pieces make room: history keeps to its share, and what is pinned stays."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.cache.eviction import AGED_AT_ONCE_MAX, TAIL_KEPT_S, EvictionOrder
from tests.kit.faulty_metadata import ManualClock

SHARE = 100


def ordered(clock: ManualClock | None = None) -> EvictionOrder:
    return EvictionOrder(history_bytes_max=SHARE, monotonic_s=(clock or ManualClock()).monotonic_s)


def named(number: int) -> tuple[str, int]:
    return "object", number


def evicted(order: EvictionOrder, *, fetching_bytes: int = 0) -> list[int]:
    """All pieces, in the order in which they go."""
    found = []
    while (name := order.first(fetching_bytes=fetching_bytes)) is not None:
        order.remove(name)
        found.append(name[1])
    return found


def test_without_history_what_was_used_longest_ago_goes_first() -> None:
    order = ordered()
    for number in range(4):
        order.add(named(number), 60, is_history=False)
    order.use(named(1), is_history=False)

    assert evicted(order) == [0, 2, 3, 1]


def test_history_above_its_share_goes_before_the_tail_however_old_that_is() -> None:
    order = ordered()
    order.add(named(0), 60, is_history=False)
    for number in (1, 2, 3):
        order.add(named(number), 60, is_history=True)

    assert evicted(order) == [1, 2, 0, 3]


def test_history_within_its_share_ages_with_the_tail() -> None:
    order = ordered()
    order.add(named(0), 60, is_history=True)
    order.add(named(1), 60, is_history=False)
    order.add(named(2), 40, is_history=True)

    assert evicted(order) == [0, 1, 2]


def test_what_is_on_its_way_to_history_counts_as_its_own() -> None:
    order = ordered()
    order.add(named(0), 60, is_history=False)
    order.add(named(1), 60, is_history=True)

    assert order.first(fetching_bytes=40) == named(0)
    assert order.first(fetching_bytes=41) == named(1)


def test_what_was_left_behind_goes_first_unless_it_is_read_again() -> None:
    order = ordered()
    order.add(named(0), 1, is_history=False)
    for number in (1, 2, 3, 4):
        order.add(named(number), 1, is_history=True)
    for number in (3, 2, 4):
        order.leave_behind(named(number))
    order.use(named(2), is_history=True)

    assert evicted(order) == [3, 4, 0, 1, 2]


def test_a_piece_that_the_tail_reads_becomes_one_of_the_tail_and_stays_one() -> None:
    order = ordered()
    for number in (0, 1, 2):
        order.add(named(number), 60, is_history=True)
    order.leave_behind(named(0))
    order.use(named(0), is_history=False)
    order.use(named(1), is_history=False)
    assert order.history_bytes == 60

    order.use(named(0), is_history=True)
    order.leave_behind(named(0))
    assert order.history_bytes == 60
    assert evicted(order) == [2, 0, 1], "history does not renew what the tail has read"


def test_what_is_pinned_stays_until_the_last_who_holds_it_lets_go() -> None:
    order = ordered()
    for number in (0, 1):
        order.add(named(number), 60, is_history=bool(number))
    order.pin([named(0), named(1)])
    order.pin([named(0)])
    assert order.first(fetching_bytes=0) is None

    order.unpin([named(0), named(1)])
    assert evicted(order) == [1]
    order.unpin([named(0)])
    assert evicted(order) == [0]


@dataclass
class Piece:
    size_bytes: int
    used: int
    place: str  # "left", "history", "claimed", "tail"
    used_s: float


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "use", "leave", "claim", "release", "remove", "first", "wait"]),
        st.integers(0, 7),
        st.integers(1, 60),
        st.booleans(),
    ),
    max_size=60,
)


def is_tails(one: Piece, now_s: float) -> bool:
    return one.place == "tail" and one.used_s + TAIL_KEPT_S > now_s


def age(pieces: dict[int, Piece], now_s: float) -> None:
    """What becomes history is as old as it was."""
    tail = sorted((number for number, one in pieces.items() if one.place == "tail"), key=lambda number: pieces[number].used)
    for number in tail[:AGED_AT_ONCE_MAX]:
        if not is_tails(pieces[number], now_s):
            pieces[number].place = "history"


def expected_first(pieces: dict[int, Piece], left: list[int], fetching_bytes: int) -> int | None:
    if left:
        return left[0]
    oldest = {
        place: min((number for number, one in pieces.items() if one.place == place), key=lambda number: pieces[number].used, default=None)
        for place in ("history", "claimed", "tail")
    }
    if oldest["history"] is None:
        oldest["history"] = oldest["claimed"]
    if oldest["history"] is None or oldest["tail"] is None:
        return oldest["tail"] if oldest["history"] is None else oldest["history"]
    if sum(one.size_bytes for one in pieces.values() if one.place != "tail") + fetching_bytes > SHARE:
        return oldest["history"]
    return min(oldest["history"], oldest["tail"], key=lambda number: pieces[number].used)


@given(steps=STEPS)
def test_any_sequence_of_uses_evicts_as_a_list_of_all_pieces_says(steps: list[tuple[str, int, int, bool]]) -> None:
    clock = ManualClock()
    order, pieces, left = ordered(clock), dict[int, Piece](), list[int]()
    for now, (step, number, size_bytes, is_history) in enumerate(steps, 1):
        if step == "wait":
            clock.seconds += TAIL_KEPT_S * size_bytes / 60
        elif step == "first":
            age(pieces, clock.seconds)
            expected = expected_first(pieces, left, size_bytes)
            assert order.first(fetching_bytes=size_bytes) == (None if expected is None else named(expected))
        elif step == "add" and number not in pieces:
            order.add(named(number), size_bytes, is_history=is_history)
            pieces[number] = Piece(size_bytes, now, "history" if is_history else "tail", clock.seconds)
        elif number in pieces and step == "use":
            order.use(named(number), is_history=is_history)
            if not (is_history and (pieces[number].place == "claimed" or is_tails(pieces[number], clock.seconds))):
                left = [one for one in left if one != number]
                pieces[number] = Piece(pieces[number].size_bytes, now, "history" if is_history else "tail", clock.seconds)
        elif number in pieces and step == "leave":
            order.leave_behind(named(number))
            if pieces[number].place != "left" and not is_tails(pieces[number], clock.seconds):
                pieces[number].place = "left"
                left.append(number)
        elif number in pieces and step == "claim":
            order.claim(named(number))
            if pieces[number].place != "claimed" and not is_tails(pieces[number], clock.seconds):
                pieces[number].used, pieces[number].place = now, "claimed"
                left = [one for one in left if one != number]
        elif number in pieces and step == "release":
            order.release(named(number))
            if pieces[number].place == "claimed":
                pieces[number].used, pieces[number].place = now, "history"
        elif number in pieces and step == "remove":
            assert order.remove(named(number)) == pieces.pop(number).size_bytes
            left = [one for one in left if one != number]
        assert order.history_bytes == sum(one.size_bytes for one in pieces.values() if one.place != "tail")
        assert order.claimed_bytes == sum(one.size_bytes for one in pieces.values() if one.place == "claimed")


def test_what_is_yet_to_be_read_goes_last_of_history_and_within_the_share_as_old_as_it_is() -> None:
    order = ordered()
    for number, is_history in enumerate((True, True, False, True)):
        order.add(named(number), 40, is_history=is_history)
    order.claim(named(0))
    order.claim(named(2))  # the tail's own
    order.use(named(0), is_history=True)

    assert order.claimed_bytes == 40
    assert evicted(order) == [1, 2, 3, 0]


def test_what_was_claimed_ages_from_its_release_on_and_goes_first_when_it_is_left() -> None:
    order = ordered()
    for number in range(4):
        order.add(named(number), 40, is_history=True)
        order.claim(named(number))
    order.release(named(1))
    order.leave_behind(named(2))
    order.release(named(2))  # nobody claims it

    assert (order.claimed_bytes, order.left_behind_bytes, order.history_bytes) == (80, 40, 160)
    assert evicted(order) == [2, 1, 0, 3]


def test_a_claimed_piece_that_the_tail_reads_is_the_tails() -> None:
    order = ordered()
    order.add(named(0), 40, is_history=True)
    order.claim(named(0))
    order.use(named(0), is_history=False)

    assert (order.claimed_bytes, order.history_bytes) == (0, 0)


def test_a_piece_that_is_not_kept_cannot_be_removed() -> None:
    with pytest.raises(KeyError):
        ordered().remove(named(0))


def test_what_was_left_behind_is_counted_until_it_goes_or_is_used_again() -> None:
    order = ordered()
    for number in range(3):
        order.add(named(number), 10, is_history=True)
        order.leave_behind(named(number))
    at_first = order.left_behind_bytes
    order.use(named(0), is_history=True)
    order.remove(named(1))

    assert (at_first, order.left_behind_bytes, order.history_bytes) == (30, 10, 20)


def test_what_the_tail_has_not_used_for_a_while_goes_before_what_history_is_yet_to_read() -> None:
    clock = ManualClock()
    order = ordered(clock)
    for number in range(3):
        order.add(named(number), 60, is_history=False)
    clock.seconds += TAIL_KEPT_S - 1
    order.use(named(1), is_history=False)
    order.add(named(3), 60, is_history=True)
    order.add(named(4), 60, is_history=True)
    order.claim(named(3))
    before = order.first(fetching_bytes=0), order.history_bytes
    clock.seconds += 1

    assert before == (named(4), 120), "the tail has its own"
    assert order.first(fetching_bytes=0) == named(0)
    assert order.history_bytes == 240
    assert evicted(order) == [0, 2, 4, 1, 3]


def test_a_consumer_in_order_claims_what_the_tail_has_not_used_for_a_while() -> None:
    clock = ManualClock()
    order = ordered(clock)
    order.add(named(0), 60, is_history=False)
    clock.seconds += TAIL_KEPT_S
    order.claim(named(0))

    assert (order.claimed_bytes, order.history_bytes) == (60, 60)


def test_what_the_tail_has_not_used_for_a_while_is_as_old_as_its_last_use() -> None:
    clock = ManualClock()
    order = ordered(clock)
    order.add(named(0), 10, is_history=True)
    for number in range(1, 10):
        order.add(named(number), 10, is_history=False)
    clock.seconds += TAIL_KEPT_S
    order.add(named(10), 10, is_history=True)
    order.use(named(2), is_history=True)

    assert evicted(order) == [0, 1, 3, 4, 5, 6, 7, 8, 9, 10, 2]


def test_what_the_tail_has_not_used_for_a_while_is_left_behind_by_consumers_of_history() -> None:
    clock = ManualClock()
    order = ordered(clock)
    order.add(named(0), 10, is_history=True)
    order.add(named(1), 10, is_history=False)
    order.leave_behind(named(1))
    as_tail = order.left_behind_bytes
    clock.seconds += TAIL_KEPT_S
    order.leave_behind(named(1))

    assert (as_tail, order.left_behind_bytes) == (0, 10)
    assert evicted(order) == [1, 0]


def test_the_tail_takes_back_what_it_uses_again() -> None:
    clock = ManualClock()
    order = ordered(clock)
    order.add(named(0), 60, is_history=False)
    clock.seconds += TAIL_KEPT_S
    order.first(fetching_bytes=0)
    as_history = order.history_bytes
    order.use(named(0), is_history=False)
    clock.seconds += TAIL_KEPT_S - 1
    order.first(fetching_bytes=0)

    assert (as_history, order.history_bytes) == (60, 0)


def test_pieces_grow_old_a_few_at_a_time() -> None:
    clock = ManualClock()
    order = ordered(clock)
    for number in range(2 * AGED_AT_ONCE_MAX):
        order.add(named(number), 1, is_history=False)
    clock.seconds += TAIL_KEPT_S
    order.first(fetching_bytes=0)

    assert order.history_bytes == AGED_AT_ONCE_MAX
