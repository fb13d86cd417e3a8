"""The state machine of a classic consumer group: (group, event, now) → (group, effects). Pure.

    EMPTY ── join ──▶ PREPARING ── all joined, or due ──▶ COMPLETING ── leader syncs ──▶ STABLE
      ▲                  │ ▲  nobody left                      │                            │
      └──────────────────┘ └──────── join, leave, expiry ──────┴────────────────────────────┘

Eager and cooperative members are the same here: what an assignment says is between the leader and the members (KIP-429).
As in Kafka 4, the coordinator knows no more of a protocol than its name.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from broker.groups.errors import GroupError
from broker.groups.events import (
    Effect,
    Event,
    Heartbeat,
    HeartbeatAnswer,
    Join,
    JoinAnswer,
    Leave,
    LeaveAnswer,
    Reply,
    Sync,
    SyncAnswer,
    Tick,
)
from broker.groups.members import Group, GroupState, Member
from broker.groups.rebalance import Turn, assign, complete_due, joined_answer, prepare, remove, synced_answer, try_complete


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Kafka's defaults: group.initial.rebalance.delay.ms, group.min/max.session.timeout.ms; and a bound on members."""

    initial_delay_s: float = 3.0
    session_timeout_s_min: float = 6.0
    session_timeout_s_max: float = 1_800.0
    members_max: int = 5_000

    def __post_init__(self) -> None:
        assert self.initial_delay_s >= 0
        assert 0 < self.session_timeout_s_min <= self.session_timeout_s_max


def step(group: Group, event: Event, now_s: float, settings: GroupSettings) -> tuple[Group, tuple[Effect, ...]]:
    """What becomes of `group`. Every token of an event is replied to once, now or by a later step."""
    turn = Turn(group, now_s, settings.initial_delay_s)
    match event:
        case Join():
            if error := _refusal(group, event, settings):
                turn.reply(event.token, JoinAnswer(error=error, member_id=event.member_id))
            elif event.member_id:
                _join_again(turn, event)
            else:
                _join_first(turn, event)
        case Sync():
            _sync(turn, event)
        case Heartbeat():
            turn.effects.append(Reply(event.token, HeartbeatAnswer(_heartbeat(turn, event))))
        case Leave():
            errors = tuple(_leave(turn, member_id, instance_id) for member_id, instance_id in event.members)
            turn.effects.append(Reply(event.token, LeaveAnswer(errors)))
        case Tick():
            _tick(turn)
    return turn.group, tuple(turn.effects)


def touched(group: Group, member_id: str, now_s: float) -> Group:
    """After a sign of life of a member that is not a heartbeat (a commit of offsets)."""
    member = group.members.get(member_id)
    if member is None:
        return group
    return replace(group, members={**group.members, member_id: replace(member, expires_s=now_s + member.session_timeout_s)})


def _refusal(group: Group, event: Join, settings: GroupSettings) -> GroupError:
    if not settings.session_timeout_s_min <= event.session_timeout_s <= settings.session_timeout_s_max:
        return GroupError.INVALID_SESSION_TIMEOUT
    replaced = event.member_id
    if event.instance_id is not None and (holder := group.static_member(event.instance_id)) is not None:
        replaced = holder.member_id
    if event.member_id and event.member_id not in group.pending:
        if error := group.check_member(event.member_id, event.instance_id):
            return error
    elif replaced not in group.members and len(group.members) + len(group.pending) >= settings.members_max + (event.member_id != ""):
        return GroupError.GROUP_MAX_SIZE_REACHED
    if not group.accepts(event.protocol_type, event.protocols, instead_of=replaced):
        return GroupError.INCONSISTENT_GROUP_PROTOCOL
    return GroupError.NONE


def _join_first(turn: Turn, event: Join) -> None:
    """A client without a member id."""
    holder = None if event.instance_id is None else turn.group.static_member(event.instance_id)
    if holder is not None:
        _replace_static(turn, event, holder)
    elif event.instance_id is None and event.knows_member_ids:
        # It is not counted before it knows its id: a client that lost our answer would leave a dead member behind (KIP-394).
        pending = {**turn.group.pending, event.new_member_id: turn.now_s + event.session_timeout_s}
        turn.group = replace(turn.group, pending=pending)
        turn.reply(event.token, JoinAnswer(error=GroupError.MEMBER_ID_REQUIRED, member_id=event.new_member_id))
    else:
        _add(turn, event, event.new_member_id)


def _join_again(turn: Turn, event: Join) -> None:
    """A client with a member id: it comes for the first time with it, or joins a rebalance, or begins one."""
    group = turn.group
    if event.member_id in group.pending:
        turn.group = replace(group, pending={key: at for key, at in group.pending.items() if key != event.member_id})
        _add(turn, event, event.member_id)
        return
    _REJOIN[group.state](turn, event, group.members[event.member_id])


def _rejoin_preparing(turn: Turn, event: Join, member: Member) -> None:
    turn.reply(member.joining, JoinAnswer(error=GroupError.UNKNOWN_MEMBER_ID, member_id=member.member_id))
    turn.put(_member_of(turn, event, member.member_id))
    try_complete(turn)


def _rejoin_completing(turn: Turn, event: Join, member: Member) -> None:
    if member.protocols == event.protocols:
        # It lost our answer.
        turn.put(turn.alive(member))
        turn.reply(event.token, joined_answer(turn.group, member.member_id))
    else:
        _rejoin_and_rebalance(turn, event, member)


def _rejoin_stable(turn: Turn, event: Join, member: Member) -> None:
    if member.member_id == turn.group.leader or member.protocols != event.protocols:
        # A leader joins again when it has seen that the topics changed.
        _rejoin_and_rebalance(turn, event, member)
    else:
        turn.put(turn.alive(member))
        turn.reply(event.token, joined_answer(turn.group, member.member_id))


def _rejoin_and_rebalance(turn: Turn, event: Join, member: Member) -> None:
    turn.reply(member.syncing, SyncAnswer(error=GroupError.REBALANCE_IN_PROGRESS))
    turn.put(_member_of(turn, event, member.member_id))
    prepare(turn)
    try_complete(turn)


_REJOIN: Final[dict[GroupState, Callable[[Turn, Join, Member], None]]] = {
    GroupState.PREPARING: _rejoin_preparing,
    GroupState.COMPLETING: _rejoin_completing,
    GroupState.STABLE: _rejoin_stable,
}
"""By the state in which a member joins again; an EMPTY group has no members."""


def _add(turn: Turn, event: Join, member_id: str) -> None:
    if turn.group.state is not GroupState.PREPARING:
        turn.put(_member_of(turn, event, member_id))
        turn.group = replace(turn.group, protocol_type=event.protocol_type)
        prepare(turn)
    else:
        turn.put(_member_of(turn, event, member_id))
        turn.group = replace(turn.group, protocol_type=event.protocol_type, has_grown=True)
    try_complete(turn)


def _replace_static(turn: Turn, event: Join, former: Member) -> None:
    """Another incarnation of a static member: it takes over the assignment, and who had it is fenced (KIP-345)."""
    turn.reply(former.joining, JoinAnswer(error=GroupError.FENCED_INSTANCE_ID, member_id=former.member_id))
    turn.reply(former.syncing, SyncAnswer(error=GroupError.FENCED_INSTANCE_ID))
    group = turn.group
    member = replace(_member_of(turn, event, event.new_member_id), assignment=former.assignment)
    was_leader = group.leader == former.member_id
    turn.group = replace(
        group,
        # In its place: the order of the members decides between protocols.
        members={
            (member.member_id if one is former else one.member_id): (member if one is former else one) for one in group.members.values()
        },
        leader=member.member_id if was_leader else group.leader,
        unsynced=frozenset(member.member_id if one == former.member_id else one for one in group.unsynced),
    )
    if group.state is GroupState.STABLE and turn.group.select_protocol() == group.protocol:
        turn.put(turn.alive(replace(member, joining=None)))
        turn.save()
        answer = joined_answer(turn.group, member.member_id)
        if event.knows_skip_assignment:
            answer = replace(answer, skip_assignment=was_leader)
        elif was_leader:
            # Before v9 a leader cannot be told to leave the assignment alone, so it is not told that it leads.
            answer = replace(answer, leader=former.member_id, members=())
        turn.reply(event.token, answer)
        return
    if group.state is not GroupState.PREPARING:
        prepare(turn)
    try_complete(turn)


def _member_of(turn: Turn, event: Join, member_id: str) -> Member:
    """As it joins: waiting for the new generation."""
    return Member(
        member_id=member_id,
        instance_id=event.instance_id,
        client_id=event.client_id,
        client_host=event.client_host,
        session_timeout_s=event.session_timeout_s,
        rebalance_timeout_s=event.rebalance_timeout_s,
        protocols=event.protocols,
        expires_s=turn.now_s + event.session_timeout_s,
        joining=event.token,
    )


def _sync(turn: Turn, event: Sync) -> None:
    group = turn.group
    error = group.check_generation(event.member_id, event.instance_id, event.generation)
    is_other = event.protocol_type not in (None, group.protocol_type) or event.protocol not in (None, group.protocol)
    if not error and is_other:
        error = GroupError.INCONSISTENT_GROUP_PROTOCOL
    if not error and group.state is GroupState.PREPARING:
        error = GroupError.REBALANCE_IN_PROGRESS
    if error:
        turn.reply(event.token, SyncAnswer(error=error))
        return
    member = group.members[event.member_id]
    turn.reply(member.syncing, SyncAnswer(error=GroupError.REBALANCE_IN_PROGRESS))
    if group.state is GroupState.COMPLETING:
        turn.put(replace(member, syncing=event.token))
        if member.member_id == group.leader:
            assign(turn, dict(event.assignments))
        return
    unsynced = group.unsynced - {member.member_id}
    turn.put(turn.alive(member))
    turn.group = replace(turn.group, unsynced=unsynced, due_s=group.due_s if unsynced else None)
    turn.reply(event.token, synced_answer(turn.group, member))


def _heartbeat(turn: Turn, event: Heartbeat) -> GroupError:
    group = turn.group
    if error := group.check_generation(event.member_id, event.instance_id, event.generation):
        return error
    turn.put(turn.alive(group.members[event.member_id]))
    return GroupError.REBALANCE_IN_PROGRESS if group.state is GroupState.PREPARING else GroupError.NONE


def _leave(turn: Turn, member_id: str, instance_id: str | None) -> GroupError:
    group = turn.group
    if instance_id is not None and not member_id:
        # An administrator who takes out a static member knows its instance id only.
        holder = group.static_member(instance_id)
        member_id = "" if holder is None else holder.member_id
    if instance_id is None and member_id in group.pending:
        turn.group = replace(group, pending={key: at for key, at in group.pending.items() if key != member_id})
        try_complete(turn)
        return GroupError.NONE
    error = group.check_member(member_id, instance_id)
    if not error:
        remove(turn, [member_id])
    return error


def _tick(turn: Turn) -> None:
    group, now_s = turn.group, turn.now_s
    if any(at <= now_s for at in group.pending.values()):
        turn.group = replace(group, pending={key: at for key, at in group.pending.items() if at > now_s})
        try_complete(turn)
    remove(turn, [member.member_id for member in turn.group.members.values() if member.expires_s <= now_s and not member.is_waiting])
    group = turn.group
    if group.due_s is None or now_s < group.due_s:
        return
    if group.state is GroupState.PREPARING:
        complete_due(turn)
    else:
        # Members that joined and did not come for their assignment in the whole of the rebalance timeout. The leader may be one of them.
        late = group.unsynced if group.state is GroupState.STABLE else _not_syncing(group)
        turn.group = replace(group, due_s=None)
        remove(turn, sorted(late))


def _not_syncing(group: Group) -> frozenset[str]:
    return frozenset(member.member_id for member in group.members.values() if member.syncing is None)
