"""How consumer groups lie in the metadata store: a group with its members, its offsets, and who coordinates a slot."""

import zlib
from typing import Final

import msgspec

from storage.catalog.records import decode, encode
from storage.errors import Corrupt
from storage.limits import METADATA_VALUE_BYTES_MAX
from storage.metadata.port import Record

FMT: Final = 1
PLAIN_BYTES_MAX: Final = 16 * 1024
"""Members are written as they are up to this size, compressed above it."""
_MEMBERS_UNPACKED_BYTES_MAX: Final = 64 * 1024 * 1024


class ClaimRecord(msgspec.Struct, frozen=True, kw_only=True):
    """coordinators/{slot}. `session_id` names the session it goes with: a broker recognises its own claim by it."""

    fmt: int = FMT
    broker_id: int
    session_id: int


class MemberRecord(msgspec.Struct, frozen=True, array_like=True):
    """`protocols`: (name, metadata). Bytes are base64."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes


class GroupRecord(msgspec.Struct, frozen=True, kw_only=True):
    """groups/{group}. `owner` is the version of the claim under which it was written; `topics` are those whose offsets may be there.

    `members_packed`: the members as JSON, compressed with zlib, when there are many of them.
    """

    fmt: int = FMT
    group: str
    owner: int
    state: str
    protocol_type: str | None
    generation: int
    protocol: str | None
    leader: str | None
    topics: tuple[str, ...]
    members: tuple[MemberRecord, ...] = ()
    members_packed: bytes = b""


class OffsetRecord(msgspec.Struct, frozen=True, kw_only=True):
    """groups/{group}/offsets/{topic_id}/{p}. `owner` as in the group; the time is that of the commit."""

    fmt: int = FMT
    owner: int
    offset: int
    leader_epoch: int
    metadata: str
    committed_at_ms: int


_claims = msgspec.json.Decoder(ClaimRecord)
_groups = msgspec.json.Decoder(GroupRecord)
_members = msgspec.json.Decoder(tuple[MemberRecord, ...])
_offsets = msgspec.json.Decoder(OffsetRecord)


def decode_claim(record: Record) -> ClaimRecord:
    return decode(_claims, record.value, known=FMT, path=record.path)


def decode_offset(record: Record) -> OffsetRecord:
    return decode(_offsets, record.value, known=FMT, path=record.path)


def decode_group(record: Record) -> GroupRecord:
    """With its members, packed or not."""
    group = decode(_groups, record.value, known=FMT, path=record.path)
    if group.members_packed:
        try:
            unpacked = zlib.decompressobj().decompress(group.members_packed, _MEMBERS_UNPACKED_BYTES_MAX)
            group = msgspec.structs.replace(group, members=_members.decode(unpacked), members_packed=b"")
        except (zlib.error, msgspec.MsgspecError) as error:
            raise Corrupt(f"undecodable members: key={record.path!r} cause={error}") from error
    return group


def encode_group(group: GroupRecord) -> bytes:
    """A group that is too large even when it is packed is written without its members: after a takeover they join again."""
    plain = encode(group)
    if len(plain) <= PLAIN_BYTES_MAX or not group.members:
        return plain
    members = msgspec.json.encode(group.members)
    packed = encode(msgspec.structs.replace(group, members=(), members_packed=zlib.compress(members, 6)))
    if len(packed) <= METADATA_VALUE_BYTES_MAX and len(members) <= _MEMBERS_UNPACKED_BYTES_MAX:
        return packed
    return encode(msgspec.structs.replace(group, members=(), leader=None))
