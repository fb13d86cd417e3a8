import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import pytest

from runtime.clock import SystemClock
from runtime.ids import IdSource
from runtime.supervision import Nursery
from storage.catalog.confirmed_topics import ConfirmedTopics
from storage.catalog.limits import DEFAULT_LIMITS, CatalogLimits
from storage.catalog.topics import Topic, Topics
from storage.errors import StorageError, Unavailable
from storage.metadata import keys
from storage.metadata.keys import PartitionKeys
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import Key, Put, Record
from tests.kit.faulty_metadata import FaultyMetadata, no_jitter

SHARDS = 4
TURNS_MAX = 200
"""Of the event loop, which pass without waiting for anything."""
clock = SystemClock()


class Silent(FaultyMetadata):
    """Reads of the shards in `silent` are not answered, those in `failing` fail."""

    def __init__(self) -> None:
        super().__init__(MemoryMetadataStore(clock=clock, shards=SHARDS))
        self.silent: set[int] = set()
        self.failing: set[int] = set()
        self.heard = asyncio.Event()

    async def get_many(self, wanted: Sequence[Key]) -> list[Record | None]:
        shards = {self.shard_of(key.partition_key) for key in wanted}
        records = await super().get_many(wanted)
        while shards & self.silent:
            self.heard.clear()
            await self.heard.wait()
        if shards & self.failing:
            raise Unavailable("failing")
        return records

    def answer(self) -> None:
        self.silent.clear()
        self.heard.set()


@dataclass
class Deaf:
    """A broker that hears no hints, and another one that changes topics behind its back."""

    metadata: Silent
    topics: Topics
    other: Topics
    confirmed: ConfirmedTopics

    @property
    def topics_shard(self) -> int:
        return self.metadata.shard_of(keys.ROOT)

    def shard_of(self, topic: Topic, partition: int = 0) -> int:
        return self.metadata.shard_of(PartitionKeys(topic.partition(partition)).partition_key)

    def beside(self, shard: int) -> str:
        """A partition key on that shard."""
        return next(key for number in range(1_000) if self.metadata.shard_of(key := f"k{number}") == shard)

    async def create(self, name: str = "t", *, partition_count: int = 1, apart_from: set[int] = frozenset()) -> Topic:  # type: ignore[assignment]
        """Known to the deaf broker; none of its partitions on those shards."""
        for _ in range(1_000):
            made = await self.topics.create(name, partition_count=partition_count, replication_factor=1, configs={})
            if not apart_from & {self.shard_of(made, number) for number in range(partition_count)}:
                return made
            await self.topics.delete(made)
        raise AssertionError("no such topic id")

    async def recreate(self, topic: Topic) -> Topic:
        await self.other.delete(topic)
        return await self.other.create(topic.name, partition_count=topic.partition_count, replication_factor=1, configs={})

    async def ask(self, name: str = "t", partition: int = 0, *, beside: str = "anywhere") -> Topic | StorageError | None:
        async with asyncio.timeout(20):
            return (await self.confirmed.by_name({name: partition}, beside=beside)).get(name)


@pytest.fixture
def limits() -> CatalogLimits:
    return DEFAULT_LIMITS


@pytest.fixture
async def broker(limits: CatalogLimits) -> AsyncIterator[Deaf]:
    metadata = Silent()
    topics, other = (Topics(metadata, clock=clock, ids=IdSource(clock=clock), entropy=no_jitter) for _ in range(2))
    topics.close()
    async with Nursery() as nursery:
        yield Deaf(metadata, topics, other, ConfirmedTopics(metadata, topics, clock=clock, nursery=nursery, limits=limits))
    await metadata.close()


async def test_the_incarnation_that_has_the_name_is_found_though_the_cache_has_an_older_one(broker: Deaf) -> None:
    old = await broker.create()
    new = await broker.recreate(old)

    assert broker.topics.find("t") == old
    assert await broker.ask() == new
    assert broker.topics.find("t") == new, "what was contradicted is not cached any more"


async def test_a_topic_that_was_deleted_elsewhere_is_not_there(broker: Deaf) -> None:
    await broker.other.delete(await broker.create())

    assert broker.topics.find("t") is not None
    assert await broker.ask() is None
    assert broker.topics.find("t") is None


async def test_partitions_that_were_added_elsewhere_are_there(broker: Deaf) -> None:
    topic = await broker.create()
    await broker.other.add_partitions(topic, 4)
    found = await broker.ask(partition=3)

    assert isinstance(found, Topic)
    assert found.partition_count == 4


async def test_a_topic_that_is_not_cached_is_read(broker: Deaf) -> None:
    made = await broker.other.create("t", partition_count=1, replication_factor=1, configs={})

    assert await broker.ask() == made
    assert await broker.ask("another") is None


async def test_a_topic_that_is_known_costs_one_read_of_one_key_on_the_shard_it_is_asked_beside(broker: Deaf) -> None:
    topic = await broker.create(partition_count=32)
    broker.metadata.reads.clear()
    for shard in range(SHARDS):
        assert await broker.ask(beside=broker.beside(shard)) == topic

    assert [len(read) for read in broker.metadata.reads] == [1] * SHARDS
    assert [broker.metadata.shard_of(key.partition_key) for (key,) in broker.metadata.reads] == list(range(SHARDS))


@pytest.mark.parametrize("limits", [CatalogLimits(confirmation_late_s=30.0)])
async def test_questions_of_one_moment_share_a_read_and_none_is_answered_by_one_that_began_before_it(broker: Deaf) -> None:
    topic = await broker.create()
    broker.metadata.reads.clear()
    answers = await asyncio.gather(*(broker.ask() for _ in range(50)))

    assert answers == [topic] * 50
    assert len(broker.metadata.reads) <= 2

    has_read, answered = asyncio.Event(), asyncio.Event()

    async def hold_back() -> None:
        has_read.set()
        await answered.wait()

    broker.metadata.after_read = hold_back
    early = asyncio.gather(broker.ask())
    await has_read.wait()
    broker.metadata.after_read = None
    recreated = await broker.recreate(topic)
    late = asyncio.gather(broker.ask())
    await asyncio.sleep(0)
    answered.set()
    assert await early == [topic]
    assert await late == [recreated]


async def test_a_silent_shard_of_the_topics_does_not_hold_up_topics_that_are_known(broker: Deaf) -> None:
    topic = await broker.create(apart_from={broker.topics_shard})
    broker.metadata.silent = {broker.topics_shard}

    assert await broker.ask() == topic
    assert broker.topics.find("t") == topic


async def test_a_silent_shard_of_a_partition_is_stood_in_for_by_the_record_of_the_topic(broker: Deaf) -> None:
    topic = await broker.create(apart_from={broker.topics_shard})
    broker.metadata.silent = {broker.shard_of(topic)}
    assert await broker.ask() == topic

    # Who asks next does not wait for it any more.
    await asyncio.sleep(DEFAULT_LIMITS.confirmation_late_s)
    asking = asyncio.gather(*(broker.ask() for _ in range(20)))
    for _ in range(TURNS_MAX):
        await asyncio.sleep(0)
    assert asking.done()
    assert await asking == [topic] * 20
    broker.metadata.answer()


async def test_a_shard_that_answers_late_still_counts_when_the_topics_are_silent(broker: Deaf) -> None:
    topic = await broker.create(apart_from={broker.topics_shard})
    broker.metadata.silent = {broker.topics_shard, broker.shard_of(topic)}
    asking = asyncio.gather(broker.ask())
    await asyncio.sleep(2 * DEFAULT_LIMITS.confirmation_late_s)
    assert not asking.done()

    broker.metadata.silent = {broker.topics_shard}
    broker.metadata.heard.set()
    assert await asking == [topic]
    broker.metadata.answer()


@pytest.mark.parametrize("limits", [CatalogLimits(confirmation_timeout_s=0.3)])
async def test_of_a_topic_that_nobody_can_tell_of_an_error_says_so_and_the_others_are_told(broker: Deaf) -> None:
    topic = await broker.create(apart_from={broker.topics_shard})
    broker.metadata.silent = {broker.topics_shard}
    found = await broker.confirmed.by_name({"t": 0, "unknown": 0}, beside="anywhere")
    broker.metadata.answer()

    assert found["t"] == topic
    assert isinstance(found["unknown"], Unavailable)


async def test_reads_that_fail_are_told_and_forgotten_when_they_work_again(broker: Deaf) -> None:
    topic = await broker.create()
    broker.metadata.failing = set(range(SHARDS))
    assert isinstance(await broker.ask(), Unavailable)
    with pytest.raises(Unavailable):
        await broker.confirmed.by_id([topic.topic_id], beside="anywhere")
    assert broker.topics.find("t") == topic, "others may go on with what is cached"

    broker.metadata.failing = set()
    assert await broker.ask() == topic


async def test_a_manifest_that_cannot_be_read_leaves_it_to_the_record_of_the_topic(broker: Deaf) -> None:
    topic = await broker.create()
    await broker.metadata.write([Put(PartitionKeys(topic.partition(0)).manifest, b"?", None)])

    assert await broker.ask() == topic


async def test_ids_are_found_while_their_incarnation_is_there(broker: Deaf) -> None:
    first, second = await broker.create("a"), await broker.create("b")
    await broker.recreate(first)
    third = await broker.other.create("c", partition_count=1, replication_factor=1, configs={})
    wanted = [first.topic_id, second.topic_id, third.topic_id]

    assert await broker.confirmed.by_id(wanted, beside="anywhere") == {second.topic_id: second, third.topic_id: third}


async def test_who_gives_up_leaves_the_others_their_answer(broker: Deaf) -> None:
    topic = await broker.create()
    broker.metadata.silent = set(range(SHARDS))
    async with asyncio.TaskGroup() as tasks:
        impatient, patient = (tasks.create_task(broker.ask()) for _ in range(2))
        await asyncio.sleep(0)
        impatient.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await impatient
        broker.metadata.answer()
    assert patient.result() == topic


@pytest.mark.parametrize("limits", [CatalogLimits(confirmation_places_kept_max=3)])
async def test_places_that_were_forgotten_are_looked_for_again(broker: Deaf) -> None:
    topics = {f"t{number}": await broker.create(f"t{number}", partition_count=8) for number in range(8)}
    for _ in range(2):
        for name, topic in topics.items():
            assert await broker.ask(name, beside=broker.beside(1)) == topic
            assert len(broker.confirmed._places) <= 3


@pytest.mark.parametrize("limits", [CatalogLimits(confirmation_partitions_max=1)])
async def test_a_topic_without_a_partition_near_is_asked_for_at_its_first_after_so_many_were_looked_at(broker: Deaf) -> None:
    topic = await broker.create(partition_count=32)
    elsewhere = next(shard for shard in range(SHARDS) if shard != broker.shard_of(topic))
    broker.metadata.reads.clear()

    assert await broker.ask(beside=broker.beside(elsewhere)) == topic
    assert [key for (key,) in broker.metadata.reads] == [PartitionKeys(topic.partition(0)).manifest]
