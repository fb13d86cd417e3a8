from typing import Any

import pytest
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode

from broker.handlers.topics import elect_leaders
from tests.unit.broker.handlers.asking import Cluster, cluster, error_of


async def ask(broker: Cluster, topics: dict[str, tuple[int, ...]] | None, *, version: int = 2, **fields: int) -> Any:
    cls: Any = load_request_schema(43, version)
    module = __import__(cls.__module__, fromlist=["x"])
    asked = None if topics is None else tuple(module.TopicPartitions(topic=name, partitions=numbers) for name, numbers in topics.items())
    if version >= 1:
        fields.setdefault("election_type", 0)
    return await broker.ask(elect_leaders.handle, cls(topic_partitions=asked, **fields))


@pytest.mark.parametrize("version", range(3))
async def test_no_partition_needs_an_election(version: int) -> None:
    async with cluster() as broker:
        await broker.create("t", partition_count=2)
        answer = await ask(broker, {"t": (0, 1, 2), "nothing": (0,)}, version=version)

    assert {
        (topic.topic, found.partition_id): error_of(found) for topic in answer.replica_election_results for found in topic.partition_result
    } == {
        ("t", 0): ErrorCode.election_not_needed,
        ("t", 1): ErrorCode.election_not_needed,
        ("t", 2): ErrorCode.unknown_topic_or_partition,
        ("nothing", 0): ErrorCode.unknown_topic_or_partition,
    }
    if version >= 1:
        assert error_of(answer) is ErrorCode.none


@pytest.mark.parametrize("version", range(3))
async def test_an_election_for_all_partitions_elects_none(version: int) -> None:
    async with cluster() as broker:
        await broker.create("t")

        assert (await ask(broker, None, version=version)).replica_election_results == ()


@pytest.mark.parametrize(("election_type", "code"), [(1, ErrorCode.none), (2, ErrorCode.invalid_request), (-1, ErrorCode.invalid_request)])
async def test_elections_are_preferred_or_unclean(election_type: int, code: ErrorCode) -> None:
    async with cluster() as broker:
        assert error_of(await ask(broker, {}, election_type=election_type)) is code
