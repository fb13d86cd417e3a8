"""Hundreds of idempotent producers on one partition: all go on, nobody is refused for room, and a flush is one commit (review F)."""

import asyncio

import msgspec

from storage.formats.manifest import PageRef, encode
from storage.log.batch import Appended
from storage.log.flush import FlushSettings
from storage.metadata import keys
from storage.metadata.port import Put
from tests.kit.batches import batch_bytes
from tests.unit.storage.log.rig import PARTITION, rig

PRODUCERS = 1_000
ROUNDS = 8


async def test_a_thousand_producers_are_appended_in_as_many_commits_as_they_are_flushed() -> None:
    async with rig(flush=FlushSettings(interval_s=0.0, gather_s=0.02)) as broker:
        for round_number in range(ROUNDS):
            began = len(broker.metadata.writes)
            sent = [broker.send(batch_bytes(1, producer_id=pid, producer_epoch=0, first_seq=round_number)) for pid in range(PRODUCERS)]
            results = [result for future in sent for result in await future]

            assert [result.base_offset for result in results if isinstance(result, Appended)] == list(
                range(round_number * PRODUCERS, (round_number + 1) * PRODUCERS)
            )
            assert len(broker.metadata.writes) - began <= 2
        manifest = await broker.manifest()

        assert len(manifest.producers) < 100
        assert 1 <= len(manifest.pages) <= 12


async def test_producers_that_come_once_and_go_do_not_slow_those_that_stay() -> None:
    async with rig(flush=FlushSettings(interval_s=0.0, gather_s=0.0)) as broker:
        reads = 0
        inner = broker.metadata.get_many

        async def get_many(wanted: list[object]) -> list[object]:
            nonlocal reads
            reads += 1
            return await inner(wanted)  # type: ignore[arg-type]

        broker.metadata.get_many = get_many  # type: ignore[method-assign, assignment]
        for number in range(600):
            together = [
                broker.send(batch_bytes(1, producer_id=10_000 + number, producer_epoch=0, first_seq=0)),
                broker.send(batch_bytes(1, producer_id=5, producer_epoch=0, first_seq=number)),
            ]
            results = [result for one in together for result in await one]
            assert all(isinstance(result, Appended) for result in results)

        assert 5 in (await broker.manifest()).producers, "who appends stays where it is found without a read"
        assert reads <= 3


async def test_a_commit_of_more_batches_than_one_takes_is_carried_by_the_next_ones_in_order() -> None:
    async with rig(flush=FlushSettings(interval_s=0.0, gather_s=0.02)) as broker:
        log = broker.parts.partitions.get(PARTITION)
        sent = [broker.send(batch_bytes(1, producer_id=pid, producer_epoch=0, first_seq=0)) for pid in range(3_000)]
        results = [result for future in sent for result in await future]

        assert [result.base_offset for result in results if isinstance(result, Appended)] == list(range(3_000))
        assert len(broker.metadata.writes) == 3
        assert log.is_idle
        assert len(await broker.read_all()) == 3_000 * len(batch_bytes(1))


async def test_a_commit_is_cut_when_its_attempt_without_an_answer_can_never_apply() -> None:
    """Another broker gave the partition more pages meanwhile, so that the next attempt would touch too many of them."""
    path = keys.PartitionKeys(PARTITION).manifest
    async with rig(flush=FlushSettings(interval_s=0.0, gather_s=0.02)) as broker:
        assert await broker.send(batch_bytes(1)) == [Appended(0, 0)]
        broker.metadata.faults.append("late")
        sent = broker.send(*[batch_bytes(1, producer_id=100 * number, producer_epoch=0, first_seq=0) for number in range(20)])
        await broker.metadata.until_late()
        pages = tuple(PageRef(f"0-8-{number}-1-0", 100 * number + 50, 100 * number + 60, 0) for number in range(20))
        (record,) = await broker.shared.get_many([path])
        assert record is not None
        await broker.shared.write([Put(path, encode(msgspec.structs.replace(await broker.manifest(), pages=pages)), record.version)])

        async with asyncio.timeout(5):
            assert await sent == [Appended(1 + number, 0) for number in range(20)]
        await broker.metadata.deliver_late()
        assert (await broker.manifest()).sequence_counter == 21
