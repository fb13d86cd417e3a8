"""A group that is stepped by a test: events in, answers out."""

from dataclasses import dataclass, field
from typing import Any

from broker.groups.state import (
    Answer,
    Event,
    Group,
    GroupError,
    GroupSettings,
    GroupState,
    Heartbeat,
    Join,
    JoinAnswer,
    Leave,
    LeaveAnswer,
    Protocol,
    Reply,
    Save,
    Sync,
    SyncAnswer,
    Tick,
    step,
)

RANGE = (Protocol("range", b"r"), Protocol("sticky", b"s"))
DELAY_S = 3.0
SESSION_S = 10.0
REBALANCE_S = 60.0


@dataclass
class Stepped:
    """`saved` holds what had to be durable, newest last."""

    settings: GroupSettings = field(default_factory=lambda: GroupSettings(initial_delay_s=DELAY_S))
    group: Group = field(default_factory=lambda: Group(group_id="g"))
    now_s: float = 100.0
    answers: dict[int, Answer] = field(default_factory=dict)
    saved: list[Group] = field(default_factory=list)
    token: int = 0

    def send(self, event: Event) -> None:
        self.group, effects = step(self.group, event, self.now_s, self.settings)
        for effect in effects:
            match effect:
                case Reply(token, answer):
                    assert token not in self.answers, f"answered twice: {token}"
                    self.answers[token] = answer
                case Save():
                    self.saved.append(self.group)

    def next_token(self) -> int:
        self.token += 1
        return self.token

    def join(self, member_id: str = "", **fields: Any) -> int:
        token = self.next_token()
        event = {
            "new_member_id": f"member-{token}",
            "instance_id": None,
            "client_id": "client",
            "client_host": "/host",
            "session_timeout_s": SESSION_S,
            "rebalance_timeout_s": REBALANCE_S,
            "protocol_type": "consumer",
            "protocols": RANGE,
            "knows_member_ids": False,
            "knows_skip_assignment": False,
        } | fields
        self.send(Join(token=token, member_id=member_id, **event))
        return token

    def joined(self, token: int) -> JoinAnswer:
        answer = self.answers[token]
        assert isinstance(answer, JoinAnswer)
        return answer

    def sync(self, member_id: str, generation: int | None = None, assignments: dict[str, bytes] | None = None, **fields: Any) -> int:
        token = self.next_token()
        event = {"instance_id": None, "protocol_type": None, "protocol": None} | fields
        number = self.group.generation if generation is None else generation
        self.send(Sync(token=token, member_id=member_id, generation=number, assignments=tuple((assignments or {}).items()), **event))
        return token

    def synced(self, token: int) -> SyncAnswer:
        answer = self.answers[token]
        assert isinstance(answer, SyncAnswer)
        return answer

    def heartbeat(self, member_id: str, generation: int | None = None, instance_id: str | None = None) -> GroupError:
        token = self.next_token()
        number = self.group.generation if generation is None else generation
        self.send(Heartbeat(token=token, member_id=member_id, instance_id=instance_id, generation=number))
        return self.answers[token].error  # type: ignore[union-attr]

    def leave(self, *members: tuple[str, str | None]) -> tuple[GroupError, ...]:
        token = self.next_token()
        self.send(Leave(token=token, members=members))
        answer = self.answers[token]
        assert isinstance(answer, LeaveAnswer)
        return answer.errors

    def pass_s(self, seconds: float) -> None:
        """As the coordinator does: a tick whenever something is due."""
        until_s = self.now_s + seconds
        while (due_s := self.group.next_due_s) is not None and due_s <= until_s:
            self.now_s = max(self.now_s, due_s)
            before = self.group
            self.send(Tick())
            assert self.group != before, "a tick that was due changed nothing"
        self.now_s = until_s

    def stable(self, count: int, **fields: Any) -> list[str]:
        """`count` members with an assignment each; the leader is the first."""
        tokens = [self.join(**fields) for _ in range(count)]
        self.pass_s(2 * DELAY_S)
        members = [self.joined(token).member_id for token in tokens]
        followers = [self.sync(member) for member in members[1:]]
        self.sync(members[0], assignments={member: member.encode() for member in members})
        assert [self.synced(token).assignment for token in followers] == [member.encode() for member in members[1:]]
        assert self.group.state is GroupState.STABLE
        return members
