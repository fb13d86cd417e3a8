"""The shard of the catalog speaks again while a request that began in its silence is under way."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

from kio.schema.errors import ErrorCode

from broker.handling.context import BrokerParts
from broker.handling.topics import TopicPartition, read_bounds
from runtime.ids import IdSource
from storage.catalog.topics import Topics
from storage.log.fresh_reads import LogBounds
from storage.metadata.memory import MemoryMetadataStore
from storage.vocabulary import PartitionId
from tests.kit.faulty_metadata import FaultyMetadata, ManualClock, no_jitter


async def test_a_partition_that_was_added_is_not_said_to_be_unknown() -> None:
    clock = ManualClock()
    store = MemoryMetadataStore(clock=clock)
    heard = FaultyMetadata(store)
    heard.subscribe = lambda *_, **__: SimpleNamespace(cancel=lambda: None)  # type: ignore[method-assign,assignment,misc] # hints get lost
    topics = Topics(heard, clock=clock, ids=IdSource(clock=clock), entropy=no_jitter)
    others = Topics(store.client(), clock=clock, ids=IdSource(clock=clock), entropy=no_jitter)
    topic = await topics.create("t", partition_count=1, replication_factor=1, configs={})
    await others.add_partitions(topic, 2)
    clock.seconds += 31  # the entry is older than what is served when the catalog answers
    heard.reads_fail = True

    async def read(partitions: Sequence[PartitionId]) -> list[LogBounds]:
        heard.reads_fail = False
        topics._unavailability.note_answer()
        return [LogBounds(log_start=0, high_watermark=5, bytes_total=0) for _ in partitions]

    asked = [TopicPartition("t", 0), TopicPartition("t", 1)]
    answers = await read_bounds(cast("BrokerParts", SimpleNamespace(topics=topics, bounds=SimpleNamespace(read=read))), asked)

    assert answers[asked[1]] is not ErrorCode.unknown_topic_or_partition
