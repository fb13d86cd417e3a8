import asyncio
import random
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from runtime.clock import SystemClock
from runtime.telemetry import Telemetry
from storage.cache.blocks import BYTES, DEFAULT_LIMITS, FETCH_BLOCKS_MAX, FETCHES_AT_ONCE, FETCHING_BYTES, BlockCache, CacheLimits, Piece
from storage.errors import NotFound, Unavailable
from tests.kit.by_ranges import PartsByRange

BLOCK = 16
ROOMY = 1 << 20
PIECE_OVERHEAD_BYTES = DEFAULT_LIMITS.piece_overhead_bytes
NO_MORE = CacheLimits(fetching_bytes_min=0)
"""No more is fetched at a time than the cache holds."""


class Objects(PartsByRange):
    """Immutable objects whose reads are written down, and take `turns` of the loop, or by chance up to so many."""

    def __init__(self, bodies: dict[str, bytes], *, chance: random.Random | None = None, turns: int = 0) -> None:
        self._bodies = bodies
        self._chance = chance
        self._turns = turns
        self.reads: list[tuple[str, int, int]] = []
        self.failures = 0
        self.at_once = 0
        self.at_once_max = 0

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        self.reads.append((key, start, end))
        self.at_once += 1
        self.at_once_max = max(self.at_once, self.at_once_max)
        try:
            for _ in range(self._chance.randint(0, self._turns) if self._chance else self._turns):
                await asyncio.sleep(0)
        finally:
            self.at_once -= 1
        if self.failures:
            self.failures -= 1
            raise Unavailable("injected")
        if key not in self._bodies:
            raise NotFound(key)
        if end > len(self._bodies[key]):
            raise Unavailable(f"ends before {end}")
        return self._bodies[key][start:end]


class Cached:
    def __init__(
        self,
        objects: Objects,
        *,
        bytes_max: int = ROOMY,
        block_bytes: int = BLOCK,
        part_bytes: int = ROOMY,
        limits: CacheLimits = DEFAULT_LIMITS,
    ) -> None:
        self._telemetry = Telemetry()
        self.cache = BlockCache(
            objects,
            bytes_max=bytes_max,
            block_bytes=block_bytes,
            part_bytes=part_bytes,
            clock=SystemClock(),
            telemetry=self._telemetry,
            limits=limits,
        )

    async def read(self, key: str, start: int, end: int, *, object_size: int | None = None, is_history: bool = False) -> bytes:
        return b"".join(await self.cache.read(key, start, end, object_size=object_size, is_history=is_history))

    def bytes_held(self) -> float:
        return self._telemetry.registry.get_sample_value("forebay_cache_bytes") or 0.0

    def requests(self) -> tuple[float, ...]:
        """Hits, misses, coalesced."""
        sample = self._telemetry.registry.get_sample_value
        return tuple(sample("forebay_cache_requests_total", {"outcome": outcome}) or 0.0 for outcome in ("hit", "miss", "coalesced"))


def body(size: int, *, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


WHOLE = body(1_000)


@pytest.fixture
def objects() -> Objects:
    return Objects({"a": WHOLE, "b": body(500, seed=1)}, turns=3)


# What is fetched


async def test_with_the_size_known_whole_blocks_are_fetched(objects: Objects) -> None:
    cached = Cached(objects)

    assert await cached.read("a", 20, 30, object_size=1_000) == WHOLE[20:30]
    assert await cached.read("a", 16, 32, object_size=1_000) == WHOLE[16:32]
    assert objects.reads == [("a", 16, 32)]
    assert cached.requests() == (1, 1, 0)


async def test_a_block_is_fetched_from_the_floor_on(objects: Objects) -> None:
    cached = Cached(objects)

    assert b"".join(await cached.cache.read("a", 24, 28, floor=20, object_size=30)) == WHOLE[24:28]
    assert b"".join(await cached.cache.read("a", 17, 28, floor=10, object_size=30)) == WHOLE[17:28]
    assert objects.reads == [("a", 20, 30), ("a", 16, 20)]


async def test_the_last_block_ends_with_the_object(objects: Objects) -> None:
    cached = Cached(objects)

    assert await cached.read("a", 995, 999, object_size=1_000) == WHOLE[995:999]
    assert objects.reads == [("a", 992, 1_000)]


async def test_without_a_size_no_byte_behind_the_read_is_asked_for_and_later_reads_fetch_what_follows(objects: Objects) -> None:
    cached = Cached(objects)

    assert await cached.read("a", 990, 998) == WHOLE[990:998]
    assert await cached.read("a", 992, 1_000) == WHOLE[992:1_000]
    assert await cached.read("a", 976, 1_000) == WHOLE[976:1_000]
    assert objects.reads == [("a", 976, 998), ("a", 998, 1_000)]


async def test_neighbouring_missing_blocks_are_one_read(objects: Objects) -> None:
    cached = Cached(objects)

    assert await cached.read("a", 17, 60) == WHOLE[17:60]
    assert objects.reads == [("a", 16, 60)]


async def test_what_is_cached_in_the_middle_is_not_fetched_again(objects: Objects) -> None:
    cached = Cached(objects)
    await cached.read("a", 32, 48, object_size=1_000)
    objects.reads.clear()

    assert await cached.read("a", 0, 64, object_size=1_000) == WHOLE[:64]
    assert objects.reads == [("a", 0, 32), ("a", 48, 64)]


async def test_a_long_read_is_fetched_in_pieces_of_a_bounded_size(objects: Objects) -> None:
    cached = Cached(objects)

    assert await cached.read("a", 5, 1_000) == WHOLE[5:]
    assert all(end - start <= FETCH_BLOCKS_MAX * BLOCK for _, start, end in objects.reads)
    assert len(objects.reads) == -(-1_000 // (FETCH_BLOCKS_MAX * BLOCK))
    assert all(before[2] == after[1] for before, after in pairwise(objects.reads))


async def test_an_empty_range_reads_nothing(objects: Objects) -> None:
    assert await Cached(objects).cache.read("absent", 7, 7) == []
    assert objects.reads == []


async def test_a_hit_is_a_view_of_what_was_fetched_and_read_only(objects: Objects) -> None:
    cached = Cached(objects)
    first = await cached.cache.read("a", 0, 64)
    again = await cached.cache.read("a", 16, 32)

    assert [view.obj is first[0].obj for view in again] == [True]
    assert first[0].readonly


async def test_objects_are_kept_apart(objects: Objects) -> None:
    cached = Cached(objects)

    assert await cached.read("a", 0, 40) == WHOLE[:40]
    assert await cached.read("b", 0, 40) == body(500, seed=1)[:40]


@pytest.mark.parametrize(("start", "end", "size"), [(-1, 5, None), (5, 4, None), (0, 11, 10)])
async def test_a_range_that_is_none_is_a_programmer_error(objects: Objects, start: int, end: int, size: int | None) -> None:
    with pytest.raises(AssertionError, match="range"):
        await Cached(objects).read("a", start, end, object_size=size)


# Failures


async def test_a_failure_is_not_cached(objects: Objects) -> None:
    cached = Cached(objects)
    objects.failures = 1
    with pytest.raises(Unavailable, match="injected"):
        await cached.read("a", 0, 10)

    assert await cached.read("a", 0, 10) == WHOLE[:10]


async def test_a_missing_object_is_not_found_each_time_it_is_asked_for(objects: Objects) -> None:
    cached = Cached(objects)
    for _ in range(2):
        with pytest.raises(NotFound):
            await cached.read("absent", 0, 10)

    assert len(objects.reads) == 2


async def test_a_failed_fetch_reaches_all_who_wait_for_it(objects: Objects) -> None:
    cached = Cached(objects)
    objects.failures = 1

    async def fails() -> bool:
        try:
            await cached.read("a", 0, 10)
        except Unavailable:
            return True
        return False

    async with asyncio.TaskGroup() as group:
        readers = [group.create_task(fails()) for _ in range(5)]

    assert all(reader.result() for reader in readers)
    assert len(objects.reads) == 1


# Concurrency


async def test_readers_of_one_block_share_one_fetch(objects: Objects) -> None:
    cached = Cached(objects)
    async with asyncio.TaskGroup() as group:
        readers = [group.create_task(cached.read("a", start, start + 4, object_size=1_000)) for start in range(12)]

    assert [reader.result() for reader in readers] == [WHOLE[start : start + 4] for start in range(12)]
    assert objects.reads == [("a", 0, 16)]
    assert cached.requests() == (0, 1, 11)


async def test_a_reader_waits_for_what_is_on_its_way_and_fetches_the_rest(objects: Objects) -> None:
    cached = Cached(objects)
    async with asyncio.TaskGroup() as group:
        first = group.create_task(cached.read("a", 0, 32, object_size=1_000))
        second = group.create_task(cached.read("a", 16, 64, object_size=1_000))

    assert (first.result(), second.result()) == (WHOLE[:32], WHOLE[16:64])
    assert sorted(objects.reads) == [("a", 0, 32), ("a", 32, 64)]


async def test_what_is_on_its_way_is_not_fetched_twice(objects: Objects) -> None:
    cached = Cached(objects)
    async with asyncio.TaskGroup() as group:
        before = group.create_task(cached.read("a", 0, 20))
        behind = group.create_task(cached.read("a", 56, 60))
        between = group.create_task(cached.read("a", 24, 64))

    assert (before.result(), behind.result(), between.result()) == (WHOLE[:20], WHOLE[56:60], WHOLE[24:64])
    assert sorted(objects.reads) == [("a", 0, 20), ("a", 20, 48), ("a", 48, 60), ("a", 60, 64)]


async def test_a_fetch_that_another_took_over_does_not_count_bytes_twice(objects: Objects) -> None:
    cached = Cached(objects)
    async with asyncio.TaskGroup() as group:
        first = group.create_task(cached.read("a", 0, 16))
        takes_over = group.create_task(cached.read("a", 0, 16))
        await asyncio.sleep(0)
        first.cancel()
        # It comes when nobody fetches, before the one who takes over has noticed.
        newcomer = group.create_task(cached.read("a", 0, 8))

    assert (takes_over.result(), newcomer.result()) == (WHOLE[:16], WHOLE[:8])
    assert objects.reads == [("a", 0, 16), ("a", 0, 16)]
    cached.cache.drop("a")
    assert cached.bytes_held() == 0


async def test_what_is_missing_in_several_places_is_fetched_at_the_same_time_within_bounds(objects: Objects) -> None:
    cached = Cached(objects)
    for block in range(1, 20, 2):
        await cached.read("a", block * BLOCK, (block + 1) * BLOCK)
    objects.reads.clear()

    assert await cached.read("a", 0, 20 * BLOCK) == WHOLE[: 20 * BLOCK]
    assert objects.reads == [("a", block * BLOCK, (block + 1) * BLOCK) for block in range(0, 20, 2)]
    assert objects.at_once_max == FETCHES_AT_ONCE


async def test_a_piece_that_waits_for_its_turn_is_not_fetched_twice(objects: Objects) -> None:
    cached = Cached(objects)
    async with asyncio.TaskGroup() as group:
        long = group.create_task(cached.read("a", 0, 960, object_size=1_000))
        await asyncio.sleep(0)
        behind = group.create_task(cached.read("a", 950, 990, object_size=1_000))

    assert (long.result(), behind.result()) == (WHOLE[:960], WHOLE[950:990])
    assert len(objects.reads) == len(set(objects.reads)) == -(-1_000 // (FETCH_BLOCKS_MAX * BLOCK))
    assert sum(end - start for _, start, end in objects.reads) == 992


async def test_a_failure_in_one_of_several_places_is_the_stores_own(objects: Objects) -> None:
    cached = Cached(objects)
    objects.failures = 1
    with pytest.raises(Unavailable, match="injected"):
        await cached.read("a", 0, 500)

    assert await cached.read("a", 0, 500) == WHOLE[:500]
    assert not cached.cache._flying


async def test_cancelling_a_reader_leaves_the_others_their_bytes(objects: Objects) -> None:
    cached = Cached(objects)
    async with asyncio.TaskGroup() as group:
        readers = [group.create_task(cached.read("a", 0, 16)) for _ in range(4)]
        await asyncio.sleep(0)
        readers[0].cancel()
        readers[2].cancel()

    assert [reader.cancelled() for reader in readers] == [True, False, True, False]
    assert readers[1].result() == readers[3].result() == WHOLE[:16]


# Memory


async def test_what_was_used_longest_ago_goes_first(objects: Objects) -> None:
    cached = Cached(objects, bytes_max=3 * (BLOCK + PIECE_OVERHEAD_BYTES))
    for start in (0, 16, 32):
        await cached.read("a", start, start + 16)
    await cached.read("a", 0, 16)
    await cached.read("a", 48, 64)
    objects.reads.clear()
    for start in (0, 32, 48):
        await cached.read("a", start, start + 16)

    assert objects.reads == []
    await cached.read("a", 16, 32)
    assert objects.reads == [("a", 16, 32)]


@pytest.mark.parametrize("bytes_max", [0, 100, BLOCK + PIECE_OVERHEAD_BYTES - 1])
async def test_a_cache_smaller_than_a_piece_reads_through(objects: Objects, bytes_max: int) -> None:
    cached = Cached(objects, bytes_max=bytes_max)

    assert await cached.read("a", 0, 1_000) == WHOLE
    assert cached.bytes_held() == 0


async def go_through(cached: Cached, key: str, blocks: int, *, is_history: bool = True) -> None:
    for number in range(blocks):
        await cached.read(key, number * BLOCK, (number + 1) * BLOCK, is_history=is_history)


@pytest.mark.parametrize("is_history", [True, False])
async def test_one_who_goes_through_history_leaves_the_tail_its_share(is_history: bool) -> None:
    """Read as if it were the tail, it evicts all that the others have read there."""
    objects = Objects({"history": body(50 * BLOCK), "tail": body(3 * BLOCK)})
    cached = Cached(objects, bytes_max=8 * (BLOCK + PIECE_OVERHEAD_BYTES), limits=NO_MORE)
    await go_through(cached, "tail", 3, is_history=False)
    await go_through(cached, "history", 50, is_history=is_history)
    objects.reads.clear()
    await go_through(cached, "tail", 3, is_history=False)

    assert len(objects.reads) == (0 if is_history else 3)


async def test_history_has_what_the_tail_does_not_need(objects: Objects) -> None:
    cached = Cached(objects, bytes_max=8 * (BLOCK + PIECE_OVERHEAD_BYTES))
    await go_through(cached, "a", 8)
    objects.reads.clear()
    await go_through(cached, "a", 8)

    assert objects.reads == []


async def test_a_piece_of_history_that_the_tail_reads_stays_with_the_tail(objects: Objects) -> None:
    cached = Cached(objects, bytes_max=4 * (BLOCK + PIECE_OVERHEAD_BYTES))
    await go_through(cached, "b", 1)
    await go_through(cached, "b", 1, is_history=False)
    await go_through(cached, "a", 20)
    objects.reads.clear()
    await go_through(cached, "b", 1, is_history=False)

    assert objects.reads == []


@pytest.mark.parametrize("parts", [1, 2])
async def test_a_piece_that_the_tail_waits_for_while_history_fetches_it_stays_with_the_tail(objects: Objects, parts: int) -> None:
    cached = Cached(objects, bytes_max=4 * (BLOCK + parts * PIECE_OVERHEAD_BYTES), part_bytes=BLOCK // parts)
    async with asyncio.TaskGroup() as group:
        for is_history in (True, False):
            group.create_task(go_through(cached, "b", 1, is_history=is_history))
    await go_through(cached, "a", 20)
    objects.reads.clear()
    await go_through(cached, "b", 1, is_history=False)

    assert objects.reads == []


async def test_history_that_waits_for_its_share_is_in_nobody_s_way() -> None:
    objects = Blocked()
    cached = BlockCache(objects, bytes_max=4 * BLOCK, block_bytes=BLOCK, clock=SystemClock(), telemetry=Telemetry(), limits=NO_MORE)
    async with asyncio.timeout(25), asyncio.TaskGroup() as group:
        for number in range(4):
            group.create_task(cached.read("history", number * BLOCK, (number + 1) * BLOCK, is_history=True))
        await turns()
        of_history = sorted(objects.under_way)
        for number in (10, 11):
            group.create_task(cached.read("tail", number * BLOCK, (number + 1) * BLOCK))
        await turns()
        with_the_tail = sorted(objects.under_way)
        await objects.finish()

    assert of_history == [(0, 16), (16, 32)]
    assert with_the_tail == [(0, 16), (16, 32), (160, 176), (176, 192)]


async def test_what_a_read_holds_is_neither_evicted_nor_counted_twice() -> None:
    piece = BLOCK + PIECE_OVERHEAD_BYTES
    objects = Objects({"a": WHOLE})
    cached = Cached(objects, bytes_max=3 * piece, limits=NO_MORE)
    await go_through(cached, "a", 3)
    blocked = Blocked()
    cached.cache.store = blocked
    async with asyncio.timeout(25), asyncio.TaskGroup() as group:
        group.create_task(cached.read("a", 0, 4 * BLOCK, is_history=True))
        await turns()
        meanwhile = cached.bytes_held()
        await blocked.finish()

    assert meanwhile == 3 * piece, "all that is here is held, and nothing can make room"
    assert cached.bytes_held() == 3 * piece, "so what came was given, and not kept"


# What is fetched ahead


async def test_a_read_finds_what_was_fetched_ahead_and_it_counts_as_no_request(objects: Objects) -> None:
    cached = Cached(objects)

    assert await cached.cache.fetch_ahead("a", 32, 64)
    assert cached.requests() == (0, 0, 0)
    assert await cached.read("a", 40, 60, is_history=True) == WHOLE[40:60]
    assert objects.reads == [("a", 32, 64)]
    assert cached.requests() == (1, 0, 0)


async def test_what_is_here_or_on_its_way_is_not_fetched_ahead(objects: Objects) -> None:
    cached = Cached(objects)
    await cached.read("a", 0, 16)
    async with asyncio.TaskGroup() as group:
        group.create_task(cached.read("a", 16, 40))
        await asyncio.sleep(0)
        missing = [cached.cache.missing_from("a", position, 100) for position in (0, 8, 16, 39, 40, 50)]
        is_fetched = [await cached.cache.fetch_ahead("a", start, 40) for start in (0, 16, 39)]

    assert missing == [40, 40, 40, 40, 40, 50]
    assert cached.cache.missing_from("a", 0, 30) == 30
    assert is_fetched == [False, False, False]
    assert objects.reads == [("a", 0, 16), ("a", 16, 40)]


async def test_a_fetch_ahead_whose_head_is_on_its_way_brings_the_rest(objects: Objects) -> None:
    cached = Cached(objects)
    async with asyncio.TaskGroup() as group:
        group.create_task(cached.read("a", 16, 40))
        await asyncio.sleep(0)
        assert await cached.cache.fetch_ahead("a", 16, 64)

    assert objects.reads == [("a", 16, 40), ("a", 40, 64)]


async def test_a_read_that_comes_meanwhile_joins_what_is_fetched_ahead(objects: Objects) -> None:
    cached = Cached(objects)
    async with asyncio.TaskGroup() as group:
        ahead = group.create_task(cached.cache.fetch_ahead("a", 16, 48))
        await asyncio.sleep(0)
        read = group.create_task(cached.read("a", 20, 30, object_size=1_000))

    assert (ahead.result(), read.result()) == (True, WHOLE[20:30])
    assert objects.reads == [("a", 16, 48)]


async def test_readers_that_wait_for_one_fetch_hold_what_they_use_of_it_and_not_each_the_whole() -> None:
    """Each of them with all of it would be more than there is room for, and would evict what nobody needs to give up."""
    objects = Blocked()
    cached = BlockCache(objects, bytes_max=ROOMY, block_bytes=BLOCK, clock=SystemClock(), telemetry=Telemetry())
    async with asyncio.timeout(25), asyncio.TaskGroup() as group:
        group.create_task(cached.fetch_ahead("a", 0, 4 * BLOCK))
        await turns()
        for start in range(0, 40, 10):
            group.create_task(cached.read("a", start, start + 10, is_history=True))
        await turns()
        held = cached._room.bytes, cached._history_room.bytes, cached._bytes_coming
        await objects.finish()

    assert held == (4 * BLOCK + 40,) * 3
    assert (cached._room.bytes, cached._history_room.bytes, cached._bytes_coming) == (0, 0, 0)


async def test_whoever_joins_a_fetch_that_waits_for_room_holds_all_of_it_since_it_may_be_the_one_that_fetches() -> None:
    objects = Blocked()
    cached = BlockCache(objects, bytes_max=8 * BLOCK, block_bytes=4 * BLOCK, clock=SystemClock(), telemetry=Telemetry(), limits=NO_MORE)
    async with asyncio.timeout(25), asyncio.TaskGroup() as group:
        group.create_task(cached.read("a", 0, 4 * BLOCK, is_history=True))
        await turns()
        group.create_task(cached.read("b", 4 * BLOCK, 8 * BLOCK, is_history=True))  # history has half: it waits
        await turns()
        group.create_task(cached.read("b", 4 * BLOCK, 4 * BLOCK + 10))
        await turns()
        held = cached._room.bytes
        await objects.finish()
        await objects.finish()

    assert held == 8 * BLOCK
    assert objects.bytes_max <= 8 * BLOCK


@pytest.mark.parametrize(
    ("start", "end", "is_here"),
    [(16, 48, True), (20, 33, True), (15, 20, False), (40, 49, False), (30, 30, True), (0, 8, True), (0, 32, False)],
)
async def test_it_is_known_whether_a_read_would_wait(objects: Objects, start: int, end: int, is_here: bool) -> None:
    cached = Cached(objects, part_bytes=8)
    await cached.read("a", 0, 8)
    await cached.read("a", 16, 48, object_size=48)

    assert cached.cache.is_here("a", start, end) is is_here
    assert not cached.cache.is_here("b", 0, 1)


async def test_a_read_takes_over_from_a_read_ahead_that_was_cancelled(objects: Objects) -> None:
    cached = Cached(objects)
    async with asyncio.TaskGroup() as group:
        ahead = group.create_task(cached.cache.fetch_ahead("a", 16, 48))
        await asyncio.sleep(0)
        read = group.create_task(cached.read("a", 20, 30, object_size=1_000))
        await asyncio.sleep(0)
        ahead.cancel()

    assert read.result() == WHOLE[20:30]
    assert not cached.cache._flying
    assert cached.cache._room.bytes == cached.cache._history_room.bytes == cached.cache._bytes_coming == 0


async def test_nothing_is_fetched_ahead_where_a_read_would_have_to_wait() -> None:
    objects = Blocked()
    cached = BlockCache(objects, bytes_max=4 * BLOCK, block_bytes=BLOCK, clock=SystemClock(), telemetry=Telemetry(), limits=NO_MORE)
    async with asyncio.timeout(25), asyncio.TaskGroup() as group:
        group.create_task(cached.read("a", 0, 2 * BLOCK, is_history=True))
        await turns()
        of_history = await cached.fetch_ahead("a", 2 * BLOCK, 3 * BLOCK)
        await objects.finish()
        group.create_task(cached.read("a", 4 * BLOCK, 8 * BLOCK))
        await turns()
        of_all = await cached.fetch_ahead("a", 2 * BLOCK, 3 * BLOCK)
        await objects.finish()
        limits = CacheLimits(fetching_bytes_min=0, fetches_max=1)
        one_by_one = BlockCache(objects, bytes_max=4 * BLOCK, block_bytes=BLOCK, clock=SystemClock(), telemetry=Telemetry(), limits=limits)
        group.create_task(one_by_one.read("b", 0, BLOCK))
        await turns()
        of_calls = await one_by_one.fetch_ahead("a", 2 * BLOCK, 3 * BLOCK)
        await objects.finish()

    assert (of_history, of_all, of_calls) == (False, False, False)


async def test_what_a_consumer_has_left_behind_goes_before_what_is_ahead_of_it(objects: Objects) -> None:
    cached = Cached(objects, bytes_max=3 * (BLOCK + PIECE_OVERHEAD_BYTES))
    await cached.cache.fetch_ahead("a", 2 * BLOCK, 3 * BLOCK)
    await go_through(cached, "a", 2)
    cached.cache.leave_behind("a", 0, 2 * BLOCK - 1)
    cached.cache.leave_behind("absent", 0, 5)
    await cached.read("a", 3 * BLOCK, 4 * BLOCK, is_history=True)
    objects.reads.clear()
    await cached.read("a", BLOCK, 4 * BLOCK, is_history=True)

    assert objects.reads == [], "block 0 has made room"
    assert cached.cache.missing_from("a", 0, 100) == 0


async def test_what_was_fetched_at_once_is_left_and_evicted_part_by_part(objects: Objects) -> None:
    part = BLOCK // 4
    cached = Cached(objects, bytes_max=5 * (part + PIECE_OVERHEAD_BYTES), part_bytes=part)
    await cached.read("a", 0, BLOCK, object_size=1_000, is_history=True)
    cached.cache.leave_behind("a", 0, 3 * part - 1)
    spare_bytes = cached.cache.spare_bytes
    await cached.read("b", 0, 3 * part, is_history=True)

    assert objects.reads == [("a", 0, BLOCK), ("b", 0, 3 * part)]
    assert spare_bytes == 3 * (part + PIECE_OVERHEAD_BYTES), "one was free, two were left"
    assert cached.cache.read_here("a", 0, part) is cached.cache.read_here("a", part, 2 * part) is None
    assert cached.cache.read_here("a", 2 * part, BLOCK) is not None
    assert b"".join(cached.cache.read_here("b", 1, 3 * part) or []) == (await cached.read("b", 1, 3 * part))


async def test_only_what_ends_in_what_a_consumer_went_through_is_left_behind(objects: Objects) -> None:
    part = BLOCK // 4
    cached = Cached(objects, part_bytes=part)
    await cached.read("a", 0, BLOCK, object_size=1_000, is_history=True)
    cached.cache.leave_behind("a", part, 3 * part)

    assert list(cached.cache._order._left_behind) == [("a", part), ("a", 2 * part)]


async def test_a_piece_that_ends_before_a_consumer_began_is_not_left_behind_by_it(objects: Objects) -> None:
    part = BLOCK // 4
    cached = Cached(objects, part_bytes=part)
    await cached.read("a", 0, part, is_history=True)
    cached.cache.leave_behind("a", 2 * part, 3 * part)

    assert not cached.cache._order._left_behind
    assert cached.cache._here_bytes(Piece("a", 0, 1)) == 1, "of a piece that goes on behind what was asked for"


async def test_what_is_on_its_way_is_not_spare() -> None:
    objects = Blocked()
    cached = BlockCache(objects, bytes_max=4 * BLOCK, block_bytes=BLOCK, clock=SystemClock(), telemetry=Telemetry())
    async with asyncio.TaskGroup() as group:
        group.create_task(cached.read("a", 0, BLOCK, is_history=True))
        await turns()
        spare_bytes = cached.spare_bytes
        await objects.finish()

    assert spare_bytes == 3 * BLOCK


async def test_what_is_here_is_read_at_once_and_counts_as_used_and_what_is_not_does_not(objects: Objects) -> None:
    cached = Cached(objects, bytes_max=2 * (BLOCK + PIECE_OVERHEAD_BYTES))
    for number in range(2):
        await cached.read("a", number * BLOCK, (number + 1) * BLOCK, is_history=True)
    before = cached.requests()
    absent = cached.cache.read_here("a", BLOCK, 2 * BLOCK + 1)
    here = cached.cache.read_here("a", 3, BLOCK - 2)
    after = cached.requests()
    await cached.read("a", 2 * BLOCK, 3 * BLOCK, is_history=True)

    assert absent is None
    assert b"".join(here or []) == WHOLE[3 : BLOCK - 2]
    assert (after[0] - before[0], after[1:]) == (1, before[1:])
    assert cached.cache.missing_from("a", 0, BLOCK) == BLOCK, "it was used last"
    assert cached.cache.read_here("a", 0, 0) == []


async def test_an_object_larger_than_the_cache_is_read_whole(objects: Objects) -> None:
    cached = Cached(objects, bytes_max=2 * (FETCH_BLOCKS_MAX * BLOCK + PIECE_OVERHEAD_BYTES))
    for _ in range(2):
        assert await cached.read("a", 0, 1_000) == WHOLE

    assert 0 < cached.bytes_held() <= 2 * (FETCH_BLOCKS_MAX * BLOCK + PIECE_OVERHEAD_BYTES)


async def test_a_dropped_object_is_fetched_again_and_its_bytes_are_free(objects: Objects) -> None:
    cached = Cached(objects)
    await cached.read("a", 0, 16)
    await cached.read("b", 0, 16)
    await cached.read("a", 100, 116)
    cached.cache.drop("a")
    cached.cache.drop("absent")
    objects.reads.clear()

    assert cached.bytes_held() == BLOCK + PIECE_OVERHEAD_BYTES
    await cached.read("b", 0, 16)
    await cached.read("a", 0, 16)
    assert objects.reads == [("a", 0, 16)]


async def test_memory_stays_at_the_bound_and_one_read() -> None:
    mebibyte = 1 << 20

    class Zeros(PartsByRange):
        async def get_range(self, key: str, start: int, end: int) -> bytes:
            return bytes(end - start)

    cache = BlockCache(Zeros(), bytes_max=8 * mebibyte, block_bytes=mebibyte, clock=SystemClock(), telemetry=Telemetry())
    tracemalloc.start()
    try:
        for start in range(0, 64 * mebibyte, 3 * mebibyte // 2):
            await cache.read("a", start, start + 3 * mebibyte // 2, object_size=128 * mebibyte)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak <= (8 + FETCH_BLOCKS_MAX) * mebibyte + 256 * 1024


# Any sequence of reads

WAYS = st.sampled_from(["tail", "history", "in order", "ahead"])
READS = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 200), st.integers(0, 200), st.booleans(), WAYS), min_size=1, max_size=30)


async def read_somehow(cached: Cached, key: str, start: int, end: int, object_size: int | None, way: str) -> bytes | None:
    """None: it was fetched ahead, or was not."""
    if way == "ahead":
        if start < end:
            await cached.cache.fetch_ahead(key, start, end)
        return None
    here = cached.cache.read_here(key, start, end) if way == "in order" else None
    found = await cached.read(key, start, end, object_size=object_size, is_history=way != "tail")
    assert here is None or b"".join(here) == found
    if way == "in order":
        cached.cache.leave_behind(key, start, end)
    return found


def check_accounts(cached: Cached) -> None:
    """Of a cache without readers."""
    cache = cached.cache
    assert cached.bytes_held() == sum(len(view) + PIECE_OVERHEAD_BYTES for view in cache._views.values())
    assert cache._room.bytes == cache._history_room.bytes == cache._bytes_coming == cache._history_bytes_coming == 0
    assert not cache._order._pins
    for key in ("a", "b"):
        cache.drop(key)
    assert cached.bytes_held() == cache._order.history_bytes == 0
    assert cache._order.first(fetching_bytes=0) is None


@settings(max_examples=300)
@given(
    reads=READS, bytes_max=st.integers(0, 9_000), block_bytes=st.integers(1, 40), part_bytes=st.integers(1, 100), size=st.integers(1, 200)
)
def test_any_sequence_of_reads_gives_the_bytes_of_the_object_within_the_bound(
    reads: list[tuple[str, int, int, bool, str]], bytes_max: int, block_bytes: int, part_bytes: int, size: int
) -> None:
    bodies = {"a": body(size), "b": body(size, seed=1)}

    async def run() -> None:
        objects = Objects(bodies)
        cached = Cached(objects, bytes_max=bytes_max, block_bytes=block_bytes, part_bytes=part_bytes)
        for key, one, two, knows_size, way in reads:
            start, end = sorted((min(one, size), min(two, size)))
            assert await read_somehow(cached, key, start, end, size if knows_size else None, way) in (None, bodies[key][start:end])
            assert cached.bytes_held() <= bytes_max
        check_accounts(cached)
        assert all(0 <= start < end <= size for _, start, end in objects.reads)
        assert all(end - start <= FETCH_BLOCKS_MAX * block_bytes for _, start, end in objects.reads)

    asyncio.run(run())


@settings(max_examples=300)
@given(
    reads=READS,
    seed=st.integers(0, 2**32),
    bytes_max=st.integers(0, 9_000),
    block_bytes=st.integers(1, 40),
    part_bytes=st.integers(1, 100),
)
@example(  # room is made for a piece that has no place after all, beside those that are pinned
    reads=[*[("a", 0, 0, False, "tail")] * 8, ("a", 0, 1, False, "tail"), ("a", 0, 10, False, "tail")],
    seed=1,
    bytes_max=2_050,
    block_bytes=1,
    part_bytes=100,
)
def test_concurrent_reads_give_the_bytes_of_the_object_whoever_is_cancelled(
    reads: list[tuple[str, int, int, bool, str]], seed: int, bytes_max: int, block_bytes: int, part_bytes: int
) -> None:
    size = 200
    bodies = {"a": body(size), "b": body(size, seed=1)}
    chance = random.Random(seed)

    async def run() -> None:
        objects = Objects(bodies, chance=chance, turns=4)
        cached = Cached(objects, bytes_max=bytes_max, block_bytes=block_bytes, part_bytes=part_bytes)

        async def read(key: str, start: int, end: int, object_size: int | None, way: str) -> None:
            for _ in range(chance.randint(0, 8)):
                await asyncio.sleep(0)
            assert await read_somehow(cached, key, start, end, object_size, way) in (None, bodies[key][start:end])
            assert cached.bytes_held() <= bytes_max

        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(read(key, min(one, two), max(one, two), size if knows_size else None, way))
                for key, one, two, knows_size, way in reads
            ]
            for task in chance.sample(tasks, len(tasks) // 3):
                await asyncio.sleep(0)
                task.cancel()
        assert not cached.cache._flying
        assert len(cached.cache._flights) == 0
        check_accounts(cached)

    asyncio.run(run())


async def test_a_slow_folder_has_a_bounded_number_of_fetches_and_holds_up_no_other() -> None:
    class Slow(Objects):
        async def get_range(self, key: str, start: int, end: int) -> bytes:
            if key.startswith("wal/slow/"):
                self.reads.append((key, start, end))
                await asyncio.Event().wait()
            return await super().get_range(key, start, end)

    objects = Slow({"wal/quick/1": WHOLE})
    cached = Cached(objects)
    async with asyncio.timeout(25), asyncio.TaskGroup() as group:
        stuck = [group.create_task(cached.read(f"wal/slow/{number}", 0, 10)) for number in range(200)]
        await asyncio.sleep(0)
        assert await cached.read("wal/quick/1", 0, 10) == WHOLE[:10]
        assert len([key for key, _, _ in objects.reads if key.startswith("wal/slow/")]) == DEFAULT_LIMITS.folder_fetches_max
        for task in stuck:
            task.cancel()


class Blocked(PartsByRange):
    """Reads that end when a test says so."""

    def __init__(self) -> None:
        self.under_way: dict[tuple[int, int], asyncio.Event] = {}
        self.bytes_max = 0

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        event = self.under_way[start, end] = asyncio.Event()
        self.bytes_max = max(self.bytes_max, sum(last - first for first, last in self.under_way))
        try:
            await event.wait()
        finally:
            del self.under_way[start, end]
        return bytes(end - start)

    async def finish(self) -> None:
        """Returns when no read is under way."""
        while self.under_way:
            for event in self.under_way.values():
                event.set()
            await turns()


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_reads_under_way_hold_no_more_than_the_cache_may_and_go_on_in_the_order_of_asking() -> None:
    objects = Blocked()
    cached = BlockCache(objects, bytes_max=3 * BLOCK, block_bytes=BLOCK, clock=SystemClock(), telemetry=Telemetry(), limits=NO_MORE)
    async with asyncio.TaskGroup() as group:
        reads = [group.create_task(cached.read("a", number * BLOCK, (number + 1) * BLOCK)) for number in range(6)]
        await turns()
        at_first = sorted(objects.under_way)
        reads[3].cancel()
        await turns()
        objects.under_way[0, BLOCK].set()
        await turns()
        then = sorted(objects.under_way)
        while objects.under_way:
            for event in objects.under_way.values():
                event.set()
            await turns()

    assert at_first == [(0, 16), (16, 32), (32, 48)]
    assert then == [(16, 32), (32, 48), (64, 80)]
    assert objects.bytes_max == 3 * BLOCK
    assert [read.cancelled() for read in reads] == [False, False, False, True, False, False]


async def test_a_read_larger_than_the_cache_goes_on_alone() -> None:
    objects = Blocked()
    cached = BlockCache(objects, bytes_max=BLOCK, block_bytes=BLOCK, clock=SystemClock(), telemetry=Telemetry(), limits=NO_MORE)
    async with asyncio.TaskGroup() as group:
        large = group.create_task(cached.read("a", 0, 4 * BLOCK))
        small = group.create_task(cached.read("b", 0, BLOCK))
        await turns()
        at_first = sorted(objects.under_way)
        objects.under_way[0, 4 * BLOCK].set()
        await turns()
        objects.under_way[0, BLOCK].set()

    assert at_first == [(0, 4 * BLOCK)]
    assert len(large.result()[0]) == 4 * BLOCK
    assert len(small.result()[0]) == BLOCK


async def test_the_cache_makes_room_for_what_is_fetched_before_it_is_there() -> None:
    telemetry = Telemetry()
    objects = Objects({"a": WHOLE}, turns=3)
    piece = BLOCK + PIECE_OVERHEAD_BYTES
    cached = BlockCache(objects, bytes_max=3 * piece, block_bytes=BLOCK, clock=SystemClock(), telemetry=telemetry, limits=NO_MORE)
    for number in range(3):
        await cached.read("a", number * 2 * BLOCK, number * 2 * BLOCK + BLOCK)
    full = telemetry.registry.get_sample_value(BYTES.name)
    blocked = Blocked()
    cached.store = blocked
    async with asyncio.TaskGroup() as group:
        group.create_task(cached.read("b", 0, BLOCK))
        await turns()
        meanwhile = telemetry.registry.get_sample_value(BYTES.name), telemetry.registry.get_sample_value(FETCHING_BYTES.name)
        blocked.under_way[0, BLOCK].set()

    assert full == 3 * piece
    assert meanwhile == (2 * piece, BLOCK)
    assert telemetry.registry.get_sample_value(BYTES.name) == 3 * piece
    assert telemetry.registry.get_sample_value(FETCHING_BYTES.name) == 0


async def test_what_was_read_past_the_cache_is_kept_where_there_is_room_and_changes_nothing_that_is_there() -> None:
    cached = Cached(Objects({"wal/a": WHOLE, "wal/b": WHOLE}), bytes_max=3_000)
    offered = memoryview(WHOLE)[:800]
    cached.cache.offer("wal/a", 0, [offered[:400], offered[400:]])

    assert b"".join(cached.cache.read_here("wal/a", 100, 700) or []) == WHOLE[100:700]
    held = cached.bytes_held()
    cached.cache.offer("wal/a", 300, [memoryview(WHOLE)[300:500]])
    assert cached.bytes_held() == held, "it overlaps what is there"
    cached.cache.offer("wal/b", 0, [memoryview(bytes(5_000))])
    assert cached.bytes_held() == held, "it is larger than the cache"
    cached.cache.offer("wal/b", 0, [memoryview(WHOLE)])
    assert cached.cache.read_here("wal/b", 0, 1_000) == [WHOLE]
    assert cached.cache.read_here("wal/a", 0, 1) is None, "it made room"
