"""The nouns of the log (docs/internals/glossary.md) as types."""

from typing import NamedTuple, NewType

TopicId = NewType("TopicId", str)
"""A UUID in its canonical text form."""

ObjectId = NewType("ObjectId", str)
"""A ULID: ids sort as their times do, which `revoked_floor` relies on."""

Buffer = bytes | bytearray | memoryview


class PartitionId(NamedTuple):
    """A partition of one incarnation of a topic: a recreated topic has another id and shares nothing with this one."""

    topic_id: TopicId
    partition: int

    def __str__(self) -> str:
        return f"{self.topic_id}/{self.partition}"
