"""Answers that take more than a turn of the event loop: few are made and written at a time, others wait before they hold any of theirs."""

import asyncio


class LargeAnswer:
    """The place of one request among the few. Whoever finds its answer to be large takes it, when all that the answer is made of has been
    read: with the place, nothing is waited for but turns of the loop."""

    __slots__ = ("_is_taken", "_places")

    def __init__(self, places: asyncio.Semaphore) -> None:
        self._places = places
        self._is_taken = False

    async def take(self) -> None:
        """Wait for the place, in the order of asking; at once if it is taken already. Cancelled: it is not taken."""
        if not self._is_taken:
            await self._places.acquire()
            self._is_taken = True

    def give_back(self) -> None:
        """When the answer has been written, or will not be."""
        if self._is_taken:
            self._is_taken = False
            self._places.release()


def only_one() -> LargeAnswer:
    """The large answer of a request that shares with no other."""
    return LargeAnswer(asyncio.Semaphore())
