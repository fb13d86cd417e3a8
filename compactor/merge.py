"""One merge of a partition: small neighbours in segments/ become one (docs/internals/design/upkeep.md#merging, model Forebay-merge).

    claim → plan → the object → [read manifest] → [sources as they are, under their versions] → [CAS manifest: rewritten]
          → the merge under every key in its range, each under the version that was scanned → [scan] → [CAS manifest: no rewritten]

The first CAS commits. Before it nothing has changed for anybody; after it anybody finishes. Old objects, and the object of a merge that was
not committed, are the collector's: a merge deletes nothing. The claim is that of compactions; it saves work and protects nothing.
"""

import asyncio
import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from compactor.limits import DEFAULT_LIMITS, CompactorLimits
from compactor.plan import MergePolicy, MergeRefusal, begin_rewriting, choose, is_inside, merge_of
from compactor.records import Claims, Records
from runtime.ids import Entropy, IdSource
from storage.errors import AlreadyExists, Corrupt, EndsEarly, NotFound, Unavailable
from storage.formats.manifest import LogState, Manifest, SegmentEntry, SegmentFact, decode_manifest, decode_segment, encode, with_rewritten
from storage.formats.segment import FOOTER_READ_BYTES, SegmentWriter, check_block, decode_footer, footer_bytes_missing, segment_key
from storage.metadata.keys import PartitionKeys
from storage.metadata.port import Applied, Key, MetadataStore, Put, Record, Session, Status
from storage.objects.port import ObjectStore
from storage.vocabulary import ObjectId, PartitionId

TOUCHES_MAX: Final = 4
"""Against others that touch the same sources at the same time."""
ROUNDS_MAX: Final = 4
"""Scans of a merge's keys, each of which but the last is followed by puts."""


class MergeEnd(Enum):
    """How a merge ended."""

    MERGED = "merged"
    NOTHING_DUE = "nothing_due"
    CLAIMED = "claimed"
    """Another compactor is at the partition."""
    GONE = "gone"
    OVERTAKEN = "overtaken"
    """Another merge, or retention, was faster."""
    REVOKED = "revoked"


_END_BY: Final = {
    MergeRefusal.GONE: MergeEnd.GONE,
    MergeRefusal.UNDER_WAY: MergeEnd.OVERTAKEN,
    MergeRefusal.REVOKED: MergeEnd.REVOKED,
    MergeRefusal.NEWEST: MergeEnd.OVERTAKEN,
}


@dataclass(frozen=True, slots=True)
class MergeResult:
    """`recovered`: an earlier merge has committed it. `read_bytes` are those of the objects of the sources."""

    ended: MergeEnd
    merged: SegmentEntry | None = None
    sources: int = 0
    read_bytes: int = 0
    recovered: bool = False


class _Source(NamedTuple):
    segment: SegmentEntry
    record: Record
    """Under the key of its last offset."""


class Merging:
    """Merges segments of partitions, one call each. Calls may run side by side, for different partitions.

    Errors of a call: `Corrupt` (an object or record is not what was written: the partition is left as it is), `IncompatibleFormat`,
    `Unavailable`, `OutcomeUnknown`; all but the first two go away with another call. Cancelled: as if the process had died.
    Must not run in a cluster below format level 2. Memory: the objects of the sources, `policy.segment_bytes` at most.
    """

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        objects: ObjectStore,
        session: Session,
        ids: IdSource,
        policy: MergePolicy | None = None,
        entropy: Entropy = os.urandom,
        claims: Claims | None = None,
        limits: CompactorLimits = DEFAULT_LIMITS,
    ) -> None:
        """`claims`: as of a `Compaction`."""
        self._limits = limits
        self._records = Records(metadata, entropy=entropy, limits=limits)
        self._objects = objects
        self._claims = claims or Claims(self._records, name=ids.random_uuid().encode(), session=session)
        self._ids = ids
        self._policy = policy or MergePolicy()
        self._running: set[PartitionId] = set()

    async def run(self, partition: PartitionId) -> MergeResult:
        """Finish a merge that was committed; else merge segments, if some are due."""
        assert partition not in self._running, f"merged already: {partition}"
        keys = PartitionKeys(partition)
        self._running.add(partition)
        try:
            # Most partitions have nothing to merge, and a claim is two writes.
            if isinstance(looked := await self._look(keys), MergeResult):
                return looked
            claimed = await self._claims.take(keys.compactor_claim)
            if claimed is None:
                return MergeResult(MergeEnd.CLAIMED)
            try:
                return await self._run(partition, keys)
            finally:
                await self._claims.release(keys.compactor_claim, claimed)
        finally:
            self._running.discard(partition)

    async def _look(self, keys: PartitionKeys) -> tuple[Manifest, Sequence[_Source]] | MergeResult:
        """What there is to do: a merge to finish, which the manifest names, or sources to merge. A result if there is nothing."""
        (record,) = await self._records.get(keys.manifest)
        manifest = None if record is None else decode_manifest(record.value, path=record.path)
        if manifest is None or manifest.log_state is LogState.DELETED:
            return MergeResult(MergeEnd.GONE)
        sources = () if manifest.rewritten is not None else await self._due(keys, manifest)
        return (manifest, sources) if sources or manifest.rewritten is not None else MergeResult(MergeEnd.NOTHING_DUE)

    async def _run(self, partition: PartitionId, keys: PartitionKeys) -> MergeResult:
        if isinstance(looked := await self._look(keys), MergeResult):
            return looked
        manifest, sources = looked
        if manifest.rewritten is not None:
            ended = await self._finish(keys, manifest.rewritten)
            return MergeResult(ended, manifest.rewritten, recovered=True)
        read_bytes = sum(source.segment.size_bytes for source in sources)
        try:
            merged = await self._write_segment(partition, manifest, sources)
        except (NotFound, EndsEarly) as error:
            # They may have gone since. Of merged ones a write tells for certain; trimmed ones keep their keys for a while.
            if await self._touch(keys, sources) and not await self._is_trimmed(keys, sources):
                raise Corrupt(f"the object of a live segment is missing or cut: partition={partition} cause={error}") from error
            return MergeResult(MergeEnd.OVERTAKEN, sources=len(sources))
        ended = await self._commit(keys, sources, merged)
        if ended is MergeEnd.MERGED:
            ended = await self._finish(keys, merged)
        return MergeResult(ended, merged if ended is MergeEnd.MERGED else None, len(sources), read_bytes)

    async def _is_trimmed(self, keys: PartitionKeys, sources: Sequence[_Source]) -> bool:
        """Whether the first of them is below the log start by now, where objects are not looked after."""
        (record,) = await self._records.get(keys.manifest)
        return record is None or sources[0].segment.last < decode_manifest(record.value, path=record.path).log_start

    # Steps 1 and 2: sources and object

    async def _due(self, keys: PartitionKeys, manifest: Manifest) -> Sequence[_Source]:
        """What to merge, of the segments below the newest."""
        found: list[_Source] = []
        large = 0
        end = 0 if manifest.segment is None else manifest.segment.base
        count_max, large_max = self._limits.merge_segments_read_max, self._limits.merge_large_passed_max
        while end > manifest.log_start and len(found) < count_max and large < large_max:
            (record,) = await self._records.get(keys.segment(end - 1))
            if record is None:
                break  # it is on its way, or what was there had been deleted when what follows was compacted
            segment = decode_segment(record.value, path=record.path)
            if segment.last != end - 1:
                break  # an old record: a merge has its place that holds the newest segment of the manifest above
            found.append(_Source(segment, record))
            large += not self._policy.is_small(segment)
            end = segment.base
        found.reverse()
        chosen = choose([source.segment for source in found], self._policy)
        return [source for source in found if source.segment in chosen]

    async def _write_segment(self, partition: PartitionId, manifest: Manifest, sources: Sequence[_Source]) -> SegmentEntry:
        """Raises what reading the objects of the sources raises."""
        object_id = ObjectId(self._ids.next_ulid(above=manifest.revoked_floor))
        segments = [source.segment for source in sources]
        writer = SegmentWriter(partition, object_id, segments[0].base, block_bytes=self._policy.block_bytes)
        for segment in segments:
            await self._copy(partition, segment, writer)
        written = writer.finish(segments[-1].last)
        try:
            await self._objects.put_if_absent(written.key, written.parts)
        except AlreadyExists:
            raise Unavailable(f"an object of that name is there already: key={written.key!r}") from None
        return merge_of(segments, object_id, size_bytes=written.size_bytes)

    async def _copy(self, partition: PartitionId, segment: SegmentEntry, writer: SegmentWriter) -> None:
        """Its batches as they are. Raises `Corrupt` if they are not what was written."""
        key, size_bytes = segment_key(partition, segment.object_id), segment.size_bytes
        data = memoryview(await self._objects.get_range(key, 0, size_bytes))
        tail = data[-min(size_bytes, FOOTER_READ_BYTES) :]
        missing_bytes = footer_bytes_missing(tail, size_bytes=size_bytes, key=key)
        footer = decode_footer(data[-(len(tail) + missing_bytes) :], size_bytes=size_bytes, key=key)
        if (footer.base, footer.last) != (segment.base, segment.last):
            raise Corrupt(
                f"a segment covers other offsets than its entry says: object={key!r} "
                f"entry={segment.base}..{segment.last} footer={footer.base}..{footer.last}"
            )
        for number, position in enumerate(footer.positions):
            block = data[position : position + footer.lengths[number]]
            check_block(block, footer, number, key=key)
            writer.add(block)
            await asyncio.sleep(0)

    # Step 3: the commit

    async def _commit(self, keys: PartitionKeys, sources: Sequence[_Source], merged: SegmentEntry) -> MergeEnd:
        async def decide(manifest: Manifest) -> tuple[Manifest, tuple[()]] | MergeEnd:
            if manifest.rewritten is not None and manifest.rewritten.object_id == merged.object_id:
                return MergeEnd.MERGED  # by a CAS without an answer
            changed = begin_rewriting(manifest, merged)
            if isinstance(changed, MergeRefusal):
                return _END_BY[changed]
            # Only now, so that no other merge has taken a source between the scan and the version of `manifest`.
            return (changed, ()) if await self._touch(keys, sources) else MergeEnd.OVERTAKEN

        ended = await self._records.change_manifest(keys, decide, action="commit a merge")
        if ended is None:
            return MergeEnd.GONE
        return MergeEnd.MERGED if isinstance(ended, Manifest) else ended

    async def _touch(self, keys: PartitionKeys, sources: Sequence[_Source]) -> bool:
        """Whether all sources are in segments/ for certain: each is put as it is, under the version that a read shows."""
        at = [keys.segment(source.segment.last) for source in sources]
        for _ in range(TOUCHES_MAX):
            records = await self._records.get(*at)
            puts = [
                Put(key, record.value, record.version)
                for key, record, source in zip(at, records, sources, strict=True)
                if record is not None and record.value == source.record.value
            ]
            if len(puts) < len(sources):
                return False
            outcome = await self._records.write(puts)
            if isinstance(outcome, Applied) and all(result.status is Status.OK for result in outcome.results):
                return True
        raise Unavailable(f"sources of a merge are changed all the time: partition={keys.partition_key}")

    # Steps 4 and 5: into segments/, and out of the manifest

    async def _finish(self, keys: PartitionKeys, merged: SegmentEntry) -> MergeEnd:
        async def decide(manifest: Manifest) -> tuple[Manifest, tuple[()]] | MergeEnd:
            if manifest.log_state is LogState.DELETED:
                return MergeEnd.GONE
            if manifest.rewritten is None or manifest.rewritten.object_id != merged.object_id:
                return MergeEnd.MERGED  # others have finished it
            # Below the log start keys are gone, or will be, so that they need not be put, and could not.
            if merged.last >= manifest.log_start:
                await self._put_under_all_keys(keys, merged)
            return with_rewritten(manifest, None), ()

        ended = await self._records.change_manifest(keys, decide, action="finish a merge")
        if ended is None:
            return MergeEnd.GONE
        return MergeEnd.MERGED if isinstance(ended, Manifest) else ended

    async def _put_under_all_keys(self, keys: PartitionKeys, merged: SegmentEntry) -> None:
        """Return when a scan shows `merged` under each key in its range; raise `Unavailable` if others keep it from that."""
        first, last, end = keys.segment(merged.base), keys.segment(merged.last).path, keys.segment(merged.last + 1).path
        for _ in range(ROUNDS_MAX):
            is_whole = True
            path = ""
            puts: list[Put] = []
            async with contextlib.aclosing(self._records.scan(first, end)) as records:
                async for record in records:
                    path = record.path
                    shown = decode_segment(record.value, path=path)
                    if shown == merged:
                        continue
                    if not is_inside(shown, merged):
                        # The manifest was read long ago: a later merge has taken this one in.
                        raise Unavailable(f"a merge was merged meanwhile: key={path!r} merged={merged.object_id}")
                    is_whole = False
                    puts.append(Put(Key(path, keys.partition_key), encode(SegmentFact(entry=merged)), record.version))
                    if len(puts) == self._limits.merge_keys_per_put:
                        await self._records.write(puts)
                        puts = []
            if puts:
                await self._records.write(puts)
            # What became of the puts, the next scan says. The last key is there for as long as `log_start` is not above it.
            if is_whole and path == last:
                return
        raise Unavailable(f"a merge is not under its keys yet: partition={keys.partition_key} merged={merged.object_id}")
