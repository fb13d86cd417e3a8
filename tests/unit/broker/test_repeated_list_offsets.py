"""A question for offsets that was asked before is answered as the first time: the same bytes, and what has changed since."""

import asyncio
import struct
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v10 import ListOffsetsResponse
from kio.schema.list_offsets.v10.response import ListOffsetsPartitionResponse, ListOffsetsTopicResponse

from broker.handlers.log.repeated_list_offsets import KNOWN_MAX, REQUEST_BYTES_MAX
from broker.handling.kio_types import as_i32, as_i64
from broker.protocol import codec
from broker.protocol.list_offsets import FLEXIBLE_MINIMUM, RepeatedRequest
from storage.errors import NotFound, StorageError, Unavailable
from storage.log.fresh_reads import LogBounds
from tests.kit.raw_client import frame_of
from tests.unit.broker.handlers.log.test_list_offsets import request
from tests.unit.broker.test_dispatch import Desk, answer, desk, joined

VERSIONS = range(FLEXIBLE_MINIMUM, 11)
LATEST, EARLIEST = -1, -2


def question(version: int, asked: list[tuple[str, int, int]], *, correlation_id: int = 7, **fields: int) -> bytes:
    return frame_of(request(version, asked, **fields), correlation_id=correlation_id)


async def repeated(broker: Desk, *frames: bytes) -> list[bytes | None]:
    async with asyncio.timeout(25):
        return [joined(reply) for reply in await broker.dispatch.handle_repeated([*map(memoryview, frames)], broker.client)]


async def with_topic(broker: Desk, name: str = "t", *ends: tuple[int, int]) -> Any:
    topic = await broker.cluster.create(name, partition_count=max(1, len(ends)))
    for number, (log_start, high_watermark) in enumerate(ends):
        broker.cluster.bounds.known[topic.partition(number)] = LogBounds(log_start, high_watermark, 0)
    for _ in range(5):
        await asyncio.sleep(0)  # the hint of its creation has it forgotten
    await broker.topics.lookup([name])
    return topic


@pytest.mark.parametrize("version", VERSIONS)
async def test_the_second_answer_is_the_first_one_byte_for_byte(version: int) -> None:
    asked = [("t", 1, LATEST), ("u", 0, EARLIEST), ("t", 0, EARLIEST)]
    async with desk() as broker:
        await with_topic(broker, "t", (3, 8), (5, 9))
        await with_topic(broker, "u", (1, 2))
        frame = question(version, asked)
        assert not broker.dispatch.is_repeated(memoryview(frame))
        first = joined(await broker.handle(frame))
        assert broker.dispatch.is_repeated(memoryview(question(version, asked, correlation_id=8)))
        same, other = await repeated(broker, frame, question(version, asked, correlation_id=8))

        assert same == first
        assert other == struct.pack(">i", 8) + first[4:]
        assert broker.counted("ListOffsets", "NONE") == 3
        assert broker.client.client_id is not None


async def test_it_has_the_offsets_of_now() -> None:
    async with desk() as broker:
        topic = await with_topic(broker, "t", (0, 8))
        frame = question(7, [("t", 0, LATEST)])
        await broker.handle(frame)
        broker.cluster.bounds.known[topic.partition(0)] = LogBounds(0, 1_000, 0)
        (reply,) = await repeated(broker, frame)

        assert answer(reply, 2, 7).topics[0].partitions[0].offset == 1_000


async def test_all_that_were_sent_together_share_one_read() -> None:
    async with desk() as broker:
        await with_topic(broker, "t", (0, 8), (0, 9))
        one, other = question(7, [("t", 0, LATEST)]), question(7, [("t", 0, EARLIEST), ("t", 1, LATEST)])
        for frame in (one, other):
            await broker.handle(frame)
        reads: list[int] = []
        read = broker.cluster.bounds.read

        async def counted(partitions: Sequence[Any]) -> list[LogBounds | StorageError]:
            reads.append(len(partitions))
            return await read(partitions)

        broker.cluster.bounds.read = counted  # type: ignore[method-assign]
        replies = await repeated(broker, one, other, one)

        assert reads == [2]
        ends = [[found.offset for topic in answer(reply, 2, 7).topics for found in topic.partitions] for reply in replies]
        assert ends == [[8], [0, 9], [8]]


@pytest.mark.parametrize("error", [Unavailable("not now"), NotFound("gone")], ids=["unavailable", "gone"])
async def test_what_cannot_be_read_is_said_as_the_first_time(error: StorageError) -> None:
    async with desk() as broker:
        topic = await with_topic(broker, "t", (0, 8), (0, 9))
        frame = question(7, [("t", 0, LATEST), ("t", 1, LATEST)])
        await broker.handle(frame)
        broker.cluster.bounds.known[topic.partition(1)] = error
        first = joined(await broker.handle(frame))
        (again,) = await repeated(broker, frame)

        assert again == first
        codes = [found.error_code for topic in answer(again, 2, 7).topics for found in topic.partitions]
        assert codes[0] is ErrorCode.none
        assert codes[1] is not ErrorCode.none
        assert broker.counted("ListOffsets", codes[1].name.upper()) == 2


async def test_a_topic_that_is_not_in_the_cache_any_more_is_looked_up() -> None:
    async with desk() as broker:
        await with_topic(broker, "t", (0, 8))
        await with_topic(broker, "u", (0, 9))
        frames = [question(7, [(name, 0, LATEST)]) for name in "tu"]
        first = [joined(await broker.handle(frame)) for frame in frames]
        broker.topics.forget("t")

        assert await repeated(broker, *frames) == first
        broker.topics.forget("t")
        handled: list[memoryview] = []
        handle = broker.dispatch.handle

        async def noted(frame: memoryview, connection: Any) -> Any:
            handled.append(frame)
            return await handle(frame, connection)

        broker.dispatch.handle = noted  # type: ignore[method-assign]
        assert await repeated(broker, frames[0], *frames, frames[0]) == [first[0], *first, first[0]]
        assert len(handled) == 1, "the others share a read, once it is in the cache again"
        broker.topics.forget("t")
        assert await repeated(broker, frames[0]) == first[:1]


@pytest.mark.parametrize(
    "frame",
    [
        question(FLEXIBLE_MINIMUM - 1, [("t", 0, LATEST)]),
        question(7, [("t", 0, 1_000)]),
        question(7, [("t", 0, LATEST), ("t", 0, -3)]),
        question(7, [("t", 0, LATEST)], current_leader_epoch=0),
        question(7, [("t", 0, LATEST), ("t", 0, LATEST)]),
        question(7, []),
        question(7, [("t" * 200, number, LATEST) for number in range(20)]),
        b"",
        b"\0\2",
    ],
    ids=["older", "a time", "the greatest time", "an epoch", "twice", "nothing", "large", "empty", "cut off"],
)
async def test_a_request_of_another_shape_is_read_each_time(frame: bytes) -> None:
    async with desk() as broker:
        await with_topic(broker, "t", (0, 8))
        if len(frame) > 4:
            await broker.handle(frame)

        assert not broker.dispatch.is_repeated(memoryview(frame))


def test_the_large_one_above_is_large() -> None:
    assert len(question(7, [("t" * 200, number, LATEST) for number in range(20)])) > REQUEST_BYTES_MAX


async def test_the_oldest_of_many_is_read_again() -> None:
    async with desk() as broker:
        await with_topic(broker, "t", (0, 8))
        frames = [question(7, [("t", number, LATEST)]) for number in range(KNOWN_MAX + 1)]
        for frame in frames:
            await broker.handle(frame)

        assert [broker.dispatch.is_repeated(memoryview(frame)) for frame in frames] == [False] + [True] * KNOWN_MAX


Answers = list[tuple[str, list[tuple[int, int | ErrorCode]]]]
"""Of topics, the answer to each partition."""


def request_of(topics: Answers) -> Any:
    """What was asked for, as the codec would read it."""
    asked = [(name, [SimpleNamespace(partition_index=index, timestamp=LATEST) for index, _ in found]) for name, found in topics]
    return SimpleNamespace(topics=[SimpleNamespace(name=name, partitions=partitions) for name, partitions in asked])


def response_of(topics: Answers, *, leader_epoch: int) -> ListOffsetsResponse:
    def answered(index: int, found: int | ErrorCode) -> ListOffsetsPartitionResponse:
        is_error = isinstance(found, ErrorCode)
        return ListOffsetsPartitionResponse(
            partition_index=as_i32(index),
            error_code=found if isinstance(found, ErrorCode) else ErrorCode.none,
            timestamp=as_i64(-1),
            offset=as_i64(-1 if is_error else found),
            leader_epoch=as_i32(-1 if is_error else leader_epoch),
        )

    named = [ListOffsetsTopicResponse(name=name, partitions=tuple([answered(*one) for one in found])) for name, found in topics]
    return ListOffsetsResponse(throttle_time=codec.as_field(0), topics=tuple(named))


offsets = st.integers(0, 2**63 - 1)
answers_of_a_topic = st.lists(st.tuples(st.integers(0, 2**31 - 1), offsets | st.sampled_from(ErrorCode)), max_size=4)


@given(
    version=st.sampled_from(VERSIONS),
    correlation_id=st.integers(-(2**31), 2**31 - 1),
    topics=st.lists(st.tuples(st.text(min_size=1, max_size=130), answers_of_a_topic), min_size=1, max_size=4),
)
def test_a_reply_is_what_the_codec_would_write(version: int, correlation_id: int, topics: Answers) -> None:
    body = request_of(topics)
    written = codec.encode_response(2, version, correlation_id, response_of(topics, leader_epoch=3))
    answers = [found for _, partitions in topics for _, found in partitions]

    assert RepeatedRequest(body, None).reply(correlation_id, answers, 3) == b"".join(map(bytes, written))
