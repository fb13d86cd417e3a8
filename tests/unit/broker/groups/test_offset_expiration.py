from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.groups.offset_expiration import Forgettable, due_of, due_of_offset, find_forgettable
from broker.groups.state import Committed, Group, GroupState, Member, Protocol
from storage.catalog.groups import GroupHead
from storage.vocabulary import PartitionId, TopicId

WEEK_MS = 7 * 24 * 3_600 * 1_000
WANTED, OTHER, GONE, UNKNOWN = (TopicId(f"topic-{name}") for name in ("wanted", "other", "gone", "unknown"))
NAMES = {WANTED: "wanted", OTHER: "other", GONE: None}
SUBSCRIBED = b"\x00\x01\x00\x00\x00\x01\x00\x06wanted\xff\xff\xff\xff"
SIMPLE = Group(group_id="g")
LEFT = Group(group_id="g", protocol_type="consumer", generation=3, empty_since_ms=1_000)


def committed(at_ms: int, expires_at_ms: int | None = None) -> Committed:
    return Committed(5, -1, "", at_ms, expires_at_ms)


def group_of(state: GroupState, *, protocol_type: str = "consumer", metadata: bytes = SUBSCRIBED, protocol: str | None = "range") -> Group:
    member = Member(member_id="m", session_timeout_s=10.0, rebalance_timeout_s=60.0, protocols=(Protocol("range", metadata),))
    return Group(group_id="g", state=state, protocol_type=protocol_type, generation=1, protocol=protocol, members={"m": member})


def forgettable(group: Group, offsets: dict[TopicId, Committed], now_ms: int) -> Forgettable:
    at = {PartitionId(topic_id, 0): one for topic_id, one in offsets.items()}
    return find_forgettable(group, at, NAMES, now_ms=now_ms, retention_ms=WEEK_MS)


def topics(partitions: tuple[PartitionId, ...]) -> set[TopicId]:
    return {partition.topic_id for partition in partitions}


def test_offsets_of_a_group_that_never_had_members_expire_by_their_commit() -> None:
    offsets = {WANTED: committed(100), OTHER: committed(200)}

    assert forgettable(SIMPLE, offsets, 99 + WEEK_MS) == Forgettable(next_ms=100 + WEEK_MS)
    found = forgettable(SIMPLE, offsets, 100 + WEEK_MS)
    assert (topics(found.expired), found.is_over, found.next_ms) == ({WANTED}, False, 200 + WEEK_MS)
    assert forgettable(SIMPLE, offsets, 200 + WEEK_MS).is_over


def test_offsets_of_a_group_whose_members_left_expire_together_by_that() -> None:
    offsets = {WANTED: committed(100), OTHER: committed(900)}

    assert forgettable(LEFT, offsets, 999 + WEEK_MS) == Forgettable(next_ms=1_000 + WEEK_MS)
    found = forgettable(LEFT, offsets, 1_000 + WEEK_MS)
    assert (topics(found.expired), found.is_over) == ({WANTED, OTHER}, True)


def test_a_group_that_does_not_say_since_when_it_is_empty_expires_by_its_commits() -> None:
    assert forgettable(replace(LEFT, empty_since_ms=None), {WANTED: committed(100)}, 100 + WEEK_MS).is_over


def test_consumers_keep_the_offsets_of_what_they_want_for_ever() -> None:
    found = forgettable(group_of(GroupState.STABLE), {WANTED: committed(0), OTHER: committed(0)}, 100 * WEEK_MS)

    assert (topics(found.expired), found.is_over, found.next_ms) == ({OTHER}, False, None)


@pytest.mark.parametrize(
    "group",
    [
        group_of(GroupState.PREPARING),
        group_of(GroupState.COMPLETING),
        group_of(GroupState.STABLE, protocol_type="connect"),
        group_of(GroupState.STABLE, metadata=b"nonsense"),
        group_of(GroupState.STABLE, metadata=b""),
        group_of(GroupState.STABLE, metadata=b"\x00\x01\xff\xff\xff\xff"),
        group_of(GroupState.STABLE, protocol=None),
    ],
)
def test_while_it_is_not_known_what_members_want_time_expires_nothing(group: Group) -> None:
    found = forgettable(group, {WANTED: committed(0), OTHER: committed(0), GONE: committed(0)}, 100 * WEEK_MS)

    assert (found.expired, topics(found.orphaned), found.is_over) == ((), {GONE}, False)


def test_offsets_of_a_topic_that_is_gone_go_at_once_and_those_of_one_that_nobody_knows_stay() -> None:
    found = forgettable(LEFT, {GONE: committed(999), UNKNOWN: committed(999)}, 1_001)

    assert (topics(found.orphaned), found.expired, found.is_over) == ({GONE}, (), False)
    assert not forgettable(group_of(GroupState.STABLE), {UNKNOWN: committed(0)}, 100 * WEEK_MS).has_work


def test_a_commit_that_says_how_long_it_is_kept_is_kept_that_long() -> None:
    assert not forgettable(LEFT, {WANTED: committed(0, expires_at_ms=9 * WEEK_MS)}, 8 * WEEK_MS).has_work
    assert forgettable(LEFT, {WANTED: committed(0, expires_at_ms=1_500)}, 1_500).is_over


def test_a_group_with_neither_members_nor_offsets_is_over_unless_somebody_is_on_the_way() -> None:
    assert forgettable(LEFT, {}, 1_001).is_over
    assert not forgettable(replace(LEFT, pending={"m": 1.0}), {}, 1_001).is_over
    assert not forgettable(group_of(GroupState.STABLE), {}, 1_001).is_over


commits = st.builds(committed, st.integers(0, 3 * WEEK_MS), st.none() | st.integers(0, 3 * WEEK_MS))


@given(
    offsets=st.dictionaries(st.sampled_from([WANTED, OTHER]), commits, min_size=1),
    protocol_type=st.sampled_from([None, "consumer", "connect"]),
    empty_since_ms=st.none() | st.integers(0, 3 * WEEK_MS),
)
def test_what_a_record_says_about_an_empty_group_is_what_its_coordinator_will_find(
    offsets: dict[TopicId, Committed], protocol_type: str | None, empty_since_ms: int | None
) -> None:
    since_ms = None if protocol_type is None else empty_since_ms
    group = replace(SIMPLE, protocol_type=protocol_type, empty_since_ms=since_ms)
    head = GroupHead(
        fmt=1,
        group="g",
        state="Empty",
        protocol_type=protocol_type,
        topics=(),
        empty_since_ms=since_ms,
        has_expiries=any(one.expires_at_ms is not None for one in offsets.values()),
    )
    due_ms = due_of(head, retention_ms=WEEK_MS)
    if due_ms is None:
        due_ms = min(due_of_offset(head, one, retention_ms=WEEK_MS) for one in offsets.values())

    assert not forgettable(group, offsets, due_ms - 1).has_work
    assert forgettable(group, offsets, due_ms - 1).next_ms == due_ms
    assert forgettable(group, offsets, due_ms).expired


@given(
    offsets=st.dictionaries(st.sampled_from([WANTED, OTHER]), commits), now_ms=st.integers(0, 6 * WEEK_MS), later_ms=st.integers(0, WEEK_MS)
)
def test_what_expired_stays_expired(offsets: dict[TopicId, Committed], now_ms: int, later_ms: int) -> None:
    now, later = forgettable(LEFT, offsets, now_ms), forgettable(LEFT, offsets, now_ms + later_ms)

    assert topics(now.expired) <= topics(later.expired)
