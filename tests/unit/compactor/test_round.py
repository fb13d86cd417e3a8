"""Rounds: each object is read once for all partitions, what fails of one is its own, and what does not fit waits."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor import slices
from compactor.compaction import (
    INLINE_SHARE,
    Compaction,
    CompactionEnd,
    CompactionResult,
    CompactionTask,
    Round,
    RoundPolicy,
    RoundReport,
    only,
)
from compactor.limits import DEFAULT_LIMITS, CompactorLimits
from compactor.plan import in_runs, plan_reads
from compactor.slices import ByteRoom, open_spool, stamp
from runtime.blocking import InlineBlocking, ThreadBlocking
from runtime.clock import SystemClock
from storage.errors import Corrupt, EndsEarly, NotFound, StorageError, Unavailable
from storage.formats.manifest import Entry, Manifest, encode
from storage.formats.wal import object_key
from storage.log.flush import FlushSettings
from storage.metadata.keys import PartitionKeys
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import ABSENT, Put
from storage.objects.memory import MemoryObjectStore
from storage.recordbatch import parse_header
from storage.vocabulary import Buffer, ObjectId, PartitionId
from tests.kit.inline_entries import put_inline
from tests.kit.record_batches import record_batch
from tests.unit.compactor.compacting import left_behind, opened
from tests.unit.storage.log.rig import TOPIC, Rig, rig

spans = st.lists(st.tuples(st.integers(0, 4_000), st.integers(1, 400)), min_size=1, max_size=8, unique_by=lambda span: span[0])


def entry_of(object_id: str, *spans: tuple[int, int]) -> Entry:
    return Entry(base=0, last=0, object_id=ObjectId(object_id), batches=spans, max_timestamp=0, running_max_timestamp=0)


@pytest.mark.parametrize("is_own", [True, False])
def test_a_slice_is_stamped_in_memory_that_may_be_written_to_and_else_copied(is_own: bool) -> None:
    batch = bytes(record_batch(b"a", b"b"))
    entry = Entry(base=10, last=11, object_id=ObjectId("a"), batches=((0, len(batch)),), max_timestamp=0, running_max_timestamp=0)
    slice_ = memoryview(bytearray(batch)) if is_own else memoryview(batch)
    run = stamp(entry, [slice_], PartitionId(TOPIC, 0))

    assert (run.base, run.last, parse_header(run.buffer).base_offset) == (10, 11, 10)
    assert (run.buffer.obj is slice_.obj) == is_own
    assert parse_header(slice_).base_offset == (10 if is_own else 0)


UNBUFFERED_FROM_BYTES = DEFAULT_LIMITS.spool_unbuffered_from_bytes


@pytest.mark.parametrize("size_bytes", [UNBUFFERED_FROM_BYTES - 1, UNBUFFERED_FROM_BYTES, 3 * UNBUFFERED_FROM_BYTES])
async def test_what_a_spool_gives_back_is_what_it_was_given_whether_or_not_it_goes_past_the_page_cache(
    size_bytes: int, tmp_path: Path
) -> None:
    parts = [bytes([number]) * size_bytes for number in range(4)]
    blocking = ThreadBlocking(threads=1, name="spool")
    try:
        limits = CompactorLimits(spool_chunk_bytes=2 * size_bytes)
        async with open_spool(blocking, bytes_max=0, folder=tmp_path, limits=limits) as opened_spool:
            positions = [await opened_spool.append([part]) for part in parts]
            opened_spool.seal()
            found = await opened_spool.read([(position, size_bytes) for position in positions])
        assert [bytes(one) for one in found] == parts
    finally:
        blocking.close()


@given(st.lists(st.tuples(st.sampled_from("abc"), spans), max_size=8))
def test_every_span_is_in_one_read_and_reads_are_as_few_as_gaps_allow(asked: list[tuple[str, list[tuple[int, int]]]]) -> None:
    entries = [entry_of(object_id, *spans) for object_id, spans in asked]
    reads = plan_reads(entries, gap_bytes_max=100, get_bytes_max=1_000)

    planned = [(read.object_id, span) for read in reads for span in read.spans]
    assert sorted(planned) == sorted({(entry.object_id, span) for entry in entries for span in entry.batches})
    for read in reads:
        assert read.begin == min(position for position, _ in read.spans)
        assert read.end == max(position + length for position, length in read.spans)
        assert read.end - read.begin <= 1_000 or len(read.spans) == 1
    for one, following in itertools.pairwise(reads):
        if one.object_id == following.object_id:
            assert following.begin - one.end > 100 or following.spans[0][0] + following.spans[0][1] - one.begin > 1_000


def test_a_whole_object_of_many_partitions_is_one_get() -> None:
    slice_bytes = 100_000
    entries = [entry_of("a", (64 + number * slice_bytes, slice_bytes)) for number in range(80)]

    limits = DEFAULT_LIMITS
    (read,) = plan_reads(reversed(entries), gap_bytes_max=limits.gap_bytes_max, get_bytes_max=limits.get_bytes_max)

    assert (read.begin, read.end, len(read.spans)) == (64, 64 + 80 * slice_bytes, 80)


@given(st.lists(st.integers(1, 50), max_size=30))
def test_runs_of_entries_keep_their_order_and_their_bound(sizes: list[int]) -> None:
    entries = [entry_of("a", (number, size)) for number, size in enumerate(sizes)]
    runs = list(in_runs(entries, bytes_max=60))

    assert [entry for run in runs for entry in run] == entries
    assert all(len(run) == 1 or sum(one.size_bytes for one in run) <= 60 for run in runs)
    assert all(sum(entry.size_bytes for entry in [*one, other[0]]) > 60 for one, other in itertools.pairwise(runs))


PARTITIONS = [PartitionId(TOPIC, number) for number in range(6)]
OBJECTS = 5


class CountingObjects:
    """The store inside; some objects cannot be read."""

    def __init__(self, inner: MemoryObjectStore) -> None:
        self._inner = inner
        self.got: list[str] = []
        self.failing: dict[str, StorageError] = {}

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        self.got.append(key)
        if (failure := self.failing.get(key)) is not None:
            raise failure
        return await self._inner.get_range(key, start, end)


class Bench(NamedTuple):
    """A log of six partitions, whose objects hold batches of all."""

    broker: Rig
    objects: CountingObjects
    compaction: Compaction

    async def run(
        self,
        policy: RoundPolicy | None = None,
        partitions: Sequence[PartitionId] = PARTITIONS,
        *,
        limits: CompactorLimits = DEFAULT_LIMITS,
    ) -> RoundReport:
        objects: Any = self.objects
        clock = SystemClock()
        one = Round(self.compaction, objects=objects, blocking=InlineBlocking(), clock=clock, policy=policy, limits=limits)
        return await one.run(partitions)


@contextlib.asynccontextmanager
async def bench(*, carried: bool = False) -> AsyncIterator[Bench]:
    """A log in each of PARTITIONS; `carried`: their entries carry their batches, as those before format level 5 may."""
    shared = MemoryMetadataStore(clock=SystemClock(), shards=1)
    for partition in PARTITIONS:
        await shared.write([Put(PartitionKeys(partition).manifest, encode(Manifest()), ABSENT)])
    async with rig(shared=shared, flush=FlushSettings(interval_s=0.005, gather_s=0.0)) as broker:
        for number in range(OBJECTS if not carried else 0):
            await asyncio.gather(*[broker.send(record_batch(b"%d" % number), partition=partition) for partition in PARTITIONS])
        for partition in PARTITIONS if carried else ():
            await put_inline(shared, [record_batch(b"%d" % number) for number in range(OBJECTS)], partition)
        objects = CountingObjects(broker.objects.inner)
        async with opened(shared, objects) as compaction:
            yield Bench(broker, objects, compaction)


async def test_one_get_of_an_object_serves_all_partitions() -> None:
    async with bench() as it:
        before = [await it.broker.read_all(partition) for partition in PARTITIONS]
        report = await it.run()
        after = [await it.broker.read_all(partition) for partition in PARTITIONS]

        assert [only(report, partition).ended for partition in PARTITIONS] == [CompactionEnd.COMPACTED] * len(PARTITIONS)
        assert len(it.objects.got) == len(set(it.objects.got)) == report.gets == OBJECTS
        assert report.left == []
        assert after == before


async def test_partitions_that_do_not_fit_are_left_unclaimed_for_the_next_round() -> None:
    async with bench() as it:
        first = await it.run(RoundPolicy(slice_bytes_max=1))
        second = await it.run(RoundPolicy(slice_bytes_max=1 << 20), first.left)

        assert [partition for partition, ended in first.ended.items() if isinstance(ended, CompactionResult)] == PARTITIONS[:1]
        assert first.left == PARTITIONS[1:]
        assert {only(second, partition).ended for partition in PARTITIONS[1:]} == {CompactionEnd.COMPACTED}
        assert [await left_behind(it.broker.shared, partition) for partition in PARTITIONS] == [[]] * len(PARTITIONS)


async def test_what_is_wrong_with_one_partition_does_not_keep_the_others() -> None:
    async with bench() as it:
        entry = (await it.broker.manifest(PARTITIONS[2])).pending[-1]
        ((position, length),) = entry.batches
        key = object_key(entry.object_id)
        content = bytearray(it.broker.objects.inner._objects[key].body)
        content[position + length - 1] ^= 1
        it.broker.objects.inner._objects[key] = it.broker.objects.inner._objects[key]._replace(body=bytes(content))
        report = await it.run()

        assert isinstance(report.ended[PARTITIONS[2]], Corrupt)
        others = [partition for partition in PARTITIONS if partition != PARTITIONS[2]]
        assert {only(report, partition).ended for partition in others} == {CompactionEnd.COMPACTED}
        assert (await it.broker.manifest(PARTITIONS[2])).compaction_cursor == 0
        assert (await left_behind(it.broker.shared, PARTITIONS[2]))[1:] == [], "nobody keeps it claimed"


@pytest.mark.parametrize("failure", [NotFound("no such object"), EndsEarly("half an object"), Unavailable("try again")])
async def test_an_object_that_cannot_be_read_is_the_failure_of_those_that_need_it(failure: StorageError) -> None:
    async with bench() as it:
        for partition in PARTITIONS[:2]:
            await it.run(partitions=[partition])
        await asyncio.gather(*[it.broker.send(record_batch(b"more"), partition=partition) for partition in PARTITIONS[:2]])
        entry = (await it.broker.manifest(PARTITIONS[5])).pending[0]
        it.objects.failing[object_key(entry.object_id)] = failure
        report = await it.run()

        assert [type(report.ended[partition]) for partition in PARTITIONS[2:]] == [type(failure)] * 4
        assert {only(report, partition).ended for partition in PARTITIONS[:2]} == {CompactionEnd.COMPACTED}


async def test_an_object_that_went_because_others_were_faster_is_no_failure() -> None:
    async with bench() as it, opened(it.broker.shared, it.broker.objects) as other:
        objects: Any = it.broker.objects
        task = await it.compaction.begin(PARTITIONS[0])
        assert isinstance(task, CompactionTask)
        await it.compaction.give_up(task)  # as a session that was lost
        await Round(other, objects=objects, blocking=InlineBlocking(), clock=SystemClock()).run(PARTITIONS[:1])

        assert not await it.compaction.is_current(task)

        one = Round(it.compaction, objects=objects, blocking=InlineBlocking(), clock=SystemClock())
        slices: Any = Missing()
        assert await one._finish_one(task, slices) == CompactionResult(CompactionEnd.OVERTAKEN)


class Missing:
    async def read(self, _entries: Sequence[Entry]) -> list[Sequence[Buffer]]:
        raise NotFound("the collector has been here")


@pytest.mark.parametrize("unbuffered_from_bytes", [1, 1 << 20])
async def test_a_spool_gives_back_what_it_was_given_in_memory_and_in_files(unbuffered_from_bytes: int) -> None:
    limits = CompactorLimits(spool_chunk_bytes=200_000, spool_unbuffered_from_bytes=unbuffered_from_bytes)
    blocking = ThreadBlocking(threads=1, name="spool")
    try:
        async with open_spool(blocking, bytes_max=1_000_000, limits=limits) as kept:
            wanted = [(number, bytes([number]) * (number * 7_001 % 9_000 + 1)) for number in range(150)]
            positions = await asyncio.gather(*[kept.append([data[:1], data[1:]]) for _, data in wanted])
            wanted.append((0, b"the rest"))
            positions.append(await kept.append([b"the rest"]))
            kept.seal()
            spans = [(position, len(data)) for position, (_, data) in zip(positions, wanted, strict=True)]
            kinds = {type(chunk) for chunk in kept._chunks}

            assert await kept.read(spans[::-1]) == [data for _, data in wanted][::-1]
    finally:
        blocking.close()
    assert kinds == {int, bytes}, "some in files and the rest in memory"


async def test_a_small_part_of_what_was_read_does_not_keep_all_of_it() -> None:
    body = bytes(1_000_000)
    async with open_spool(InlineBlocking(), bytes_max=1) as kept:
        await kept.append([memoryview(body)[10:20], memoryview(body)[500_000:500_010]])
        await kept.append([memoryview(body)[:900_000]])

        assert [memoryview(memoryview(part).obj).nbytes for part in kept._open] == [20, 1_000_000]


async def test_a_folder_without_room_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int, _parts: Sequence[Buffer]) -> bool:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(slices, "write_unbuffered", full)
    async with open_spool(InlineBlocking(), bytes_max=1, folder=Path("/tmp"), limits=CompactorLimits(spool_chunk_bytes=1)) as kept:
        with pytest.raises(Unavailable, match=r"folder='/tmp'.*No space left.*compactor\.spool_dir"):
            await kept.append([b"slice"])


async def test_room_is_given_in_parts_and_the_largest_works_alone() -> None:
    room, inside, most = ByteRoom(100), 0, 0

    async def work(size_bytes: int) -> None:
        nonlocal inside, most
        async with room.take(size_bytes):
            inside += min(size_bytes, 100)
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= min(size_bytes, 100)

    async with asyncio.timeout(25):
        await asyncio.gather(*[work(size_bytes) for size_bytes in (30, 1_000, 50, 20, 99, 1, 1_000)])

    assert most == 100


async def test_a_round_holds_so_much_of_what_entries_carry_and_leaves_the_rest() -> None:
    limits = CompactorLimits(begun_together_max=2)
    async with bench(carried=True) as it:
        before = [await it.broker.read_all(partition) for partition in PARTITIONS]
        first = await it.run(RoundPolicy(segment_bytes_max=INLINE_SHARE), limits=limits)
        second = await it.run(None, first.left, limits=limits)

        assert (len(first.ended), len(first.left)) == (2, len(PARTITIONS) - 2)
        assert all(isinstance(one, CompactionResult) and one.segment is not None for one in [*first.ended.values(), *second.ended.values()])
        assert it.objects.got == []
        assert [await it.broker.read_all(partition) for partition in PARTITIONS] == before
