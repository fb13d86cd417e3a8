"""DescribeLogDirs (API key 35), v1-v5.

One directory, `object-store`, the same at every broker: a partition belongs to none of them. So each broker answers for all partitions,
and a sum over brokers counts them as often as there are brokers. Sizes are bytes of batches as they were appended, from the manifests
; where records were deleted, as much of them as of the offsets is left. Null topics are all of them; what does not exist is left
out, as in Kafka. Total and usable bytes (v4+) are -1: there is no volume that could be full.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from kio.schema.describe_log_dirs.v5 import DescribeLogDirsRequest, DescribeLogDirsResponse
from kio.schema.describe_log_dirs.v5.response import DescribeLogDirsPartition, DescribeLogDirsResult, DescribeLogDirsTopic
from kio.schema.errors import ErrorCode

from broker.handling.configs import LOG_DIR
from broker.handling.context import BrokerParts, Context
from broker.handling.errors import error_code_of
from broker.handling.kio_types import as_i32, as_i64, as_topic_name
from broker.protocol.codec import as_field
from broker.protocol.wire import Request
from runtime.turns import Turns
from storage.catalog.topics import Topic
from storage.errors import StorageError, Unavailable
from storage.log.fresh_reads import LogBounds
from storage.vocabulary import PartitionId

_NO_LAG: Final = 0


async def handle(context: Context, request: Request[DescribeLogDirsRequest]) -> DescribeLogDirsResponse:
    try:
        topics = await _sizes(context.parts, await _wanted(context.parts, request.body))
    except StorageError as error:
        return _answer(error_code_of(error), ())
    return _answer(ErrorCode.none, topics)


async def _wanted(parts: BrokerParts, body: DescribeLogDirsRequest) -> list[tuple[Topic, Sequence[int]]]:
    if body.topics is None:
        return await Turns().each(lambda topic: (topic, range(topic.partition_count)), await parts.topics.all())
    asked: dict[str, set[int]] = {}
    turns = Turns()
    for topic in body.topics:
        asked.setdefault(topic.topic, set()).update(topic.partitions)
        await turns.spent(1 + len(topic.partitions))
    found = await parts.topics.lookup_now(asked)
    wanted: list[tuple[Topic, Sequence[int]]] = []
    for name, existing in found.items():
        wanted.append((existing, sorted(filter(existing.has_partition, asked[name]))))
        await turns.spent(1 + len(asked[name]))
    return wanted


async def _sizes(parts: BrokerParts, wanted: list[tuple[Topic, Sequence[int]]]) -> list[DescribeLogDirsTopic]:
    """Raises `Unavailable` if the metadata store does not answer; a partition that is gone, or broken, is left out."""
    turns = Turns()
    partitions: list[PartitionId] = []
    for topic, numbers in wanted:
        partitions += await turns.each(topic.partition, numbers)
    if not partitions:
        return []
    found = await parts.bounds.read(partitions)
    for bounds in found:
        if isinstance(bounds, Unavailable):
            raise bounds
    read = iter(found)
    answers = []
    for topic, numbers in wanted:
        described = []
        for number in numbers:
            if isinstance(bounds := next(read), LogBounds):
                described.append(_partition(number, bounds))
            await turns.spent()
        if described:
            answers.append(DescribeLogDirsTopic(name=as_topic_name(topic.name), partitions=tuple(described)))
        await turns.spent()
    return answers


def _partition(number: int, bounds: LogBounds) -> DescribeLogDirsPartition:
    return DescribeLogDirsPartition(
        partition_index=as_i32(number), partition_size=as_i64(size_bytes(bounds)), offset_lag=as_i64(_NO_LAG), is_future_key=False
    )


def size_bytes(bounds: LogBounds) -> int:
    """The size of the batches that can be read: exact until records are deleted, then in proportion to the offsets."""
    if bounds.log_start == 0:
        return bounds.bytes_total
    return bounds.bytes_total * (bounds.high_watermark - bounds.log_start) // bounds.high_watermark


def _answer(error: ErrorCode, topics: Iterable[DescribeLogDirsTopic]) -> DescribeLogDirsResponse:
    return DescribeLogDirsResponse(
        throttle_time=as_field(0),
        error_code=ErrorCode.none,
        results=(DescribeLogDirsResult(error_code=error, log_dir=LOG_DIR, topics=tuple(topics)),),
    )
