"""The requests of group members as bytes, and what their answers say: as bench/wire.py, flexible versions alone."""

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from bench.wire import compact_string, read_uvarint, request, uvarint

OFFSET_COMMIT: Final = 8
FIND_COORDINATOR: Final = 10
JOIN_GROUP: Final = 11
HEARTBEAT: Final = 12
SYNC_GROUP: Final = 14
PROTOCOL_TYPE: Final = "consumer"
PROTOCOL: Final = "range"

_NULL: Final = b"\x00"
_NO_TAGS: Final = b"\x00"
_HEAD_BYTES: Final = 5
"""Correlation id and no tags."""
_ERROR_AT: Final = _HEAD_BYTES + 4
"""Behind the throttle time, its place in the answers of groups."""
_COMMITTED: Final = struct.Struct(">ihx")


class Joined(NamedTuple):
    """`error` is Kafka's number; with MEMBER_ID_REQUIRED (79) `member_id` is the one to join again with."""

    error: int
    generation: int
    member_id: str
    is_leader: bool


def find_coordinator_request(group: str) -> bytes:
    """Brokers that make their topic of offsets when they are first asked, do it then."""
    return request(FIND_COORDINATOR, 3, 0, compact_string(group) + b"\x00" + _NO_TAGS)


def join_group_request(group: str, member_id: str, *, session_timeout_ms: int) -> bytes:
    body = compact_string(group) + struct.pack(">ii", session_timeout_ms, session_timeout_ms) + compact_string(member_id) + _NULL
    protocols = uvarint(2) + compact_string(PROTOCOL) + uvarint(1) + _NO_TAGS
    return request(JOIN_GROUP, 9, 0, body + compact_string(PROTOCOL_TYPE) + protocols + _NULL + _NO_TAGS)


def joined(payload: bytes) -> Joined:
    error, generation = struct.unpack_from(">hi", payload, _ERROR_AT)
    at = _ERROR_AT + 6
    _, at = _string(payload, at)
    _, at = _string(payload, at)
    leader, at = _string(payload, at)
    member_id, _ = _string(payload, at + 1)
    return Joined(error, generation, member_id, bool(leader) and leader == member_id)


def sync_group_request(group: str, member: Joined) -> bytes:
    """The leader assigns nothing to anybody: what members are assigned is not what is measured."""
    body = compact_string(group) + struct.pack(">i", member.generation) + compact_string(member.member_id) + _NULL
    return request(SYNC_GROUP, 5, 0, body + compact_string(PROTOCOL_TYPE) + compact_string(PROTOCOL) + uvarint(1) + _NO_TAGS)


def heartbeat_request(group: str, member: Joined) -> bytes:
    body = compact_string(group) + struct.pack(">i", member.generation) + compact_string(member.member_id) + _NULL
    return request(HEARTBEAT, 4, 0, body + _NO_TAGS)


def error_of(payload: bytes) -> int:
    """The error code of an answer to a heartbeat or a sync."""
    return int.from_bytes(payload[_ERROR_AT : _ERROR_AT + 2], "big", signed=True)


def offset_commit_request(group: str, member: Joined, topic: str, partitions: Sequence[int], *, offset: int) -> bytes:
    """The same offset of each partition, with no metadata."""
    head = compact_string(group) + struct.pack(">i", member.generation) + compact_string(member.member_id) + _NULL
    body = bytearray(head + uvarint(2) + compact_string(topic) + uvarint(len(partitions) + 1))
    for partition in partitions:
        body += struct.pack(">iqiBx", partition, offset, -1, 1)
    return request(OFFSET_COMMIT, 8, 0, bytes(body + _NO_TAGS + _NO_TAGS))


def commit_errors(payload: bytes, topic: str) -> list[int]:
    """The error code of each partition of an answer to `offset_commit_request`."""
    count, at = read_uvarint(payload, _ERROR_AT + 1 + len(compact_string(topic)))
    return [_COMMITTED.unpack_from(payload, at + number * _COMMITTED.size)[1] for number in range(count - 1)]


def _string(payload: bytes, at: int) -> tuple[str, int]:
    """A compact string, empty if it is null."""
    size, at = read_uvarint(payload, at)
    end = at + max(size - 1, 0)
    return payload[at:end].decode(), end
