"""Whatever happens to a group, static members and refused requests among it, some things hold."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.groups.state import GroupSettings, GroupState, Protocol
from broker.groups.store import group_of, record_of
from tests.unit.broker.groups.stepping import Stepped

PROTOCOLS = [(Protocol("a", b"1"),), (Protocol("a", b"2"),), (Protocol("b", b"1"), Protocol("a", b"1")), (Protocol("b", b"1"),), ()]
NAMES = ["", *(f"member-{number}" for number in range(1, 12)), "nobody"]
INSTANCES = [None, None, "x", "y"]

join_events = st.fixed_dictionaries(
    {
        "member_id": st.sampled_from(NAMES),
        "instance_id": st.sampled_from(INSTANCES),
        "protocols": st.sampled_from(PROTOCOLS),
        "protocol_type": st.sampled_from(["consumer", "consumer", "consumer", "connect"]),
        "knows_member_ids": st.booleans(),
        "knows_skip_assignment": st.booleans(),
        "rebalance_timeout_s": st.sampled_from([5.0, 60.0, 1_000.0]),
    }
)
events = st.one_of(
    st.tuples(st.just("join"), join_events),
    st.tuples(st.just("sync"), st.sampled_from(NAMES), st.sampled_from(INSTANCES), st.sampled_from([0, 0, 0, 1])),
    st.tuples(st.just("beat"), st.sampled_from(NAMES), st.sampled_from(INSTANCES)),
    st.tuples(st.just("leave"), st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(INSTANCES)), min_size=1, max_size=3)),
    st.tuples(st.just("pass"), st.sampled_from([0.5, 6.0, 20.0, 400.0])),
)


def happen(stepped: Stepped, event: tuple[Any, ...]) -> None:
    match event:
        case ("join", fields):
            stepped.join(**fields)
        case ("sync", name, instance_id, behind):
            assignments = {member: member.encode() for member in stepped.group.members}
            stepped.sync(name, stepped.group.generation - behind, assignments=assignments, instance_id=instance_id)
        case ("beat", name, instance_id):
            stepped.heartbeat(name, instance_id=instance_id)
        case ("leave", members):
            stepped.leave(*members)
        case ("pass", seconds):
            stepped.pass_s(seconds)


def check(stepped: Stepped) -> None:
    group = stepped.group
    instances = [member.instance_id for member in group.members.values() if member.instance_id is not None]
    assert len(instances) == len(set(instances)), "an instance id has one holder"
    assert not set(group.pending) & set(group.members)
    waiting = {token for member in group.members.values() for token in (member.joining, member.syncing) if token is not None}
    assert waiting == {token for token in range(1, stepped.token + 1) if token not in stepped.answers}, "who asked waits or was answered"
    assert not (group.members and group.state is GroupState.EMPTY)
    assert group.members or group.pending or group.state is GroupState.EMPTY
    if waiting:
        assert group.due_s is not None, "nobody waits for ever"
    if group.state in (GroupState.COMPLETING, GroupState.STABLE):
        assert all(any(name == group.protocol for name, _ in member.protocols) for member in group.members.values())
    for saved in stepped.saved[-1:]:
        assert saved.generation <= group.generation
        again = group_of(record_of(saved, owner=1, topics=(), topic_pages=0, has_expiries=False), now_s=0.0, now_ms=0)
        assert (again.state, again.generation, again.protocol, again.leader) == (
            saved.state,
            saved.generation,
            saved.protocol,
            saved.leader,
        )
        assert {name: member.assignment for name, member in again.members.items()} == {
            name: member.assignment for name, member in saved.members.items()
        }


@given(
    lived=st.lists(events, max_size=40),
    initial_delay_s=st.sampled_from([0.0, 3.0]),
    members_max=st.sampled_from([2, 100]),
)
@settings(max_examples=150)
def test_every_group_answers_once_keeps_its_ids_apart_and_lets_nobody_wait_for_ever(
    lived: list[tuple[Any, ...]], initial_delay_s: float, members_max: int
) -> None:
    stepped = Stepped(settings=GroupSettings(initial_delay_s=initial_delay_s, members_max=members_max))
    for event in lived:
        happen(stepped, event)
        check(stepped)
    stepped.pass_s(3_000.0)

    assert not any(member.is_waiting for member in stepped.group.members.values())
    assert not stepped.group.pending
