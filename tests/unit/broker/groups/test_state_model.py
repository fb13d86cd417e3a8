"""Random lives of a group, compared with a reference that is written the plain way: mutable, and of dynamic members only.

Members come with an id that they were given, or without; the group has a bound; and a rebalance may take longer than a new member waits.
"""

from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from broker.groups.state import NEW_MEMBER_WAIT_S, GroupError, GroupSettings, GroupState, Protocol
from tests.unit.broker.groups.stepping import SESSION_S, Stepped

REBALANCE_S = NEW_MEMBER_WAIT_S + 100
MEMBERS_MAX = 3


@dataclass
class RefMember:
    metadata: bytes
    expires_s: float
    joined: bool = True
    syncing: bool = False
    assignment: bytes = b""
    new_until_s: float | None = None

    @property
    def lapses_s(self) -> float | None:
        return self.new_until_s if self.joined or self.syncing else self.expires_s


@dataclass
class Reference:
    state: GroupState = GroupState.EMPTY
    generation: int = 0
    leader: str | None = None
    members: dict[str, RefMember] = field(default_factory=dict)
    unsynced: set[str] = field(default_factory=set)
    due_s: float | None = None
    now_s: float = 100.0
    pending: dict[str, float] = field(default_factory=dict)

    def has_place(self, name: str) -> bool:
        if self.state is not GroupState.PREPARING:
            return name in self.members or len(self.members) < MEMBERS_MAX
        joined = [other for other, member in self.members.items() if member.joined]
        return name in joined or len(joined) < MEMBERS_MAX

    def turn_away(self, name: str) -> None:
        if name in self.pending:
            del self.pending[name]
            self.finish_if_all_joined()
        elif name in self.members:
            self.remove([name])

    def join(self, name: str, metadata: bytes) -> None:
        known = self.members.get(name)
        is_unchanged = known is not None and known.metadata == metadata
        lost_the_answer = self.state is GroupState.COMPLETING or (self.state is GroupState.STABLE and name != self.leader)
        if known is not None and is_unchanged and lost_the_answer:
            known.expires_s = self.now_s + SESSION_S
            return
        self.pending.pop(name, None)
        new_until_s = self.now_s + NEW_MEMBER_WAIT_S if known is None else known.new_until_s
        self.members[name] = RefMember(metadata, self.now_s + SESSION_S, new_until_s=new_until_s)
        self.begin()
        self.finish_if_all_joined()

    def begin(self) -> None:
        if self.state is GroupState.PREPARING:
            return
        for member in self.members.values():
            if member.syncing:
                member.syncing = False
                member.expires_s = self.now_s + SESSION_S
        self.state, self.due_s, self.unsynced = GroupState.PREPARING, self.now_s + (REBALANCE_S if self.members else 0), set()

    def finish_if_all_joined(self) -> None:
        if self.state is GroupState.PREPARING and not self.pending and all(member.joined for member in self.members.values()):
            self.finish()

    def finish(self) -> None:
        self.members = {name: member for name, member in self.members.items() if member.joined}
        self.generation += 1
        if not self.members:
            self.state, self.leader, self.due_s = GroupState.EMPTY, None, None
            return
        if self.leader not in self.members:
            self.leader = next(iter(self.members))
        for member in self.members.values():
            member.joined, member.assignment, member.expires_s, member.new_until_s = False, b"", self.now_s + SESSION_S, None
        self.state, self.unsynced, self.due_s = GroupState.COMPLETING, set(self.members), self.now_s + REBALANCE_S

    def sync(self, name: str, assignments: dict[str, bytes]) -> None:
        if name not in self.members or self.state in (GroupState.PREPARING, GroupState.EMPTY):
            return
        member = self.members[name]
        if self.state is GroupState.STABLE:
            member.expires_s = self.now_s + SESSION_S
            self.unsynced.discard(name)
        else:
            member.syncing = True
            if name == self.leader:
                self.state = GroupState.STABLE
                for other, one in self.members.items():
                    if one.syncing:
                        self.unsynced.discard(other)
                    one.syncing, one.assignment, one.expires_s = False, assignments.get(other, b""), self.now_s + SESSION_S
        if self.state is GroupState.STABLE and not self.unsynced:
            self.due_s = None

    def remove(self, names: list[str]) -> None:
        if not names:
            return
        for name in names:
            del self.members[name]
            self.unsynced.discard(name)
            if self.leader == name:
                self.leader = None
        self.begin()
        self.finish_if_all_joined()

    def next_due_s(self) -> float | None:
        times = [member.lapses_s for member in self.members.values() if member.lapses_s is not None] + list(self.pending.values())
        return min([*times, *([] if self.due_s is None else [self.due_s])], default=None)

    def pass_s(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while (due_s := self.next_due_s()) is not None and due_s <= until_s:
            self.now_s = max(self.now_s, due_s)
            if any(at <= self.now_s for at in self.pending.values()):
                self.pending = {name: at for name, at in self.pending.items() if at > self.now_s}
                self.finish_if_all_joined()
            self.remove([name for name, member in self.members.items() if member.lapses_s is not None and member.lapses_s <= self.now_s])
            if self.due_s is not None and self.due_s <= self.now_s:
                if self.state is GroupState.PREPARING:
                    self.finish()
                else:
                    late = [
                        name
                        for name, member in self.members.items()
                        if (name in self.unsynced if self.state is GroupState.STABLE else not member.syncing)
                    ]
                    self.due_s = None
                    self.remove(late)
        self.now_s = until_s


class GroupMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.real = Stepped(settings=GroupSettings(initial_delay_s=0, members_max=MEMBERS_MAX))
        self.model = Reference()
        self.metadata: dict[str, bytes] = {}
        self.waiting: dict[int, str] = {}

    def join(self, name: str, metadata: bytes, **fields: Any) -> None:
        token = self.real.join(name, protocols=(Protocol("p", metadata),), rebalance_timeout_s=REBALANCE_S, **fields)
        self.waiting[token] = name

    @rule(metadata=st.sampled_from([b"x", b"y"]))
    def a_member_comes(self, metadata: bytes) -> None:
        name = f"member-{self.real.token + 1}"
        has_place = self.model.has_place(name)
        self.join("", metadata)
        if has_place:
            self.model.join(name, metadata)
            self.metadata[name] = metadata
        else:
            assert self.real.joined(self.real.token).error is GroupError.GROUP_MAX_SIZE_REACHED

    @rule()
    def somebody_is_given_an_id(self) -> None:
        name = f"member-{self.real.token + 1}"
        has_place = self.model.has_place(name) and len(self.model.pending) < MEMBERS_MAX
        self.join("", b"x", knows_member_ids=True)
        answer = self.real.joined(self.real.token)
        if has_place:
            assert (answer.error, answer.member_id) == (GroupError.MEMBER_ID_REQUIRED, name)
            self.model.pending[name] = self.model.now_s + SESSION_S
            self.metadata[name] = b"x"
        else:
            assert (answer.error, answer.member_id) == (GroupError.GROUP_MAX_SIZE_REACHED, "")

    @precondition(lambda self: self.metadata)
    @rule(data=st.data(), changes=st.booleans())
    def a_member_joins_again(self, data: st.DataObject, changes: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.metadata)))
        metadata = b"z" if changes else self.metadata[name]
        is_known = name in self.model.members or name in self.model.pending
        has_place = self.model.has_place(name)
        self.join(name, metadata)
        if not has_place:
            assert self.real.joined(self.real.token).error is GroupError.GROUP_MAX_SIZE_REACHED
            self.model.turn_away(name)
        elif is_known:
            self.model.join(name, metadata)
            self.metadata[name] = metadata
        else:
            assert self.real.joined(self.real.token).error is GroupError.UNKNOWN_MEMBER_ID

    @precondition(lambda self: self.metadata)
    @rule(data=st.data(), is_stale=st.booleans())
    def a_member_syncs(self, data: st.DataObject, is_stale: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.metadata)))
        assignments = {member: f"{member}/{self.model.generation}".encode() for member in self.model.members}
        is_known = name in self.model.members
        token = self.real.sync(name, self.model.generation - is_stale, assignments=assignments)
        if not is_known:
            assert self.real.synced(token).error is GroupError.UNKNOWN_MEMBER_ID
        elif is_stale:
            assert self.real.synced(token).error is GroupError.ILLEGAL_GENERATION
        elif self.model.state is GroupState.PREPARING:
            assert self.real.synced(token).error is GroupError.REBALANCE_IN_PROGRESS
        else:
            self.model.sync(name, assignments)
            if self.model.state is GroupState.STABLE:
                assert self.real.synced(token).assignment == self.model.members[name].assignment
            else:
                assert token not in self.real.answers

    @precondition(lambda self: self.metadata)
    @rule(data=st.data(), is_stale=st.booleans())
    def a_member_beats(self, data: st.DataObject, is_stale: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.metadata)))
        error = self.real.heartbeat(name, self.model.generation - is_stale)
        if name not in self.model.members:
            assert error is GroupError.UNKNOWN_MEMBER_ID
        elif is_stale:
            assert error is GroupError.ILLEGAL_GENERATION
        else:
            self.model.members[name].expires_s = self.model.now_s + SESSION_S
            is_preparing = self.model.state is GroupState.PREPARING
            assert error is (GroupError.REBALANCE_IN_PROGRESS if is_preparing else GroupError.NONE)

    @precondition(lambda self: self.metadata)
    @rule(data=st.data())
    def members_leave(self, data: st.DataObject) -> None:
        names = data.draw(st.lists(st.sampled_from(sorted(self.metadata)), min_size=1, max_size=3))
        known = dict.fromkeys(name for name in names if name in self.model.members or name in self.model.pending)
        errors = [
            GroupError.NONE if name in known and names.index(name) == number else GroupError.UNKNOWN_MEMBER_ID
            for number, name in enumerate(names)
        ]
        assert list(self.real.leave(*((name, None) for name in names))) == errors
        for name in known:
            self.model.pending.pop(name, None)
        self.model.remove([name for name in known if name in self.model.members])
        self.model.finish_if_all_joined()

    @rule(seconds=st.sampled_from([0.5, 4.0, 9.0, 25.0, NEW_MEMBER_WAIT_S]))
    def time_passes(self, seconds: float) -> None:
        self.real.pass_s(seconds)
        self.model.pass_s(seconds)

    @invariant()
    def the_group_is_as_the_reference_says(self) -> None:
        real, model = self.real.group, self.model
        assert (real.state, real.generation) == (model.state, model.generation)
        assert {name: member.assignment for name, member in real.members.items()} == {
            name: member.assignment for name, member in model.members.items()
        }
        assert real.pending == model.pending
        if model.state is not GroupState.PREPARING:
            assert real.leader == model.leader

    @invariant()
    def who_waits_is_waited_for_and_nobody_waits_for_ever(self) -> None:
        waiting = {member.joining for member in self.real.group.members.values()} - {None}
        assert waiting == {token for token in self.waiting if token not in self.real.answers}
        if any(member.is_waiting for member in self.real.group.members.values()):
            assert self.real.group.due_s is not None

    @invariant()
    def the_newest_generation_is_durable(self) -> None:
        if self.model.generation:
            assert self.real.saved[-1].generation == self.model.generation


GroupMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
TestGroup = GroupMachine.TestCase
