"""Topics that change: partitions are added, configs altered, against faults and other brokers."""

import asyncio
import random
from collections.abc import Mapping, Sequence

import pytest

from storage.catalog.topic_configs import InvalidTopicConfig
from storage.catalog.topics import Topic
from storage.errors import NotFound, OutcomeUnknown, StorageError, Unavailable
from storage.formats.manifest import LogState, Manifest, decode_manifest, encode
from storage.metadata import keys
from storage.metadata.port import Put, WriteOp
from tests.kit.faulty_metadata import Fault, FaultyMetadata
from tests.unit.storage.catalog.deposed import DeposedMetadata
from tests.unit.storage.catalog.test_topics import create, log_states, open_topics


async def reread(metadata: FaultyMetadata, name: str = "orders") -> Topic:
    return (await open_topics(metadata).lookup([name]))[name]


def with_flush(configs: Mapping[str, str]) -> dict[str, str]:
    return {**configs, "flush.ms": "7"}


async def test_partitions_are_added_with_their_logs_first() -> None:
    metadata = FaultyMetadata()
    topics = open_topics(metadata)
    topic = await create(topics)
    begun = len(metadata.writes)
    before = await topics.add_partitions(topic, 5)

    grown = await reread(metadata)
    assert before == 3
    assert (grown.topic_id, grown.partition_count, grown.configs) == (topic.topic_id, 5, topic.configs)
    assert await log_states(metadata, grown) == [LogState.OPEN] * 5
    planned, *logs, raised = [op.key.path for ops in metadata.writes[begun:] for op in ops if isinstance(op, Put)]
    assert planned == raised == keys.topic("orders").path
    assert len(logs) == 2
    assert all(path.endswith(keys.MANIFEST_SUFFIX) for path in logs)
    assert (await topics.lookup(["orders"]))["orders"] == grown


@pytest.mark.parametrize("count", [1, 3])
async def test_a_number_that_is_no_increase_changes_nothing(count: int) -> None:
    metadata = FaultyMetadata()
    topics = open_topics(metadata)
    topic = await create(topics)
    begun = len(metadata.writes)

    assert await topics.add_partitions(topic, count) == 3
    assert len(metadata.writes) == begun


@pytest.mark.parametrize("write", range(4))
@pytest.mark.parametrize("fault", list(Fault))
async def test_adding_partitions_survives_any_fault_of_any_write(write: int, fault: Fault) -> None:
    metadata = FaultyMetadata()
    topics = open_topics(metadata)
    topic = await create(topics)
    metadata.faults[len(metadata.writes) + write] = fault
    before = await topics.add_partitions(topic, 5)
    await metadata.deliver()

    assert before == 3
    assert (await reread(metadata)).partition_count == 5
    assert await log_states(metadata, await reread(metadata)) == [LogState.OPEN] * 5


async def test_a_log_that_somebody_has_written_to_meanwhile_is_left_alone() -> None:
    metadata = FaultyMetadata()
    topic = await create(open_topics(metadata))
    await open_topics(metadata).add_partitions(topic, 4)
    written = Put(keys.PartitionKeys(topic.partition(3)).manifest, encode(Manifest(sequence_counter=9)), None)
    await metadata.write([written])

    # A broker that still believes in three partitions begins behind the one that was added.
    assert await open_topics(metadata).add_partitions(topic, 6) == 4
    (record,) = await metadata.get_many([written.key])
    assert record is not None
    assert record.value == written.value


@pytest.mark.parametrize("seed", range(10))
async def test_brokers_that_add_partitions_at_once_agree_and_only_one_made_each_step(seed: int) -> None:
    metadata = FaultyMetadata(chaos=random.Random(seed))
    topic = await create(open_topics(metadata))
    before = await asyncio.gather(*(open_topics(metadata).add_partitions(topic, count) for count in (5, 5, 8, 6)))

    grown = await reread(metadata)
    assert grown.partition_count == 8
    assert before[2] < 8
    assert sum(found < 5 for found in before[:2]) <= 1
    assert await log_states(metadata, grown) == [LogState.OPEN] * 8


async def test_configs_are_altered_on_the_newest_record() -> None:
    metadata = FaultyMetadata()
    one, other = open_topics(metadata), open_topics(metadata)
    topic = await create(one)
    await other.alter_configs(topic, lambda configs: {**configs, "segment.ms": "9"})
    await one.alter_configs(topic, with_flush)

    assert (await reread(metadata)).configs == {"retention.ms": "1", "segment.ms": "9", "flush.ms": "7"}
    assert (await one.lookup(["orders"]))["orders"].configs["flush.ms"] == "7"


@pytest.mark.parametrize("fault", list(Fault))
async def test_altering_survives_a_fault(fault: Fault) -> None:
    metadata = FaultyMetadata()
    topics = open_topics(metadata)
    topic = await create(topics)
    metadata.faults[len(metadata.writes)] = fault
    await topics.alter_configs(topic, with_flush)
    await metadata.deliver()

    assert (await reread(metadata)).configs == {"retention.ms": "1", "flush.ms": "7"}


async def test_a_change_that_loses_its_race_is_made_again_on_the_winner() -> None:
    metadata = FaultyMetadata()
    topics, other = open_topics(metadata), open_topics(metadata)
    topic = await create(topics)

    async def interfere(_: Sequence[WriteOp]) -> None:
        metadata.before_write = None
        await other.alter_configs(topic, lambda configs: {**configs, "segment.ms": "9"})

    metadata.before_write = interfere
    await topics.alter_configs(topic, with_flush)

    assert (await reread(metadata)).configs == {"retention.ms": "1", "segment.ms": "9", "flush.ms": "7"}


async def test_a_change_that_is_refused_changes_nothing() -> None:
    metadata = FaultyMetadata()
    topics = open_topics(metadata)
    topic = await create(topics)

    def refuse(_: Mapping[str, str]) -> dict[str, str]:
        raise InvalidTopicConfig("no")

    with pytest.raises(InvalidTopicConfig):
        await topics.alter_configs(topic, refuse)
    assert (await reread(metadata)).configs == topic.configs


async def test_a_change_that_is_refused_after_an_attempt_in_doubt_leaves_the_doubt() -> None:
    metadata = FaultyMetadata()
    topics = open_topics(metadata)
    topic = await create(topics)
    metadata.faults[len(metadata.writes)] = Fault.REQUEST_LOST
    answers = iter([{"flush.ms": "7"}])

    def once(_: Mapping[str, str]) -> dict[str, str]:
        answer = next(answers, None)
        if answer is None:
            raise InvalidTopicConfig("no")
        return answer

    with pytest.raises(OutcomeUnknown):
        await topics.alter_configs(topic, once)


@pytest.mark.parametrize(("fault", "error"), [(Fault.REQUEST_LOST, OutcomeUnknown), (Fault.REFUSED, Unavailable)])
async def test_a_store_that_never_takes_the_change_is_reported_for_what_it_is(fault: Fault, error: type[StorageError]) -> None:
    metadata = FaultyMetadata()
    topics = open_topics(metadata)
    topic = await create(topics)
    metadata.all_faults = fault

    with pytest.raises(error):
        await topics.alter_configs(topic, with_flush)
    with pytest.raises(Unavailable):
        await topics.add_partitions(topic, 4)  # which was not even planned for certain
    metadata.all_faults = None
    metadata.faults = dict.fromkeys(range(len(metadata.writes) + 2, len(metadata.writes) + 100), fault)
    with pytest.raises(error):
        await topics.add_partitions(topic, 4)


async def test_an_incarnation_that_is_gone_is_not_changed() -> None:
    metadata = FaultyMetadata()
    topics = open_topics(metadata)
    gone = await create(topics)
    await topics.delete(gone)
    fresh = await create(topics)

    with pytest.raises(NotFound):
        await topics.alter_configs(gone, with_flush)
    with pytest.raises(NotFound):
        await topics.add_partitions(gone, 9)
    assert await reread(metadata) == fresh


@pytest.mark.parametrize("at", ["planned", "logs", "raised"])
async def test_a_topic_that_is_deleted_while_partitions_are_added_leaves_no_log_open(at: str) -> None:
    metadata = FaultyMetadata()
    topics = open_topics(metadata)
    topic = await create(topics, partition_count=1)
    begun = len(metadata.writes)
    number = {"planned": 1, "logs": 2, "raised": len({metadata.shard_of(f"{topic.topic_id}/{number}") for number in (1, 2)}) + 2}[at]

    async def delete(_: Sequence[WriteOp]) -> None:
        if len(metadata.writes) == begun + number:
            await open_topics(metadata.store).delete(topic)

    metadata.before_write = delete
    with pytest.raises(NotFound):
        await topics.add_partitions(topic, 3)

    grown = [topic.partition(number) for number in range(3)]
    records = await metadata.get_many([keys.PartitionKeys(partition).manifest for partition in grown])
    states = [None if record is None else decode_manifest(record.value, path=record.path).log_state for record in records]
    assert LogState.OPEN not in states
    assert states == [LogState.DELETED] * 3 if at != "planned" else [LogState.DELETED, None, None]


async def test_a_log_that_arrives_after_its_topic_was_deleted_finds_a_tombstone() -> None:
    metadata = FaultyMetadata()
    topics = open_topics(metadata)
    topic = await create(topics, partition_count=1)
    metadata.faults = dict.fromkeys(range(len(metadata.writes) + 1, len(metadata.writes) + 100), Fault.LATE)
    with pytest.raises(Unavailable):
        await topics.add_partitions(topic, 2)
    metadata.faults = {}
    await topics.delete(topic)

    await metadata.deliver()

    (record,) = await metadata.get_many([keys.PartitionKeys(topic.partition(1)).manifest])
    assert record is not None
    assert decode_manifest(record.value, path=record.path).log_state is LogState.DELETED


async def test_a_deposed_leader_does_not_make_a_change_look_made() -> None:
    """What the configs were an hour ago is what is asked for now: that nothing is left to do must not be believed."""
    metadata = DeposedMetadata()
    topics = open_topics(metadata)
    topic = await create(topics)
    metadata.depose()
    other = open_topics(metadata.store)
    await other.alter_configs(topic, with_flush)
    begun = len(metadata.writes)
    task = asyncio.get_running_loop().create_task(topics.alter_configs(topic, lambda _: {"retention.ms": "1"}))
    while len(metadata.writes) == begun:  # noqa: ASYNC110 - until its condition has failed
        await asyncio.sleep(0)
    metadata.elect()
    await task

    assert (await open_topics(metadata.store).lookup(["orders"]))["orders"].configs == {"retention.ms": "1"}


async def test_a_deposed_leader_does_not_make_a_topic_look_deleted() -> None:
    metadata = DeposedMetadata()
    topics = open_topics(metadata)
    before = dict(metadata.store._shards[0].records)
    topic = await create(topics)
    metadata.faults[len(metadata.writes)] = Fault.REQUEST_LOST

    async def go_back(_: Sequence[WriteOp]) -> None:
        metadata.before_write = None
        metadata._past = before

    metadata.before_write = go_back
    with pytest.raises(OutcomeUnknown):
        await topics.delete(topic)
    metadata.elect()

    assert await open_topics(metadata).lookup(["orders"]) == {"orders": topic}


async def test_a_topic_that_was_deleted_with_its_added_partitions_takes_no_writes_in_them() -> None:
    metadata = FaultyMetadata()
    topics = open_topics(metadata)
    topic = await create(topics)
    await topics.add_partitions(topic, 5)
    grown = await reread(metadata)
    await topics.delete(topic)

    assert await log_states(metadata, grown) == [LogState.DELETED] * 5
