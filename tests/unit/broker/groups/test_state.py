from dataclasses import replace

import pytest

from broker.groups.state import NEW_MEMBER_WAIT_S, GroupError, GroupSettings, GroupState, Protocol
from tests.unit.broker.groups.stepping import DELAY_S, RANGE, REBALANCE_S, SESSION_S, Stepped


def test_the_first_members_of_a_group_are_waited_for() -> None:
    group = Stepped()
    first = group.join()
    group.pass_s(DELAY_S - 1)
    second = group.join()
    group.pass_s(DELAY_S - 0.5)
    assert not group.answers
    group.pass_s(DELAY_S)

    assert {group.joined(token).generation for token in (first, second)} == {1}
    assert group.joined(first).leader == group.joined(second).leader == "member-1"
    assert [member[0] for member in group.joined(first).members] == ["member-1", "member-2"]
    assert group.joined(second).members == ()


def test_the_initial_wait_ends_with_the_rebalance_timeout_however_many_come() -> None:
    group = Stepped()
    token = group.join(rebalance_timeout_s=10.0)
    for _ in range(6):
        group.pass_s(2.0)
        group.join(rebalance_timeout_s=10.0)

    assert group.joined(token).generation == 1


def test_without_an_initial_delay_a_lone_member_need_not_wait() -> None:
    group = Stepped(settings=GroupSettings(initial_delay_s=0))

    assert group.joined(group.join()).generation == 1


def test_a_client_that_knows_member_ids_is_given_one_and_comes_again() -> None:
    group = Stepped()
    answer = group.joined(group.join(knows_member_ids=True))
    again = group.join(answer.member_id, knows_member_ids=True)
    group.pass_s(DELAY_S)

    assert answer.error is GroupError.MEMBER_ID_REQUIRED
    assert group.joined(again).member_id == answer.member_id
    assert group.joined(again).error is GroupError.NONE


def test_an_id_that_nobody_came_back_with_is_forgotten() -> None:
    group = Stepped()
    answer = group.joined(group.join(knows_member_ids=True))
    group.pass_s(SESSION_S)

    assert group.joined(group.join(answer.member_id)).error is GroupError.UNKNOWN_MEMBER_ID
    assert not group.group.pending


def test_an_id_that_was_given_out_can_leave() -> None:
    group = Stepped()
    answer = group.joined(group.join(knows_member_ids=True))

    assert group.leave((answer.member_id, None)) == (GroupError.NONE,)
    assert not group.group.pending


@pytest.mark.parametrize("session_timeout_s", [5.999, 1_800.1, 0.0, -1.0])
def test_a_session_timeout_out_of_bounds_is_refused(session_timeout_s: float) -> None:
    group = Stepped()

    assert group.joined(group.join(session_timeout_s=session_timeout_s)).error is GroupError.INVALID_SESSION_TIMEOUT


def test_a_member_that_has_no_protocol_in_common_with_all_others_is_refused() -> None:
    group = Stepped()
    group.stable(1)

    for fields in ({"protocols": (Protocol("other", b""),)}, {"protocol_type": "connect"}, {"protocols": ()}, {"protocol_type": ""}):
        assert group.joined(group.join(**fields)).error is GroupError.INCONSISTENT_GROUP_PROTOCOL
    assert group.group.state is GroupState.STABLE


@pytest.mark.parametrize("fields", [{"protocols": (Protocol("\x01" * 1_025, b""),)}, {"protocol_type": "\x01" * 1_025}])
def test_a_member_whose_protocol_has_a_name_without_end_is_refused(fields: dict[str, object]) -> None:
    group = Stepped()

    assert group.joined(group.join(**fields)).error is GroupError.INCONSISTENT_GROUP_PROTOCOL


def test_the_protocol_that_most_prefer_is_chosen_among_those_that_all_know() -> None:
    group = Stepped()
    a, b, c = Protocol("a", b"a"), Protocol("b", b"b"), Protocol("c", b"c")
    tokens = [group.join(protocols=protocols) for protocols in ((c, a, b), (b, a), (b, a, c))]
    group.pass_s(2 * DELAY_S)

    assert {group.joined(token).protocol for token in tokens} == {"b"}
    assert [member[2] for member in group.joined(tokens[0]).members] == [b"b"] * 3


def test_protocol_types_are_opaque() -> None:
    group = Stepped()
    token = group.join(protocol_type="connect", protocols=(Protocol("sessioned", b"\x00"),))
    group.pass_s(DELAY_S)

    assert group.joined(token).protocol_type == "connect"
    assert group.joined(token).protocol == "sessioned"


def test_a_group_that_is_full_takes_nobody_more() -> None:
    group = Stepped(settings=GroupSettings(initial_delay_s=0, members_max=1))
    group.join()
    answer = group.joined(group.join())

    assert (answer.error, answer.member_id) == (GroupError.GROUP_MAX_SIZE_REACHED, "")
    assert group.joined(group.join(knows_member_ids=True)).error is GroupError.GROUP_MAX_SIZE_REACHED


def test_who_finds_no_place_when_it_joins_again_is_not_a_member_any_more() -> None:
    group = Stepped()
    first, second = group.stable(2)
    group.settings = GroupSettings(initial_delay_s=DELAY_S, members_max=1)
    again = group.join(first, protocols=(Protocol("range", b"other"),))
    late = group.joined(group.join(second))

    assert (late.error, late.member_id) == (GroupError.GROUP_MAX_SIZE_REACHED, "")
    assert list(group.group.members) == [first]
    assert group.joined(again).generation == 2


def test_who_was_given_an_id_and_finds_no_place_with_it_has_to_ask_for_another() -> None:
    group = Stepped(settings=GroupSettings(initial_delay_s=0, members_max=1))
    given = group.joined(group.join(knows_member_ids=True)).member_id
    first = group.join()
    turned_away = group.joined(group.join(given))

    assert turned_away.error is GroupError.GROUP_MAX_SIZE_REACHED
    assert not group.group.pending
    assert group.joined(first).generation == 1


def test_ids_that_were_given_out_are_bounded_too() -> None:
    group = Stepped(settings=GroupSettings(initial_delay_s=0, members_max=2))
    errors = [group.joined(group.join(knows_member_ids=True)).error for _ in range(3)]

    assert errors == [GroupError.MEMBER_ID_REQUIRED, GroupError.MEMBER_ID_REQUIRED, GroupError.GROUP_MAX_SIZE_REACHED]


def test_an_id_that_was_given_to_a_dynamic_member_makes_no_static_one() -> None:
    group, _, b = static_group()
    given = group.joined(group.join(knows_member_ids=True)).member_id

    assert group.joined(group.join(given, instance_id="b")).error is GroupError.FENCED_INSTANCE_ID
    assert group.joined(group.join(given, instance_id="c")).error is GroupError.UNKNOWN_MEMBER_ID
    assert b in group.group.members


def test_what_is_wrong_with_a_join_is_told_in_the_order_of_kafka() -> None:
    group = Stepped(settings=GroupSettings(initial_delay_s=0, members_max=1))
    group.stable(1)
    other = (Protocol("other", b""),)

    assert group.joined(group.join("nobody", session_timeout_s=0.1, protocols=other)).error is GroupError.INVALID_SESSION_TIMEOUT
    assert group.joined(group.join("nobody", protocols=other)).error is GroupError.GROUP_MAX_SIZE_REACHED
    group.settings = GroupSettings()
    assert group.joined(group.join("nobody", protocols=other)).error is GroupError.INCONSISTENT_GROUP_PROTOCOL
    assert group.joined(group.join("nobody")).error is GroupError.UNKNOWN_MEMBER_ID


def test_a_new_member_that_waits_longer_than_five_minutes_is_taken_for_dead() -> None:
    group = Stepped()
    members = group.stable(1, rebalance_timeout_s=1_000.0)
    token = group.join(rebalance_timeout_s=1_000.0)
    for _ in range(int(NEW_MEMBER_WAIT_S / 5) + 1):
        group.heartbeat(members[0])
        group.pass_s(5)

    assert group.joined(token).error is GroupError.UNKNOWN_MEMBER_ID
    assert list(group.group.members) == members


def test_a_member_that_joins_again_waits_as_long_as_the_rebalance_takes() -> None:
    group = Stepped()
    first, second = group.stable(2, rebalance_timeout_s=1_000.0)
    token = group.join(first)
    for _ in range(int(NEW_MEMBER_WAIT_S / 5) + 1):
        group.heartbeat(second)
        group.pass_s(5)

    assert token not in group.answers
    assert list(group.group.members) == [first, second]


def test_the_earlier_join_of_a_member_that_joins_twice_is_told_to_join() -> None:
    group = Stepped()
    first, _ = group.stable(2)
    once, twice = group.join(first), group.join(first)

    assert group.joined(once).error is GroupError.REBALANCE_IN_PROGRESS
    assert twice not in group.answers


def test_members_who_leave_together_begin_no_generation_in_between() -> None:
    group = Stepped()
    first, second, third = group.stable(3)
    others = (Protocol("range", b"other"),)
    token = group.join(second, protocols=others)
    group.join(third, protocols=others)
    errors = group.leave((first, None), (second, None), (second, None))

    assert errors == (GroupError.NONE, GroupError.NONE, GroupError.UNKNOWN_MEMBER_ID)
    assert group.joined(token).error is GroupError.UNKNOWN_MEMBER_ID
    assert (group.group.generation, list(group.group.members)) == (2, [third])


def test_assignments_are_durable_before_anybody_has_one() -> None:
    group = Stepped()
    members = group.stable(2)

    assert [saved.state for saved in group.saved] == [GroupState.COMPLETING, GroupState.STABLE]
    assert {member.member_id: member.assignment for member in group.saved[-1].members.values()} == {
        member: member.encode() for member in members
    }


def test_a_member_that_comes_makes_the_others_join_again() -> None:
    group = Stepped()
    (first,) = group.stable(1)
    token = group.join()
    assert group.heartbeat(first) is GroupError.REBALANCE_IN_PROGRESS
    again = group.join(first)

    assert group.joined(token).generation == group.joined(again).generation == 2
    assert group.joined(token).leader == first


def test_who_does_not_join_again_in_time_is_out() -> None:
    group = Stepped()
    first, second = group.stable(2)
    again = group.join(first)
    for _ in range(int(REBALANCE_S / 5)):
        assert group.heartbeat(second) is GroupError.REBALANCE_IN_PROGRESS
        group.pass_s(5)

    assert list(group.group.members) == [first]
    assert group.joined(again).generation == 2
    assert group.heartbeat(second) is GroupError.UNKNOWN_MEMBER_ID


def test_a_member_without_heartbeats_is_out_after_its_session_timeout() -> None:
    group = Stepped()
    first, second = group.stable(2)
    group.pass_s(SESSION_S / 2)
    group.heartbeat(first)
    group.pass_s(SESSION_S / 2)

    assert group.group.state is GroupState.PREPARING
    assert group.heartbeat(second) is GroupError.UNKNOWN_MEMBER_ID
    assert group.joined(group.join(first)).generation == 2


def test_a_leader_that_never_assigns_is_out_after_the_rebalance_timeout() -> None:
    group = Stepped()
    tokens = [group.join(), group.join()]
    group.pass_s(2 * DELAY_S)
    leader, follower = (group.joined(token).member_id for token in tokens)
    waiting = group.sync(follower)
    for _ in range(int(REBALANCE_S / 5)):
        group.heartbeat(leader)
        group.pass_s(5)

    assert group.synced(waiting).error is GroupError.REBALANCE_IN_PROGRESS
    assert group.joined(group.join(follower)).leader == follower


def test_a_follower_that_joins_again_unchanged_is_told_what_it_knew() -> None:
    group = Stepped()
    _, second = group.stable(2)
    answer = group.joined(group.join(second))

    assert (answer.generation, answer.members, group.group.state) == (1, (), GroupState.STABLE)


@pytest.mark.parametrize("who", [0, 1])
def test_a_leader_that_joins_again_or_a_member_with_other_topics_begins_a_rebalance(who: int) -> None:
    group = Stepped()
    members = group.stable(2)
    group.join(members[who], protocols=RANGE if who == 0 else (Protocol("range", b"other"),))

    assert group.group.state is GroupState.PREPARING


def test_a_member_that_lost_the_answer_of_its_join_gets_it_again() -> None:
    group = Stepped()
    token = group.join()
    group.pass_s(DELAY_S)
    leader = group.joined(token).member_id

    assert group.joined(group.join(leader)) == group.joined(token)


def test_generations_and_members_that_do_not_fit_are_refused() -> None:
    group = Stepped()
    (member,) = group.stable(1)

    assert group.heartbeat(member, 0) is GroupError.ILLEGAL_GENERATION
    assert group.heartbeat("nobody") is GroupError.UNKNOWN_MEMBER_ID
    assert group.synced(group.sync(member, 7)).error is GroupError.ILLEGAL_GENERATION
    assert group.synced(group.sync("nobody")).error is GroupError.UNKNOWN_MEMBER_ID
    assert group.synced(group.sync(member, protocol="sticky")).error is GroupError.INCONSISTENT_GROUP_PROTOCOL
    assert group.synced(group.sync(member, protocol_type="connect")).error is GroupError.INCONSISTENT_GROUP_PROTOCOL
    assert group.synced(group.sync(member, protocol="range", protocol_type="consumer")).assignment == member.encode()
    assert group.leave(("nobody", None)) == (GroupError.UNKNOWN_MEMBER_ID,)
    assert group.joined(group.join("nobody")).error is GroupError.UNKNOWN_MEMBER_ID


def test_a_sync_during_the_next_rebalance_is_told_to_join() -> None:
    group = Stepped()
    members = group.stable(2)
    group.join(members[0])

    assert group.synced(group.sync(members[1])).error is GroupError.REBALANCE_IN_PROGRESS


def test_the_last_member_that_leaves_leaves_an_empty_group() -> None:
    group = Stepped()
    first, second = group.stable(2)

    assert group.leave((first, None), ("nobody", None), (second, None)) == (
        GroupError.NONE,
        GroupError.UNKNOWN_MEMBER_ID,
        GroupError.NONE,
    )
    assert (group.group.state, group.group.generation, group.saved[-1].members) == (GroupState.EMPTY, 2, {})


def test_who_leaves_while_others_join_lets_them_go_on() -> None:
    group = Stepped()
    first, second = group.stable(2)
    again = group.join(first)
    group.leave((second, None))

    assert group.joined(again).generation == 2


def static_group() -> tuple[Stepped, str, str]:
    """Two static members, `a` the leader and `b`."""
    group = Stepped()
    tokens = [group.join(instance_id="a"), group.join(instance_id="b")]
    group.pass_s(2 * DELAY_S)
    a, b = (group.joined(token).member_id for token in tokens)
    group.sync(b)
    group.sync(a, assignments={a: b"1", b: b"2"})
    return group, a, b


def test_a_static_member_that_restarts_takes_over_its_assignment() -> None:
    group, a, b = static_group()
    answer = group.joined(group.join(instance_id="b"))

    assert group.group.state is GroupState.STABLE
    assert (answer.generation, answer.leader, answer.members, answer.skip_assignment) == (1, a, (), False)
    assert answer.member_id != b
    assert group.synced(group.sync(answer.member_id, instance_id="b")).assignment == b"2"
    assert group.saved[-1].members[answer.member_id].assignment == b"2"


def test_the_former_incarnation_of_a_static_member_is_fenced() -> None:
    group, _, b = static_group()
    group.join(instance_id="b")

    assert group.heartbeat(b, instance_id="b") is GroupError.FENCED_INSTANCE_ID
    assert group.synced(group.sync(b, instance_id="b")).error is GroupError.FENCED_INSTANCE_ID
    assert group.joined(group.join(b, instance_id="b")).error is GroupError.FENCED_INSTANCE_ID
    assert group.leave((b, "b")) == (GroupError.FENCED_INSTANCE_ID,)
    assert group.group.check_commit(b, "b", 1) is GroupError.FENCED_INSTANCE_ID
    assert group.heartbeat(b, instance_id="unknown") is GroupError.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("knows_skip_assignment", [True, False])
def test_a_static_leader_that_restarts_does_not_assign_again(knows_skip_assignment: bool) -> None:
    group, a, _ = static_group()
    answer = group.joined(group.join(instance_id="a", knows_skip_assignment=knows_skip_assignment))

    assert group.group.state is GroupState.STABLE
    assert answer.skip_assignment is knows_skip_assignment
    assert (answer.leader == answer.member_id) is knows_skip_assignment
    assert len(answer.members) == (2 if knows_skip_assignment else 0)
    assert answer.leader != a or not knows_skip_assignment


def test_a_static_member_that_does_not_join_again_stays_until_its_session_ends() -> None:
    group, a, b = static_group()
    again = group.join(a, instance_id="a")
    for _ in range(int(REBALANCE_S / 5)):
        group.heartbeat(b, instance_id="b")
        group.pass_s(5)

    assert group.joined(again).generation == 2
    assert set(group.group.members) == {a, b}
    group.pass_s(SESSION_S + REBALANCE_S)
    assert b not in group.group.members


def test_a_static_member_is_taken_out_by_its_instance_id() -> None:
    group, _, b = static_group()

    assert group.leave(("", "b"), ("", "unknown")) == (GroupError.NONE, GroupError.UNKNOWN_MEMBER_ID)
    assert b not in group.group.members


def test_static_members_that_wait_are_answered_when_they_are_replaced() -> None:
    group = Stepped()
    first = group.join(instance_id="a")
    second = group.join(instance_id="a")
    group.pass_s(2 * DELAY_S)

    assert group.joined(first).error is GroupError.FENCED_INSTANCE_ID
    assert group.joined(second).generation == 1
    assert len(group.group.members) == 1


def test_commits_are_taken_from_members_of_the_generation_and_from_anybody_while_nobody_is_there() -> None:
    group = Stepped()
    assert group.group.check_commit("", None, -1) is GroupError.NONE
    assert group.group.check_commit("", None, 3) is GroupError.UNKNOWN_MEMBER_ID
    assert group.group.check_commit("somebody", "a", -1) is GroupError.NONE
    (member,) = group.stable(1)

    assert group.group.check_commit(member, None, 1) is GroupError.NONE
    assert group.group.check_commit(member, None, 0) is GroupError.ILLEGAL_GENERATION
    assert group.group.check_commit("", None, -1) is GroupError.UNKNOWN_MEMBER_ID
    assert replace(group.group, state=GroupState.COMPLETING).check_commit(member, None, 1) is GroupError.REBALANCE_IN_PROGRESS
    assert replace(group.group, state=GroupState.PREPARING).check_commit(member, None, 1) is GroupError.NONE
