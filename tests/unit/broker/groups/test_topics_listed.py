"""Topics that a group's record and the pages beside it name: no offset is hidden, whatever is cut short and whatever arrives late."""

import contextlib
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from broker.cluster.leadership import slot_of
from broker.groups.group import Closed, DeleteOffsets
from broker.groups.state import Group, GroupError
from broker.groups.store import StoredGroup
from broker.limits import GroupLimits
from runtime.clock import SystemClock
from storage.catalog.groups import TopicsRecord, decode_head, topics_key
from storage.catalog.records import encode
from storage.errors import Fenced, StorageError
from storage.metadata.keys import GroupKeys
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import ABSENT, Key, Put, Record, WriteOp
from storage.vocabulary import PartitionId, TopicId
from tests.kit.coordinating import committed, world
from tests.kit.faulty_metadata import Fault, FaultyMetadata
from tests.kit.group_offsets import commit, topic_of
from tests.unit.broker.groups.test_sweep import SETTINGS

KEYS = GroupKeys("g", slot_of("g"))
SHORT_LISTS = GroupLimits(topics_named_max=2, topics_page_max=3)


@pytest.mark.parametrize("writes_left", range(9))
@pytest.mark.parametrize("ops_max", [1_000, 4])
async def test_no_topic_is_lost_when_pages_get_fewer_and_that_is_cut_short(writes_left: int, ops_max: int) -> None:
    async with world(settings=SETTINGS, limits=replace(SHORT_LISTS, write_request_ops_max=ops_max)) as made:
        node = await made.node(1)
        partitions = [(await topic_of(node, f"t{number:02}")).partition(0) for number in range(11)]
        for partition in partitions:
            await commit(node, "g", partition)
        await node.coordinator.delete_offsets("g", DeleteOffsets(tuple(partitions[:4])))
        (await node.coordinator.find("g")).close(GroupError.NOT_COORDINATOR)
        written = len(node.metadata.writes)
        node.metadata.faults = {written + number: Fault.REFUSED for number in range(writes_left, 9)}
        with contextlib.suppress(Closed):
            await node.coordinator.find("g")
        node.metadata.faults = {}

        assert set((await node.coordinator.find("g")).stored.offsets) == set(partitions[4:])


@pytest.mark.parametrize("late", range(8))
@pytest.mark.parametrize("delivered_after", range(1, 12))
async def test_no_topic_is_hidden_by_what_a_coordinator_before_wrote_when_it_listed_them_anew(late: int, delivered_after: int) -> None:
    async with world(settings=SETTINGS, limits=SHORT_LISTS) as made:
        node = await made.node(1)
        partitions = [(await topic_of(node, f"t{number:02}")).partition(0) for number in range(11)]
        await commit(node, "g", *partitions)
        await node.coordinator.delete_offsets("g", DeleteOffsets(tuple(partitions[:4])))
        (await node.coordinator.find("g")).close(GroupError.NOT_COORDINATOR)
        node.metadata.faults = {len(node.metadata.writes) + late: Fault.LATE}
        with contextlib.suppress(Closed):
            await node.coordinator.find("g")
        requests = 0

        class NextStore(FaultyMetadata):
            async def _dawdle(self) -> None:
                nonlocal requests
                requests += 1
                if requests == delivered_after:
                    await node.metadata.deliver()

        next_store = NextStore(node.metadata.store)
        stored, _ = await StoredGroup.load(next_store, KEYS, group_id="g", owner=1, clock=made.clock, limits=SHORT_LISTS)
        assert set(stored.offsets) == set(partitions[4:])
        await node.metadata.deliver()
        stored, _ = await StoredGroup.load(next_store, KEYS, group_id="g", owner=1, clock=made.clock, limits=SHORT_LISTS)

        assert set(stored.offsets) == set(partitions[4:])


async def test_topics_that_come_and_go_for_years_leave_no_list_behind() -> None:
    async with world(settings=SETTINGS, limits=SHORT_LISTS) as made:
        node = await made.node(1)
        kept = [(await topic_of(node, f"kept{number}")).partition(0) for number in range(3)]
        await commit(node, "g", *kept)
        for number in range(60):
            partition = (await topic_of(node, f"t{number}")).partition(0)
            await commit(node, "g", partition)
            await node.coordinator.delete_offsets("g", DeleteOffsets((partition,)))
        (record,) = await node.metadata.get_many([KEYS.group])
        assert record is not None
        assert decode_head(record).topic_pages <= 3

        (await node.coordinator.find("g")).close(GroupError.NOT_COORDINATOR)
        assert set((await node.coordinator.find("g")).stored.offsets) == set(kept)


class LateStore(FaultyMetadata):
    """What it was to deliver late arrives at any moment, also while others use the store."""

    def __init__(self, store: MemoryMetadataStore, late: list[Sequence[WriteOp]], chance: random.Random) -> None:
        super().__init__(store)
        self._late, self._dice = late, chance

    async def _dawdle(self) -> None:
        if self._late and self._dice.random() < 0.15:
            await self.store.write(self._late.pop(self._dice.randrange(len(self._late))))


async def loaded(
    store: MemoryMetadataStore, late: list[Sequence[WriteOp]], chance: random.Random, *, owner: int, limits: GroupLimits
) -> tuple[StoredGroup, Group]:
    """By coordinators one after the other, each of which writes with faults."""
    for _ in range(50):
        client = LateStore(store, late, chance)
        client.faults = {number: chance.choice(list(Fault)) for number in range(12) if chance.random() < 0.06}
        with contextlib.suppress(StorageError):
            found = await StoredGroup.load(client, KEYS, group_id="g", owner=owner, clock=SystemClock(), limits=limits)
            client.faults = {}
            return found
    raise AssertionError("it is never loaded")


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("topic_count", [16, 2])
async def test_what_was_acknowledged_is_there_however_often_topics_are_listed_anew(seed: int, topic_count: int) -> None:
    chance = random.Random(seed)
    limits = replace(SHORT_LISTS, write_request_ops_max=chance.choice([1_000, 4]))
    store, late = MemoryMetadataStore(clock=SystemClock()), list[Sequence[WriteOp]]()
    partitions = [PartitionId(TopicId(f"{number % topic_count:08x}-0000-0000-0000-000000000000"), number) for number in range(16)]
    acknowledged = dict.fromkeys(partitions, -1)
    unknown: dict[PartitionId, set[int]] = {partition: set() for partition in partitions}
    found, group = await loaded(store, late, chance, owner=0, limits=limits)
    for number in range(70):
        chosen = chance.sample(partitions, chance.randrange(1, 7))
        deletes = chance.random() < 0.45
        offset = -1 if deletes else number
        client = found._metadata
        assert isinstance(client, LateStore)
        client.faults = {len(client.writes) + chance.randrange(4): chance.choice(list(Fault))} if chance.random() < 0.25 else {}
        is_open = chance.random() >= 0.12
        try:
            if deletes:
                chosen = [partition for partition in chosen if found.offset(partition) is not None]
                await found.delete_offsets(group, chosen)
            else:
                await found.commit(group, {partition: committed(number) for partition in chosen})
        except StorageError:
            is_open = False
            for partition in chosen:
                unknown[partition].add(offset)
        else:
            acknowledged |= dict.fromkeys(chosen, offset)
            if not deletes:
                unknown |= {partition: set() for partition in chosen}
        client.faults = {}
        if is_open:
            continue
        found, group = await loaded(store, late, chance, owner=number + 1, limits=limits)
        for partition in partitions:
            one = found.offset(partition)
            is_offset = -1 if one is None else one.offset
            was = acknowledged[partition]
            assert is_offset == was or is_offset in unknown[partition]
            # What it was loaded with is what it is: of what nobody heard of before, nothing may come any more.
            acknowledged[partition], unknown[partition] = is_offset, set()
    await store.close()


@pytest.mark.parametrize("read", range(3))
async def test_a_takeover_that_is_overtaken_writes_over_nothing_that_its_successor_listed(read: int) -> None:
    """Between its reads another takes the group over, and commits in a topic that it has not seen."""
    store = MemoryMetadataStore(clock=SystemClock())
    topics = [PartitionId(TopicId(f"{number:08x}-0000-0000-0000-000000000000"), 0) for number in range(5)]
    found, group = await StoredGroup.load(FaultyMetadata(store), KEYS, group_id="g", owner=0, clock=SystemClock(), limits=SHORT_LISTS)
    await found.commit(group, {partition: committed(1) for partition in topics[:4]})
    slow, successors = FaultyMetadata(store), list[StoredGroup]()

    async def overtaken(keys: Sequence[Key]) -> list[Record | None]:
        slow.reads.append(keys)
        if len(slow.reads) == read + 1:
            successor, its_group = await StoredGroup.load(
                FaultyMetadata(store), KEYS, group_id="g", owner=1, clock=SystemClock(), limits=SHORT_LISTS
            )
            successors.append(successor)
            await successor.commit(its_group, {topics[4]: committed(2)})
        return await store.get_many(keys)

    slow.get_many = overtaken  # type: ignore[method-assign]
    again, _ = await StoredGroup.load(slow, KEYS, group_id="g", owner=2, clock=SystemClock(), limits=SHORT_LISTS)

    assert len(successors) == 1
    assert set(again.offsets) == set(topics)
    await store.close()


async def test_a_page_of_the_next_coordinator_is_not_taken_for_one_that_was_left_there() -> None:
    store = MemoryMetadataStore(clock=SystemClock())
    topics = [PartitionId(TopicId(f"{number:08x}-0000-0000-0000-000000000000"), 0) for number in range(5)]
    slow, successors = FaultyMetadata(store), list[StoredGroup]()
    found, group = await StoredGroup.load(slow, KEYS, group_id="g", owner=0, clock=SystemClock(), limits=SHORT_LISTS)
    await found.commit(group, {partition: committed(1) for partition in topics[:2]})
    await store.write([Put(topics_key(KEYS, 0), encode(TopicsRecord(owner=0, topics=())), ABSENT)])

    async def overtaken(keys: Sequence[Key]) -> list[Record | None]:
        if not successors:
            successor, its_group = await StoredGroup.load(
                FaultyMetadata(store), KEYS, group_id="g", owner=1, clock=SystemClock(), limits=SHORT_LISTS
            )
            successors.append(successor)
            await successor.commit(its_group, {partition: committed(2) for partition in topics[2:4]})
        return await store.get_many(keys)

    slow.get_many = overtaken  # type: ignore[method-assign]
    with pytest.raises(Fenced):
        await found.commit(group, {topics[4]: committed(1)})

    again, _ = await StoredGroup.load(FaultyMetadata(store), KEYS, group_id="g", owner=2, clock=SystemClock(), limits=SHORT_LISTS)
    assert set(again.offsets) == set(topics[:4])
    await store.close()
