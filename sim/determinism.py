"""What makes a run depend on its seed alone.

Sets of objects iterate by address, so the sets whose order decides who runs first are replaced by ordered ones, from here: the product
need not care. When cycles are collected depends on what the process did before, and what dies then may wake somebody (a frame gives its
room back, a task closes a generator): none are collected while a seed runs.
"""

import asyncio
import contextlib
import gc
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar
from unittest import mock

from runtime.supervision import Nursery
from storage.log.partition import PartitionLog

T = TypeVar("T")


class OrderedSet(set[T]):
    """A set that iterates in the order of insertion."""

    def __init__(self) -> None:
        super().__init__()
        self._order: dict[T, None] = {}

    def add(self, item: T, /) -> None:
        super().add(item)
        self._order[item] = None

    def discard(self, item: object, /) -> None:
        super().discard(item)
        self._order.pop(item, None)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[T]:
        return iter(self._order)


class OrderedTaskGroup(asyncio.TaskGroup):
    """Cancels its tasks in the order in which they were created."""

    def __init__(self) -> None:
        super().__init__()
        self._tasks = OrderedSet()


class OrderedNursery(Nursery):
    """Cancels its tasks in the order in which they were spawned. Once dead it starts nothing: timers of a killed process do not fire, those
    of a loop that it shared do.
    """

    def __init__(self) -> None:
        super().__init__()
        self._tasks = OrderedSet()
        self._last: asyncio.Task[None] | None = None
        self.is_dead = False

    def spawn(self, coroutine: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        if self.is_dead and self._last is not None:
            coroutine.close()
            return self._last
        try:
            self._last = super().spawn(coroutine, name=name)
        except RuntimeError:
            # A broker of which a part has failed is as good as dead while its other tasks end: what others ask of it meanwhile is lost.
            if self._last is None:
                raise
        return self._last


def _stable_hash(log: PartitionLog) -> int:
    return int(log.partition.topic_id[-6:], 16) << 8 | log.partition.partition


@contextlib.contextmanager
def stable_order() -> Iterator[None]:
    """Sets of partitions, and of the tasks of a group, iterate alike in every run."""
    with mock.patch.object(PartitionLog, "__hash__", _stable_hash), mock.patch.object(asyncio, "TaskGroup", OrderedTaskGroup):
        yield


@contextlib.contextmanager
def no_collection_of_cycles() -> Iterator[None]:
    """None before the end, where those of the seed are collected: a task whose exception nobody retrieved says so then."""
    was_enabled = gc.isenabled()
    gc.collect(1)
    gc.disable()
    try:
        yield
    finally:
        gc.collect(0)  # where no collection runs, all that is new is in the youngest generation
        if was_enabled:
            gc.enable()
