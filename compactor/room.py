"""A bounded number of bytes for work that runs side by side."""

import asyncio
import contextlib
from collections.abc import AsyncIterator


class ByteRoom:
    """Whoever wants more than there is waits for all of it, and then works alone."""

    def __init__(self, bytes_max: int) -> None:
        assert bytes_max > 0
        self._bytes_max = bytes_max
        self._taken_bytes = 0
        self._less = asyncio.Condition()

    @contextlib.asynccontextmanager
    async def take(self, size_bytes: int) -> AsyncIterator[None]:
        """Wait until there is room for `size_bytes`; it is taken inside."""
        wanted_bytes = min(size_bytes, self._bytes_max)
        async with self._less:
            await self._less.wait_for(lambda: self._taken_bytes + wanted_bytes <= self._bytes_max)
            self._taken_bytes += wanted_bytes
        try:
            yield
        finally:
            async with self._less:
                self._taken_bytes -= wanted_bytes
                self._less.notify_all()
