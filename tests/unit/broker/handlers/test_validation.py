"""A broker that reads every record: what it refuses and names, what goes on beside it, and in which order."""

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from kio.schema.errors import ErrorCode

from broker.handling import validation
from broker.handling.validation import LEAVING_MAX, READ_AT_ONCE_BYTES_MAX, READ_AT_ONCE_HEADERS_EACH_MAX, READ_AT_ONCE_RECORDS_MAX, THREADS
from broker.limits import BrokerLimits
from runtime.blocking import ThreadBlocking
from storage.recordbatch import checksum, parse_header
from tests.kit.record_batches import NOW_MS, batch_of_records, record, record_batch, varint
from tests.unit.broker.handlers.logged import node
from tests.unit.broker.handling.test_recompression import Gate, Source, broken, codes, send, stored, values_of

T = TypeVar("T")


def misnumbered(codec: int = 0, **header: int) -> bytearray:
    """Three records, of which the second says that it is the eighth."""
    return batch_of_records(b"".join(record(b"a", offset_delta=delta) for delta in (0, 7, 2)), 3, codec=codec, **header)


def numbered(sequence: int, value: bytes = b"x", codec: int = 3) -> bytearray:
    return record_batch(value, codec=codec, producer_id=7, producer_epoch=0, base_sequence=sequence)


def large(value: bytes = b"x", **header: int) -> bytearray:
    """One record that only a thread reads; it begins with `value`."""
    return record_batch(value * READ_AT_ONCE_BYTES_MAX, codec=3, **header)


@pytest.mark.parametrize("codec", range(5))
async def test_a_record_that_consumers_could_not_read_is_refused_and_named_and_its_neighbours_are_not(codec: int) -> None:
    async with node(is_deaf=True, reads_records=True) as broker:
        await broker.create("t", partition_count=3)
        results = await broker.send(("t", 0, record_batch(b"a")), ("t", 1, misnumbered(codec)), ("t", 2, record_batch(b"c", codec=codec)))

        assert codes(results) == [ErrorCode.none, ErrorCode.invalid_record, ErrorCode.none]
        assert results[1].record_errors == ((1, "record 1: offset deltas count from 0: expected=1 found=7"),)
        assert results[1].error_message == results[1].record_errors[0][1]
        assert codes(await broker.send(("t", 1, record_batch(b"d", codec=codec)))) == [ErrorCode.none]


@pytest.mark.parametrize("codec", range(1, 5))
async def test_what_does_not_decompress_is_refused_and_is_taken_by_a_broker_that_trusts_checksums(codec: int) -> None:
    async with node(is_deaf=True, reads_records=True) as broker:
        await broker.create("t", partition_count=2)
        results = await broker.send(("t", 0, broken(codec)), ("t", 1, record_batch(b"b")))
        assert codes(results) == [ErrorCode.invalid_record, ErrorCode.none]
        assert "do not decompress" in (results[0].error_message or "")
        assert results[0].record_errors == ()
    async with node(is_deaf=True) as broker:
        await broker.create("t")
        assert codes(await broker.send(("t", 0, broken(codec)))) == [ErrorCode.none]


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("topic", [{}, {"message_timestamp_type": "LogAppendTime"}], ids=["create time", "append time"])
async def test_what_is_taken_is_stored_as_it_was_sent(codec: int, topic: dict[str, str]) -> None:
    async with node(is_deaf=True, reads_records=True) as broker:
        await broker.create("t", **topic)
        batch = record_batch(*[b"x" * 50] * 100, codec=codec, timestamps=[NOW_MS - 5] * 100)
        sent = bytes(batch)
        (result,) = await broker.send(("t", 0, batch))
        (made,) = await stored(broker)

        assert (result.error_code, result.base_offset) == (0, 0)
        assert made[61:] == sent[61:]
        assert parse_header(made).crc == checksum(made)
        assert parse_header(made).max_timestamp == (NOW_MS if topic else NOW_MS - 5)


async def test_a_batch_is_read_and_then_compressed_anew_where_a_topic_wants_both() -> None:
    async with node(is_deaf=True, reads_records=True) as broker:
        await broker.create("t", compression_type="zstd")
        bad, good = await broker.send(("t", 0, misnumbered(3))), await broker.send(("t", 0, record_batch(b"a", codec=3)))

        assert codes(bad) == [ErrorCode.invalid_record]
        assert codes(good) == [ErrorCode.none]
        assert parse_header((await stored(broker))[0]).attributes == 4


async def test_each_record_s_timestamp_is_judged_and_not_only_what_the_header_says() -> None:
    batch = record_batch(b"a", b"b", timestamps=(NOW_MS, NOW_MS + 7_200_000), base_timestamp=NOW_MS, max_timestamp=NOW_MS)
    async with node(is_deaf=True, reads_records=True) as broker:
        await broker.create("t")
        (result,) = await broker.send(("t", 0, batch))

        assert ErrorCode(result.error_code) is ErrorCode.invalid_timestamp
        assert [index for index, _ in result.record_errors] == [1]


LONG = READ_AT_ONCE_RECORDS_MAX + 1
"""Records of a batch that the loop does not read."""


@pytest.mark.parametrize("codec", range(5))
async def test_little_is_read_on_the_loop_and_the_rest_in_a_thread(codec: int) -> None:
    gate = Gate(is_open=True)
    few = READ_AT_ONCE_RECORDS_MAX
    noise = random.Random(1).randbytes(READ_AT_ONCE_BYTES_MAX)
    async with node(is_deaf=True, reads_records=True, blocking=gate) as broker:
        await broker.create("t", partition_count=2)

        def few_records(count: int) -> bytearray:
            return record_batch(*[noise[n * 8 : n * 8 + 8] for n in range(count)], codec=codec)

        await broker.send(("t", 0, few_records(few)))
        await broker.send(("t", 0, few_records(few // 2)), ("t", 1, few_records(few // 2)))
        await broker.send(("t", 0, few_records(few)), ("t", 1, few_records(1)))
        assert gate.begun == 0, "the last of them in the turn after"
        for large in (few_records(few + 1), record_batch(noise, codec=codec), record_batch(b"x" * READ_AT_ONCE_BYTES_MAX, codec=codec)):
            begun = gate.begun
            assert codes(await broker.send(("t", 0, large))) == [ErrorCode.none]
            assert gate.begun == begun + 1


@pytest.mark.parametrize("shared", ["records", "bytes"])
async def test_short_batches_are_read_in_turns_of_the_loop_however_many_there_are(shared: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(is_open=True)
    turns, read_in = 0, list[int]()
    check = validation.check_records

    def counted(*args: Any, **kwargs: Any) -> Any:
        read_in.append(turns)
        return check(*args, **kwargs)

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(validation, "check_records", counted)
    async with node(is_deaf=True, reads_records=True, blocking=gate) as broker:
        await broker.create("t", partition_count=100)
        noise = random.Random(1).randbytes(4_000)
        batch = record_batch(noise, codec=4) if shared == "bytes" else record_batch(*[b"x"] * 64, codec=4)
        async with asyncio.TaskGroup() as tasks:
            counting = tasks.create_task(count())
            results = await broker.send(*(("t", partition, bytearray(batch)) for partition in range(100)))
            counting.cancel()

        assert codes(results) == [ErrorCode.none] * 100
        assert gate.begun == 0
        assert len(read_in) == 100
        assert max(Counter(read_in).values()) <= THREADS * 4
        assert not broker.produce._recompression.lines


async def test_a_connection_with_many_partitions_does_not_keep_the_threads_from_others() -> None:
    gate = Gate()
    async with node(is_deaf=True, reads_records=True, blocking=gate) as broker:
        await broker.create("t", partition_count=50)
        greedy = send(broker, *(("t", partition, large()) for partition in range(50)), source=Source())
        await gate.has_begun(2)
        modest = send(broker, ("t", 0, large()), source=Source())
        gate.let(4)
        async with asyncio.timeout(25):
            assert codes(await modest) == [ErrorCode.none]
        assert not greedy.done()
        gate.let(50)
        assert codes(await greedy) == [ErrorCode.none] * 50


async def test_records_of_many_headers_are_not_read_on_the_loop() -> None:
    gate = Gate(is_open=True)
    async with node(is_deaf=True, reads_records=True, blocking=gate) as broker:
        await broker.create("t")

        def of_headers(count: int) -> bytearray:
            body = b"\x00" * 3 + varint(-1) * 2 + varint(count) + (varint(0) + varint(-1)) * count
            return batch_of_records(varint(len(body)) + body, 1)

        assert codes(await broker.send(("t", 0, of_headers(READ_AT_ONCE_HEADERS_EACH_MAX)))) == [ErrorCode.none]
        assert gate.begun == 0
        assert codes(await broker.send(("t", 0, of_headers(60_000)))) == [ErrorCode.none]
        assert gate.begun == 1


async def test_compacted_topics_are_read_off_the_loop_whatever_the_broker_trusts() -> None:
    loop_thread = threading.get_ident()
    seen: list[int] = []

    class Watched(ThreadBlocking):
        async def run(self, call: Callable[[], T]) -> T:
            def noted() -> T:
                seen.append(threading.get_ident())
                return call()

            return await super().run(noted)

    async with node(is_deaf=True, blocking=Watched(threads=1, name="test")) as broker:
        await broker.create("t", cleanup_policy="compact")
        (result,) = await broker.send(("t", 0, record_batch(*[b"a"] * LONG, keys=[b"k", None, *[b"k"] * (LONG - 2)], codec=4)))

        assert ErrorCode(result.error_code) is ErrorCode.invalid_record
        assert [index for index, _ in result.record_errors] == [1]
    assert len(seen) == 1
    assert loop_thread not in seen


async def test_five_in_flight_keep_their_order_whichever_of_them_must_wait_for_a_thread() -> None:
    gate = Gate()
    async with node(is_deaf=True, reads_records=True, blocking=gate) as broker:
        await broker.create("t")
        one = Source()
        sent = [
            send(
                broker,
                ("t", 0, large(b"%d" % n, producer_id=7, producer_epoch=0, base_sequence=n) if n % 2 == 0 else numbered(n)),
                source=one,
            )
            for n in range(5)
        ]
        await gate.has_begun(1)
        other = await send(broker, ("t", 0, record_batch(b"x")), source=Source())
        assert codes(other) == [ErrorCode.none], "another connection's short batch waits for nothing"
        assert not any(result.done() for result in sent)

        gate.let(3)
        results = await asyncio.gather(*sent)
        assert [codes(result) for result in results] == [[ErrorCode.none]] * 5
        assert [result[0].base_offset for result in results] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("timeout_s", [30.0, -1.0], ids=["taken", "late"])
async def test_a_long_line_leaves_in_turns_of_the_loop_and_in_order(timeout_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, turns, left_in = Gate(), 0, list[int]()

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    limits = BrokerLimits(recompression_wait_s_max=timeout_s)
    async with node(is_deaf=True, reads_records=True, blocking=gate, request_limits=limits) as broker, asyncio.TaskGroup() as tasks:
        await broker.create("t")
        leave = broker.produce._leave_line
        monkeypatch.setattr(broker.produce, "_leave_line", lambda *args: (left_in.append(turns), leave(*args)))
        counting = tasks.create_task(count())
        one = Source()
        answers = [send(broker, ("t", 0, large()), source=one)]
        answers += [send(broker, ("t", 0, record_batch(b"x")), source=one) for _ in range(3 * LEAVING_MAX)]
        gate.let()
        results = await asyncio.gather(*answers)
        counting.cancel()

        assert max(Counter(left_in).values()) <= LEAVING_MAX
        if timeout_s > 0:
            assert [result[0].base_offset for result in results] == list(range(len(answers)))
        else:
            assert {code for result in results for code in codes(result)} == {ErrorCode.request_timed_out}
        assert not broker.produce._recompression.lines


@pytest.mark.parametrize("codec", [0, 3])
async def test_an_idempotent_producer_goes_on_behind_a_refused_batch_with_its_sequence(codec: int) -> None:
    async with node(is_deaf=True, reads_records=True, blocking=ThreadBlocking(threads=2, name="test")) as broker:
        await broker.create("t")
        one = Source()
        first = await send(broker, ("t", 0, numbered(0, b"0")), source=one)
        refused = send(broker, ("t", 0, misnumbered(codec, producer_id=7, producer_epoch=0, base_sequence=1)), source=one)
        behind = send(broker, ("t", 0, numbered(4, b"9")), source=one)
        assert codes(first) == [ErrorCode.none]
        assert codes(await refused) == [ErrorCode.invalid_record]
        assert codes(await behind) == [ErrorCode.out_of_order_sequence_number], "as in Kafka: its predecessor is missing"

        again = [await send(broker, ("t", 0, numbered(n, b"%d" % n, codec)), source=one) for n in (1, 2)]
        assert [codes(result) for result in again] == [[ErrorCode.none]] * 2
        assert [result[0].base_offset for result in again] == [1, 2]


@pytest.mark.parametrize("codec", [0, 3])
async def test_what_follows_the_refused_first_batch_of_a_producer_is_told_so_at_once(codec: int) -> None:
    async with node(is_deaf=True, reads_records=True) as broker:
        await broker.create("t")
        one = Source()
        sent = [
            send(broker, ("t", 0, misnumbered(codec, producer_id=7, producer_epoch=0, base_sequence=0)), source=one),
            send(broker, ("t", 0, numbered(3)), source=one),
        ]
        async with asyncio.timeout(15):  # a stranger that begins elsewhere would wait for 35 s
            results = await asyncio.gather(*sent)
        assert [codes(result) for result in results] == [[ErrorCode.invalid_record], [ErrorCode.out_of_order_sequence_number]]


async def test_reading_needs_no_room_among_the_results_of_compressing() -> None:
    async with node(is_deaf=True, reads_records=True, request_limits=BrokerLimits(recompressed_bytes_max=0)) as broker:
        await broker.create("t")
        assert codes(await broker.send(("t", 0, large(b"a")))) == [ErrorCode.none]
        assert await values_of(broker) == [b"a"]
        assert not broker.produce._recompression.lines


async def test_what_waits_too_long_to_be_read_may_be_sent_again() -> None:
    gate, limits = Gate(is_open=True), BrokerLimits(recompression_wait_s_max=-1.0)
    async with node(is_deaf=True, reads_records=True, blocking=gate, request_limits=limits) as broker:
        await broker.create("t")
        assert codes(await broker.send(("t", 0, large(b"a")))) == [ErrorCode.request_timed_out]
        assert gate.begun == 0


async def test_a_failure_that_nobody_foresaw_refuses_one_batch_and_nothing_else() -> None:
    gate = Gate(is_open=True)
    gate.fails = 1
    async with node(is_deaf=True, reads_records=True, blocking=gate) as broker:
        await broker.create("t")
        assert codes(await broker.send(("t", 0, large(b"0")))) == [ErrorCode.unknown_server_error]
        assert codes(await broker.send(("t", 0, large(b"1")))) == [ErrorCode.none]
