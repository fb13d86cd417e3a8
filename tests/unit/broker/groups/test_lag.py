"""The lag of groups as a scrape shows it, with ends and times that are set by hand."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.groups.lag import (
    ENDS_AT_ONCE,
    ENDS_KEPT_MAX,
    GROUP_TOPICS_SHOWN_MAX,
    GROUPS_SAMPLED_MAX,
    LOOK_UPS_MAX,
    PARTITIONS_SAMPLED_MAX,
    EndHistory,
    LagSampler,
)
from broker.groups.state import GroupError, GroupSettings, Protocol
from runtime.telemetry import Telemetry
from storage.errors import StorageError, Unavailable
from storage.log.fresh_reads import LogBounds
from storage.vocabulary import PartitionId
from tests.kit.coordinating import Node, World, committed, simple, stable, world
from tests.kit.group_offsets import restarted, topic_of

INTERVAL_S = 15.0
NEVER_FORGOTTEN = GroupSettings(initial_delay_s=0)


@dataclass
class Log:
    """The ends of partitions, and when the records of an entry were appended; both count how often they are asked."""

    ends: dict[PartitionId, tuple[int, int]] = field(default_factory=dict)
    times_ms: dict[PartitionId, int | None] = field(default_factory=dict)
    is_away: bool = False
    asked: list[int] = field(default_factory=list)
    looked_up: list[tuple[PartitionId, int]] = field(default_factory=list)

    async def read(self, partitions: Sequence[PartitionId]) -> list[LogBounds | StorageError]:
        self.asked.append(len(partitions))
        if self.is_away:
            return [Unavailable("away") for _ in partitions]
        return [LogBounds(*self.ends.get(partition, (0, 0)), bytes_total=0) for partition in partitions]

    async def greatest_around(self, partition: PartitionId, offset: int) -> int | None:
        self.looked_up.append((partition, offset))
        return self.times_ms.get(partition)


@dataclass
class Lagging:
    made: World
    node: Node
    log: Log
    telemetry: Telemetry

    async def commit(self, group: str, offsets: dict[PartitionId, int]) -> None:
        made = {partition: committed(offset) for partition, offset in offsets.items()}
        assert await self.node.coordinator.commit(group, simple(made)) is GroupError.NONE

    async def sample(self, *, after_s: float = INTERVAL_S) -> None:
        """Scrape, and let a sample follow, `after_s` later by the wall."""
        self.series("")
        self.made.clock.wall_ms += int(after_s * 1_000)
        await asyncio.sleep(INTERVAL_S + 0.1)

    def series(self, name: str) -> dict[tuple[str, ...], float]:
        return {
            tuple(sample.labels.values()): sample.value
            for family in self.telemetry.registry.collect()
            for sample in family.samples
            if sample.name == name
        }

    @property
    def records(self) -> dict[tuple[str, ...], float]:
        return self.series("forebay_group_lag_records")

    @property
    def folded(self) -> float:
        return self.series("forebay_metrics_folded_total")[()]

    @property
    def seconds(self) -> dict[tuple[str, ...], float]:
        return self.series("forebay_group_lag_seconds")


@contextlib.asynccontextmanager
async def lagging(*, shown: str | None = None) -> AsyncIterator[Lagging]:
    async with world(settings=NEVER_FORGOTTEN) as made:
        node = await made.node(1)
        one = Lagging(made, node, Log(), Telemetry())
        made.nursery.spawn(sampled(one, node, shown=shown).run(), name="lag")
        yield one


def sampled(one: Lagging, node: Node, *, shown: str | None = None) -> LagSampler:
    return LagSampler(
        metadata=node.metadata,
        listed=node.coordinator.listed,
        topics=node.topics,
        bounds=one.log,
        times=one.log,
        clock=one.made.clock,
        telemetry=one.telemetry,
        interval_s=INTERVAL_S,
        shown=shown,
    )


async def test_a_group_at_the_end_lags_nothing_and_one_behind_it_as_many_records_and_as_long_as_its_first_unread_one_is_old() -> None:
    async with lagging() as one:
        topic = await topic_of(one.node, "orders", partition_count=2)
        at_end, behind = topic.partition(0), topic.partition(1)
        one.log.ends = {at_end: (0, 100), behind: (0, 100)}
        await one.commit("g", {at_end: 100, behind: 100})
        await one.sample()
        assert one.records == {("g", "orders"): 0}
        assert one.seconds == {("g", "orders"): 0}

        one.log.ends[behind] = 0, 160
        await one.sample(after_s=60)
        assert one.records == {("g", "orders"): 60}
        assert one.seconds == {("g", "orders"): 60}

        await one.commit("g", {behind: 130})  # half of what came in these 60 s
        await one.sample(after_s=10)
        assert one.records == {("g", "orders"): 30}
        assert one.seconds == {("g", "orders"): 40}


async def test_a_group_s_age_is_shown_by_the_retention_of_its_topic_and_not_where_a_topic_keeps_all() -> None:
    async with lagging() as one:
        configs: dict[str, dict[str, str]] = {
            "minute": {"retention.ms": "60000"},
            "endless": {"retention.ms": "-1"},
            "compacted": {"cleanup.policy": "compact", "retention.ms": "60000"},
        }
        for name, given_configs in configs.items():
            topic = await one.node.topics.create(name, partition_count=1, replication_factor=1, configs=given_configs)
            one.node.partitions.add(topic.partition(0))
            one.log.ends[topic.partition(0)] = 0, 10
            await one.commit("g", {topic.partition(0): 10})
        await one.sample()
        assert one.series("forebay_group_lag_retention_ratio") == {("g", "minute"): 0}

        one.log.ends = dict.fromkeys(one.log.ends, (0, 20))
        await one.sample(after_s=45)

        assert one.seconds == {("g", name): 45 for name in configs}
        assert one.series("forebay_group_lag_retention_ratio") == {("g", "minute"): 0.75}


async def test_an_end_that_stands_still_does_not_make_what_comes_after_it_older() -> None:
    async with lagging() as one:
        partition = (await topic_of(one.node)).partition(0)
        one.log.ends = {partition: (0, 5)}
        await one.commit("g", {partition: 5})
        for _ in range(10):
            await one.sample(after_s=100)
        one.log.ends = {partition: (0, 6)}
        await one.sample(after_s=20)

        assert one.seconds == {("g", "t"): 20}


async def test_a_commit_from_before_the_first_sample_is_as_old_as_its_entry_which_is_looked_up_once() -> None:
    async with lagging() as one:
        partition = (await topic_of(one.node)).partition(0)
        one.log.ends = {partition: (0, 100)}
        one.log.times_ms = {partition: one.made.clock.wall_ms - 3_600_000}
        await one.commit("g", {partition: 40})
        for _ in range(3):
            await one.sample(after_s=10)
        assert one.records == {("g", "t"): 60}
        assert one.seconds == {("g", "t"): 3_630}
        assert one.log.looked_up == [(partition, 40)]

        await one.commit("g", {partition: 50})
        await one.sample(after_s=0)
        assert one.log.looked_up == [(partition, 40), (partition, 50)]


@pytest.mark.parametrize("told_ms", [None, -1, 10**15])
async def test_records_without_a_time_and_from_the_future_are_at_least_as_old_as_the_first_sample(told_ms: int | None) -> None:
    async with lagging() as one:
        partition = (await topic_of(one.node)).partition(0)
        one.log.ends = {partition: (0, 100)}
        one.log.times_ms = {partition: told_ms}
        await one.commit("g", {partition: 40})
        await one.sample()
        await one.sample(after_s=30)

        assert one.seconds == {("g", "t"): 30}


async def test_what_was_trimmed_before_it_was_read_counts_as_records_and_is_as_old_as_the_first_that_is_left() -> None:
    async with lagging() as one:
        partition = (await topic_of(one.node)).partition(0)
        one.log.ends = {partition: (70, 100)}
        one.log.times_ms = {partition: one.made.clock.wall_ms}
        await one.commit("g", {partition: 40})
        await one.sample(after_s=5)

        assert one.records == {("g", "t"): 60}
        assert one.log.looked_up == [(partition, 70)]


async def test_partitions_without_a_commit_have_no_lag_and_are_counted() -> None:
    async with lagging() as one:
        topic = await topic_of(one.node, "orders", partition_count=3)
        await topic_of(one.node, "wanted", partition_count=2)
        one.log.ends = {topic.partition(number): (0, 10) for number in range(3)}
        wanted = b"\x00\x01\x00\x00\x00\x01\x00\x06wanted\xff\xff\xff\xff"
        await stable(one.node, "joined", session_timeout_s=300.0, protocols=(Protocol("range", wanted),))
        await one.commit("g", {topic.partition(0): 4})
        await one.sample()

        assert one.records == {("g", "orders"): 6}
        assert one.series("forebay_group_uncommitted_partitions") == {("g", "orders"): 2, ("joined", "wanted"): 2}
        assert one.series("forebay_group_joined_members") == {("g",): 0, ("joined",): 1}


async def test_a_group_that_no_broker_has_loaded_since_a_restart_lags_all_the_same_and_is_not_loaded_for_that() -> None:
    async with lagging() as one:
        partition = (await topic_of(one.node)).partition(0)
        await one.commit("stopped", {partition: 40})
        node = await restarted(one.made, one.node)
        after = Lagging(one.made, node, Log(ends={partition: (0, 100)}), Telemetry())
        one.made.nursery.spawn(sampled(after, node).run(), name="lag-after")
        await after.sample()

        assert after.records == {("stopped", "t"): 60}
        assert after.series("forebay_group_joined_members") == {}
        assert node.coordinator.loaded("stopped") is None


async def test_nothing_is_read_while_nobody_scrapes() -> None:
    async with lagging() as one:
        partition = (await topic_of(one.node)).partition(0)
        await one.commit("g", {partition: 0})
        await asyncio.sleep(10 * INTERVAL_S)
        assert one.log.asked == []

        await one.sample()
        assert one.log.asked == [1]
        await asyncio.sleep(60 * INTERVAL_S)
        read = len(one.log.asked)
        await asyncio.sleep(60 * INTERVAL_S)
        assert len(one.log.asked) == read
        assert one.records == {}


async def test_a_topic_whose_ends_cannot_be_read_has_no_lag_rather_than_a_wrong_one() -> None:
    async with lagging() as one:
        partition = (await topic_of(one.node)).partition(0)
        one.log.ends = {partition: (0, 9)}
        await one.commit("g", {partition: 0})
        one.log.is_away = True
        await one.sample()

        assert one.records == {}
        assert one.seconds == {}


@pytest.mark.parametrize("failure", [Unavailable("away"), KeyError("a bug")])
async def test_a_sample_that_fails_leaves_the_one_before_it_and_its_age_says_so(failure: Exception) -> None:
    async with lagging() as one:
        partition = (await topic_of(one.node)).partition(0)
        one.log.ends = {partition: (0, 9)}
        await one.commit("g", {partition: 0})
        await one.sample()

        async def fails(_partitions: Sequence[PartitionId]) -> list[LogBounds | StorageError]:
            raise failure

        one.log.read = fails  # type: ignore[method-assign, assignment]
        await one.sample()
        await one.sample()

        assert one.records == {("g", "t"): 9}
        assert one.series("forebay_lag_sample_age_seconds")[()] >= 2 * INTERVAL_S


async def test_offsets_of_a_deleted_topic_are_no_lag() -> None:
    async with lagging() as one:
        topic = await topic_of(one.node)
        await one.commit("g", {topic.partition(0): 0})
        await one.node.topics.delete(topic)
        await one.sample()

        assert one.records == {}


async def test_many_groups_are_sampled_up_to_a_bound_and_those_with_members_come_first() -> None:
    async with lagging() as one:
        partition = (await topic_of(one.node)).partition(0)
        one.log.ends = {partition: (0, 3)}
        for number in range(GROUPS_SAMPLED_MAX + 1):
            await one.commit(f"a{number:04}", {partition: 1})
        joined = await stable(one.node, "z", session_timeout_s=300.0)
        await one.sample()

        assert joined.member_id
        members = one.series("forebay_group_joined_members")
        assert (members["z",], members["(other)",], len(members)) == (1, 0, GROUPS_SAMPLED_MAX + 1)
        assert len(one.records) == GROUPS_SAMPLED_MAX - 1
        assert one.folded == 2


async def test_many_topics_of_groups_are_shown_up_to_a_bound_and_the_others_together() -> None:
    async with lagging() as one:
        beyond = 5
        topics = [await topic_of(one.node, f"t{number:04}") for number in range(GROUP_TOPICS_SHOWN_MAX + beyond)]
        one.log.ends = {topic.partition(0): (0, 7) for topic in topics}
        await one.commit("g", {topic.partition(0): 5 for topic in topics})
        await one.sample()

        assert len(one.records) == GROUP_TOPICS_SHOWN_MAX + 1
        assert one.records["(other)", "(other)"] == 2 * beyond
        assert max(one.log.asked) == ENDS_AT_ONCE
        assert len(one.log.looked_up) == LOOK_UPS_MAX
        await one.sample()
        assert len(one.log.looked_up) == 2 * LOOK_UPS_MAX
        assert one.folded == beyond


async def test_topics_that_the_setting_leaves_out_are_one_topic_of_each_group() -> None:
    async with lagging(shown="orders.*") as one:
        for number, name in enumerate(("orders-1", "secret-1", "secret-2"), 1):
            topic = await topic_of(one.node, name, partition_count=2)
            one.log.ends[topic.partition(0)] = 0, 10 * number
            await one.commit("g", {topic.partition(0): 0})
        await one.sample()

        assert one.records == {("g", "orders-1"): 10, ("g", "(other)"): 50}
        assert one.series("forebay_group_uncommitted_partitions") == {("g", "orders-1"): 1, ("g", "(other)"): 2}


async def test_a_group_whose_partitions_do_not_fit_is_left_out_whole_and_those_after_it_are_not() -> None:
    async with lagging() as one:
        small, large = await topic_of(one.node, "small", 2), await topic_of(one.node, "large", PARTITIONS_SAMPLED_MAX)
        one.log.ends = {small.partition(0): (0, 3), small.partition(1): (0, 4)}
        await one.commit("a", {small.partition(0): 1})
        await one.commit("b", {large.partition(number): 0 for number in range(PARTITIONS_SAMPLED_MAX)})
        await one.commit("c", {small.partition(1): 1})
        await one.sample()

        assert one.records == {("a", "small"): 2, ("c", "small"): 3}


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 10_000)), min_size=2, max_size=2 * ENDS_KEPT_MAX))
def test_a_record_is_as_old_as_between_the_samples_around_it(steps: list[tuple[int, int]]) -> None:
    history, end, now_ms = EndHistory(), 0, 0
    seen = []
    for more, pause_ms in steps:
        end, now_ms = end + more, now_ms + pause_ms
        history.note(end, now_ms)
        seen.append((end, now_ms))
    for offset in range(max(0, end - 60), end):
        at_ms = history.appended_ms(offset)
        after = next(number for number, (its_end, _) in enumerate(seen) if its_end > offset)
        if at_ms is None:
            assert offset < seen[0][0] or len(steps) > ENDS_KEPT_MAX
        else:
            assert seen[after - 1][1] <= at_ms <= seen[after][1]
    assert history.first_ms >= seen[0][1]
