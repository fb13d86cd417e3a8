"""A broker forgets what it remembers of partitions; it must never forget work, nor use a commit number twice (review A)."""

import gc
import weakref

import pytest

from runtime.telemetry import Telemetry
from storage.errors import NotFound, StorageError, Unavailable
from storage.formats.manifest import LogState, Manifest, ProducerBatch, ProducerState
from storage.log.batch import Appended
from storage.log.flush import FlushSettings
from storage.log.fresh_reads import LogBounds
from storage.log.limits import LogLimits
from storage.log.partition import Partitions
from storage.log.trim import HIGH_WATERMARK
from storage.vocabulary import PartitionId
from tests.kit.batches import batch_bytes
from tests.unit.storage.log.rig import PARTITION, TOPIC, Rig, rig
from tests.unit.storage.log.test_deposed_leaders import Deposed, record_of

OTHERS = [PartitionId(TOPIC, number) for number in range(1, 12)]


def touch_others(broker: Rig, kept_max: int = 4) -> None:
    broker.parts.partitions._kept_max = kept_max
    for partition in OTHERS:
        broker.parts.partitions.get(partition)


async def told_end(broker: Rig) -> int | StorageError:
    (found,) = await broker.parts.manifest_reads.read([PARTITION])
    return found.high_watermark if isinstance(found, LogBounds) else found


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
        assert (await broker.manifest()).sequence_counter == 2
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
    partitions = Partitions(limits=LogLimits(partitions_kept_max=10))
    gone = [partitions.get(PartitionId(TOPIC, number)) for number in range(3)]
    gone[0].observe(Manifest(log_state=LogState.DELETED), 5)
    gone[1].observe(Manifest(), 5)
    gone[1].observe_absent()
    for number in range(100, 1_100):
        partitions.get(PartitionId(TOPIC, number))

    assert partitions.get(PartitionId(TOPIC, 0)) is not gone[0]
    assert partitions.get(PartitionId(TOPIC, 1)) is not gone[1]
    assert len(partitions) <= 10


def test_a_log_that_was_deleted_and_still_has_work_stays() -> None:
    partitions = Partitions(limits=LogLimits(partitions_kept_max=2))
    log = partitions.get(PARTITION)
    log.observe(Manifest(log_state=LogState.DELETED), 5)
    log.readers.wakers[lambda: None] = None
    for partition in OTHERS:
        partitions.get(partition)

    assert partitions.get(PARTITION) is log


def test_a_record_that_a_deposed_leader_had_not_heard_of_comes_back() -> None:
    log = Partitions().get(PARTITION)
    log.observe(Manifest(sequence_counter=3), 5)
    log.observe_absent()
    log.observe(Manifest(sequence_counter=2), 4)
    assert log.seen.manifest is None, "older than what was seen"
    log.observe(Manifest(sequence_counter=3), 5)

    assert log.seen.high_watermark == 3


async def test_an_end_that_was_told_does_not_go_back_when_the_log_is_forgotten_and_a_deposed_leader_asked() -> None:
    async with rig() as broker:
        await broker.send(batch_bytes(1))
        old = await record_of(broker.shared)
        await broker.send(batch_bytes(1))
        assert await told_end(broker) == 2
        touch_others(broker)
        Deposed(broker, old, times=1)

        assert isinstance(await told_end(broker), Unavailable)
        assert await told_end(broker) == 2


async def test_an_append_waits_for_a_record_that_is_not_older_than_the_one_that_was_forgotten() -> None:
    async with rig() as broker:
        old = await record_of(broker.shared)
        await broker.send(batch_bytes(1))
        touch_others(broker)
        deposed = Deposed(broker, old, times=2)

        assert await broker.send(batch_bytes(1)) == [Appended(1, 0)]
        assert deposed.left == 0


async def test_an_append_that_found_nothing_but_older_records_is_refused_for_that_reason() -> None:
    async with rig(limits=LogLimits(commit_timeout_s=0.05)) as broker:
        old = await record_of(broker.shared)
        await broker.send(batch_bytes(1))
        touch_others(broker)
        Deposed(broker, old, times=1_000_000)
        (refused,) = await broker.send(batch_bytes(1))

        assert isinstance(refused, Unavailable)
        assert "answered from the past" in str(refused)


async def test_a_partition_that_is_gone_by_now_is_not_one_that_is_read_from_the_past() -> None:
    async with rig() as broker:
        await broker.send(batch_bytes(1))
        touch_others(broker)
        Deposed(broker, None, times=1_000_000)

        assert isinstance(await told_end(broker), NotFound)
        (refused,) = await broker.send(batch_bytes(1))
        assert isinstance(refused, NotFound)


async def test_a_trim_of_a_log_that_was_forgotten_does_not_rest_on_an_older_record() -> None:
    async with rig() as broker:
        old = await record_of(broker.shared)
        await broker.send(batch_bytes(1))
        touch_others(broker)
        Deposed(broker, old, times=1)

        with pytest.raises(Unavailable):
            await broker.parts.trimmer.trim(PARTITION, HIGH_WATERMARK)
        assert await broker.parts.trimmer.trim(PARTITION, HIGH_WATERMARK) == 1


def filled(producers: int = 97) -> Manifest:
    """A record about as large as there are."""
    states = {pid: ProducerState(0, (ProducerBatch(pid, pid + 1, pid * 10, pid * 100),)) for pid in range(1_000, 1_000 + producers)}
    return Manifest(producers=states, sequence_counter=7)


def test_idle_logs_are_forgotten_when_what_is_known_of_all_takes_too_much_memory() -> None:
    telemetry = Telemetry()
    partitions = Partitions(limits=LogLimits(partitions_bytes_max=1_000_000), telemetry=telemetry)
    for number in range(1_000):
        partitions.get(PartitionId(TOPIC, number)).observe(filled(), 5)

    assert partitions.get(PartitionId(TOPIC, 999)).seen.high_watermark == 7
    assert 10 < len(partitions) < 40
    assert partitions.size_bytes < 1_100_000 + 320 * 1_000
    forgotten = partitions.get(PartitionId(TOPIC, 0))
    assert (forgotten.seen.manifest, forgotten.seen.version) == (None, 5), "what it was told stays"
    assert telemetry.registry.get_sample_value("forebay_partitions_forgotten_total") == 1_001 - len(partitions)
    assert telemetry.registry.get_sample_value("forebay_partition_cache_bytes") == partitions.size_bytes


def test_logs_that_grow_without_a_new_one_are_forgotten_too() -> None:
    partitions = Partitions(limits=LogLimits(partitions_bytes_max=1_000_000))
    logs = [partitions.get(PartitionId(TOPIC, number)) for number in range(200)]
    for log in logs:
        log.observe(filled(), 5)
    for _ in range(60):
        partitions.get(PartitionId(TOPIC, 199))

    assert partitions._remembered.size_bytes <= 1_000_000
    assert partitions.get(PartitionId(TOPIC, 199)) is logs[199], "it is in use"


def test_those_that_are_used_stay_while_others_come_and_go() -> None:
    partitions = Partitions(limits=LogLimits(partitions_kept_max=100))
    used = [partitions.get(PartitionId(TOPIC, number)) for number in range(10)]
    for number in range(100, 1_100):
        partitions.get(PartitionId(TOPIC, number))
        if number % 20 == 0:
            assert [partitions.get(log.partition) for log in used] == used


def test_with_nothing_but_work_and_waiting_readers_nothing_is_forgotten_and_readers_are_told_not_to_wait() -> None:
    partitions = Partitions(limits=LogLimits(partitions_bytes_max=500_000))
    logs = [partitions.get(PartitionId(TOPIC, number)) for number in range(60)]
    for log in logs:
        log.readers.wakers[lambda: None] = None
        log.observe(filled(), 5)

    assert [partitions.get(log.partition) for log in logs] == logs
    assert partitions.is_crowded
    for log in logs:
        log.readers.wakers.clear()
    for _ in range(100):
        partitions.get(PARTITION)
    assert not partitions.is_crowded


def test_what_is_heard_by_a_log_that_was_forgotten_meanwhile_does_not_go_back() -> None:
    partitions = Partitions(limits=LogLimits(partitions_kept_max=2))
    held = partitions.get(PARTITION)
    for partition in OTHERS:
        partitions.get(partition)
    held.observe(Manifest(sequence_counter=9), 8)

    assert partitions.get(PARTITION) is not held
    assert partitions.get(PARTITION).seen.version == 8, "an end of 9 was told"
    held.observe(Manifest(sequence_counter=11), 9)
    assert partitions.get(PARTITION).seen.high_watermark == 11


async def test_a_log_that_was_forgotten_is_let_go() -> None:
    async with rig() as broker:
        for _ in range(40):
            await broker.send(batch_bytes(1))
        await broker.read_all()
        forgotten = weakref.ref(broker.parts.partitions.get(PARTITION))
        touch_others(broker)
        gc.collect()

        assert forgotten() is None


def test_what_is_remembered_of_forgotten_logs_has_a_bound() -> None:
    partitions = Partitions(limits=LogLimits(partitions_kept_max=10))
    for number in range(100):
        partitions.get(PartitionId(TOPIC, number)).observe(Manifest(), 5)

    assert partitions.get(PartitionId(TOPIC, 0)).seen.version == -1
    assert partitions.get(PartitionId(TOPIC, 85)).seen.version == 5
    assert len(partitions._forgotten_versions) <= 10
