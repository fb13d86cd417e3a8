"""Creating, growing and deleting topics: every fault and interleaving within bounds (docs/internals/adr/0015-a-topic-id-lives-once.md)."""

from collections.abc import Callable, Sequence

import msgspec
import pytest

from storage.catalog import topic as topic_module
from storage.catalog.limits import CatalogLimits
from storage.catalog.topic import Topic, TopicChanges, TopicIdRecord, create_manifests
from storage.metadata import keys
from storage.metadata.port import ABSENT, Delete, Key, MetadataStore, Put
from tests.model.topic_world import Actor, Program, World, Wrong, explore

FEW_ATTEMPTS = CatalogLimits(change_attempts_max=4, creation_looks_max=1)


def right(metadata: MetadataStore) -> TopicChanges:
    return TopicChanges(metadata, entropy=bytes, limits=FEW_ATTEMPTS)


async def creates(world: World, actor: Actor) -> None:
    await world.create(actor)


async def creates_and_deletes(world: World, actor: Actor) -> None:
    topic = await world.create(actor)
    if topic is not None:
        await world.delete(actor, topic)


async def deletes(world: World, actor: Actor) -> None:
    found = world.holder()
    if found is not None:
        await world.delete(actor, found)


async def deletes_and_creates(world: World, actor: Actor) -> None:
    await deletes(world, actor)
    await creates(world, actor)


async def grows(world: World, actor: Actor) -> None:
    found = world.holder()
    if found is not None:
        await world.grow(actor, found, 2)


async def creates_and_grows(world: World, actor: Actor) -> None:
    topic = await world.create(actor)
    if topic is not None:
        await world.grow(actor, topic, 2)


SCENARIOS: dict[str, tuple[Sequence[Program], Program | None]] = {
    "created and deleted": ([creates_and_deletes], None),
    "created and grown": ([creates_and_grows], None),
    "created and deleted beside a creation": ([creates_and_deletes, creates], None),
    "deleted and created again beside a deletion": ([deletes_and_creates, deletes], creates),
    "deleted while partitions are added": ([deletes, grows], creates),
    "deleted and created again while partitions are added": ([deletes_and_creates, grows], creates),
    "partitions added by two": ([grows, grows], creates),
}
BOUNDS = [(4, 0), (1, 1)]
WIDER = [(2, 1), (0, 2)]
"""(switches, faults)."""


def runs(scenario: str, bounds: tuple[int, int], make_changes: Callable[[MetadataStore], TopicChanges] = right) -> int:
    programs, before = SCENARIOS[scenario]
    return explore(programs, switches=bounds[0], faults=bounds[1], make_changes=make_changes, before=before).runs


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("bounds", BOUNDS)
def test_no_topic_is_dead_no_log_is_an_orphan_and_nothing_acked_is_undone(scenario: str, bounds: tuple[int, int]) -> None:
    assert runs(scenario, bounds) > 0


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("bounds", WIDER)
def test_nor_with_more_faults_and_switches(scenario: str, bounds: tuple[int, int]) -> None:
    assert runs(scenario, bounds) > 0


def test_three_creations_of_one_name_make_one_topic() -> None:
    assert explore([creates, creates, creates], switches=3, faults=0, make_changes=right).runs > 1_000


class OneIdForAllAttempts(TopicChanges):
    async def create(self, name: str, propose: Callable[[], Topic]) -> Topic:
        proposal = propose()
        return await super().create(name, lambda: proposal)


class ActivatesWhateverIsThere(TopicChanges):
    async def _activate(self, reserved: Topic, version: int, action: str) -> Topic:
        (record,) = await self._metadata.get_many([keys.topic(reserved.name)])
        return await super()._activate(reserved, ABSENT if record is None else record.version, action)


class AddsLogsUnplanned(TopicChanges):
    async def add_partitions(self, topic: Topic, count: int) -> int:
        current, _ = await self._read_active(topic)
        before = current.partition_count
        await create_manifests(self._metadata, topic.topic_id, count, entropy=self._entropy, first=before)
        await self.replace(topic, lambda newest: msgspec.structs.replace(newest, partition_count=count), "add")
        return before


class BelievesThatATopicIsGone(TopicChanges):
    async def _read_incarnation(self, topic: Topic) -> tuple[TopicIdRecord | None, Topic | None, int]:
        named, holder, version = await super()._read_incarnation(topic)
        return (TopicIdRecord(name=topic.name, deleted_logs=1) if holder is None else named), holder, version


class ForgetsTheName(TopicChanges):
    async def _finish(self, topic: Topic, version: int) -> None:
        await self._metadata.write([Delete(keys.topic(topic.name), version)])


BESIDE = "created and deleted beside a creation"
GROWN = "deleted while partitions are added"


@pytest.mark.parametrize(
    ("wrong", "scenario", "bounds", "said"),
    [
        (OneIdForAllAttempts, BESIDE, (1, 1), "a partition without an open log"),
        (ActivatesWhateverIsThere, BESIDE, (1, 0), "an open log that belongs to nobody"),
        (AddsLogsUnplanned, GROWN, (1, 0), "an open log that belongs to nobody"),
        (BelievesThatATopicIsGone, "created and deleted", (0, 2), "nothing says that it was deleted"),
        (BelievesThatATopicIsGone, BESIDE, (0, 2), "a deleted topic is back"),
        (ForgetsTheName, "created and deleted", (0, 0), "an open log that belongs to nobody"),
    ],
)
def test_a_wrong_order_or_condition_is_found(wrong: type[TopicChanges], scenario: str, bounds: tuple[int, int], said: str) -> None:
    with pytest.raises(Wrong, match=said):
        runs(scenario, bounds, lambda metadata: wrong(metadata, entropy=bytes, limits=FEW_ATTEMPTS))


def test_tombstones_only_where_there_is_a_log_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    tombstones = topic_module._tombstones

    async def where_there_is_a_log(metadata: MetadataStore, waiting: list[Key]) -> list[Put]:
        return [put for put in await tombstones(metadata, waiting) if put.expected_version != ABSENT]

    monkeypatch.setattr(topic_module, "_tombstones", where_there_is_a_log)

    with pytest.raises(Wrong, match="an open log that belongs to nobody"):
        runs(GROWN, (1, 1))
