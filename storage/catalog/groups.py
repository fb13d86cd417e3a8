"""How consumer groups lie in the metadata store: a group with its members, its offsets, and who coordinates a slot."""

import zlib
from collections.abc import Sequence
from typing import Final

import msgspec
import structlog

from storage.catalog.records import decode, encode
from storage.catalog.topic import decode_topic_id, read_topic_ids
from storage.errors import Corrupt, IncompatibleFormat
from storage.formats.levels import UNDECODABLE
from storage.limits import METADATA_VALUE_BYTES_MAX
from storage.metadata.keys import GroupKeys
from storage.metadata.port import Key, MetadataStore, Record
from storage.vocabulary import TopicId

FMT: Final = 1
PLAIN_BYTES_MAX: Final = 16 * 1024
"""Members are written as they are up to this size, compressed above it."""
_MEMBERS_UNPACKED_BYTES_MAX: Final = 64 * 1024 * 1024
MEMBERS_PACKED_BYTES_MAX: Final = 8 * 1024 * 1024
"""Members that are larger are not compressed: nothing else happens in a broker meanwhile, and what is left of them would hardly fit."""

_log: Final = structlog.get_logger()


class ClaimRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """coordinators/{slot}. `session_id` names the session it goes with: a broker recognises its own claim by it."""

    fmt: int = FMT
    broker_id: int
    session_id: int


class MemberRecord(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`protocols`: (name, metadata). Bytes are base64."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes


class GroupRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """groups/{group}. `owner` is the version of the claim under which it was written.

    `topics`: those whose offsets may be there, and `topic_pages` how many records name more of them. `members_packed`: the members as
    JSON, compressed with zlib, when there are many. `empty_since_ms`: since when it has had no members; None while it has, and if it never
    had any.
    `has_expiries`: its offsets may include a commit with a retention time of its own.
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
    topic_pages: int = 0
    empty_since_ms: int | None = None
    has_expiries: bool = False
    members: tuple[MemberRecord, ...] = ()
    members_packed: bytes = b""


class GroupHead(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What decides whether offsets of a group may have to be forgotten, read without its members. As in `GroupRecord`; the rest is raw."""

    fmt: int
    group: str
    owner: msgspec.Raw = msgspec.Raw()
    state: str
    protocol_type: str | None
    generation: msgspec.Raw = msgspec.Raw()
    protocol: msgspec.Raw = msgspec.Raw()
    leader: msgspec.Raw = msgspec.Raw()
    topics: tuple[str, ...]
    topic_pages: int = 0
    empty_since_ms: int | None = None
    has_expiries: bool = False
    members: msgspec.Raw = msgspec.Raw()
    members_packed: msgspec.Raw = msgspec.Raw()


class TopicsRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """groups/{group}/topics/{page}. Topics that have no room in the group's record. `owner` as there."""

    fmt: int = FMT
    owner: int
    topics: tuple[str, ...]


class OffsetRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """groups/{group}/offsets/{topic_id}/{p}. `owner` as in the group. A commit with a retention time of its own has `expires_at_ms`."""

    fmt: int = FMT
    owner: int
    offset: int
    leader_epoch: int
    metadata: str
    committed_at_ms: int
    expires_at_ms: int | None = None


_claims = msgspec.json.Decoder(ClaimRecord)
_groups = msgspec.json.Decoder(GroupRecord)
_heads = msgspec.json.Decoder(GroupHead)
_topics = msgspec.json.Decoder(TopicsRecord)
_members = msgspec.json.Decoder(tuple[MemberRecord, ...])
_offsets = msgspec.json.Decoder(OffsetRecord)


def decode_claim(record: Record) -> ClaimRecord:
    return decode(_claims, record.value, known=FMT, path=record.path)


def decode_offset(record: Record) -> OffsetRecord:
    return decode(_offsets, record.value, known=FMT, path=record.path)


async def topic_names(metadata: MetadataStore, topic_ids: Sequence[TopicId]) -> dict[TopicId, str | None]:
    """As of a read made for this question; None for a topic whose record says that it was deleted. Nothing for a name that cannot be
    read, and for one that is not there: the topic may be younger than the state that was read. Raises `Unavailable`.
    """
    records = await read_topic_ids(metadata, topic_ids)
    names: dict[TopicId, str | None] = {}
    for topic_id, record in zip(topic_ids, records, strict=True):
        if record is None:
            continue
        try:
            found = decode_topic_id(record)
            names[topic_id] = None if found.is_deleted else found.name
        except (Corrupt, IncompatibleFormat) as error:
            _log.warning("topic_name_not_readable", topic_id=topic_id, cause=str(error))
    return names


def topics_key(group_keys: GroupKeys, page: int) -> Key:
    return Key(f"{group_keys.root}/topics/{page:05}", group_keys.partition_key)


def decode_topics(record: Record) -> TopicsRecord:
    return decode(_topics, record.value, known=FMT, path=record.path)


def decode_head(record: Record) -> GroupHead:
    return decode(_heads, record.value, known=FMT, path=record.path)


def decode_group(record: Record) -> GroupRecord:
    """With its members, packed or not."""
    group = decode(_groups, record.value, known=FMT, path=record.path)
    if group.members_packed:
        try:
            unpacked = zlib.decompressobj().decompress(group.members_packed, _MEMBERS_UNPACKED_BYTES_MAX)
            group = msgspec.structs.replace(group, members=_members.decode(unpacked), members_packed=b"")
        except (zlib.error, *UNDECODABLE) as error:
            raise Corrupt(f"undecodable members: key={record.path!r} cause={error}") from error
    return group


def count_members(head: GroupHead) -> int:
    """Its members; 0 of those that cannot be read. Packed ones are unpacked for that: not on the event loop."""
    try:
        packed = msgspec.json.decode(head.members_packed, type=bytes) if head.members_packed else b""
        members = zlib.decompressobj().decompress(packed, _MEMBERS_UNPACKED_BYTES_MAX) if packed else head.members
        return len(msgspec.json.decode(members, type=list[msgspec.Raw])) if members else 0
    except (zlib.error, *UNDECODABLE):
        return 0


def encode_group(group: GroupRecord) -> bytes:
    """A group that is too large even when it is packed is written without its members: after a takeover they join again."""
    plain = encode(group)
    if len(plain) <= PLAIN_BYTES_MAX or not group.members:
        return plain
    members = msgspec.json.encode(group.members)
    if len(members) <= MEMBERS_PACKED_BYTES_MAX:
        packed = encode(msgspec.structs.replace(group, members=(), members_packed=zlib.compress(members, 6)))
        if len(packed) <= METADATA_VALUE_BYTES_MAX:
            return packed
    return encode(msgspec.structs.replace(group, members=(), leader=None))
