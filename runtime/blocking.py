"""The bounded pool for calls that block: file writes, fsync, SQLite, rendering of metrics.

The simulation replaces it by one that runs calls at once.
"""

import asyncio
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any, NamedTuple, Protocol, TypeVar

T = TypeVar("T")


class Blocking(Protocol):
    """Runs a blocking call off the event loop."""

    async def run(self, call: Callable[[], T]) -> T:
        """The call's result. Cancelling the wait does not stop a call that has begun: it may still take effect."""
        ...

    def close(self) -> None:
        """Wait for calls that have begun; refuse new ones."""
        ...


class _Call(NamedTuple):
    call: Callable[[], Any]
    done: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop


class ThreadBlocking:
    """A pool of at most `threads` threads; further calls wait in line.

    No `ThreadPoolExecutor`: of what a short call costs the loop there, most is a future of its own, its lock, and the chain that copies its
    result into one of asyncio's.
    """

    def __init__(self, *, threads: int, name: str) -> None:
        assert threads > 0
        self._threads_max = threads
        self._name = name
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._threads: list[Thread] = []
        self._under_way = 0
        self._is_closed = False

    async def run(self, call: Callable[[], T]) -> T:
        if self._is_closed:
            raise RuntimeError(f"the pool is closed: {self._name}")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        if len(self._threads) < min(self._under_way + 1, self._threads_max):
            # A process that ends without `close`, by an error, waits for none of them.
            thread = Thread(target=self._work, name=f"{self._name}_{len(self._threads)}", daemon=True)
            thread.start()  # may fail: then this call does, and the next one tries again
            self._threads.append(thread)
        self._under_way += 1
        self._calls.put(_Call(call, done, loop))
        return await done

    def close(self) -> None:
        self._is_closed = True
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (item := self._calls.get()) is not None:
            call, done, loop = item
            result, error = None, None
            if not done.cancelled():
                try:
                    result = call()
                except BaseException as raised:  # noqa: BLE001 - whoever waits is given it
                    error = raised
            try:
                loop.call_soon_threadsafe(self._end, done, result, error)
            except RuntimeError:
                if not loop.is_closed():
                    raise
                # It was closed while the call went on: nobody waits.
            # Else they live until the next call comes.
            del item, call, done, result, error

    def _end(self, done: "asyncio.Future[Any]", result: object, error: BaseException | None) -> None:
        self._under_way -= 1
        if done.done():
            return  # cancelled meanwhile
        if error is None:
            done.set_result(result)
        elif isinstance(error, StopIteration):
            done.set_exception(RuntimeError(f"a call raised {error!r}, which no future takes"))
        else:
            done.set_exception(error)


class InlineBlocking:
    """Runs each call at once on the loop: for the simulation and for stores that never block."""

    async def run(self, call: Callable[[], T]) -> T:
        return call()

    def close(self) -> None:
        return None
