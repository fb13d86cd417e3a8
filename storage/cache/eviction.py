"""Which piece of a cache makes room: consumers that go through history do not evict what is read at the tail.

The order is pure bookkeeping: it holds names and sizes, and the cache holds the pieces. These go, in this order:

1. pieces of history that consumers in order have left behind, the one that was left longest ago first;
2. while history has more than its share, the piece of history that was used longest ago;
3. the piece that was used longest ago, whether history or the tail used it.

So history may use all that the tail does not need, and the tail takes it back by using it. Consumers at the tail read the same within
seconds of each other: a piece that none of them has used for TAIL_KEPT_S is a piece of history. A piece that is pinned does not go.
Pieces that consumers in order are yet to read are the last of history to go, though they came longest before their use: each would have to
come again, and push out what came for others.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from typing import Final

HISTORY_SHARE_MAX: Final = 1 / 2
"""As a share of the cache: with more, history evicts its own pieces and none of the tail."""

TAIL_KEPT_S: Final = 10.0
"""Beyond that the ends of logs that nobody writes to, or nobody follows, would take from history what consumers of it are to read."""
AGED_AT_ONCE_MAX: Final = 4

Name = tuple[str, int]
"""The object and the first byte of a piece."""


class _Kept:
    __slots__ = ("name", "size_bytes", "used", "used_s")

    def __init__(self, name: Name, size_bytes: int) -> None:
        self.name = name  # one object, in whatever order it is: the one that the cache has, too
        self.size_bytes = size_bytes
        self.used = 0
        self.used_s = 0.0  # by the tail


class EvictionOrder:
    """`history_bytes` are those of all pieces that history used and the tail did not, or not lately, `left_behind_bytes` of those that were
    left, and `claimed_bytes` of those that are yet to be read.
    """

    def __init__(self, *, history_bytes_max: int, monotonic_s: Callable[[], float]) -> None:
        self._history_bytes_max = history_bytes_max
        self._monotonic_s = monotonic_s
        self.history_bytes = self.left_behind_bytes = self.claimed_bytes = 0
        self._uses = 0
        self._tail: OrderedDict[Name, _Kept] = OrderedDict()
        self._idle: OrderedDict[Name, _Kept] = OrderedDict()
        """The part of history that the tail used last."""
        self._history: OrderedDict[Name, _Kept] = OrderedDict()
        self._claimed: OrderedDict[Name, _Kept] = OrderedDict()
        self._left_behind: OrderedDict[Name, _Kept] = OrderedDict()
        self._pins: Counter[Name] = Counter()

    def add(self, name: Name, size_bytes: int, *, is_history: bool) -> None:
        self._enter(_Kept(name, size_bytes), is_history=is_history)

    def use(self, name: Name, *, is_history: bool) -> None:
        """The piece was read. A piece of the tail keeps its place when history reads it: history does not keep it alive. A claimed one
        stays claimed.
        """
        if is_history and (name in self._claimed or self._is_tails(name)):
            return
        self._enter(self._take(name), is_history=is_history)

    def claim(self, name: Name) -> None:
        """Consumers in order are yet to read the piece. The tail keeps what it uses."""
        if name in self._claimed or self._is_tails(name):
            return
        kept = self._take(name)
        self._uses += 1
        kept.used = self._uses
        self._claimed[kept.name] = kept
        self.history_bytes += kept.size_bytes
        self.claimed_bytes += kept.size_bytes

    def release(self, name: Name) -> None:
        """All of them have begun to read it, or read elsewhere: it counts as used now."""
        if name in self._claimed:
            self._enter(self._take(name), is_history=True)

    def leave_behind(self, name: Name) -> None:
        """Consumers in order went on behind the piece: it is among the first to go if history alone has used it."""
        if name in self._left_behind or self._is_tails(name):
            return
        kept = self._take(name)
        self._left_behind[kept.name] = kept
        self.history_bytes += kept.size_bytes
        self.left_behind_bytes += kept.size_bytes

    def remove(self, name: Name) -> int:
        """Returns its size."""
        return self._take(name).size_bytes

    def pin(self, names: Iterable[Name]) -> None:
        """A read that goes on holds these pieces: they are in memory whether the cache has them or not."""
        self._pins.update(names)

    def unpin(self, names: Iterable[Name]) -> None:
        for name in names:
            self._pins[name] -= 1
            if not self._pins[name]:
                del self._pins[name]

    def first(self, *, fetching_bytes: int) -> Name | None:
        """The piece that goes next; None if there is none that is not pinned. `fetching_bytes` are on their way to history."""
        self._age()
        next_piece = self._oldest(self._left_behind) or self._next_by_age(fetching_bytes)
        return None if next_piece is None else next_piece.name

    def _next_by_age(self, fetching_bytes: int) -> _Kept | None:
        unclaimed = _older(self._oldest(self._history), self._oldest(self._idle))
        of_history, of_tail = unclaimed or self._oldest(self._claimed), self._oldest(self._tail)
        if of_history is not None and self.history_bytes + fetching_bytes > self._history_bytes_max:
            return of_history
        return _older(of_history, of_tail)

    def _age(self) -> None:
        """Make history of a few pieces that the tail does not use any more. They are as old as they were."""
        for _ in range(AGED_AT_ONCE_MAX):
            name = next(iter(self._tail), None)
            if name is None or self._is_tails(name):
                return
            kept = self._idle[name] = self._tail.pop(name)
            self.history_bytes += kept.size_bytes

    def _is_tails(self, name: Name) -> bool:
        kept = self._tail.get(name)
        return kept is not None and self._monotonic_s() - kept.used_s < TAIL_KEPT_S

    def _oldest(self, order: OrderedDict[Name, _Kept]) -> _Kept | None:
        return next((kept for name, kept in order.items() if name not in self._pins), None)

    def _enter(self, kept: _Kept, *, is_history: bool) -> None:
        self._uses += 1
        kept.used = self._uses
        if is_history:
            self._history[kept.name] = kept
            self.history_bytes += kept.size_bytes
        else:
            self._tail[kept.name] = kept
            kept.used_s = self._monotonic_s()

    def _take(self, name: Name) -> _Kept:
        kept = self._tail.pop(name, None)
        if kept is not None:
            return kept
        kept = self._history.pop(name, None) or self._idle.pop(name, None)
        if kept is None and (kept := self._claimed.pop(name, None)) is not None:
            self.claimed_bytes -= kept.size_bytes
        if kept is None:
            kept = self._left_behind.pop(name)
            self.left_behind_bytes -= kept.size_bytes
        self.history_bytes -= kept.size_bytes
        return kept


def _older(one: _Kept | None, other: _Kept | None) -> _Kept | None:
    if one is None or other is None:
        return one or other
    return one if one.used < other.used else other
