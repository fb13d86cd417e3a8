"""OffsetCommit (API key 8), v2-v9.

All offsets of a request that name an existing partition are durable when it is answered. Without a member and a generation (-1) it is
a simple commit, taken while nobody is in the group. Retention times of v2-v4 are ignored, as in Kafka 5 and later brokers.
Offsets belong to the incarnation of a topic: one that is created again has none.
"""

from typing import Final

from kio.schema.errors import ErrorCode
from kio.schema.offset_commit.v4 import OffsetCommitRequest as OffsetCommitRequestUntilV4
from kio.schema.offset_commit.v9 import OffsetCommitRequest, OffsetCommitResponse
from kio.schema.offset_commit.v9.response import OffsetCommitResponsePartition, OffsetCommitResponseTopic

from broker.groups.errors import GroupError
from broker.groups.loaded import Closed, Commit
from broker.groups.offsets import Committed
from broker.handlers.context import Context
from broker.protocol.codec import as_field
from broker.protocol.request import Request
from storage.catalog.topics import Topic
from storage.errors import StorageError
from storage.vocabulary import PartitionId

OFFSET_METADATA_BYTES_MAX: Final = 4_096
"""Kafka's default of offset.metadata.max.bytes."""

Body = OffsetCommitRequestUntilV4 | OffsetCommitRequest


async def handle(context: Context, request: Request[Body]) -> OffsetCommitResponse:
    body = request.body
    try:
        topics = await context.parts.topics.lookup(topic.name for topic in body.topics)
    except StorageError:
        return _respond(body, {}, GroupError.COORDINATOR_NOT_AVAILABLE)
    offsets, refused = _accept(body, topics, context.parts.clock.now_ms())
    if not offsets and refused:
        return _respond(body, refused, GroupError.NONE)
    commit = Commit(
        member_id=body.member_id,
        instance_id=None if isinstance(body, OffsetCommitRequestUntilV4) else body.group_instance_id,
        generation=body.generation_id_or_member_epoch,
        offsets=offsets,
    )
    try:
        error = await context.parts.groups.commit(body.group_id, commit)
    except Closed as closed:
        error = closed.error
    except TimeoutError:
        error = GroupError.REQUEST_TIMED_OUT
    return _respond(body, refused, error)


def _accept(body: Body, topics: dict[str, Topic], now_ms: int) -> tuple[dict[PartitionId, Committed], dict[tuple[str, int], GroupError]]:
    offsets: dict[PartitionId, Committed] = {}
    refused: dict[tuple[str, int], GroupError] = {}
    for asked in body.topics:
        topic = topics.get(asked.name)
        for partition in asked.partitions:
            number = partition.partition_index
            metadata = partition.committed_metadata or ""
            if topic is None or not topic.has_partition(number):
                refused[asked.name, number] = GroupError.UNKNOWN_TOPIC_OR_PARTITION
            elif len(metadata.encode()) > OFFSET_METADATA_BYTES_MAX:
                refused[asked.name, number] = GroupError.OFFSET_METADATA_TOO_LARGE
            else:
                leader_epoch = getattr(partition, "committed_leader_epoch", -1)
                offsets[topic.partition(number)] = Committed(partition.committed_offset, leader_epoch, metadata, now_ms)
    return offsets, refused


def _respond(body: Body, refused: dict[tuple[str, int], GroupError], error: GroupError) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        throttle_time=as_field(0),
        topics=tuple(
            OffsetCommitResponseTopic(
                name=topic.name,
                partitions=tuple(
                    OffsetCommitResponsePartition(
                        partition_index=partition.partition_index,
                        error_code=ErrorCode(error or refused.get((topic.name, partition.partition_index), GroupError.NONE)),
                    )
                    for partition in topic.partitions
                ),
            )
            for topic in body.topics
        ),
    )
