"""One produced batch on its way into the log, and the append (one Produce request) it belongs to."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from storage.errors import StorageError, without_frames
from storage.recordbatch import NO_PRODUCER, BatchHeader


class Appended(NamedTuple):
    """The batch is durable and committed at `base_offset`; `log_start` is where its log began then."""

    base_offset: int
    log_start: int

    @property
    def is_duplicate(self) -> bool:
        """Whether it was there before, and this was a repeat."""
        return False


class AppendedBefore(Appended):
    """What a repeat is answered: the same as the first time."""

    __slots__ = ()

    @property
    def is_duplicate(self) -> bool:
        return True


@dataclass(slots=True)
class Append:
    """Batches that are answered together. `on_done` is called once, on the loop, when the last of them has its result.

    `source` is what arrived in order and expects that order: a connection. A batch without sequences is refused when an earlier one of
    its source and partition was lost, so that it cannot overtake its own retry.
    """

    source: object
    on_done: Callable[["Append"], None]
    results: list[Appended | StorageError | None]
    remaining: int
    arrived: int = -1
    """How many losses there were when it arrived (storage/log/partition.py); -1: its batches go into the log in the turn they arrive in."""
    began_s: float = 0.0
    """When its batches arrived, by the monotonic clock; 0 unless some may be traced."""

    def settle(self, index: int, result: Appended | StorageError) -> None:
        if self.results[index] is not None:
            return
        self.results[index] = without_frames(result) if isinstance(result, StorageError) else result
        self.remaining -= 1
        if self.remaining == 0:
            # What it is answered with refers to the whole request: a batch that lingers somewhere must not.
            on_done, self.on_done = self.on_done, _nothing
            on_done(self)


def _nothing(_append: Append) -> None:
    pass


@dataclass(slots=True, eq=False)
class Batch:
    """`view` is exactly one batch, writable: it is given its offset in place once that is known (I8). It is released with the result: what
    has been answered holds no memory, wherever it still waits.
    """

    view: memoryview
    append: Append
    index: int
    producer_id: int
    producer_epoch: int
    first_seq: int
    record_count: int
    max_timestamp: int
    size_bytes: int
    position: int = field(default=-1)
    """Where it lies in its WAL object, once that is known."""
    is_settled: bool = False

    @property
    def has_sequence(self) -> bool:
        return self.producer_id != NO_PRODUCER

    def settle(self, result: Appended | StorageError) -> None:
        self.view = _RELEASED
        self.is_settled = True
        self.append.settle(self.index, result)


_RELEASED: Final = memoryview(bytearray())


def batch_of(view: memoryview, header: BatchHeader, append: Append, index: int) -> Batch:
    return Batch(
        view=view,
        append=append,
        index=index,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        first_seq=header.base_sequence,
        record_count=header.record_count,
        max_timestamp=header.max_timestamp,
        size_bytes=len(view),
    )
