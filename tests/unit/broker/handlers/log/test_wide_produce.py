"""Requests of more partitions than are begun in a turn: the same answers as of narrow ones, in turns."""

import asyncio
import contextlib
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from broker.handlers.log.produce import BatchRoom, WideProduce, read_wide, write_wide
from broker.limits import DEFAULT_BROKER_LIMITS, BrokerLimits
from broker.protocol.produce import (
    PARTITIONS_PER_STEP,
    PartitionRecords,
    PartitionResult,
    ProduceRequest,
    ProduceResponse,
    read_narrow,
    read_request,
    write_response,
)
from broker.protocol.wire import ProtocolViolation, uvarint
from runtime.supervision import Nursery
from runtime.telemetry import Telemetry
from storage.errors import StorageError
from tests.kit.record_batches import record_batch
from tests.unit.broker.handlers.logged import Node, node
from tests.unit.broker.test_dispatch import answer, desk, fetched, produced
from tests.unit.storage.log.test_lost_batches import give_up_the_oldest

MANY = 3 * PARTITIONS_PER_STEP + 7
PRODUCE = 0


def body_of(topics: Sequence[tuple[str, Sequence[bytes | None]]], *, acks: int = -1) -> bytes:
    """v9: of each topic as many partitions as there are records."""
    body = b"\x00" + struct.pack(">hi", acks, 30_000) + uvarint(len(topics) + 1)
    for name, records in topics:
        body += uvarint(len(name) + 1) + name.encode() + uvarint(len(records) + 1)
        for partition, data in enumerate(records):
            body += struct.pack(">i", partition) + (b"\x00" if data is None else uvarint(len(data) + 1) + data) + b"\x00"
        body += b"\x00"
    return body + b"\x00"


async def until(is_so: Callable[[], bool], *, within_s: float = 10.0) -> None:
    async with asyncio.timeout(within_s):
        while not is_so():  # noqa: ASYNC110 - room has no event
            await asyncio.sleep(0)


def request_of(*named: tuple[str, int, bytes | None]) -> ProduceRequest:
    partitions = [PartitionRecords(topic, number, None if data is None else memoryview(bytearray(data))) for topic, number, data in named]
    return ProduceRequest(None, -1, 30_000, partitions)


async def handled(
    made: Node, request: ProduceRequest, *, room: BatchRoom | None = None, limits: BrokerLimits = DEFAULT_BROKER_LIMITS
) -> list[PartitionResult]:
    wide = WideProduce(made.produce, room or BatchRoom(telemetry=Telemetry()), limits=limits)
    async with asyncio.timeout(30):
        return await wide.handle(request, version=9, source="client")


@pytest.mark.parametrize("count", [1, PARTITIONS_PER_STEP, PARTITIONS_PER_STEP + 1, MANY])
async def test_what_is_read_in_turns_is_what_is_read_at_once_and_narrow_ends_where_wide_begins(count: int) -> None:
    frame = memoryview(bytearray(body_of([("t", [b"abc"] * (count - 1)), ("u", [None])])))

    whole = read_request(9, frame, 0)
    assert await read_wide(9, frame, 0) == whole
    assert read_narrow(9, frame, 0) == (whole if count <= PARTITIONS_PER_STEP else None)


async def test_a_wide_request_that_is_malformed_behind_its_first_step_is_a_violation() -> None:
    frame = memoryview(bytearray(body_of([("t", [b"abc"] * MANY)])[:-20]))

    assert read_narrow(9, frame, 0) is None
    with pytest.raises(ProtocolViolation, match="malformed Produce request"):
        await read_wide(9, frame, 0)


@pytest.mark.parametrize("version", [3, 5, 8, 9, 11])
async def test_what_is_written_in_turns_is_what_is_written_at_once(version: int) -> None:
    results = [
        PartitionResult(f"t{number // 700}", number, number % 3 and 87, number, error_message="why" if number % 3 else None)
        for number in range(MANY)
    ]

    assert await write_wide(version, 5, ProduceResponse(results, 9)) == write_response(version, 5, ProduceResponse(results, 9))


async def test_every_partition_is_answered_in_its_place_whatever_becomes_of_the_others() -> None:
    async with node() as made:
        await made.create("t", partition_count=MANY)
        good = bytes(record_batch(b"x"))
        named: list[tuple[str, int, bytes | None]] = [("t", number, good) for number in range(MANY)]
        named[3] = ("absent", 0, good)
        named[PARTITIONS_PER_STEP + 1] = ("t", MANY, good)
        named[2 * PARTITIONS_PER_STEP + 2] = ("t", 9, None)
        named[-1] = ("t", 0, good)
        results = await handled(made, request_of(*named))

    assert [(result.topic, result.partition) for result in results] == [(topic, number) for topic, number, _ in named]
    codes = {place: ErrorCode(result.error_code) for place, result in enumerate(results) if result.error_code}
    unknown = ErrorCode.unknown_topic_or_partition
    assert codes.keys() == {3, PARTITIONS_PER_STEP + 1, 2 * PARTITIONS_PER_STEP + 2}
    assert (codes[3], codes[PARTITIONS_PER_STEP + 1]) == (unknown, unknown)
    assert (results[0].base_offset, results[-1].base_offset) == (0, 1), "the same partition twice, in order"


async def test_others_have_turns_while_a_wide_request_is_begun() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with node() as made, Nursery() as nursery:
        await made.create("t")
        nursery.spawn(count(), name="others")
        await handled(made, request_of(*[("t", number, None) for number in range(1, 20 * PARTITIONS_PER_STEP)]))

    assert turns > 20


async def test_a_wide_request_takes_room_slice_by_slice_and_gives_all_of_it_back() -> None:
    room = BatchRoom(telemetry=Telemetry(), batches_max=PARTITIONS_PER_STEP)
    async with node() as made:
        await made.create("t", partition_count=MANY)
        good = bytes(record_batch(b"x"))
        results = await handled(made, request_of(*[("t", number, good) for number in range(MANY)]), room=room)

    assert {result.error_code for result in results} == {0}
    assert room.take_now(PARTITIONS_PER_STEP)
    assert not room.take_now(1)


async def test_who_leaves_in_the_middle_leaves_no_room_taken() -> None:
    room = BatchRoom(telemetry=Telemetry(), batches_max=PARTITIONS_PER_STEP)
    async with node() as made:
        await made.create("t", partition_count=MANY)
        good = bytes(record_batch(b"x"))
        assert room.take_now(1)
        wide, request = WideProduce(made.produce, room), request_of(*[("t", number, good) for number in range(MANY)])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await wide.handle(request, version=9, source="client")
        room.give_back(1)
        with contextlib.suppress(TimeoutError):
            await until(lambda: room.take_now(PARTITIONS_PER_STEP))

        assert not room.take_now(1), "all of it was free"


async def test_what_is_not_begun_in_time_is_refused_and_nothing_of_it_is_appended() -> None:
    limits = BrokerLimits(wide_produce_begin_s_max=0.05)
    room = BatchRoom(telemetry=Telemetry(), batches_max=PARTITIONS_PER_STEP + 1)
    async with node() as made:
        await made.create("t")
        assert room.take_now(PARTITIONS_PER_STEP + 1)
        request = request_of(*[("t", 0, bytes(record_batch(b"x")))] * (PARTITIONS_PER_STEP + 1))
        results = await handled(made, request, room=room, limits=limits)
        room.give_back(PARTITIONS_PER_STEP + 1)

        assert {result.error_code for result in results} == {ErrorCode.kafka_storage_error}
        assert "nothing was appended" in str(results[0].error_message)
        assert (await handled(made, request_of(("t", 0, bytes(record_batch(b"y"))))))[0].base_offset == 0


async def test_a_wide_request_comes_by_a_connection_and_is_counted_once() -> None:
    async with desk() as broker:
        await broker.node.create("t", partition_count=MANY)
        frame = produced("t", record_batch(b"a"))
        head = frame[: len(frame) - len(body_of([("t", [bytes(record_batch(b"a"))])]))]
        wide = head + body_of([("t", [bytes(record_batch(b"a"))] * MANY)])
        view = memoryview(bytearray(wide))

        assert not broker.dispatch.start(view, broker.client, lambda _: None)
        assert await broker.dispatch.prepare(view, broker.client) is None
        reply = answer(await broker.handle(wide), PRODUCE, 9)

        assert [one.error_code for one in reply.responses[0].partition_responses] == [ErrorCode.none] * MANY
        assert broker.counted("Produce", "NONE") == 1


async def test_a_wide_request_without_an_answer_ends_its_connection_when_something_failed() -> None:
    async with desk() as broker:
        await broker.node.create("t", partition_count=MANY)
        head = produced("t", record_batch(b"a"), acks=0)
        head = head[: len(head) - len(body_of([("t", [bytes(record_batch(b"a"))])], acks=0))]
        good = [bytes(record_batch(b"a"))] * MANY

        assert await broker.handle(head + body_of([("t", good)], acks=0)) is None
        assert not broker.client.is_closed
        assert await broker.handle(head + body_of([("t", [*good[1:], None])], acks=0)) is None
        assert broker.client.is_closed


async def test_a_broker_that_refuses_to_produce_refuses_all_of_a_wide_request() -> None:
    async with desk() as broker:
        await broker.node.create("t", partition_count=MANY)
        head = produced("t", record_batch(b"a"))
        head = head[: len(head) - len(body_of([("t", [bytes(record_batch(b"a"))])]))]
        broker.controlled_shutdown.refuse()
        reply = answer(await broker.handle(head + body_of([("t", [bytes(record_batch(b"a"))] * MANY)])), PRODUCE, 9)

        assert {one.error_code for one in reply.responses[0].partition_responses} == {ErrorCode.not_leader_or_follower}
        assert await broker.handle(fetched("t")) is not None


async def test_a_narrow_request_that_finds_no_room_waits_for_it() -> None:
    async with desk() as broker:
        await broker.node.create("t")
        await broker.produce(produced("t", record_batch(b"a")))
        room = broker.dispatch._room
        assert room.take_now(10**6)
        view = memoryview(bytearray(produced("t", record_batch(b"b"))))
        assert not broker.dispatch.start(view, broker.client, lambda _: None)
        async with Nursery() as nursery:
            waiting = nursery.spawn(_prepared(broker, view), name="client")
            await asyncio.sleep(0.01)
            assert not waiting.done()
            room.give_back(10**6)
            async with asyncio.timeout(25):
                await asyncio.wait({waiting})
        assert room.take_now(10**6), "it was given back with the answer"


async def _prepared(broker: object, view: memoryview) -> None:
    dispatch, client = broker.dispatch, broker.client  # type: ignore[attr-defined]
    done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    start = await dispatch.prepare(view, client)
    assert start(view, client, done.set_result)
    assert await done is not None


@pytest.mark.parametrize("is_wide", [True, False])
async def test_what_is_looked_up_while_an_earlier_batch_of_its_connection_is_lost_is_refused_with_it(
    is_wide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it were in the log before the retry of what its producer had sent first."""
    async with desk() as made, Nursery() as nursery:
        topic = await made.node.create("t")
        looking, found = asyncio.Event(), asyncio.Event()
        look_up = made.node.produce.lookup_topics

        async def slowly(highest: Mapping[str, int]) -> Any:
            looking.set()
            await found.wait()
            return await look_up(highest)

        monkeypatch.setattr(made.node.produce, "lookup_topics", slowly)
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        async def send() -> None:
            if is_wide:
                wide = WideProduce(made.node.produce, BatchRoom(telemetry=Telemetry()))
                results = await wide.handle(request_of(("t", 0, record_batch())), version=9, source=made.client)
                answered.set_result(results[0].error_code)
            else:
                view = memoryview(bytearray(produced("t", record_batch())))
                start = await made.dispatch.prepare(view, made.client)
                assert start is not None
                start(view, made.client, answered.set_result)

        nursery.spawn(send(), name="send")
        await looking.wait()
        monkeypatch.setattr(made.node.produce, "lookup_topics", look_up)
        gate = made.node.log.objects.gate = asyncio.Event()
        sending = made.node.log.send(bytearray(record_batch()), partition=topic.partition(0), source=made.client)
        while not made.node.log.parts.appender._in_flight._commits:  # noqa: ASYNC110 - it is sealed by a timer
            await asyncio.sleep(0)
        give_up_the_oldest(made.node.log)
        gate.set()
        (lost,) = await sending
        found.set()
        async with asyncio.timeout(30):
            reply = await answered

    assert isinstance(lost, StorageError)
    code = reply if is_wide else answer(reply, 0, 9).responses[0].partition_responses[0].error_code
    assert code == ErrorCode.kafka_storage_error
