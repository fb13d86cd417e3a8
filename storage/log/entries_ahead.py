"""Which bytes of WAL objects are fetched ahead: the next slices of each consumer in order, with one GET for what several want of an object.

An object has slices of many partitions. A consumer of twelve of them comes to each object twelve times, and a GET for each would cost
twelve times as much. So it is said early what will be read of a partition (`SAID_ENTRIES_MAX`), and it is fetched late (`AHEAD_BYTES`): by
then the same has been said of the other partitions, and all that lies together in an object comes with one GET.
"""

from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from runtime.clock import Clock
from storage.cache.blocks import BlockCache
from storage.formats.control import Entry
from storage.formats.wal import object_key
from storage.limits import KIB, MIB
from storage.log.read_ahead import CACHE_BLOCKS_MIN, FRONT_KEPT_S, FRONT_SHARE_MAX, ReadAhead
from storage.vocabulary import PartitionId

if TYPE_CHECKING:
    import asyncio

AHEAD_BYTES: Final = 2 * MIB
"""In front of a consumer, of each partition: at 50 ms for a GET, 40 MB/s."""
SAID_ENTRIES_MAX: Final = 12
"""What is said to be read of a partition: three times `AHEAD_BYTES` where a full WAL object is shared by twelve partitions."""
SLICE_BYTES_MIN: Final = 128 * KIB
"""Smaller ones come with what lies before them, by the GET of whoever reads the object first: a GET for each would cost too much."""
GAP_BYTES_MAX: Final = 256 * KIB
"""What nobody wants, between two slices, is fetched rather than asked for twice."""
GET_BYTES_MAX: Final = 8 * MIB
PLACES_SAID_MAX: Final = 1_024


class Range(NamedTuple):
    """Bytes start..end (exclusive) of an object."""

    start: int
    end: int


NextEntry = tuple[PartitionId, int]
"""Where a consumer is: the entry that it reads next, by its base. Several may be in one partition."""


class EntriesAhead:
    def __init__(self, blocks: BlockCache, read_ahead: ReadAhead, *, clock: Clock) -> None:
        self._blocks = blocks
        self._read_ahead = read_ahead
        self._clock = clock
        self.said: OrderedDict[NextEntry, tuple[Sequence[str], float]] = OrderedDict()
        """The objects that the consumers at a place have said they will read, and when."""
        self.wanted: dict[str, dict[NextEntry, Range]] = {}
        """The same by object, with the bytes."""
        self._coming: dict[str, list[Range]] = {}

    def follow(self, partition: PartitionId, base: int, entries: Sequence[Entry]) -> None:
        """A consumer in order has read of the entry at `base` and will read `entries` next, of which the first `SAID_ENTRIES_MAX` count:
        fetch what is due of them.
        """
        self.forget((partition, base))
        if not entries or self._blocks.bytes_max < CACHE_BLOCKS_MIN * self._blocks.block_bytes:
            return
        place = partition, entries[0].base
        self.forget(place)
        ahead: dict[str, Range] = {}
        for entry in entries:
            if isinstance(entry.batches, bytes):
                continue
            if entry.size_bytes < SLICE_BYTES_MIN or len(ahead) == SAID_ENTRIES_MAX:
                break
            key = object_key(entry.object_id)
            start, end = entry.batches[0][0], sum(entry.batches[-1])
            if key in ahead:  # two of its entries lie in one object
                start, end = min(start, ahead[key].start), max(end, ahead[key].end)
            if end - start > GET_BYTES_MAX:
                break
            ahead[key] = Range(start, end)
        if not ahead:
            return
        for key, wanted in ahead.items():
            self.wanted.setdefault(key, {})[place] = wanted
        self.said[place] = list(ahead), self._clock.monotonic_s()
        self._forget_old()
        # Half of what may lie in front of all of them: the other half is for what comes with one GET for several.
        ahead_bytes_max = min(AHEAD_BYTES, self._blocks.bytes_max * FRONT_SHARE_MAX / 2 / len(self.said))
        ahead_bytes = 0
        for key, wanted in ahead.items():
            if ahead_bytes >= ahead_bytes_max or not self._is_coming(place, key, wanted, ahead_bytes):
                break
            ahead_bytes += wanted.end - wanted.start
        self._note_front(place, ahead_bytes)

    def forget(self, place: NextEntry) -> None:
        """What was said there counts no more."""
        if place not in self.said:
            return
        keys, _ = self.said.pop(place)
        for key in keys:
            wanted = self.wanted[key]
            del wanted[place]
            if not wanted:
                del self.wanted[key]
        self._note_front(place, 0)

    def _forget_old(self) -> None:
        since_s = self._clock.monotonic_s() - FRONT_KEPT_S
        while self.said:
            oldest, (_, said_s) = next(iter(self.said.items()))
            if len(self.said) <= PLACES_SAID_MAX and said_s >= since_s:
                break
            self.forget(oldest)

    def _note_front(self, place: NextEntry, ahead_bytes: int) -> None:
        partition, base = place
        self._read_ahead.fronts.note(f"{partition}:{base}", ahead_bytes)

    def _is_coming(self, place: NextEntry, key: str, wanted: Range, ahead_bytes: int) -> bool:
        """Whether `wanted` is in memory or on its way, from now on perhaps."""
        if self._is_there(key, wanted):
            return True
        self._note_front(place, ahead_bytes)
        asked = self.together(key, wanted)
        # Its head may be here: it was in a block that was fetched for another.
        asked = Range(self._blocks.missing_from(key, *asked), asked.end)
        if self._read_ahead.is_under_way(key, asked.start) or not self._read_ahead.has_room(asked.end - asked.start):
            self._read_ahead.skip()
            return False
        self._coming.setdefault(key, []).append(asked)
        self._read_ahead.spawn(key, *asked).add_done_callback(partial(self._land, key, asked))
        return True

    def _is_there(self, key: str, wanted: Range) -> bool:
        start = self._blocks.missing_from(key, *wanted)
        return start == wanted.end or any(coming.start <= start and wanted.end <= coming.end for coming in self._coming.get(key, ()))

    def together(self, key: str, wanted: Range) -> Range:
        """What to fetch of an object for `wanted`, which is missing: with it comes what others want beside it, and is not there either, as
        much as one GET may bring.
        """
        start, end = wanted
        others = sorted({one for one in self.wanted.get(key, {}).values() if one != wanted and not self._is_there(key, one)})
        for one in others:
            if one.start >= start and one.start - end <= GAP_BYTES_MAX and one.end - start <= GET_BYTES_MAX:
                end = max(end, one.end)
        for one in reversed(others):
            if one.start < start and start - one.end <= GAP_BYTES_MAX and end - one.start <= GET_BYTES_MAX:
                start = one.start
        return Range(start, end)

    def _land(self, key: str, asked: Range, _task: "asyncio.Task[None]") -> None:
        coming = self._coming[key]
        coming.remove(asked)
        if not coming:
            del self._coming[key]
