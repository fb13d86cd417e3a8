"""Fetches from segments whose bytes are in memory: nobody waits, no task is made, and the bytes are those that a read would give."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from storage.cache.blocks import BlockCache
from storage.errors import Corrupt
from storage.formats.manifest import SegmentEntry
from storage.formats.segment import HEADER_BYTES, SegmentWriter
from storage.log import segments
from storage.log.limits import LogLimits
from storage.log.prefetch import ReadAhead
from storage.log.scan import BatchRun, Elsewhere
from tests.unit.storage.log.made_segments import IDS, batch, counted_gets, put_segment, set_segments
from tests.unit.storage.log.rig import PARTITION, Rig, rig

SIZE = len(batch(0, size=100))
BATCHES = [batch(offset, size=100) for offset in range(40)]
PART = 77
"""Headers of batches lie across the ends of parts, too."""


@pytest.fixture
async def broker() -> AsyncIterator[Rig]:
    async with rig(part_bytes=PART) as made:
        await set_segments(made, await put_segment(made, IDS[0], BATCHES, base=0, last=39, block_bytes=3 * SIZE))
        await made.parts.manifest_reads.refresh([made.parts.partitions.get(PARTITION)])
        yield made


async def read(broker: Rig, offset: int, bytes_max: int) -> BatchRun:
    return await broker.parts.reader.stored(broker.parts.partitions.get(PARTITION), offset, bytes_max=bytes_max)


def spare(broker: Rig, offset: int, bytes_max: int, *, at_least_one: bool = True) -> BatchRun | Elsewhere | None:
    log = broker.parts.partitions.get(PARTITION)
    return broker.parts.reader.stored_reads.spare(log, offset, bytes_max=bytes_max, at_least_one=at_least_one)


@pytest.mark.parametrize("bytes_max", [1, SIZE, 4 * SIZE, 7 * SIZE, 100 * SIZE])
@pytest.mark.parametrize("offset", [0, 4, 38])
async def test_what_lies_in_several_parts_is_read_as_it_was_written_and_no_memory_is_joined(
    broker: Rig, offset: int, bytes_max: int
) -> None:
    run = await read(broker, offset, bytes_max)
    spared = spare(broker, offset, bytes_max)

    assert run.buffer == b"".join(BATCHES[offset : run.last + 1])
    assert isinstance(spared, BatchRun)
    assert (spared.buffer, spared.starts, spared.positions) == (run.buffer, run.starts, run.positions)
    assert all(len(view) <= PART for view in run.views)


async def test_what_is_not_in_memory_is_to_be_read(broker: Rig) -> None:
    assert spare(broker, 0, 1_000) is Elsewhere.TO_BE_READ, "its footer is not known"
    await read(broker, 0, 1_000)
    broker.parts.reader.segments._blocks.drop(next(iter(broker.parts.reader.segments._blocks._starts)))
    assert spare(broker, 0, 1_000) is Elsewhere.TO_BE_READ, "its blocks are not here"
    await read(broker, 0, 1_000)
    assert isinstance(spare(broker, 0, 1_000), BatchRun)


async def test_records_that_no_segment_has_are_to_be_read() -> None:
    async with rig() as broker:
        await broker.send(batch(0))

        assert spare(broker, 0, 1_000) is Elsewhere.TO_BE_READ


async def test_a_batch_that_does_not_fit_is_told_without_a_read(broker: Rig) -> None:
    await read(broker, 0, 1_000)
    gets = await counted_gets(broker)

    assert spare(broker, 5, SIZE - 1, at_least_one=False) is None
    assert isinstance(spare(broker, 5, SIZE - 1), BatchRun)
    assert gets == []


async def test_a_run_says_how_much_room_there_must_be_to_read_on(broker: Rig) -> None:
    runs = [await read(broker, offset, 3 * SIZE) for offset in (0, 36, 39)]

    assert [run.following_bytes for run in runs] == [3 * SIZE, SIZE, 0]


async def test_a_read_ends_where_the_block_that_follows_does_not_fit(broker: Rig) -> None:
    log, done = broker.parts.partitions.get(PARTITION), asyncio.Event()
    stored_read = broker.parts.reader.stored_reads.join(log, 0, bytes_max=4 * SIZE, runs_max=16, at_least_one=True, wake=done.set)
    await done.wait()

    assert (len(stored_read.runs), stored_read.end, stored_read.is_too_large, stored_read.left_bytes) == (1, 3, True, SIZE)


async def test_a_consumer_in_order_leaves_what_it_has_read_and_nothing_before_it(broker: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[tuple[int, int]] = []
    monkeypatch.setattr(BlockCache, "leave_behind", lambda _cache, _key, start, position: left.append((start, position)))
    await read(broker, 0, 100 * SIZE)
    for offset in (9, 12, 15):
        spare(broker, offset, 3 * SIZE)

    assert left == [(HEADER_BYTES + start * SIZE, HEADER_BYTES + (start + 3) * SIZE) for start in (12, 15)]


async def test_what_follows_the_blocks_that_a_consumer_in_order_has_read_is_read_ahead(
    broker: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead: list[tuple[int, int]] = []
    monkeypatch.setattr(ReadAhead, "begin", lambda _ahead, _key, position, end: ahead.append((position, end)))
    await read(broker, 0, 100 * SIZE)
    for offset in (9, 12):
        spare(broker, offset, 3 * SIZE)

    assert ahead == [(HEADER_BYTES + 15 * SIZE, HEADER_BYTES + 40 * SIZE)]


@pytest.mark.parametrize(("base", "records"), [(4, 2), (5, 6)])
async def test_a_batch_that_reaches_beyond_the_entry_of_its_segment_is_not_served(base: int, records: int) -> None:
    async with rig() as broker:
        made = batch(5, records=5)
        writer = SegmentWriter(PARTITION, IDS[0], 5)
        writer.add(made)
        written = writer.finish(9)
        other = batch(base, records=records)
        made[:61] = other[:61]
        made[8:12] = (len(made) - 12).to_bytes(4, "big")
        await broker.objects.inner.put_if_absent(written.key, written.parts)
        await set_segments(broker, SegmentEntry(5, 9, IDS[0], written.size_bytes, 5, 5))
        await broker.parts.manifest_reads.refresh([broker.parts.partitions.get(PARTITION)])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(segments, "check_block_of", lambda *_, **__: None)
            with pytest.raises(Corrupt, match="a segment has other offsets than it says"):
                await read(broker, 5, 1_000)


async def test_the_footer_that_was_used_longest_ago_is_forgotten_first() -> None:
    limits = LogLimits(footers_bytes_max=2 * (segments.FOOTER_OVERHEAD_BYTES + segments.BLOCK_ENTRY_BYTES))
    async with rig(limits=limits) as broker:
        entries = [await put_segment(broker, IDS[offset], [BATCHES[offset]], base=offset, last=offset) for offset in range(3)]
        await set_segments(broker, *entries)
        await broker.parts.manifest_reads.refresh([broker.parts.partitions.get(PARTITION)])
        await read(broker, 0, 1)
        await read(broker, 1, 1)
        spare(broker, 0, 1)
        await read(broker, 2, 1)

        assert [isinstance(spare(broker, offset, 1), BatchRun) for offset in range(3)] == [True, False, True]


async def test_damage_in_memory_is_not_served_and_left_to_a_read_which_drops_it(broker: Rig) -> None:
    await read(broker, 0, 1_000)
    blocks = broker.parts.reader.segments._blocks
    name = next(iter(blocks._views))
    damaged = bytearray(blocks._views[name])
    damaged[HEADER_BYTES + 1] ^= 1
    blocks._views[name] = memoryview(damaged).toreadonly()
    spared = spare(broker, 0, 1_000)
    healed = await read(broker, 0, 1_000)

    assert spared is Elsewhere.TO_BE_READ
    assert healed.buffer == b"".join(BATCHES[: healed.last + 1])
    assert broker.telemetry.registry.get_sample_value("forebay_recovered_reads_total") == 1


async def test_damage_that_is_known_is_told_by_the_read_and_what_is_well_in_memory_is_served(broker: Rig) -> None:
    await read(broker, 0, 1_000)
    broker.parts.reader._corrupt_reads.confirm(PARTITION, 0, key="k", cause="missing", what="damaged")

    assert isinstance(spare(broker, 0, 1_000), BatchRun)
    with pytest.raises(Corrupt, match="damaged"):
        await read(broker, 0, 1_000)


async def test_who_goes_on_from_memory_is_in_order(broker: Rig) -> None:
    await read(broker, 0, 100 * SIZE)
    log, ends = broker.parts.partitions.get(PARTITION), broker.parts.reader.stored_reads._ends
    spared = spare(broker, 3, 3 * SIZE)

    assert isinstance(spared, BatchRun)
    assert (log.partition, 3) not in ends
    assert (log.partition, spared.last + 1) in ends
