import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.clock import SystemClock
from storage.metadata.oxia.assignments import SOURCES_MAX, Assignments, ShardClaim, key_hash

HASHES = 1 << 32


def claims(*leaders: str, first_shard: int = 0) -> list[ShardClaim]:
    """The hashes split up evenly."""
    width = HASHES // len(leaders)
    last = len(leaders) - 1
    return [
        ShardClaim(first_shard + place, leader, place * width, HASHES - 1 if place == last else (place + 1) * width - 1)
        for place, leader in enumerate(leaders)
    ]


def test_hashes_are_those_of_xxh3() -> None:
    # From Oxia's own test of its hash.
    assert key_hash("foo") == 125730186
    assert key_hash("bar") == 2687685474
    assert key_hash("baz") == 862947621


@given(partition_key=st.text(), shards=st.integers(min_value=1, max_value=9))
def test_a_partition_key_belongs_to_the_shard_whose_range_holds_its_hash(partition_key: str, shards: int) -> None:
    assignments = Assignments()
    told = claims(*["a:1"] * shards, first_shard=5)
    assignments.take("a:1", reversed(told))

    (expected,) = [claim.shard for claim in told if claim.hash_min <= key_hash(partition_key) <= claim.hash_max]
    assert assignments.shard_of(partition_key) == expected
    assert assignments.shards == list(range(5, 5 + shards))


def test_the_newest_claim_counts() -> None:
    assignments = Assignments()
    assignments.take("a:1", claims("a:1", "a:1"))
    assignments.take("b:1", claims("a:1", "b:1"))

    assert [assignments.leader_of(shard) for shard in (0, 1)] == ["a:1", "b:1"]
    assert assignments.leaders == ["a:1", "b:1"]
    assert assignments.leader_of(2) is None


def test_a_leader_that_refused_is_passed_over_for_one_that_another_node_names() -> None:
    assignments = Assignments()
    assignments.take("b:1", claims("b:1"))
    assignments.take("a:1", claims("a:1"))
    assignments.refuse(0, "a:1")

    assert assignments.leader_of(0) == "b:1"


def test_a_leader_that_refused_is_asked_again_when_nobody_names_another() -> None:
    assignments = Assignments()
    assignments.take("a:1", claims("a:1"))
    assignments.refuse(0, "a:1")

    assert assignments.leader_of(0) == "a:1"


def test_a_leader_that_refused_counts_again_when_it_is_named_anew() -> None:
    assignments = Assignments()
    assignments.take("b:1", claims("b:1"))
    assignments.take("a:1", claims("a:1"))
    assignments.refuse(0, "a:1")
    assignments.take("a:1", claims("a:1"))

    assert assignments.leader_of(0) == "a:1"


def test_a_shard_that_is_said_to_have_no_leader_keeps_the_one_that_others_name() -> None:
    assignments = Assignments()
    assignments.take("a:1", claims("a:1"))
    assignments.take("b:1", claims(""))

    assert assignments.leader_of(0) == "a:1"


@pytest.mark.parametrize(
    "told",
    [
        [],
        claims("a:1", "a:1")[1:],
        claims("a:1", "a:1")[:1],
        [*claims("a:1"), *claims("a:1", first_shard=1)],
        [ShardClaim(0, "a:1", 5, 4)],
    ],
)
def test_claims_that_do_not_cover_every_hash_once_change_nothing(told: list[ShardClaim]) -> None:
    assignments = Assignments()
    assignments.take("a:1", claims("a:1"))
    with pytest.raises(ValueError, match="source=b:1"):
        assignments.take("b:1", told)

    assert assignments.leader_of(0) == "a:1"
    assert assignments.shard_of("x") == 0


def test_what_is_remembered_is_bounded() -> None:
    assignments = Assignments()
    for number in range(10 * SOURCES_MAX):
        assignments.take(f"n{number}:1", claims(f"n{number}:1"))
        assignments.refuse(0, f"n{number}:1")

    assert len(assignments._sources) == SOURCES_MAX
    assert len(assignments._refused) <= SOURCES_MAX


async def test_a_waiter_is_woken_by_the_next_word() -> None:
    assignments = Assignments()
    clock = SystemClock()
    started_s = clock.monotonic_s()
    await assignments.wait_changed(0.01)
    assert clock.monotonic_s() - started_s >= 0.005

    async with asyncio.TaskGroup() as group:
        group.create_task(assignments.wait_changed(60))
        await asyncio.sleep(0)
        assignments.take("a:1", claims("a:1"))

    assert clock.monotonic_s() - started_s < 10


async def test_a_refusal_that_changes_no_leader_wakes_nobody() -> None:
    assignments = Assignments()
    assignments.take("a:1", claims("a:1"))
    waiter = asyncio.get_running_loop().create_task(assignments.wait_changed(60))
    await asyncio.sleep(0)
    assignments.refuse(0, "a:1")
    await asyncio.sleep(0.01)
    woken_by_refusal = waiter.done()
    assignments.take("a:1", claims("a:1"))
    await waiter

    assert not woken_by_refusal


async def test_a_refusal_that_lets_another_leader_count_wakes_who_waits() -> None:
    assignments = Assignments()
    assignments.take("b:1", claims("b:1"))
    assignments.take("a:1", claims("a:1"))
    async with asyncio.timeout(25), asyncio.TaskGroup() as group:
        group.create_task(assignments.wait_changed(60))
        await asyncio.sleep(0)
        assignments.refuse(0, "a:1")

    assert assignments.leader_of(0) == "b:1"
