"""What the last look at a partition found: so that one that has not changed, and is not due yet, costs one read of its control record."""

from collections.abc import Container
from typing import NamedTuple

from compactor.discovery import FoundPartition
from compactor.limits import DEFAULT_LIMITS, CompactorLimits
from storage.formats.control import LogState
from storage.vocabulary import PartitionId


class LastLook(NamedTuple):
    """`version` of the control record, for which there is nothing to do before `again_ms`; nor for a later one if it `failed`.
    `waiting_bytes` wait since `since_ms`.
    """

    version: int
    again_ms: int
    waiting_bytes: int
    since_ms: int | None
    failed: bool = False


class Looks:
    """What one compactor remembers."""

    def __init__(self, *, limits: CompactorLimits = DEFAULT_LIMITS) -> None:
        self._kept_max = limits.looks_kept_max
        self._kept: dict[PartitionId, LastLook] = {}

    def is_due(self, found: FoundPartition, *, now_ms: int) -> bool:
        """Whether the partition is worth a look: because of the entries above its cursor, or of what somebody has left undone."""
        control, kept = found.control, self._kept.get(found.partition)
        if kept is not None and kept.failed and now_ms < kept.again_ms:
            return False
        if found.is_begun:
            return True
        if control.log_state is LogState.DELETED or max(control.compaction_cursor, control.log_start) == control.sequence_counter:
            self.forget(found.partition)
            return False
        return kept is None or now_ms >= kept.again_ms or kept.version != found.version

    def note(self, partition: PartitionId, look: LastLook) -> None:
        if partition in self._kept or len(self._kept) < self._kept_max:
            self._kept[partition] = look

    def forget(self, partition: PartitionId) -> None:
        self._kept.pop(partition, None)

    def keep_only(self, partitions: Container[PartitionId]) -> None:
        """Others are gone, or somebody else's."""
        for partition in [one for one in self._kept if one not in partitions]:
            del self._kept[partition]

    @property
    def waiting_bytes(self) -> int:
        return sum(look.waiting_bytes for look in self._kept.values())

    @property
    def oldest_ms(self) -> int | None:
        """When the first of the entries that wait was written."""
        return min((look.since_ms for look in self._kept.values() if look.since_ms is not None), default=None)
