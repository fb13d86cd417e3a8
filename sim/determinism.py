"""What makes a run depend on its seed alone, and what makes a short run reach the corners that a large log reaches in days.

Sets of objects iterate by address, so the sets whose order decides who runs first are replaced by ordered ones, from here: the product
need not care. `SMALL_LIMITS` lowers bounds so that the ring, the spill and the caches overflow within seconds.
"""

import asyncio
import contextlib
from collections.abc import Coroutine, Iterable, Iterator
from typing import Any, Final, TypeVar

from runtime.supervision import Nursery
from storage.log import append, commit, control_reads, dead_writers, decide, index, page_store, producer_pages, read, tail, upload
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
        self._last = super().spawn(coroutine, name=name)
        return self._last


def _stable_hash(log: PartitionLog) -> int:
    return log.partition.partition


@contextlib.contextmanager
def stable_order() -> Iterator[None]:
    """Sets of partitions iterate alike in every run. A partition number is a good enough hash for a handful of them."""
    with _replaced(PartitionLog, "__hash__", _stable_hash):
        yield


SMALL_LIMITS: Final = (
    (decide, "PENDING_ENTRIES_MAX", 3),
    (producer_pages, "PRODUCERS_HOT_MAX", 2),
    (producer_pages, "PRODUCER_PAGE_BYTES_MAX", 600),
    (producer_pages, "PRODUCER_PAGES_WRITTEN_MAX", 2),
    (page_store, "PAGES_CACHED_MAX", 2),
    (page_store, "SWEEP_EVERY_S", 1.0),
    (dead_writers, "WRITERS_KEPT_MAX", 2),
    (dead_writers, "LOOK_EVERY_S", 0.2),
    (index, "CHUNKS_KEPT_MAX", 2),
    (read, "HINTS_KEPT_MAX", 2),
    (tail, "JOIN_BELOW_BYTES", 100),
)
SHORT_DEADLINES: Final = (
    (append, "COMMIT_TIMEOUT_S", 1.5),
    (commit, "WRITE_TIMEOUT_S", 0.5),
    (control_reads, "READ_TIMEOUT_S", 0.5),
    (page_store, "TIMEOUT_S", 0.5),
    (upload, "TRY_TIMEOUT_S", 0.5),
    (upload, "UPLOAD_TIMEOUT_S", 1.0),
)
"""Short beside the outages and pauses of a run, so that commits are given up, abandoned and buried."""


@contextlib.contextmanager
def replaced(constants: Iterable[tuple[object, str, float]]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for module, name, value in constants:
            stack.enter_context(_replaced(module, name, value))
        yield


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: object) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
