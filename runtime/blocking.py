"""The bounded pool for calls that block: file writes, fsync, SQLite, rendering of metrics.

The simulation replaces it by one that runs calls at once.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

T = TypeVar("T")


class Blocking(Protocol):
    """Runs a blocking call off the event loop."""

    async def run(self, call: Callable[[], T]) -> T:
        """The call's result. Cancelling the wait does not stop a call that has begun: it may still take effect."""
        ...

    def close(self) -> None:
        """Wait for calls that have begun; refuse new ones."""
        ...


class ThreadBlocking:
    """A pool of at most `threads` threads; further calls wait in line."""

    def __init__(self, *, threads: int, name: str) -> None:
        assert threads > 0
        self._pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix=name)

    async def run(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    def close(self) -> None:
        self._pool.shutdown(wait=True)


class InlineBlocking:
    """Runs each call at once on the loop: for the simulation and for stores that never block."""

    async def run(self, call: Callable[[], T]) -> T:
        return call()

    def close(self) -> None:
        return None
