"""OffsetForLeaderEpoch (API key 23), v2-v4.

Every batch has leader epoch 0 (I12), so epoch 0 ends at the high watermark. No other epoch has an end: epoch -1, offset -1. An epoch above
0 comes with offsets that were committed in another cluster: the answer makes a consumer reset them.
"""

from typing import Final

from kio.schema.errors import ErrorCode
from kio.schema.offset_for_leader_epoch.v4 import OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse
from kio.schema.offset_for_leader_epoch.v4.request import OffsetForLeaderPartition, OffsetForLeaderTopic
from kio.schema.offset_for_leader_epoch.v4.response import EpochEndOffset, OffsetForLeaderTopicResult

from broker.handling.context import Context
from broker.handling.kio_types import as_i32, as_i64
from broker.handling.topics import LEADER_EPOCH, Located, TopicPartition, check_leader_epoch, read_bounds
from broker.protocol.codec import as_field
from broker.protocol.wire import Request
from runtime.turns import Turns

_NONE: Final = -1


async def handle(context: Context, request: Request[OffsetForLeaderEpochRequest]) -> OffsetForLeaderEpochResponse:
    turns = Turns()
    wanted: dict[TopicPartition, None] = {}
    for topic in request.body.topics:
        for partition in topic.partitions:
            wanted[TopicPartition(topic.topic, partition.partition)] = None
            await turns.spent()
    located = await read_bounds(context.parts, list(wanted))
    return OffsetForLeaderEpochResponse(
        throttle_time=as_field(0),
        topics=tuple([await _answer(topic, located, turns) for topic in request.body.topics]),
    )


async def _answer(
    topic: OffsetForLeaderTopic, located: dict[TopicPartition, Located | ErrorCode], turns: Turns
) -> OffsetForLeaderTopicResult:
    def respond(partition: OffsetForLeaderPartition) -> EpochEndOffset:
        return _respond(partition, located[TopicPartition(topic.topic, partition.partition)])

    return OffsetForLeaderTopicResult(topic=topic.topic, partitions=tuple(await turns.each(respond, topic.partitions)))


def _respond(asked: OffsetForLeaderPartition, found: Located | ErrorCode) -> EpochEndOffset:
    error = found if isinstance(found, ErrorCode) else check_leader_epoch(asked.current_leader_epoch)
    epoch = end_offset = _NONE
    if error is ErrorCode.none and isinstance(found, Located) and asked.leader_epoch == LEADER_EPOCH:
        epoch, end_offset = LEADER_EPOCH, found.bounds.high_watermark
    return EpochEndOffset(
        error_code=error,
        partition=asked.partition,
        leader_epoch=as_i32(epoch),
        end_offset=as_i64(end_offset),
    )
