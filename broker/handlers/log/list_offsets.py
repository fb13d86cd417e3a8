"""ListOffsets (API key 2), v1-v10.

-1: the high watermark; -2 and -4: the log start, all of the log being as local as any of it; -3 (v7+): the greatest timestamp;
-5 (v9+): nothing, there being no second tier; from 0 on: the first record with such a timestamp or a later one.
What there is none of is offset -1 with timestamp -1. A negative timestamp that the version does not know is UNSUPPORTED_VERSION.
The ends come from one read of the manifests, issued after the request arrived; objects are read for timestamps alone.

Differs from Apache Kafka: there are no transactions yet, so read_committed ends where read_uncommitted does.
"""

import asyncio
import contextlib
from collections.abc import Iterable, Iterator
from typing import Final

from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v10 import ListOffsetsRequest, ListOffsetsResponse
from kio.schema.list_offsets.v10.request import ListOffsetsPartition, ListOffsetsTopic
from kio.schema.list_offsets.v10.response import ListOffsetsPartitionResponse, ListOffsetsTopicResponse

from broker.handling.context import Context
from broker.handling.errors import error_code_of
from broker.handling.kio_types import as_i32, as_i64
from broker.handling.topics import LEADER_EPOCH, Located, TopicPartition, check_leader_epoch, read_bounds
from broker.protocol.codec import as_field
from broker.protocol.wire import Request
from runtime.turns import ITEMS_DEFAULT
from storage.errors import StorageError, Unavailable
from storage.log.time_search import TimestampedOffset, Timestamps

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
_VERSION_MINIMUMS: Final = {LATEST: 1, EARLIEST: 1, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9}
_NONE: Final = -1

SEARCHES_MAX: Final = 16
"""Partitions of one request whose objects are searched for a timestamp at the same time."""

ListOffsetsAnswer = TimestampedOffset | ErrorCode | None


async def handle(context: Context, request: Request[ListOffsetsRequest]) -> ListOffsetsResponse:
    answers: dict[TopicPartition, ListOffsetsAnswer] = {}
    served: dict[TopicPartition, ListOffsetsPartition] = {}
    for number, (asked, partition) in enumerate(_partitions(request.body), 1):
        if asked in answers or asked in served:
            served.pop(asked, None)
            answers[asked] = ErrorCode.invalid_request
        elif (refusal := _refusal(request.api_version, partition)) is ErrorCode.none:
            served[asked] = partition
        else:
            answers[asked] = refusal
        if number % ITEMS_DEFAULT == 0:
            await asyncio.sleep(0)
    located = await read_bounds(context.parts, list(served))
    answers |= await _answers(context.parts.timestamps, served, located, timeout_s=context.parts.limits.search_timeout_s)
    return ListOffsetsResponse(throttle_time=as_field(0), topics=tuple(await _respond_all(request.body.topics, answers)))


async def _respond_all(
    topics: Iterable[ListOffsetsTopic], answers: dict[TopicPartition, ListOffsetsAnswer]
) -> list[ListOffsetsTopicResponse]:
    responses = []
    number = 0
    for topic in topics:
        partitions = []
        for partition in topic.partitions:
            partitions.append(_respond(partition.partition_index, answers[TopicPartition(topic.name, partition.partition_index)]))
            number += 1
            if number % ITEMS_DEFAULT == 0:
                await asyncio.sleep(0)
        responses.append(ListOffsetsTopicResponse(name=topic.name, partitions=tuple(partitions)))
        number += 1  # many topics without partitions take time, too
        if number % ITEMS_DEFAULT == 0:
            await asyncio.sleep(0)
    return responses


def _partitions(body: ListOffsetsRequest) -> Iterator[tuple[TopicPartition, ListOffsetsPartition]]:
    for topic in body.topics:
        for partition in topic.partitions:
            yield TopicPartition(topic.name, partition.partition_index), partition


def _refusal(api_version: int, partition: ListOffsetsPartition) -> ErrorCode:
    if partition.timestamp < 0 and api_version < _VERSION_MINIMUMS.get(partition.timestamp, api_version + 1):
        return ErrorCode.unsupported_version
    return check_leader_epoch(partition.current_leader_epoch)


async def _answers(
    timestamps: Timestamps,
    served: dict[TopicPartition, ListOffsetsPartition],
    located: dict[TopicPartition, Located | ErrorCode],
    *,
    timeout_s: float,
) -> dict[TopicPartition, ListOffsetsAnswer]:
    answers: dict[TopicPartition, ListOffsetsAnswer] = {}
    searched: list[tuple[TopicPartition, Located]] = []
    for number, (asked, partition) in enumerate(served.items(), 1):
        if number % ITEMS_DEFAULT == 0:
            await asyncio.sleep(0)
        found = located[asked]
        if isinstance(found, ErrorCode):
            answers[asked] = found
            continue
        if partition.timestamp == LATEST:
            answers[asked] = TimestampedOffset(found.bounds.high_watermark, _NONE)
        elif partition.timestamp in (EARLIEST, EARLIEST_LOCAL):
            answers[asked] = TimestampedOffset(found.bounds.log_start, _NONE)
        elif partition.timestamp == LATEST_TIERED:
            answers[asked] = None
        else:
            searched.append((asked, found))

    if not searched:
        return answers
    remaining = iter(searched)

    async def search() -> None:
        for asked, found in remaining:
            answers[asked] = await _search(timestamps, found, served[asked].timestamp)

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s), asyncio.TaskGroup() as group:
            for _ in range(min(SEARCHES_MAX, len(searched))):
                group.create_task(search())
    # What was not found in time: what was read for it stays in the cache, so the client's next try begins there.
    return dict.fromkeys(served, error_code_of(Unavailable("no answer in time"))) | answers


async def _search(timestamps: Timestamps, found: Located, timestamp_ms: int) -> ListOffsetsAnswer:
    try:
        if timestamp_ms == MAX_TIMESTAMP:
            return await timestamps.of_maximum(found.partition)
        return await timestamps.first_at_or_after(found.partition, timestamp_ms)
    except StorageError as error:
        return error_code_of(error)


def _respond(partition: int, answer: ListOffsetsAnswer) -> ListOffsetsPartitionResponse:
    error = answer if isinstance(answer, ErrorCode) else ErrorCode.none
    found = answer if isinstance(answer, TimestampedOffset) else None
    return ListOffsetsPartitionResponse(
        partition_index=as_i32(partition),
        error_code=error,
        timestamp=as_i64(found.timestamp_ms if found else _NONE),
        offset=as_i64(found.offset if found else _NONE),
        leader_epoch=as_i32(LEADER_EPOCH if found else _NONE),
    )
