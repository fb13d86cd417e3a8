"""A group and its members as values. Pure: times are those of a monotonic clock, in seconds, handed in."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from broker.groups.errors import GroupError

NAME_CHARS_MAX: Final = 1_024
"""For a protocol, and for its type: they are in the record of the group, where a character may take six bytes."""


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
