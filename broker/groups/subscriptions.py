"""What a consumer tells the assignor, as far as it concerns us: the topics it wants. All else about protocols is opaque."""

import struct
from collections.abc import Iterable

from broker.groups.members import Group, Member

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
