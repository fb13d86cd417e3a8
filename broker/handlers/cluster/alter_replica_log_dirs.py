"""AlterReplicaLogDirs (API key 34), v1-v2.

There is one directory, `object-store` (DescribeLogDirs), and every replica is in it: to move one there is done at once, any other directory
is LOG_DIR_NOT_FOUND. A partition that does not exist is UNKNOWN_TOPIC_OR_PARTITION.
"""

from functools import partial

from kio.schema.alter_replica_log_dirs.v2 import AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse
from kio.schema.alter_replica_log_dirs.v2.response import AlterReplicaLogDirPartitionResult, AlterReplicaLogDirTopicResult
from kio.schema.errors import ErrorCode

from broker.handling.configs import LOG_DIR
from broker.handling.context import Context
from broker.handling.kio_types import as_i32, as_topic_name
from broker.handling.topics import TopicPartition, find_existing
from broker.protocol.codec import as_field
from broker.protocol.wire import Request
from runtime.turns import Turns


async def handle(context: Context, request: Request[AlterReplicaLogDirsRequest]) -> AlterReplicaLogDirsResponse:
    # Named under two directories, a partition goes to the last one.
    turns = Turns()
    paths: dict[TopicPartition, str] = {}
    for directory in request.body.dirs:
        for named in directory.topics:
            paths |= dict.fromkeys(await turns.each(partial(TopicPartition, named.name), named.partitions), directory.path)
        await turns.spent()
    staying = [partition for partition, path in paths.items() if path == LOG_DIR]
    found = await find_existing(context.parts, staying) if staying else {}
    results: dict[str, list[AlterReplicaLogDirPartitionResult]] = {}
    for asked in paths:
        await turns.spent()
        topic = found.get(asked, ErrorCode.log_dir_not_found)
        error = topic if isinstance(topic, ErrorCode) else ErrorCode.none
        result = AlterReplicaLogDirPartitionResult(partition_index=as_i32(asked.partition), error_code=error)
        results.setdefault(asked.topic, []).append(result)
    return AlterReplicaLogDirsResponse(
        throttle_time=as_field(0),
        results=tuple(await turns.each(_result, results.items())),
    )


def _result(one: tuple[str, list[AlterReplicaLogDirPartitionResult]]) -> AlterReplicaLogDirTopicResult:
    name, partitions = one
    return AlterReplicaLogDirTopicResult(topic_name=as_topic_name(name), partitions=tuple(partitions))
