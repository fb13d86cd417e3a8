"""Which committed offsets to forget, and when to look again (KIP-211). Pure; times are those of the wall clock.

    no member ever                  the retention time after its commit
    no members any more             the retention time after the last one left, whenever it was committed
    consumers in a stable group     the retention time after its commit, but only of topics that no member wants
    any other group                 never
    a topic that is gone            at once

A commit with a retention time of its own (OffsetCommit v2-v4) goes by that instead.

`subscribed_topics` reads what a consumer tells the assignor, as far as it concerns us: the topics it wants. All else about protocols is
opaque.
"""

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from broker.groups.state import Committed, Group, GroupState, Member
from storage.catalog.groups import GroupHead
from storage.vocabulary import PartitionId, TopicId

Names = Mapping[TopicId, str | None]
"""Names of topics by id; None for one that is gone. A missing id is unknown, and its offsets are kept."""

CONSUMER = "consumer"


def subscribed_topics(group: Group) -> frozenset[str] | None:
    """The topics that any member wants.

    None if that is not to be known: another protocol type, no protocol chosen yet, or a member that says it otherwise.
    """
    if group.protocol_type != CONSUMER or (group.members and group.protocol is None):
        return None
    topics: set[str] = set()
    for member in group.members.values():
        wanted = wanted_by(member, group)
        if wanted is None:
            return None
        topics |= wanted
    return frozenset(topics)


def wanted_by(member: Member, group: Group) -> frozenset[str] | None:
    """The topics that one member of a group of consumers wants; None if it says it otherwise."""
    try:
        return frozenset(topics_of(member.metadata_of(group.protocol)))
    except (struct.error, UnicodeDecodeError, ValueError):
        return None


def topics_of(metadata: bytes) -> Iterable[str]:
    """`version: i16, topics: array of string, …`, in every version there is. Empty metadata does not mean that the member wants nothing."""
    _, count = struct.unpack_from(">hi", metadata)
    if count < 0:
        raise ValueError(f"topics that are none: count={count}")
    at = 6
    for _ in range(count):
        (length,) = struct.unpack_from(">h", metadata, at)
        at += 2
        if length < 0 or at + length > len(metadata):
            raise ValueError(f"a topic's name does not fit: length={length} bytes={len(metadata)}")
        yield metadata[at : at + length].decode()
        at += length


class Forgettable(NamedTuple):
    """`is_over`: nothing is left of the group when `expired` and `orphaned` are gone. `next_ms`: when time alone may expire another one."""

    expired: tuple[PartitionId, ...] = ()
    orphaned: tuple[PartitionId, ...] = ()
    is_over: bool = False
    next_ms: int | None = None

    @property
    def has_work(self) -> bool:
        return bool(self.expired or self.orphaned or self.is_over)


def find_forgettable(
    group: Group, offsets: Mapping[PartitionId, Committed], names: Names, *, now_ms: int, retention_ms: int
) -> Forgettable:
    """What to forget of a group, as its coordinator knows it."""
    starts_ms = _starts_ms(group.state, group.protocol_type, group.empty_since_ms)
    is_empty = group.state is GroupState.EMPTY
    wanted = subscribed_topics(group) if group.state is GroupState.STABLE else None
    expired, orphaned, next_ms = [], [], None
    for partition, committed in offsets.items():
        name = names.get(partition.topic_id, "")
        if name is None:
            orphaned.append(partition)
            continue
        if not is_empty and (wanted is None or not name or name in wanted):
            continue
        due_ms = _due_ms(committed, starts_ms(committed), retention_ms)
        if due_ms <= now_ms:
            expired.append(partition)
        else:
            next_ms = due_ms if next_ms is None else min(next_ms, due_ms)
    is_over = is_empty and not group.pending and len(expired) + len(orphaned) == len(offsets)
    return Forgettable(tuple(expired), tuple(orphaned), is_over, next_ms)


def due_of(head: GroupHead, *, retention_ms: int) -> int | None:
    """When the offsets of a group without members are to go, as far as its record says so; None: its offsets have to be asked."""
    if head.protocol_type is None or head.empty_since_ms is None or head.has_expiries:
        return None
    return head.empty_since_ms + retention_ms


def due_of_offset(head: GroupHead, committed: Committed, *, retention_ms: int) -> int:
    """As `due_of`, of one offset of such a group."""
    starts_ms = _starts_ms(GroupState.EMPTY, head.protocol_type, head.empty_since_ms)
    return _due_ms(committed, starts_ms(committed), retention_ms)


def _starts_ms(state: GroupState, protocol_type: str | None, empty_since_ms: int | None) -> Callable[[Committed], int]:
    if state is GroupState.EMPTY and protocol_type is not None and empty_since_ms is not None:
        return lambda _: empty_since_ms
    return lambda committed: committed.committed_at_ms


def _due_ms(committed: Committed, start_ms: int, retention_ms: int) -> int:
    return start_ms + retention_ms if committed.expires_at_ms is None else committed.expires_at_ms
