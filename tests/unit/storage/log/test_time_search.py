"""Offsets by time, against a plain list of records."""

import asyncio
import random
import struct
from collections.abc import AsyncIterator, Callable
from typing import Any

import cramjam
import pytest
from crc32c import crc32c

from compactor.compaction import CompactionEnd
from compactor.plan import CompactionPolicy
from runtime.blocking import InlineBlocking, T
from storage.errors import Unavailable
from storage.formats.manifest import Entry
from storage.log import time_search
from storage.log.index import check_range
from storage.log.limits import DEFAULT_LIMITS, LogLimits
from storage.log.partition import PartitionLog
from storage.log.time_search import TimestampedOffset
from storage.metadata import memory
from tests.unit.compactor.compacting import compacting
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
        for n in range(3 * DEFAULT_LIMITS.pending_entries_max):
            await broker.send(timed(n * 10))

        for n in range(3 * DEFAULT_LIMITS.pending_entries_max):
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


def gets_of(broker: Rig) -> list[str]:
    """The objects that are read from now on, one by one."""
    gets: list[str] = []
    inner: Any = broker.objects.inner
    real = inner.get_range

    async def get_range(key: str, start: int, end: int) -> bytes:
        gets.append(key)
        body: bytes = await real(key, start, end)
        return body

    inner.get_range = get_range
    return gets


async def trim(broker: Rig, before: int) -> None:
    await broker.parts.trimmer.trim(PARTITION, before)


async def maximum(broker: Rig) -> TimestampedOffset | None:
    return await broker.parts.time_search.of_maximum(PARTITION)


async def test_the_greatest_timestamp_that_trimming_left_is_found_in_one_object() -> None:
    async with rig() as broker:
        await broker.send(timed(9_000))
        for n in range(100):
            await broker.send(timed(1_000 + n))
        await trim(broker, 1)
        gets = gets_of(broker)

        assert await maximum(broker) == (100, 1_099)
        assert len(gets) == 1
        assert await maximum(broker) == (100, 1_099)
        assert len(gets) == 1, "entries and batches never change, so nor does what was found in them"


async def test_entries_are_gone_through_once_whatever_is_trimmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Timestamps that fall: each trim takes the greatest one away."""
    added: list[int] = []
    add = time_search.EntryTimes.add
    monkeypatch.setattr(time_search.EntryTimes, "add", lambda self, entry: (added.append(entry.base), add(self, entry)))
    count = 6 * DEFAULT_LIMITS.pending_entries_max
    async with rig() as broker:
        for n in range(count):
            await broker.send(timed(5_000 - n))
        for n in range(1, count):
            await trim(broker, n)
            assert await maximum(broker) == (n, 5_000 - n)
            assert await search(broker, 5_001 - n) is None

        assert len(added) <= count


@pytest.mark.parametrize("block_bytes", [0, 1, 300, 1_000_000], ids=["uncompacted", "a batch in each block", "a few", "one block"])
async def test_answers_are_those_of_a_list_of_records_whatever_is_trimmed_or_compacted(block_bytes: int) -> None:
    compacted = 0
    limits = LogLimits(entries_timed_max=3, chunks_per_turn=1)
    for seed in range(8):
        chance = random.Random(seed)
        times: list[int] = []
        log_start = 0
        policy = CompactionPolicy(
            entries_due=chance.randint(1, 12), segment_bytes=chance.choice((300, 3_000)), block_bytes=block_bytes or 1
        )
        async with (
            rig(limits=limits) as broker,
            compacting(broker.shared, broker.objects, policy=policy, log_limits=limits) as compaction,
        ):
            for _ in range(120):
                match chance.choice(("send", "send", "send", "trim", "greatest", "first", "first", "compact")):
                    case "compact":
                        compacted += block_bytes > 0 and (await compaction.run(PARTITION)).ended is CompactionEnd.COMPACTED
                    case "send":
                        batch = [chance.choice((chance.randrange(40), 40 - len(times) // 8, 7)) for _ in range(chance.randint(1, 4))]
                        await broker.send(timed(*batch, codec=chance.choice((0, 4))))
                        times += batch
                    case "trim":
                        log_start = chance.randint(log_start, min(len(times), log_start + 6))
                        await trim(broker, log_start)
                    case "greatest":
                        left = list(enumerate(times))[log_start:]
                        expected = max(left, key=lambda found: (found[1], -found[0]), default=None)
                        assert await maximum(broker) == expected, f"seed={seed} log_start={log_start} times={times}"
                    case "first":
                        wanted = chance.randrange(42)
                        first = next(((at, time) for at, time in list(enumerate(times))[log_start:] if time >= wanted), None)
                        assert await search(broker, wanted) == first, f"seed={seed} wanted={wanted} log_start={log_start} times={times}"

    assert (compacted > 20) is (block_bytes > 0)


async def test_a_log_that_is_trimmed_while_it_is_searched_is_searched_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig() as broker:
        for time in (1_000, 2_000, 3_000, 4_000):
            await broker.send(timed(time))
        search = broker.parts.time_search
        log = broker.parts.partitions.get(PARTITION)
        inner = search._index.find
        trims = [2]

        async def find(log: PartitionLog, offset: int) -> Entry:
            """As it is when the keys of entries below log_start are gone, too."""
            if trims:
                await broker.parts.trimmer.trim(PARTITION, trims.pop())
            check_range(log, offset)
            return await inner(log, offset)

        monkeypatch.setattr(search._index, "find", find)

        assert await search.first_at_or_after(PARTITION, 1_000) == TimestampedOffset(2, 3_000)
        assert log.seen.manifest is not None
        trims.append(3)
        assert await search.first_at_or_after(PARTITION, 3_000) == TimestampedOffset(3, 4_000)
        async with rig(shared=broker.shared, objects=broker.objects.inner, limits=LogLimits(trims_met_max=0)) as other:
            with pytest.raises(Unavailable, match="trimmed or compacted faster"):
                await other.parts.time_search.of_maximum(PARTITION)


async def test_of_records_without_a_time_the_first_has_the_greatest_one() -> None:
    """As Apache Kafka 4.3.1 answers."""
    async with rig() as broker:
        await broker.send(timed(-1, -1))
        await broker.send(timed(-1))

        assert await search(broker, 0) is None
        assert await maximum(broker) == (0, -1)
        await trim(broker, 1)
        assert await maximum(broker) == (1, -1)
        await broker.send(timed(7))
        assert await maximum(broker) == (3, 7)
        await broker.send(timed(-1))
        await trim(broker, 4)
        assert await maximum(broker) == (4, -1)


async def test_a_search_that_takes_too_long_is_refused_and_goes_on_where_it_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig(limits=LogLimits(scan_s=0.05)) as broker:
        await broker.send(timed(9_000))
        for n in range(8 * DEFAULT_LIMITS.pending_entries_max):
            await broker.send(timed(n))
        await trim(broker, 1)
        scan = memory.MemoryMetadataStore.range_scan
        chunks = 0

        async def slow(self: memory.MemoryMetadataStore, *asked: Any) -> AsyncIterator[Any]:
            nonlocal chunks
            async for record in scan(self, *asked):
                await asyncio.sleep(0.02)
                chunks += 1
                yield record

        monkeypatch.setattr(memory.MemoryMetadataStore, "range_scan", slow)
        with pytest.raises(Unavailable, match="too many entries"):
            await maximum(broker)
        for _ in range(100):
            try:
                found = await maximum(broker)
                break
            except Unavailable:
                continue

        assert found == (8 * DEFAULT_LIMITS.pending_entries_max, 8 * DEFAULT_LIMITS.pending_entries_max - 1)
        assert chunks <= 3 * 8


class Walking(InlineBlocking):
    def __init__(self) -> None:
        self.calls = 0

    async def run(self, call: Callable[[], T]) -> T:
        self.calls += 1
        return call()


async def test_records_are_walked_off_the_loop_once_and_not_more_than_so_many() -> None:
    walking = Walking()
    async with rig(walking=walking, limits=LogLimits(records_walked_max=50)) as broker:
        await broker.send(timed(1))
        await broker.send(timed(*range(100, 300), codec=4))

        assert await search(broker, 120) == (21, 120), "within the bound it is found exactly"
        assert await search(broker, 250) == (51, 299), "behind it, the offset where the looking ended: never one too far"
        assert await maximum(broker) == (51, 299)
        walked = walking.calls
        for _ in range(10):
            await search(broker, 250)

        assert walking.calls == walked == 3
        await trim(broker, 30)
        assert await maximum(broker) == (51, 299)


async def test_the_greatest_time_of_what_was_appended_with_a_record_is_told_without_a_look_into_an_object() -> None:
    async with rig() as broker:
        await broker.send(timed(100, 130, 110))
        await broker.send(timed(90))
        await broker.send(timed(-1))
        times = broker.parts.time_search

        assert [await times.greatest_around(PARTITION, offset) for offset in range(6)] == [130, 130, 130, 90, -1, None]
