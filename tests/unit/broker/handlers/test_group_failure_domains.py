"""One of four metadata shards is silent: real handlers of groups, and what they answer about the groups of the other three."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass
from typing import Any

from kio.schema.errors import ErrorCode

from broker.cluster.leadership import slot_of
from broker.groups.state import GroupError
from broker.handlers.groups import delete_groups, describe_groups, list_groups, offset_fetch
from broker.limits import GroupLimits
from storage.metadata import keys
from tests.unit.broker.handlers.asking import Cluster, cluster, error_of
from tests.unit.broker.handlers.grouped import commit, nested, request_of

SOON_S = 25.0
SHARDS = 4


@dataclass
class Scene:
    """Groups with an offset each, of a shard that can be silenced and of the two others that are not that of the claims; none is loaded."""

    broker: Cluster
    shard: int
    silent: list[str]
    healthy: list[str]

    async def ask(self, handle: Any, request: Any, *, until: Callable[[Any], bool]) -> Any:
        """Ask again until the answer is as wanted, as clients do after COORDINATOR_LOAD_IN_PROGRESS: a busy machine loads late."""
        async with asyncio.timeout(SOON_S):
            while True:
                answer = await self.broker.ask(handle, request)
                if until(answer):
                    return answer
                await asyncio.sleep(0.01)

    def are_loaded(self, groups: Collection[str]) -> Callable[[Any], bool]:
        return lambda answer: all(error_of(group) is ErrorCode.none for group in answer.groups if group.group_id in groups)

    def lists(self, groups: Collection[str]) -> Callable[[Any], bool]:
        return lambda answer: {group.group_id for group in answer.groups} >= set(groups)


@contextlib.asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    async with cluster(shards=SHARDS, group_limits=GroupLimits(silent_after_s=0.05, question_timeout_s=0.2)) as broker:
        catalog = broker.metadata.shard_of(keys.ROOT)
        shard = (catalog + 1) % SHARDS
        made = Scene(broker, shard, [], [])
        await broker.create("t")
        for number in range(40):
            group = f"g{number}"
            its_shard = broker.metadata.shard_of(keys.group_partition_key(slot_of(group)))
            if its_shard != catalog:
                (made.silent if its_shard == shard else made.healthy).append(group)
                await commit(broker, 8, {0: number}, group=group)
        assert len(made.silent) > 2
        assert len(made.healthy) > 2
        for group in made.silent + made.healthy:
            (await broker.context.parts.groups.find(group)).close(GroupError.NOT_COORDINATOR)
        broker.metadata.muted.add(shard)
        yield made
        broker.metadata.speak()


async def test_the_groups_of_the_other_shards_are_listed_and_the_answer_says_that_some_are_missing() -> None:
    async with scene() as made:
        while_silent = await made.ask(list_groups.handle, request_of(16, 5), until=made.lists(made.healthy))
        made.broker.metadata.speak()
        after = await made.ask(list_groups.handle, request_of(16, 5), until=lambda answer: error_of(answer) is ErrorCode.none)

    assert error_of(while_silent) is ErrorCode.coordinator_load_in_progress
    assert [group.group_id for group in while_silent.groups] == sorted(made.healthy)
    assert error_of(after) is ErrorCode.none
    assert [group.group_id for group in after.groups] == sorted(made.healthy + made.silent)


async def test_groups_in_memory_are_listed_though_nobody_can_read_who_coordinates() -> None:
    async with scene() as made:
        made.broker.metadata.speak()
        await made.broker.context.parts.groups.find(made.healthy[0])
        made.broker.metadata.muted.add(made.broker.metadata.shard_of(keys.ROOT))
        answer = await made.ask(list_groups.handle, request_of(16, 5), until=made.lists(made.healthy[:1]))

    assert error_of(answer) is ErrorCode.coordinator_not_available
    assert made.healthy[0] in [group.group_id for group in answer.groups]


async def test_each_group_is_described_that_is_not_of_the_silent_shard() -> None:
    async with scene() as made:
        groups = tuple(made.silent + made.healthy)
        asked = request_of(15, 6, groups=groups, include_authorized_operations=False)
        answer = await made.ask(describe_groups.handle, asked, until=made.are_loaded(made.healthy))
        made.broker.metadata.speak()
        after = await made.ask(describe_groups.handle, asked, until=made.are_loaded(groups))

    assert [group.group_id for group in answer.groups] == list(groups)
    errors = {group.group_id: error_of(group) for group in answer.groups}
    assert {errors[group] for group in made.silent} == {ErrorCode.coordinator_load_in_progress}
    assert {errors[group] for group in made.healthy} == {ErrorCode.none}
    assert {error_of(group) for group in after.groups} == {ErrorCode.none}


async def test_a_group_that_is_loaded_is_described_though_its_shard_is_silent() -> None:
    async with scene() as made:
        made.broker.metadata.speak()
        loaded = made.silent[1]
        await made.broker.context.parts.groups.find(loaded)
        made.broker.metadata.muted.add(made.shard)
        asked = request_of(15, 6, groups=tuple(made.silent), include_authorized_operations=False)
        answer = await made.ask(describe_groups.handle, asked, until=made.are_loaded([loaded]))

    assert [group.group_id for group in answer.groups if error_of(group) is ErrorCode.none] == [loaded]


async def test_offsets_of_several_groups_are_answered_for_those_that_are_not_of_the_silent_shard() -> None:
    async with scene() as made:
        topics = (nested(9, 8, "OffsetFetchRequestTopics", name="t", partition_indexes=(0,)),)
        groups = made.silent + made.healthy
        asked = tuple(nested(9, 8, "OffsetFetchRequestGroup", group_id=group, topics=topics) for group in groups)
        answer = await made.ask(offset_fetch.handle, request_of(9, 8, groups=asked), until=made.are_loaded(made.healthy))

    assert [group.group_id for group in answer.groups] == groups
    errors = {group.group_id: error_of(group) for group in answer.groups}
    assert {errors[group] for group in made.silent} == {ErrorCode.coordinator_load_in_progress}
    assert {errors[group] for group in made.healthy} == {ErrorCode.none}


async def test_groups_are_deleted_that_are_not_of_the_silent_shard() -> None:
    deleted: set[str] = set()
    async with scene() as made:

        def are_deleted(answer: Any) -> bool:
            # A deletion whose answer came too late is one of an unknown group when it is asked for again.
            done = {ErrorCode.none, ErrorCode.group_id_not_found}
            deleted.update(group.group_id for group in answer.results if error_of(group) in done)
            return deleted >= set(made.healthy)

        asked = request_of(42, 2, groups_names=tuple(made.silent + made.healthy))
        answer = await made.ask(delete_groups.handle, asked, until=are_deleted)
        listed = await made.ask(list_groups.handle, request_of(16, 5), until=lambda _: True)

    errors = {group.group_id: error_of(group) for group in answer.results}
    assert {errors[group] for group in made.silent} == {ErrorCode.request_timed_out}
    assert deleted == set(made.healthy)
    assert not {group.group_id for group in listed.groups} & deleted
