from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.cluster.leadership import (
    Asker,
    Candidate,
    ClientLeadership,
    Leadership,
    PartitionLeadership,
    Question,
    SelfLeadership,
    leadership_of,
    nearest,
    slot_of,
    winner_of,
)
from storage.vocabulary import TopicId

TOPIC = TopicId("00000000-0000-4000-8000-000000000001")
PARTITIONS = 5_000
ANYBODY = Asker("app", "10.0.0.1")
EVERY_STRATEGY = [SelfLeadership(), ClientLeadership(), PartitionLeadership()]

ids = st.integers(0, 2**31 - 1)
candidates = st.lists(
    st.builds(Candidate, ids, st.sampled_from([None, "a", "b", "c"])), max_size=12, unique_by=lambda found: found.broker_id
)
askers = st.builds(Asker, st.none() | st.text(max_size=20) | st.sampled_from(["app,zone=a", "zone=b"]), st.text(max_size=15))


def standing(*broker_ids: int, rack: str | None = None) -> list[Candidate]:
    return [Candidate(broker_id, rack) for broker_id in broker_ids]


def leaders(
    strategy: Leadership, live: Sequence[Candidate], *, asker: Asker = ANYBODY, own_id: int = 1, count: int = PARTITIONS
) -> list[int]:
    place = strategy.placement(Question(asker, own_id, live))
    return [place(TOPIC, partition)[0] for partition in range(count)]


def leader(strategy: Leadership, live: Sequence[Candidate], *, asker: Asker = ANYBODY, own_id: int = 1) -> int:
    (found,) = leaders(strategy, live, asker=asker, own_id=own_id, count=1)
    return found


def some_clients(count: int, *, suffix: str = "") -> list[Asker]:
    return [Asker(f"app-{number}{suffix}", "10.0.0.1") for number in range(count)]


def test_each_word_of_the_setting_has_its_strategy() -> None:
    words = {word: type(leadership_of(word)) for word in ("self", "client", "partition")}

    assert words == {"self": SelfLeadership, "client": ClientLeadership, "partition": PartitionLeadership}


def test_the_broker_that_was_asked_leads_everything_if_it_is_to_be_self() -> None:
    live = [*standing(1, 2, rack="a"), *standing(3, rack="b")]

    assert set(leaders(SelfLeadership(), live, own_id=2, asker=Asker("x,zone=b", "h"))) == {2}


def test_a_broker_that_is_not_listed_names_the_same_other_for_a_client_as_all_such_brokers_do() -> None:
    live = standing(1, 2, 3)
    named = [{leader(SelfLeadership(), live, own_id=own_id, asker=asker) for own_id in (8, 9)} for asker in some_clients(100)]

    assert {len(found) for found in named} == {1}
    assert set.union(*named) == {1, 2, 3}


@pytest.mark.parametrize("strategy", EVERY_STRATEGY)
def test_with_nobody_alive_the_broker_that_was_asked_is_all_there_is(strategy: Leadership) -> None:
    assert leader(strategy, [], own_id=7) == 7


@given(live=candidates, asker=askers, own_id=ids, order=st.randoms(use_true_random=False))
def test_brokers_that_see_the_same_others_agree_whoever_was_asked(live: list[Candidate], asker: Asker, own_id: int, order: object) -> None:
    shuffled = sorted(live, key=lambda _: order.random())  # type: ignore[attr-defined]
    for strategy in (ClientLeadership(), PartitionLeadership()):
        one = strategy.placement(Question(asker, own_id, live))(TOPIC, 3)
        other = strategy.placement(Question(asker, own_id + 1, shuffled))(TOPIC, 3)

        assert one == other or not live


@given(live=candidates, asker=askers, own_id=ids)
def test_every_live_broker_is_placed_once(live: list[Candidate], asker: Asker, own_id: int) -> None:
    for strategy in EVERY_STRATEGY:
        placed = strategy.placement(Question(asker, own_id, live))(TOPIC, 0)

        assert sorted(placed) == sorted(candidate.broker_id for candidate in live) or (not live and placed == [own_id])


@given(live=candidates.filter(len), asker=askers, own_id=ids)
def test_the_first_replicas_reach_every_rack(live: list[Candidate], asker: Asker, own_id: int) -> None:
    racks = {candidate.broker_id: candidate.rack for candidate in live}
    for strategy in EVERY_STRATEGY:
        placed = strategy.placement(Question(asker, own_id, live))(TOPIC, 0)
        count = len(set(racks.values()))

        assert {racks[broker_id] for broker_id in placed[:count]} == set(racks.values())


def test_partitions_are_spread_evenly() -> None:
    led = Counter(leaders(PartitionLeadership(), standing(1, 2, 3, 4, 5)))

    assert len(led) == 5
    assert all(abs(count - PARTITIONS / 5) < PARTITIONS / 50 for count in led.values()), led


def test_clients_are_spread_evenly() -> None:
    led = Counter(leader(ClientLeadership(), standing(1, 2, 3, 4, 5), asker=asker) for asker in some_clients(PARTITIONS))

    assert all(abs(count - PARTITIONS / 5) < PARTITIONS / 50 for count in led.values()), led


def test_only_the_partitions_of_a_broker_that_leaves_move() -> None:
    before = leaders(PartitionLeadership(), standing(1, 2, 3, 4, 5))
    after = leaders(PartitionLeadership(), standing(1, 2, 4, 5))

    assert {old for old, new in zip(before, after, strict=True) if old != new} == {3}
    assert 3 not in after


def test_a_broker_that_joins_takes_its_share_and_nothing_else_moves() -> None:
    before = leaders(PartitionLeadership(), standing(1, 2, 3, 4))
    after = leaders(PartitionLeadership(), standing(1, 2, 3, 4, 5))
    moved = [new for old, new in zip(before, after, strict=True) if old != new]

    assert set(moved) == {5}
    assert abs(len(moved) - PARTITIONS / 5) < PARTITIONS / 50


def test_only_the_clients_of_a_broker_that_leaves_move() -> None:
    moved = {
        old
        for asker in some_clients(500)
        if (old := leader(ClientLeadership(), standing(1, 2, 3), asker=asker)) != leader(ClientLeadership(), standing(1, 2), asker=asker)
    }

    assert moved == {3}


def test_a_client_is_its_id_and_its_host() -> None:
    live = standing(*range(1, 1_000))
    named = {leader(ClientLeadership(), live, asker=Asker(name, host)) for name in ("a", None) for host in ("h", "i")}

    assert len(named) == 4


@pytest.mark.parametrize(
    ("client_id", "zone"),
    [
        (None, None),
        ("app", None),
        ("zone=eu-1a", "eu-1a"),
        ("app,zone=eu-1a", "eu-1a"),
        ("app, zone=eu-1a ,team=x", "eu-1a"),
        ("zone=,zone=b", "b"),
        ("timezone=utc", None),
        ("app zone=a", None),
        ("app,zone=a=b", "a=b"),
    ],
)
def test_the_zone_is_a_field_of_the_client_id(client_id: str | None, zone: str | None) -> None:
    assert Asker(client_id, "h").zone == zone


@pytest.mark.parametrize("strategy", [ClientLeadership(), PartitionLeadership()])
def test_brokers_of_the_clients_zone_lead(strategy: Leadership) -> None:
    live = [*standing(1, 2, 3, rack="a"), *standing(4, 5, rack="b"), *standing(6)]
    led = {found for asker in some_clients(50, suffix=",zone=b") for found in leaders(strategy, live, asker=asker, count=20)}

    assert led == {4, 5}


@pytest.mark.parametrize("strategy", [ClientLeadership(), PartitionLeadership()])
def test_a_zone_without_live_brokers_falls_back_to_all(strategy: Leadership) -> None:
    live = [*standing(1, rack="a"), *standing(2, rack="b"), *standing(3)]
    led = {found for asker in some_clients(50, suffix=",zone=c") for found in leaders(strategy, live, asker=asker, count=20)}

    assert led == {1, 2, 3}


def test_the_nearest_replica_is_the_first_that_stands_in_the_rack() -> None:
    live = [*standing(1, 2, rack="a"), *standing(3, 4, rack="b")]

    assert nearest([2, 4, 1, 3], live, rack="b") == 4
    assert nearest([2, 4, 1, 3], live, rack="c") is None


def test_coordinators_are_the_same_for_all_and_spread_over_all() -> None:
    live = standing(1, 2, 3)
    slots = [slot_of(f"group-{number}") for number in range(1_000)]
    named = Counter(winner_of(slot, live) for slot in slots)

    assert set(named) == {1, 2, 3}
    assert all(winner_of(slot, live) == winner_of(slot, live[::-1]) for slot in slots)
    assert winner_of(slots[0], []) is None
