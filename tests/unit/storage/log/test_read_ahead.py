"""Consumers that go through segments in order find their next blocks in the cache, and nobody else pays for it."""

import asyncio
import functools
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from runtime.supervision import Nursery
from runtime.telemetry import Telemetry
from storage.cache.blocks import DEFAULT_LIMITS as DEFAULT_CACHE_LIMITS
from storage.cache.blocks import BlockCache, CacheLimits
from storage.errors import Unavailable
from storage.formats.manifest import SegmentEntry
from storage.formats.segment import segment_key
from storage.limits import MIB
from storage.log.limits import DEFAULT_LIMITS, LogLimits
from storage.log.prefetch import FRONT_KEPT_S, Fronts, ReadAhead
from tests.kit.by_ranges import PartsByRange
from tests.kit.record_batches import record_batch
from tests.kit.stepping_clock import SteppingClock
from tests.unit.storage.log.made_segments import IDS, batch, counted_gets, put_segment, set_segments
from tests.unit.storage.log.rig import PARTITION, Rig
from tests.unit.storage.log.rig import rig as opened_rig

BLOCK = 1_024
BATCH_BYTES = len(batch(0, size=150))
BATCHES = 300
CACHE_BYTES = 24 * (BLOCK + DEFAULT_CACHE_LIMITS.piece_overhead_bytes)


SMALL = LogLimits(whole_segment_bytes_max=BLOCK, footer_read_bytes=13_000)
NO_MORE = CacheLimits(fetching_bytes_min=0)
"""What is fetched at a time is as much as the cache holds."""
rig = functools.partial(opened_rig, limits=SMALL, cache_limits=NO_MORE)


@pytest.fixture
async def broker() -> AsyncIterator[Rig]:
    async with rig(cache_bytes=CACHE_BYTES, block_bytes=BLOCK) as made:
        yield made


async def with_history(broker: Rig, *, batches: int = BATCHES) -> SegmentEntry:
    segment = await put_segment(broker, IDS[0], [batch(offset, size=150) for offset in range(batches)], base=0, last=batches - 1)
    await set_segments(broker, segment)
    await broker.parts.manifest_reads.refresh([broker.parts.partitions.get(PARTITION)])
    return segment


async def fetch(broker: Rig, offset: int, *, bytes_max: int = 2 * BATCH_BYTES) -> int:
    """The offset behind what a fetch of `offset` gets."""
    log, done = broker.parts.partitions.get(PARTITION), asyncio.Event()
    stored_read = broker.parts.reader.stored_reads.join(log, offset, bytes_max=bytes_max, runs_max=16, at_least_one=True, wake=done.set)
    try:
        async with asyncio.timeout(25):
            await done.wait()
    finally:
        broker.parts.reader.stored_reads.leave(stored_read, done.set)
    if stored_read.error is not None:
        raise stored_read.error
    return stored_read.end


def ahead_of(broker: Rig) -> ReadAhead:
    return broker.parts.reader.segments._read_ahead


async def until_done(ahead: ReadAhead) -> None:
    async with asyncio.timeout(25):
        while len(ahead):  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0)


async def go_through(broker: Rig, *, to: int = BATCHES) -> None:
    offset = 0
    while offset < to:
        offset = await fetch(broker, offset)
        await until_done(ahead_of(broker))


def outcomes(telemetry: Telemetry) -> tuple[float, ...]:
    """Fetched, skipped, failed."""
    sample = telemetry.registry.get_sample_value
    return tuple(sample("forebay_read_ahead_total", {"outcome": outcome}) or 0.0 for outcome in ("fetched", "skipped", "failed"))


def requests(telemetry: Telemetry, outcome: str) -> float:
    return telemetry.registry.get_sample_value("forebay_cache_requests_total", {"outcome": outcome}) or 0.0


def replace_gets(broker: Rig, get: Callable[[str, int, int], Awaitable[bytes]]) -> None:
    broker.objects.inner.get_range = get  # type: ignore[method-assign,assignment]


async def never(_key: str, _start: int, _end: int) -> bytes:
    await asyncio.Event().wait()
    raise AssertionError


# What a consumer in order finds


async def test_a_consumer_in_order_finds_all_but_its_first_block_and_each_byte_is_got_once(broker: Rig) -> None:
    segment = await with_history(broker)
    gets = await counted_gets(broker)
    await go_through(broker)

    footer, *of_records = gets
    assert footer == (segment.size_bytes - 13_000, segment.size_bytes)
    assert of_records[0][0] == 0
    assert all(before[1] == after[0] for before, after in pairwise(of_records)), "back to back, each once"
    records_end = 72 + BATCHES * BATCH_BYTES
    assert of_records[-1][1] == records_end, "what is behind the records is the footer, which was read"
    assert len(of_records) <= -(-records_end // (2 * BLOCK)) + 1, "two blocks with each GET"
    assert requests(broker.telemetry, "miss") == 1
    assert requests(broker.telemetry, "coalesced") == 0


async def test_what_a_read_brought_that_nobody_waited_for_in_the_end_is_not_left_behind(
    broker: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = await with_history(broker)
    reader, log = broker.parts.reader, broker.parts.partitions.get(PARTITION)
    end = await fetch(broker, await fetch(broker, 0))
    await until_done(ahead_of(broker))
    reader._blocks.drop(segment_key(PARTITION, segment.object_id))
    gate, get_range = asyncio.Event(), broker.objects.inner.get_range

    async def gated(key: str, start: int, end: int) -> bytes:
        await gate.wait()
        return await get_range(key, start, end)

    replace_gets(broker, gated)
    left: list[str] = []
    monkeypatch.setattr(reader._blocks, "leave_behind", lambda key, *_: left.append(key))
    stored_read = reader.stored_reads.join(log, end, bytes_max=1, runs_max=1, at_least_one=True, wake=list)
    for _ in range(10):
        await asyncio.sleep(0)
    reader.stored_reads.leave(stored_read, list)
    gate.set()
    assert stored_read.task is not None
    await stored_read.task
    left_unread = list(left)
    await fetch(broker, end)

    assert (len(stored_read.runs), left_unread) == (1, [])
    assert left == [segment_key(PARTITION, segment.object_id)]


async def test_a_fetch_of_the_last_block_does_not_get_the_footer_again(broker: Rig) -> None:
    segment = await with_history(broker)
    gets = await counted_gets(broker)
    await fetch(broker, BATCHES - 1)

    records_end = 72 + BATCHES * BATCH_BYTES
    assert gets == [(segment.size_bytes - 13_000, segment.size_bytes), (records_end // BLOCK * BLOCK, records_end)]


async def test_a_fetch_of_what_was_fetched_ahead_does_not_wait_for_the_store(broker: Rig) -> None:
    await with_history(broker)
    await go_through(broker, to=4)
    get_range = broker.objects.inner.get_range
    replace_gets(broker, never)
    offset = 4
    while offset * BATCH_BYTES < 2 * BLOCK:
        offset = await fetch(broker, offset)

    replace_gets(broker, get_range)
    assert offset > 8


async def test_a_fetch_that_comes_before_what_it_wants_joins_the_get_that_is_under_way(broker: Rig) -> None:
    await with_history(broker)
    gate, get_range = asyncio.Event(), broker.objects.inner.get_range
    gets: list[int] = []

    async def gated(key: str, start: int, end: int) -> bytes:
        gets.append(start)
        if start:
            await gate.wait()
        return await get_range(key, start, end)

    await fetch(broker, 0)
    replace_gets(broker, gated)
    await fetch(broker, 2)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(fetch(broker, 4, bytes_max=3 * BATCH_BYTES))
        for _ in range(50):
            await asyncio.sleep(0)
        assert not waiting.done()
        gate.set()

    assert waiting.result() == 7
    assert gets == [BLOCK]
    assert requests(broker.telemetry, "coalesced") == 1


async def test_nothing_is_fetched_ahead_before_the_second_fetch_in_order(broker: Rig) -> None:
    await with_history(broker)
    assert await fetch(broker, 0) == 2
    await until_done(ahead_of(broker))
    at_first = outcomes(broker.telemetry)
    await fetch(broker, 2)
    await until_done(ahead_of(broker))

    assert at_first == (0, 0, 0)
    assert outcomes(broker.telemetry) == (1, 0, 0)


async def test_fetches_here_and_there_fetch_nothing_ahead_however_many_runs_they_bring(broker: Rig) -> None:
    await with_history(broker)
    places = [*range(0, BATCHES - 6, 7)]
    random.Random(3).shuffle(places)
    for offset in places:
        await fetch(broker, offset, bytes_max=4 * BATCH_BYTES + 50)

    assert outcomes(broker.telemetry) == (0, 0, 0)


async def test_a_search_that_reads_batch_after_batch_fetches_nothing_ahead(broker: Rig) -> None:
    await with_history(broker)
    log = broker.parts.partitions.get(PARTITION)
    for offset in range(20):
        await broker.parts.reader.stored(log, offset, bytes_max=1)

    assert outcomes(broker.telemetry) == (0, 0, 0)


async def test_a_fetch_that_nobody_waits_for_any_more_fetches_nothing_ahead(broker: Rig) -> None:
    await with_history(broker)
    await fetch(broker, 0)
    log, done = broker.parts.partitions.get(PARTITION), asyncio.Event()
    stored_read = broker.parts.reader.stored_reads.join(log, 2, bytes_max=500, runs_max=16, at_least_one=True, wake=done.set)
    broker.parts.reader.stored_reads.leave(stored_read, done.set)
    assert stored_read.task is not None
    await stored_read.task

    assert stored_read.end > 2
    assert outcomes(broker.telemetry) == (0, 0, 0)


async def test_a_second_consumer_finds_what_the_first_one_has_read_and_nothing_is_fetched_for_it() -> None:
    async with rig(cache_bytes=1 << 20, block_bytes=BLOCK) as broker:
        await with_history(broker)
        await go_through(broker)
        gets, before = await counted_gets(broker), outcomes(broker.telemetry)
        await go_through(broker)

        assert gets == []
        assert outcomes(broker.telemetry) == before


# Failures and ends


async def test_a_read_ahead_that_fails_is_counted_and_the_fetch_that_follows_says_what_is_true(broker: Rig) -> None:
    await with_history(broker)
    get_range = broker.objects.inner.get_range
    await fetch(broker, 0)

    async def failing(_key: str, _start: int, _end: int) -> bytes:
        raise Unavailable("injected")

    replace_gets(broker, failing)
    await fetch(broker, 2)
    await until_done(ahead_of(broker))
    assert outcomes(broker.telemetry) == (0, 0, 1)
    with pytest.raises(Unavailable, match="injected"):
        await fetch(broker, 4)

    replace_gets(broker, get_range)
    assert await fetch(broker, 4) == 6


async def test_a_read_ahead_without_an_answer_ends_in_time() -> None:
    limits = replace(SMALL, read_ahead_timeout_s=0.01)
    async with rig(cache_bytes=CACHE_BYTES, block_bytes=BLOCK, limits=limits) as broker:
        await with_history(broker)
        await fetch(broker, 0)
        replace_gets(broker, never)
        await fetch(broker, 2)
        await until_done(ahead_of(broker))

        assert outcomes(broker.telemetry) == (0, 0, 1)
        assert broker.parts.reader._blocks._room.bytes == 0


async def test_a_broker_that_closes_ends_its_reads_ahead_and_they_hold_nothing() -> None:
    async with asyncio.timeout(25):
        async with rig(cache_bytes=CACHE_BYTES, block_bytes=BLOCK) as broker:
            await with_history(broker)
            await fetch(broker, 0)
            replace_gets(broker, never)
            await fetch(broker, 2)
            await asyncio.sleep(0)
            assert len(ahead_of(broker)) == 1

    cache = broker.parts.reader._blocks
    assert len(ahead_of(broker)) == cache._room.bytes == cache._history_room.bytes == cache._bytes_coming == 0
    assert not cache._flying
    assert outcomes(broker.telemetry) == (0, 0, 0)


# The tail


@pytest.mark.parametrize("knows_history", [True, False])
async def test_a_consumer_in_history_leaves_what_others_read_at_the_tail(knows_history: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the cache does not know history, what was read at the tail is evicted."""
    if not knows_history:
        read = BlockCache.read

        async def as_the_tail(cache: BlockCache, *range_: object, is_history: bool = False, **others: object) -> object:
            return await read(cache, *range_, **others)  # type: ignore[arg-type]

        monkeypatch.setattr(BlockCache, "read", as_the_tail)
        monkeypatch.setattr(BlockCache, "leave_behind", lambda *_: None)
    async with (
        rig() as writer,
        rig(shared=writer.shared, objects=writer.objects.inner, epoch=8, cache_bytes=CACHE_BYTES, block_bytes=BLOCK) as reader,
    ):
        await with_history(writer)
        for number in range(5):
            await writer.send(record_batch(b"%d" % number))
        await reader.read_all_from(BATCHES)
        await go_through(reader)
        gets = await counted_gets(reader)
        await reader.read_all_from(BATCHES)

        assert len(gets) == (0 if knows_history else 5)


async def test_entries_that_have_left_the_ring_are_history() -> None:
    async with rig() as writer, rig(shared=writer.shared, objects=writer.objects.inner, epoch=8) as reader:
        for number in range(40):
            await writer.send(record_batch(b"%d" % number))
        pending = (await writer.manifest()).pending
        assert 0 < len(pending) < 40
        order = reader.parts.reader._blocks._order
        await reader.read_all_from(pending[0].base)
        of_the_ring = order.history_bytes
        await reader.read_all()

        assert of_the_ring == 0
        assert len(order._history) == 40 - len(pending)
        assert len(order._tail) == len(pending)


# Bounds


class Blocked(PartsByRange):
    """A store whose GETs end when a test says so."""

    def __init__(self) -> None:
        self.under_way: list[tuple[str, int, int]] = []
        self.gate = asyncio.Event()

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        self.under_way.append((key, start, end))
        await self.gate.wait()
        return bytes(end - start)


class Ahead:
    """Read-ahead over a blocked store."""

    def __init__(
        self,
        nursery: Nursery,
        *,
        cache_blocks: int = 96,
        block_bytes: int = BLOCK,
        limits: LogLimits = DEFAULT_LIMITS,
        cache_limits: CacheLimits = NO_MORE,
    ) -> None:
        self.objects, self.telemetry, self.clock = Blocked(), Telemetry(), SteppingClock()
        self.cache = BlockCache(
            self.objects,
            bytes_max=cache_blocks * block_bytes,
            block_bytes=block_bytes,
            clock=self.clock,
            telemetry=self.telemetry,
            limits=cache_limits,
        )
        self.ahead = ReadAhead(self.cache, clock=self.clock, nursery=nursery, telemetry=self.telemetry, limits=limits)

    async def fill(self, *, blocks: int | None = None) -> None:
        """What the tail reads is all that the cache has room for, or so many blocks of it."""
        block_bytes = self.cache.block_bytes
        for number in range(self.cache.bytes_max // block_bytes if blocks is None else blocks):
            await self.cache.read("wal/tail", number * block_bytes, (number + 1) * block_bytes)
        self.objects.under_way.clear()

    async def begin(self, *numbers: int, position: int = 0, end: int = 100 * BLOCK) -> None:
        for number in numbers:
            self.ahead.begin(f"segments/{number}/x", position, end)
        for _ in range(10):
            await asyncio.sleep(0)


async def test_reads_ahead_at_a_time_are_bounded_and_others_are_skipped() -> None:
    async with Nursery() as nursery:
        made = Ahead(nursery, limits=LogLimits(reads_ahead_max=3))
        await made.begin(1, 2, 3, 4)
        assert [key for key, _, _ in made.objects.under_way] == ["segments/1/x", "segments/2/x", "segments/3/x"]
        assert outcomes(made.telemetry) == (0, 1, 0)
        made.objects.gate.set()
        await until_done(made.ahead)
        await made.begin(4)

        assert len(made.objects.under_way) == 4
        assert outcomes(made.telemetry) == (4, 1, 0)


async def test_the_bytes_of_reads_ahead_at_a_time_are_bounded() -> None:
    async with Nursery() as nursery:
        made = Ahead(nursery, limits=LogLimits(reading_ahead_bytes_max=5 * BLOCK))
        await made.begin(1, 2, 3, 4)

        assert [end - start for _, start, end in made.objects.under_way] == [2 * BLOCK, 2 * BLOCK, BLOCK], (
            "one block where two are too many"
        )
        assert outcomes(made.telemetry) == (0, 1, 0)


async def test_what_lies_in_front_of_consumers_is_a_quarter_of_the_cache_at_most_and_theirs_for_a_minute() -> None:
    async with Nursery() as nursery:
        made = Ahead(nursery, cache_blocks=24)
        made.objects.gate.set()
        await made.fill()
        await made.begin(1, 2, 3, 4)
        at_first = len(made.objects.under_way)
        await made.begin(1, position=2 * BLOCK)
        when_one_went_on = [key for key, _, _ in made.objects.under_way[at_first:]]
        await made.begin(5)
        made.clock.advance(FRONT_KEPT_S - 1)
        await made.begin(6)
        before_the_minute = len(made.objects.under_way)
        made.clock.advance(2)
        await made.begin(7)

        assert at_first == 3
        assert when_one_went_on == ["segments/1/x"], "it has nothing in front any more, and takes its part again"
        assert before_the_minute == 4
        assert [key for key, _, _ in made.objects.under_way[4:]] == ["segments/7/x"]


async def test_beyond_a_quarter_of_the_cache_only_what_evicts_nothing_is_fetched_ahead() -> None:
    block_bytes = 64 * BLOCK
    async with Nursery() as nursery:
        made = Ahead(nursery, cache_blocks=24, block_bytes=block_bytes)
        made.objects.gate.set()
        await made.fill(blocks=4)
        for number in range(1, 14):
            await made.begin(number, end=100 * block_bytes)
        fetched = [(key, (end - start) // block_bytes) for key, start, end in made.objects.under_way]

        assert fetched == [*[(f"segments/{number}/x", 2) for number in range(1, 10)], ("segments/10/x", 1)]
        assert made.cache.missing_from("wal/tail", 0, 4 * block_bytes) == 4 * block_bytes, "the tail is where it was"


async def test_what_is_fetched_ahead_in_one_turn_finds_a_place_together() -> None:
    async with Nursery() as nursery:
        made = Ahead(nursery, cache_blocks=24, limits=LogLimits(front_share_min=0.0, front_history_share=0.0))
        made.objects.gate.set()
        await made.fill(blocks=6)
        spare_bytes = made.cache.spare_bytes
        await made.begin(*range(1, 9))

        assert spare_bytes == 12 * BLOCK
        assert [key for key, _, _ in made.objects.under_way] == [f"segments/{number}/x" for number in range(1, 7)]


async def test_of_a_cache_that_the_tail_fills_few_consumers_have_half_for_certain_and_many_a_quarter() -> None:
    async with Nursery() as nursery:
        made = Ahead(nursery, cache_blocks=24, block_bytes=4 * MIB)
        made.objects.gate.set()
        of_an_empty_cache = made.ahead.front_bytes_max
        await made.fill(blocks=24)
        certain_bytes = [made.ahead.front_bytes_max]
        for consumers in (12, 24, 100):
            while len(made.ahead.fronts) < consumers:
                made.ahead.fronts.note(len(made.ahead.fronts), 1)
            certain_bytes.append(made.ahead.front_bytes_max)

    assert of_an_empty_cache == 96 * MIB
    assert certain_bytes == [48 * MIB, 36 * MIB, 24 * MIB, 24 * MIB]


async def test_the_segments_of_consumers_in_order_are_remembered_up_to_a_bound() -> None:
    fronts = Fronts(clock=SteppingClock(), kept_max=3)
    for number in range(5):
        fronts.note(f"{number}", 10 + number)
    assert (len(fronts), fronts.bytes) == (3, 12 + 13 + 14)

    fronts.note("3", 0)
    assert (len(fronts), fronts.bytes) == (2, 12 + 14)


@pytest.mark.parametrize(("cache_blocks", "gets"), [(7, 0), (8, 1)])
async def test_a_cache_that_keeps_nothing_for_long_is_not_read_ahead_into(cache_blocks: int, gets: int) -> None:
    async with Nursery() as nursery:
        made = Ahead(nursery, cache_blocks=cache_blocks)
        await made.begin(1)

        assert len(made.objects.under_way) == gets
        assert outcomes(made.telemetry) == (0, 0, 0)


async def test_nothing_is_fetched_ahead_that_is_here_or_on_its_way_or_behind_the_records() -> None:
    async with Nursery() as nursery:
        made = Ahead(nursery)
        await made.begin(1, 1, end=1_500)
        await made.begin(1, end=1_500)
        await made.begin(1, position=1_500, end=1_500)
        made.objects.gate.set()
        await made.begin(1, end=1_500)

        assert made.objects.under_way == [("segments/1/x", 0, 1_500)]
        assert outcomes(made.telemetry) == (1, 0, 0)


async def test_as_long_as_a_block_lies_in_front_of_a_consumer_no_more_is_fetched() -> None:
    async with Nursery() as nursery:
        made = Ahead(nursery)
        made.objects.gate.set()
        await made.begin(1)
        await made.begin(1, position=BLOCK)
        assert len(made.objects.under_way) == 1
        await made.begin(1, position=BLOCK + 1)

        assert made.objects.under_way[1:] == [("segments/1/x", 2 * BLOCK, 4 * BLOCK)]


async def test_reads_find_room_beside_all_that_may_be_read_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    async with Nursery() as nursery:
        made = Ahead(nursery, cache_blocks=24, block_bytes=4 * MIB)
        await made.begin(*range(20), end=64 * MIB)
        ahead = len(made.objects.under_way)
        for number, is_history in ((100, True), (101, False), (0, True)):
            key = f"segments/{number}/x"
            nursery.spawn(_read(made.cache, key, 32 * MIB, 40 * MIB, is_history=is_history), name="read")
        await made.begin()

        assert ahead == 4
        assert made.objects.under_way[ahead:] == [(f"segments/{number}/x", 32 * MIB, 40 * MIB) for number in (100, 101, 0)]


async def _read(cache: BlockCache, key: str, start: int, end: int, *, is_history: bool) -> None:
    await cache.read(key, start, end, is_history=is_history)
