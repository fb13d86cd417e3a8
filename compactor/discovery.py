"""What there is to look after: topics, and the control records of their partitions."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Final, NamedTuple

from storage.catalog.topic import TopicState, decode_topic
from storage.errors import Corrupt, IncompatibleFormat, StorageError
from storage.formats.control import Control, decode_control
from storage.metadata import keys
from storage.metadata.keys import PartitionKeys
from storage.metadata.port import MetadataStore
from storage.vocabulary import PartitionId, TopicId

TOPICS_PER_TURN: Final = 250


class FoundTopic(NamedTuple):
    """A topic that takes records."""

    name: str
    topic_id: TopicId
    partition_count: int
    configs: Mapping[str, str]

    def partitions(self) -> list[PartitionId]:
        return [PartitionId(self.topic_id, number) for number in range(self.partition_count)]


class FoundPartition(NamedTuple):
    """`is_begun`: a compaction has noted something there, and may have died."""

    partition: PartitionId
    control: Control
    version: int
    is_begun: bool


async def active_topics(metadata: MetadataStore, *, unreadable: Callable[[str, StorageError], None]) -> AsyncGenerator[FoundTopic, None]:
    """Topics in the order of their names. `unreadable` gets the key of a record that is passed over. Raises `Unavailable`."""
    start, end = keys.topics()
    scanned = 0
    async for record in metadata.range_scan(start, end):
        scanned += 1
        if scanned % TOPICS_PER_TURN == 0:
            await asyncio.sleep(0)
        try:
            topic = decode_topic(record)
        except (Corrupt, IncompatibleFormat) as error:
            unreadable(record.path, error)
            continue
        if topic.state is TopicState.ACTIVE:
            yield FoundTopic(topic.name, topic.topic_id, topic.partition_count, topic.configs)


async def control_pages(
    metadata: MetadataStore,
    partitions: Sequence[PartitionId],
    *,
    unreadable: Callable[[PartitionId, StorageError], None],
    controls_per_read: int,
) -> AsyncGenerator[list[FoundPartition], None]:
    """The control records of `partitions`, `controls_per_read` at a time. Those that do not exist are left out. Raises `Unavailable`."""
    for begin in range(0, len(partitions), controls_per_read):
        page = partitions[begin : begin + controls_per_read]
        wanted = [PartitionKeys(partition) for partition in page]
        records = await metadata.get_many([key for one in wanted for key in (one.control, one.compaction)])
        found = []
        for partition, control, attempt in zip(page, records[::2], records[1::2], strict=True):
            if control is None:
                continue
            try:
                decoded = decode_control(control.value, path=control.path)
            except (Corrupt, IncompatibleFormat) as error:
                unreadable(partition, error)
                continue
            found.append(FoundPartition(partition, decoded, control.version, attempt is not None))
        yield found
