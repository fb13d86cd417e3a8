"""DescribeTopicPartitions (API key 75), v0.

Topics by name in their order, no topics meaning all, with leaders and replicas as Metadata has them. At most response_partition_limit
partitions (1 to 2,000) are described; next_cursor says where the next request goes on, and a cursor whose topic is gone goes on with the
next one. A topic that is not there is UNKNOWN_TOPIC_OR_PARTITION, a name that none can have INVALID_TOPIC_EXCEPTION, a cursor below
partition 0 INVALID_REQUEST for every topic. Nothing is created. Eligible and last known leaders are empty lists: clients take no null.
Raises `StorageError` if the brokers, or all topics, cannot be read: there is no place to say so.
"""

import asyncio
from collections.abc import Collection, Sequence
from operator import attrgetter
from typing import Final

from kio.schema.describe_topic_partitions.v0 import DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse
from kio.schema.describe_topic_partitions.v0.response import (
    Cursor,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from kio.schema.errors import ErrorCode

from broker.cluster.leadership import Asker, Placement
from broker.cluster.roles import placement_by_role
from broker.handling.context import BrokerParts, Context, live_nodes
from broker.handling.errors import error_code_of
from broker.handling.kio_types import OPERATIONS_NOT_ASKED_FOR, TOPIC_OPERATIONS, as_broker_id, as_i32, as_topic_name, as_uuid
from broker.handling.topics import LEADER_EPOCH
from broker.protocol.codec import as_field
from broker.protocol.wire import Request
from runtime.turns import Turns
from storage.catalog.topic import INTERNAL, validate_name
from storage.catalog.topics import Topic
from storage.errors import StorageError

PARTITIONS_MAX: Final = 2_000
"""max.request.partition.size.limit"""
PLACED_AT_ONCE: Final = 200
"""Partitions between two turns of other tasks."""


async def handle(context: Context, request: Request[DescribeTopicPartitionsRequest]) -> DescribeTopicPartitionsResponse:
    body = request.body
    turns = Turns()
    names = sorted(set(await turns.each(attrgetter("name"), body.topics)))
    if body.cursor is not None and body.cursor.partition_index < 0:
        return _answer(await turns.each(lambda name: _refused(name, ErrorCode.invalid_request), names), None)
    nodes = await live_nodes(context)
    asker = Asker(request.client_id, context.client_host)
    place = placement_by_role(context.parts.leadership, asker, nodes, own_id=context.parts.broker_id)
    found = await _find(context.parts, names)
    left = max(1, min(body.response_partition_limit, PARTITIONS_MAX))
    if left > PLACED_AT_ONCE and _is_large(found.values()):
        await context.large_answer.take()
    topics: list[DescribeTopicPartitionsResponseTopic] = []
    for name in sorted(found):
        await turns.spent()
        if body.cursor is not None and name < body.cursor.topic_name:
            continue
        topic = found[name]
        if isinstance(topic, ErrorCode):
            topics.append(_refused(name, topic))
            continue
        first = body.cursor.partition_index if body.cursor is not None and name == body.cursor.topic_name else 0
        if left == 0:
            return _answer(topics, Cursor(topic_name=as_topic_name(name), partition_index=as_i32(first)))
        end = min(topic.partition_count, first + left)
        topics.append(await _described(topic, first, end, place))
        left -= max(end - first, 0)
        if end < topic.partition_count:
            return _answer(topics, Cursor(topic_name=as_topic_name(name), partition_index=as_i32(end)))
    return _answer(topics, None)


async def _find(parts: BrokerParts, names: Sequence[str]) -> dict[str, Topic | ErrorCode]:
    if not names:
        everything = await parts.topics.all()
        return dict(zip(await Turns().each(attrgetter("name"), everything), everything, strict=True))
    try:
        found = await parts.topics.lookup_now(names)
    except StorageError as error:
        return dict.fromkeys(names, error_code_of(error))
    answers: dict[str, Topic | ErrorCode] = {}
    turns = Turns()
    for name in names:
        await turns.spent()
        missing = ErrorCode.unknown_topic_or_partition if validate_name(name) is None else ErrorCode.invalid_topic_exception
        answers[name] = found.get(name, missing)
    return answers


def _is_large(found: Collection[Topic | ErrorCode]) -> bool:
    """Whether placing them takes more than a turn."""
    if len(found) > PLACED_AT_ONCE:
        return True
    return sum(topic.partition_count for topic in found if isinstance(topic, Topic)) > PLACED_AT_ONCE


async def _described(topic: Topic, first: int, end: int, place: Placement) -> DescribeTopicPartitionsResponseTopic:
    partitions: list[DescribeTopicPartitionsResponsePartition] = []
    for begin in range(first, end, PLACED_AT_ONCE):
        partitions += [_partition(topic, number, place) for number in range(begin, min(end, begin + PLACED_AT_ONCE))]
        await asyncio.sleep(0)
    return DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.none,
        name=as_topic_name(topic.name),
        topic_id=as_uuid(topic.topic_id),
        is_internal=topic.name in INTERNAL,
        partitions=tuple(partitions),
        topic_authorized_operations=as_i32(TOPIC_OPERATIONS),
    )


def _partition(topic: Topic, partition: int, place: Placement) -> DescribeTopicPartitionsResponsePartition:
    replicas = tuple(map(as_broker_id, place(topic.topic_id, partition)[: topic.replication_factor]))
    return DescribeTopicPartitionsResponsePartition(
        error_code=ErrorCode.none,
        partition_index=as_i32(partition),
        leader_id=replicas[0],
        leader_epoch=as_i32(LEADER_EPOCH),
        replica_nodes=replicas,
        isr_nodes=replicas,
        eligible_leader_replicas=(),
        last_known_elr=(),
    )


def _refused(name: str, error: ErrorCode) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        error_code=error,
        name=as_topic_name(name),
        topic_id=None,
        is_internal=name in INTERNAL,
        partitions=(),
        topic_authorized_operations=as_i32(OPERATIONS_NOT_ASKED_FOR),
    )


def _answer(topics: list[DescribeTopicPartitionsResponseTopic], next_cursor: Cursor | None) -> DescribeTopicPartitionsResponse:
    return DescribeTopicPartitionsResponse(throttle_time=as_field(0), topics=tuple(topics), next_cursor=next_cursor)
