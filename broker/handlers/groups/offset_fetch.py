"""OffsetFetch (API key 9), v1-v9.

What nobody has committed is offset -1, without an error: an unknown group, topic or partition (an error there breaks librdkafka consumers).
Without topics (v2) all of the group are answered. There are no transactions yet, so every offset is stable.
Answers are no older than the question: a coordinator that was replaced finds that out before it answers, and which incarnation of a topic
has the name is read for it.

Differs from Apache Kafka: a group of which the same is asked more than once (v8+) is answered once.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from kio.schema.errors import ErrorCode
from kio.schema.offset_fetch import v7, v9
from kio.schema.offset_fetch.v7.response import OffsetFetchResponsePartition, OffsetFetchResponseTopic
from kio.schema.offset_fetch.v9.response import OffsetFetchResponseGroup, OffsetFetchResponsePartitions, OffsetFetchResponseTopics
from kio.schema.types import GroupId

from broker.cluster.leadership import slot_of
from broker.groups.group import Closed
from broker.groups.state import NOTHING, Committed, GroupError
from broker.groups.store import StoredGroup
from broker.handling.context import Context
from broker.handling.kio_types import as_i32, as_i64, as_topic_name
from broker.protocol.codec import as_field
from broker.protocol.wire import Request
from runtime.turns import Turns
from storage.errors import StorageError
from storage.metadata.keys import group_partition_key
from storage.vocabulary import TopicId

OffsetFetchRequest = v7.OffsetFetchRequest | v9.OffsetFetchRequest
OffsetFetchResponse = v7.OffsetFetchResponse | v9.OffsetFetchResponse
AskedPartitions = Iterable[tuple[str, tuple[int, ...]]]
Read = tuple[GroupError, Mapping[str, Mapping[int, Committed]]]

_TOP_LEVEL_ERROR_MINIMUM: Final = 2


async def handle(context: Context, request: Request[OffsetFetchRequest]) -> OffsetFetchResponse:
    body = request.body
    if isinstance(body, v9.OffsetFetchRequest):
        return v9.OffsetFetchResponse(throttle_time=as_field(0), groups=await _groups(context, _without_repeats(body.groups)))
    asked = None if body.topics is None else [(topic.name, topic.partition_indexes) for topic in body.topics]
    error, found = await _read(context, body.group_id, asked)
    turns = Turns()
    partition_error = GroupError.NONE
    if error and request.api_version < _TOP_LEVEL_ERROR_MINIMUM:
        partition_error = error
        found = {name: dict.fromkeys(partitions, NOTHING) for name, partitions in asked or ()}
    return v7.OffsetFetchResponse(
        throttle_time=as_field(0),
        error_code=ErrorCode(error),
        topics=tuple([await _answer_of_one(name, partitions, partition_error, turns) for name, partitions in found.items()]),
    )


async def _answer_of_one(name: str, partitions: Mapping[int, Committed], error: GroupError, turns: Turns) -> OffsetFetchResponseTopic:
    """Until v7."""

    def respond(one: tuple[int, Committed]) -> OffsetFetchResponsePartition:
        partition, committed = one
        return OffsetFetchResponsePartition(
            partition_index=as_i32(partition),
            committed_offset=as_i64(committed.offset),
            committed_leader_epoch=as_i32(committed.leader_epoch),
            metadata=committed.metadata,
            error_code=ErrorCode(error),
        )

    return OffsetFetchResponseTopic(name=as_topic_name(name), partitions=tuple(await turns.each(respond, partitions.items())))


def _without_repeats(groups: Sequence[v9.request.OffsetFetchRequestGroup]) -> Sequence[v9.request.OffsetFetchRequestGroup]:
    """The groups asked for, each once: all offsets of a group may be a large answer."""
    return list({(group.group_id, group.topics): group for group in groups}.values())


async def _groups(context: Context, groups: Sequence[v9.request.OffsetFetchRequestGroup]) -> tuple[OffsetFetchResponseGroup, ...]:
    async def read(place: int) -> Read:
        topics = groups[place].topics
        return await _read(
            context, groups[place].group_id, None if topics is None else [(topic.name, topic.partition_indexes) for topic in topics]
        )

    late: Read = GroupError.COORDINATOR_LOAD_IN_PROGRESS, {}
    found = await context.parts.groups.each([group.group_id for group in groups], read, late=late)
    turns = Turns()
    return tuple([await _answer(group.group_id, *one, turns) for group, one in zip(groups, found, strict=True)])


async def _answer(
    group_id: GroupId, error: GroupError, found: Mapping[str, Mapping[int, Committed]], turns: Turns
) -> OffsetFetchResponseGroup:
    return OffsetFetchResponseGroup(
        group_id=group_id,
        error_code=ErrorCode(error),
        topics=tuple([await _answer_of_several(name, partitions, turns) for name, partitions in found.items()]),
    )


async def _answer_of_several(name: str, partitions: Mapping[int, Committed], turns: Turns) -> OffsetFetchResponseTopics:
    """From v8 on."""

    def respond(one: tuple[int, Committed]) -> OffsetFetchResponsePartitions:
        partition, committed = one
        return OffsetFetchResponsePartitions(
            partition_index=as_i32(partition),
            committed_offset=as_i64(committed.offset),
            committed_leader_epoch=as_i32(committed.leader_epoch),
            metadata=committed.metadata,
            error_code=ErrorCode.none,
        )

    return OffsetFetchResponseTopics(name=as_topic_name(name), partitions=tuple(await turns.each(respond, partitions.items())))


async def _read(context: Context, group_id: str, asked: AskedPartitions | None) -> Read:
    try:
        loaded = await context.parts.groups.checked(group_id)
        if asked is None:
            return GroupError.NONE, await _all(context, group_id, loaded.stored)
        wanted = list(asked)
        topics = await context.parts.confirmed_topics.by_name(dict.fromkeys((name for name, _ in wanted), 0), beside=_beside(group_id))
    except Closed as closed:
        return closed.error, {}
    except (StorageError, TimeoutError):
        return GroupError.COORDINATOR_LOAD_IN_PROGRESS, {}
    found: dict[str, dict[int, Committed]] = {}
    turns = Turns()
    for name, partitions in wanted:
        topic = topics.get(name)
        if isinstance(topic, StorageError):
            return GroupError.COORDINATOR_LOAD_IN_PROGRESS, {}
        offsets = found[name] = {}
        for partition in partitions:
            offsets[partition] = NOTHING if topic is None else loaded.stored.offset(topic.partition(partition)) or NOTHING
            await turns.spent()
        await turns.spent()
    return GroupError.NONE, found


async def _all(context: Context, group_id: str, stored: StoredGroup) -> Mapping[str, Mapping[int, Committed]]:
    """By the names of the topics that still exist."""
    by_topic: dict[TopicId, dict[int, Committed]] = {}
    turns = Turns()
    for partition in list(stored.partitions):
        await turns.spent()
        if (committed := stored.offset(partition)) is not None:
            by_topic.setdefault(partition.topic_id, {})[partition.partition] = committed
    topics = await context.parts.confirmed_topics.by_id(by_topic, beside=_beside(group_id))
    found: dict[str, dict[int, Committed]] = {}
    for topic_id, partitions in by_topic.items():
        await turns.spent()
        if topic_id in topics:
            found[topics[topic_id].name] = partitions
    return found


def _beside(group_id: str) -> str:
    return group_partition_key(slot_of(group_id))
