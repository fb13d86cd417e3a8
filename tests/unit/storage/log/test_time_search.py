"""Offsets by time, against a plain list of records."""

import struct

import cramjam
import pytest
from crc32c import crc32c

from storage.limits import PENDING_ENTRIES_MAX
from storage.log.timestamps import TimestampedOffset
from tests.unit.storage.log.rig import PARTITION, Rig, rig


def varint(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def timed(*timestamps: int, codec: int = 0) -> bytearray:
    """A batch of one record per timestamp, as a producer writes it."""
    base, records = timestamps[0], b""
    for delta, timestamp in enumerate(timestamps):
        body = b"\x00" + varint(timestamp - base) + varint(delta) + varint(-1) + varint(1) + b"v" + varint(0)
        records += varint(len(body)) + body
    compress = {1: cramjam.gzip.compress, 2: cramjam.snappy.compress_raw, 3: cramjam.lz4.compress, 4: cramjam.zstd.compress}
    payload = bytes(compress[codec](records)) if codec else records
    count = len(timestamps)
    body = struct.pack(">hiqqqhii", codec, count - 1, base, max(timestamps), -1, -1, -1, count) + payload
    return bytearray(struct.pack(">qiibI", 0, 49 + len(payload), -1, 2, crc32c(body)) + body)


async def search(broker: Rig, timestamp: int) -> TimestampedOffset | None:
    return await broker.parts.time_search.first_at_or_after(PARTITION, timestamp)


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4], ids=["none", "gzip", "snappy", "lz4", "zstd"])
async def test_the_first_record_at_or_after_a_time_is_found_inside_its_batch(codec: int) -> None:
    async with rig() as broker:
        await broker.send(timed(100, 110, 120, codec=codec))
        await broker.send(timed(130, 140, codec=codec))

        assert await search(broker, 0) == (0, 100)
        assert await search(broker, 110) == (1, 110)
        assert await search(broker, 111) == (2, 120)
        assert await search(broker, 140) == (4, 140)
        assert await search(broker, 141) is None


async def test_times_that_go_back_give_the_first_record_that_reaches_the_time() -> None:
    times = [50, 10, 90, 20, 60, 95, 5]
    async with rig() as broker:
        for time in times:
            await broker.send(timed(time))

        for wanted in range(100):
            expected = next(((offset, time) for offset, time in enumerate(times) if time >= wanted), None)
            assert await search(broker, wanted) == expected


async def test_times_are_found_in_entries_that_left_the_ring() -> None:
    async with rig() as broker:
        for n in range(3 * PENDING_ENTRIES_MAX):
            await broker.send(timed(n * 10))

        for n in range(3 * PENDING_ENTRIES_MAX):
            assert await search(broker, n * 10 - 5) == (n, n * 10)


async def test_the_greatest_timestamp_is_found_with_its_offset() -> None:
    async with rig() as broker:
        assert await broker.parts.time_search.of_maximum(PARTITION) is None
        await broker.send(timed(10, 99, 20))
        await broker.send(timed(50))

        assert await broker.parts.time_search.of_maximum(PARTITION) == (1, 99)


async def test_records_that_do_not_decode_are_known_by_their_header() -> None:
    async with rig() as broker:
        good = timed(100)
        broken = timed(200, 210)
        broken[61:] = b"\xff" * (len(broken) - 61)
        broken[17:21] = struct.pack(">I", crc32c(bytes(broken[21:])))
        await broker.send(good)
        await broker.send(broken)

        assert await search(broker, 205) == (1, 210)
