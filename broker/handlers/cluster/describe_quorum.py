"""DescribeQuorum (API key 55), v0-v2.

There is no quorum of controllers: the metadata store decides, and every live broker does what a controller does. So that tools have what
they look for, the one partition of `__cluster_metadata` is described with the live brokers as its voters, the one that answers as its
leader, and nothing in its log. Another topic or partition is UNKNOWN_TOPIC_OR_PARTITION, as in Kafka.
"""

from typing import Final

from kio.schema.describe_quorum.v2 import DescribeQuorumRequest, DescribeQuorumResponse
from kio.schema.describe_quorum.v2.response import Listener, Node, PartitionData, ReplicaState, TopicData
from kio.schema.errors import ErrorCode
from kio.static.primitive import u16

from broker.handling.context import Context, controller_of, live_nodes
from broker.handling.errors import error_code_of
from broker.handling.kio_types import as_broker_id, as_i32, as_i64
from broker.handling.topics import LEADER_EPOCH
from broker.protocol.wire import Request
from runtime.turns import Turns
from storage.errors import StorageError

METADATA_TOPIC: Final = "__cluster_metadata"
METADATA_PARTITION: Final = 0


async def handle(context: Context, request: Request[DescribeQuorumRequest]) -> DescribeQuorumResponse:
    try:
        live = await live_nodes(context)
    except StorageError as error:
        return DescribeQuorumResponse(error_code=error_code_of(error), error_message=str(error), topics=(), nodes=())
    now_ms = context.parts.clock.now_ms()
    leader = controller_of(live, own_id=context.parts.broker_id)
    voters = tuple(
        ReplicaState(
            replica_id=as_broker_id(node.broker_id),
            replica_directory_id=None,
            log_end_offset=as_i64(0),
            last_fetch_timestamp=as_i64(now_ms),
            last_caught_up_timestamp=as_i64(now_ms),
        )
        for node in live
    )
    topics = []
    is_described = False
    turns = Turns()
    for topic in request.body.topics:
        await turns.spent()
        partitions = []
        for partition in topic.partitions:
            await turns.spent()
            is_known = topic.topic_name == METADATA_TOPIC and partition.partition_index == METADATA_PARTITION
            is_described |= is_known
            partitions.append(
                PartitionData(
                    partition_index=partition.partition_index,
                    error_code=ErrorCode.none if is_known else ErrorCode.unknown_topic_or_partition,
                    error_message=None if is_known else "there is no such topic or partition",
                    leader_id=as_broker_id(leader if is_known else 0),
                    leader_epoch=as_i32(LEADER_EPOCH),
                    high_watermark=as_i64(0),
                    current_voters=voters if is_known else (),
                    observers=(),
                )
            )
        topics.append(TopicData(topic_name=topic.topic_name, partitions=tuple(partitions)))
    return DescribeQuorumResponse(
        error_code=ErrorCode.none,
        error_message=None,
        topics=tuple(topics),
        nodes=tuple(
            Node(
                node_id=as_broker_id(node.broker_id),
                listeners=(Listener(name=context.listener, host=node.host, port=u16(node.port)),),
            )
            for node in live
        )
        if is_described
        else (),
    )
