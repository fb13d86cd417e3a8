"""Owners of partitions: a broker that goes away moves the sets that had it and no others, and all brokers own about as much."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.commands.bench.load.routing import LEAST_IN_FLIGHT, ROUND_ROBIN, OwnerPicker, owner_sets, remaps_between

PLACES = [("orders", partition) for partition in range(8)] + [("payments", partition) for partition in range(4)]
PLACE = ("orders", 0)

brokers = st.sets(st.integers(min_value=1, max_value=16), min_size=2, max_size=16)
sizes = st.integers(min_value=1, max_value=5)
seeds = st.integers(min_value=0, max_value=2**31 - 1)


@given(brokers, sizes, seeds)
def test_each_partition_has_as_many_different_owners_as_asked_for_or_as_there_are(live: set[int], k: int, seed: int) -> None:
    sets = owner_sets(PLACES, live, k=k, seed=seed)

    assert sets.keys() == set(PLACES)
    for owners in sets.values():
        assert len(owners) == len(set(owners)) == min(k, len(live))
        assert set(owners) <= live


@given(brokers, sizes, seeds, st.data())
def test_a_lost_broker_is_replaced_inside_the_sets_that_had_it_and_no_other_set_changes(
    live: set[int], k: int, seed: int, data: st.DataObject
) -> None:
    lost = data.draw(st.sampled_from(sorted(live)))
    before = owner_sets(PLACES, live, k=k, seed=seed)
    after = owner_sets(PLACES, live - {lost}, k=k, seed=seed)

    moved = remaps_between(before, after)

    assert {(one.topic, one.partition) for one in moved} == {place for place, owners in before.items() if lost in owners}
    for one in moved:
        stayed = tuple(owner for owner in one.before if owner != lost)
        assert one.after[: len(stayed)] == stayed
        assert len(one.after) == min(k, len(live) - 1)


@given(brokers, sizes, seeds, st.data())
def test_a_broker_that_comes_back_takes_its_places_again(live: set[int], k: int, seed: int, data: st.DataObject) -> None:
    lost = data.draw(st.sampled_from(sorted(live)))
    before = owner_sets(PLACES, live, k=k, seed=seed)

    assert remaps_between(before, owner_sets(PLACES, (live - {lost}) | {lost}, k=k, seed=seed)) == []


@given(brokers, seeds)
def test_a_new_broker_displaces_one_owner_of_a_set_at_most(live: set[int], seed: int) -> None:
    before = owner_sets(PLACES, live, k=2, seed=seed)

    for one in remaps_between(before, owner_sets(PLACES, live | {17}, k=2, seed=seed)):
        assert 17 in one.after
        assert len(set(one.before) - set(one.after)) <= 1


@settings(max_examples=20)
@given(st.integers(min_value=2, max_value=8), st.integers(min_value=1, max_value=2), seeds)
def test_brokers_own_about_as_much_as_each_other(count: int, k: int, seed: int) -> None:
    places = [("t", partition) for partition in range(400)]
    sets = owner_sets(places, range(1, count + 1), k=k, seed=seed)

    owned = Counter(owner for owners in sets.values() for owner in owners)

    fair = len(places) * k / count
    # Ten standard deviations of a choice by chance: no seed comes near.
    assert all(abs(owned[broker] - fair) < 10 * fair**0.5 for broker in range(1, count + 1))


def test_another_seed_gives_other_sets() -> None:
    assert owner_sets(PLACES, range(1, 9), k=2, seed=1) != owner_sets(PLACES, range(1, 9), k=2, seed=2)


def test_where_no_broker_lives_nobody_owns_anything() -> None:
    assert owner_sets([PLACE], (), k=2, seed=1) == {PLACE: ()}


def test_owners_take_turns() -> None:
    picker = OwnerPicker(ROUND_ROBIN)

    assert [picker.take(PLACE, (3, 1)) for _ in range(4)] == [3, 1, 3, 1]


def test_the_owner_with_the_fewest_requests_under_way_is_taken_and_equals_take_turns() -> None:
    picker = OwnerPicker(LEAST_IN_FLIGHT)

    assert picker.take(PLACE, (1, 2)) == 1
    assert picker.take(("orders", 1), (1, 2)) == 2
    picker.give_back(1)
    assert picker.take(PLACE, (2, 1)) == 1
    picker.give_back(1)
    picker.give_back(2)
    assert {picker.take(PLACE, (1, 2)), picker.take(PLACE, (1, 2))} == {1, 2}


@pytest.mark.parametrize("pick", [ROUND_ROBIN, LEAST_IN_FLIGHT])
def test_a_broker_that_refused_is_taken_again_only_when_no_other_is_left(pick: str) -> None:
    picker = OwnerPicker(pick)

    assert [picker.take(PLACE, (1, 2), refused={1}) for _ in range(3)] == [2, 2, 2]
    assert picker.take(PLACE, (1, 2), refused={1, 2}) in {1, 2}
