import datetime

import pytest
from kio.schema.errors import ErrorCode

from broker.handlers.offset_commit import OFFSET_METADATA_BYTES_MAX
from tests.unit.broker.handlers.asking import cluster
from tests.unit.broker.handlers.grouped import commit, fetched, join, member
from tests.unit.storage.catalog.faulty import Fault


@pytest.mark.parametrize("version", range(2, 10))
async def test_a_simple_commit_is_kept_with_its_metadata(version: int) -> None:
    async with cluster() as broker:
        await broker.create("t", partition_count=2)
        fields = {"retention_time": datetime.timedelta(days=3)} if version < 5 else {}
        errors = await commit(broker, version, {0: 5, 1: 7}, metadata="here", **fields)

        assert errors == {0: ErrorCode.none, 1: ErrorCode.none}
        assert await fetched(broker, 9, {"t": (0, 1)}) == {("t", 0): (5, "here", 0), ("t", 1): (7, "here", 0)}


@pytest.mark.parametrize("version", range(2, 10))
async def test_a_member_commits_in_its_generation_only(version: int) -> None:
    async with cluster() as broker:
        await broker.create("t")
        name = (await member(broker)).member_id

        assert await commit(broker, version, {0: 1}, member_id=name, generation=1) == {0: ErrorCode.none}
        assert await commit(broker, version, {0: 2}, member_id=name, generation=0) == {0: ErrorCode.illegal_generation}
        assert await commit(broker, version, {0: 2}, member_id="nobody", generation=1) == {0: ErrorCode.unknown_member_id}
        assert await commit(broker, version, {0: 2}) == {0: ErrorCode.unknown_member_id}
        assert await fetched(broker, 9, {"t": (0,)}) == {("t", 0): (1, "", 0)}


async def test_a_generation_that_is_not_assigned_yet_commits_nothing() -> None:
    async with cluster() as broker:
        await broker.create("t")
        joined = await join(broker, 3)

        errors = await commit(broker, 9, {0: 1}, member_id=joined.member_id, generation=1)
        assert errors == {0: ErrorCode.rebalance_in_progress}


async def test_partitions_that_do_not_exist_are_refused_and_the_others_kept() -> None:
    async with cluster() as broker:
        await broker.create("t")

        assert await commit(broker, 9, {0: 1, 5: 1, -1: 1}) == {
            0: ErrorCode.none,
            5: ErrorCode.unknown_topic_or_partition,
            -1: ErrorCode.unknown_topic_or_partition,
        }
        assert await commit(broker, 9, {0: 1}, topic="absent") == {0: ErrorCode.unknown_topic_or_partition}


async def test_too_much_metadata_is_refused() -> None:
    async with cluster() as broker:
        await broker.create("t")

        assert await commit(broker, 9, {0: 1}, metadata="x" * OFFSET_METADATA_BYTES_MAX) == {0: ErrorCode.none}
        assert await commit(broker, 9, {0: 2}, metadata="x" * (OFFSET_METADATA_BYTES_MAX + 1)) == {0: ErrorCode.offset_metadata_too_large}


async def test_no_metadata_is_empty_metadata() -> None:
    async with cluster() as broker:
        await broker.create("t")
        await commit(broker, 9, {0: 1}, metadata=None)

        assert await fetched(broker, 9, {"t": (0,)}) == {("t", 0): (1, "", 0)}


async def test_offsets_do_not_outlive_their_topic() -> None:
    async with cluster() as broker:
        topic = await broker.create("t")
        await commit(broker, 9, {0: 5})
        await broker.topics.delete(topic)
        await broker.create("t")

        assert await fetched(broker, 9, {"t": (0,)}) == {("t", 0): (-1, "", 0)}


async def test_a_commit_that_was_not_written_is_not_acknowledged() -> None:
    async with cluster() as broker:
        await broker.create("t")
        await commit(broker, 9, {0: 1})
        broker.metadata.faults[len(broker.metadata.writes)] = Fault.REFUSED

        assert await commit(broker, 9, {0: 2}) == {0: ErrorCode.coordinator_not_available}
        assert await fetched(broker, 9, {"t": (0,)}) == {("t", 0): (1, "", 0)}


async def test_a_store_that_does_not_answer_is_waited_for() -> None:
    async with cluster() as broker:
        broker.metadata.reads_fail = True

        assert await commit(broker, 9, {0: 2}) == {0: ErrorCode.coordinator_not_available}
