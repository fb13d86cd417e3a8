"""Work that grows with what was asked for, in turns: after so many items, others have theirs on the event loop."""

import asyncio
from collections import Counter
from collections.abc import Callable, Generator, Hashable, Iterable
from itertools import islice
from typing import Final, TypeVar

ITEMS_DEFAULT: Final = 250

T = TypeVar("T")
R = TypeVar("R")
K = TypeVar("K", bound=Hashable)


class Turns:
    """Counts the items of one piece of work, loops within loops included. `items`: how many there are to a turn."""

    __slots__ = ("_items", "_left")

    def __init__(self, items: int = ITEMS_DEFAULT) -> None:
        assert items > 0
        self._items = self._left = items

    async def spent(self, items: int = 1) -> None:
        """So many were dealt with. The end of a turn, if that was the last of it."""
        self._left -= items
        if self._left <= 0:
            self._left = self._items
            await asyncio.sleep(0)

    async def each(self, make: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """What `make` makes of each, in their order. The sequence counts as one of them: many that are empty take time, too."""
        made: list[R] = []
        remaining = iter(items)
        while part := tuple(islice(remaining, self._left)):
            made += map(make, part)
            await self.spent(len(part))
        await self.spent()
        return made

    async def by_key(self, make: Callable[[K], R], keys: Iterable[K]) -> dict[K, R]:
        """What `make` makes of each key, by key."""
        made: dict[K, R] = {}
        remaining = iter(keys)
        while part := tuple(islice(remaining, self._left)):
            made.update(zip(part, map(make, part), strict=True))
            await self.spent(len(part))
        await self.spent()
        return made

    async def count(self, keys: Iterable[K]) -> Counter[K]:
        """How often each is there."""
        counted: Counter[K] = Counter()
        remaining = iter(keys)
        while part := tuple(islice(remaining, self._left)):
            counted.update(part)
            await self.spent(len(part))
        await self.spent()
        return counted


async def in_turns(steps: Generator[None, None, R]) -> R:
    """What work in steps returns. After each step, others have their turn."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            returned: R = end.value
            return returned
        await asyncio.sleep(0)
