"""Topics that come into being because a client asked for them (auto.create.topics.enable)."""

from collections.abc import Sequence
from typing import Final

from kio.schema.errors import ErrorCode

from broker.handling.administration import By
from broker.handling.context import BrokerParts
from broker.handling.errors import error_code_of
from storage.catalog.topic import INTERNAL, INTERNAL_PARTITIONS, NEVER_A_TOPIC, collision_key
from storage.catalog.topics import PARTITIONS_MAX, Topic
from storage.errors import AlreadyExists, StorageError

TOPICS_MAX: Final = 1_000
"""Per request, and with no more than PARTITIONS_MAX partitions together. For the rest the client asks again, as it does for any topic
that is not there yet."""


async def create_missing(parts: BrokerParts, names: Sequence[str], by: By) -> dict[str, Topic | ErrorCode]:
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


async def _create(parts: BrokerParts, name: str, by: By) -> Topic | ErrorCode:
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
