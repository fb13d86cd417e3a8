"""Offsets by time (ListOffsets)."""

from typing import NamedTuple, Protocol

from storage.vocabulary import PartitionId


class TimestampedOffset(NamedTuple):
    offset: int
    timestamp_ms: int


class Timestamps(Protocol):
    async def first_at_or_after(self, partition: PartitionId, timestamp_ms: int) -> TimestampedOffset | None:
        """The first readable record whose timestamp is >= `timestamp_ms`; None if there is none. Raises `StorageError`."""
        ...

    async def of_maximum(self, partition: PartitionId) -> TimestampedOffset | None:
        """The first record that carries the greatest timestamp; None for an empty log. Raises `StorageError`."""
        ...
