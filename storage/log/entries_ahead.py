"""Which bytes of WAL objects are fetched ahead: the next slices of each consumer in order, with one GET for what several want of an object.

An object has slices of many partitions. A consumer of twelve of them comes to each object twelve times, and a GET for each would cost
twelve times as much. So twice as much is said of a partition as is fetched, or as there is room for: when something is fetched, the same
has been said of the other partitions, and all that lies together in an object comes with one GET. Small slices need that as large ones do:
each would wait for a GET of its own.

The window begins with `ahead_bytes`, and doubles whenever a consumer had to wait for what it had said: the slower the store, the more of it
lies in front. Memory bounds it: all consumers together say no more than the cache holds for them, and what was fetched of it is claimed
until they read it. So nothing comes long before its consumer does, and what has come is not evicted for what is read later:

    partition a is in objects 1 2 3 4 … and b in 1 5 9 …: a read of b in 9 brings the slice of a with it, eight objects early; that pushes
    out what a needs next, which comes again with a GET of its own, and pushes out what c needs next …
"""

from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Collection, Sequence
from functools import partial
from itertools import dropwhile, islice
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from runtime.clock import Clock
from storage.cache.blocks import BlockCache
from storage.formats.control import Entry
from storage.formats.wal import object_key
from storage.log.limits import DEFAULT_LIMITS, LogLimits
from storage.log.read_ahead import CACHE_BLOCKS_MIN, ReadAhead
from storage.vocabulary import PartitionId

if TYPE_CHECKING:
    import asyncio

DUE_SHARE_MAX: Final = 3 / 4
"""Fetched, of the bytes that there is room to say: beyond it others have not said enough yet. Without waits the window is smaller."""


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

    __slots__ = ("ahead_bytes_max", "ahead_entries_max", "coming_base", "entries", "place", "said_bytes", "said_s")

    def __init__(self, *, ahead_bytes_max: int, ahead_entries_max: int) -> None:
        self.place: NextEntry | None = None
        self.entries: deque[SaidEntry] = deque()
        self.said_bytes = 0
        self.ahead_bytes_max = ahead_bytes_max
        self.ahead_entries_max = ahead_entries_max
        self.coming_base = -1
        """Up to this entry all is here or on its way, unless it was evicted."""
        self.said_s = 0.0

    @property
    def next_base(self) -> int:
        assert self.place is not None, "it is at no place"
        return self.place[1]


class EntriesAhead:
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
            self._fetch_due(follower)
        if not source.is_inline:
            key = object_key(source.object_id)
            (self._blocks.leave if is_through else self._blocks.release)(key, *source.extent, wanted=self._ranges(key))

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
            follower = Follower(ahead_bytes_max=self._limits.ahead_bytes, ahead_entries_max=self._limits.first_entries_max)
        follower.place, follower.said_s = place, self._clock.monotonic_s()
        self.said[place] = follower
        return follower

    def _say(self, follower: Follower, following: Sequence[Entry], *, from_base: int) -> None:
        """Drop what it has passed of what it said, and add what follows. The entry that it is in is still claimed."""
        entries = follower.entries
        while entries and entries[0].base < from_base:
            self._unsay(follower, entries.popleft())
        in_bytes = entries[0].range.size_bytes if entries and entries[0].base < following[0].base else 0
        last_base = entries[-1].base if entries else -1
        said_bytes_max = self._said_bytes_max(follower)
        said_entries_max, get_bytes_max = self._limits.said_entries_max, self._limits.ahead_get_bytes_max
        for entry in following:
            if entry.base <= last_base or entry.is_inline:
                continue
            if len(entries) >= said_entries_max or follower.said_bytes - in_bytes >= said_bytes_max:
                break
            key, wanted = object_key(entry.object_id), Range(*entry.extent)
            if wanted.size_bytes > get_bytes_max:
                break
            entries.append(SaidEntry(entry.base, key, wanted))
            follower.said_bytes += wanted.size_bytes
            by_follower = self.wanted.setdefault(key, {})
            said = by_follower.get(follower, wanted)  # two of its entries may lie in one object
            by_follower[follower] = Range(min(said.start, wanted.start), max(said.end, wanted.end))

    def _said_bytes_max(self, follower: Follower) -> float:
        return min(2 * follower.ahead_bytes_max, self._read_ahead.front_bytes_max / len(self.said))

    def _unsay(self, follower: Follower, passed: SaidEntry) -> None:
        follower.said_bytes -= passed.range.size_bytes
        if any(entry.key == passed.key for entry in follower.entries):
            return
        by_follower = self.wanted[passed.key]
        said = by_follower.pop(follower)
        self._blocks.release(passed.key, *said, wanted=by_follower.values())
        if not by_follower:
            del self.wanted[passed.key]

    def _forget(self, follower: Follower, *, is_gone: bool = True) -> None:
        """What it said counts no more. It is at no place. `is_gone`: it reads no more of what it is in, either."""
        entries = follower.entries
        while entries:
            entry = entries.popleft()
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
        entries_max, follower.ahead_entries_max = follower.ahead_entries_max, self._limits.ahead_entries_max
        gets_max = len(self._read_ahead) + self._limits.ahead_gets_per_follow_max
        for entry in islice(follower.entries, entries_max):
            if ahead_bytes >= ahead_bytes_max or len(self._read_ahead) >= gets_max:
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
            if start - one.end > gap_bytes_max or end - one.start > get_bytes_max:
                break
            if one.start < start and not self._is_there(key, one):
                start = one.start
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
