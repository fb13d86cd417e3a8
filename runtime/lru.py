"""A cache of bounded cost that drops the entries used longest ago."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


def _one(_: object) -> int:
    return 1


class LruCache(Generic[K, V]):
    """Entries whose costs are at most `cost_max` together: the one put or used longest ago goes first. The newest stays, whatever it costs.

    `cost` says what a value costs, and must always say the same of it; by default each costs 1.
    """

    __slots__ = ("_cost", "_cost_max", "_entries", "total_cost")

    def __init__(self, cost_max: int, *, cost: Callable[[V], int] = _one) -> None:
        self._cost = cost
        self._cost_max = cost_max
        self._entries: OrderedDict[K, V] = OrderedDict()
        self.total_cost = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[K]:
        """Yield keys, the next to go first. The cache must not change meanwhile."""
        return iter(self._entries)

    def peek(self, key: K) -> V | None:
        """Return the value, which does not count as a use."""
        return self._entries.get(key)

    def get(self, key: K) -> V | None:
        value = self._entries.get(key)
        if value is not None:
            self._entries.move_to_end(key)
        return value

    def put(self, key: K, value: V) -> None:
        """Keep the value in place of an earlier one, and drop others until all costs fit."""
        self.pop(key)
        self._entries[key] = value
        self.total_cost += self._cost(value)
        while self.total_cost > self._cost_max and len(self._entries) > 1:
            _, oldest = self._entries.popitem(last=False)
            self.total_cost -= self._cost(oldest)

    def pop(self, key: K) -> V | None:
        if key not in self._entries:
            return None
        value = self._entries.pop(key)
        self.total_cost -= self._cost(value)
        return value
