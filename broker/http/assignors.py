"""Kafka's embedded consumer protocol, and the two assignors of a member that may lead its group: range and roundrobin. Pure.

The leader assigns for all members. Clients of every kind read its assignment, so it is written in version 0, which all know.
"""

import struct
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from itertools import cycle
from typing import Final, NamedTuple

from broker.groups.offset_expiration import topics_of

RANGE: Final = "range"
ROUND_ROBIN: Final = "roundrobin"
ASSIGNORS: Final = (RANGE, ROUND_ROBIN)
"""In the order of preference."""
_VERSION: Final = 0
_NO_USER_DATA: Final = struct.pack(">i", -1)

Assignment = dict[str, list[int]]
"""The partitions of each topic, in their order."""


class Subscriber(NamedTuple):
    """A member and what it wants. `instance_id` of a static one."""

    member_id: str
    instance_id: str | None
    topics: frozenset[str]

    @property
    def place(self) -> tuple[bool, str]:
        """Orders members as Kafka does: static ones first, by their instance ids."""
        return self.instance_id is None, self.instance_id or self.member_id


def subscription_bytes(topics: Iterable[str]) -> bytes:
    named = sorted(topics)
    return struct.pack(">hi", _VERSION, len(named)) + b"".join(map(_text, named)) + _NO_USER_DATA


def subscribers_of(
    members: Iterable[tuple[str, str | None, bytes]], there: Container[str] | None = None
) -> tuple[list[Subscriber], list[str]]:
    """The members, and the topics that any of them wants; of those that are `there`, where that is given.

    A member whose metadata cannot be read wants nothing.
    """
    found: list[Subscriber] = []
    for member_id, instance_id, metadata in members:
        try:
            wanted = frozenset(topic for topic in topics_of(metadata) if there is None or topic in there)
        except (struct.error, UnicodeDecodeError, ValueError):
            wanted = frozenset()
        found.append(Subscriber(member_id, instance_id, wanted))
    return found, sorted(frozenset().union(*(member.topics for member in found)))


def assignment_bytes(assignment: Mapping[str, Sequence[int]]) -> bytes:
    pieces = [struct.pack(">hi", _VERSION, len(assignment))]
    for topic, partitions in sorted(assignment.items()):
        pieces += [_text(topic), struct.pack(f">i{len(partitions)}i", len(partitions), *partitions)]
    return b"".join(pieces) + _NO_USER_DATA


def read_assignment(data: bytes) -> Assignment:
    """Raise `ValueError` for what is no assignment. Nothing at all assigns nothing."""
    if not data:
        return {}
    found: Assignment = {}
    try:
        _, count = struct.unpack_from(">hi", data)
        at = 6
        if count > len(data):
            raise ValueError(f"{count} topics in {len(data)} bytes")
        for _ in range(count):
            (length,) = struct.unpack_from(">h", data, at)
            if length < 0:
                raise ValueError(f"a topic's name of {length} bytes")
            topic = data[at + 2 : at + 2 + length].decode()
            at += 2 + length
            (partitions,) = struct.unpack_from(">i", data, at)
            if not 0 <= partitions <= len(data):
                raise ValueError(f"{partitions} partitions in {len(data)} bytes")
            found[topic] = list(struct.unpack_from(f">{partitions}i", data, at + 4))
            at += 4 + 4 * partitions
    except struct.error as error:
        raise ValueError(f"an assignment that ends early: {error}") from None
    return found


def assign(assignor: str, members: Sequence[Subscriber], partition_counts: Mapping[str, int]) -> dict[str, Assignment]:
    """The partitions of each member, by its id. Topics without a count are nobody's. `assignor` is one of ASSIGNORS."""
    shares = _range if assignor == RANGE else _round_robin
    return shares(sorted(members, key=lambda member: member.place), partition_counts)


def _range(members: Sequence[Subscriber], partition_counts: Mapping[str, int]) -> dict[str, Assignment]:
    assigned: dict[str, Assignment] = {member.member_id: {} for member in members}
    for topic, count in sorted(partition_counts.items()):
        wanting = [member for member in members if topic in member.topics]
        first = 0
        for place, member in enumerate(wanting):
            share = count // len(wanting) + (place < count % len(wanting))
            if share:
                assigned[member.member_id][topic] = list(range(first, first + share))
            first += share
    return assigned


def _round_robin(members: Sequence[Subscriber], partition_counts: Mapping[str, int]) -> dict[str, Assignment]:
    assigned: dict[str, Assignment] = {member.member_id: defaultdict(list) for member in members}
    wanted = frozenset().union(*(member.topics for member in members))
    turns = cycle(members)
    for topic, count in sorted(partition_counts.items()):
        if topic not in wanted:
            continue
        for partition in range(count):
            member = next(member for member in turns if topic in member.topics)
            assigned[member.member_id][topic].append(partition)
    return {member_id: dict(assignment) for member_id, assignment in assigned.items()}


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data
