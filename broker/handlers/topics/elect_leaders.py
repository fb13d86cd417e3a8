"""ElectLeaders (API key 43), v0-v2.

Leaders are advice that Metadata gives (broker/cluster/leadership.py); there is no election to hold. Each partition that is named is
ELECTION_NOT_NEEDED, or UNKNOWN_TOPIC_OR_PARTITION; null asks for all of them, of which none needs one, so the answer is empty, as Kafka's.
An election type (v1+) other than preferred (0) and unclean (1) is INVALID_REQUEST.
"""

from functools import partial
from typing import Final

from kio.schema.elect_leaders.v2 import ElectLeadersRequest, ElectLeadersResponse
from kio.schema.elect_leaders.v2.request import TopicPartitions
from kio.schema.elect_leaders.v2.response import PartitionResult, ReplicaElectionResult
from kio.schema.errors import ErrorCode

from broker.handling.context import Context
from broker.handling.kio_types import as_i32
from broker.handling.topics import TopicPartition, describe_absence, find_existing
from broker.protocol.codec import as_field
from broker.protocol.wire import Request
from runtime.turns import Turns
from storage.catalog.topics import Topic

_ELECTION_TYPES: Final = (0, 1)


async def handle(context: Context, request: Request[ElectLeadersRequest]) -> ElectLeadersResponse:
    body = request.body
    if body.election_type not in _ELECTION_TYPES:
        return ElectLeadersResponse(throttle_time=as_field(0), error_code=ErrorCode.invalid_request, replica_election_results=())
    named = body.topic_partitions or ()
    turns = Turns()
    asked: list[TopicPartition] = []
    for one in named:
        asked += await turns.each(partial(TopicPartition, one.topic), one.partitions)
    topics = await find_existing(context.parts, asked)
    return ElectLeadersResponse(
        throttle_time=as_field(0),
        error_code=ErrorCode.none,
        replica_election_results=tuple([await _answer(one, topics, turns) for one in named]),
    )


async def _answer(one: TopicPartitions, topics: dict[TopicPartition, Topic | ErrorCode], turns: Turns) -> ReplicaElectionResult:
    def result(partition: int) -> PartitionResult:
        return _result(partition, topics[TopicPartition(one.topic, partition)])

    return ReplicaElectionResult(topic=one.topic, partition_result=tuple(await turns.each(result, one.partitions)))


def _result(partition: int, found: Topic | ErrorCode) -> PartitionResult:
    if isinstance(found, ErrorCode):
        return PartitionResult(partition_id=as_i32(partition), error_code=found, error_message=describe_absence(found))
    message = "any broker serves the partition: there is no leader to elect"
    return PartitionResult(partition_id=as_i32(partition), error_code=ErrorCode.election_not_needed, error_message=message)
