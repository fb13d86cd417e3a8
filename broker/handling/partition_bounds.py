"""From the names of partitions to their logs: which incarnation of the topic, and where its log begins and ends."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from operator import attrgetter
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from broker.handling.context import BrokerParts
from broker.handling.errors import error_code_of
from runtime.turns import ITEMS_DEFAULT, Turns
from storage.catalog.topics import Topic, Topics
from storage.errors import StorageError
from storage.log.fresh_reads import LogBounds
from storage.vocabulary import PartitionId

LEADER_EPOCH: Final = 0
"""For every partition, for ever (I12)."""


LookedUp = tuple[dict[str, Topic], StorageError | None]


class TopicPartition(NamedTuple):
    topic: str
    partition: int


class Located(NamedTuple):
    partition: PartitionId
    bounds: LogBounds


async def read_bounds(parts: BrokerParts, wanted: Collection[TopicPartition]) -> dict[TopicPartition, Located | ErrorCode]:
    """An answer to each of `wanted`, from one read of their control records.

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
