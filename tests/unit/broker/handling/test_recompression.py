"""Topics with a compression.type of their own: what is stored, in which order, and within which bounds."""

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

import pytest
from kio.schema.errors import ErrorCode

from broker.handling import validation
from broker.limits import DEFAULT_BROKER_LIMITS, BrokerLimits
from broker.protocol.produce import PartitionResult
from runtime.blocking import ThreadBlocking
from storage.recordbatch import CODEC_MASK, HEADER_BYTES, checksum, parse_header
from storage.records import decompress_records
from tests.kit.record_batches import NOW_MS, record_batch
from tests.unit.broker.handlers.logged import Node, asking, batches_of, node, produce_request
from tests.unit.process.http.manual_clock import ManualClock

T = TypeVar("T")
CODECS = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


class Gate:
    """Work begins at once, and ends one by one, as a test lets it; `fails` of it in a way that nobody foresaw."""

    def __init__(self, *, is_open: bool = False) -> None:
        self.begun = 0
        self.fails = 0
        self._changed = asyncio.Event()
        self._permits = asyncio.Semaphore(1_000 if is_open else 0)

    async def run(self, call: Callable[[], T]) -> T:
        self.begun += 1
        self._changed.set()
        await self._permits.acquire()
        if self.fails:
            self.fails -= 1
            raise MemoryError
        return call()

    def let(self, count: int = 1) -> None:
        for _ in range(count):
            self._permits.release()

    async def has_begun(self, count: int) -> None:
        async with asyncio.timeout(25):
            while self.begun < count:
                self._changed.clear()
                await self._changed.wait()

    def close(self) -> None:
        pass


class Source:
    """A connection."""


def send(
    broker: Node, *named: tuple[str, int, bytearray], source: object, answered: list[str] | None = None, name: str = ""
) -> "asyncio.Future[list[PartitionResult]]":
    """A request that arrives now; `answered` gets `name` when it is answered."""
    request = produce_request(*named)
    topics = broker.produce.find_topics(request)
    assert topics is not None
    done: asyncio.Future[list[PartitionResult]] = asyncio.get_running_loop().create_future()

    def finish(results: list[PartitionResult]) -> None:
        if answered is not None:
            answered.append(name)
        done.set_result(results)

    broker.produce.start(request, topics, version=9, source=source, done=finish)
    return done


def codes(results: list[PartitionResult]) -> list[ErrorCode]:
    return [ErrorCode(result.error_code) for result in results]


async def stored(broker: Node, topic: str = "t") -> list[bytes]:
    return batches_of(await broker.read_one(asking(topic)))


def records_of(batch: bytes) -> bytes:
    return bytes(decompress_records(memoryview(batch)[HEADER_BYTES:], parse_header(batch).attributes & CODEC_MASK))


async def values_of(broker: Node, topic: str = "t") -> list[bytes]:
    """The value of the one record of each batch, in order; they are all of one byte."""
    return [records_of(batch)[-2:-1] for batch in await stored(broker, topic)]


@pytest.mark.parametrize("sent", range(5))
@pytest.mark.parametrize("kept", CODECS)
async def test_a_topic_keeps_its_batches_in_its_codec_and_they_say_what_was_sent(kept: str, sent: int) -> None:
    async with node(is_deaf=True) as broker:
        await broker.create("t", compression_type=kept)
        values = [b"value %d" % n * 20 for n in range(20)]
        times = [NOW_MS - n for n in range(20)]
        batch = record_batch(*values, timestamps=times, codec=sent, producer_id=7, producer_epoch=0, base_sequence=0)
        header = parse_header(batch)
        first, second = await broker.send(("t", 0, batch)), await broker.send(("t", 0, record_batch(b"x", codec=sent)))

        assert (codes(first), first[0].base_offset) == ([ErrorCode.none], 0)
        assert (codes(second), second[0].base_offset) == ([ErrorCode.none], 20)
        made, _ = await stored(broker)
        found = parse_header(made)
        assert found.crc == checksum(made)
        assert found == header._replace(attributes=CODECS[kept], batch_length=len(made) - 12, partition_leader_epoch=0, crc=found.crc)
        assert records_of(made) == records_of(bytes(record_batch(*values, timestamps=times)))


@pytest.mark.parametrize("kept", [*CODECS, "producer"])
async def test_what_has_the_codec_already_is_not_touched(kept: str) -> None:
    gate = Gate()
    async with node(is_deaf=True, blocking=gate) as broker:
        await broker.create("t", compression_type=kept)
        batch = record_batch(b"a" * 100, codec=CODECS.get(kept, 3))
        sent = bytes(batch)
        assert codes(await broker.send(("t", 0, batch))) == [ErrorCode.none]

        (kept_bytes,) = await stored(broker)
        assert kept_bytes[16:] == sent[16:]
        assert gate.begun == 0


async def test_append_time_is_the_broker_s_in_any_codec() -> None:
    async with node(is_deaf=True) as broker:
        await broker.create("t", compression_type="zstd", message_timestamp_type="LogAppendTime")
        (result,) = await broker.send(("t", 0, record_batch(b"a", timestamps=[NOW_MS - 5_000])))
        (made,) = await stored(broker)

        assert result.log_append_time_ms == NOW_MS
        assert parse_header(made).attributes == 4 | 0x08
        assert (parse_header(made).max_timestamp, parse_header(made).crc) == (NOW_MS, checksum(made))


def broken(codec: int) -> bytearray:
    whole = record_batch(b"a" * 100, codec=codec)
    records = b"\xff" * (len(whole) - HEADER_BYTES - 6)
    whole[HEADER_BYTES + 6 :] = records
    whole[17:21] = checksum(whole).to_bytes(4, "big")
    return whole


@pytest.mark.parametrize("codec", range(1, 5))
async def test_what_cannot_be_decompressed_is_refused_for_good_and_the_rest_of_its_request_is_not(codec: int) -> None:
    async with node(is_deaf=True) as broker:
        await broker.create("t", partition_count=2, compression_type="zstd" if codec != 4 else "gzip")
        await broker.create("u")
        results = await broker.send(
            ("u", 0, record_batch(b"a")), ("t", 0, broken(codec)), ("t", 1, record_batch(b"b")), ("nope", 0, record_batch(b"c"))
        )

        assert codes(results) == [
            ErrorCode.none,
            ErrorCode.invalid_record,
            ErrorCode.none,
            ErrorCode.unknown_topic_or_partition,
        ]
        assert "do not decompress" in (results[1].error_message or "")
        assert codes(await broker.send(("t", 0, record_batch(b"d")))) == [ErrorCode.none]


async def test_what_is_too_large_as_it_is_kept_is_refused() -> None:
    async with node(is_deaf=True) as broker:
        await broker.create("plain", compression_type="uncompressed", max_message_bytes="1000")
        await broker.create("packed", compression_type="gzip", max_message_bytes="30000")
        small = record_batch(bytes(5_000), codec=4)
        noise = record_batch(bytes((n * n * 7919 >> 3) & 0xFF for n in range(29_000)), codec=4)
        assert len(small) < 1_000
        (plain,), (packed,) = await broker.send(("plain", 0, small)), await broker.send(("packed", 0, noise))

        assert ErrorCode(plain.error_code) is ErrorCode.message_too_large
        assert "max.message.bytes is 1000" in (plain.error_message or "")
        assert ErrorCode(packed.error_code) is ErrorCode.none


async def test_a_batch_does_not_overtake_one_of_its_connection_that_is_compressed_anew() -> None:
    gate = Gate()
    async with node(is_deaf=True, blocking=gate) as broker:
        await broker.create("t", compression_type="lz4")
        one = Source()
        answered: list[str] = []
        sent = [
            send(broker, ("t", 0, record_batch(b"0", codec=0)), source=one, answered=answered, name="0"),
            send(broker, ("t", 0, record_batch(b"1", codec=3)), source=one, answered=answered, name="1"),
            send(broker, ("t", 0, record_batch(b"2", codec=4)), source=one, answered=answered, name="2"),
            send(broker, ("t", 0, record_batch(b"3", codec=3)), source=one, answered=answered, name="3"),
        ]
        await gate.has_begun(1)
        other = await send(broker, ("t", 0, record_batch(b"x", codec=3)), source=Source())
        assert (codes(other), answered) == ([ErrorCode.none], []), "another connection's batches wait for nothing"

        gate.let(2)
        results = await asyncio.gather(*sent)
        assert [codes(result) for result in results] == [[ErrorCode.none]] * 4
        assert [result[0].base_offset for result in results] == [1, 2, 3, 4]
        assert await values_of(broker) == [b"x", b"0", b"1", b"2", b"3"]


async def test_order_is_kept_when_the_topic_goes_back_to_the_producer_s_codec_meanwhile() -> None:
    gate = Gate()
    async with node(is_deaf=True, blocking=gate) as broker:
        topic = await broker.create("t", compression_type="lz4")
        one = Source()
        first = send(broker, ("t", 0, record_batch(b"0")), source=one)
        await gate.has_begun(1)
        await broker.topics.alter_configs(topic, lambda _: {})
        await broker.topics.lookup(["t"])
        second = send(broker, ("t", 0, record_batch(b"1")), source=one)
        gate.let()
        await asyncio.gather(first, second)

        assert await values_of(broker) == [b"0", b"1"]


async def test_an_idempotent_producer_keeps_its_sequence_whatever_has_to_be_done() -> None:
    def numbered(sequence: int, codec: int) -> bytearray:
        return record_batch(b"%d" % sequence, codec=codec, producer_id=7, producer_epoch=0, base_sequence=sequence)

    async with node(is_deaf=True, blocking=ThreadBlocking(threads=2, name="test")) as broker:
        await broker.create("t", compression_type="zstd")
        one = Source()
        results = await asyncio.gather(*(send(broker, ("t", 0, numbered(sequence, sequence % 5)), source=one) for sequence in range(10)))
        again = await send(broker, ("t", 0, numbered(7, 2)), source=one)

        assert [codes(result) for result in results] == [[ErrorCode.none]] * 10
        assert [result[0].base_offset for result in results] == list(range(10))
        assert again[0].base_offset == 7, "a retry is compressed again and found to be one"
        assert await values_of(broker) == [b"%d" % sequence for sequence in range(10)]


async def test_partitions_and_topics_that_need_no_work_do_not_wait() -> None:
    gate = Gate()
    async with node(is_deaf=True, blocking=gate) as broker:
        await broker.create("t", partition_count=2, compression_type="lz4")
        await broker.create("plain")
        one = Source()
        slow = send(broker, ("t", 0, record_batch(b"0")), source=one)
        await gate.has_begun(1)
        other = await send(broker, ("t", 1, record_batch(b"1", codec=3)), ("plain", 0, record_batch(b"2")), source=one)

        assert codes(other) == [ErrorCode.none] * 2
        assert not slow.done()
        gate.let()
        assert codes(await slow) == [ErrorCode.none]


async def test_work_is_done_off_the_loop_by_few_threads() -> None:
    loop_thread = threading.get_ident()
    seen: set[int] = set()

    class Watched(ThreadBlocking):
        async def run(self, call: Callable[[], T]) -> T:
            def noted() -> T:
                seen.add(threading.get_ident())
                return call()

            return await super().run(noted)

    async with node(is_deaf=True, blocking=Watched(threads=validation.THREADS, name="test")) as broker:
        await broker.create("t", compression_type="lz4")
        await asyncio.gather(*(send(broker, ("t", 0, record_batch(b"0")), source=source) for source in [Source() for _ in range(20)]))

    assert loop_thread not in seen
    assert 1 <= len(seen) <= validation.THREADS


async def test_lines_take_turns() -> None:
    gate = Gate()
    async with node(is_deaf=True, blocking=gate) as broker:
        await broker.create("t", compression_type="lz4")
        greedy, modest = Source(), Source()
        answered: list[str] = []
        many = [send(broker, ("t", 0, record_batch(b"g")), source=greedy, answered=answered, name=f"g{n}") for n in range(10)]
        one = send(broker, ("t", 0, record_batch(b"m")), source=modest, answered=answered, name="m")
        await gate.has_begun(2)
        gate.let(2)
        await one
        assert len(answered) <= 3
        gate.let(20)
        await asyncio.gather(*many)


async def test_what_waited_for_too_long_is_refused_with_all_that_follows_it() -> None:
    gate, clock = Gate(), ManualClock()
    async with node(is_deaf=True, blocking=gate, recompression_clock=clock) as broker:
        await broker.create("t", compression_type="lz4")
        one = Source()
        under_way = send(broker, ("t", 0, record_batch(b"0")), source=one)
        late = [send(broker, ("t", 0, record_batch(b"1", codec=codec)), source=one) for codec in (0, 3, 0)]
        await gate.has_begun(1)
        clock.advance(DEFAULT_BROKER_LIMITS.recompression_wait_s_max + 1)
        gate.let()

        assert codes(await under_way) == [ErrorCode.none]
        assert [codes(result) for result in await asyncio.gather(*late)] == [[ErrorCode.request_timed_out]] * 3
        gate.let()
        assert codes(await send(broker, ("t", 0, record_batch(b"2")), source=one)) == [ErrorCode.none]
        assert await values_of(broker) == [b"0", b"2"]


async def test_results_that_are_not_answered_yet_are_bounded_however_small_what_was_sent() -> None:
    gate = Gate(is_open=True)
    async with node(is_deaf=True, blocking=gate, request_limits=BrokerLimits(recompressed_bytes_max=150_000)) as broker:
        await broker.create("t", compression_type="uncompressed")
        sent = [send(broker, ("t", 0, record_batch(bytes(100_000), codec=4)), source=Source()) for _ in range(12)]
        most = 0
        while not all(result.done() for result in sent):
            most = max(most, broker.produce._recompression.results_bytes)
            await asyncio.sleep(0)

        assert [codes(result.result()) for result in sent] == [[ErrorCode.none]] * 12
        assert 100_000 < most < 150_000 + validation.THREADS * 101_000
        assert broker.produce._recompression.results_bytes == 0
        assert not broker.produce._recompression.lines


async def test_one_request_has_a_bound_of_its_own_and_what_is_beyond_may_be_sent_again() -> None:
    async with node(is_deaf=True, request_limits=BrokerLimits(recompressed_of_request_bytes_max=150_000)) as broker:
        await broker.create("t", partition_count=4, compression_type="uncompressed")
        results = await broker.send(*(("t", partition, record_batch(bytes(100_000), codec=4)) for partition in range(4)))

        assert sorted(codes(results)) == sorted([ErrorCode.none] * 2 + [ErrorCode.kafka_storage_error] * 2)
        assert ErrorCode.kafka_storage_error.retriable


async def test_a_failure_that_nobody_foresaw_refuses_one_batch_and_nothing_else() -> None:
    gate = Gate(is_open=True)
    gate.fails = 1
    async with node(is_deaf=True, blocking=gate) as broker:
        await broker.create("t", compression_type="lz4")

        assert codes(await broker.send(("t", 0, record_batch(b"0")))) == [ErrorCode.unknown_server_error]
        assert codes(await broker.send(("t", 0, record_batch(b"1")))) == [ErrorCode.none]
