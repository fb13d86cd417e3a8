"""Trimming: the decision by value, the shell against faults, other brokers and readers."""

import asyncio
import random
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.clock import SystemClock
from storage.errors import Fenced, NotFound, OffsetOutOfRange, OutcomeUnknown, StorageError, Unavailable
from storage.formats.manifest import LogState, Manifest, encode
from storage.log.batch import Appended
from storage.log.trim import HIGH_WATERMARK, Fencer, decide_fence, decide_trim
from storage.metadata import keys
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import Put, WriteOp, WriteOutcome
from storage.objects.memory import MemoryObjectStore
from storage.vocabulary import PartitionId
from tests.unit.storage.log.rig import PARTITION, TOPIC, Rig, rig
from tests.unit.storage.log.test_deposed_leaders import Deposed, record_of
from tests.unit.storage.log.test_time_search import timed


@given(log_start=st.integers(0, 100), size=st.integers(0, 100), before=st.integers(-5, 250))
def test_the_log_start_only_grows_and_stays_within_the_log(log_start: int, size: int, before: int) -> None:
    manifest = Manifest(log_start=log_start, sequence_counter=log_start + size, bytes_total=7, fence_epoch=3)
    if not HIGH_WATERMARK <= before <= manifest.sequence_counter:
        with pytest.raises(OffsetOutOfRange):
            decide_trim(manifest, before)
        return
    decision = decide_trim(manifest, before)

    wanted = manifest.sequence_counter if before == HIGH_WATERMARK else before
    assert decision.log_start == max(log_start, wanted)
    if decision.log_start == log_start:
        assert decision.manifest is None
    else:
        assert decision.manifest == msgspec.structs.replace(manifest, log_start=decision.log_start)


async def filled(broker: Rig, count: int) -> None:
    for number in range(count):
        (result,) = await broker.send(timed(number))
        assert isinstance(result, Appended)


async def set_state(broker: Rig, state: LogState) -> None:
    manifest = msgspec.structs.replace(await broker.manifest(), log_state=state)
    await broker.shared.write([Put(keys.PartitionKeys(PARTITION).manifest, encode(manifest), None)])


async def test_what_is_trimmed_is_gone_for_readers_and_the_rest_is_not() -> None:
    async with rig() as broker:
        await filled(broker, 5)
        trimmed = await broker.parts.trimmer.trim(PARTITION, 3)
        (bounds,) = await broker.parts.manifest_reads.read([PARTITION])

        assert trimmed == 3
        assert not isinstance(bounds, StorageError)
        assert (bounds.log_start, bounds.high_watermark) == (3, 5)
        run = await broker.parts.reader.stored(broker.parts.partitions.get(PARTITION), 3, bytes_max=1)
        assert run.base == 3
        assert await broker.parts.time_search.first_at_or_after(PARTITION, 0) == (3, 3)


async def test_all_there_is_can_be_trimmed_and_offsets_go_on_behind_it() -> None:
    async with rig() as broker:
        await filled(broker, 4)
        trimmed = await broker.parts.trimmer.trim(PARTITION, HIGH_WATERMARK)
        (result,) = await broker.send(timed(9))

        assert trimmed == 4
        assert result == Appended(4, 4)
        assert (await broker.manifest()).log_start == 4


async def test_an_offset_below_the_log_start_changes_nothing() -> None:
    async with rig() as broker:
        await filled(broker, 4)
        await broker.parts.trimmer.trim(PARTITION, 3)
        before = len(broker.metadata.writes)

        assert await broker.parts.trimmer.trim(PARTITION, 1) == 3
        assert len(broker.metadata.writes) == before


async def test_an_offset_behind_the_end_is_out_of_range_with_the_range() -> None:
    async with rig() as broker:
        await filled(broker, 2)
        with pytest.raises(OffsetOutOfRange) as caught:
            await broker.parts.trimmer.trim(PARTITION, 3)

        assert (caught.value.log_start, caught.value.high_watermark) == (0, 2)


async def test_records_that_another_broker_has_appended_count() -> None:
    shared, objects = MemoryMetadataStore(clock=SystemClock(), shards=1), MemoryObjectStore(clock=SystemClock())
    async with rig(shared=shared, objects=objects) as one, rig(shared=shared, objects=objects, epoch=8) as other:
        await filled(one, 1)
        assert await one.parts.trimmer.trim(PARTITION, HIGH_WATERMARK) == 1
        await filled(other, 2)

        assert await one.parts.trimmer.trim(PARTITION, HIGH_WATERMARK) == 3
        (result,) = await other.send(timed(5))
        assert result == Appended(3, 3)


async def test_trims_and_commits_of_two_brokers_lose_nothing() -> None:
    shared, objects = MemoryMetadataStore(clock=SystemClock(), shards=1), MemoryObjectStore(clock=SystemClock())
    async with rig(shared=shared, objects=objects) as one, rig(shared=shared, objects=objects, epoch=8) as other:
        starts: list[int] = []

        async def trim() -> None:
            for _ in range(20):
                starts.append(await other.parts.trimmer.trim(PARTITION, HIGH_WATERMARK))
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as group:
            group.create_task(trim())
            sent = [group.create_task(filled(one, 30)), group.create_task(filled(other, 30))]

        manifest = await one.manifest()
        assert all(task.done() for task in sent)
        assert starts == sorted(starts)
        assert manifest.sequence_counter == 60
        assert manifest.log_start == starts[-1] <= 60


@pytest.mark.parametrize("seed", range(8))
async def test_trims_and_commits_of_one_broker_under_faults_lose_nothing(seed: int) -> None:
    chance = random.Random(seed)
    async with rig() as broker:
        broker.metadata.faults.extend(chance.choices(["none", "reply lost", "request lost", "refused"], [5, 1, 1, 1], k=60))
        starts: list[int] = []

        async def trim() -> None:
            for _ in range(15):
                starts.append(await broker.parts.trimmer.trim(PARTITION, HIGH_WATERMARK))
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as group:
            group.create_task(trim())
            group.create_task(filled(broker, 20))

        manifest = await broker.manifest()
        assert manifest.sequence_counter == 20
        assert starts == sorted(starts)
        assert manifest.log_start == starts[-1]


@pytest.mark.parametrize("fault", ["request lost", "reply lost", "refused", "late"])
async def test_one_fault_of_the_write_is_survived(fault: str) -> None:
    async with rig() as broker:
        await filled(broker, 3)
        broker.metadata.faults.append(fault)
        trimmed = await broker.parts.trimmer.trim(PARTITION, 2)
        await broker.metadata.deliver_late()

        assert trimmed == 2
        assert (await broker.manifest()).log_start == 2


@pytest.mark.parametrize(("fault", "error"), [("request lost", OutcomeUnknown), ("refused", Unavailable)])
async def test_a_store_that_never_takes_the_write_is_reported_for_what_it_is(fault: str, error: type[StorageError]) -> None:
    async with rig() as broker:
        await filled(broker, 3)
        broker.metadata.faults.extend([fault] * 100)
        with pytest.raises(error):
            await broker.parts.trimmer.trim(PARTITION, 2)

        assert (await broker.manifest()).log_start == 0


async def test_a_store_that_cannot_be_read_is_unavailable() -> None:
    async with rig() as broker:
        await filled(broker, 3)
        broker.metadata.reads_fail = True

        with pytest.raises(Unavailable):
            await broker.parts.trimmer.trim(PARTITION, 2)


@pytest.mark.parametrize(("state", "error"), [(LogState.FENCED, Fenced), (LogState.DELETED, NotFound)])
async def test_a_log_that_takes_no_writes_is_not_trimmed(state: LogState, error: type[StorageError]) -> None:
    async with rig() as broker:
        await filled(broker, 3)
        await set_state(broker, state)

        with pytest.raises(error):
            await broker.parts.trimmer.trim(PARTITION, 2)


async def test_a_partition_that_does_not_exist_is_not_found() -> None:
    async with rig() as broker:
        with pytest.raises(NotFound):
            await broker.parts.trimmer.trim(PartitionId(TOPIC, 5), 0)


async def test_an_offset_is_not_out_of_range_because_a_deposed_leader_has_not_heard_of_it() -> None:
    shared, objects = MemoryMetadataStore(clock=SystemClock(), shards=1), MemoryObjectStore(clock=SystemClock())
    async with rig(shared=shared, objects=objects) as one, rig(shared=shared, objects=objects, epoch=8) as other:
        await filled(one, 1)
        old = await record_of(shared)
        await filled(one, 2)
        deposed = Deposed(other, old, times=2)

        assert await other.parts.trimmer.trim(PARTITION, 3) == 3
        assert deposed.left == 0


async def test_an_offset_of_which_nobody_can_tell_is_asked_for_again() -> None:
    shared, objects = MemoryMetadataStore(clock=SystemClock(), shards=1), MemoryObjectStore(clock=SystemClock())
    async with rig(shared=shared, objects=objects) as one, rig(shared=shared, objects=objects, epoch=8) as other:
        await filled(one, 1)
        old = await record_of(shared)
        await filled(one, 2)
        Deposed(other, old, times=1_000)

        with pytest.raises(Unavailable):
            await other.parts.trimmer.trim(PARTITION, 3)


def fencer_of(broker: Rig) -> Fencer:
    parts = broker.parts
    return Fencer(metadata=broker.metadata, partitions=parts.partitions, manifest_reads=parts.manifest_reads)


def test_a_fence_is_counted_once_and_nothing_else_changes() -> None:
    manifest = Manifest(sequence_counter=9, log_start=2, fence_epoch=3)
    fenced = decide_fence(manifest, fenced=True)

    assert fenced == msgspec.structs.replace(manifest, log_state=LogState.FENCED, fence_epoch=4)
    assert fenced is not None
    assert decide_fence(fenced, fenced=True) is None
    assert decide_fence(manifest, fenced=False) is None
    assert decide_fence(fenced, fenced=False) == msgspec.structs.replace(manifest, fence_epoch=4)
    with pytest.raises(NotFound):
        decide_fence(msgspec.structs.replace(manifest, log_state=LogState.DELETED), fenced=True)


async def test_nothing_is_appended_after_a_fence_has_answered_whatever_was_on_its_way() -> None:
    async with rig() as broker:
        await filled(broker, 2)
        fencer = fencer_of(broker)
        sending = [broker.send(timed(number)) for number in range(20)]
        await asyncio.sleep(0)
        end = await fencer.fence(PARTITION)
        results = [one for (one,) in await asyncio.gather(*sending)]
        manifest = await broker.manifest()
        again = await fencer.fence(PARTITION)

        kept = [one.base_offset for one in results if isinstance(one, Appended)]
        assert [one for one in results if not isinstance(one, Appended | Fenced)] == []
        assert sorted(kept) == list(range(2, end))
        assert (manifest.sequence_counter, manifest.log_state, again) == (end, LogState.FENCED, end)
        assert await fencer.unfence(PARTITION) == end
        (result,) = await broker.send(timed(99))
        assert isinstance(result, Appended)
        assert result.base_offset == end


async def test_a_fence_that_a_deposed_leader_tells_of_is_proved_before_it_is_believed() -> None:
    shared, objects = MemoryMetadataStore(clock=SystemClock(), shards=1), MemoryObjectStore(clock=SystemClock())
    async with rig(shared=shared, objects=objects) as one, rig(shared=shared, objects=objects, epoch=8) as other:
        await filled(one, 1)
        await fencer_of(one).fence(PARTITION)
        old = await record_of(shared)
        await fencer_of(one).unfence(PARTITION)
        await filled(one, 2)
        Deposed(other, old, times=1)

        assert await fencer_of(other).fence(PARTITION) == 3
        assert (await one.manifest()).log_state is LogState.FENCED


async def test_a_fence_has_its_turn_beside_others_that_commit_all_the_time() -> None:
    shared, objects = MemoryMetadataStore(clock=SystemClock(), shards=1), MemoryObjectStore(clock=SystemClock())
    async with rig(shared=shared, objects=objects) as one, rig(shared=shared, objects=objects, epoch=8) as other:
        left = 40
        write = other.metadata.write

        async def write_after_another(ops: Sequence[WriteOp]) -> WriteOutcome:
            nonlocal left
            if left:
                left -= 1
                await filled(one, 1)
            return await write(ops)

        await filled(one, 1)
        other.metadata.write = write_after_another  # type: ignore[method-assign]

        assert await fencer_of(other).fence(PARTITION) == 41
