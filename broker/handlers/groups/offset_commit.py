"""OffsetCommit (API key 8), v2-v9.

All offsets of a request that name an existing partition are durable when it is answered. Without a member and a generation (-1) it is
a simple commit, taken while nobody is in the group, and the only one that makes a group: with a generation, a group that is not there is
GROUP_ID_NOT_FOUND, before v9 ILLEGAL_GENERATION. A retention time (v2-v4) that is not negative counts instead of the broker's.
A leader epoch above 0 comes from another cluster, with the offsets of a group that moved here, and is not kept: a Java consumer that is
given it back waits for an epoch that never comes (I12).
More offsets than a group may have are INVALID_COMMIT_OFFSET_SIZE. Offsets belong to the incarnation of a topic: one that is created again
has none. So which one has the name is read for each commit; topics of which nobody can tell are COORDINATOR_NOT_AVAILABLE, the others not.
"""

from typing import Final

from kio.schema.errors import ErrorCode
from kio.schema.offset_commit.v4 import OffsetCommitRequest as OffsetCommitRequestUntilV4
from kio.schema.offset_commit.v9 import OffsetCommitRequest, OffsetCommitResponse
from kio.schema.offset_commit.v9.response import OffsetCommitResponsePartition, OffsetCommitResponseTopic

from broker.cluster.leadership import slot_of
from broker.groups.group import Closed, CommitOffsets
from broker.groups.state import Committed, GroupError
from broker.handling.context import Context
from broker.handling.topics import LEADER_EPOCH
from broker.protocol.codec import as_field, milliseconds
from broker.protocol.wire import Request
from runtime.turns import Turns
from storage.catalog.topics import Topic
from storage.errors import StorageError
from storage.metadata.keys import group_partition_key
from storage.vocabulary import PartitionId

_NO_EPOCH: Final = -1
_NOT_FOUND_ERROR_MINIMUM: Final = 9
_TWO_UNITS: Final = "\uffff"

Body = OffsetCommitRequestUntilV4 | OffsetCommitRequest


async def handle(context: Context, request: Request[Body]) -> OffsetCommitResponse:
    body = request.body
    groups = context.parts.groups
    highest: dict[str, int] = {}
    turns = Turns()
    for named in body.topics:
        await turns.spent(1 + len(named.partitions))
        highest[named.name] = max([highest.get(named.name, 0), *(partition.partition_index for partition in named.partitions)])
    topics = await context.parts.confirmed_topics.by_name(highest, beside=group_partition_key(slot_of(body.group_id)))
    offsets, refused = await _accept(
        body, topics, context.parts.clock.now_ms(), metadata_chars_max=groups.settings.offset_metadata_chars_max
    )
    if not offsets and refused:
        return await _respond(body, refused, GroupError.NONE)
    commit = CommitOffsets(
        member_id=body.member_id,
        instance_id=None if isinstance(body, OffsetCommitRequestUntilV4) else body.group_instance_id,
        generation=body.generation_id_or_member_epoch,
        offsets=offsets,
    )
    try:
        error = await groups.commit(body.group_id, commit)
    except Closed as closed:
        error = closed.error
    except TimeoutError:
        error = GroupError.REQUEST_TIMED_OUT
    if error is GroupError.GROUP_ID_NOT_FOUND and request.api_version < _NOT_FOUND_ERROR_MINIMUM:
        error = GroupError.ILLEGAL_GENERATION
    return await _respond(body, refused, error)


async def _accept(
    body: Body, topics: dict[str, Topic | StorageError], now_ms: int, *, metadata_chars_max: int
) -> tuple[dict[PartitionId, Committed], dict[tuple[str, int], GroupError]]:
    retention_ms = milliseconds(body.retention_time) if isinstance(body, OffsetCommitRequestUntilV4) else -1
    expires_at_ms = now_ms + retention_ms if retention_ms >= 0 else None
    offsets: dict[PartitionId, Committed] = {}
    refused: dict[tuple[str, int], GroupError] = {}
    turns = Turns()
    for asked in body.topics:
        topic = topics.get(asked.name)
        for partition in asked.partitions:
            await turns.spent()
            number = partition.partition_index
            metadata = partition.committed_metadata or ""
            if isinstance(topic, StorageError):
                refused[asked.name, number] = GroupError.COORDINATOR_NOT_AVAILABLE
            elif topic is None or not topic.has_partition(number):
                refused[asked.name, number] = GroupError.UNKNOWN_TOPIC_OR_PARTITION
            elif _java_length(metadata) > metadata_chars_max:
                refused[asked.name, number] = GroupError.OFFSET_METADATA_TOO_LARGE
            else:
                leader_epoch = kept_epoch(getattr(partition, "committed_leader_epoch", -1))
                offsets[topic.partition(number)] = Committed(partition.committed_offset, leader_epoch, metadata, now_ms, expires_at_ms)
    return offsets, refused


def _java_length(text: str) -> int:
    """As Kafka counts offset.metadata.max.bytes: not in bytes, but in units of UTF-16."""
    return len(text) + sum(character > _TWO_UNITS for character in text)


async def _respond(body: Body, refused: dict[tuple[str, int], GroupError], error: GroupError) -> OffsetCommitResponse:
    turns = Turns()
    topics = []
    for topic in body.topics:
        partitions = []
        for partition in topic.partitions:
            code = ErrorCode(error or refused.get((topic.name, partition.partition_index), GroupError.NONE))
            partitions.append(OffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=code))
            await turns.spent()
        topics.append(OffsetCommitResponseTopic(name=topic.name, partitions=tuple(partitions)))
        await turns.spent()
    return OffsetCommitResponse(throttle_time=as_field(0), topics=tuple(topics))


def kept_epoch(leader_epoch: int) -> int:
    return leader_epoch if leader_epoch <= LEADER_EPOCH else _NO_EPOCH
