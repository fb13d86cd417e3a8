"""Plain values as the nominal types that kio's dataclasses ask for, and operations as bit fields (KIP-430).

Nothing is converted or checked: the encoder takes plain values. A client may carry out all operations, there being no authorizer.
"""

import uuid
from collections.abc import Iterable
from typing import Final, cast

from kio.schema.types import BrokerId, ProducerId, TopicName
from kio.static.primitive import i8, i16, i32, i64

from storage.vocabulary import TopicId

OPERATIONS_NOT_ASKED_FOR: Final = -(2**31)

_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _CLUSTER_ACTION = 3, 4, 5, 6, 7, 8, 9
_DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE = 10, 11, 12


def as_i8(value: int) -> i8:
    return cast("i8", value)


def as_i16(value: int) -> i16:
    return cast("i16", value)


def as_i32(value: int) -> i32:
    return cast("i32", value)


def as_i64(value: int) -> i64:
    return cast("i64", value)


def as_broker_id(value: int) -> BrokerId:
    return cast("BrokerId", value)


def as_producer_id(value: int) -> ProducerId:
    return cast("ProducerId", value)


def as_topic_name(value: str) -> TopicName:
    return cast("TopicName", value)


def as_uuid(topic_id: TopicId) -> uuid.UUID:
    return uuid.UUID(topic_id)


def as_topic_id(value: uuid.UUID) -> TopicId:
    return TopicId(str(value))


def _bits(operations: Iterable[int]) -> int:
    return sum(1 << operation for operation in operations)


TOPIC_OPERATIONS: Final = _bits((_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS))
CLUSTER_OPERATIONS: Final = _bits((_CREATE, _ALTER, _DESCRIBE, _CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE))
GROUP_OPERATIONS: Final = _bits((_READ, _DELETE, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS))
