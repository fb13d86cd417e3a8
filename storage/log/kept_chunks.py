"""Chunks of indexes that were read, bounded over all partitions: facts that never change, so they may outlive what is known of a log."""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from storage.formats.control import IndexChunk, entries_bytes
from storage.log.limits import DEFAULT_LIMITS, LogLimits
from storage.vocabulary import PartitionId

CHUNK_BYTES: Final = 512
"""The memory of a chunk and its index, without its entries."""


class KeptChunks:
    """The chunk read longest ago is dropped first; the next reader fetches it again."""

    def __init__(self, *, limits: LogLimits = DEFAULT_LIMITS) -> None:
        self._kept_max, self._bytes_max = limits.chunks_kept_max, limits.chunks_bytes_max
        self._by_partition: dict[PartitionId, OrderedDict[int, IndexChunk]] = {}
        self._order: OrderedDict[tuple[PartitionId, int], int] = OrderedDict()
        self.size_bytes = 0
        """Estimated memory."""

    def __len__(self) -> int:
        return len(self._order)

    def of(self, partition: PartitionId) -> Iterable[IndexChunk]:
        chunks = self._by_partition.get(partition)
        return () if chunks is None else chunks.values()

    def add(self, partition: PartitionId, chunk: IndexChunk) -> None:
        last = chunk.entries[-1].last
        self._remove(partition, last)
        chunks = self._by_partition.setdefault(partition, OrderedDict())
        chunks[last] = chunk
        size_bytes = self._order[partition, last] = CHUNK_BYTES + entries_bytes(chunk.entries)
        self.size_bytes += size_bytes
        while len(chunks) > self._kept_max:
            self._remove(partition, next(iter(chunks)))
        while self.size_bytes > self._bytes_max:
            self._remove(*next(iter(self._order)))

    def drop(self, partition: PartitionId) -> None:
        """All of them: something read by them was not there."""
        for last in tuple(self._by_partition.get(partition, ())):
            self._remove(partition, last)

    def _remove(self, partition: PartitionId, last: int) -> None:
        size_bytes = self._order.pop((partition, last), None)
        if size_bytes is None:
            return
        self.size_bytes -= size_bytes
        chunks = self._by_partition[partition]
        del chunks[last]
        if not chunks:
            del self._by_partition[partition]
