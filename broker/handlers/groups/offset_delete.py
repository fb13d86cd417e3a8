"""OffsetDelete (API key 47), v0. Forgets offsets, but not those of topics that a member of the group is subscribed to.

While it is not known what consumers are subscribed to (before their first generation, or if they say it in another way), it counts as
everything; a group with members of another protocol type is NON_EMPTY_GROUP. If no partition of a request exists, the group is not asked.
"""

from kio.schema.errors import ErrorCode
from kio.schema.offset_delete.v0 import OffsetDeleteRequest, OffsetDeleteResponse
from kio.schema.offset_delete.v0.request import OffsetDeleteRequestPartition, OffsetDeleteRequestTopic
from kio.schema.offset_delete.v0.response import OffsetDeleteResponsePartition, OffsetDeleteResponseTopic

from broker.groups.group import Closed, DeleteOffsets
from broker.groups.offset_expiration import CONSUMER, subscribed_topics
from broker.groups.state import GroupError, GroupState
from broker.handling.administration import LISTED_MAX
from broker.handling.context import Context
from broker.protocol.codec import as_field
from broker.protocol.wire import Request
from runtime.turns import Turns
from storage.catalog.topics import Topic
from storage.errors import StorageError
from storage.vocabulary import PartitionId


async def handle(context: Context, request: Request[OffsetDeleteRequest]) -> OffsetDeleteResponse:
    body = request.body
    groups = context.parts.groups
    turns = Turns()
    try:
        topics = await context.parts.topics.lookup_now([topic.name for topic in body.topics])
        existing: dict[PartitionId, str] = {}
        for asked in body.topics:
            topic = topics.get(asked.name)
            for partition in asked.partitions:
                if topic is not None and topic.has_partition(partition.partition_index):
                    existing[topic.partition(partition.partition_index)] = asked.name
                await turns.spent()
        error, subscribed = GroupError.NONE, frozenset[str]()
        if existing:
            if not body.group_id:
                return _refuse(GroupError.INVALID_GROUP_ID)
            loaded = await groups.find(body.group_id)
            if not loaded.exists:
                return _refuse(GroupError.GROUP_ID_NOT_FOUND)
            if loaded.group.state is not GroupState.EMPTY:
                if loaded.group.protocol_type != CONSUMER:
                    return _refuse(GroupError.NON_EMPTY_GROUP)
                known = subscribed_topics(loaded.group)
                subscribed = frozenset(topics) if known is None else known
            unwanted = tuple(partition for partition, name in existing.items() if name not in subscribed)
            if unwanted:
                error = await groups.delete_offsets(body.group_id, DeleteOffsets(unwanted))
                _note(context, request, error, sorted({existing[partition] for partition in unwanted}), len(unwanted))
    except Closed as closed:
        return _refuse(closed.error)
    except (StorageError, TimeoutError):
        return _refuse(GroupError.COORDINATOR_NOT_AVAILABLE)
    return OffsetDeleteResponse(
        throttle_time=as_field(0),
        error_code=ErrorCode(error),
        topics=tuple([await _answer(asked, topics.get(asked.name), subscribed, turns) for asked in body.topics]),
    )


def _note(context: Context, request: Request[OffsetDeleteRequest], error: GroupError, topics: list[str], partitions: int) -> None:
    administration, by = context.parts.administration, context.by(request.client_id)
    group, named = request.body.group_id, topics[:LISTED_MAX]
    if error is GroupError.NONE:
        administration.changed("offsets_deleted", by, group=group, topics=named, partitions=partitions)
    else:
        administration.failed("offsets_deleted", by, error=ErrorCode(error), group=group, topics=named, partitions=partitions)


async def _answer(
    asked: OffsetDeleteRequestTopic, topic: Topic | None, subscribed: frozenset[str], turns: Turns
) -> OffsetDeleteResponseTopic:
    def respond(partition: OffsetDeleteRequestPartition) -> OffsetDeleteResponsePartition:
        number = partition.partition_index
        return OffsetDeleteResponsePartition(partition_index=number, error_code=ErrorCode(_error_of(topic, asked.name, number, subscribed)))

    return OffsetDeleteResponseTopic(name=asked.name, partitions=tuple(await turns.each(respond, asked.partitions)))


def _error_of(topic: Topic | None, name: str, partition: int, subscribed: frozenset[str]) -> GroupError:
    if topic is None or not topic.has_partition(partition):
        return GroupError.UNKNOWN_TOPIC_OR_PARTITION
    return GroupError.GROUP_SUBSCRIBED_TO_TOPIC if name in subscribed else GroupError.NONE


def _refuse(error: GroupError) -> OffsetDeleteResponse:
    return OffsetDeleteResponse(throttle_time=as_field(0), error_code=ErrorCode(error), topics=())
