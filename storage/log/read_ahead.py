"""Read-ahead: a consumer that goes through the log in order finds its next bytes in the block cache, and waits for none of them.

A fetch that begins where an earlier one of its partition ended is in order. Behind each of its reads, if little of what follows is in
the cache, the next blocks are fetched in the background, with one GET, and lie in the cache until they are read or evicted. A read that
asks for them before they are here joins that GET. What has no room is skipped: it waits for nobody, and a later read fetches what it needs.
Which bytes of segments these are is decided here, and which of WAL objects in entries_ahead.py.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Hashable
from functools import partial
from typing import Final

from runtime.clock import Clock
from runtime.supervision import Nursery
from runtime.telemetry import Metric, Telemetry
from storage.cache.blocks import BlockCache
from storage.errors import StorageError
from storage.limits import PART_BYTES
from storage.log.limits import DEFAULT_LIMITS, LogLimits
from storage.objects.requests import CAUSE

AHEAD_BLOCKS_LEAST: Final = 1
"""Blocks of the cache in front of a consumer, below which more is fetched."""
AHEAD_BLOCKS: Final = 2
"""In one GET, if there is room for both."""
PIECES_IN_BYTES: Final = 2 * PART_BYTES
"""What the pieces that a consumer is in may take."""
FRONT_KEPT_S: Final = 60.0
"""A consumer that has read nothing for longer leaves its part to the others."""
CACHE_BLOCKS_MIN: Final = 8
"""A smaller cache keeps nothing long enough for a later read."""

READ_AHEAD: Final = Metric(
    "forebay_read_ahead_total",
    "Times that blocks of an object were wanted before they are read: fetched, skipped (no room for it) or failed.",
    ("outcome",),
)

assert CACHE_BLOCKS_MIN * DEFAULT_LIMITS.front_share_min >= AHEAD_BLOCKS, "the smallest cache that is used has room for one"


class Fronts:
    """How much lies in the cache in front of consumers in order, by the segment that they read, or by consumer."""

    def __init__(self, *, clock: Clock, kept_max: int) -> None:
        self._clock = clock
        self._kept_max = kept_max
        self._fronts: OrderedDict[Hashable, tuple[int, float]] = OrderedDict()
        self.bytes = 0
        """In front of all of them."""

    def __len__(self) -> int:
        return len(self._fronts)

    def note(self, name: Hashable, size_bytes: int) -> None:
        now_s = self._clock.monotonic_s()
        self._forget(name)
        if size_bytes:
            self._fronts[name] = size_bytes, now_s
            self.bytes += size_bytes
        while self._fronts:
            oldest, (_, noted_s) = next(iter(self._fronts.items()))
            if len(self._fronts) <= self._kept_max and noted_s >= now_s - FRONT_KEPT_S:
                break
            self._forget(oldest)

    def _forget(self, name: Hashable) -> None:
        size_bytes, _ = self._fronts.pop(name, (0, 0.0))
        self.bytes -= size_bytes


class ReadAhead:
    """Tasks of `nursery` fetch, and nothing but the cache holds what they bring."""

    def __init__(
        self, blocks: BlockCache, *, clock: Clock, nursery: Nursery, telemetry: Telemetry, limits: LogLimits = DEFAULT_LIMITS
    ) -> None:
        self._limits = limits
        self._blocks = blocks
        self._nursery = nursery
        self.fronts = Fronts(clock=clock, kept_max=limits.fronts_kept_max)
        """What lies in front of readers of segments."""
        self._under_way: dict[tuple[str, int], int] = {}
        """By object and first byte, how many bytes."""
        self._bytes_under_way = 0
        self._said_bytes_under_way = 0
        """The part of them that is for readers of WAL objects."""
        self._bytes_to_begin = 0
        """Spawned in this turn: the cache does not count them yet."""
        outcomes = telemetry.counter(READ_AHEAD)
        self._fetched = outcomes.labels("fetched")
        self._skipped = outcomes.labels("skipped")
        self._failed = outcomes.labels("failed")

    def __len__(self) -> int:
        """How many are under way."""
        return len(self._under_way)

    def begin(self, key: str, position: int, end: int) -> None:
        """A consumer in order has read up to `position` of an object whose records end at `end`: fetch what follows, if it is due."""
        block_bytes = self._blocks.block_bytes
        if self._blocks.bytes_max < CACHE_BLOCKS_MIN * block_bytes:
            return
        start = self._blocks.missing_from(key, position, end)
        self.fronts.note(key, start - position)
        if start >= end or start - position >= AHEAD_BLOCKS_LEAST * block_bytes or self.is_under_way(key, start):
            return
        for blocks in range(AHEAD_BLOCKS, 0, -1):
            stop = min(end, (start // block_bytes + blocks) * block_bytes)
            if self.has_room(stop - start):
                self.fronts.note(key, stop - position)
                self.spawn(key, start, stop)
                return
        self.skip()

    def skip(self) -> None:
        """What was wanted has no room."""
        self._skipped.inc()

    def fail(self) -> None:
        """What was wanted could not be found out. Whoever reads it finds out why."""
        self._failed.inc()

    def has_room(self, size_bytes: int) -> bool:
        """Whether so much may be fetched now, on top of what lies in front of consumers, or is on its way there."""
        limits = self._limits
        if len(self._under_way) >= limits.reads_ahead_max or self._bytes_under_way + size_bytes > limits.reading_ahead_bytes_max:
            return False
        is_spare = self._bytes_to_begin + size_bytes <= self._blocks.spare_bytes
        front_bytes = self.fronts.bytes + self._blocks.claimed_bytes + self._said_bytes_under_way
        return is_spare or front_bytes + size_bytes <= self.front_bytes_max

    @property
    def front_bytes_max(self) -> float:
        """What may lie in front of all consumers: what the tail leaves to history, or history has for certain, but for the pieces they are
        in.
        """
        cache_bytes = self._blocks.bytes_max
        history_bytes = max(cache_bytes * self._limits.front_history_share, self._blocks.history_bytes_max)
        return max(cache_bytes * self._limits.front_share_min, history_bytes - len(self.fronts) * PIECES_IN_BYTES)

    def spawn(self, key: str, start: int, end: int, *, is_said: bool = False) -> "asyncio.Task[None]":
        """Fetch what is missing of [start, end) of an object from `start` on. Nothing else that begins there may be under way.

        `is_said`: it is not in `fronts`.
        """
        said_bytes = end - start if is_said else 0
        self._under_way[key, start] = end - start
        self._said_bytes_under_way += said_bytes
        self._bytes_under_way += end - start
        self._bytes_to_begin += end - start
        task = self._nursery.spawn(self._fetch(key, start, end), name="read-ahead")
        task.add_done_callback(partial(self._land, key, start, said_bytes))
        return task

    def is_under_way(self, key: str, start: int) -> bool:
        return (key, start) in self._under_way

    def _land(self, key: str, start: int, said_bytes: int, _task: "asyncio.Task[None]") -> None:
        self._said_bytes_under_way -= said_bytes
        self._bytes_under_way -= self._under_way.pop((key, start))

    async def _fetch(self, key: str, start: int, end: int) -> None:
        CAUSE.set("read_ahead")
        self._bytes_to_begin -= end - start
        try:
            async with asyncio.timeout(self._limits.read_ahead_timeout_s):
                is_fetched = await self._blocks.fetch_ahead(key, start, end)
        except (StorageError, TimeoutError):
            # Nobody asked for it. Who reads these bytes finds out what became of them.
            self.fail()
            return
        (self._fetched if is_fetched else self._skipped).inc()
