"""What the metadata store holds of a topic beside its logs (docs/adr/0015-a-topic-id-lives-once.md).

llog/topics/{name}            the incarnation that has the name now: CREATING, ACTIVE or DELETING
llog/topic-ids/{topic_id}     its name, from its activation on; after its deletion, that it is deleted and how many logs it had
"""

import asyncio
from collections.abc import Sequence
from enum import Enum
from typing import Final

import msgspec

from storage.catalog.records import decode
from storage.metadata import keys
from storage.metadata.port import ABSENT, MetadataStore, Record
from storage.vocabulary import PartitionId, TopicId

FMT: Final = 1
_READ_KEYS_MAX: Final = 1_000


class TopicState(Enum):
    CREATING = "CREATING"  # the name is reserved; only who reserved it may make it ACTIVE, anybody may give it up
    ACTIVE = "ACTIVE"
    DELETING = "DELETING"  # being removed: whoever finds it may finish that


class Topic(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One incarnation of a topic. `configs` holds what was set, defaults excepted (storage.catalog.topic_configs).

    `partitions_planned`: up to which number logs may exist that are no partitions yet, since partitions are being added; 0 if none are.
    """

    fmt: int = FMT
    name: str
    topic_id: TopicId
    partition_count: int
    replication_factor: int
    configs: dict[str, str]
    state: TopicState = TopicState.ACTIVE
    created_at_ms: int
    partitions_planned: int = 0

    def has_partition(self, partition: int) -> bool:
        return 0 <= partition < self.partition_count

    def partition(self, partition: int) -> PartitionId:
        return PartitionId(self.topic_id, partition)

    @property
    def logs_max(self) -> int:
        """No log of this incarnation has this number or a higher one."""
        return max(self.partition_count, self.partitions_planned)


class TopicIdRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`deleted_logs`: how many logs the topic left behind when it was deleted; None while it was not."""

    fmt: int = FMT
    name: str
    deleted_logs: int | None = None

    @property
    def is_deleted(self) -> bool:
        return self.deleted_logs is not None


_topics = msgspec.json.Decoder(Topic)
_topic_ids = msgspec.json.Decoder(TopicIdRecord)


def decode_topic(record: Record) -> Topic:
    return decode(_topics, record.value, known=FMT, path=record.path)


def decode_topic_id(record: Record) -> TopicIdRecord:
    return decode(_topic_ids, record.value, known=FMT, path=record.path)


async def read_topic(metadata: MetadataStore, name: str) -> tuple[Topic | None, int]:
    """Whose name it is, and the version of that record. Raises `Unavailable`."""
    (record,) = await metadata.get_many([keys.topic(name)])
    return (None, ABSENT) if record is None else (decode_topic(record), record.version)


async def read_topic_ids(metadata: MetadataStore, topic_ids: Sequence[TopicId]) -> list[Record | None]:
    """Raises `Unavailable`."""
    records: list[Record | None] = []
    for start in range(0, len(topic_ids), _READ_KEYS_MAX):
        if start:
            await asyncio.sleep(0)
        records += await metadata.get_many([keys.topic_id(topic_id) for topic_id in topic_ids[start : start + _READ_KEYS_MAX]])
    return records
