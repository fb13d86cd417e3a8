"""The state machine of a classic consumer group: (group, event, now) → (group, effects). Pure.

    EMPTY ── join ──▶ PREPARING ── all joined, or due ──▶ COMPLETING ── leader syncs ──▶ STABLE
      ▲                  │ ▲  nobody left                      │                            │
      └──────────────────┘ └──────── join, leave, expiry ──────┴────────────────────────────┘

Eager and cooperative members are the same here: what an assignment says is between the leader and the members (KIP-429).
As in Kafka 4, the coordinator knows no more of a protocol than its name.
"""

from collections.abc import Callable, Collection
from dataclasses import replace
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
from broker.groups.settings import GroupSettings

NEW_MEMBER_WAIT_S: Final = 300.0
"""Kafka's, which cannot be set: how long a member that comes for the first time waits for its first generation at most."""


def step(group: Group, event: Event, now_s: float, settings: GroupSettings) -> tuple[Group, tuple[Effect, ...]]:
    """What becomes of `group`. Every token of an event is replied to once, now or by a later step."""
    turn = Turn(group, now_s, settings.initial_delay_s)
    match event:
        case Join():
            error = _refusal(group, event, settings)
            if error is GroupError.GROUP_MAX_SIZE_REACHED:
                _turn_away(turn, event)
            elif error:
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
            turn.effects.append(Reply(event.token, LeaveAnswer(_leave(turn, event))))
        case Tick():
            _tick(turn)
    return turn.group, tuple(turn.effects)


def touch(group: Group, member_id: str, now_s: float) -> Group:
    """After a sign of life of a member that is not a heartbeat (a commit of offsets)."""
    member = group.members.get(member_id)
    if member is None:
        return group
    return replace(group, members={**group.members, member_id: replace(member, expires_s=now_s + member.session_timeout_s)})


def _refusal(group: Group, event: Join, settings: GroupSettings) -> GroupError:
    """In Kafka's order."""
    if not settings.session_timeout_s_min <= event.session_timeout_s <= settings.session_timeout_s_max:
        return GroupError.INVALID_SESSION_TIMEOUT
    replaced = event.member_id
    if event.instance_id is not None and (holder := group.static_member(event.instance_id)) is not None:
        replaced = holder.member_id
    if not _has_place(group, replaced, settings.members_max) or (_asks_for_id(event) and len(group.pending) >= settings.members_max):
        return GroupError.GROUP_MAX_SIZE_REACHED
    if not group.accepts(event.protocol_type, event.protocols, instead_of=replaced):
        return GroupError.INCONSISTENT_GROUP_PROTOCOL
    if not event.member_id or (event.member_id in group.pending and event.instance_id is None):
        return GroupError.NONE
    return group.check_member(event.member_id, event.instance_id)


def _has_place(group: Group, member_id: str, members_max: int) -> bool:
    """In a rebalance those count that have joined: if the bound was lowered, the last ones to join again are turned away."""
    member = group.members.get(member_id)
    if group.state is GroupState.PREPARING:
        joined = sum(one.joining is not None for one in group.members.values())
        return (member is not None and member.joining is not None) or joined < members_max
    return member is not None or len(group.members) < members_max


def _asks_for_id(event: Join) -> bool:
    """It is not counted before it knows its id: a client that lost our answer would leave a dead member behind (KIP-394)."""
    return not event.member_id and event.instance_id is None and event.knows_member_ids


def _turn_away(turn: Turn, event: Join) -> None:
    """A member turned away loses its membership."""
    turn.reply(event.token, JoinAnswer(error=GroupError.GROUP_MAX_SIZE_REACHED))
    if event.member_id in turn.group.pending:
        _forget_pending(turn, [event.member_id])
        try_complete(turn)
    elif turn.group.check_member(event.member_id, event.instance_id) is GroupError.NONE:
        remove(turn, [event.member_id])


def _join_first(turn: Turn, event: Join) -> None:
    """A client without a member id."""
    holder = None if event.instance_id is None else turn.group.static_member(event.instance_id)
    if holder is not None:
        _replace_static(turn, event, holder)
    elif _asks_for_id(event):
        pending = {**turn.group.pending, event.new_member_id: turn.now_s + event.session_timeout_s}
        turn.group = replace(turn.group, pending=pending)
        turn.reply(event.token, JoinAnswer(error=GroupError.MEMBER_ID_REQUIRED, member_id=event.new_member_id))
    else:
        _add(turn, event, event.new_member_id)


def _join_again(turn: Turn, event: Join) -> None:
    """A client with a member id: it comes for the first time with it, or joins a rebalance, or begins one."""
    group = turn.group
    if event.member_id in group.pending:
        _forget_pending(turn, [event.member_id])
        _add(turn, event, event.member_id)
        return
    _REJOIN[group.state](turn, event, group.members[event.member_id])


def _rejoin_preparing(turn: Turn, event: Join, member: Member) -> None:
    # Its earlier request can only be one that its client gave up.
    turn.reply(member.joining, JoinAnswer(error=GroupError.REBALANCE_IN_PROGRESS, member_id=member.member_id))
    turn.put(_member_of(turn, event, member.member_id, new_until_s=member.new_until_s))
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
    is_under_way = turn.group.state is GroupState.PREPARING
    turn.put(_member_of(turn, event, member_id, new_until_s=turn.now_s + NEW_MEMBER_WAIT_S))
    turn.group = replace(turn.group, protocol_type=event.protocol_type, has_grown=is_under_way)
    if not is_under_way:
        prepare(turn)
    try_complete(turn)


def _replace_static(turn: Turn, event: Join, former: Member) -> None:
    """Another incarnation of a static member: it takes over the assignment, and who had it is fenced (KIP-345)."""
    turn.reply(former.joining, JoinAnswer(error=GroupError.FENCED_INSTANCE_ID, member_id=former.member_id))
    turn.reply(former.syncing, SyncAnswer(error=GroupError.FENCED_INSTANCE_ID))
    group = turn.group
    member = replace(_member_of(turn, event, event.new_member_id, new_until_s=former.new_until_s), assignment=former.assignment)
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
            # Before v9 no answer makes a leader leave the assignment alone, so the answer hides that it leads.
            answer = replace(answer, leader=former.member_id, members=())
        turn.reply(event.token, answer)
        return
    if group.state is not GroupState.PREPARING:
        prepare(turn)
    try_complete(turn)


def _member_of(turn: Turn, event: Join, member_id: str, *, new_until_s: float | None = None) -> Member:
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
        new_until_s=new_until_s,
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


def _leave(turn: Turn, event: Leave) -> tuple[GroupError, ...]:
    """All at once: nobody begins a generation with members who leave by the same request."""
    group = turn.group
    errors, leaving, forgotten = [], [], []
    for asked_id, instance_id in event.members:
        member_id = asked_id
        if instance_id is not None and not member_id and (holder := group.static_member(instance_id)) is not None:
            # An administrator who takes out a static member knows its instance id only.
            member_id = holder.member_id
        if member_id in leaving or member_id in forgotten:
            error = GroupError.UNKNOWN_MEMBER_ID
        elif member_id in group.pending:
            forgotten.append(member_id)
            error = GroupError.NONE
        elif not (error := group.check_member(member_id, instance_id)):
            leaving.append(member_id)
        errors.append(error)
    _forget_pending(turn, forgotten)
    remove(turn, leaving)
    try_complete(turn)
    return tuple(errors)


def _forget_pending(turn: Turn, member_ids: Collection[str]) -> None:
    turn.group = replace(turn.group, pending={key: at for key, at in turn.group.pending.items() if key not in member_ids})


def _tick(turn: Turn) -> None:
    now_s = turn.now_s
    if late_pending := [key for key, at in turn.group.pending.items() if at <= now_s]:
        _forget_pending(turn, late_pending)
        try_complete(turn)
    lapsed = [member.member_id for member in turn.group.members.values() if member.lapses_s is not None and member.lapses_s <= now_s]
    remove(turn, lapsed)
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
