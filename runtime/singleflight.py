"""Concurrent callers who want the same thing share one call.

No task is made: the first caller runs the call itself and the others wait for it. When the first caller is cancelled,
its call is cancelled with it, and one of those who wait runs it again: they do get their answer, at the price of a second
start. So nothing outlives its callers, a call that nobody waits for never runs, and a caller who is alone, which is the
usual case, pays for a dictionary entry and a future.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class SingleFlight(Generic[K, V]):
    """Shares calls that are under way, by key; keeps nothing of those that have ended."""

    def __init__(self) -> None:
        # A flight's result is the call's in a tuple, or None if its caller left before the end.
        self._flights: dict[K, asyncio.Future[tuple[V] | None]] = {}

    def __len__(self) -> int:
        """Calls under way."""
        return len(self._flights)

    def __contains__(self, key: K) -> bool:
        return key in self._flights

    async def run(self, key: K, call: Callable[[], Awaitable[V]]) -> V:
        """The result of the call that is under way for `key`, else of `call`. Its exception reaches all who wait for it.

        All callers of one key must mean the same by `call`, and it must be safe to run again after a cancellation.
        It must not ask for its own key. Cancelling one caller takes nothing from the others; cancelling all cancels it.
        """
        while (flight := self._flights.get(key)) is not None:
            landed = await asyncio.shield(flight)
            if landed is not None:
                return landed[0]
        flight = self._flights[key] = asyncio.get_running_loop().create_future()
        try:
            value = await call()
            flight.set_result((value,))
            return value
        except Exception as error:
            flight.set_exception(error)
            flight.exception()  # it was seen, also when nobody waits
            raise
        finally:
            del self._flights[key]
            if not flight.done():
                flight.set_result(None)
