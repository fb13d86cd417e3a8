"""Room for the bytes that reads under way hold, granted in the order of asking."""

import asyncio
import contextlib
from collections.abc import AsyncIterator


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
