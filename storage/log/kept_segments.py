"""Entries of segments that were read, bounded over all partitions."""

from runtime.lru import LruCache
from storage.formats.control import SegmentEntry
from storage.log.limits import DEFAULT_LIMITS, LogLimits
from storage.vocabulary import PartitionId


class KeptSegments:
    """The segment found longest ago is dropped first; the next reader fetches it again."""

    def __init__(self, *, limits: LogLimits = DEFAULT_LIMITS) -> None:
        self._kept_max = limits.segments_kept_max
        self._by_partition: LruCache[PartitionId, tuple[SegmentEntry, ...]] = LruCache(limits.segment_partitions_kept_max)

    def __len__(self) -> int:
        """Partitions with a segment."""
        return len(self._by_partition)

    def find(self, partition: PartitionId, offset: int) -> SegmentEntry | None:
        for segment in self._by_partition.peek(partition) or ():
            if segment.base <= offset <= segment.last:
                return segment
        return None

    def add(self, partition: PartitionId, segment: SegmentEntry) -> None:
        """In place of those whose offsets it holds: readers do not go back behind a merge."""
        others = [kept for kept in self._by_partition.peek(partition) or () if kept.base < segment.base or segment.last < kept.last]
        self._by_partition.put(partition, (segment, *others)[: self._kept_max])

    def drop(self, partition: PartitionId) -> None:
        """All of its segments: something read by them was not there."""
        self._by_partition.pop(partition)
