from collections.abc import Mapping

import pytest

from forebay.commands.group.resetting import AtCurrent, AtEach, ResetTarget, Scope, ShiftedBy, parse_rows, parse_scope, plan_resets
from forebay.commands.topic.starting import AtEnd, AtOffset, AtStart, AtTime, OffsetBounds
from forebay.kafka_client.connection import Partition
from forebay.kafka_client.failures import ClientFailed

BOUNDS = {("orders", 0): OffsetBounds(0, 10), ("orders", 1): OffsetBounds(5, 100)}
COMMITTED = {("orders", 0): 3, ("orders", 1): 50}


def new_offsets(target: ResetTarget, committed: Mapping[Partition, int] = COMMITTED) -> tuple[list[int], list[str]]:
    resets, warnings = plan_resets(target, committed, BOUNDS, at_time={("orders", 0): -1, ("orders", 1): 77})
    return [one.new for one in resets], warnings


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (AtStart(), [0, 5]),
        (AtEnd(), [10, 100]),
        (AtOffset(7), [7, 7]),
        (ShiftedBy(-2), [1, 48]),
        (AtCurrent(), [3, 50]),
        (AtEach({("orders", 0): 10, ("orders", 1): 5}), [10, 5]),
    ],
)
def test_each_partition_goes_where_the_target_says(target: ResetTarget, expected: list[int]) -> None:
    assert new_offsets(target) == (expected, [])


def test_an_offset_that_a_partition_does_not_have_becomes_the_nearest_it_has_with_a_warning() -> None:
    assert new_offsets(AtOffset(60)) == ([10, 60], ["Offset 60 is beyond the latest of orders/0: 10 is taken."])
    assert new_offsets(AtOffset(2)) == ([2, 5], ["Offset 2 is before the earliest of orders/1: 5 is taken."])
    assert new_offsets(ShiftedBy(-5)) == ([0, 45], ["Offset -2 is before the earliest of orders/0: 0 is taken."])


def test_where_no_record_is_that_new_the_end_is_taken_with_a_warning() -> None:
    assert new_offsets(AtTime(1)) == ([10, 77], ["orders/0 has no record that new: its end is taken."])


def test_where_nothing_is_committed_there_is_no_shifting() -> None:
    with pytest.raises(ClientFailed, match=r"The offset of orders/1 cannot be shifted: none is committed.") as failed:
        new_offsets(ShiftedBy(1), {("orders", 0): 3})

    assert failed.value.exit_code == 1


def test_where_nothing_is_committed_the_current_offset_is_the_end_and_the_old_one_is_unknown() -> None:
    resets, _ = plan_resets(AtCurrent(), {("orders", 0): 3}, BOUNDS, at_time={})

    assert [(one.partition, one.old, one.new) for one in resets] == [(0, 3, 3), (1, None, 100)]


@pytest.mark.parametrize(
    ("text", "expected"), [("orders", Scope("orders", None)), ("orders:0", Scope("orders", (0,))), ("a:2,1,2", Scope("a", (1, 2)))]
)
def test_a_scope_is_a_topic_or_some_of_its_partitions(text: str, expected: Scope) -> None:
    assert parse_scope(text) == expected


@pytest.mark.parametrize("text", ["", ":0", "orders:", "orders:a", "orders:-1", "orders:0,", "orders:0:1", "orders:１"])
def test_what_is_no_scope_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^is no topic"):
        parse_scope(text)


def test_a_file_names_partitions_and_offsets() -> None:
    assert parse_rows(["orders,0,42", "", '"orders",1, 7']) == {("orders", 0): 42, ("orders", 1): 7}


@pytest.mark.parametrize(
    ("rows", "phrase"),
    [
        (["orders,0,1", "orders,1"], "line 2: write topic,partition,offset"),
        (["orders,0,-1"], "line 1: write topic,partition,offset"),
        ([",0,1"], "line 1: write topic,partition,offset"),
        (["orders,0,1", "orders,0,2"], "line 2: orders/0 is given twice"),
        ([""], "has no lines"),
    ],
)
def test_a_file_that_says_something_else_is_refused_with_the_line(rows: list[str], phrase: str) -> None:
    with pytest.raises(ValueError, match=f"^{phrase}"):
        parse_rows(rows)
