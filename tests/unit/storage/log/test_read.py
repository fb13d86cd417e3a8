"""Reading what was committed, from the object store: windows, hints, damage."""

import asyncio

import pytest

from storage.errors import Corrupt, OffsetOutOfRange, Unavailable
from storage.formats.control import Control, encode
from storage.formats.wal import object_key
from storage.log.batcher import FlushSettings
from storage.log.index import check_range
from storage.metadata import keys
from storage.metadata.port import Put
from storage.recordbatch import parse_header
from tests.unit.storage.log.batches import batch_bytes
from tests.unit.storage.log.rig import PARTITION, Rig, rig


async def many_in_one_object(broker: Rig, count: int, payload: bytes = b"x" * 20) -> None:
    sent = [broker.send(batch_bytes(2, payload=payload)) for _ in range(count)]
    await broker.parts.appender.drain()
    await asyncio.gather(*sent)


async def test_every_offset_of_an_object_can_be_read_alone() -> None:
    async with rig(flush=FlushSettings(interval_s=60, gather_s=60)) as broker:
        await many_in_one_object(broker, 20)
        log = broker.parts.partitions.get(PARTITION)

        for offset in range(40):
            run = await broker.parts.reader.stored(log, offset, bytes_max=1)
            assert run.base == offset - offset % 2
            assert parse_header(run.buffer).base_offset == run.base


async def test_a_batch_larger_than_the_window_is_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.log.read.WINDOW_BYTES_MIN", 100)
    async with rig(flush=FlushSettings(interval_s=60, gather_s=60)) as broker:
        await many_in_one_object(broker, 5, payload=b"y" * 1_000)
        log = broker.parts.partitions.get(PARTITION)

        for offset in range(10):
            run = await broker.parts.reader.stored(log, offset, bytes_max=50)
            assert (run.base, run.last) == (offset - offset % 2, offset - offset % 2 + 1)


async def test_a_damaged_batch_is_corrupt_never_skipped() -> None:
    async with rig() as broker:
        await broker.send(batch_bytes(1, payload=b"precious"))
        (entry,) = (await broker.control()).pending
        key = object_key(entry.object_id)
        stored = bytearray(await broker.objects.get_range(key, 0, entry.spans[0][0] + entry.spans[0][1]))  # type: ignore[operator]
        stored[-1] ^= 1
        await broker.objects.delete_many([key])  # type: ignore[operator]
        await broker.objects.put_if_absent(key, [stored])

        with pytest.raises(Corrupt, match="checksum mismatch"):
            await broker.parts.reader.stored(broker.parts.partitions.get(PARTITION), 0, bytes_max=100)


async def test_a_missing_object_of_a_live_entry_is_corrupt() -> None:
    async with rig() as broker:
        await broker.send(batch_bytes(1))
        (entry,) = (await broker.control()).pending
        await broker.objects.delete_many([object_key(entry.object_id)])  # type: ignore[operator]

        with pytest.raises(Corrupt, match="object of a live entry is missing"):
            await broker.parts.reader.stored(broker.parts.partitions.get(PARTITION), 0, bytes_max=100)


async def test_a_missing_object_below_a_new_log_start_is_out_of_range() -> None:
    async with rig() as broker:
        await broker.send(batch_bytes(1))
        await broker.send(batch_bytes(1))
        control = await broker.control()
        await broker.objects.delete_many([object_key(control.pending[0].object_id)])  # type: ignore[operator]
        moved = Control(sequence_counter=2, log_start=1, pending=control.pending)
        await broker.shared.write([Put(keys.PartitionKeys(PARTITION).control, encode(moved), None)])

        with pytest.raises(OffsetOutOfRange) as caught:
            await broker.parts.reader.stored(broker.parts.partitions.get(PARTITION), 0, bytes_max=100)
        assert (caught.value.log_start, caught.value.high_watermark) == (1, 2)


async def test_a_committed_offset_that_no_entry_covers_is_corrupt() -> None:
    async with rig() as broker:
        await broker.shared.write([Put(keys.PartitionKeys(PARTITION).control, encode(Control(sequence_counter=5)), None)])
        log = broker.parts.partitions.get(PARTITION)
        await broker.parts.control_reads.refresh([log])

        with pytest.raises(Corrupt, match="no entry covers"):
            await broker.parts.reader.stored(log, 3, bytes_max=100)


async def test_an_undecodable_control_record_concerns_its_own_partition_only() -> None:
    async with rig() as broker:
        await broker.send(batch_bytes(1))
        other = PARTITION._replace(partition=1)
        await broker.shared.write([Put(keys.PartitionKeys(other).control, b"{nonsense", None)])

        (good, bad) = await broker.parts.control_reads.read([PARTITION, other])
        assert not isinstance(good, Exception)
        assert isinstance(bad, Corrupt)
        (refused,) = await broker.send(batch_bytes(1), partition=other)
        assert isinstance(refused, Corrupt)


async def test_metadata_that_cannot_be_read_is_unavailable() -> None:
    async with rig() as broker:
        broker.metadata.reads_fail = True

        with pytest.raises(Unavailable):
            await broker.parts.control_reads.refresh([broker.parts.partitions.get(PARTITION)])


async def test_a_record_that_is_older_than_what_is_known_is_ignored() -> None:
    """Promise 5: reads never go back."""
    async with rig() as broker:
        await broker.send(batch_bytes(3))
        log = broker.parts.partitions.get(PARTITION)
        log.observe(Control(), log.version - 1)

        assert log.high_watermark == 3
        check_range(log, 3)
        with pytest.raises(OffsetOutOfRange):
            check_range(log, 4)
