"""The greatest time in a header, from Produce to what is stored and found by time."""

import asyncio

import pytest
from kio.schema.errors import ErrorCode

from broker.handling.validation import READ_AT_ONCE_RECORDS_MAX
from broker.protocol.produce import PartitionRecords, PartitionResult
from storage.recordbatch import HEADER_BYTES, checksum, parse_header
from storage.records import decompress_records
from tests.kit.record_batches import NOW_MS, record_batch
from tests.unit.broker.handlers.logged import Node, node
from tests.unit.broker.handling.test_recompression import Source, codes, send, stored

TIMES = (NOW_MS - 9_000, NOW_MS - 5_000, NOW_MS - 7_000)
GREATEST_MS = NOW_MS - 5_000
TOPICS = {
    "plain": {},
    "compacted": {"cleanup_policy": "compact"},
    "bounded": {"message_timestamp_before_max_ms": "3600000"},
    "compressed again": {"compression_type": "snappy"},
}


def misdated(said_ms: int, *, codec: int = 0, times: tuple[int, ...] = TIMES, **header: int) -> bytearray:
    values, keys = [b"%d" % n for n in range(len(times))], (b"k",) * len(times)
    return record_batch(*values, keys=keys, timestamps=times, base_timestamp=times[0], max_timestamp=said_ms, codec=codec, **header)


async def found(broker: Node, timestamp_ms: int) -> tuple[int, int] | None:
    (topic,) = (await broker.topics.lookup(["t"])).values()
    return await broker.log.parts.time_search.first_at_or_after(topic.partition(0), timestamp_ms)


async def send_lone(broker: Node, batch: bytearray) -> PartitionResult:
    """As a connection whose request is like its last one."""
    lone = broker.produce.find_lone("t", 0)
    assert lone is not None
    done: asyncio.Future[PartitionResult] = asyncio.get_running_loop().create_future()
    named = PartitionRecords("t", 0, memoryview(batch))
    broker.produce.start_lone(named, lone, version=9, source=broker, done=done.set_result)
    return await done


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("said_ms", [-1, 0, TIMES[0], NOW_MS + 7_200_000], ids=["none", "zero", "first", "ahead"])
async def test_a_batch_is_stored_with_the_greatest_time_of_its_records(topic: str, codec: int, said_ms: int) -> None:
    async with node(is_deaf=True) as broker:
        created = await broker.create("t", **TOPICS[topic])
        assert codes(await broker.send(("t", 0, misdated(said_ms, codec=codec)))) == [ErrorCode.none]
        (batch,) = await stored(broker)
        header = parse_header(batch)
        records = decompress_records(batch[HEADER_BYTES:], header.attributes & 7)

        assert header.max_timestamp == GREATEST_MS
        assert header.crc == checksum(batch)
        assert bytes(records) == bytes(misdated(said_ms)[HEADER_BYTES:])
        assert broker.log_of(created).seen.manifest.max_timestamp == GREATEST_MS
        assert await found(broker, TIMES[0] + 1) == (1, GREATEST_MS)
        assert await found(broker, GREATEST_MS + 1) is None


@pytest.mark.parametrize("codec", range(5))
async def test_a_topic_that_stamps_batches_has_its_own_time(codec: int) -> None:
    async with node(is_deaf=True) as broker:
        await broker.create("t", message_timestamp_type="LogAppendTime")
        await broker.send(("t", 0, misdated(-1, codec=codec)))

        assert [parse_header(batch).max_timestamp for batch in await stored(broker)] == [NOW_MS]


@pytest.mark.parametrize("codec", range(5))
async def test_a_request_like_the_last_one_is_corrected_too(codec: int) -> None:
    async with node(is_deaf=True) as broker:
        await broker.create("t")
        results = [await send_lone(broker, misdated(said_ms, codec=codec)) for said_ms in (GREATEST_MS, -1)]
        long = misdated(-1, codec=codec, times=(NOW_MS - 1, *[NOW_MS] * (8 * READ_AT_ONCE_RECORDS_MAX)))
        results.append(await send_lone(broker, long))
        refused = await send_lone(broker, misdated(-1, codec=codec)[:-1])

        assert [(result.error_code, result.base_offset) for result in results] == [(0, 0), (0, 3), (0, 6)]
        assert [parse_header(batch).max_timestamp for batch in await stored(broker)] == [GREATEST_MS, GREATEST_MS, NOW_MS]
        assert refused.error_code


@pytest.mark.parametrize("codec", range(5))
async def test_a_long_batch_is_read_in_a_thread_and_its_connection_s_batches_stay_in_order(codec: int) -> None:
    times = (NOW_MS - 2, *[NOW_MS] * (8 * READ_AT_ONCE_RECORDS_MAX))
    async with node(is_deaf=True) as broker:
        await broker.create("t")
        one = Source()
        first = send(broker, ("t", 0, misdated(-1, codec=codec, times=times)), source=one)
        second = send(broker, ("t", 0, misdated(GREATEST_MS)), source=one)
        results = [*await first, *await second]

        assert [(result.error_code, result.base_offset) for result in results] == [(0, 0), (0, len(times))]
        assert [parse_header(batch).max_timestamp for batch in await stored(broker)] == [NOW_MS, GREATEST_MS]


@pytest.mark.parametrize("codec", range(1, 5))
async def test_a_compressed_batch_at_its_first_time_is_read_until_its_connection_has_sent_a_later_one(codec: int) -> None:
    async with node(is_deaf=True) as broker:
        await broker.create("t")
        one, other = Source(), Source()
        for said_ms, source in ((TIMES[0], one), (GREATEST_MS, one), (TIMES[0], one), (-1, one), (TIMES[0], other)):
            await send(broker, ("t", 0, misdated(said_ms, codec=codec)), source=source)

        found = [parse_header(batch).max_timestamp for batch in await stored(broker)]
        assert found == [GREATEST_MS, GREATEST_MS, TIMES[0], GREATEST_MS, GREATEST_MS]


@pytest.mark.parametrize("topic", TOPICS)
async def test_a_record_too_far_ahead_is_refused_whatever_the_header_says(topic: str) -> None:
    async with node(is_deaf=True) as broker:
        await broker.create("t", **TOPICS[topic])
        for said_ms in (-1, NOW_MS, NOW_MS + 7_200_000):
            (result,) = await broker.send(("t", 0, misdated(said_ms, times=(NOW_MS, NOW_MS + 7_200_000))))
            assert ErrorCode(result.error_code) is ErrorCode.invalid_timestamp
            assert [index for index, _ in result.record_errors] == [1]
