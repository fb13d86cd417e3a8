"""From one generation to the next: members join again, the leader assigns, everybody gets its share. Pure.

A turn is one step of the state machine under way: the group as changed so far, and the effects that follow.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from broker.groups.errors import GroupError
from broker.groups.events import Effect, JoinAnswer, Reply, Save, SyncAnswer
from broker.groups.members import Group, GroupState, Member


@dataclass(slots=True)
class Turn:
    group: Group
    now_s: float
    initial_delay_s: float
    effects: list[Effect] = field(default_factory=list)

    def put(self, member: Member) -> None:
        self.group = replace(self.group, members={**self.group.members, member.member_id: member})

    def put_all(self, members: Iterable[Member]) -> None:
        self.group = replace(self.group, members={**self.group.members, **{member.member_id: member for member in members}})

    def reply(self, token: int | None, answer: JoinAnswer | SyncAnswer) -> None:
        if token is not None:
            self.effects.append(Reply(token, answer))

    def save(self) -> None:
        if Save() not in self.effects:
            self.effects.append(Save())

    def alive(self, member: Member) -> Member:
        """With a whole session timeout before it."""
        return replace(member, expires_s=self.now_s + member.session_timeout_s)


def prepare(turn: Turn) -> None:
    """Ask all members to join again. A member that waits for its assignment hears of it at once, the others by their next heartbeat."""
    group = turn.group
    waiting = [member for member in group.members.values() if member.syncing is not None]
    for member in waiting:
        turn.reply(member.syncing, SyncAnswer(error=GroupError.REBALANCE_IN_PROGRESS))
    turn.put_all(turn.alive(replace(member, syncing=None)) for member in waiting)
    is_first = group.state is GroupState.EMPTY and turn.initial_delay_s > 0
    longest_s = max((member.rebalance_timeout_s for member in group.members.values()), default=0.0)
    turn.group = replace(
        turn.group,
        state=GroupState.PREPARING,
        due_s=turn.now_s + (min(turn.initial_delay_s, longest_s) if is_first else longest_s),
        initial_until_s=turn.now_s + longest_s if is_first else None,
        has_grown=False,
        unsynced=frozenset(),
    )


def try_complete(turn: Turn) -> None:
    """Begin the new generation if all have joined; the first members of a group are waited for until it is due in any case."""
    group = turn.group
    if group.state is not GroupState.PREPARING or group.pending:
        return
    if not group.members or (group.initial_until_s is None and all(member.joining is not None for member in group.members.values())):
        complete(turn)


def complete_due(turn: Turn) -> None:
    """The time for joining is over; the first members get more of it as long as further ones come, up to their rebalance timeout."""
    group = turn.group
    if group.initial_until_s is not None and group.has_grown and turn.now_s < group.initial_until_s:
        due_s = min(turn.now_s + turn.initial_delay_s, group.initial_until_s)
        turn.group = replace(group, due_s=due_s, has_grown=False)
    else:
        complete(turn)


def complete(turn: Turn) -> None:
    """Begin the new generation with those that have joined. Static members stay if they have not: their session decides about them."""
    group = turn.group
    members = {member.member_id: member for member in group.members.values() if member.joining is not None or member.is_static}
    joined = [member for member in members.values() if member.joining is not None]
    if members and not joined:
        longest_s = max(member.rebalance_timeout_s for member in members.values())
        turn.group = replace(group, members=members, due_s=turn.now_s + longest_s, initial_until_s=None)
        return
    turn.save()
    generation = group.generation + 1
    if not members:
        turn.group = replace(
            group,
            state=GroupState.EMPTY,
            generation=generation,
            protocol=None,
            leader=None,
            members={},
            due_s=None,
            initial_until_s=None,
            unsynced=frozenset(),
        )
        return
    leader = group.leader if group.leader in {member.member_id for member in joined} else joined[0].member_id
    begun = replace(
        group,
        state=GroupState.COMPLETING,
        generation=generation,
        leader=leader,
        members={
            member.member_id: turn.alive(replace(member, joining=None, assignment=b"", new_until_s=None)) for member in members.values()
        },
        due_s=turn.now_s + max(member.rebalance_timeout_s for member in members.values()),
        initial_until_s=None,
        unsynced=frozenset(members),
    )
    turn.group = replace(begun, protocol=begun.select_protocol())
    for member in joined:
        turn.reply(member.joining, joined_answer(turn.group, member.member_id))


def joined_answer(group: Group, member_id: str) -> JoinAnswer:
    """The answer about the generation to one of its members."""
    members: tuple[tuple[str, str | None, bytes], ...] = ()
    if member_id == group.leader:
        members = tuple((member.member_id, member.instance_id, member.metadata_of(group.protocol)) for member in group.members.values())
    return JoinAnswer(
        member_id=member_id,
        generation=group.generation,
        protocol_type=group.protocol_type,
        protocol=group.protocol,
        leader=group.leader or "",
        members=members,
    )


def synced_answer(group: Group, member: Member) -> SyncAnswer:
    return SyncAnswer(protocol_type=group.protocol_type, protocol=group.protocol, assignment=member.assignment)


def assign(turn: Turn, assignments: dict[str, bytes]) -> None:
    """The leader's assignment completes the generation. Members that it leaves out get nothing."""
    group = turn.group
    waiting = [member for member in group.members.values() if member.syncing is not None]
    members = {
        member.member_id: turn.alive(replace(member, syncing=None, assignment=assignments.get(member.member_id, b"")))
        for member in group.members.values()
    }
    unsynced = group.unsynced - {member.member_id for member in waiting}
    turn.group = replace(group, state=GroupState.STABLE, members=members, unsynced=unsynced, due_s=group.due_s if unsynced else None)
    turn.save()
    for member in waiting:
        turn.reply(member.syncing, synced_answer(turn.group, members[member.member_id]))


def remove(turn: Turn, member_ids: Iterable[str]) -> None:
    """Take members out, and begin or go on with a rebalance of the others."""
    gone = [turn.group.members[member_id] for member_id in member_ids]
    if not gone:
        return
    group = turn.group
    for member in gone:
        turn.reply(member.joining, JoinAnswer(error=GroupError.UNKNOWN_MEMBER_ID, member_id=member.member_id))
        turn.reply(member.syncing, SyncAnswer(error=GroupError.UNKNOWN_MEMBER_ID))
    left = {member.member_id for member in gone}
    members = {member_id: member for member_id, member in group.members.items() if member_id not in left}
    leader = None if group.leader in left else group.leader
    turn.group = replace(group, members=members, leader=leader, unsynced=group.unsynced - left)
    if group.state in (GroupState.STABLE, GroupState.COMPLETING):
        prepare(turn)
    try_complete(turn)
