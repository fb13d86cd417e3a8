"""From names to topics and partitions: which incarnation of a topic, where its logs begin and end, and topics made because they are named.

`read_bounds` reads the ends of logs. `find_existing` looks partitions up for administration, by a read issued after the request.
`create_missing` creates topics because a client asked for them (auto.create.topics.enable).
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from broker.handling.administration import Requester
from broker.handling.context import BrokerParts
from broker.handling.errors import error_code_of
from runtime.turns import ITEMS_DEFAULT, Turns
from storage.catalog.topic import INTERNAL, INTERNAL_PARTITIONS, NEVER_A_TOPIC, collision_key
from storage.catalog.topics import PARTITIONS_MAX, Topic, Topics
from storage.errors import AlreadyExists, StorageError
from storage.log.fresh_reads import LogBounds
from storage.vocabulary import PartitionId

TOPICS_MAX: Final = 1_000
"""Per request, and with no more than PARTITIONS_MAX partitions together. For the rest the client asks again, as it does for any topic
that is not there yet."""

LEADER_EPOCH: Final = 0
"""For every partition, always (I12)."""

LookedUp = tuple[dict[str, Topic], StorageError | None]


async def create_missing(parts: BrokerParts, names: Sequence[str], by: Requester) -> dict[str, Topic | ErrorCode]:
    """The topics, created here or by whoever was first; or why not. The names are valid.

    Internal ones get Kafka's number of partitions and configs, and nothing is ever in them: what tools look for there, they find empty.
    """
    answers: dict[str, Topic | ErrorCode] = dict.fromkeys(names, ErrorCode.unknown_topic_or_partition)
    names = names[: max(1, min(TOPICS_MAX, PARTITIONS_MAX // parts.topic_defaults.partition_count))]
    try:
        colliding = await parts.topics.colliding(names)
    except StorageError as error:
        return answers | dict.fromkeys(names, error_code_of(error))
    created: dict[str, str] = {}
    for name in names:
        if name == NEVER_A_TOPIC:
            continue
        if name in colliding or created.get(collision_key(name), name) != name:
            answers[name] = ErrorCode.invalid_topic_exception
        else:
            answers[name] = await _create(parts, name, by)
            created[collision_key(name)] = name
    return answers


async def _create(parts: BrokerParts, name: str, by: Requester) -> Topic | ErrorCode:
    partition_count = INTERNAL_PARTITIONS if name in INTERNAL else parts.topic_defaults.partition_count
    configs = dict(INTERNAL.get(name, {}))
    try:
        topic = await parts.topics.create(name, partition_count=partition_count, replication_factor=1, configs=configs)
    except AlreadyExists:
        return await _created_by_another(parts, name)
    except StorageError as error:
        return error_code_of(error)
    parts.administration.changed(
        "topic_created", by, topic=name, topic_id=topic.topic_id, partitions=topic.partition_count, why="a client named it"
    )
    return topic


async def _created_by_another(parts: BrokerParts, name: str) -> Topic | ErrorCode:
    try:
        return (await parts.topics.lookup([name])).get(name, ErrorCode.unknown_topic_or_partition)
    except StorageError as error:
        return error_code_of(error)


class TopicPartition(NamedTuple):
    topic: str
    partition: int


class Located(NamedTuple):
    partition: PartitionId
    bounds: LogBounds


async def read_bounds(parts: BrokerParts, wanted: Collection[TopicPartition]) -> dict[TopicPartition, Located | ErrorCode]:
    """An answer to each of `wanted`, from one read of their manifests.

    That something does not exist is said only after the topic was read again, if it came from the cache.
    """
    topics = parts.topics
    cached: dict[str, bool] = {}
    for number, asked in enumerate(wanted, 1):
        if asked.topic not in cached:
            cached[asked.topic] = topics.find(asked.topic) is not None
        if number % ITEMS_DEFAULT == 0:
            await asyncio.sleep(0)
    is_silent = False

    async def look_up(names: Collection[str]) -> LookedUp:
        nonlocal is_silent
        found = await topics.look_up(names)
        is_silent = topics.is_silent  # it may speak again while the ends are read
        return found

    answers = await _read(parts, wanted, cached, look_up)
    doubtful = []
    for number, (asked, answer) in enumerate(answers.items(), 1):
        if _is_absence(answer) and (cached[asked.topic] or is_silent):
            doubtful.append(asked)
        if number % ITEMS_DEFAULT == 0:
            await asyncio.sleep(0)
    if doubtful:
        # A client that is wrong about its partitions takes the topic from nobody else, should this read fail.
        answers |= await _read(parts, doubtful, await _names(doubtful), lambda names: _read_now(topics, names))
    return answers


async def _read_now(topics: Topics, names: Collection[str]) -> LookedUp:
    return await topics.lookup_now(names), None


def check_leader_epoch(current_leader_epoch: int) -> ErrorCode:
    """What Kafka says to a client that believes in this epoch of the partition; -1 asks for no check (KIP-320)."""
    if current_leader_epoch in (-1, LEADER_EPOCH):
        return ErrorCode.none
    return ErrorCode.unknown_leader_epoch if current_leader_epoch > LEADER_EPOCH else ErrorCode.fenced_leader_epoch


async def _read(
    parts: BrokerParts,
    wanted: Collection[TopicPartition],
    names: Collection[str],
    look_up: Callable[[Collection[str]], Awaitable[LookedUp]],
) -> dict[TopicPartition, Located | ErrorCode]:
    try:
        topics, unread = await look_up(names)
    except StorageError as error:
        return dict.fromkeys(wanted, error_code_of(error))
    answers: dict[TopicPartition, Located | ErrorCode] = {}
    existing: dict[TopicPartition, PartitionId] = {}
    for number, asked in enumerate(wanted, 1):
        if number % ITEMS_DEFAULT == 0:
            await asyncio.sleep(0)
        topic: Topic | None = topics.get(asked.topic)
        if topic is not None and topic.has_partition(asked.partition):
            existing[asked] = topic.partition(asked.partition)
        else:
            unknown = ErrorCode.unknown_topic_or_partition
            answers[asked] = unknown if topic is not None or unread is None else error_code_of(unread)
    if existing:
        read = await parts.bounds.read(list(existing.values()))
        for number, ((asked, partition), bounds) in enumerate(zip(existing.items(), read, strict=True), 1):
            answers[asked] = error_code_of(bounds) if isinstance(bounds, StorageError) else Located(partition, bounds)
            if number % ITEMS_DEFAULT == 0:
                await asyncio.sleep(0)
    return answers


async def _names(wanted: Iterable[TopicPartition]) -> dict[str, None]:
    return dict.fromkeys(await Turns().each(attrgetter("topic"), wanted))


def _is_absence(answer: Located | ErrorCode) -> bool:
    return answer is ErrorCode.unknown_topic_or_partition


def describe_absence(error: ErrorCode) -> str:
    """In the words of an answer, what `find_existing` says."""
    if error is ErrorCode.unknown_topic_or_partition:
        return "there is no such topic or partition"
    return "the topics cannot be read now; ask again"


async def find_existing(parts: BrokerParts, wanted: Collection[TopicPartition]) -> dict[TopicPartition, Topic | ErrorCode]:
    """The topic of each of `wanted`, or why there is none: UNKNOWN_TOPIC_OR_PARTITION, or what the catalog's read ended with."""
    turns = Turns()
    try:
        topics = await parts.topics.lookup_now(dict.fromkeys(await turns.each(attrgetter("topic"), wanted)))
    except StorageError as error:
        return dict.fromkeys(wanted, error_code_of(error))
    answers: dict[TopicPartition, Topic | ErrorCode] = {}
    for asked in wanted:
        await turns.spent()
        topic = topics.get(asked.topic)
        answers[asked] = topic if topic is not None and topic.has_partition(asked.partition) else ErrorCode.unknown_topic_or_partition
    return answers
