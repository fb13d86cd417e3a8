"""Work that grows with a request, in turns: after a number of items, other tasks get the event loop."""

import asyncio
from collections import Counter
from collections.abc import Callable, Generator, Hashable, Iterable
from itertools import islice
from operator import length_hint
from typing import Final, TypeVar

ITEMS_DEFAULT: Final = 250
"""Items in a turn. Hot loops count with `enumerate` and sleep at its multiples: `spent` costs a call per item."""

T = TypeVar("T")
R = TypeVar("R")
K = TypeVar("K", bound=Hashable)


class Turns:
    """Counts the items of one piece of work, nested loops included. `items` is the number of items in a turn."""

    __slots__ = ("_items", "_left")

    def __init__(self, items: int = ITEMS_DEFAULT) -> None:
        assert items > 0
        self._items = self._left = items

    async def spent(self, items: int = 1) -> None:
        """Count `items` as done. Yields to other tasks when the turn is used up."""
        self._left -= items
        if self._left <= 0:
            self._left = self._items
            await asyncio.sleep(0)

    async def each(self, make: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """Apply `make` to each item, in order. The sequence itself counts as one item: many empty ones take time, too."""
        if (size := length_hint(items, self._left)) + 1 < self._left:
            self._left -= size + 1
            return list(map(make, items))
        made: list[R] = []
        remaining = iter(items)
        while part := tuple(islice(remaining, self._left)):
            made += map(make, part)
            await self.spent(len(part))
        await self.spent()
        return made

    async def by_key(self, make: Callable[[K], R], keys: Iterable[K]) -> dict[K, R]:
        """Apply `make` to each key. Returns the results by key."""
        if (size := length_hint(keys, self._left)) + 1 < self._left:
            self._left -= size + 1
            return {key: make(key) for key in keys}
        made: dict[K, R] = {}
        remaining = iter(keys)
        while part := tuple(islice(remaining, self._left)):
            made.update(zip(part, map(make, part), strict=True))
            await self.spent(len(part))
        await self.spent()
        return made

    async def count(self, keys: Iterable[K]) -> Counter[K]:
        """Count how often each key occurs."""
        counted: Counter[K] = Counter()
        remaining = iter(keys)
        while part := tuple(islice(remaining, self._left)):
            counted.update(part)
            await self.spent(len(part))
        await self.spent()
        return counted


async def in_turns(steps: Generator[None, None, R]) -> R:
    """Run `steps` to its end and return its value. After each step, other tasks have a turn."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            returned: R = end.value
            return returned
        await asyncio.sleep(0)
