"""Plain values as the nominal types that kio's dataclasses ask for. Nothing is converted or checked: the encoder takes plain values."""

import uuid
from typing import cast

from kio.schema.types import BrokerId, ProducerId, TopicName
from kio.static.primitive import i8, i16, i32, i64

from storage.vocabulary import TopicId


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
