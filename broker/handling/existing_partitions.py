"""From the names of partitions to the topics they are of, for administration: from a read issued after the request."""

from collections.abc import Collection
from operator import attrgetter

from kio.schema.errors import ErrorCode

from broker.handling.context import BrokerParts
from broker.handling.errors import error_code_of
from broker.handling.partition_bounds import TopicPartition
from runtime.turns import Turns
from storage.catalog.topics import Topic
from storage.errors import StorageError


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
