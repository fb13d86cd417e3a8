"""What another broker has deleted is seen within a bound, though every hint is lost: in virtual time, over two brokers' logs."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import pytest
from kio.schema.errors import ErrorCode

from broker.delayed_fetch import Waiters
from broker.handlers.log.fetch import Fetch
from broker.protocol.fetch import FetchedPartition
from runtime.ids import IdSource
from runtime.supervision import Nursery
from sim.loop import VirtualClock, VirtualLoop
from storage.catalog.topics import Topics
from storage.formats.manifest import LogState, encode
from storage.log.partition import AGE_S_MAX
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import Key, Put, Record
from storage.objects.memory import MemoryObjectStore
from storage.vocabulary import PartitionId
from tests.kit.faulty_metadata import no_jitter
from tests.kit.record_batches import record_batch
from tests.unit.broker.handlers.logged import Deaf, asking, fetch_request, offsets_of
from tests.unit.storage.log.rig import Rig, rig

T = TypeVar("T")


@dataclass
class Reading:
    """A broker that reads, and hears no hint; another that writes and deletes. `partition` is that of topic `t`."""

    fetch: Fetch
    log: Rig
    other: Rig
    partition: PartitionId
    reads: list[str]
    """Manifests that the reader has asked the store for."""

    async def at(self, offset: int, *, max_wait_ms: int = 0) -> FetchedPartition:
        response = await self.fetch.handle(fetch_request(asking("t", offset=offset), max_wait_ms=max_wait_ms), version=12)
        (answer,) = response.partitions
        return answer

    async def write(self, by: Rig, *records: bytes) -> None:
        for record in records:
            await by.send(record_batch(record), partition=self.partition)


@contextlib.asynccontextmanager
async def reading() -> AsyncIterator[Reading]:
    clock = VirtualClock(asyncio.get_running_loop())
    shared, objects = MemoryMetadataStore(clock=clock, shards=1), MemoryObjectStore(clock=clock)
    reads: list[str] = []
    async with (
        rig(shared=shared, objects=objects, epoch=7, clock=clock) as log,
        rig(shared=shared, objects=objects, epoch=8, clock=clock) as other,
        Nursery() as nursery,
    ):
        inner = log.metadata.get_many

        async def get_many(wanted: list[Key]) -> list[Record | None]:
            reads.extend(key.path for key in wanted)
            return await inner(wanted)  # type: ignore[return-value]

        log.metadata.get_many = get_many  # type: ignore[assignment, method-assign]
        deaf, parts = Deaf(log.metadata), log.parts
        topics = Topics(deaf, clock=clock, ids=IdSource(clock=clock), entropy=no_jitter)  # type: ignore[arg-type]
        waiters = Waiters(metadata=deaf, partitions=parts.partitions, manifest_reads=parts.manifest_reads, clock=clock)  # type: ignore[arg-type]
        nursery.spawn(waiters.run(), name="waiters")
        topic = await topics.create("t", partition_count=1, replication_factor=1, configs={})
        fetch = Fetch(
            topics=topics,
            partitions=parts.partitions,
            manifest_reads=parts.manifest_reads,
            reader=parts.reader,
            waiters=waiters,
            clock=clock,
        )
        yield Reading(fetch, log, other, topic.partition(0), reads)
        topics.close()


def run(play: Callable[[Reading], Awaitable[T]]) -> T:
    async def main() -> T:
        async with reading() as made:
            return await play(made)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())


def test_records_that_another_broker_has_deleted_are_served_for_a_second_at_most() -> None:
    async def play(made: Reading) -> list[list[int]]:
        await made.write(made.log, b"a", b"b", b"c")
        await made.at(0)
        await made.other.parts.trimmer.trim(made.partition, 2)
        served = [offsets_of(await made.at(0))]
        await asyncio.sleep(AGE_S_MAX * 1.001)
        answer = await made.at(0)
        assert (answer.error_code, answer.log_start_offset) == (ErrorCode.offset_out_of_range, 2)
        return [*served, offsets_of(await made.at(2))]

    assert run(play) == [[0, 1, 2], [2]]


def test_the_start_beside_records_is_as_new_as_they_are() -> None:
    async def play(made: Reading) -> list[int]:
        await made.write(made.log, b"a", b"b", b"c")
        await made.other.parts.trimmer.trim(made.partition, 2)
        await asyncio.sleep(AGE_S_MAX * 1.001)
        return [(await made.at(2)).log_start_offset, (await made.at(2)).log_start_offset]

    assert run(play) == [2, 2]


def test_records_of_a_topic_that_another_broker_has_deleted_are_served_for_a_second_at_most() -> None:
    async def play(made: Reading) -> int:
        await made.write(made.log, b"a")
        manifest = await made.other.manifest(made.partition)
        key = made.log.parts.partitions.get(made.partition).keys.manifest
        await made.log.shared.write([Put(key, encode(msgspec.structs.replace(manifest, log_state=LogState.DELETED)), None)])
        await asyncio.sleep(AGE_S_MAX * 1.001)
        return (await made.at(0)).error_code

    assert run(play) == ErrorCode.unknown_topic_or_partition


@pytest.mark.parametrize("is_writing", [False, True])
def test_who_rereads_costs_one_control_read_a_second_and_none_where_this_broker_commits(is_writing: bool) -> None:
    seconds = 5

    async def play(made: Reading) -> int:
        await made.write(made.log, b"a", b"b")
        await made.at(0)
        made.reads.clear()
        for _ in range(seconds * 20):
            if is_writing:
                await made.write(made.log, b"c")
            assert (await made.at(0)).records
            await asyncio.sleep(0.05)
        return len(made.reads)

    assert run(play) <= (0 if is_writing else seconds)


def test_a_partition_that_nobody_reads_is_not_asked_about() -> None:
    async def play(made: Reading) -> list[str]:
        await made.write(made.log, b"a")
        await made.at(0)
        made.reads.clear()
        await asyncio.sleep(60.0)
        return made.reads

    assert run(play) == []


def test_while_the_metadata_store_is_silent_nothing_is_served_that_may_be_deleted() -> None:
    async def play(made: Reading) -> tuple[list[int], int]:
        await made.write(made.log, b"a")
        made.log.metadata.reads_fail = True
        within = await made.at(0)
        await asyncio.sleep(AGE_S_MAX * 1.001)
        return offsets_of(within), (await made.at(0)).error_code

    assert run(play) == ([0], ErrorCode.kafka_storage_error)
