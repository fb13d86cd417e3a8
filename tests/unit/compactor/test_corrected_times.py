"""Batches of a release that took the greatest time in a header as it was: what compaction makes of them, and what is found in them then."""

import pytest

from compactor.plan import source_ms
from storage.formats.manifest import SegmentEntry
from storage.recordbatch import HEADER_BYTES, checksum, parse_header
from storage.verify.findings import FindingKind, Severity
from tests.kit.record_batches import NOW_MS, record_batch
from tests.unit.storage.log.rig import PARTITION, Rig, rig
from tests.unit.storage.verify.stores import DEEP, compact, found, make_topic

TIMES = (NOW_MS, NOW_MS + 2_000, NOW_MS + 4_000)


def misdated(*times: int, said_ms: int, codec: int = 0) -> bytearray:
    return record_batch(*[b"value"] * len(times), timestamps=times, max_timestamp=said_ms, codec=codec)


async def asked(broker: Rig, timestamp_ms: int) -> tuple[int, int] | None:
    return await broker.parts.time_search.first_at_or_after(PARTITION, timestamp_ms)


async def greatest(broker: Rig) -> tuple[int, int] | None:
    return await broker.parts.time_search.of_maximum(PARTITION)


async def stored(broker: Rig, offset: int) -> memoryview:
    log = broker.parts.partitions.get(PARTITION)
    run = await broker.parts.reader.stored(log, offset, bytes_max=1)
    return run.buffer[run.positions[0] :]


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("said_ms", [-1, 0, NOW_MS])
async def test_compaction_corrects_headers_entries_and_what_is_asked_by_time(codec: int, said_ms: int) -> None:
    async with rig() as broker:
        await make_topic(broker.shared, partitions=1)
        await broker.send(misdated(*TIMES, said_ms=said_ms, codec=codec))
        assert await asked(broker, NOW_MS + 1) is None

        segment = await compact(broker)

        assert segment.max_timestamp == segment.running_max_timestamp == NOW_MS + 4_000
        assert source_ms(segment, ahead_ms=1 << 60) == NOW_MS + 4_000
        for delta, expected in [(0, (0, 0)), (1, (1, 2_000)), (2_000, (1, 2_000)), (4_000, (2, 4_000))]:
            assert await asked(broker, NOW_MS + delta) == (expected[0], NOW_MS + expected[1])
        assert await asked(broker, NOW_MS + 4_001) is None
        assert await greatest(broker) == (2, NOW_MS + 4_000)
        batch = await stored(broker, 0)
        right = record_batch(*[b"value"] * 3, timestamps=TIMES, codec=codec)
        assert batch[HEADER_BYTES:] == right[HEADER_BYTES:]
        assert parse_header(batch).max_timestamp == NOW_MS + 4_000
        assert parse_header(batch).crc == checksum(batch)
        assert await found(broker, depth=DEEP) == []


async def test_times_are_found_in_segments_above_which_nothing_reaches_them() -> None:
    """The manifest and the entries above the segment know the greatest time as headers had it."""
    async with rig() as broker:
        await make_topic(broker.shared, partitions=1)
        for _ in range(20):
            await broker.send(misdated(*TIMES, said_ms=-1))
        await compact(broker)
        for _ in range(20):
            await broker.send(record_batch(b"old", base_timestamp=NOW_MS - 1_000_000))

        assert await asked(broker, NOW_MS + 1) == (1, NOW_MS + 2_000)
        assert await greatest(broker) == (2, NOW_MS + 4_000)
        assert await asked(broker, NOW_MS + 4_001) is None
        assert await found(broker, depth=DEEP) == []

        await broker.send(record_batch(b"new", base_timestamp=NOW_MS + 9_000))

        assert await asked(broker, NOW_MS + 4_001) == (80, NOW_MS + 9_000)
        assert await greatest(broker) == (80, NOW_MS + 9_000)

        segment = await compact(broker)

        assert segment.running_max_timestamp == NOW_MS + 9_000
        assert await asked(broker, NOW_MS + 1) == (1, NOW_MS + 2_000)
        assert await asked(broker, NOW_MS + 4_001) == (80, NOW_MS + 9_000)
        assert await found(broker, depth=DEEP) == []


async def test_what_follows_a_corrected_segment_keeps_its_running_maximum() -> None:
    async with rig() as broker:
        await make_topic(broker.shared, partitions=1)
        await broker.send(misdated(*TIMES, said_ms=-1))
        await compact(broker)
        await broker.send(record_batch(b"old", base_timestamp=NOW_MS - 1_000))

        segment = await compact(broker)

        assert (segment.max_timestamp, segment.running_max_timestamp) == (NOW_MS - 1_000, NOW_MS + 4_000)
        assert await asked(broker, NOW_MS + 4_000) == (2, NOW_MS + 4_000)
        assert await found(broker, depth=DEEP) == []


async def test_a_time_that_no_record_has_is_corrected_downwards() -> None:
    async with rig() as broker:
        await make_topic(broker.shared, partitions=1)
        await broker.send(misdated(NOW_MS, said_ms=NOW_MS + 9_000))
        await broker.send(record_batch(b"next", base_timestamp=NOW_MS + 5))
        (only,) = await found(broker, depth=DEEP)
        assert only.kind is FindingKind.HEADER_TIME_WRONG

        segment = await compact(broker)

        assert segment.max_timestamp == NOW_MS + 5
        assert await greatest(broker) == (1, NOW_MS + 5)
        assert await asked(broker, NOW_MS + 6) is None
        assert await found(broker, depth=DEEP) == []


async def test_what_was_answered_before_is_not_remembered_of_what_was_corrected() -> None:
    async with rig() as broker:
        await make_topic(broker.shared, partitions=1)
        sent = [broker.send(misdated(*TIMES, said_ms=-1)), broker.send(record_batch(b"next", base_timestamp=NOW_MS + 3_000))]
        for one in sent:
            await one
        assert len((await broker.manifest()).pending) == 1
        assert await asked(broker, NOW_MS + 2_000) == (3, NOW_MS + 3_000)

        await compact(broker)

        assert await asked(broker, NOW_MS + 2_000) == (1, NOW_MS + 2_000)


async def test_records_that_cannot_be_read_stay_as_they_are() -> None:
    async with rig() as broker:
        await make_topic(broker.shared, partitions=1)
        batch = misdated(*TIMES, said_ms=-1)
        batch[HEADER_BYTES:] = b"\xff" * (len(batch) - HEADER_BYTES)
        batch[17:21] = checksum(batch).to_bytes(4, "big")
        sent = bytes(batch)
        await broker.send(batch)

        segment = await compact(broker)

        assert segment.max_timestamp == -1
        assert bytes(await stored(broker, 0))[16:] == sent[16:]
        assert await found(broker, depth=DEEP) == []


async def test_headers_that_are_wrong_are_found_in_entries_and_in_segments() -> None:
    async with rig() as broker:
        await make_topic(broker.shared, partitions=1)
        await broker.send(record_batch(b"fine"))
        await broker.send(misdated(*TIMES, said_ms=-1))

        (only,) = await found(broker, depth=DEEP)

        assert only.kind is FindingKind.HEADER_TIME_WRONG
        assert only.severity is Severity.WARNING
        assert (only.first_offset, only.last_offset) == (1, 3)
        assert "the first at offset 1: max_timestamp=-1, of its records 1700000004000" in only.found
        assert "compaction corrects it" in only.do
        assert isinstance(await compact(broker), SegmentEntry)
        assert await found(broker, depth=DEEP) == []
