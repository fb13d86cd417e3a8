"""A broker forgets what it remembers of partitions; it must never forget work, nor use a commit number twice (review A)."""

import pytest

from storage.formats.control import Control, LogState
from storage.log.batch import Appended
from storage.log.batcher import FlushSettings
from storage.log.partition import Partitions
from storage.vocabulary import PartitionId
from tests.unit.storage.log.batches import batch_bytes
from tests.unit.storage.log.rig import PARTITION, TOPIC, Rig, rig

OTHERS = [PartitionId(TOPIC, number) for number in range(1, 7)]


def touch_others(broker: Rig, kept_max: int = 4) -> None:
    broker.parts.partitions._kept_max = kept_max
    for partition in OTHERS:
        broker.parts.partitions.get(partition)


@pytest.mark.parametrize("fault", ["request lost", "reply lost"])
async def test_a_commit_after_its_log_was_forgotten_is_not_taken_for_the_one_before(fault: str) -> None:
    async with rig() as broker:
        assert await broker.send(batch_bytes(1)) == [Appended(0, 0)]
        forgotten = broker.parts.partitions.get(PARTITION)
        touch_others(broker)
        assert broker.parts.partitions.get(PARTITION) is not forgotten

        broker.metadata.faults.append(fault)
        second = await broker.send(batch_bytes(1))

        assert second == [Appended(1, 0)]
        assert (await broker.control()).sequence_counter == 2
        assert await broker.send(batch_bytes(1)) == [Appended(2, 0)]


async def test_an_attempt_whose_number_another_commit_had_does_not_end_the_broker() -> None:
    async with rig() as broker:
        broker.metadata.faults.append("refused")
        await broker.send(batch_bytes(1))
        touch_others(broker)
        broker.metadata.faults.append("request lost")

        assert await broker.send(batch_bytes(1)) == [Appended(1, 0)]


async def test_a_log_whose_batches_are_gathered_is_not_forgotten() -> None:
    async with rig(flush=FlushSettings(interval_s=0.0, gather_s=0.05)) as broker:
        log = broker.parts.partitions.get(PARTITION)
        first = broker.send(batch_bytes(1))
        touch_others(broker)
        second = broker.send(batch_bytes(1))

        assert broker.parts.partitions.get(PARTITION) is log
        assert [*await first, *await second] == [Appended(0, 0), Appended(1, 0)]
        assert log.is_idle


def test_the_logs_of_deleted_partitions_are_forgotten_before_others_and_in_time() -> None:
    partitions = Partitions(kept_max=10)
    gone = [partitions.get(PartitionId(TOPIC, number)) for number in range(3)]
    gone[0].observe(Control(log_state=LogState.DELETED), 5)
    gone[1].observe(Control(), 5)
    gone[1].observe_absent()
    for number in range(100, 1_100):
        partitions.get(PartitionId(TOPIC, number))

    assert partitions.get(PartitionId(TOPIC, 0)) is not gone[0]
    assert partitions.get(PartitionId(TOPIC, 1)) is not gone[1]
    assert len(partitions) <= 10


def test_a_log_that_was_deleted_and_still_has_work_stays() -> None:
    partitions = Partitions(kept_max=2)
    log = partitions.get(PARTITION)
    log.observe(Control(log_state=LogState.DELETED), 5)
    log.wakers.add(lambda: None)
    for partition in OTHERS:
        partitions.get(partition)

    assert partitions.get(PARTITION) is log


def test_a_record_that_a_deposed_leader_had_not_heard_of_comes_back() -> None:
    log = Partitions().get(PARTITION)
    log.observe(Control(sequence_counter=3), 5)
    log.observe_absent()
    log.observe(Control(sequence_counter=2), 4)
    assert log.control is None, "older than what was seen"
    log.observe(Control(sequence_counter=3), 5)

    assert log.high_watermark == 3
