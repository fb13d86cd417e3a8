"""OffsetForLeaderEpoch (API key 23), v2-v4.

Every batch has leader epoch 0 (I12), so epoch 0 ends at the high watermark. Epoch -1 has no end: epoch -1, offset -1.

Differs from Apache Kafka: an epoch above 0 is UNKNOWN_LEADER_EPOCH, where Kafka answers epoch -1 and offset -1. Such an epoch comes
with offsets that were committed in another cluster; Kafka's answer makes consumers reset them, ours makes them ask again.
"""

from typing import Final

from kio.schema.errors import ErrorCode
from kio.schema.offset_for_leader_epoch.v4 import OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse
from kio.schema.offset_for_leader_epoch.v4.request import OffsetForLeaderPartition
from kio.schema.offset_for_leader_epoch.v4.response import EpochEndOffset, OffsetForLeaderTopicResult

from broker.handlers.context import Context
from broker.handlers.kio_types import as_i32, as_i64
from broker.handlers.partition_bounds import LEADER_EPOCH, Located, TopicPartition, check_leader_epoch, read_bounds
from broker.protocol.codec import as_field
from broker.protocol.request import Request

_NONE: Final = -1


async def handle(context: Context, request: Request[OffsetForLeaderEpochRequest]) -> OffsetForLeaderEpochResponse:
    wanted = dict.fromkeys(
        TopicPartition(topic.topic, partition.partition)
        for topic in request.body.topics
        for partition in topic.partitions
        if _refusal(partition) is ErrorCode.none
    )
    located = await read_bounds(context.parts, list(wanted))
    return OffsetForLeaderEpochResponse(
        throttle_time=as_field(0),
        topics=tuple(
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=tuple(
                    _respond(partition, located.get(TopicPartition(topic.topic, partition.partition), ErrorCode.none))
                    for partition in topic.partitions
                ),
            )
            for topic in request.body.topics
        ),
    )


def _refusal(asked: OffsetForLeaderPartition) -> ErrorCode:
    refusal = check_leader_epoch(asked.current_leader_epoch)
    if refusal is ErrorCode.none and asked.leader_epoch > LEADER_EPOCH:
        return ErrorCode.unknown_leader_epoch
    return refusal


def _respond(asked: OffsetForLeaderPartition, found: Located | ErrorCode) -> EpochEndOffset:
    error = _refusal(asked)
    if error is ErrorCode.none and isinstance(found, ErrorCode):
        error = found
    epoch = end_offset = _NONE
    if error is ErrorCode.none and isinstance(found, Located) and asked.leader_epoch == LEADER_EPOCH:
        epoch, end_offset = LEADER_EPOCH, found.bounds.high_watermark
    return EpochEndOffset(
        error_code=error,
        partition=asked.partition,
        leader_epoch=as_i32(epoch),
        end_offset=as_i64(end_offset),
    )
