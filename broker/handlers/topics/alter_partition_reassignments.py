"""AlterPartitionReassignments (API key 45), v0-v1.

Any broker serves any partition and none holds its records, so there is nothing to move: a valid assignment is accepted, is at once as
complete as it will ever be, and changes nothing. It is checked as Kafka checks it: brokers that are not there, none at all, or one twice
are INVALID_REPLICA_ASSIGNMENT; another number of them than the topic's replication factor, where the request forbids that (v1), is
INVALID_REPLICATION_FACTOR; cancelling (null) is NO_REASSIGNMENT_IN_PROGRESS.
"""

from collections.abc import Sequence

from kio.schema.alter_partition_reassignments.v1 import AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse
from kio.schema.alter_partition_reassignments.v1.response import ReassignablePartitionResponse, ReassignableTopicResponse
from kio.schema.errors import ErrorCode

from broker.handling.context import Context
from broker.handling.errors import Refusal, error_code_of
from broker.handling.kio_types import as_i32
from broker.handling.topics import TopicPartition, describe_absence, find_existing
from broker.protocol.codec import as_field
from broker.protocol.wire import Request
from runtime.turns import Turns
from storage.catalog.topics import Topic
from storage.errors import StorageError


async def handle(context: Context, request: Request[AlterPartitionReassignmentsRequest]) -> AlterPartitionReassignmentsResponse:
    body = request.body
    try:
        live = {record.broker_id for record in await context.parts.brokers.live()}
    except StorageError as error:
        return _answer(body, error_code_of(error), str(error), ())
    turns = Turns()
    asked: list[TopicPartition] = []
    for topic in body.topics:
        for partition in topic.partitions:
            asked.append(TopicPartition(topic.name, partition.partition_index))
            await turns.spent()
    topics = await find_existing(context.parts, asked)
    responses = []
    for topic in body.topics:
        partitions = []
        for partition in topic.partitions:
            await turns.spent()
            found = topics[TopicPartition(topic.name, partition.partition_index)]
            refusal = (
                Refusal(found, describe_absence(found))
                if isinstance(found, ErrorCode)
                else check(partition.replicas, found, live, fixed_count=not body.allow_replication_factor_change)
            )
            partitions.append(
                ReassignablePartitionResponse(
                    partition_index=as_i32(partition.partition_index),
                    error_code=refusal.error if refusal else ErrorCode.none,
                    error_message=refusal.message if refusal else None,
                )
            )
        await turns.spent()
        responses.append(ReassignableTopicResponse(name=topic.name, partitions=tuple(partitions)))
    return _answer(body, ErrorCode.none, None, responses)


def check(replicas: Sequence[int] | None, topic: Topic, live: set[int], *, fixed_count: bool) -> Refusal | None:
    """What is wrong with an assignment; None for one that may be accepted."""
    if replicas is None:
        return Refusal(ErrorCode.no_reassignment_in_progress, "no partition is ever being reassigned")
    if not replicas or len(set(replicas)) != len(replicas):
        return Refusal(ErrorCode.invalid_replica_assignment, "an assignment names at least one broker, and none of them twice")
    missing = sorted(set(replicas) - live)
    if missing:
        return Refusal(ErrorCode.invalid_replica_assignment, f"no such brokers: {', '.join(map(str, missing))}")
    if fixed_count and len(replicas) != topic.replication_factor:
        message = f"the replication factor is {topic.replication_factor}, the assignment names {len(replicas)} brokers"
        return Refusal(ErrorCode.invalid_replication_factor, message)
    return None


def _answer(
    body: AlterPartitionReassignmentsRequest, error: ErrorCode, message: str | None, responses: Sequence[ReassignableTopicResponse]
) -> AlterPartitionReassignmentsResponse:
    return AlterPartitionReassignmentsResponse(
        throttle_time=as_field(0),
        allow_replication_factor_change=body.allow_replication_factor_change,
        error_code=error,
        error_message=message,
        responses=tuple(responses),
    )
