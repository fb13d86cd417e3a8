"""Consumers that go through WAL objects in order find their next slices in the cache, and share a GET where they want the same object."""

import asyncio
import functools
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest

from runtime.supervision import Nursery
from storage.cache.blocks import DEFAULT_LIMITS as DEFAULT_CACHE_LIMITS
from storage.cache.blocks import CacheLimits
from storage.errors import Unavailable
from storage.formats.manifest import Entry
from storage.formats.wal import object_key
from storage.limits import KIB
from storage.log.limits import DEFAULT_LIMITS, LogLimits
from storage.log.prefetch import EntriesAhead, Range
from storage.vocabulary import Buffer, ObjectId, PartitionId, TopicId
from tests.kit.record_batches import record_batch
from tests.kit.stepping_clock import SteppingClock
from tests.unit.storage.log.rig import PARTITION, Rig
from tests.unit.storage.log.rig import rig as opened_rig
from tests.unit.storage.log.test_read_ahead import NO_MORE, Ahead, ahead_of, fetch, never, outcomes, replace_gets, until_done

BLOCK = 1_024
SLICE = 256
"""Four of a block, one of each partition."""
AHEAD = 8
IDS = [ObjectId(f"01JA000000000000000000000{number:X}") for number in range(16)]
READ_ID = ObjectId("01J90000000000000000000000")
TOPIC = TopicId("11111111-1111-1111-1111-111111111111")
P = [PartitionId(TOPIC, number) for number in range(8)]


SMALL = LogLimits(
    ahead_bytes=2 * SLICE,
    first_objects_max=16,
    ahead_gets_per_follow_max=100,
    ahead_get_bytes_max=BLOCK,
    ahead_gap_bytes_max=0,
)
rig = functools.partial(opened_rig, limits=SMALL, cache_limits=NO_MORE)
COUNTED_BARE = replace(NO_MORE, piece_overhead_bytes=0)
"""What the cache holds is the bytes of its pieces."""


def entry(object_number: int, start: int, length: int = SLICE) -> Entry:
    base = 10 * object_number
    return Entry(base, base + 9, IDS[object_number], ((start, length),), max_timestamp=0, running_max_timestamp=0)


def slices(place: int, objects: Sequence[int] = range(6)) -> list[Entry]:
    """Those of a partition whose slice has that place in each object."""
    return [entry(number, place * SLICE) for number in objects]


class Following(Ahead):
    def __init__(self, nursery: Nursery, *, cache_blocks: int = 96, limits: LogLimits = SMALL, cache_limits: CacheLimits = NO_MORE) -> None:
        super().__init__(nursery, cache_blocks=cache_blocks, limits=limits, cache_limits=cache_limits)
        self.entries = EntriesAhead(self.cache, self.ahead, clock=self.clock, limits=limits)

    async def fill_history(self) -> None:
        """Other reads of history are in all of the cache."""
        self.objects.gate.set()
        for start in range(0, self.cache.bytes_max, BLOCK):
            await self.cache.read("wal/other", start, start + BLOCK, is_history=True)
        self.objects.under_way.clear()

    async def follow(self, partition: PartitionId, entries: Sequence[Entry], *, read: int = -1, has_waited: bool = False) -> None:
        """`read`: the base of the entry that was read before them; by default that of the object before the first of them."""
        self.entries.forget_old()  # as every read does
        before = entries[0].base - 10 if entries else -1
        source = Entry(before if read < 0 else read, (before if read < 0 else read) + 9, READ_ID, ((0, SLICE),), 0, 0)
        self.entries.follow(partition, source, entries, has_waited=has_waited)
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


async def gets_behind_a_gap(limits: LogLimits, number: int) -> list[tuple[int, int, int]]:
    """The GETs after three of four partitions were followed, and the last of them to an object that nobody has come to."""
    async with Nursery() as nursery:
        made = Following(nursery, limits=limits)
        for place in (0, 2, 3):
            await made.follow(P[place], slices(place, (0, 1, 2, 3, 4)))
        await made.follow(P[3], slices(3, (number,)))
        return made.gets


async def test_a_gap_that_nobody_wants_ends_what_comes_together_and_so_does_the_size_of_a_get() -> None:
    *_, first, second, _ = await gets_behind_a_gap(SMALL, 2)
    wide = replace(SMALL, ahead_gap_bytes_max=SLICE)
    *_, over_a_gap = await gets_behind_a_gap(wide, 2)
    *_, small = await gets_behind_a_gap(replace(wide, ahead_get_bytes_max=2 * SLICE), 3)

    assert [first, second] == [(0, 3 * SLICE, 4 * SLICE), (1, 3 * SLICE, 4 * SLICE)], "the slice before it was on its way"
    assert over_a_gap == (2, 0, 4 * SLICE)
    assert small == (3, 2 * SLICE, 4 * SLICE)


async def test_a_slice_that_is_more_than_a_get_brings_ends_what_is_fetched() -> None:
    async with Nursery() as nursery:
        made = Following(nursery)
        await made.follow(P[0], [entry(0, 0), entry(1, 0, BLOCK + 1), entry(2, 0)])

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


@pytest.mark.parametrize("is_one_partition", [False, True], ids=["of a partition each", "at different places of one"])
async def test_the_more_consumers_there_are_the_less_lies_in_front_of_each(is_one_partition: bool) -> None:
    """All of them have what the cache has to spare, each three quarters of its part."""
    async with Nursery() as nursery:
        made = Following(nursery, cache_limits=COUNTED_BARE, cache_blocks=8, limits=replace(SMALL, ahead_bytes=100 * SLICE))
        made.objects.gate.set()
        slices_ahead: list[int] = []
        for number in range(4):
            before = len(made.gets)
            if is_one_partition:
                entries = [Entry(1_000 * number + one.base, 0, one.object_id, one.batches, 0, 0) for one in slices(number, range(16))]
                await made.follow(P[0], entries, read=1_000 * number + 500)
            else:
                await made.follow(P[number], slices(number, range(16)))
            await until_done(made.ahead)
            slices_ahead.append(len(made.gets) - before)

        assert slices_ahead == [16, 12, 4, 0], "as many entries as may be, three quarters of a half; then it is full"


async def test_of_a_full_cache_consumers_have_what_is_theirs_for_certain() -> None:
    async with Nursery() as nursery:
        made = Following(nursery, cache_blocks=8)
        made.objects.gate.set()
        await made.fill()
        await made.follow(P[0], slices(0))

        assert made.cache.spare_bytes < 2 * BLOCK
        assert [number for number, _, _ in made.gets] == [0, 1]


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


async def test_what_came_for_consumers_is_claimed_until_they_are_through() -> None:
    async with Nursery() as nursery:
        made = Following(nursery, cache_limits=COUNTED_BARE)
        made.objects.gate.set()
        await made.follow(P[0], slices(0, [0, 1]))
        claimed_bytes = [made.cache.claimed_bytes]
        made.entries.follow(P[0], entry(0, 0), slices(0, [1]), is_through=False)
        claimed_bytes.append(made.cache.claimed_bytes)
        made.entries.follow(P[0], entry(0, 0), slices(0, [1]))
        claimed_bytes.append(made.cache.claimed_bytes)
        made.entries.follow(P[0], entry(1, 0), [])
        claimed_bytes.append(made.cache.claimed_bytes)

        assert claimed_bytes == [2 * SLICE, 2 * SLICE, SLICE, 0]
        assert len(made.entries.said) == 0
        assert made.cache._order.left_behind_bytes == 2 * SLICE


async def test_of_what_is_claimed_and_on_its_way_there_is_no_more_than_the_tail_leaves() -> None:
    async with Nursery() as nursery:
        made = Following(nursery, cache_blocks=8)
        await made.fill_history()
        made.objects.gate.set()
        made.cache.claim("wal/other", 0, 8 * BLOCK, wanted=[(0, 8 * BLOCK - 3 * SLICE)])
        await made.follow(P[0], slices(0))
        before = made.gets
        made.cache.release("wal/other", 0, 8 * BLOCK, wanted=())
        await made.follow(P[0], slices(0))

        assert (before, outcomes(made.telemetry)[1]) == ([], 1)
        assert [number for number, _, _ in made.gets] == [0, 1], "what nobody claims makes room"


async def test_what_was_said_is_remembered_of_a_bounded_number_of_places_and_for_seconds_and_forgotten_in_parts() -> None:
    async with Nursery() as nursery:
        made = Following(nursery, limits=replace(SMALL, places_said_max=2, forgotten_at_once_max=1))
        for place in range(3):
            await made.follow(P[place], slices(place))
        bounded = [(one, 0) in made.entries.said for one in P[:3]]
        made.clock.advance(DEFAULT_LIMITS.said_kept_s + 1)
        await made.follow(P[3], slices(3))
        in_part = list(made.entries.said)
        await made.follow(P[3], slices(3))

        assert bounded == [True, True, False], "the third reads without"
        assert in_part == [(P[1], 0), (P[3], 0)]
        assert list(made.entries.said) == [(P[3], 0)]
        assert {one.place for wanted in made.entries.wanted.values() for one in wanted} == {(P[3], 0)}


async def test_what_came_for_a_consumer_that_reads_no_more_is_left_for_who_does() -> None:
    async with Nursery() as nursery:
        made = Following(nursery, cache_limits=COUNTED_BARE)
        made.objects.gate.set()
        await made.follow(P[0], slices(0))
        before = made.cache.claimed_bytes, made.cache._order.left_behind_bytes
        made.clock.advance(DEFAULT_LIMITS.said_kept_s + 1)
        await made.follow(P[1], [])

        assert before == (2 * SLICE, 0)
        assert (made.cache.claimed_bytes, made.cache._order.left_behind_bytes) == (0, 2 * SLICE)


async def test_what_a_consumer_has_passed_without_reading_it_is_claimed_no_more() -> None:
    """Compaction has put other entries in its place."""
    async with Nursery() as nursery:
        made = Following(nursery, cache_limits=COUNTED_BARE)
        made.objects.gate.set()
        await made.follow(P[0], slices(0))
        await made.follow(P[0], slices(0, [2, 3]), read=0)

        assert [number for number, _, _ in made.gets] == [0, 1, 2, 3]
        assert made.cache.claimed_bytes == 2 * SLICE
        assert made.cache._order.left_behind_bytes == 0


@pytest.mark.parametrize("consumers", [1, 8])
async def test_while_a_consumer_is_in_an_entry_larger_than_its_window_the_next_one_comes(consumers: int) -> None:
    large = 8 * SLICE
    waits = 0
    async with Nursery() as nursery:
        made = Following(
            nursery, cache_limits=COUNTED_BARE, cache_blocks=max(8, 4 * consumers), limits=replace(SMALL, ahead_get_bytes_max=large)
        )
        made.objects.gate.set()
        for turn in range(20):
            for is_through in (False, True):
                for number, partition in enumerate(P[:consumers]):
                    ids = [ObjectId(f"01JB000000000000000{number:03}{place:04}") for place in range(turn, turn + 8)]
                    source, *following = [
                        Entry(10 * (turn + ahead), 10 * (turn + ahead) + 9, object_id, ((0, large),), 0, 0)
                        for ahead, object_id in enumerate(ids)
                    ]
                    key, half = object_key(source.object_id), (0, large // 2) if not is_through else (large // 2, large)
                    has_waited = not made.cache.is_here(key, *half)
                    waits += has_waited
                    await made.cache.read(key, *half, object_size=large, is_history=True)
                    made.entries.follow(partition, source, following, is_through=is_through, has_waited=has_waited)
                if not is_through:  # what is asked for between two entries comes too late
                    await until_done(made.ahead)

    assert waits <= 3 * consumers


async def test_an_entry_that_is_the_last_known_one_is_not_left_before_it_is_read() -> None:
    async with Nursery() as nursery:
        made = Following(nursery)
        made.objects.gate.set()
        await made.follow(P[0], slices(0, [0]))
        made.entries.follow(P[0], entry(0, 0), [], is_through=False)
        in_part = made.cache.claimed_bytes, made.cache._order.left_behind_bytes
        made.entries.follow(P[0], entry(0, 0), [])

        assert in_part == (0, 0)
        assert made.cache._order.left_behind_bytes > 0


async def test_what_is_here_when_a_consumer_says_it_is_claimed_and_so_is_the_head_of_what_comes() -> None:
    async with Nursery() as nursery:
        made = Following(nursery, cache_limits=COUNTED_BARE)
        made.objects.gate.set()
        await made.cache.read(object_key(IDS[0]), 0, SLICE, is_history=True)
        await made.cache.read(object_key(IDS[1]), 0, 100, is_history=True)
        made.objects.gate.clear()
        await made.follow(P[0], slices(0))

        assert made.cache.claimed_bytes == SLICE + 100
        made.objects.gate.set()


async def test_what_a_new_consumer_has_begun_to_read_is_not_left() -> None:
    async with Nursery() as nursery:
        made = Following(nursery)
        made.objects.gate.set()
        await made.cache.read(object_key(IDS[0]), 0, SLICE, is_history=True)
        made.entries.follow(P[0], entry(0, 0), slices(0, range(1, 6)), is_through=False)

        assert made.cache._order.left_behind_bytes == 0


@pytest.mark.parametrize("seed", range(3))
async def test_consumers_of_partitions_that_lie_unevenly_in_objects_fetch_each_byte_about_once(seed: int) -> None:
    """One entry of each partition in turn: some come to the end of the log long before others. Beside them others read history anywhere."""
    chance = random.Random(seed)
    objects = [ObjectId(f"01JB0000000000000000000{number:03}") for number in range(200)]
    logs: list[list[Entry]] = [[] for _ in P]
    for number, object_id in enumerate(objects):
        for place, partition in enumerate(sorted(chance.sample(range(len(P)), 4))):
            base = 10 * number
            logs[partition].append(Entry(base, base + 9, object_id, ((place * SLICE, SLICE),), max_timestamp=0, running_max_timestamp=0))
    async with Nursery() as nursery:
        made = Following(nursery, cache_limits=COUNTED_BARE, cache_blocks=16, limits=replace(SMALL, ahead_bytes=16 * SLICE))
        made.objects.gate.set()
        for turn in range(max(map(len, logs))):
            for partition, entries in zip(P, logs, strict=True):
                if turn < len(entries):
                    source = entries[turn]
                    key, wanted = object_key(source.object_id), Range(*source.extent)
                    floor, ceiling = made.entries.together(key, wanted)
                    await made.cache.read(key, *wanted, floor=floor, object_size=ceiling, is_history=True)
                    made.entries.claim(key, Range(floor, ceiling))
                    made.entries.follow(partition, source, entries[turn + 1 : turn + 33])
                    await until_done(made.ahead)
            for _ in range(4):
                start = chance.randrange(1_000) * BLOCK
                await made.cache.read("wal/other", start, start + BLOCK, is_history=True)
        fetched_bytes = sum(end - start for key, start, end in made.objects.under_way if key != "wal/other")

    assert fetched_bytes <= 1.1 * len(objects) * BLOCK


async def test_a_read_that_finds_its_slice_missing_brings_those_of_others_beside_it() -> None:
    async with Nursery() as nursery:
        made = Following(nursery)
        key = object_key(IDS[3])
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


async def test_a_consumer_in_order_waits_for_no_object_but_its_first(broker: Rig) -> None:
    limits = replace(SMALL, ahead_bytes=16 * KIB, ahead_objects_max=AHEAD, first_objects_max=AHEAD)
    async with rig(
        limits=limits, shared=broker.shared, objects=broker.objects.inner, epoch=8, cache_bytes=96 * BLOCK, block_bytes=BLOCK
    ) as other:
        await other.parts.manifest_reads.refresh([other.parts.partitions.get(PARTITION)])
        first = (await other.manifest()).pending[0].base
        second = await fetch(other, await fetch(other, first, bytes_max=1), bytes_max=1)
        await until_done(ahead_of(other))
        replace_gets(other, never)
        end = second
        while end < second + AHEAD:
            end = await fetch(other, end, bytes_max=1)

        assert outcomes(other.telemetry)[0] == AHEAD


async def test_what_a_read_brought_that_nobody_waited_for_in_the_end_is_not_left_unread(
    broker: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(shared=broker.shared, objects=broker.objects.inner, epoch=8, cache_bytes=96 * BLOCK, block_bytes=BLOCK) as other:
        log = other.parts.partitions.get(PARTITION)
        await other.parts.manifest_reads.refresh([log])
        pending = (await other.manifest()).pending
        end = await fetch(other, await fetch(other, pending[0].base, bytes_max=1), bytes_max=1)
        await until_done(ahead_of(other))
        reader = other.parts.reader
        source = next(one for one in pending if one.base == end)
        assert isinstance(source, Entry)
        key = object_key(source.object_id)
        reader._blocks.drop(key)
        gate = asyncio.Event()
        get_parts = other.objects.get_parts

        async def gated(key: str, start: int, end: int, *, part_bytes: int) -> Sequence[Buffer]:
            await gate.wait()
            return await get_parts(key, start, end, part_bytes=part_bytes)

        monkeypatch.setattr(other.objects, "get_parts", gated)
        left: list[str] = []
        monkeypatch.setattr(reader._blocks, "leave", lambda key, *_, **__: left.append(key))
        stored_read = reader.stored_reads.join(log, end, bytes_max=1, runs_max=1, at_least_one=True, wake=never_woken)
        for _ in range(10):
            await asyncio.sleep(0)
        reader.stored_reads.leave(stored_read, never_woken)
        gate.set()
        assert stored_read.task is not None
        await stored_read.task
        left_by_it = list(left)
        is_here = reader._blocks.is_here(key, *source.extent)
        await fetch(other, end, bytes_max=1)

        assert (left_by_it, is_here) == ([], True)
        assert left == [key]


def never_woken() -> None:
    raise AssertionError("nobody waits for it")


async def test_consumers_that_have_stopped_are_forgotten_by_any_read(broker: Rig) -> None:
    clock = SteppingClock()
    stores = functools.partial(rig, shared=broker.shared, objects=broker.objects.inner)
    async with stores(epoch=8, cache_bytes=96 * BLOCK, block_bytes=BLOCK, clock=clock) as other:
        await other.parts.manifest_reads.refresh([other.parts.partitions.get(PARTITION)])
        first = (await other.manifest()).pending[0].base
        await fetch(other, await fetch(other, first, bytes_max=1), bytes_max=1)
        await until_done(ahead_of(other))
        reader = other.parts.reader
        before = len(reader._entries_ahead.said)
        clock.advance(DEFAULT_LIMITS.said_kept_s + 1)
        await reader.stored(other.parts.partitions.get(PARTITION), first, bytes_max=1)

        assert (before, len(reader._entries_ahead.said), reader._blocks.claimed_bytes) == (1, 0, 0)


async def test_what_comes_with_a_read_that_had_to_wait_is_claimed(broker: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig(shared=broker.shared, objects=broker.objects.inner, epoch=8, cache_bytes=96 * BLOCK, block_bytes=BLOCK) as other:
        await other.parts.manifest_reads.refresh([other.parts.partitions.get(PARTITION)])
        pending = (await other.manifest()).pending
        end = await fetch(other, await fetch(other, pending[0].base, bytes_max=1), bytes_max=1)
        await until_done(ahead_of(other))
        reader = other.parts.reader
        key = object_key(next(one for one in pending if one.base == end).object_id)
        reader._blocks.drop(key)
        claimed: list[tuple[str, Range]] = []
        monkeypatch.setattr(reader._entries_ahead, "claim", lambda *brought: claimed.append(brought))
        await fetch(other, end, bytes_max=1)

    assert claimed[0][0] == key
    assert claimed[0][1].size_bytes > SLICE


async def test_a_consumer_that_has_waited_has_twice_as_much_in_front_of_it_from_then_on() -> None:
    async with Nursery() as nursery:
        made = Following(nursery, limits=replace(SMALL, ahead_bytes_max=6 * SLICE))
        made.objects.gate.set()
        await made.follow(P[0], slices(0, range(16)), has_waited=True)
        for number in range(1, 4):
            await made.follow(P[0], slices(0, range(number, 16)), has_waited=number != 2)

        assert [number for number, _, _ in made.gets] == [0, 1, *(2, 3, 4), 5, *(6, 7, 8)], "the first read waits for nothing that was said"


async def test_no_more_entries_are_fetched_than_half_of_those_that_are_said() -> None:
    async with Nursery() as nursery:
        made = Following(
            nursery, limits=replace(SMALL, ahead_bytes=100 * SLICE, said_entries_max=6, ahead_objects_max=3, first_objects_max=3)
        )
        await made.follow(P[0], slices(0, range(12)))
        await made.follow(P[1], slices(1, range(12)))
        await made.follow(P[0], slices(0, range(3, 12)), read=-10)

        assert len(made.entries.wanted) == 9
        assert made.gets[:6] == [(number, place * SLICE, (place + 1) * SLICE) for place in (0, 1) for number in range(3)]
        assert made.gets[6:] == [(3, 0, 2 * SLICE), (4, 0, 2 * SLICE), (5, 0, 2 * SLICE)]


async def test_what_is_said_first_is_fetched_when_others_have_said_it_too() -> None:
    """Else each of many consumers that begin together would fetch its slices of the first objects alone."""
    async with Nursery() as nursery:
        made = Following(nursery, limits=replace(SMALL, first_objects_max=1))
        for place in range(3):
            await made.follow(P[place], slices(place))
        at_first = list(made.gets)
        for place in range(3):
            await made.follow(P[place], slices(place, range(1, 6)))

        assert at_first == [(0, place * SLICE, (place + 1) * SLICE) for place in range(3)]
        assert made.gets[3:] == [(1, 0, 3 * SLICE), (2, 0, 3 * SLICE)]


async def test_no_more_gets_are_begun_in_one_go_than_may_be_and_the_others_with_the_next() -> None:
    async with Nursery() as nursery:
        made = Following(nursery, limits=replace(SMALL, ahead_bytes=100 * SLICE, ahead_gets_per_follow_max=3))
        await made.follow(P[0], slices(0, range(8)))
        at_first = [number for number, _, _ in made.gets]
        await made.follow(P[0], slices(0, range(1, 8)))

        assert at_first == [0, 1, 2]
        assert [number for number, _, _ in made.gets[3:]] == [3, 4, 5]


async def test_where_there_is_no_room_nobody_asks_what_others_want() -> None:
    async with Nursery() as nursery:
        made = Following(nursery, limits=replace(SMALL, reads_ahead_max=1))
        asked: list[Range] = []
        together = made.entries.together

        def note(key: str, wanted: Range) -> Range:
            asked.append(wanted)
            return together(key, wanted)

        made.entries.together = note  # type: ignore[method-assign]
        for place in range(4):
            await made.follow(P[place], slices(place))

        assert asked == [Range(0, SLICE)]
        assert outcomes(made.telemetry)[1] == 4


async def test_what_others_want_is_asked_no_further_than_a_get_goes() -> None:
    async with Nursery() as nursery:
        made = Following(nursery)
        for place in range(8):
            await made.follow(P[place], slices(place, (0,)))
        made.objects.gate.set()
        await until_done(made.ahead)
        made.cache.drop(object_key(IDS[0]))
        looked: list[int] = []
        missing_from = made.cache.missing_from

        def count(key: str, position: int, end: int) -> int:
            looked.append(position // SLICE)
            return missing_from(key, position, end)

        made.cache.missing_from = count  # type: ignore[method-assign]

        assert made.entries.together(object_key(IDS[0]), Range(0, SLICE)) == (0, 4 * SLICE)
        assert looked == [1, 2, 3]


async def test_consumers_leave_nothing_at_inline_entries_which_say_nothing() -> None:
    async with Nursery() as nursery:
        made = Following(nursery, cache_limits=COUNTED_BARE)
        made.objects.gate.set()
        entries = [Entry(10 * n, 10 * n + 9, IDS[n], b"batches" if n % 2 else ((0, SLICE),), 0, 0) for n in range(12)]
        for number in range(0, 10, 2):
            made.entries.follow(P[0], entries[number], entries[number + 1 :])
            await until_done(made.ahead)

        assert [place for _, place in made.entries.said] == [100]
        assert made.cache.claimed_bytes == SLICE


async def test_what_was_given_up_is_asked_for_again() -> None:
    async with Nursery() as nursery:
        made = Following(nursery)
        fetch_ahead = made.cache.fetch_ahead

        async def refuse(_key: str, _start: int, _end: int) -> bool:
            return False

        made.cache.fetch_ahead = refuse  # type: ignore[method-assign]
        await made.follow(P[0], slices(0))
        await until_done(made.ahead)
        made.cache.fetch_ahead = fetch_ahead  # type: ignore[method-assign]
        await made.follow(P[0], slices(0))

        assert made.gets == [(0, 0, SLICE), (1, 0, SLICE)]


async def test_what_is_known_to_come_is_looked_for_once() -> None:
    async with Nursery() as nursery:
        made = Following(nursery)
        looked: list[str] = []
        missing_from = made.cache.missing_from

        def count(key: str, position: int, end: int) -> int:
            looked.append(key)
            return missing_from(key, position, end)

        made.cache.missing_from = count  # type: ignore[method-assign]
        await made.follow(P[0], slices(0))
        at_first = len(looked)
        await made.follow(P[0], slices(0))

        assert len(looked) == at_first > 0


async def test_pieces_that_all_have_read_who_said_that_they_will_are_left_behind() -> None:
    async with Nursery() as nursery:
        made = Following(nursery)
        made.objects.gate.set()
        key, order = object_key(IDS[0]), made.cache._order
        await made.cache.read(key, 0, 2 * SLICE, is_history=True)
        for place in (0, 1):
            await made.follow(P[place], slices(place))
        of_the_object = entry(0, 0), entry(0, SLICE)
        made.entries.follow(P[0], of_the_object[0], slices(0, range(1, 6)))
        by_one = order.left_behind_bytes
        made.entries.follow(P[1], of_the_object[1], slices(1, range(1, 6)), is_through=False)
        by_the_other_in_part = order.left_behind_bytes
        made.entries.follow(P[1], of_the_object[1], slices(1, range(1, 6)))

        assert (by_one, by_the_other_in_part) == (0, 0)
        assert order.left_behind_bytes == 2 * SLICE + DEFAULT_CACHE_LIMITS.piece_overhead_bytes


async def test_entries_of_chunks_that_are_not_read_yet_are_found_out_ahead() -> None:
    """A chunk of the index has sixteen entries: a consumer that comes to the end of one knows the next by then."""
    limits = replace(SMALL, ahead_bytes=100 * KIB)
    async with rig(limits=limits, cache_bytes=96 * BLOCK, block_bytes=BLOCK) as writer:
        for number in range(70):
            await writer.send(record_batch(bytes([number]) * SLICE))
        async with rig(
            limits=limits, shared=writer.shared, objects=writer.objects.inner, epoch=8, cache_bytes=96 * BLOCK, block_bytes=BLOCK
        ) as reader:
            log = reader.parts.partitions.get(PARTITION)
            await reader.parts.manifest_reads.refresh([log])
            known: list[int] = []
            end = await fetch(reader, 0, bytes_max=1)
            while end < 20:
                end = await fetch(reader, end, bytes_max=1)
                await until_done(ahead_of(reader))
                known.append(len(reader.parts.reader._index.following_here(log, end, entries_max=DEFAULT_LIMITS.said_objects_max)))
            (follower,) = reader.parts.reader._entries_ahead.said.values()

    assert min(known[3:]) == DEFAULT_LIMITS.said_objects_max > 16
    assert len(follower.entries) == DEFAULT_LIMITS.said_objects_max


async def test_an_index_that_cannot_be_read_ahead_is_counted_and_keeps_nobody_from_reading() -> None:
    async with rig(cache_bytes=96 * BLOCK, block_bytes=BLOCK) as writer:
        for number in range(40):
            await writer.send(record_batch(bytes([number]) * SLICE))
        async with rig(shared=writer.shared, objects=writer.objects.inner, epoch=8, cache_bytes=96 * BLOCK, block_bytes=BLOCK) as reader:
            await reader.parts.manifest_reads.refresh([reader.parts.partitions.get(PARTITION)])
            end = await fetch(reader, 0, bytes_max=1)

            async def fail(_log: object, _offset: int) -> None:
                raise Unavailable("not now")

            reader.parts.reader._index.look_ahead = fail  # type: ignore[method-assign,assignment]
            while end < 40:
                end = await fetch(reader, end, bytes_max=1)

    assert outcomes(reader.telemetry)[2] > 0
    assert reader.parts.reader._looking_ahead == set()


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
