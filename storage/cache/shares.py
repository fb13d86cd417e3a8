"""Places for calls under way, of which one folder of the object store gets a share: a slow prefix leaves places to the others."""

import asyncio
import contextlib
from asyncio import Future, get_running_loop
from collections import deque
from collections.abc import AsyncIterator

from storage.cache.limits import DEFAULT_LIMITS, CacheLimits


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
                return  # a large one is not overtaken for ever by small ones
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
