"""What happens to a group, and what comes of it. `token` names the request that an answer belongs to."""

from dataclasses import dataclass

from broker.groups.errors import GroupError
from broker.groups.members import Protocol


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
