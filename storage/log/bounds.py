"""Where a partition's log begins and ends, as of a read issued after the question was asked (promise 5)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from storage.errors import StorageError
from storage.vocabulary import PartitionId


@dataclass(frozen=True, slots=True)
class LogBounds:
    log_start: int
    high_watermark: int
    bytes_total: int


class Bounds(Protocol):
    async def read(self, partitions: Sequence[PartitionId]) -> list[LogBounds | StorageError]:
        """In the order asked for; `NotFound` for a partition that does not exist (or is deleted), `Unavailable` when unreadable."""
        ...
