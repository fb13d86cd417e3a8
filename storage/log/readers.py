"""What one broker keeps of a partition for its readers: runs of its own last commits, and whom to wake when the log moves."""

from collections.abc import Callable

from storage.log.tail import Tail


class Readers:
    """`tail` is filled and emptied by the `TailCache` of all partitions. `wakers` are entered and removed by who waits
    (broker/fetching/waiters.py), woken in the order in which they came.
    """

    __slots__ = ("tail", "wakers")

    def __init__(self) -> None:
        self.tail = Tail()
        self.wakers: dict[Callable[[], None], None] = {}

    def wake(self) -> None:
        for waker in tuple(self.wakers):
            waker()
