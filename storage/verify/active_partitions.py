"""The partitions there are, by the catalog, and going through them: some side by side."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from typing import Final, NamedTuple

from storage.catalog.topic import Topic, TopicState, decode_topic
from storage.errors import Corrupt, IncompatibleFormat
from storage.formats.control import decode_control
from storage.metadata import keys
from storage.metadata.keys import PartitionKeys
from storage.verify.findings import FindingKind, FindingReport, finding, kind_of
from storage.verify.reading import StoreReading
from storage.vocabulary import PartitionId

TOPICS_PER_PAGE: Final = 64
CONTROLS_PER_PAGE: Final = 500
PARTITIONS_AT_A_TIME: Final = 8
"""Each holds a page of entries."""


class ActivePartition(NamedTuple):
    topic: Topic
    partition: PartitionId


async def side_by_side(partitions: AsyncIterator[ActivePartition], work: Callable[[ActivePartition], Awaitable[None]]) -> None:
    """Call `work` with each, a few at a time. The first error ends all."""
    waiting: asyncio.Queue[ActivePartition | None] = asyncio.Queue(PARTITIONS_AT_A_TIME)

    async def worker() -> None:
        while (one := await waiting.get()) is not None:
            await work(one)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(PARTITIONS_AT_A_TIME):
            tasks.create_task(worker())
        async for one in partitions:
            await waiting.put(one)
        for _ in range(PARTITIONS_AT_A_TIME):
            await waiting.put(None)


async def active_partitions(
    reading: StoreReading, names: Collection[str], report: FindingReport, *, partition: int | None = None
) -> AsyncIterator[ActivePartition]:
    """The partitions of some topics, or of all if none is named: of those that are neither half made nor in deletion. One number or all."""
    start, end = keys.topics()
    wanted = [keys.topic(name) for name in sorted(names)]
    while True:
        if names:
            records = [record for record in await reading.records(wanted) if record is not None]
        else:
            records = await reading.page(start, end, TOPICS_PER_PAGE)
        for record in records:
            try:
                topic = decode_topic(record)
            except (Corrupt, IncompatibleFormat) as error:
                report(finding(kind_of(error, FindingKind.UNDECODABLE), str(error), key=record.path))
                continue
            if topic.state is TopicState.ACTIVE:
                numbers = range(topic.partition_count) if partition is None else [partition]
                for number in filter(topic.has_partition, numbers):
                    yield ActivePartition(topic, topic.partition(number))
        if names or not records:
            return
        start = start._replace(path=f"{records[-1].path}!")


async def count_offsets(reading: StoreReading, topics: Collection[str] = (), *, partition: int | None = None) -> int:
    """How many offsets there are to go through, for a bar: what cannot be read counts nothing."""
    total = 0
    page: list[PartitionId] = []

    async def count() -> int:
        found = 0
        for record in await reading.records([PartitionKeys(one).control for one in page]):
            if record is not None:
                try:
                    control = decode_control(record.value, path=record.path)
                except (Corrupt, IncompatibleFormat):
                    continue
                found += control.sequence_counter - control.log_start
        page.clear()
        return found

    async for one in active_partitions(reading, topics, lambda _: None, partition=partition):
        page.append(one.partition)
        if len(page) == CONTROLS_PER_PAGE:
            total += await count()
    return total + (await count() if page else 0)
