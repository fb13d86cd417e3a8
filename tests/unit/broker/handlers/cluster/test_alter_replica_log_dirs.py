from typing import Any

import pytest
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode

from broker.handlers.cluster import alter_replica_log_dirs
from tests.unit.broker.handlers.asking import Cluster, cluster, error_of

Moves = list[tuple[str, str, tuple[int, ...]]]


async def ask(broker: Cluster, moves: Moves, version: int = 2) -> list[tuple[str, int, ErrorCode]]:
    """The error of each partition, by topic; `moves` are of a path, a topic and its partitions."""
    cls: Any = load_request_schema(34, version)
    module = __import__(cls.__module__, fromlist=["x"])
    request = cls(
        dirs=tuple(
            module.AlterReplicaLogDir(path=path, topics=(module.AlterReplicaLogDirTopic(name=name, partitions=partitions),))
            for path, name, partitions in moves
        )
    )
    answer = await broker.ask(alter_replica_log_dirs.handle, request)
    return [(topic.topic_name, found.partition_index, error_of(found)) for topic in answer.results for found in topic.partitions]


@pytest.mark.parametrize("version", [1, 2])
async def test_the_one_folder_takes_what_exists_and_no_other_folder_does(version: int) -> None:
    async with cluster() as broker:
        await broker.create("t", partition_count=2)
        answers = await ask(broker, [("object-store", "t", (0, 7)), ("/elsewhere", "t", (1,)), ("object-store", "absent", (0,))], version)

    assert sorted(answers) == [
        ("absent", 0, ErrorCode.unknown_topic_or_partition),
        ("t", 0, ErrorCode.none),
        ("t", 1, ErrorCode.log_dir_not_found),
        ("t", 7, ErrorCode.unknown_topic_or_partition),
    ]


async def test_a_partition_of_two_folders_is_answered_once() -> None:
    async with cluster() as broker:
        await broker.create("t")

        assert await ask(broker, [("/elsewhere", "t", (0, 0)), ("object-store", "t", (0,))]) == [("t", 0, ErrorCode.none)]


async def test_nothing_is_answered_with_nothing_and_without_a_read() -> None:
    async with cluster() as broker:
        broker.metadata.reads_fail = True

        assert await ask(broker, []) == []
        assert await ask(broker, [("/elsewhere", "t", (0,))]) == [("t", 0, ErrorCode.log_dir_not_found)]
        assert await ask(broker, [("object-store", "t", (0,))]) == [("t", 0, ErrorCode.kafka_storage_error)]
