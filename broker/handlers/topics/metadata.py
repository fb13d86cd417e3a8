"""Metadata (API key 3), v0-v13.

Lists all live brokers at the listener that was asked by, with racks; the one that answers is the controller, or else one of the role
`admin`. The strategy `kafka.leader` (broker/cluster/leadership.py) names leaders among the brokers of the role `produce`. The leader epoch
is always 0: any broker serves any partition. Replicas and in-sync replicas are the leader and other live brokers, from the largest number
of racks, up to the topic's replication factor and the brokers there are. Topics: null is all of them, an empty list none (v0: all); by
name, or by id (v12+: UNKNOWN_TOPIC_ID). A name that is not there is created if the request allows it (before v4 it always does) and
`kafka.auto_create_topics` is set, and answered at once, as it exists.

Differs from Apache Kafka: names beside ids in one request are answered, too.
Raises `StorageError` if the brokers, or all topics, cannot be read: no version has a place to say so that clients heed.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, chain
from typing import Final

from kio.schema.errors import ErrorCode
from kio.schema.metadata import v10, v13
from kio.schema.metadata.v13.response import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kio.static.primitive import i32

from broker.cluster.leadership import Asker, Placement
from broker.cluster.roles import placement_by_role
from broker.handling.administration import Requester
from broker.handling.context import BrokerParts, Context, Node, controller_of, live_and_listed
from broker.handling.errors import error_code_of
from broker.handling.kio_types import (
    CLUSTER_OPERATIONS,
    OPERATIONS_NOT_ASKED_FOR,
    TOPIC_OPERATIONS,
    as_broker_id,
    as_i32,
    as_topic_id,
    as_topic_name,
    as_uuid,
)
from broker.handling.topics import LEADER_EPOCH, create_missing
from broker.protocol.codec import as_field
from broker.protocol.wire import Request
from runtime.turns import ITEMS_DEFAULT, Turns
from storage.catalog.topic import INTERNAL, validate_name
from storage.catalog.topics import Topic
from storage.errors import StorageError
from storage.vocabulary import TopicId

MetadataRequest = v10.MetadataRequest | v13.MetadataRequest
_Wanted = Sequence[v10.request.MetadataRequestTopic | v13.request.MetadataRequestTopic]

_IDS_MINIMUM: Final = 12
"""The first version that may ask by topic id."""
PLACED_AT_ONCE: Final = 200
"""Partitions between two turns of other tasks: a third of a millisecond, or 2 ms if there are many brokers to choose from."""
TOPIC_AS_PARTITIONS: Final = 3
"""What a topic costs beside its partitions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _WithClusterOperations(MetadataResponse):
    """The response of v8 to v10: librdkafka describes a cluster by Metadata, and asks what may be done with it."""

    cluster_authorized_operations: i32 = field(metadata={"kafka_type": "int32"})


async def handle(context: Context, request: Request[MetadataRequest]) -> MetadataResponse:
    body = request.body
    nodes, listed = await live_and_listed(context)
    operations = TOPIC_OPERATIONS if body.include_topic_authorized_operations else OPERATIONS_NOT_ASKED_FOR
    asker, own_id = Asker(request.client_id, context.client_host), context.parts.broker_id
    answer = _Answer(placement_by_role(context.parts.leadership, asker, nodes, own_id=own_id), operations)
    if body.topics is None or (request.api_version == 0 and not body.topics):
        everything = await context.parts.topics.all()
        if _is_large(everything):
            await context.large_answer.take()
        topics = tuple([await answer.found(topic) for topic in everything])
    elif request.api_version < _IDS_MINIMUM and any(wanted.name is None or wanted.topic_id is not None for wanted in body.topics):
        names = [wanted.name or "" for wanted in body.topics]
        topics = tuple(await Turns().each(lambda name: answer.refused(name, None, ErrorCode.invalid_request), names))
    else:
        creator = context.by(request.client_id) if body.allow_auto_topic_creation else None
        topics = tuple(await _named(context, answer, body.topics, creator))
    found = MetadataResponse(
        throttle_time=as_field(0),
        brokers=tuple(_broker(node) for node in listed),
        cluster_id=context.parts.cluster_id,
        controller_id=as_broker_id(controller_of(nodes, own_id=context.parts.broker_id)),
        topics=topics,
        error_code=ErrorCode.none,
    )
    if not (isinstance(body, v10.MetadataRequest) and body.include_cluster_authorized_operations):
        return found
    return _WithClusterOperations(
        throttle_time=found.throttle_time,
        brokers=found.brokers,
        cluster_id=found.cluster_id,
        controller_id=found.controller_id,
        topics=found.topics,
        error_code=found.error_code,
        cluster_authorized_operations=as_i32(CLUSTER_OPERATIONS),
    )


async def _named(context: Context, answer: "_Answer", wanted: _Wanted, creator: Requester | None) -> Iterable[MetadataResponseTopic]:
    """One answer per id and per name, in the order of the request; repeats are answered once. `creator` None: missing topics stay so."""
    ids: dict[TopicId, None] = {}
    names: dict[str, None] = {}
    for number, topic in enumerate(wanted, 1):
        if number % ITEMS_DEFAULT == 0:
            await asyncio.sleep(0)
        if topic.topic_id is not None:
            ids[as_topic_id(topic.topic_id)] = None
        elif topic.name is not None:
            names[topic.name] = None
    by_id = await _find_ids(context.parts, list(ids))
    by_name = await _find_names(context.parts, list(names), creator)
    if _is_large(found for found in chain(by_id.values(), by_name.values()) if isinstance(found, Topic)):
        await context.large_answer.take()
    answers: dict[tuple[TopicId | None, str | None], MetadataResponseTopic] = {}
    for number, topic in enumerate(wanted, 1):
        if number % ITEMS_DEFAULT == 0:
            await asyncio.sleep(0)
        if topic.topic_id is not None:
            topic_id = as_topic_id(topic.topic_id)
            found = by_id[topic_id]
            key = topic_id, None
            if key in answers:
                continue
            answers[key] = answer.refused(None, topic_id, found) if isinstance(found, ErrorCode) else await answer.found(found)
        elif topic.name is not None:
            if (None, topic.name) in answers:
                continue
            found = by_name[topic.name]
            answers[None, topic.name] = (
                answer.refused(topic.name, None, found) if isinstance(found, ErrorCode) else await answer.found(found)
            )
        else:
            answers[None, None] = answer.refused("", None, ErrorCode.invalid_request)
    return answers.values()


def _is_large(topics: Iterable[Topic]) -> bool:
    """Whether placing them takes more than a turn."""
    sizes = accumulate(topic.partition_count + TOPIC_AS_PARTITIONS for topic in topics)
    return any(size > PLACED_AT_ONCE for size in sizes)


async def _find_ids(parts: BrokerParts, topic_ids: list[TopicId]) -> dict[TopicId, Topic | ErrorCode]:
    try:
        found, unread = await parts.topics.look_up_ids(topic_ids)
    except StorageError as error:
        return dict.fromkeys(topic_ids, error_code_of(error))
    missing = ErrorCode.unknown_topic_id if unread is None else error_code_of(unread)
    return await Turns().by_key(lambda topic_id: found.get(topic_id, missing), topic_ids)


async def _find_names(parts: BrokerParts, names: list[str], creator: Requester | None) -> dict[str, Topic | ErrorCode]:
    try:
        found, unread = await parts.topics.look_up(names)
    except StorageError as error:
        return dict.fromkeys(names, error_code_of(error))
    unknown = ErrorCode.unknown_topic_or_partition if unread is None else error_code_of(unread)
    answers: dict[str, Topic | ErrorCode] = {}
    missing = []
    for number, name in enumerate(names, 1):
        if number % ITEMS_DEFAULT == 0:
            await asyncio.sleep(0)
        answers[name] = found.get(name, unknown)
        if name not in found:
            if validate_name(name) is None:
                missing.append(name)
            else:
                answers[name] = ErrorCode.invalid_topic_exception
    if unread is None and creator is not None and parts.topic_defaults.auto_create:
        answers |= await create_missing(parts, missing, creator)
    return answers


class _Answer:
    """What all topics of one response have in common. Between pieces of a large one, others have their turn on the event loop."""

    def __init__(self, placement: Placement, operations: int) -> None:
        self._place = placement
        self._operations = operations
        self._turns = Turns(PLACED_AT_ONCE)
        self._made: dict[tuple[int, tuple[int, ...]], MetadataResponsePartition] = {}

    async def found(self, topic: Topic) -> MetadataResponseTopic:
        partitions = await self._turns.each(partial(self._partition, topic), range(topic.partition_count))
        await self._turns.spent(TOPIC_AS_PARTITIONS - 1)
        return MetadataResponseTopic(
            error_code=ErrorCode.none,
            name=as_topic_name(topic.name),
            topic_id=as_uuid(topic.topic_id),
            is_internal=topic.name in INTERNAL,
            partitions=tuple(partitions),
            topic_authorized_operations=as_i32(self._operations),
        )

    def _partition(self, topic: Topic, partition: int) -> MetadataResponsePartition:
        """Partitions of the same number and replicas look alike in every topic, and cost more to make than to find."""
        placed = tuple(self._place(topic.topic_id, partition)[: topic.replication_factor])
        made = self._made.get((partition, placed))
        if made is None:
            replicas = tuple(map(as_broker_id, placed))
            made = self._made[partition, placed] = MetadataResponsePartition(
                error_code=ErrorCode.none,
                partition_index=as_i32(partition),
                leader_id=replicas[0],
                leader_epoch=as_i32(LEADER_EPOCH),
                replica_nodes=replicas,
                isr_nodes=replicas,
            )
        return made

    def refused(self, name: str | None, topic_id: TopicId | None, error: ErrorCode) -> MetadataResponseTopic:
        return MetadataResponseTopic(
            error_code=error,
            name=None if name is None else as_topic_name(name),
            topic_id=None if topic_id is None else as_uuid(topic_id),
            is_internal=name in INTERNAL,
            partitions=(),
        )


def _broker(node: Node) -> MetadataResponseBroker:
    return MetadataResponseBroker(node_id=as_broker_id(node.broker_id), host=node.host, port=as_i32(node.port), rack=node.rack)
