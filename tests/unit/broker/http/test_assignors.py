"""Assignments as Kafka's embedded consumer protocol has them."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.http.assignors import (
    ASSIGNORS,
    RANGE,
    ROUND_ROBIN,
    Subscriber,
    assign,
    assignment_bytes,
    read_assignment,
    subscribers_of,
    subscription_bytes,
)

MEMBERS = st.lists(st.frozensets(st.sampled_from("abc")), min_size=1, max_size=5)
COUNTS = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 12))


def member(name: str, *topics: str, instance_id: str | None = None) -> Subscriber:
    return Subscriber(name, instance_id, frozenset(topics))


def test_range_gives_each_member_a_run_of_every_topic_as_kafka_does() -> None:
    shares = assign(RANGE, [member("m2", "t0", "t1"), member("m1", "t0", "t1")], {"t0": 3, "t1": 3})

    assert shares == {"m1": {"t0": [0, 1], "t1": [0, 1]}, "m2": {"t0": [2], "t1": [2]}}


def test_round_robin_deals_all_partitions_out_in_turn_as_kafka_does() -> None:
    shares = assign(
        ROUND_ROBIN, [member("C0", "t0"), member("C1", "t0", "t1"), member("C2", "t0", "t1", "t2")], {"t0": 1, "t1": 2, "t2": 3}
    )

    assert shares == {"C0": {"t0": [0]}, "C1": {"t1": [0]}, "C2": {"t1": [1], "t2": [0, 1, 2]}}


def test_static_members_come_first_whatever_their_member_ids_are() -> None:
    members = [member("a", "t"), member("z", "t", instance_id="2"), member("y", "t", instance_id="1")]

    assert assign(RANGE, members, {"t": 2}) == {"y": {"t": [0]}, "z": {"t": [1]}, "a": {}}


@pytest.mark.parametrize("assignor", ASSIGNORS)
@given(wanted=MEMBERS, counts=COUNTS)
def test_every_partition_that_somebody_wants_is_given_to_one_member_that_wants_it(
    assignor: str, wanted: list[frozenset[str]], counts: dict[str, int]
) -> None:
    members = [Subscriber(f"m{number}", None, topics) for number, topics in enumerate(wanted)]
    shares = assign(assignor, members, counts)

    given_out = [(topic, partition) for share in shares.values() for topic, partitions in share.items() for partition in partitions]
    assert sorted(given_out) == [
        (topic, partition)
        for topic, count in sorted(counts.items())
        if any(topic in topics for topics in wanted)
        for partition in range(count)
    ]
    assert shares.keys() == {one.member_id for one in members}
    assert all(topic in one.topics for one in members for topic in shares[one.member_id])


@given(st.dictionaries(st.text(max_size=20), st.lists(st.integers(0, 2**31 - 1), max_size=20), max_size=5))
def test_an_assignment_is_read_as_it_was_written(assignment: dict[str, list[int]]) -> None:
    assert read_assignment(assignment_bytes(assignment)) == assignment


@given(st.binary(max_size=60))
def test_bytes_that_are_no_assignment_are_refused_with_one_kind_of_error(data: bytes) -> None:
    try:
        found = read_assignment(data)
    except ValueError:
        return
    assert all(isinstance(topic, str) for topic in found)


def test_a_subscription_is_read_as_it_was_written_and_a_member_that_says_nonsense_wants_nothing() -> None:
    said = [("m", "i", subscription_bytes({"b", "a"})), ("n", None, b"\x00"), ("o", None, subscription_bytes({"c", "b"}))]
    expected = [member("m", "a", "b", instance_id="i"), member("n"), member("o", "b", "c")]
    assert subscribers_of(said) == (expected, ["a", "b", "c"])
    assert subscribers_of(said, there={"b"}) == ([member("m", "b", instance_id="i"), member("n"), member("o", "b")], ["b"])


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">hih", 0, 2**31 - 1, -2) + bytes(26),
        struct.pack(">hi", 0, 10**6) + bytes(28),
        struct.pack(">hih", 0, 1, 5) + b"orders" + struct.pack(">i", 2**30),
    ],
)
def test_an_assignment_that_claims_more_than_it_has_is_refused_at_once(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"assignment|topics|bytes"):
        read_assignment(data)
