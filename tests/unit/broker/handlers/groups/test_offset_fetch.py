import pytest
from kio.schema.errors import ErrorCode

from broker.handlers.groups import offset_fetch
from tests.unit.broker.handlers.asking import cluster, error_of
from tests.unit.broker.handlers.grouped import commit, fetched, nested, request_of


@pytest.mark.parametrize("version", range(1, 10))
async def test_what_nobody_committed_is_minus_one_without_an_error(version: int) -> None:
    async with cluster() as broker:
        await broker.create("t")
        asked = {"t": (0, 7), "absent": (0,)}

        nothing = {("t", 0): (-1, "", 0), ("t", 7): (-1, "", 0), ("absent", 0): (-1, "", 0)}
        assert await fetched(broker, version, asked) == nothing
        await commit(broker, 9, {0: 3})
        assert await fetched(broker, version, asked) == nothing | {("t", 0): (3, "", 0)}


@pytest.mark.parametrize("version", range(2, 10))
async def test_all_offsets_of_a_group_are_answered_when_no_topics_are_named(version: int) -> None:
    async with cluster() as broker:
        gone = await broker.create("gone")
        await broker.create("t", partition_count=2)
        await commit(broker, 9, {0: 3, 1: 4})
        await commit(broker, 9, {0: 3}, topic="gone")
        await broker.topics.delete(gone)

        assert await fetched(broker, version, None) == {("t", 0): (3, "", 0), ("t", 1): (4, "", 0)}
        assert await fetched(broker, version, None, group="another") == {}


@pytest.mark.parametrize("version", range(1, 10))
async def test_another_broker_s_group_is_refused(version: int) -> None:
    async with cluster() as broker:
        await broker.create("t")
        await broker.lose_registration()
        answer = await fetched(broker, version, {"t": (0,)})

    if version == 1:
        assert answer == {("t", 0): (-1, "", int(ErrorCode.not_coordinator))}
    else:
        assert answer is ErrorCode.not_coordinator


@pytest.mark.parametrize("version", [8, 9])
async def test_several_groups_are_answered_each_for_itself(version: int) -> None:
    async with cluster() as broker:
        await broker.create("t")
        await commit(broker, 9, {0: 3}, group="a")
        groups = tuple(nested(9, version, "OffsetFetchRequestGroup", group_id=name, topics=None) for name in ("a", "b"))
        answer = await broker.ask(offset_fetch.handle, request_of(9, version, groups=groups, require_stable=True))

    assert [(group.group_id, error_of(group), len(group.topics)) for group in answer.groups] == [
        ("a", ErrorCode.none, 1),
        ("b", ErrorCode.none, 0),
    ]


async def test_a_store_that_does_not_answer_makes_the_client_ask_again() -> None:
    async with cluster() as broker:
        await broker.create("t")
        await commit(broker, 9, {0: 3})
        broker.metadata.reads_fail = True

        assert ErrorCode(await fetched(broker, 9, {"t": (0,)})) is ErrorCode.coordinator_not_available


@pytest.mark.parametrize("version", [1, 7, 8, 9])
async def test_what_is_committed_to_the_incarnation_that_has_the_name_is_found_though_no_hint_told_of_it(version: int) -> None:
    async with cluster() as broker:
        broker.topics.close()
        old = await broker.create("t")
        await commit(broker, 9, {0: 3})
        other = await broker.other_topics()
        await other.delete(old)
        new = await other.create("t", partition_count=1, replication_factor=1, configs={})
        nothing = {("t", 0): (-1, "", 0)}

        assert broker.topics.find("t") == old
        assert await fetched(broker, version, {"t": (0,)}) == nothing
        broker.topics._remember(old, float("inf"))
        assert version == 1 or await fetched(broker, version, None) == {}
        await commit(broker, 9, {0: 7})
        broker.topics._remember(old, float("inf"))
        assert await fetched(broker, version, {"t": (0,)}) == {("t", 0): (7, "", 0)}
        broker.topics._remember(new, float("inf"))
        assert version == 1 or await fetched(broker, version, None) == {("t", 0): (7, "", 0)}


async def test_a_topic_of_which_nobody_can_tell_is_asked_for_again() -> None:
    async with cluster() as broker:
        await broker.create("t")
        await commit(broker, 9, {0: 3})
        broker.topics.forget("t")
        checked = 0

        async def fail_after_the_group() -> None:
            nonlocal checked
            checked += 1
            broker.metadata.reads_fail = checked >= 1

        broker.metadata.after_read = fail_after_the_group
        assert await fetched(broker, 9, {"t": (0,)}) is ErrorCode.coordinator_load_in_progress
