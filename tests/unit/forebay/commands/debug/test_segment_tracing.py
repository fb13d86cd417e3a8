"""offset below the cursor → entry → segment → block → batch."""

from collections.abc import AsyncIterator

import msgspec
import pytest

from forebay.commands.trace import Trace, TraceFailed, trace_as_table
from storage.formats.manifest import SegmentEntry, encode
from storage.formats.segment import SegmentWriter, segment_key
from storage.metadata.keys import PartitionKeys
from storage.metadata.port import Delete, Put
from storage.recordbatch import parse_header, restamp
from tests.kit.batches import batch_bytes
from tests.kit.record_batches import record_batch
from tests.unit.compactor.compacting import compacting
from tests.unit.forebay.commands.debug.logged import NAME, Logged, logged
from tests.unit.storage.log.rig import PARTITION

AT = PartitionKeys(PARTITION)


@pytest.fixture
async def log() -> AsyncIterator[Logged]:
    """Offsets 0..39 in a segment with a key of its own, 40..79 in the newest one, 80..99 in entries."""
    async with logged() as made:
        for number in range(50):
            await made.append(record_batch(b"%d" % number, b"and"))
            if number in (19, 39):
                async with compacting(made.metadata, made.objects) as compaction:
                    await compaction.run(PARTITION)
        yield made


async def newest_segment(log: Logged) -> SegmentEntry:
    newest = (await log.rig.manifest()).segment
    assert newest is not None
    return newest


async def failure(log: Logged, offset: int) -> TraceFailed:
    with pytest.raises(TraceFailed) as raised:
        await log.tracer.trace(NAME, 0, offset)
    assert "\n" not in str(raised.value)
    return raised.value


def found_batch(trace: Trace) -> tuple[int, int]:
    assert trace.batch is not None
    assert trace.batch.crc_ok
    return trace.batch.base_offset, trace.batch.last_offset


async def test_every_offset_leads_to_its_batch(log: Logged) -> None:
    for offset in range(100):
        trace = await log.tracer.trace(NAME, 0, offset)
        assert trace.entry is not None
        expected = {"segments"} if offset < 40 else {"segment"} if offset < 80 else {"pending", "index"}
        assert trace.entry.source in expected
        assert found_batch(trace) == (offset - offset % 2, offset - offset % 2 + 1)
        assert (trace.segment is None, trace.object is None) == (offset >= 80, offset < 80)


async def test_the_bytes_named_hold_the_batch_with_its_offset(log: Logged) -> None:
    trace = await log.tracer.trace(NAME, 0, 53)

    assert trace.entry is not None
    assert trace.block is not None
    assert trace.batch is not None
    body = await log.body(trace.entry.object_key)
    assert parse_header(body, trace.batch.start).base_offset == trace.batch.base_offset_stored == 52
    assert trace.block.start <= trace.batch.start < trace.batch.end <= trace.block.end
    assert trace.entry.source_key == AT.manifest.path


async def test_the_table_shows_segment_and_block(log: Logged) -> None:
    text = trace_as_table(await log.tracer.trace(NAME, 0, 7))

    assert f"from segments  {AT.segment(39).path}" in text
    assert "blocks 1  batches 20  records 40" in text
    assert "number 0  bytes [72, " in text
    assert "offsets 0..39" in text


async def test_a_segment_without_its_key_is_damage(log: Logged) -> None:
    await log.metadata.write([Delete(AT.segment(39))])

    assert "its segment under" in str(await failure(log, 7))


async def test_a_missing_segment_is_told_with_its_entry(log: Logged) -> None:
    newest = await newest_segment(log)
    key = segment_key(PARTITION, newest.object_id)
    await log.objects.delete_many([key])

    error = await failure(log, 41)

    assert f"Object {key} of a live entry is missing" in str(error)
    assert error.so_far is not None
    assert error.so_far.entry is not None


async def test_a_flipped_bit_in_a_batch_shows_the_batch_and_is_damage(log: Logged) -> None:
    trace = await log.tracer.trace(NAME, 0, 45)
    assert trace.entry is not None
    assert trace.batch is not None
    body = await log.body(trace.entry.object_key)
    body[trace.batch.end - 1] ^= 1
    await log.replace(trace.entry.object_key, bytes(body))

    error = await failure(log, 45)

    assert "part=block-0" in str(error)
    assert error.so_far is not None
    assert error.so_far.batch is not None
    assert not error.so_far.batch.crc_ok


async def test_a_segment_cut_short_or_with_a_damaged_footer_is_told(log: Logged) -> None:
    newest = await newest_segment(log)
    key = segment_key(PARTITION, newest.object_id)
    body = await log.body(key)
    await log.replace(key, bytes(body[:-1]))
    assert f"has {len(body) - 1} bytes, and its entry says {len(body)}" in str(await failure(log, 41))
    body[-30] ^= 1
    await log.replace(key, bytes(body))
    assert "part=footer" in str(await failure(log, 41))


async def test_an_offset_without_a_record_names_the_next_batch(log: Logged) -> None:
    newest = await newest_segment(log)
    writer = SegmentWriter(PARTITION, newest.object_id, 40)
    for base in (40, 60):
        batch = batch_bytes(2)
        restamp(batch, 0, base)
        writer.add(batch)
    made = writer.finish(79)
    await log.replace(made.key, b"".join(made.parts))
    changed = msgspec.structs.replace(newest, size_bytes=made.size_bytes)
    control = msgspec.structs.replace(await log.rig.manifest(), segment=changed)
    await log.metadata.write([Put(AT.manifest, encode(control), None)])

    assert found_batch(await log.tracer.trace(NAME, 0, 61)) == (60, 61)
    error = await failure(log, 50)
    assert (error.exit_code, str(error)) == (4, "There is no record at offset 50: readers go on with the batch at 60.")
    error = await failure(log, 70)
    assert (error.exit_code, "readers go on with offset 80" in str(error)) == (4, True)
