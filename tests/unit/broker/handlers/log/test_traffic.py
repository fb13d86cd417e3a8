"""Bytes and records by topic, as a scrape sees them."""

import asyncio
from collections.abc import Collection

from runtime.clock import SystemClock
from runtime.supervision import Nursery
from runtime.telemetry import Telemetry
from storage.catalog.topics import Topic
from storage.log.partition import Partitions
from storage.log.traffic import FOLDED, OTHER, TOPIC_BYTES, TOPIC_RECORDS, TopicTraffic
from storage.metadata import keys
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import Key, Put
from storage.vocabulary import TopicId
from tests.kit.record_batches import record_batch
from tests.unit.broker.handlers.logged import asking, node


def topic(name: str, number: int = 0) -> Topic:
    topic_id = TopicId(f"00000000-0000-4000-8000-{number:012}")
    return Topic(name=name, topic_id=topic_id, partition_count=1, replication_factor=1, configs={}, created_at_ms=0)


class Counted:
    """Traffic of topics that are known by hand."""

    def __init__(self, *, shown: str | None = None, topics_max: int = 2) -> None:
        self.telemetry = Telemetry()
        self.topics: dict[TopicId, Topic] = {}
        self.traffic = TopicTraffic(find=self.topics.get, shown=shown, topics_max=topics_max, telemetry=self.telemetry)
        self.partitions = Partitions(traffic=self.traffic)

    def append(self, one: Topic, size_bytes: int = 1) -> None:
        self.partitions.get(one.partition(0)).traffic.bytes_in += size_bytes

    def series(self) -> dict[str, float]:
        return {
            sample.labels["topic"]: sample.value
            for family in self.telemetry.registry.collect()
            for sample in family.samples
            if sample.name == TOPIC_BYTES.name
        }


async def test_what_was_appended_and_what_was_fetched_is_counted_and_an_idle_topic_has_no_series() -> None:
    telemetry = Telemetry()
    async with node() as broker:
        traffic = TopicTraffic(find=broker.topics.find_id, telemetry=telemetry)
        for name in ("orders", "idle"):
            one = await broker.create(name)
            await broker.topics.lookup([name])
            broker.log_of(one).traffic = traffic.of(one.topic_id)
        batch = record_batch(b"a", b"b", b"c")
        await broker.send(("orders", 0, bytes(batch)))
        await broker.read_one(asking("orders", 0, 1))
        await broker.read_one(asking("orders", 0, 3), max_wait_ms=0)

    def value(metric: str, direction: str) -> float | None:
        return telemetry.registry.get_sample_value(metric, {"topic": "orders", "direction": direction})

    assert (value(TOPIC_BYTES.name, "in"), value(TOPIC_RECORDS.name, "in")) == (len(batch), 3)
    assert (value(TOPIC_BYTES.name, "out"), value(TOPIC_RECORDS.name, "out")) == (len(batch), 2)
    assert telemetry.registry.get_sample_value(TOPIC_BYTES.name, {"topic": "idle", "direction": "in"}) is None


def test_topics_beyond_the_bound_and_those_that_the_setting_leaves_out_are_one_topic() -> None:
    counted = Counted(shown="t.*")
    for number, name in enumerate(("t0", "hidden", "t1", "t2", "t3")):
        one = topic(name, number)
        counted.topics[one.topic_id] = one
        counted.append(one, 10 + number)

    assert counted.series() == {"t0": 10, "t1": 12, OTHER: 11 + 13 + 14}
    assert counted.telemetry.registry.get_sample_value(FOLDED.name) == 2


def test_a_partition_whose_topic_is_not_known_yet_gets_its_figures_once_it_is() -> None:
    counted, one = Counted(), topic("late")
    counted.append(one, 3)
    counted.topics[one.topic_id] = one
    counted.append(one, 5)

    assert counted.series() == {OTHER: 3, "late": 5}


def test_a_topic_that_was_made_again_under_its_name_begins_at_zero() -> None:
    counted = Counted(topics_max=1)
    for one in (topic("again", 1), topic("again", 2)):
        counted.topics[one.topic_id] = one
        counted.append(one, 7)

    assert counted.series() == {"again": 7}


async def test_a_deleted_topic_gives_its_series_back_and_one_that_only_changed_keeps_them() -> None:
    counted = Counted()
    metadata = MemoryMetadataStore(clock=SystemClock())
    kept, gone = topic("kept", 1), topic("gone", 2)
    asked: asyncio.Queue[set[str]] = asyncio.Queue()

    async def read(names: Collection[str]) -> dict[str, Topic]:
        asked.put_nowait(set(names))
        return {"kept": kept}

    async with asyncio.timeout(30), Nursery() as nursery:
        nursery.spawn(counted.traffic.run(metadata, read), name="topic-traffic")
        for one in (kept, gone):
            counted.topics[one.topic_id] = one
            counted.append(one)
        await asyncio.sleep(0)
        seen: set[str] = set()
        # Only when the next is asked about is the last one dropped.
        for name in ("gone", "kept", "kept"):
            await metadata.write([Put(Key(f"{keys.TOPICS_PREFIX}{name}", "root"), b"", None)])
            seen |= await asked.get()

    assert seen == {"kept", "gone"}
    assert counted.series() == {"kept": 1}
    counted.append(gone, 9)
    assert counted.series() == {"kept": 1, "gone": 9}, "a read that was older than the topic loses none of its figures for good"
