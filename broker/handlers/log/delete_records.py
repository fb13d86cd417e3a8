"""DeleteRecords (API key 21), v0-v2.

Moves the start of a partition's log up to the offset that is given; -1 is the high watermark. low_watermark is the log start afterwards.
An offset below the log start changes nothing and is no error; one behind the high watermark is OFFSET_OUT_OF_RANGE. A topic that is only
compacted is POLICY_VIOLATION, as in Kafka. When it is answered, ListOffsets and Fetch at any broker honour it: a fetch rests on a manifest
record that is AGE_S_MAX old at most, and the answer waits for FOLLOWED_S, as Kafka waits for its replicas. The bytes go later.
In Kafka the timeout is what replicas get to follow, not what the deletion takes: 0 deletes. So work has `deletion_timeout_ms_min` in any
case; what is not done in time is REQUEST_TIMED_OUT, and may still happen.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from kio.schema.delete_records.v2 import DeleteRecordsRequest, DeleteRecordsResponse
from kio.schema.delete_records.v2.request import DeleteRecordsPartition, DeleteRecordsTopic
from kio.schema.delete_records.v2.response import DeleteRecordsPartitionResult, DeleteRecordsTopicResult
from kio.schema.errors import ErrorCode

from broker.handling.administration import LISTED_MAX, Requester, brief_offsets
from broker.handling.context import BrokerParts, Context
from broker.handling.errors import error_code_of
from broker.handling.kio_types import as_i32, as_i64
from broker.handling.topics import TopicPartition, find_existing
from broker.protocol.codec import as_field, milliseconds
from broker.protocol.wire import Request
from runtime.turns import Turns
from storage.catalog.topic import INTERNAL
from storage.catalog.topic_configs import value_of
from storage.catalog.topics import Topic
from storage.errors import StorageError
from storage.log.partition import AGE_S_MAX
from storage.log.trim import HIGH_WATERMARK
from storage.vocabulary import PartitionId

FOLLOWED_S: Final = AGE_S_MAX + 0.1
"""After it no broker serves what was deleted. Clocks need the same speed for it, not the same time."""
TRIMS_MAX: Final = 16
"""Partitions of one request that are trimmed at the same time."""
LINE_AS_PARTITIONS: Final = 5
"""What a line of the log costs, beside a partition."""
_NONE: Final = -1

DeleteRecordsAnswer = int | ErrorCode
"""The log start afterwards, or why it is not known to have moved."""


async def handle(context: Context, request: Request[DeleteRecordsRequest]) -> DeleteRecordsResponse:
    body = request.body
    turns = Turns()
    asked: list[tuple[TopicPartition, int]] = []
    for topic in body.topics:
        asked += await turns.each(_asked_of(topic), topic.partitions)
    limits = context.parts.limits
    timeout_ms = min(max(milliseconds(body.timeout), limits.deletion_timeout_ms_min), limits.administration_timeout_ms_max)
    answers: dict[TopicPartition, DeleteRecordsAnswer] = {partition: ErrorCode.request_timed_out for partition, _ in asked}
    try:
        # What is not reached in time keeps the answer that it was given above.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_ms / 1_000):
                await _delete_all(context.parts, asked, answers)
        # Also where nothing was left to delete: another broker may have deleted it just now.
        if not all(isinstance(answer, ErrorCode) for answer in answers.values()):
            await asyncio.sleep(FOLLOWED_S)
    finally:
        # Also when the client has left: what was deleted until then is deleted.
        await _note(context.parts, context.by(request.client_id), answers)
    return DeleteRecordsResponse(
        throttle_time=as_field(0),
        topics=tuple([await _answer(topic, answers, turns) for topic in body.topics]),
    )


def _asked_of(topic: DeleteRecordsTopic) -> Callable[[DeleteRecordsPartition], tuple[TopicPartition, int]]:
    return lambda partition: (TopicPartition(topic.name, partition.partition_index), partition.offset)


async def _answer(topic: DeleteRecordsTopic, answers: dict[TopicPartition, DeleteRecordsAnswer], turns: Turns) -> DeleteRecordsTopicResult:
    def respond(partition: DeleteRecordsPartition) -> DeleteRecordsPartitionResult:
        return _respond(partition.partition_index, answers[TopicPartition(topic.name, partition.partition_index)])

    return DeleteRecordsTopicResult(name=topic.name, partitions=tuple(await turns.each(respond, topic.partitions)))


async def _delete_all(
    parts: BrokerParts, asked: Sequence[tuple[TopicPartition, int]], answers: dict[TopicPartition, DeleteRecordsAnswer]
) -> None:
    turns = Turns()
    occurrences = await turns.count(partition for partition, _ in asked)
    topics = await find_existing(parts, occurrences)
    trims: list[tuple[TopicPartition, PartitionId, int]] = []
    for partition, offset in asked:
        await turns.spent()
        topic = topics[partition]
        if occurrences[partition] > 1:
            answers[partition] = ErrorCode.invalid_request
        elif isinstance(topic, ErrorCode):
            answers[partition] = topic
        else:
            refusal = _refusal(topic, offset)
            if refusal is not None:
                answers[partition] = refusal
            else:
                trims.append((partition, topic.partition(partition.partition), offset))

    remaining = iter(trims)

    async def trim() -> None:
        for partition, partition_id, offset in remaining:
            try:
                answers[partition] = await parts.trimmer.trim(partition_id, offset)
            except StorageError as error:
                answers[partition] = error_code_of(error)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(TRIMS_MAX, len(trims))):
            group.create_task(trim())


async def _note(parts: BrokerParts, by: Requester, answers: Mapping[TopicPartition, DeleteRecordsAnswer]) -> None:
    """One line per topic for what was deleted, and one for each way it was not."""
    turns = Turns()
    starts: dict[str, dict[int, int]] = {}
    refused: dict[tuple[str, ErrorCode], list[int]] = {}
    for (topic, partition), answer in answers.items():
        if isinstance(answer, ErrorCode):
            refused.setdefault((topic, answer), []).append(partition)
        else:
            starts.setdefault(topic, {})[partition] = answer
        await turns.spent()
    for topic, moved in starts.items():
        await turns.spent(LINE_AS_PARTITIONS)
        parts.administration.changed("records_deleted", by, topic=topic, partitions=len(moved), log_start_offsets=brief_offsets(moved))
    with parts.administration.failures("records_deleted", by) as failures:
        for (topic, error), partitions in refused.items():
            await turns.spent(LINE_AS_PARTITIONS)
            failures.add(topic, error=error, topic=topic, partitions=len(partitions), numbers=sorted(partitions)[:LISTED_MAX])


def _refusal(topic: Topic, offset: int) -> ErrorCode | None:
    if topic.name in INTERNAL:
        return ErrorCode.invalid_topic_exception
    if "delete" not in value_of(topic.configs, "cleanup.policy").split(","):
        return ErrorCode.policy_violation
    return ErrorCode.offset_out_of_range if offset < HIGH_WATERMARK else None


def _respond(partition: int, answer: DeleteRecordsAnswer) -> DeleteRecordsPartitionResult:
    is_error = isinstance(answer, ErrorCode)
    return DeleteRecordsPartitionResult(
        partition_index=as_i32(partition),
        low_watermark=as_i64(_NONE if is_error else answer),
        error_code=answer if isinstance(answer, ErrorCode) else ErrorCode.none,
    )
