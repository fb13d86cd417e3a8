"""Bytes that commits of this broker carry and nothing has compacted yet. They lie in the metadata store, so they have a bound.

While a compactor runs they are few. Where none runs, something at a cursor is damaged, or the object store is away, they grow with all that
is produced. At the bound batches are gathered for objects again, until three quarters are left; an object store that is away then refuses
them, as it refuses large ones. The count is an estimate: it goes down as far as a partition's cursor, or its log's start, moves. It begins
at 0 with each life of a broker.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable
from itertools import islice
from typing import Final

import structlog

from runtime.supervision import Nursery
from runtime.telemetry import Metric, Telemetry
from storage.formats.manifest import Manifest
from storage.limits import MIB
from storage.log.fresh_reads import ManifestReads
from storage.log.partition import PartitionLog, Partitions
from storage.vocabulary import PartitionId

INLINE_BACKLOG_BYTES: Final = Metric(
    "forebay_inline_uncompacted_bytes", "Bytes that commits of this broker carried and nothing has compacted, about", aggregation="sum"
)
AGAIN_SHARE: Final = 3 / 4
"""The part of the bound from which on it is looked for what was compacted, and below which commits carry batches again."""
LOOK_EVERY_S: Final = 10.0
LOOKED_AT_MAX: Final = 500
"""Partitions whose manifests are read in one look: nothing else may ask for those that are idle."""
PARTITIONS_MAX: Final = 100_000
"""Partitions with such bytes; as many count as the bound."""

_log: Final = structlog.get_logger()


class _PartitionBacklog:
    """`first` is the offset below which nothing of the partition is left in the metadata store; None until its manifest is known."""

    __slots__ = ("first", "size_bytes")

    def __init__(self) -> None:
        self.first: int | None = None
        self.size_bytes = 0


class InlineBacklog:
    def __init__(
        self, *, bytes_max: int, partitions: Partitions, manifest_reads: ManifestReads, nursery: Nursery, telemetry: Telemetry
    ) -> None:
        self.is_full = False
        self._is_looking = False
        self._bytes_max = bytes_max
        self._size_bytes = 0
        self._of: OrderedDict[PartitionId, _PartitionBacklog] = OrderedDict()
        """The last are those that were looked at last."""
        self._partitions = partitions
        self._manifest_reads = manifest_reads
        self._nursery = nursery
        telemetry.gauge(INLINE_BACKLOG_BYTES).set_function(lambda: self._size_bytes)

    def add(self, log: PartitionLog, size_bytes: int) -> None:
        """Count bytes that a commit of `log` carries."""
        of = self._of.get(log.partition)
        if of is None:
            of = self._of[log.partition] = _PartitionBacklog()
        manifest = log.seen.manifest
        if manifest is not None and of.first != _first_left(manifest):
            self._take_off(of, manifest)
        of.size_bytes += size_bytes
        self._size_bytes += size_bytes
        if self._is_above(AGAIN_SHARE) and not self._is_looking and not self._nursery.is_left:
            self._is_looking = True
            self._nursery.spawn(self._look(), name="look-for-compacted")
        if self._is_above(1.0) and not self.is_full:
            self._begin_full()

    def _is_above(self, share: float) -> bool:
        return self._size_bytes > share * self._bytes_max or len(self._of) > share * PARTITIONS_MAX

    def _begin_full(self) -> None:
        self.is_full = True
        _log.warning(
            "commits_carry_nothing",
            cause=f"{self._size_bytes / MIB:.0f} MiB that they carried lie in the metadata store and are not compacted",
            effect="small batches wait for an object each flush interval; while the object store is away they are refused",
            fix="see `forebay compactor status` for what stands still, and start a compactor if none runs",
        )

    async def _look(self) -> None:
        while self._is_above(AGAIN_SHARE):
            await asyncio.sleep(LOOK_EVERY_S)
            looked_at = list(islice(self._of, LOOKED_AT_MAX))
            logs = [self._partitions.get(one) for one in looked_at]
            failed = await self._manifest_reads.refresh_each(logs)
            self._note(log for log in logs if log not in failed)
            for one in looked_at:
                if one in self._of:
                    self._of.move_to_end(one)
        self._is_looking = False
        if self.is_full:
            self.is_full = False
            _log.info("commits_carry_again", left_bytes=self._size_bytes)

    def _note(self, logs: Iterable[PartitionLog]) -> None:
        for log in logs:
            of = self._of.get(log.partition)
            if of is None:
                continue
            if log.seen.is_gone:
                self._size_bytes -= of.size_bytes
                of.size_bytes = 0
            elif log.seen.manifest is not None:
                self._take_off(of, log.seen.manifest)
            if not of.size_bytes:
                del self._of[log.partition]

    def _take_off(self, of: _PartitionBacklog, manifest: Manifest) -> None:
        """Take what has left the metadata store since the last time off the count."""
        first, end = _first_left(manifest), manifest.sequence_counter
        if of.first is not None and of.first < first:
            left = int(of.size_bytes * max(0, end - first) / max(1, end - of.first))
            self._size_bytes -= of.size_bytes - left
            of.size_bytes = left
        of.first = first


def _first_left(manifest: Manifest) -> int:
    return max(manifest.compaction_cursor, manifest.log_start)
