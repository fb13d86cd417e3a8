import asyncio
import gc
import weakref

import pytest
from kio.schema.errors import ErrorCode

from broker.protocol.produce import PartitionResult
from storage.catalog.topic import INTERNAL
from storage.errors import Unavailable
from storage.log.flush import FlushSettings
from storage.log.limits import LogLimits
from storage.recordbatch import checksum, parse_header
from tests.kit.record_batches import NOW_MS, record_batch
from tests.unit.broker.handlers.logged import Stores, asking, batches_of, node, nodes, produce_request


def idempotent(sequence: int, *values: bytes, epoch: int = 0) -> bytearray:
    return record_batch(*values, producer_id=7, producer_epoch=epoch, base_sequence=sequence)


def codes(results: list[PartitionResult]) -> list[ErrorCode]:
    return [ErrorCode(result.error_code) for result in results]


@pytest.mark.parametrize("acks", [-1, 0, 1])
async def test_an_answer_comes_when_the_batch_is_durable_and_readable(acks: int) -> None:
    async with node() as broker:
        await broker.create("t")
        (first,) = await broker.send(("t", 0, record_batch(b"a", b"b")), acks=acks)
        (second,) = await broker.send(("t", 0, record_batch(b"c")), acks=acks)
        answer = await broker.read_one(asking("t"))

        assert first == PartitionResult("t", 0, 0, 0, -1, 0)
        assert second == PartitionResult("t", 0, 0, 2, -1, 0)
        assert [parse_header(batch).base_offset for batch in batches_of(answer)] == [0, 2]


async def test_every_partition_has_its_own_answer_in_the_order_of_the_request() -> None:
    async with node() as broker:
        await broker.create("t", partition_count=2)
        await broker.create("u")
        results = await broker.send(
            ("t", 1, record_batch(b"a")),
            ("t", 7, record_batch(b"b")),
            ("u", 0, record_batch(b"c", crc=0)),
            ("nope", 0, record_batch(b"d")),
            ("t", 0, record_batch(b"e")),
            ("u", 0, record_batch(b"f")),
            ("t", -1, record_batch(b"g")),
            ("u", 0, None),
        )

        assert [(result.topic, result.partition) for result in results] == [
            ("t", 1), ("t", 7), ("u", 0), ("nope", 0), ("t", 0), ("u", 0), ("t", -1), ("u", 0)
        ]  # fmt: skip
        assert codes(results) == [
            ErrorCode.none,
            ErrorCode.unknown_topic_or_partition,
            ErrorCode.corrupt_message,
            ErrorCode.unknown_topic_or_partition,
            ErrorCode.none,
            ErrorCode.none,
            ErrorCode.unknown_topic_or_partition,
            ErrorCode.invalid_record,
        ]
        assert [result.base_offset for result in results] == [0, -1, -1, -1, 0, 0, -1, -1]


@pytest.mark.parametrize("name", INTERNAL)
async def test_clients_may_not_write_to_an_internal_topic(name: str) -> None:
    async with node() as broker:
        await broker.create(name)
        await broker.create("__mine")
        alone = await broker.send((name, 0, record_batch(b"a")))
        beside = await broker.send(("__mine", 0, record_batch(b"a")), (name, 0, record_batch(b"a")))
        answer = await broker.read_one(asking(name))

        assert codes(alone) == [ErrorCode.invalid_topic_exception]
        assert codes(beside) == [ErrorCode.none, ErrorCode.invalid_topic_exception]
        assert list(batches_of(answer)) == []


async def test_two_batches_of_one_partition_are_appended_in_their_order() -> None:
    async with node() as broker:
        topic = await broker.create("t")
        results = await broker.send(("t", 0, record_batch(b"a", b"b")), ("t", 0, record_batch(b"c")))

        assert [result.base_offset for result in results] == [0, 2]
        assert (await broker.log.manifest(topic.partition(0))).sequence_counter == 3


@pytest.mark.parametrize("acks", [-2, 2, 32_767])
async def test_other_acks_are_refused_and_nothing_is_appended(acks: int) -> None:
    async with node() as broker:
        topic = await broker.create("t")
        results = await broker.send(("t", 0, record_batch()), ("u", 0, record_batch()), acks=acks)

        assert codes(results) == [ErrorCode.invalid_required_acks] * 2
        assert (await broker.log.manifest(topic.partition(0))).sequence_counter == 0


async def test_a_request_without_partitions_is_answered_at_once() -> None:
    async with node() as broker:
        answers: list[list[PartitionResult]] = []
        broker.produce.start(produce_request(), {}, version=9, source=broker, done=answers.append)

        assert answers == [[]]


async def test_refusals_alone_are_answered_at_once() -> None:
    async with node() as broker:
        topic = await broker.create("t")
        answers: list[list[PartitionResult]] = []
        request = produce_request(("t", 0, record_batch(magic=1)))
        broker.produce.start(request, {"t": topic}, version=9, source=broker, done=answers.append)

        assert codes(answers[0]) == [ErrorCode.invalid_record]
        assert answers[0][0].error_message == "magic 1 is not served: Produce v3 and later carry magic 2"


async def test_records_without_keys_are_named_on_a_compacted_topic() -> None:
    async with node() as broker:
        await broker.create("t", cleanup_policy="compact")
        (result,) = await broker.send(("t", 0, record_batch(b"a", b"b", keys=(b"k", None))))

        assert codes([result]) == [ErrorCode.invalid_record]
        assert [index for index, _ in result.record_errors] == [1]


async def test_topics_are_found_at_once_only_if_all_of_them_are_known() -> None:
    async with nodes(2) as (broker, other):
        await other.create("t", partition_count=2)
        known, unknown_partition = produce_request(("t", 1, b"")), produce_request(("t", 1, b""), ("t", 2, b""))
        before = broker.produce.find_topics(known)
        await broker.produce.lookup_topics({"t": 1})

        assert before is None
        assert list(broker.produce.find_topics(known) or ()) == ["t"]
        assert broker.produce.find_topics(unknown_partition) is None
        assert broker.produce.find_topics(produce_request(("t", 0, b""), ("u", 0, b""))) is None


async def test_a_topic_that_was_made_anew_with_more_partitions_is_read_again() -> None:
    stores = Stores()
    async with node(stores, is_deaf=True) as broker, node(stores, epoch=8) as other:
        old = await broker.create("t", partition_count=1)
        await other.topics.delete(old)
        await other.create("t", partition_count=3)
        (result,) = await broker.send(("t", 2, record_batch()))

        assert codes([result]) == [ErrorCode.none]


async def test_a_topic_that_was_made_anew_behind_our_back_is_found_by_the_next_request() -> None:
    stores = Stores()
    async with node(stores, is_deaf=True) as broker, node(stores, epoch=8) as other:
        old = await broker.create("t")
        await other.topics.delete(old)
        await other.create("t")
        (first,) = await broker.send(("t", 0, record_batch()))
        (second,) = await broker.send(("t", 0, record_batch()))

        assert ErrorCode(first.error_code).retriable
        assert codes([second]) == [ErrorCode.none]


async def test_log_append_time_is_stamped_into_the_batch_and_told() -> None:
    async with node() as broker:
        topic = await broker.create("t", message_timestamp_type="LogAppendTime")
        await broker.create("u")
        broker.clock.advance(5.0)
        results = await broker.send(("u", 0, record_batch(b"b")), ("t", 0, record_batch(b"a", base_timestamp=1_000)))
        (batch,) = batches_of(await broker.read_one(asking("t")))
        header = parse_header(batch)

        assert [result.log_append_time_ms for result in results] == [-1, NOW_MS + 5_000]
        assert header.attributes == 0x08
        assert header.max_timestamp == NOW_MS + 5_000
        assert header.crc == checksum(batch)
        assert (await broker.log.manifest(topic.partition(0))).max_timestamp == NOW_MS + 5_000


async def test_changed_rules_of_a_topic_that_was_made_anew_are_heeded() -> None:
    async with node() as broker:
        old = await broker.create("t")
        (before,) = await broker.send(("t", 0, record_batch(b"x" * 500)))
        await broker.topics.delete(old)
        await broker.create("t", max_message_bytes="400")
        (after,) = await broker.send(("t", 0, record_batch(b"x" * 500)))

        assert codes([before, after]) == [ErrorCode.none, ErrorCode.message_too_large]


async def test_a_resent_batch_is_answered_with_the_offset_it_has() -> None:
    async with nodes(2) as (broker, other):
        topic = await broker.create("t")
        (first,) = await broker.send(("t", 0, idempotent(0, b"a", b"b")))
        (again,) = await other.send(("t", 0, idempotent(0, b"a", b"b")))
        (following,) = await other.send(("t", 0, idempotent(2, b"c")))

        assert codes([first, again, following]) == [ErrorCode.none] * 3
        assert [first.base_offset, again.base_offset, following.base_offset] == [0, 0, 2]
        assert (await broker.log.manifest(topic.partition(0))).sequence_counter == 3


async def test_a_gap_in_the_sequence_and_an_old_epoch_are_told_apart() -> None:
    async with node() as broker:
        await broker.create("t")
        await broker.send(("t", 0, idempotent(0, b"a", epoch=1)))
        gap = await broker.send(("t", 0, idempotent(5, b"b", epoch=1)))
        old = await broker.send(("t", 0, idempotent(1, b"b", epoch=0)))

        assert codes(gap + old) == [ErrorCode.out_of_order_sequence_number, ErrorCode.invalid_producer_epoch]


async def test_a_store_that_does_not_answer_is_an_error_that_clients_repeat() -> None:
    async with node(log_limits=LogLimits(upload_timeout_s=0.01)) as broker:
        await broker.create("t", partition_count=2)
        broker.log.objects.puts_fail = Unavailable("no room")
        results = await broker.send(("t", 0, record_batch(b"a")), ("t", 1, record_batch(b"b", crc=0)))

        assert codes(results) == [ErrorCode.kafka_storage_error, ErrorCode.corrupt_message]
        assert "no room" in str(results[0].error_message)
        assert ErrorCode(results[0].error_code).retriable


async def test_requests_of_one_connection_share_a_flush_and_keep_their_order() -> None:
    async with node(flush=FlushSettings(interval_s=0.0, gather_s=0.01)) as broker:
        topic = await broker.create("t")
        answers: list[PartitionResult] = []
        for number in range(20):
            request = produce_request(("t", 0, record_batch(str(number).encode())))
            broker.produce.start(request, {"t": topic}, version=9, source=broker, done=answers.extend)
        await broker.log.parts.appender.drain()

        assert [answer.base_offset for answer in answers] == list(range(20))
        assert len(broker.log.objects.put_keys) == 1


@pytest.mark.parametrize("name", ["t", "nope"], ids=["committed", "refused"])
async def test_a_request_that_was_answered_is_let_go_of_without_the_garbage_collector(name: str) -> None:
    class Answered(asyncio.Event):
        def __call__(self, _results: list[PartitionResult]) -> None:
            self.set()

    async with node() as broker:
        await broker.create("t")
        topics = await broker.topics.lookup(["t"])
        answered = Answered()
        gc.disable()
        try:
            broker.produce.start(produce_request((name, 0, record_batch(b"a"))), topics, version=9, source=broker, done=answered)
            await answered.wait()
            held = weakref.ref(answered)
            del answered
            await asyncio.sleep(0)

            assert held() is None
        finally:
            gc.enable()
