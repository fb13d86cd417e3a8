"""Read-ahead: a consumer that goes through the log in order finds its next bytes in the block cache, and waits for none of them.

A fetch that begins where an earlier one of its partition ended is in order. Behind each of its reads, if little of what follows is in the
cache, the next blocks are fetched in the background, with one GET, and lie in the cache until they are read or evicted. A read that asks
for them before they are here joins that GET. What has no room is skipped: it waits for nobody, and a later read fetches what it needs.
`ReadAhead` decides which bytes of segments these are, `EntriesAhead` which of WAL objects.
"""

import asyncio
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Collection, Hashable, Sequence
from functools import partial
from itertools import dropwhile, islice
from operator import attrgetter
from typing import Final, NamedTuple

from runtime.clock import Clock
from runtime.supervision import Nursery
from runtime.telemetry import Metric, Telemetry
from storage.cache.blocks import BlockCache
from storage.errors import StorageError
from storage.formats.manifest import Entry
from storage.formats.wal import object_key
from storage.limits import PART_BYTES
from storage.log.limits import DEFAULT_LIMITS, LogLimits
from storage.objects.requests import CAUSE
from storage.vocabulary import PartitionId

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

DUE_SHARE_MAX: Final = 3 / 4
"""Fetched, of the bytes that there is room to say: beyond it others have not said enough yet. Without waits the window is smaller."""

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


class Range(NamedTuple):
    """Bytes start..end (exclusive) of an object."""

    start: int
    end: int

    @property
    def size_bytes(self) -> int:
        return self.end - self.start


class SaidEntry(NamedTuple):
    base: int
    key: str
    range: Range


_is_inline: Final = attrgetter("is_inline")

NextEntry = tuple[PartitionId, int]
"""Where a consumer is: the entry that it reads next, by its base. Several may be in one partition."""


class Follower:
    """The consumers at one place, and what they will read."""

    __slots__ = ("ahead_bytes_max", "ahead_objects_max", "coming_base", "entries", "object_count", "place", "said_bytes", "said_s")

    def __init__(self, *, ahead_bytes_max: int, ahead_objects_max: int) -> None:
        self.place: NextEntry | None = None
        self.entries: deque[SaidEntry] = deque()
        self.said_bytes = 0
        self.ahead_bytes_max = ahead_bytes_max
        self.object_count = 0
        """The runs of entries in one object."""
        self.ahead_objects_max = ahead_objects_max
        self.coming_base = -1
        """Up to this entry all is here or on its way, unless it was evicted."""
        self.said_s = 0.0

    @property
    def next_base(self) -> int:
        assert self.place is not None, "it is at no place"
        return self.place[1]

    @property
    def is_dense(self) -> bool:
        """Whether objects have several entries of the partition each: the next ones come with one GET, not each with its own."""
        return 2 * self.object_count <= len(self.entries)

    @property
    def has_enough(self) -> bool:
        """Whether half of what it said is here or on its way."""
        return bool(self.entries) and 2 * (self.coming_base - self.next_base) >= self.entries[-1].base - self.next_base

    def add(self, said: SaidEntry) -> None:
        self.object_count += not self.entries or self.entries[-1].key != said.key
        self.entries.append(said)
        self.said_bytes += said.range.size_bytes

    def pop(self) -> SaidEntry:
        passed = self.entries.popleft()
        self.object_count -= not self.entries or self.entries[0].key != passed.key
        self.said_bytes -= passed.range.size_bytes
        return passed


class EntriesAhead:
    """Fetches the next slices of each consumer in order, with one GET for what several want of an object.

    An object has slices of many partitions. A consumer of twelve of them comes to each object twelve times, and a GET for each would cost
    twelve times as much. So twice as much is said of a partition as is fetched, or as there is room for: when something is fetched, the
    same has been said of the other partitions, and all that lies together in an object comes with one GET. Small slices need that as large
    ones do: each would wait for a GET of its own.

    The window begins with `ahead_bytes`, and doubles whenever a consumer had to wait for what it had said: the slower the store, the more
    of it lies in front. Memory bounds it: all consumers together say no more than the cache holds for them, and what was fetched of it is
    claimed until they read it. So nothing comes long before its consumer does, and what has come is not evicted for what is read later:

        partition a is in objects 1 2 3 4 … and b in 1 5 9 …: a read of b in 9 brings the slice of a with it, eight objects early; that
        pushes out what a needs next, which comes again with a GET of its own, and pushes out what c needs next …
    """

    def __init__(self, blocks: BlockCache, read_ahead: ReadAhead, *, clock: Clock, limits: LogLimits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._blocks = blocks
        self._read_ahead = read_ahead
        self._clock = clock
        self.said: OrderedDict[NextEntry, Follower] = OrderedDict()
        """By what they read next. The one that has said nothing for the longest time is first."""
        self.wanted: dict[str, dict[Follower, Range]] = {}
        """By object, what of it will be read."""
        self._coming: dict[str, list[Range]] = {}

    def follow(
        self, partition: PartitionId, source: Entry, following: Sequence[Entry], *, is_through: bool = True, has_waited: bool = False
    ) -> None:
        """A consumer in order has read of the entry `source`, to its end if it `is_through`, and will read `following` next: fetch what is
        due of these. `has_waited`: what it has read of `source` was not here.
        """
        if self._blocks.bytes_max < CACHE_BLOCKS_MIN * self._blocks.block_bytes:
            return
        # What is read of these needs no GET, and is said by nobody.
        following = list(dropwhile(_is_inline, following))
        follower = self._follower(partition, source.base, following, is_through=is_through)
        if follower is not None:
            if has_waited and follower.entries:
                follower.ahead_bytes_max = min(2 * follower.ahead_bytes_max, self._limits.ahead_bytes_max)
                follower.coming_base = -1
            self._say(follower, following, from_base=following[0].base if is_through else source.base)
            if not (follower.is_dense and follower.has_enough):
                self._fetch_due(follower)
        if not source.is_inline:
            key = object_key(source.object_id)
            (self._blocks.leave if is_through else self._blocks.release)(key, *source.extent, wanted=self._ranges(key))

    def entries_max(self, source: Entry) -> int:
        """How many entries behind `source` are worth knowing. Small ones of early objects are as many as there is room for."""
        if not source.is_early:
            return self._limits.said_objects_max
        start, end = source.extent
        room_bytes = min(2 * self._limits.ahead_bytes, self._read_ahead.front_bytes_max / max(1, len(self.said)))
        return min(self._limits.said_entries_max, max(self._limits.said_objects_max, int(room_bytes / max(1, end - start))))

    def pass_on(self, partition: PartitionId, source: Entry) -> bool:
        """A consumer in order has read the entry `source` to its end. False: nothing was done; call `follow`.

        An early object has many entries of a partition. While half of what was said of them is here or on its way, no more is said.
        """
        place = partition, source.base
        follower = self.said.get(place)
        if follower is None or len(follower.entries) < max(2, self.entries_max(source) // 2) or not follower.has_enough:
            return False
        first, second = follower.entries[0], follower.entries[1]
        following = partition, second.base
        if first.base != source.base or second.key != first.key or following in self.said:
            return False
        self._unsay(follower, follower.pop())
        del self.said[place]
        follower.place, follower.said_s = following, self._clock.monotonic_s()
        self.said[following] = follower
        self._blocks.leave(first.key, *first.range, wanted=self._ranges(first.key))
        return True

    def claim(self, key: str, brought: Range) -> None:
        """`brought` is here, as far as it came: what consumers want of it stays."""
        self._blocks.claim(key, *brought, wanted=self._ranges(key))

    def _ranges(self, key: str) -> Collection[Range]:
        return self.wanted.get(key, {}).values()

    def _follower(self, partition: PartitionId, base: int, following: Sequence[Entry], *, is_through: bool) -> Follower | None:
        """The one that reads `following` next, at that place from now on; None if nothing follows, or there is no room for another."""
        came = self.said.pop((partition, base), None)
        if not following:
            if came is not None:
                self._forget(came, is_gone=is_through)
            return None
        place = partition, following[0].base
        there = self.said.pop(place, None)
        if came is not None and there is not None:
            self._forget(there)
        follower = came or there
        if follower is None:
            if len(self.said) >= self._limits.places_said_max:
                return None  # the one whose place it took would come back, and take another's
            follower = Follower(ahead_bytes_max=self._limits.ahead_bytes, ahead_objects_max=self._limits.first_objects_max)
        follower.place, follower.said_s = place, self._clock.monotonic_s()
        self.said[place] = follower
        return follower

    def _say(self, follower: Follower, following: Sequence[Entry], *, from_base: int) -> None:
        """Drop what it has passed of what it said, and add what follows. The entry that it is in is still claimed."""
        entries = follower.entries
        while entries and entries[0].base < from_base:
            self._unsay(follower, follower.pop())
        in_bytes = entries[0].range.size_bytes if entries and entries[0].base < following[0].base else 0
        last_base = entries[-1].base if entries else -1
        said_bytes_max = self._said_bytes_max(follower)
        limits, get_bytes_max = self._limits, self._limits.ahead_get_bytes_max
        for entry in following:
            if entry.base <= last_base or entry.is_inline:
                continue
            if len(entries) >= limits.said_entries_max or follower.said_bytes - in_bytes >= said_bytes_max:
                break
            key, wanted = object_key(entry.object_id), Range(*entry.extent)
            is_another = not entries or entries[-1].key != key
            if wanted.size_bytes > get_bytes_max or (is_another and follower.object_count >= limits.said_objects_max):
                break
            follower.add(SaidEntry(entry.base, key, wanted))
            by_follower = self.wanted.setdefault(key, {})
            said = by_follower.get(follower, wanted)  # two of its entries may lie in one object
            by_follower[follower] = Range(min(said.start, wanted.start), max(said.end, wanted.end))

    def _said_bytes_max(self, follower: Follower) -> float:
        return min(2 * follower.ahead_bytes_max, self._read_ahead.front_bytes_max / len(self.said))

    def _unsay(self, follower: Follower, passed: SaidEntry) -> None:
        by_follower = self.wanted[passed.key]
        following = next((entry for entry in follower.entries if entry.key == passed.key), None)
        if following is not None:
            said = by_follower[follower]
            if said.start < passed.range.end <= following.range.start:
                by_follower[follower] = Range(following.range.start, said.end)
            return
        said = by_follower.pop(follower)
        self._blocks.release(passed.key, *said, wanted=by_follower.values())
        if not by_follower:
            del self.wanted[passed.key]

    def _forget(self, follower: Follower, *, is_gone: bool = True) -> None:
        """What it said counts no more. It is at no place. `is_gone`: it reads no more of what it is in, either."""
        while follower.entries:
            entry = follower.pop()
            self._unsay(follower, entry)
            if is_gone:
                self._blocks.leave(entry.key, *entry.range, wanted=self._ranges(entry.key))

    def forget_old(self) -> None:
        """Forget consumers that have read nothing for `said_kept_s`. Call it with every read: while nobody goes through WAL objects, others
        want the cache.
        """
        since_s = self._clock.monotonic_s() - self._limits.said_kept_s
        for place, oldest in tuple(islice(self.said.items(), self._limits.forgotten_at_once_max)):
            if oldest.said_s >= since_s:
                break
            del self.said[place]
            self._forget(oldest)

    def _fetch_due(self, follower: Follower) -> None:
        ahead_bytes_max = min(follower.ahead_bytes_max, self._said_bytes_max(follower) * DUE_SHARE_MAX)
        ahead_bytes = 0
        objects_left, follower.ahead_objects_max = follower.ahead_objects_max, self._limits.ahead_objects_max
        gets_max = len(self._read_ahead) + self._limits.ahead_gets_per_follow_max
        key = ""
        for entry in follower.entries:
            objects_left -= entry.key != key
            key = entry.key
            if objects_left < 0 or ahead_bytes >= ahead_bytes_max or len(self._read_ahead) >= gets_max:
                break
            if entry.base < follower.next_base:
                continue  # it is in this one
            if entry.base > follower.coming_base:
                if not self._is_coming(entry.key, entry.range):
                    break
                follower.coming_base = entry.base
            ahead_bytes += entry.range.size_bytes

    def _is_coming(self, key: str, wanted: Range) -> bool:
        """Whether `wanted` is in memory or on its way, from now on perhaps."""
        if self._is_there(key, wanted):
            self._blocks.claim(key, *wanted, wanted=(wanted,))
            return True
        if not self._read_ahead.has_room(wanted.size_bytes):
            self._read_ahead.skip()
            return False
        asked = self.together(key, wanted)
        # Its head may be here: it was in a block that was fetched for another.
        asked = Range(self._blocks.missing_from(key, *asked), asked.end)
        if self._read_ahead.is_under_way(key, asked.start) or not self._read_ahead.has_room(asked.size_bytes):
            self._read_ahead.skip()
            return False
        self._blocks.claim(key, *wanted, wanted=(wanted,))
        self._coming.setdefault(key, []).append(asked)
        self._read_ahead.spawn(key, *asked, is_said=True).add_done_callback(partial(self._land, key, asked))
        return True

    def _is_there(self, key: str, wanted: Range) -> bool:
        start = self._blocks.missing_from(key, *wanted)
        return start == wanted.end or any(coming.start <= start and wanted.end <= coming.end for coming in self._coming.get(key, ()))

    def together(self, key: str, wanted: Range) -> Range:
        """What to fetch of an object for `wanted`, which is missing: with it comes what others want beside it, and is not there either, as
        much as one GET may bring.
        """
        gap_bytes_max, get_bytes_max = self._limits.ahead_gap_bytes_max, self._limits.ahead_get_bytes_max
        start, end = wanted
        others = sorted(set(self.wanted.get(key, {}).values()))
        here = bisect_left(others, wanted)
        for one in others[here:]:
            if one.start - end > gap_bytes_max or one.end - start > get_bytes_max:
                break
            if one.end > end and not self._is_there(key, one):
                end = one.end
        for one in reversed(others[:here]):
            if start - one.end > gap_bytes_max or max(end, one.end) - one.start > get_bytes_max:
                break
            # It may have `wanted` in it: a follower wants several entries of an early object, and this is one of them.
            if (one.start < start or one.end > end) and not self._is_there(key, one):
                start, end = min(start, one.start), max(end, one.end)
        return Range(start, end)

    def _land(self, key: str, asked: Range, _task: "asyncio.Task[None]") -> None:
        coming = self._coming[key]
        coming.remove(asked)
        if not coming:
            del self._coming[key]
        self.claim(key, asked)
        if not self._is_there(key, asked):
            for follower in self.wanted.get(key, ()):
                follower.coming_base = -1
