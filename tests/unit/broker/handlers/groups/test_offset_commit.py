import datetime

import pytest
from kio.schema.errors import ErrorCode

from broker.groups.state import GroupSettings
from broker.handlers.groups.offset_commit import kept_epoch
from broker.limits import GroupLimits
from tests.kit.faulty_metadata import Fault
from tests.unit.broker.handlers.asking import cluster
from tests.unit.broker.handlers.grouped import commit, fetched, join, member


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

        assert await commit(broker, 9, {0: 1}, metadata="x" * 4_096) == {0: ErrorCode.none}
        assert await commit(broker, 9, {0: 2}, metadata="x" * 4_097) == {0: ErrorCode.offset_metadata_too_large}


@pytest.mark.parametrize(("sent", "kept"), [(-1, -1), (0, 0), (1, -1), (5, -1)])
def test_an_epoch_of_another_cluster_is_not_kept_as_java_consumers_would_wait_for_it(sent: int, kept: int) -> None:
    assert kept_epoch(sent) == kept


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


@pytest.mark.parametrize(("character", "fits", "too_many"), [("日", 4_096, 4_097), ("\x00", 4_096, 4_097), ("😀", 2_048, 2_049)])
async def test_metadata_is_counted_in_the_characters_of_java(character: str, fits: int, too_many: int) -> None:
    async with cluster() as broker:
        await broker.create("t")

        assert await commit(broker, 9, {0: 1}, metadata=character * fits) == {0: ErrorCode.none}
        assert await commit(broker, 9, {0: 2}, metadata=character * too_many) == {0: ErrorCode.offset_metadata_too_large}
        assert await fetched(broker, 9, {"t": (0,)}) == {("t", 0): (1, character * fits, 0)}


async def test_the_bound_of_metadata_can_be_set() -> None:
    async with cluster(group_settings=GroupSettings(initial_delay_s=0, offset_metadata_chars_max=3)) as broker:
        await broker.create("t")

        assert await commit(broker, 9, {0: 1}, metadata="abc") == {0: ErrorCode.none}
        assert await commit(broker, 9, {0: 1}, metadata="abcd") == {0: ErrorCode.offset_metadata_too_large}


@pytest.mark.parametrize("version", range(2, 10))
@pytest.mark.parametrize("name", ["", "somebody"])
async def test_a_commit_with_a_generation_does_not_make_a_group(version: int, name: str) -> None:
    async with cluster() as broker:
        await broker.create("t")
        error = ErrorCode.group_id_not_found if version == 9 else ErrorCode.illegal_generation

        assert await commit(broker, version, {0: 1}, member_id=name, generation=3) == {0: error}


async def test_an_empty_group_knows_no_generation() -> None:
    async with cluster() as broker:
        await broker.create("t")
        await commit(broker, 9, {0: 1})

        assert await commit(broker, 9, {0: 2}, generation=3) == {0: ErrorCode.unknown_member_id}
        assert await commit(broker, 9, {0: 2}, member_id="somebody", generation=3) == {0: ErrorCode.unknown_member_id}


@pytest.mark.parametrize(("version", "retention_s", "kept"), [(2, 3, False), (4, 3, False), (4, 5_000, True), (4, -0.001, True)])
async def test_a_commit_may_say_how_long_it_is_kept(version: int, retention_s: float, kept: bool) -> None:
    async with cluster() as broker:
        await broker.create("t")
        await commit(broker, version, {0: 1}, retention_time=datetime.timedelta(seconds=retention_s))
        broker.clock.seconds += 3
        await broker.context.parts.groups.sweep()

        assert await fetched(broker, 9, {"t": (0,)}) == {("t", 0): (1, "", 0) if kept else (-1, "", 0)}


async def test_more_offsets_than_a_group_may_have_are_refused() -> None:
    async with cluster(group_limits=GroupLimits(offsets_max=2)) as broker:
        await broker.create("t", partition_count=3)

        assert await commit(broker, 9, {0: 1, 1: 1}) == {0: ErrorCode.none, 1: ErrorCode.none}
        assert await commit(broker, 9, {0: 2, 2: 1}) == dict.fromkeys((0, 2), ErrorCode.invalid_commit_offset_size)
        assert await commit(broker, 9, {0: 3, 1: 3}) == {0: ErrorCode.none, 1: ErrorCode.none}


async def test_a_commit_goes_to_the_incarnation_that_has_the_name_though_no_hint_told_of_it() -> None:
    async with cluster() as broker:
        broker.topics.close()
        old = await broker.create("t")
        other = await broker.other_topics()
        await other.delete(old)
        await other.create("t", partition_count=1, replication_factor=1, configs={})

        assert broker.topics.find("t") == old
        assert await commit(broker, 9, {0: 500}) == {0: ErrorCode.none}
        broker.topics.forget("t")
        assert await fetched(broker, 9, {"t": (0,)}) == {("t", 0): (500, "", 0)}


async def test_a_topic_that_was_deleted_unheard_takes_no_commit() -> None:
    async with cluster() as broker:
        broker.topics.close()
        old = await broker.create("t")
        await (await broker.other_topics()).delete(old)

        assert await commit(broker, 9, {0: 500}) == {0: ErrorCode.unknown_topic_or_partition}


async def test_partitions_that_were_added_unheard_take_commits() -> None:
    async with cluster() as broker:
        broker.topics.close()
        topic = await broker.create("t")
        await (await broker.other_topics()).add_partitions(topic, 4)

        assert await commit(broker, 9, {3: 1}) == {3: ErrorCode.none}
        assert await fetched(broker, 9, {"t": (3,)}) == {("t", 3): (1, "", 0)}
