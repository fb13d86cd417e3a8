"""Consumers that go through WAL objects in order find their next slices in the cache, and share a GET where they want the same object."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from runtime.supervision import Nursery
from storage.cache import blocks as blocks_module
from storage.errors import Unavailable
from storage.formats.control import Entry
from storage.formats.wal import object_key
from storage.limits import KIB
from storage.log import entries_ahead
from storage.log.batcher import FlushSettings
from storage.log.entries_ahead import EntriesAhead, Range
from storage.log.read_ahead import FRONT_KEPT_S, READS_AHEAD_MAX
from storage.metadata.keys import PartitionKeys
from storage.metadata.port import Put
from storage.vocabulary import ObjectId, PartitionId, TopicId
from tests.kit.record_batches import record_batch
from tests.unit.storage.log.made_segments import counted_gets
from tests.unit.storage.log.rig import PARTITION, Rig, rig
from tests.unit.storage.log.test_read_ahead import Ahead, ahead_of, fetch, never, outcomes, replace_gets, until_done

BLOCK = 1_024
SLICE = 256
"""Four of a block, one of each partition."""
IDS = [ObjectId(f"01JA000000000000000000000{number:X}") for number in range(16)]
TOPIC = TopicId("11111111-1111-1111-1111-111111111111")
P = [PartitionId(TOPIC, number) for number in range(8)]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries_ahead, "SLICE_BYTES_MIN", SLICE)
    monkeypatch.setattr(entries_ahead, "AHEAD_BYTES", 2 * SLICE)
    monkeypatch.setattr(entries_ahead, "GET_BYTES_MAX", BLOCK)
    monkeypatch.setattr(entries_ahead, "GAP_BYTES_MAX", 0)
    monkeypatch.setattr(blocks_module, "FETCHING_BYTES_MIN", 0)


def entry(object_number: int, start: int, length: int = SLICE) -> Entry:
    base = 10 * object_number
    return Entry(base, base + 9, IDS[object_number], ((start, length),), max_timestamp=0, running_max_timestamp=0)


def slices(place: int, objects: Sequence[int] = range(6)) -> list[Entry]:
    """Those of a partition whose slice has that place in each object."""
    return [entry(number, place * SLICE) for number in objects]


class Following(Ahead):
    def __init__(self, nursery: Nursery, *, cache_blocks: int = 96) -> None:
        super().__init__(nursery, cache_blocks=cache_blocks)
        self.entries = EntriesAhead(self.cache, self.ahead, clock=self.clock)

    async def follow(self, partition: PartitionId, entries: Sequence[Entry], *, read: int = -1) -> None:
        """`read`: the base of the entry that was read before them; by default that of the object before the first of them."""
        before = entries[0].base - 10 if entries else -1
        self.entries.follow(partition, before if read < 0 else read, entries)
        for _ in range(10):
            await asyncio.sleep(0)

    @property
    def gets(self) -> list[tuple[int, int, int]]:
        """Number of the object, first byte, end."""
        numbers = {object_key(object_id): number for number, object_id in enumerate(IDS)}
        return [(numbers[key], start, end) for key, start, end in self.objects.under_way]


async def test_of_what_a_consumer_will_read_the_next_is_fetched_and_only_its_slice() -> None:
    async with Nursery() as nursery:
        made = Following(nursery)
        await made.follow(P[0], slices(1))

        assert made.gets == [(0, SLICE, 2 * SLICE), (1, SLICE, 2 * SLICE)]


async def test_what_is_there_or_on_its_way_is_not_fetched_again() -> None:
    async with Nursery() as nursery:
        made = Following(nursery)
        await made.follow(P[0], slices(1))
        await made.follow(P[0], slices(1))
        on_their_way = len(made.gets)
        made.objects.gate.set()
        await until_done(made.ahead)
        await made.follow(P[0], slices(1))
        there = len(made.gets)
        await made.follow(P[0], slices(1, range(1, 6)))

        assert (on_their_way, there) == (2, 2)
        assert made.gets[2:] == [(2, SLICE, 2 * SLICE)]


async def test_what_others_have_said_they_will_read_of_an_object_comes_with_one_get() -> None:
    async with Nursery() as nursery:
        made = Following(nursery)
        await made.follow(P[0], slices(0, range(2, 8)))
        await made.follow(P[1], slices(1, range(2, 8)))
        await made.follow(P[2], slices(2, range(4, 8)))
        await made.follow(P[1], slices(1, range(4, 8)))

        assert made.gets[:2] == [(2, 0, SLICE), (3, 0, SLICE)], "nobody else had said anything"
        assert made.gets[2:4] == [(2, SLICE, 2 * SLICE), (3, SLICE, 2 * SLICE)]
        assert made.gets[4:] == [(4, 0, 3 * SLICE), (5, 0, 3 * SLICE)], "the third, and both before it; the second finds that it comes"


async def test_a_gap_that_nobody_wants_ends_what_comes_together_and_so_does_the_size_of_a_get(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Nursery() as nursery:
        made = Following(nursery)
        for place in (0, 2, 3):
            await made.follow(P[place], slices(place, (0, 1, 2, 3, 4)))
        gapped = made.gets[-2:]
        monkeypatch.setattr(entries_ahead, "GAP_BYTES_MAX", SLICE)
        await made.follow(P[3], slices(3, (2,)))
        over_a_gap = made.gets[-1]
        monkeypatch.setattr(entries_ahead, "GET_BYTES_MAX", 2 * SLICE)
        await made.follow(P[3], slices(3, (3,)))

        assert gapped == [(0, 3 * SLICE, 4 * SLICE), (1, 3 * SLICE, 4 * SLICE)], "the slice before it was on its way"
        assert over_a_gap == (2, 0, 4 * SLICE)
        assert made.gets[-1] == (3, 2 * SLICE, 4 * SLICE)


@pytest.mark.parametrize("length", [SLICE - 1, BLOCK + 1])
async def test_slices_that_are_small_or_more_than_a_get_brings_end_what_is_fetched(length: int) -> None:
    async with Nursery() as nursery:
        made = Following(nursery)
        await made.follow(P[0], [entry(0, 0), entry(1, 0, length), entry(2, 0)])

        assert made.gets == [(0, 0, SLICE)]


async def test_an_inline_entry_is_passed_over() -> None:
    async with Nursery() as nursery:
        made = Following(nursery)
        inline = Entry(0, 9, IDS[0], b"batches", max_timestamp=0, running_max_timestamp=0)
        await made.follow(P[0], [inline, entry(1, 0), inline, entry(2, 0), entry(3, 0)])

        assert made.gets == [(1, 0, SLICE), (2, 0, SLICE)]


async def test_two_entries_in_one_object_are_fetched_together_and_forgotten_together() -> None:
    async with Nursery() as nursery:
        made = Following(nursery)
        await made.follow(P[0], [entry(0, 2 * SLICE), entry(0, 0), entry(1, 0)])
        await made.follow(P[0], [entry(1, 0)], read=0)
        await made.follow(P[0], [], read=10)

        assert made.gets == [(0, 0, 3 * SLICE), (1, 0, SLICE)]
        assert made.entries.wanted == {}


async def test_the_more_consumers_there_are_the_less_lies_in_front_of_each() -> None:
    async with Nursery() as nursery:
        made = Following(nursery, cache_blocks=8)
        for place in range(4):
            await made.follow(P[place], slices(place))

        assert [number for number, _, _ in made.gets] == [0, 1, 0, 1, 0, 1, 0], "half of a quarter of the cache is four slices"


async def test_consumers_at_different_places_of_one_partition_are_as_many_as_in_different_ones() -> None:
    async with Nursery() as nursery:
        made = Following(nursery, cache_blocks=8)
        for first in (0, 3, 6, 9):
            await made.follow(P[0], slices(0, range(first, first + 3)), read=10 * first + 200)

        assert [number for number, _, _ in made.gets] == [0, 1, 3, 4, 6, 7, 9]
        assert made.ahead.fronts.bytes == 7 * SLICE


async def test_of_a_slice_whose_head_is_here_the_rest_is_fetched() -> None:
    async with Nursery() as nursery:
        made = Following(nursery)
        made.objects.gate.set()
        await made.cache.read(object_key(IDS[0]), 0, SLICE + 100)
        await made.follow(P[1], slices(1))

        assert made.gets == [(0, 0, SLICE + 100), (0, SLICE + 100, 2 * SLICE), (1, SLICE, 2 * SLICE)]
        assert outcomes(made.telemetry)[1] == 0


async def test_what_has_no_room_is_skipped_and_what_follows_it_too() -> None:
    async with Nursery() as nursery:
        made = Following(nursery, cache_blocks=8)
        made.objects.gate.set()
        await made.fill(blocks=8)
        made.ahead.fronts.note("others", 2 * BLOCK - SLICE)
        await made.follow(P[0], slices(1))

        assert made.gets == [(0, SLICE, 2 * SLICE)]
        assert outcomes(made.telemetry) == (1, 1, 0)


async def test_a_cache_that_keeps_nothing_for_long_is_not_fetched_into() -> None:
    async with Nursery() as nursery:
        made = Following(nursery, cache_blocks=7)
        await made.follow(P[0], slices(0))

        assert made.gets == []
        assert len(made.entries.said) == 0


async def test_what_is_in_front_of_consumers_counts_until_they_are_through() -> None:
    async with Nursery() as nursery:
        made = Following(nursery)
        made.objects.gate.set()
        await made.follow(P[0], slices(0))
        before = made.ahead.fronts.bytes
        await made.follow(P[0], slices(0, [1]), read=0)
        at_the_last = made.ahead.fronts.bytes
        await made.follow(P[0], [], read=10)

        assert (before, at_the_last, made.ahead.fronts.bytes) == (2 * SLICE, SLICE, 0)
        assert len(made.entries.said) == 0


async def test_what_was_said_is_remembered_of_a_bounded_number_of_places_and_for_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(entries_ahead, "PLACES_SAID_MAX", 2)
    async with Nursery() as nursery:
        made = Following(nursery)
        for place in range(3):
            await made.follow(P[place], slices(place))
        bounded = [(one, 0) in made.entries.said for one in P[:3]]
        made.clock.advance(FRONT_KEPT_S + 1)
        await made.follow(P[3], slices(3))

        assert bounded == [False, True, True]
        assert list(made.entries.said) == [(P[3], 0)]
        assert {one for wanted in made.entries.wanted.values() for one in wanted} == {(P[3], 0)}


async def test_a_read_that_finds_its_slice_missing_brings_those_of_others_beside_it() -> None:
    async with Nursery() as nursery:
        made = Following(nursery)
        key = object_key(IDS[4])
        await made.follow(P[1], slices(1))
        await made.follow(P[2], slices(2))

        assert made.entries.together(key, Range(2 * SLICE, 3 * SLICE)) == (SLICE, 3 * SLICE)
        assert made.entries.together(key, Range(0, SLICE)) == (0, 3 * SLICE)
        assert made.entries.together("wal/of/nobody", Range(SLICE, 2 * SLICE)) == (SLICE, 2 * SLICE)


# A consumer


@pytest.fixture
async def broker() -> AsyncIterator[Rig]:
    async with rig(cache_bytes=96 * BLOCK, block_bytes=BLOCK) as made:
        for number in range(12):
            await made.send(record_batch(bytes([number]) * SLICE))
        yield made


async def test_a_consumer_in_order_waits_for_no_object_but_its_first(broker: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries_ahead, "AHEAD_BYTES", 16 * KIB)
    async with rig(shared=broker.shared, objects=broker.objects._inner, epoch=8, cache_bytes=96 * BLOCK, block_bytes=BLOCK) as other:
        await other.parts.control_reads.refresh([other.parts.partitions.get(PARTITION)])
        first = (await other.control()).pending[0].base
        second = await fetch(other, await fetch(other, first, bytes_max=1), bytes_max=1)
        await until_done(ahead_of(other))
        replace_gets(other, never)
        end = second
        while end < second + READS_AHEAD_MAX:
            end = await fetch(other, end, bytes_max=1)

        assert outcomes(other.telemetry)[0] == READS_AHEAD_MAX


async def test_a_small_slice_comes_with_what_lies_before_it_though_a_large_one_of_its_object_is_awaited() -> None:
    small, large = PARTITION, PARTITION._replace(partition=1)
    async with rig(flush=FlushSettings(interval_s=0.0, gather_s=0.01)) as writer:
        await writer.shared.write([Put(PartitionKeys(large).control, b'{"fmt":1}', None)])
        for number in range(5):
            await asyncio.gather(
                writer.send(record_batch(bytes([number]))), writer.send(record_batch(bytes([number]) * 2 * SLICE), partition=large)
            )
        entries = (await writer.control()).pending
        assert [one.object_id for one in entries] == [one.object_id for one in (await writer.control(large)).pending]
        async with rig(
            shared=writer.shared, objects=writer.objects._inner, epoch=8, cache_bytes=96 * BLOCK, block_bytes=BLOCK, part_bytes=BLOCK
        ) as reader:
            logs = [reader.parts.partitions.get(one) for one in (small, large)]
            await reader.parts.control_reads.refresh(logs)
            reads = reader.parts.reader
            for offset in range(2):
                await reads.stored_within(logs[1], offset, bytes_max=1, at_least_one=True, is_in_order=True)
            await until_done(ahead_of(reader))
            assert set(reads._entries_ahead.wanted) == {object_key(one.object_id) for one in entries[2:]}
            gets = await counted_gets(reader)
            await reads.stored_within(logs[0], 4, bytes_max=1, at_least_one=True, is_in_order=True)

        (position, length), *_ = entries[4].batches
        assert gets == [(0, position + length)]


async def test_an_object_that_cannot_be_fetched_ahead_is_counted_and_told_to_whoever_reads_it() -> None:
    async with Nursery() as nursery:
        made = Following(nursery)

        async def fail(key: str, start: int, end: int) -> bytes:
            raise Unavailable("not now")

        made.objects.get_range = fail  # type: ignore[method-assign]
        await made.follow(P[0], slices(0))
        await until_done(made.ahead)

        assert outcomes(made.telemetry) == (0, 0, 2)
        assert made.entries._coming == {}
