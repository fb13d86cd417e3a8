"""Reads may be answered by a node that was leader of the shard (docs/internals/design/reading.md#reads-from-a-deposed-leader).

Nothing that cannot be mended rests on one."""

from collections.abc import Sequence

from runtime.clock import SystemClock
from storage.errors import OutOfOrderSequence, Unavailable
from storage.log.batch import Appended
from storage.metadata.keys import PartitionKeys
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import Key, Record
from storage.objects.memory import MemoryObjectStore
from tests.kit.batches import batch_bytes
from tests.unit.storage.log.rig import PARTITION, Rig, rig

MANIFEST = PartitionKeys(PARTITION).manifest


def idempotent(seq: int, pid: int = 5) -> bytearray:
    return batch_bytes(1, producer_id=pid, producer_epoch=0, first_seq=seq)


class Deposed:
    """Answers the next reads of the manifest as it was when this was made."""

    def __init__(self, broker: Rig, record: Record | None, *, times: int) -> None:
        self.left = times
        self._record = record
        self._inner = broker.metadata.get_many
        broker.metadata.get_many = self._get_many  # type: ignore[method-assign]

    async def _get_many(self, wanted: Sequence[Key]) -> list[object]:
        found = await self._inner(wanted)
        if not self.left or MANIFEST not in wanted:
            return found
        self.left -= 1
        return [self._record if key == MANIFEST else record for key, record in zip(wanted, found, strict=True)]


async def record_of(store: MemoryMetadataStore) -> Record:
    (record,) = await store.get_many([MANIFEST])
    assert record is not None
    return record


async def test_a_sequence_is_not_out_of_order_because_a_deposed_leader_has_not_heard_of_the_one_before() -> None:
    shared, objects = MemoryMetadataStore(clock=SystemClock(), shards=1), MemoryObjectStore(clock=SystemClock())
    async with rig(shared=shared, objects=objects, epoch=7) as one, rig(shared=shared, objects=objects, epoch=8) as other:
        assert await one.send(idempotent(0)) == [Appended(0, 0)]
        old = await record_of(shared)
        assert await one.send(idempotent(1)) == [Appended(1, 0)]
        deposed = Deposed(other, old, times=2)

        assert await other.send(idempotent(2)) == [Appended(2, 0)]
        assert deposed.left == 0


async def test_a_sequence_that_is_out_of_order_is_refused_after_one_write_that_proves_it() -> None:
    async with rig() as broker:
        await broker.send(idempotent(0))
        writes = len(broker.metadata.writes)
        (refused,) = await broker.send(idempotent(5))

        assert isinstance(refused, OutOfOrderSequence)
        assert len(broker.metadata.writes) == writes + 1
        assert (await broker.manifest()).sequence_counter == 1
        assert await broker.send(idempotent(1)) == [Appended(1, 0)]
        assert len(broker.metadata.writes) == writes + 2, "the proof is this broker's own: the next CAS knows its version"


async def test_a_proof_without_an_answer_is_tried_again() -> None:
    async with rig() as broker:
        await broker.send(idempotent(0))
        for fault in ("request lost", "reply lost", "refused", "late"):
            broker.metadata.faults.append(fault)
            (refused,) = await broker.send(idempotent(5))
            assert isinstance(refused, OutOfOrderSequence), fault
        await broker.metadata.deliver_late()

        assert await broker.send(idempotent(1)) == [Appended(1, 0)]


async def test_an_absence_that_only_a_deposed_leader_saw_is_forgotten() -> None:
    async with rig() as broker:
        await broker.send(batch_bytes(1))
        log = broker.parts.partitions.get(PARTITION)
        deposed = Deposed(broker, None, times=1)
        await broker.parts.manifest_reads.refresh([log])
        assert log.seen.manifest is None
        assert deposed.left == 0
        await broker.parts.manifest_reads.refresh([log])

        assert log.seen.high_watermark == 1
        assert await broker.send(batch_bytes(1)) == [Appended(1, 0)]


async def test_a_producer_that_a_stale_record_does_not_know_waits() -> None:
    shared, objects = MemoryMetadataStore(clock=SystemClock(), shards=1), MemoryObjectStore(clock=SystemClock())
    async with rig(shared=shared, objects=objects, epoch=7) as one, rig(shared=shared, objects=objects, epoch=8) as other:
        old = await record_of(shared)
        assert await one.send(idempotent(0)) == [Appended(0, 0)]
        Deposed(other, old, times=2)
        (refused,) = await other.send(idempotent(1))

        assert isinstance(refused, Unavailable), "retriable: what comes before it may be there"
        assert await other.send(idempotent(1)) == [Appended(1, 0)]
