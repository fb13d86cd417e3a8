import pytest
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode

from broker.handlers.log import offset_for_leader_epoch
from storage.errors import Unavailable
from storage.log.fresh_reads import LogBounds
from tests.unit.broker.handlers.asking import Cluster, cluster, error_of


async def ask(broker: Cluster, asked: list[tuple[str, int, int, int]], version: int = 4) -> list[tuple[ErrorCode, int, int, int]]:
    """`asked` is (topic, partition, current leader epoch, leader epoch)."""
    cls = load_request_schema(23, version)
    module = __import__(cls.__module__, fromlist=["x"])
    topics = tuple(
        module.OffsetForLeaderTopic(
            topic=name,
            partitions=(module.OffsetForLeaderPartition(partition=partition, current_leader_epoch=current, leader_epoch=epoch),),
        )
        for name, partition, current, epoch in asked
    )
    more = {"replica_id": -1} if version >= 3 else {}
    answer = await broker.ask(offset_for_leader_epoch.handle, cls(topics=topics, **more))
    return [
        (error_of(found), found.partition, found.leader_epoch, found.end_offset) for topic in answer.topics for found in topic.partitions
    ]


@pytest.mark.parametrize("version", [2, 3, 4])
async def test_epoch_zero_ends_at_the_high_watermark(version: int) -> None:
    async with cluster() as broker:
        topic = await broker.create("t", partition_count=2)
        broker.bounds.known[topic.partition(1)] = LogBounds(3, 12, 0)

        assert await ask(broker, [("t", 1, 0, 0), ("t", 0, -1, 0)], version) == [(ErrorCode.none, 1, 0, 12), (ErrorCode.none, 0, 0, 0)]


@pytest.mark.parametrize(
    ("current", "epoch", "code"),
    [
        (0, 1, ErrorCode.none),
        (1, 0, ErrorCode.unknown_leader_epoch),
        (-2, 0, ErrorCode.fenced_leader_epoch),
        (0, -1, ErrorCode.none),
    ],
)
async def test_other_epochs_have_no_end(current: int, epoch: int, code: ErrorCode) -> None:
    async with cluster() as broker:
        await broker.create("t")

        assert await ask(broker, [("t", 0, current, epoch)]) == [(code, 0, -1, -1)]


async def test_partitions_that_do_not_exist_or_cannot_be_read_are_said_one_by_one() -> None:
    async with cluster() as broker:
        topic = await broker.create("t", partition_count=2)
        broker.bounds.known[topic.partition(1)] = Unavailable("x")
        answers = await ask(broker, [("t", 7, 0, 0), ("t", 7, 3, 0), ("nothing", 0, 0, 0), ("t", 1, 0, 0)])

    codes = [*[ErrorCode.unknown_topic_or_partition] * 3, ErrorCode.kafka_storage_error]
    assert [answer[0] for answer in answers] == codes
