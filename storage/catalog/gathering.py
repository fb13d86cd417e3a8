"""Concurrent questions to the metadata store share one read.

No answer comes from a read that began before its question: at most one read runs, and questions that arrive meanwhile form the next.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from runtime.turns import Turns
from storage.errors import StorageError

K = TypeVar("K")
V = TypeVar("V")


@dataclass(slots=True)
class _Round(Generic[K, V]):
    keys: dict[K, None]
    done: asyncio.Future[dict[K, V] | StorageError | None]
    """None: whoever ran it was cancelled, or failed in a way that is its own business."""


class SharedReads(Generic[K, V]):
    """`read` is given the keys of all questions of a round, without repeats, and answers every one of them."""

    def __init__(self, read: Callable[[list[K]], Awaitable[dict[K, V]]]) -> None:
        self._read = read
        self._open: _Round[K, V] | None = None
        self._running: asyncio.Future[dict[K, V] | StorageError | None] | None = None

    async def ask(self, keys: Iterable[K]) -> dict[K, V]:
        """The answers to `keys`. Raises what `read` raises. Cancelling one asker costs the others at most a new round."""
        wanted = dict.fromkeys(keys)
        while self._open is not None:
            joined = self._open
            joined.keys.update(wanted)
            await asyncio.wait({joined.done})
            outcome = joined.done.result()
            if isinstance(outcome, StorageError):
                raise outcome
            if outcome is not None:
                return await Turns().by_key(outcome.__getitem__, wanted)
        return await self._run(wanted)

    async def _run(self, wanted: dict[K, None]) -> dict[K, V]:
        current = _Round[K, V](dict(wanted), asyncio.get_running_loop().create_future())
        previous, self._running = self._running, current.done
        self._open = current
        outcome: dict[K, V] | StorageError | None = None
        try:
            if previous is not None:
                await asyncio.wait({previous})
            self._open = None
            outcome = await self._read(list(current.keys))
        except StorageError as error:
            outcome = error
            raise
        finally:
            if self._open is current:
                self._open = None
            if self._running is current.done:
                # Cancelled while it waited its turn: the one before it may still be reading.
                self._running = previous if previous is not None and not previous.done() else None
            current.done.set_result(outcome)
        if len(outcome) == len(wanted):
            return outcome
        return await Turns().by_key(outcome.__getitem__, wanted)
