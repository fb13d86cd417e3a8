"""A batch whose predecessor was lost, or may have been, does not take its place; both found by the simulation."""

import asyncio
from collections.abc import Callable

from storage.errors import OutcomeUnknown, OutOfOrderSequence, Unavailable
from storage.formats.manifest import Manifest, encode
from storage.log.batch import Appended
from storage.log.flush import FlushSettings
from storage.log.limits import LogLimits
from storage.log.uploads import UPLOADS_MAX
from storage.metadata import keys
from storage.metadata.port import Put
from tests.kit.batches import batch_bytes
from tests.unit.storage.log.rig import PARTITION, rig, until_taken

MANIFEST = keys.PartitionKeys(PARTITION).manifest


def idempotent(first_seq: int) -> bytearray:
    return batch_bytes(1, producer_id=5, producer_epoch=0, first_seq=first_seq)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while True:
            if is_so():
                return
            await asyncio.sleep(0)


async def test_what_follows_a_batch_that_was_given_up_is_refused_also_for_a_producer_nobody_knows() -> None:
    async with rig() as broker:
        log = broker.parts.partitions.get(PARTITION)
        broker.metadata.faults.append("late")
        first = broker.send(idempotent(0))
        await broker.metadata.until_late()
        broker.metadata.reads_fail = True
        second = broker.send(idempotent(1))
        await until(lambda: len(log.commit_queue.commits) == 2)
        log.commit_queue.commits[0].deadline_s = 0.0

        assert isinstance((await first)[0], OutcomeUnknown)
        broker.metadata.reads_fail = False
        assert isinstance((await second)[0], Unavailable), "nothing of it was sent"
        assert await broker.send(idempotent(0)) == [Appended(0, 0)], "the retry comes before it"
        assert await broker.send(idempotent(1)) == [Appended(1, 0)]


async def test_what_follows_a_batch_whose_record_may_have_been_dropped_is_refused() -> None:
    async with rig() as broker:
        log = broker.parts.partitions.get(PARTITION)
        broker.epoch.registered_epoch = lambda: None
        broker.metadata.faults.append("late")
        first = broker.send(idempotent(0))
        await broker.metadata.until_late()
        broker.metadata.reads_fail = True
        second = broker.send(idempotent(1))
        await until(lambda: len(log.commit_queue.commits) == 2)
        await broker.shared.write([Put(MANIFEST, encode(Manifest()), None)])
        broker.metadata.reads_fail = False

        assert isinstance((await first)[0], OutcomeUnknown)
        assert isinstance((await second)[0], Unavailable), "nothing of it was sent"
        assert await broker.send(idempotent(0)) == [Appended(0, 0)], "the retry comes before it"


async def test_what_arrives_after_its_predecessor_was_refused_does_not_take_its_place() -> None:
    async with rig(limits=LogLimits(upload_timeout_s=0.0)) as broker:
        broker.objects.puts_fail = Unavailable("disk full")
        assert isinstance((await broker.send(idempotent(0)))[0], Unavailable)
        broker.objects.puts_fail = None

        assert isinstance((await broker.send(idempotent(1)))[0], OutOfOrderSequence), "it was on its way when the other was refused"
        assert await broker.send(idempotent(0)) == [Appended(0, 0)], "the retry comes before it"
        assert await broker.send(idempotent(1)) == [Appended(1, 0)]


async def test_a_later_batch_of_a_producer_nobody_knows_waits_for_its_first() -> None:
    """Two brokers: the first batch went through one, the second through the other, which is faster."""
    async with rig() as broker:
        assert isinstance((await broker.send(idempotent(1)))[0], Unavailable)
        assert await broker.send(idempotent(0)) == [Appended(0, 0)]
        assert await broker.send(idempotent(1)) == [Appended(1, 0)]


async def test_a_producer_nobody_knows_begins_anywhere_when_nothing_before_it_can_be_on_its_way() -> None:
    """Its topic was deleted and created again, say: as in Kafka, only later."""
    async with rig(limits=LogLimits(unknown_producers_wait_s=0.2)) as broker:
        assert isinstance((await broker.send(idempotent(7)))[0], Unavailable)
        assert await until_taken(broker, idempotent(7)) == Appended(0, 0)
        assert await broker.send(idempotent(8)) == [Appended(1, 0)]


async def test_a_flush_that_waited_for_uploads_goes_on_when_all_of_them_fail() -> None:
    async with rig(flush=FlushSettings(interval_s=0.0, gather_s=0.0), limits=LogLimits(upload_timeout_s=0.0)) as broker:
        gate = broker.objects.gate = asyncio.Event()
        broker.objects.puts_fail = Unavailable("disk full")
        lost = []
        for count in range(1, UPLOADS_MAX + 1):
            lost.append(broker.send(batch_bytes(1), source=object()))
            await until(lambda count=count: len(broker.objects.put_keys) == count)  # type: ignore[misc]
        broker.objects.puts_fail = broker.objects.gate = None
        overdue = broker.send(batch_bytes(1), source=object())
        await until(lambda: broker.parts.appender._is_overdue)
        gate.set()

        async with asyncio.timeout(5):
            assert await overdue == [Appended(0, 0)]
        assert [isinstance((await one)[0], Unavailable) for one in lost] == [True] * UPLOADS_MAX
