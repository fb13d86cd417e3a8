"""A cache of what was read from immutable objects, in the pieces in which it was fetched.

A read that misses fetches whole blocks (aligned to `block_bytes`), so that the next read of a neighbouring slice hits; missing
neighbours travel in ONE ranged GET, and what is missing in several places is fetched at the same time. A fetch never asks for bytes
of which nobody said that they exist: without an object's size it ends where the read ends, and a later read fetches what follows.
What was fetched is kept as it came, in parts of half a MiB to a MiB, each a piece of memory of its own: nothing is copied, a piece is
evicted as a whole, who sends a part of it keeps no more than it alive, and what the cache says it holds is what it holds. What is being
fetched counts as well: room is made for it before it is asked for, and reads that find none wait.

Reads of history have a share of all that: what they keep beyond it goes first (storage/cache/eviction.py), and what they fetch beyond it
waits, in a line of its own. Calls under way have places, and one folder of the object store gets a share of them (`Shares`): a slow prefix
leaves places to the others.
"""

import asyncio
import contextlib
from asyncio import Future, get_running_loop
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, Protocol

from runtime.clock import Clock
from runtime.singleflight import SingleFlight
from runtime.telemetry import Metric, Telemetry
from storage.cache.eviction import HISTORY_SHARE_MAX, EvictionOrder, Name
from storage.errors import EndsEarly
from storage.limits import BLOCK_BYTES, MIB, PART_BYTES
from storage.recordbatch import cut_views
from storage.vocabulary import Buffer

FETCH_BLOCKS_MAX: Final = 4
"""Blocks in one ranged GET: 16 MiB of the default size."""
FETCHES_AT_ONCE: Final = 4
"""Per read; further fetches wait for these."""
REQUESTS: Final = Metric(
    "forebay_cache_requests_total",
    "Pieces asked of the block cache: hit (a part of at most a MiB that was there), miss (a GET), coalesced (waited for another's GET).",
    ("outcome",),
)
BYTES: Final = Metric("forebay_cache_bytes", "Bytes that the block cache holds.", aggregation="sum")
FETCHING_BYTES: Final = Metric(
    "forebay_cache_fetching_bytes", "Bytes that reads under way through the block cache fetch, or wait for.", aggregation="sum"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLimits:
    """Fetches of blocks under way, of all folders of the object store and of one, and what a piece in memory counts."""

    fetches_max: int = 48
    """Fewer than the connections of an S3 client, so that puts find one."""
    folder_fetches_max: int = 32
    fetches_bytes_max: int = 64 * MIB
    folder_bytes_max: int = 40 * MIB
    """A call that is larger runs when no other of its folder does."""
    fetching_bytes_min: int = FETCH_BLOCKS_MAX * BLOCK_BYTES
    """What may be fetched at a time whatever the size of the cache. A read that needs more goes on when no other does."""
    piece_overhead_bytes: int = 1_024
    """Counted per piece for the objects around its bytes, so that many small pieces are bounded, too. What a store needs to have a piece
    begin at a page, 4 KiB of half a MiB, is not."""


DEFAULT_LIMITS: Final = CacheLimits()


class _Use:
    __slots__ = ("bytes", "calls")

    def __init__(self) -> None:
        self.calls = self.bytes = 0

    def has_room(self, size_bytes: int, calls_max: int, bytes_max: int) -> bool:
        return not self.calls or (self.calls < calls_max and self.bytes + size_bytes <= bytes_max)

    def add(self, calls: int, size_bytes: int) -> None:
        self.calls += calls
        self.bytes += size_bytes


class Shares:
    """`take` a place before a call and `give_back` after it. Waiters are served in order, but never behind a folder that has its share."""

    def __init__(self, *, limits: CacheLimits = DEFAULT_LIMITS) -> None:
        self._calls_max, self._bytes_max = limits.fetches_max, limits.fetches_bytes_max
        self._folder_calls_max, self._folder_bytes_max = limits.folder_fetches_max, limits.folder_bytes_max
        self._all = _Use()
        self._of: dict[str, _Use] = {}
        self._waiting: deque[tuple[str, int, Future[None]]] = deque()

    def has(self, key: str, size_bytes: int) -> bool:
        """Whether `take` would not wait."""
        return not self._waiting and self._has_room(key.rpartition("/")[0], size_bytes)

    async def take(self, key: str, size_bytes: int) -> None:
        """A place for a call that brings `size_bytes` of the object `key`. Cancelled: none is held."""
        folder = key.rpartition("/")[0]
        if not self._waiting and self._has_room(folder, size_bytes):
            self._add(folder, size_bytes)
            return
        turn = get_running_loop().create_future()
        waiting = folder, size_bytes, turn
        self._waiting.append(waiting)
        self._serve()
        try:
            await turn
        except BaseException:
            if turn.cancelled():
                self._waiting.remove(waiting)
                self._serve()  # it may have been large, and first
            else:
                self.give_back(key, size_bytes)
            raise

    def give_back(self, key: str, size_bytes: int) -> None:
        folder = key.rpartition("/")[0]
        self._all.add(-1, -size_bytes)
        use = self._of[folder]
        use.add(-1, -size_bytes)
        if not use.calls:
            del self._of[folder]
        if self._waiting:
            self._serve()

    def _serve(self) -> None:
        full: set[str] = set()
        for waiting in tuple(self._waiting):
            folder, size_bytes, turn = waiting
            if turn.cancelled() or folder in full:
                continue
            if not self._all.has_room(size_bytes, self._calls_max, self._bytes_max):
                return  # a large one is not overtaken forever by small ones
            if self._has_room(folder, size_bytes):
                self._waiting.remove(waiting)
                self._add(folder, size_bytes)
                turn.set_result(None)
            else:
                full.add(folder)

    def _has_room(self, folder: str, size_bytes: int) -> bool:
        use = self._of.get(folder)
        return self._all.has_room(size_bytes, self._calls_max, self._bytes_max) and (
            use is None or use.has_room(size_bytes, self._folder_calls_max, self._folder_bytes_max)
        )

    def _add(self, folder: str, size_bytes: int) -> None:
        self._all.add(1, size_bytes)
        self._of.setdefault(folder, _Use()).add(1, size_bytes)


class ReadRoom:
    """A read that is larger than all of it goes on when no other does."""

    def __init__(self, *, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._turn = asyncio.Lock()
        self._freed = asyncio.Event()
        self._waiting = 0
        self.bytes = 0
        """What is held."""

    @contextlib.asynccontextmanager
    async def held(self, size_bytes: int) -> AsyncIterator[None]:
        """Room for what one read holds, all at once: reads with a part each would wait for each other."""
        self._waiting += 1
        try:
            async with self._turn:
                while not self._fits(size_bytes):
                    self._freed.clear()
                    await self._freed.wait()
                self.bytes += size_bytes
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._free(size_bytes)

    def has(self, size_bytes: int) -> bool:
        """Whether `held` would not wait, not even for others that do."""
        return not self._waiting and self._fits(size_bytes)

    def _fits(self, size_bytes: int) -> bool:
        return not self.bytes or self.bytes + size_bytes <= self._bytes_max

    def _free(self, size_bytes: int) -> None:
        self.bytes -= size_bytes
        self._freed.set()


class RangeSource(Protocol):
    """The part of an `ObjectStore` that a cache needs."""

    async def get_range(self, key: str, start: int, end: int) -> Buffer: ...

    async def get_parts(self, key: str, start: int, end: int, *, part_bytes: int) -> Sequence[Buffer]: ...


class Piece(NamedTuple):
    """Bytes [start, end) of an object."""

    key: str
    start: int
    end: int


class BlockCache:
    """Reads through to `store`; evicts in the order of storage/cache/eviction.py when more than `bytes_max` would be held or fetched.

    Beyond `bytes_max` memory holds the views that readers keep after their read. Fetches under way are within it: at most FETCHES_AT_ONCE
    of one read, and of all together what `limits` allow.
    """

    def __init__(
        self,
        store: RangeSource,
        *,
        bytes_max: int,
        block_bytes: int = BLOCK_BYTES,
        part_bytes: int = PART_BYTES,
        clock: Clock,
        telemetry: Telemetry,
        on_damaged: Callable[[str], None] | None = None,
        limits: CacheLimits = DEFAULT_LIMITS,
    ) -> None:
        """`on_damaged` hears of each object whose bytes, as `store` gave them, are not what was written."""
        assert bytes_max >= 0
        assert block_bytes > 0
        self.store = store
        self._on_damaged = on_damaged
        self.bytes_max = bytes_max
        self.block_bytes = block_bytes
        self.part_bytes = part_bytes
        self._bytes_held = 0
        history_bytes_max = int(bytes_max * HISTORY_SHARE_MAX)
        self._room = ReadRoom(bytes_max=max(bytes_max, limits.fetching_bytes_min))
        self._history_room = ReadRoom(bytes_max=max(history_bytes_max, limits.fetching_bytes_min))
        self._bytes_coming = self._history_bytes_coming = 0
        self._flights: SingleFlight[Piece, Sequence[memoryview]] = SingleFlight()
        self._shares = Shares(limits=limits)
        self._piece_overhead_bytes = limits.piece_overhead_bytes
        # Pieces of one object are disjoint, and `_starts` has their starts in order.
        self._views: dict[Name, memoryview] = {}
        self._order = EvictionOrder(history_bytes_max=history_bytes_max, monotonic_s=clock.monotonic_s)
        self._starts: dict[str, list[int]] = {}
        self._flying: dict[str, list[Piece]] = {}
        requests = telemetry.counter(REQUESTS)
        self._hits = requests.labels("hit")
        self._misses = requests.labels("miss")
        self._coalesced = requests.labels("coalesced")
        self._gauge = telemetry.gauge(BYTES)
        telemetry.gauge(FETCHING_BYTES).set_function(lambda: self._room.bytes)

    async def read(
        self, key: str, start: int, end: int, *, floor: int = 0, object_size: int | None = None, is_history: bool = False
    ) -> list[memoryview]:
        """Bytes [start, end) of an object as views, in order, to be joined by whoever needs them in one piece.

        Blocks are fetched whole, from `floor` on and, if it is given, up to `object_size`. `is_history`: no consumer at the tail reads it.
        Raises what the store raises (`NotFound`, `Unavailable`); failures are not cached.
        A cancelled read takes nothing from others that wait for the same bytes.
        A view keeps the piece it is of in memory: do not hold small ones for long.
        """
        assert 0 <= floor <= start <= end, f"not a range: floor={floor} start={start} end={end}"
        assert object_size is None or end <= object_size, f"range past the end: end={end} object_size={object_size}"
        parts: list[tuple[Piece, memoryview | None, int]] = []  # the last: where in the object it is used from
        planned: list[Piece] = []
        held: list[Piece] = []
        position = start
        while position < end:
            found = self._find(key, position)
            if found is not None:
                self._hits.inc()
                parts.append((*found, position))
                piece = found[0]
                held.append(piece)
                self._note_use(piece, is_history=is_history)
            else:
                flying = self._find_flying(key, position)
                (self._misses if flying is None else self._coalesced).inc()
                piece = flying or self._plan_fetch(key, position, end, object_size, floor=position if position > start else floor)
                parts.append((piece, None, position))
                # There is room for all of one that is under way: many may wait for it, and each holds what it uses. One that waits for its
                # own room is fetched by whoever finds some first.
                held.append(Piece(key, position, min(end, piece.end)) if piece in self._flights else piece)
                # Others see it from now on, also while it waits for its turn: whoever comes first fetches it for all.
                self._flying.setdefault(key, []).append(piece)
                planned.append(piece)
            position = min(end, piece.end)
        fetched = await self._fetch_all(planned, held, is_history=is_history) if planned else {}
        for piece in fetched:
            # It may have come for another, or ahead.
            self._note_use(piece, is_history=is_history)
        views: list[memoryview] = []
        for piece, kept, used_from in parts:
            views += cut_views(fetched[piece] if kept is None else (kept,), used_from - piece.start, min(end, piece.end) - piece.start)
        return views

    def read_here(self, key: str, start: int, end: int) -> list[memoryview] | None:
        """As `read`, for a read of history, if all of it is here; None if not."""
        found: list[tuple[int, memoryview]] = []
        starts = self._starts.get(key, [])
        index = first = bisect_right(starts, start) - 1
        position = start
        while position < end:
            if not 0 <= index < len(starts) or starts[index] > position:
                return None
            view = self._views[key, starts[index]]
            if starts[index] + len(view) <= position:
                return None
            found.append((starts[index], view))
            position = starts[index] + len(view)
            index += 1
        for at, _ in found:
            self._order.use((key, at), is_history=True)
        self._hits.inc(len(found))
        origin = starts[first] if found else start
        return cut_views([view for _, view in found], start - origin, end - origin)

    @property
    def spare_bytes(self) -> int:
        """What would find a place without evicting anything but what consumers in order have left behind."""
        return self.bytes_max - self._bytes_held - self._bytes_coming + self._order.left_behind_bytes

    @property
    def claimed_bytes(self) -> int:
        """What is here and yet to be read by consumers in order."""
        return self._order.claimed_bytes

    @property
    def history_bytes_max(self) -> int:
        """What the tail leaves: history may have as much and evicts nothing but its own."""
        tail_bytes = self._bytes_held - self._order.history_bytes + self._bytes_coming - self._history_bytes_coming
        return self.bytes_max - tail_bytes

    def is_here(self, key: str, start: int, end: int) -> bool:
        """Whether a read of [start, end) waits for nothing."""
        starts = self._starts.get(key, ())
        index = bisect_right(starts, start) - 1
        position = start
        while position < end:
            if not 0 <= index < len(starts) or not starts[index] <= position < (
                stop := starts[index] + len(self._views[key, starts[index]])
            ):
                return False
            position = stop
            index += 1
        return True

    def missing_from(self, key: str, position: int, end: int) -> int:
        """The first byte of [position, end) that is neither here nor on its way; `end` if there is none."""
        starts = self._starts.get(key, [])
        index = max(bisect_right(starts, position) - 1, 0)
        while position < end:
            if index < len(starts) and starts[index] <= position:
                position = max(position, starts[index] + len(self._views[key, starts[index]]))
                index += 1
            elif (piece := self._find_flying(key, position)) is not None:
                position = piece.end
            else:
                return position
        return end

    async def fetch_ahead(self, key: str, start: int, end: int) -> bool:
        """Fetch [start, end) from its first byte on that is missing, with one GET, for a read of history that will come.

        False if none is missing any more, or if it would have to wait for others. Raises what the store raises.
        """
        # A read that came first may have its head on its way: whoever goes through small entries reads the next one at once.
        start = self.missing_from(key, start, end)
        if start == end:
            return False
        piece = self._plan_fetch(key, start, end, end, floor=start)
        size_bytes = piece.end - piece.start
        if not (self._history_room.has(size_bytes) and self._room.has(size_bytes) and self._shares.has(key, size_bytes)):
            return False
        async with self._holding([piece], is_history=True):
            await self._flights.run(piece, partial(self._fetch, piece, is_history=True))
        return True

    def offer(self, key: str, start: int, parts: Sequence[memoryview]) -> None:
        """Keep what was read of an object past this cache, as history, if it finds a place without a wait."""
        size_bytes = sum(map(len, parts))
        if size_bytes > self.bytes_max:
            return
        self._count_coming(size_bytes, is_history=True)
        try:
            self._make_room(0)
            self._keep(Piece(key, start, start + size_bytes), parts, is_history=True)
        finally:
            self._count_coming(-size_bytes, is_history=True)

    def leave_behind(self, key: str, start: int, position: int) -> None:
        """A consumer in order that was at `start` goes on at `position`: the pieces that end between them, or at `position`, are among the
        first to go.
        """
        starts = self._starts.get(key, ())
        for index in range(max(0, bisect_right(starts, start) - 1), bisect_left(starts, position)):
            if start < starts[index] + len(self._views[key, starts[index]]) <= position:
                self._order.leave_behind((key, starts[index]))

    def claim(self, key: str, start: int, end: int, *, wanted: Iterable[tuple[int, int]]) -> None:
        """Consumers in order are yet to read `wanted` of an object: the pieces of [start, end) that have some of it are the last of history
        to go. They count as `claimed_bytes` until they are released or left.
        """
        for name, is_wanted in self._pieces_of(key, start, end, wanted):
            if is_wanted:
                self._order.claim(name)

    def release(self, key: str, start: int, end: int, *, wanted: Iterable[tuple[int, int]]) -> None:
        """Nobody claims [start, end) any more but what is `wanted`: its pieces age like those of any other read."""
        for name, is_wanted in self._pieces_of(key, start, end, wanted):
            if not is_wanted:
                self._order.release(name)

    def leave(self, key: str, start: int, end: int, *, wanted: Iterable[tuple[int, int]]) -> None:
        """A consumer in order is through with [start, end) of an object: its pieces that have nothing of the ranges `wanted` are among the
        first to go.
        """
        for name, is_wanted in self._pieces_of(key, start, end, wanted):
            if not is_wanted:
                self._order.leave_behind(name)

    def _pieces_of(self, key: str, start: int, end: int, wanted: Iterable[tuple[int, int]]) -> Iterator[tuple[Name, bool]]:
        """The pieces that have some of [start, end), and whether one of the ranges `wanted` has some of each."""
        starts = self._starts.get(key, ())
        for index in range(max(0, bisect_right(starts, start) - 1), bisect_left(starts, end)):
            begin = starts[index]
            stop = begin + len(self._views[key, begin])
            if start < stop:
                yield (key, begin), any(first < stop and begin < last for first, last in wanted)

    def drop(self, key: str) -> None:
        """Forget an object that was deleted. What is being fetched of it may still be cached, and ages like the rest."""
        for start in tuple(self._starts.get(key, ())):
            self._evict(key, start)
        self._gauge.set(self._bytes_held)

    def drop_damaged(self, key: str, views: Sequence[memoryview]) -> None:
        """Forget the pieces that `views`, which `read` has given, are of. A piece that was fetched again since then stays."""
        if self._on_damaged is not None:
            self._on_damaged(key)
        damaged = {id(view.obj) for view in views}
        for start in tuple(self._starts.get(key, ())):
            if id(self._views[key, start].obj) in damaged:
                self._evict(key, start)
        self._gauge.set(self._bytes_held)

    def _find(self, key: str, position: int) -> tuple[Piece, memoryview] | None:
        """The cached piece that has the byte at `position`."""
        starts = self._starts.get(key)
        if starts is None:
            return None
        index = bisect_right(starts, position) - 1
        if index < 0:
            return None
        start = starts[index]
        view = self._views[key, start]
        if start + len(view) <= position:
            return None
        return Piece(key, start, start + len(view)), view

    def _note_use(self, piece: Piece, *, is_history: bool) -> None:
        """It was read: what of it is still here."""
        for name in self._here(piece):
            self._order.use(name, is_history=is_history)

    def _here(self, piece: Piece) -> list[Name]:
        """The pieces that are kept of one that was kept, or fetched."""
        starts = self._starts.get(piece.key, [])
        return [(piece.key, start) for start in starts[bisect_left(starts, piece.start) : bisect_left(starts, piece.end)]]

    def _here_bytes(self, piece: Piece) -> int:
        """How much of it they hold."""
        return sum([min(piece.end - name[1], len(self._views[name])) for name in self._here(piece)])

    def _find_flying(self, key: str, position: int) -> Piece | None:
        for piece in self._flying.get(key, ()):
            if piece.start <= position < piece.end:
                return piece
        return None

    def _plan_fetch(self, key: str, start: int, end: int, object_size: int | None, *, floor: int) -> Piece:
        """What to fetch for [start, end): whole blocks from `floor` on, less what is cached or on its way before and behind `start`."""
        ceiling = end if object_size is None else object_size
        starts = self._starts.get(key, [])
        index = bisect_right(starts, start)
        if index > 0:
            floor = max(floor, starts[index - 1] + len(self._views[key, starts[index - 1]]))
        if index < len(starts):
            ceiling = min(ceiling, starts[index])
        for piece in self._flying.get(key, ()):
            if piece.end <= start:
                floor = max(floor, piece.end)
            else:
                ceiling = min(ceiling, piece.start)
        first_block = start // self.block_bytes
        end_block = min(-(-end // self.block_bytes), first_block + FETCH_BLOCKS_MAX)
        fetch = Piece(key, max(first_block * self.block_bytes, floor), min(end_block * self.block_bytes, ceiling))
        assert fetch.start <= start < fetch.end, f"a fetch without the byte it is for: {fetch} position={start}"
        return fetch

    async def _fetch_all(self, planned: Sequence[Piece], held: Sequence[Piece], *, is_history: bool) -> dict[Piece, Sequence[memoryview]]:
        """The bytes of pieces that `read` has entered as flying; they leave with this call. The read holds `held` until its end."""
        waiting = iter(planned)
        fetched: dict[Piece, Sequence[memoryview]] = {}

        async def work() -> None:
            for piece in waiting:
                fetched[piece] = await self._flights.run(piece, partial(self._fetch, piece, is_history=is_history))

        try:
            async with self._holding(held, is_history=is_history):
                if len(planned) == 1:
                    await work()
                else:
                    async with asyncio.TaskGroup() as group:
                        for _ in range(min(FETCHES_AT_ONCE, len(planned))):
                            group.create_task(work())
        except ExceptionGroup as failures:
            # What the store raised, not that it was asked several things at once.
            raise failures.exceptions[0] from None
        finally:
            for piece in planned:
                self._land(piece)
        return fetched

    @contextlib.asynccontextmanager
    async def _holding(self, pieces: Sequence[Piece], *, is_history: bool) -> AsyncIterator[None]:
        """A read holds these until its end: those that are here stay here, and for the others there is room."""
        held_bytes = sum([piece.end - piece.start for piece in pieces])
        # History waits for its own share first: while it does, it is in nobody's way.
        share = self._history_room.held(held_bytes) if is_history else contextlib.nullcontext()
        async with share, self._room.held(held_bytes):
            names = [name for piece in pieces for name in self._here(piece)]
            coming_bytes = held_bytes - sum([self._here_bytes(piece) for piece in pieces])
            self._order.pin(names)
            self._count_coming(coming_bytes, is_history=is_history)
            self._make_room(0)
            self._gauge.set(self._bytes_held)
            try:
                yield
            finally:
                self._order.unpin(names)
                self._count_coming(-coming_bytes, is_history=is_history)

    def _count_coming(self, size_bytes: int, *, is_history: bool) -> None:
        self._bytes_coming += size_bytes
        if is_history:
            self._history_bytes_coming += size_bytes

    def _make_room(self, more_bytes: int) -> None:
        while self._bytes_held + self._bytes_coming + more_bytes > self.bytes_max:
            name = self._order.first(fetching_bytes=self._history_bytes_coming)
            if name is None:
                return
            self._evict(*name)

    async def _fetch(self, piece: Piece, *, is_history: bool) -> Sequence[memoryview]:
        if self._here_bytes(piece) == piece.end - piece.start:
            # Another reader fetched it while it waited for its turn here.
            return cut_views([self._views[name] for name in self._here(piece)], 0, piece.end - piece.start)
        # Also by one who took over from a cancelled reader, whose entry is gone.
        self._flying.setdefault(piece.key, []).append(piece)
        try:
            views = [memoryview(part).toreadonly() for part in await self._get(piece)]
        finally:
            self._land(piece)
        if (found_bytes := sum(map(len, views))) != piece.end - piece.start:
            raise EndsEarly(f"a store gave {found_bytes} bytes for {piece}")
        self._keep(piece, views, is_history=is_history)
        return views

    async def _get(self, piece: Piece) -> Sequence[Buffer]:
        size_bytes = piece.end - piece.start
        await self._shares.take(piece.key, size_bytes)
        try:
            return await self.store.get_parts(piece.key, piece.start, piece.end, part_bytes=self.part_bytes)
        finally:
            self._shares.give_back(piece.key, size_bytes)

    def _land(self, piece: Piece) -> None:
        flying = self._flying[piece.key]
        flying.remove(piece)
        if not flying:
            del self._flying[piece.key]

    def _keep(self, piece: Piece, views: Sequence[memoryview], *, is_history: bool) -> None:
        overhead_bytes = self._piece_overhead_bytes * len(views)
        cost = piece.end - piece.start + overhead_bytes
        starts = self._starts.get(piece.key, [])
        index = bisect_right(starts, piece.start)
        overlaps_before = index > 0 and starts[index - 1] + len(self._views[piece.key, starts[index - 1]]) > piece.start
        overlaps_behind = index < len(starts) and starts[index] < piece.end
        # A fetch that was begun again after a cancellation may meet pieces that others fetched meanwhile: they stay.
        if cost > self.bytes_max or overlaps_before or overlaps_behind:
            return
        # While the read goes on that fetched it, it is counted there.
        self._make_room(overhead_bytes)
        if self._bytes_held + cost > self.bytes_max:
            self._gauge.set(self._bytes_held)
            return  # what is left is pinned
        start = piece.start
        for view in views:
            insort(self._starts.setdefault(piece.key, []), start)
            self._views[piece.key, start] = view
            self._order.add((piece.key, start), len(view) + self._piece_overhead_bytes, is_history=is_history)
            start += len(view)
        self._bytes_held += cost
        self._gauge.set(self._bytes_held)

    def _evict(self, key: str, start: int) -> None:
        del self._views[key, start]
        self._bytes_held -= self._order.remove((key, start))
        starts = self._starts[key]
        del starts[bisect_left(starts, start)]
        if not starts:
            del self._starts[key]
