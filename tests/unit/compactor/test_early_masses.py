"""Early pages in masses: rubbish without end, ten thousand partitions in one object, and batches of any size, each step bounded."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compactor.collector import CYCLE_OBJECTS_MAX, TOGETHER, CollectionReport
from compactor.compaction import CompactionEnd, CompactionResult, Round
from compactor.limits import DEFAULT_LIMITS
from runtime.blocking import InlineBlocking
from runtime.clock import SystemClock
from runtime.ulid import ULID_LENGTH, decode_ulid, encode_ulid
from sim.loop import VirtualClock, VirtualLoop
from storage.formats.early_page import encode_page
from storage.formats.manifest import Manifest, encode
from storage.limits import EARLY_PAGE_BYTES_MAX, KIB, WRITE_REQUEST_OPS_MAX
from storage.log.batch import Appended
from storage.log.flush import EarlySettings, FlushSettings
from storage.log.limits import LogLimits
from storage.metadata import keys as metadata_keys
from storage.metadata.keys import EARLY_PREFIX, PartitionKeys
from storage.metadata.memory import MemoryMetadataStore
from storage.metadata.port import ABSENT, DeleteRange, Key, Put, Record, WriteOp, WriteOutcome
from storage.objects.memory import MemoryObjectStore
from storage.recordbatch import HEADER_BYTES
from storage.vocabulary import PartitionId
from tests.kit.batches import batch_bytes
from tests.unit.compactor.compacting import compacting, opened
from tests.unit.compactor.early import EarlyObject
from tests.unit.compactor.test_collector import ONE, Stored, stored
from tests.unit.storage.log.rig import PARTITION, TOPIC, rig

EARLY = EarlySettings(bytes_per_s=1 << 30)
SLOW = FlushSettings(interval_s=60.0, gather_s=60.0)
AT_ONCE = LogLimits(early_delete_after_s=0.0, early_delete_pause_s=0.0)

# Rubbish

MILLION = 1_000_000


class Rubbish:
    """A metadata store with a million pages of objects that nobody stored, each made when a scan comes to it."""

    def __init__(self, inner: MemoryMetadataStore, page: bytes) -> None:
        self._inner = inner
        self._page = page
        self.scanned = self.held_max = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def range_scan(self, start: Key, end: str) -> AsyncIterator[Record]:
        name = start.path.removeprefix(EARLY_PREFIX)
        if name == start.path:
            async for record in self._inner.range_scan(start, end):
                yield record
            return
        for number in range(decode_ulid(name[:ULID_LENGTH]) if name else 0, MILLION):
            self.scanned += 1
            yield Record(f"{EARLY_PREFIX}{encode_ulid(number)}-{64:010}", self._page, 1)


@pytest.mark.parametrize("kind", ["what is no page", "whole pages without an entry"])
async def test_a_cycle_reads_a_bounded_number_of_a_million_rubbish_pages_and_of_their_bytes(kind: str) -> None:
    page = b"rubbish" if kind == "what is no page" else encode_page([ONE], bytes(EARLY_PAGE_BYTES_MAX))
    of_bytes = DEFAULT_LIMITS.early_pages_cycle_bytes_max + DEFAULT_LIMITS.early_pages_read_bytes_max
    pages_max = min(CYCLE_OBJECTS_MAX, of_bytes // len(page) + 2)
    async with stored(0) as it:
        rubbish = Rubbish(it.shared, page)
        async with it.collector(rubbish) as one:
            for cycle in (1, 2):
                before = rubbish.scanned
                ended = await one.cycle(report := CollectionReport())
                assert EARLY_PREFIX not in ended
                assert report.pages.looked_at <= pages_max
                assert rubbish.scanned - before <= report.pages.looked_at + 10, "a page more for each batch"
                assert len(report.pages.failed) <= DEFAULT_LIMITS.early_pages_named_max
                assert rubbish.scanned >= cycle * 1_000, "it goes on behind those it has read"


# Ten thousand partitions

MANY = 10_000


class OneStepAtATime:
    """A metadata store that notes the most puts and range deletes that were asked for between two turns of the loop."""

    def __init__(self, inner: MemoryMetadataStore) -> None:
        self._inner = inner
        self._in_turn = 0
        self.most_in_turn = 0
        self.requests_max = 0
        self.range_deletes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def on_turn(self) -> None:
        self._in_turn = 0

    async def write(self, ops: Sequence[WriteOp]) -> WriteOutcome:
        self._in_turn += len(ops)
        self.most_in_turn = max(self.most_in_turn, self._in_turn)
        self.requests_max = max(self.requests_max, len(ops))
        self.range_deletes += sum(isinstance(op, DeleteRange) for op in ops)
        return await self._inner.write(ops)


class CountedReads:
    """A metadata store that counts reads, and notes the most keys that one asks for, and that were asked for between two turns."""

    def __init__(self, inner: MemoryMetadataStore) -> None:
        self._inner = inner
        self._in_turn = 0
        self.most_in_turn = self.keys_max = self.keys = self.scans = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def on_turn(self) -> None:
        self._in_turn = 0

    async def get_many(self, wanted: Sequence[Key]) -> Sequence[Record | None]:
        self.keys += len(wanted)
        self._in_turn += len(wanted)
        self.keys_max, self.most_in_turn = max(self.keys_max, len(wanted)), max(self.most_in_turn, self._in_turn)
        await asyncio.sleep(0)  # as for any store that is not in this process
        return await self._inner.get_many(wanted)

    def range_scan(self, start: Key, end: str) -> AsyncIterator[Record]:
        self.scans += 1
        return self._inner.range_scan(start, end)


def test_an_object_in_pieces_of_ten_thousand_partitions_is_looked_at_and_compacted_in_bounded_steps() -> None:
    partitions = [PartitionId(TOPIC, number) for number in range(MANY)]

    async def scenario(loop: VirtualLoop) -> None:
        clock = VirtualClock(loop)
        metadata, blobs = MemoryMetadataStore(clock=clock, shards=1), MemoryObjectStore(clock=clock)
        dead = EarlyObject(metadata, blobs)
        batch = batch_bytes(payload=b"x" * 100)
        for begin in range(0, MANY, 50):
            await dead.commit({one: [batch] for one in partitions[begin : begin + 50]})
        none: Any = None
        it = Stored(none, metadata, blobs)
        reads = CountedReads(metadata)
        loop.watch(reads.on_turn)
        report = await it.collect(reads)
        assert (report.pages.live, report.pages.deleted, report.pages.failed) == (MANY // 50, 0, {})
        assert reads.keys <= MANY + 10, "one cheap look at each partition"
        assert reads.scans <= MANY + 10
        assert reads.most_in_turn <= TOGETHER

        some = partitions[::100]
        reads.keys = reads.keys_max = 0
        async with opened(reads, blobs) as compaction:
            one = Round(compaction, objects=blobs, blocking=InlineBlocking(), clock=clock)
            ended = (await one.run(some)).ended
        assert {found.ended for found in ended.values() if isinstance(found, CompactionResult)} == {CompactionEnd.COMPACTED}
        assert reads.keys <= 10 * len(some), "of nine thousand and nine hundred others nothing is read"
        assert reads.keys_max <= DEFAULT_LIMITS.manifests_per_read
        assert len(await dead.left()) == MANY // 50

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualLoop)
        runner.run(scenario(loop))


def test_ten_thousand_partitions_lie_in_one_object_and_no_step_is_for_all_of_them() -> None:
    partitions = [PartitionId(TOPIC, number) for number in range(MANY)]

    async def scenario(loop: VirtualLoop) -> None:
        clock = VirtualClock(loop)
        metadata = MemoryMetadataStore(clock=clock, shards=1)
        for begin in range(0, MANY, WRITE_REQUEST_OPS_MAX):
            some = partitions[begin : begin + WRITE_REQUEST_OPS_MAX]
            await metadata.write([Put(PartitionKeys(one).manifest, encode(Manifest()), ABSENT) for one in some])
        steps: Any = OneStepAtATime(metadata)
        loop.watch(steps.on_turn)
        async with rig(shared=steps, early=EARLY, flush=SLOW, clock=clock) as broker:
            answers, batch = [], batch_bytes(payload=b"x" * 100)
            for begin in range(0, MANY, 50):
                answers += [broker.send(batch, partition=one) for one in partitions[begin : begin + 50]]
                await asyncio.sleep(0.01)
            assert [await answer for answer in answers] == [[Appended(0, 0)]] * MANY
            assert steps.most_in_turn <= 4 * 50
            pages = metadata_keys.early_pages("any")
            assert len(await metadata.list(*pages)) == MANY
            steps.most_in_turn = 0
            await broker.parts.appender.store_early()

            assert len(broker.objects.put_keys) == 1
            assert (steps.range_deletes, steps.most_in_turn, len(await metadata.list(*pages))) == (MANY // 100, 1, 0)
            async with rig(shared=metadata, objects=broker.objects.inner, epoch=8, clock=clock) as reader:
                for one in partitions[:: MANY // 20]:
                    assert b"x" * 100 in await reader.read_all(one)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualLoop)
        runner.run(scenario(loop))


# Any sizes

SIZES = st.one_of(
    st.integers(HEADER_BYTES + 1, 400),
    st.integers(EARLY_PAGE_BYTES_MAX - 2, EARLY_PAGE_BYTES_MAX + 2),
    st.integers(HEADER_BYTES + 1, 200 * KIB),
)
RING = bytes(range(251))
COMMITS = st.lists(st.lists(SIZES, min_size=1, max_size=4), min_size=1, max_size=4)


def pattern(size: int, seed: int) -> bytearray:
    """A batch of that size, whose bytes differ from place to place."""
    begin = seed * 31 % len(RING)
    return batch_bytes(payload=(RING * (size // len(RING) + 2))[begin : begin + size - HEADER_BYTES])


@settings(max_examples=15, deadline=None)
@given(commits=COMMITS)
def test_the_bytes_of_a_place_are_the_same_from_tail_memory_page_object_and_segment(commits: list[list[int]]) -> None:
    async def scenario() -> None:
        metadata, blobs = MemoryMetadataStore(clock=SystemClock(), shards=1), MemoryObjectStore(clock=SystemClock())

        async def as_others_read_it() -> bytes:
            async with rig(shared=metadata, objects=blobs, epoch=8) as reader:
                return await reader.read_all()

        async with rig(shared=metadata, objects=blobs, early=EARLY, flush=SLOW, limits=AT_ONCE) as broker:
            seed = 0
            for sizes in commits:
                await broker.send(*[pattern(size, seed + number) for number, size in enumerate(sizes)])
                seed += len(sizes)
            tail = broker.parts.partitions.get(PARTITION).readers.tail
            kept = {run.base: bytes(run.buffer) for offset in range(seed) if (run := tail.find(offset)) is not None}
            found = {"memory": await broker.read_all(), "page": await as_others_read_it()}
            assert all(entry.is_early for entry in (await broker.manifest()).pending)
            await broker.parts.appender.store_early()
            found["object"] = await as_others_read_it()
        async with compacting(metadata, blobs) as compaction:
            await compaction.run(PARTITION)
        found["segment"] = await as_others_read_it()

        assert len(found["memory"]) == sum(map(sum, commits))
        assert set(found.values()) == {found["memory"]}
        assert b"".join(kept.values()) == found["memory"][len(found["memory"]) - sum(map(len, kept.values())) :]

    asyncio.run(scenario())
