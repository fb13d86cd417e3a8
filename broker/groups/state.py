"""The state machine of a classic consumer group: (group, event, now) → (group, effects). Pure.

    EMPTY ── join ──▶ PREPARING ── all joined, or due ──▶ COMPLETING ── leader syncs ──▶ STABLE
      ▲                  │ ▲  nobody left                      │                            │
      └──────────────────┘ └──────── join, leave, expiry ──────┴────────────────────────────┘

Here are a group and its members as values, the events, their answers, and what becomes of a group from one generation to the next. Times
are those of a monotonic clock, in seconds, handed in.

Eager and cooperative members are the same here: what an assignment says is between the leader and the members (KIP-429).
As in Kafka 4, the coordinator knows no more of a protocol than its name.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import IntEnum, StrEnum
from typing import Final, NamedTuple

from process.settings.sections import GroupsSettings
from storage.limits import MIB

NEW_MEMBER_WAIT_S: Final = 300.0
"""Kafka's, which cannot be set: how long a member that comes for the first time waits for its first generation at most."""

NAME_CHARS_MAX: Final = 1_024
"""For a protocol, and for its type: they are in the record of the group, where a character may take six bytes."""


class GroupError(IntEnum):
    """What a group answers when it does not do what it was asked: Kafka's codes, which the handlers pass on."""

    NONE = 0
    UNKNOWN_TOPIC_OR_PARTITION = 3
    REQUEST_TIMED_OUT = 7
    MESSAGE_TOO_LARGE = 10
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    GROUP_SUBSCRIBED_TO_TOPIC = 86


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """What an operator may set about groups. Defaults are Kafka's, but for the bounds on members and on memory, which Kafka has not."""

    initial_delay_s: float = 3.0
    session_timeout_s_min: float = 6.0
    session_timeout_s_max: float = 1_800.0
    members_max: int = 5_000
    member_bytes_max: int = 2 * MIB
    memory_bytes_max: int = 256 * MIB
    offset_metadata_chars_max: int = 4_096
    offsets_retention_ms: int = 7 * 24 * 3_600 * 1_000
    retention_check_s: float = 600.0

    def __post_init__(self) -> None:
        assert self.initial_delay_s >= 0
        assert 0 < self.session_timeout_s_min <= self.session_timeout_s_max
        assert self.offsets_retention_ms > 0
        assert self.retention_check_s > 0


def group_settings(groups: GroupsSettings) -> GroupSettings:
    return GroupSettings(
        initial_delay_s=groups.initial_rebalance_delay.total_seconds(),
        session_timeout_s_min=groups.session_timeout_min.total_seconds(),
        session_timeout_s_max=groups.session_timeout_max.total_seconds(),
        members_max=groups.max_size,
        member_bytes_max=groups.member_max_size,
        memory_bytes_max=groups.memory_bytes,
        offset_metadata_chars_max=groups.offset_metadata_max_size,
        offsets_retention_ms=groups.offsets_retention // timedelta(milliseconds=1),
        retention_check_s=groups.offsets_retention_check_interval.total_seconds(),
    )


class GroupState(StrEnum):
    """Kafka's names, as DescribeGroups and ListGroups show them."""

    EMPTY = "Empty"  # no members; offsets may be there
    PREPARING = "PreparingRebalance"  # members are to join again
    COMPLETING = "CompletingRebalance"  # all have joined; the leader is to assign
    STABLE = "Stable"  # every member may have its assignment


class Protocol(NamedTuple):
    """An assignor's name and what the member says to it. Opaque: consumers, Connect and Schema Registry write what they like."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """`joining`, `syncing`: the request that waits for an answer, by its token; a waiting member does not expire."""

    member_id: str
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    session_timeout_s: float
    rebalance_timeout_s: float
    protocols: tuple[Protocol, ...]
    assignment: bytes = b""
    expires_s: float = 0.0
    joining: int | None = None
    syncing: int | None = None
    new_until_s: float | None = None
    """Until when a member that never was in a generation may wait for its first: its client may be gone, and nobody could tell."""

    @property
    def is_static(self) -> bool:
        return self.instance_id is not None

    @property
    def is_waiting(self) -> bool:
        return self.joining is not None or self.syncing is not None

    @property
    def lapses_s(self) -> float | None:
        """When it is taken out if nothing happens before; None while it waits for others."""
        return self.new_until_s if self.is_waiting else self.expires_s

    def metadata_of(self, protocol: str | None) -> bytes:
        """What it says to that assignor; empty if it does not know it."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """`due_s`: in PREPARING, when the members that have joined go on without the others; later, when those that do not sync are removed."""

    group_id: str
    state: GroupState = GroupState.EMPTY
    protocol_type: str | None = None
    generation: int = 0
    protocol: str | None = None
    leader: str | None = None
    members: Mapping[str, Member] = field(default_factory=dict)
    """In the order of their coming; never changed in place."""
    pending: Mapping[str, float] = field(default_factory=dict)
    """Member ids that were given out (MEMBER_ID_REQUIRED) and not come back with yet: when they are forgotten."""
    due_s: float | None = None
    initial_until_s: float | None = None
    """The end of the longest wait for the first members of a group; None in every other rebalance."""
    has_grown: bool = False
    """A member came since the initial wait was last extended."""
    unsynced: frozenset[str] = frozenset()
    empty_since_ms: int | None = None
    """Since when it has had no members, by the wall clock; None while it has, and if it never had any."""

    def static_member(self, instance_id: str) -> Member | None:
        return next((member for member in self.members.values() if member.instance_id == instance_id), None)

    def check_member(self, member_id: str, instance_id: str | None) -> GroupError:
        """Whether `member_id` is a member, and the one that holds that instance id, if one is given."""
        member = self.members.get(member_id)
        if instance_id is None:
            return GroupError.UNKNOWN_MEMBER_ID if member is None else GroupError.NONE
        if member is not None and member.instance_id == instance_id:
            return GroupError.NONE
        holder = self.static_member(instance_id)
        return GroupError.UNKNOWN_MEMBER_ID if holder is None else GroupError.FENCED_INSTANCE_ID

    def check_generation(self, member_id: str, instance_id: str | None, generation: int) -> GroupError:
        if error := self.check_member(member_id, instance_id):
            return error
        return GroupError.NONE if generation == self.generation else GroupError.ILLEGAL_GENERATION

    def check_commit(self, member_id: str, instance_id: str | None, generation: int) -> GroupError:
        """Whether offsets may be committed now. Without a generation: while nobody is in the group."""
        if self.state is GroupState.EMPTY and generation < 0:
            return GroupError.NONE
        if error := self.check_generation(member_id, instance_id, generation):
            return error
        return GroupError.REBALANCE_IN_PROGRESS if self.state is GroupState.COMPLETING else GroupError.NONE

    def accepts(self, protocol_type: str, protocols: tuple[Protocol, ...], *, instead_of: str | None = None) -> bool:
        """Whether a member with these protocols fits: of the others' type, and one protocol is known to all. Names are not boundless."""
        if not protocol_type or not protocols:
            return False
        if max(len(protocol_type), *(len(protocol.name) for protocol in protocols)) > NAME_CHARS_MAX:
            return False
        others = [member for member in self.members.values() if member.member_id != instead_of]
        if not others:
            return True
        known = set.intersection(*({protocol.name for protocol in member.protocols} for member in others))
        return protocol_type == self.protocol_type and any(protocol.name in known for protocol in protocols)

    def select_protocol(self) -> str:
        """The one that most members prefer among those that all of them know; the first member's preference decides between equals."""
        known = set.intersection(*({protocol.name for protocol in member.protocols} for member in self.members.values()))
        votes = Counter(next(protocol.name for protocol in member.protocols if protocol.name in known) for member in self.members.values())
        return votes.most_common(1)[0][0]

    @property
    def next_due_s(self) -> float | None:
        """When `Tick` has something to do at the earliest."""
        if not self.members and not self.pending:
            return self.due_s  # most groups that are loaded: ten times a second somebody asks all of them
        times = [lapses_s for member in self.members.values() if (lapses_s := member.lapses_s) is not None]
        times += self.pending.values()
        if self.due_s is not None:
            times.append(self.due_s)
        return min(times, default=None)


class Committed(NamedTuple):
    """A committed offset with the client's metadata. `expires_at_ms`: when to forget it, if the commit said so."""

    offset: int
    leader_epoch: int
    metadata: str
    committed_at_ms: int
    expires_at_ms: int | None = None


NOTHING: Final = Committed(-1, -1, "", -1)
"""What is answered where nothing is committed. No commit equals it: each has a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """`new_member_id` is used if this becomes a new member. `knows_member_ids`: the client joins again with the id it is given (v4)."""

    token: int
    member_id: str
    new_member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_s: float
    rebalance_timeout_s: float
    protocol_type: str
    protocols: tuple[Protocol, ...]
    knows_member_ids: bool
    knows_skip_assignment: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """`assignments` by member id; of anybody but the leader they are ignored."""

    token: int
    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol: str | None
    assignments: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    token: int
    member_id: str
    instance_id: str | None
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """Pairs of member id and instance id; either may be what names the member."""

    token: int
    members: tuple[tuple[str, str | None], ...]


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Event = Join | Sync | Heartbeat | Leave | Tick


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinAnswer:
    """`members`: (member id, instance id, metadata) of all, for the leader alone."""

    error: GroupError = GroupError.NONE
    member_id: str = ""
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: tuple[tuple[str, str | None, bytes], ...] = ()
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncAnswer:
    error: GroupError = GroupError.NONE
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    error: GroupError


@dataclass(frozen=True, slots=True)
class LeaveAnswer:
    """In the order of the request."""

    errors: tuple[GroupError, ...]


Answer = JoinAnswer | SyncAnswer | HeartbeatAnswer | LeaveAnswer


@dataclass(frozen=True, slots=True)
class Reply:
    token: int
    answer: Answer


@dataclass(frozen=True, slots=True)
class Save:
    """The group must be durable as it is now before any reply of this step is given."""


Effect = Reply | Save


@dataclass(slots=True)
class Turn:
    """One step of the state machine under way: the group as changed so far, and the effects that follow."""

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
