"""The partitions that the catalog has, and all entries of one in the order of offsets, from the metadata alone.

Brokers append and compactors move entries meanwhile. What is read is judged by a manifest that was read before. So whatever seems to
be wrong is looked at again by a newer one, and is a finding only if that says that the entries have not moved.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from itertools import pairwise
from typing import Final, NamedTuple

from storage.catalog.topic import Topic, TopicState, decode_topic
from storage.errors import Corrupt, IncompatibleFormat
from storage.formats.manifest import Entry, EntrySource, LogState, Manifest, SegmentEntry, decode_chunk, decode_manifest, decode_segment
from storage.metadata import keys
from storage.metadata.keys import PartitionKeys
from storage.metadata.port import Record, children_of
from storage.verify.entry_order import EntryOrder, OverlapCheck, about_source, malformed, of_chunk, of_manifest
from storage.verify.findings import FindingKind, FindingReport, StoreFinding, finding, kind_of
from storage.verify.reading import StoreReading
from storage.vocabulary import PartitionId

TOPICS_PER_PAGE: Final = 64
MANIFESTS_PER_PAGE: Final = 500
PARTITIONS_AT_A_TIME: Final = 8
"""Each holds a page of entries."""


class ActivePartition(NamedTuple):
    topic: Topic
    partition: PartitionId


async def side_by_side(partitions: AsyncIterator[ActivePartition], work: Callable[[ActivePartition], Awaitable[None]]) -> None:
    """Call `work` with each, a few at a time. The first error ends all."""
    waiting: asyncio.Queue[ActivePartition | None] = asyncio.Queue(PARTITIONS_AT_A_TIME)

    async def worker() -> None:
        while (one := await waiting.get()) is not None:
            await work(one)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(PARTITIONS_AT_A_TIME):
            tasks.create_task(worker())
        async for one in partitions:
            await waiting.put(one)
        for _ in range(PARTITIONS_AT_A_TIME):
            await waiting.put(None)


async def active_partitions(
    reading: StoreReading, names: Collection[str], report: FindingReport, *, partition: int | None = None
) -> AsyncIterator[ActivePartition]:
    """The partitions of some topics, or of all if none is named: of those that are neither half made nor in deletion. One number or all."""
    start, end = keys.topics()
    wanted = [keys.topic(name) for name in sorted(names)]
    while True:
        if names:
            records = [record for record in await reading.records(wanted) if record is not None]
        else:
            records = await reading.page(start, end, TOPICS_PER_PAGE)
        for record in records:
            try:
                topic = decode_topic(record)
            except (Corrupt, IncompatibleFormat) as error:
                report(finding(kind_of(error, FindingKind.UNDECODABLE), str(error), key=record.path))
                continue
            if topic.state is TopicState.ACTIVE:
                numbers = range(topic.partition_count) if partition is None else [partition]
                for number in filter(topic.has_partition, numbers):
                    yield ActivePartition(topic, topic.partition(number))
        if names or not records:
            return
        start = start._replace(path=f"{records[-1].path}!")


async def count_offsets(reading: StoreReading, topics: Collection[str] = (), *, partition: int | None = None) -> int:
    """How many offsets there are to go through, for a bar: what cannot be read counts nothing."""
    total = 0
    page: list[PartitionId] = []

    async def count() -> int:
        found = 0
        for record in await reading.records([PartitionKeys(one).manifest for one in page]):
            if record is not None:
                try:
                    manifest = decode_manifest(record.value, path=record.path)
                except (Corrupt, IncompatibleFormat):
                    continue
                found += manifest.sequence_counter - manifest.log_start
        page.clear()
        return found

    async for one in active_partitions(reading, topics, lambda _: None, partition=partition):
        page.append(one.partition)
        if len(page) == MANIFESTS_PER_PAGE:
            total += await count()
    return total + (await count() if page else 0)


class LocatedSource(NamedTuple):
    """A source, and the key of the record that names it."""

    source: EntrySource
    key: str


class _Hole(NamedTuple):
    """No entry covers `begin`; the next one begins at `end`."""

    begin: int
    end: int


class PartitionWalk:
    """One walk. `manifest` is the newest manifest that was read, None once the partition is gone or cannot be read."""

    def __init__(self, reading: StoreReading, partition: PartitionId, report: FindingReport) -> None:
        self.partition = partition
        self.keys = PartitionKeys(partition)
        self.manifest: Manifest | None = None
        self.version = -1
        """The version of the newest manifest that was read: what was walked is no newer."""
        self.walked: Manifest | None = None
        """The manifest whose end was reached."""
        self.order = EntryOrder()
        self.begin = 0
        self.is_whole = True
        """Whether every offset from `begin` on was gone through once: none was missing, and none moved meanwhile."""
        self._reading = reading
        self._limits = reading.limits
        self._report = report
        self._overlap = OverlapCheck()

    async def start(self) -> Manifest | None:
        """Read the manifest, and report what is wrong with it."""
        (record,) = await self._reading.records([self.keys.manifest])
        if record is None:
            return None
        try:
            manifest = decode_manifest(record.value, path=record.path)
        except (Corrupt, IncompatibleFormat) as error:
            self._report(finding(kind_of(error, FindingKind.UNDECODABLE), str(error), key=record.path))
            return None
        if manifest.log_state is LogState.DELETED:
            return None
        self._report_all(of_manifest(manifest, key=record.path, partition=self.partition))
        self.manifest, self.version = manifest, record.version
        return manifest

    async def refresh(self) -> Manifest | None:
        """The manifest as it is now. What is wrong with it is reported by `start`, or by the next verification."""
        (record,) = await self._reading.records([self.keys.manifest])
        self.manifest = None
        if record is not None:
            try:
                manifest = decode_manifest(record.value, path=record.path)
            except (Corrupt, IncompatibleFormat):
                return None
            self.version = max(self.version, record.version)
            self.manifest = manifest if manifest.log_state is not LogState.DELETED else None
        return self.manifest

    async def is_live(self, located: LocatedSource) -> bool:
        """Whether readers still use `source`, by reads issued now: if not, its object may be gone."""
        source = located.source
        manifest = await self.refresh()
        if manifest is None or source.last < manifest.log_start:
            return False
        if isinstance(source, Entry):
            return source.last >= manifest.compaction_cursor
        if source.object_id in [named.object_id for named in (manifest.segment, manifest.rewritten) if named is not None]:
            return True
        (record,) = await self._reading.records([self.keys.segment(source.last)])
        try:
            return record is not None and decode_segment(record.value, path=record.path).object_id == source.object_id
        except (Corrupt, IncompatibleFormat):
            return False

    async def pages(self) -> AsyncIterator[list[LocatedSource]]:
        """The sources from log_start on, in pages. Reports what is wrong with the keys on the way. Call `start` first."""
        assert self.manifest is not None
        offset = self.begin = self.manifest.log_start
        looked_again_at, is_first = -1, True
        while self.manifest is not None and offset < self.manifest.sequence_counter:
            manifest = self.manifest
            found, hole = await (self._segments if offset < manifest.compaction_cursor else self._entries)(manifest, offset)
            if found:
                if is_first:
                    self.begin, is_first = found[0].source.base, False
                else:
                    self.is_whole &= found[0].source.base == offset
                # A segment that was made since, of entries that were gone through, too.
                self.is_whole &= all(one.source.last + 1 == following.source.base for one, following in pairwise(found))
                for one in found:
                    self._report_all(self.order.take(one.source, key=one.key, partition=self.partition))
                yield found
                offset = found[-1].source.last + 1
            if hole is None:
                continue
            offset = max(offset, hole.begin)
            newer = await self.refresh()
            if newer is None:
                break
            if newer.log_start > offset:
                self.is_whole = False
                self.order.begin_anew()
                offset = newer.log_start
            elif looked_again_at != offset or (offset < manifest.compaction_cursor) != (offset < newer.compaction_cursor):
                looked_again_at = offset
                await asyncio.sleep(self._limits.second_look_s)
            else:
                self.is_whole = False
                self.order.begin_anew()
                self._report(self._missing(manifest, hole._replace(begin=offset)))
                offset = hole.end
        self.walked = self.manifest

    async def _segments(self, manifest: Manifest, offset: int) -> tuple[list[LocatedSource], _Hole | None]:
        newest = manifest.segment
        listed_end = manifest.compaction_cursor if newest is None else newest.base
        found: list[LocatedSource] = []
        if newest is not None and offset >= listed_end:
            if newest.last < offset:  # the cursor is above it, as was reported
                return [], _Hole(offset, manifest.compaction_cursor)
            return [LocatedSource(newest, self.keys.manifest.path)], None
        offset = self._merge_at(manifest, offset, found)
        for record in await self._page(self.keys.segment(offset).path, self.keys.segments_prefix, self._limits.segments_per_page):
            segment = self._segment_of(record)
            if segment is None:
                continue
            if segment.base > offset:
                return found, _Hole(offset, min(segment.base, listed_end))
            if segment.last >= offset:
                found.append(LocatedSource(segment, record.path))
                offset = segment.last + 1
            offset = self._merge_at(manifest, offset, found)
            if offset >= listed_end:
                return found, None
        return found, None if found else _Hole(offset, listed_end)

    def _merge_at(self, manifest: Manifest, offset: int, found: list[LocatedSource]) -> int:
        """Add the merge under way if it holds `offset`. Return the offset behind it."""
        merged = manifest.rewritten
        if merged is None or not merged.base <= offset <= merged.last:
            return offset
        found.append(LocatedSource(merged, self.keys.manifest.path))
        return merged.last + 1

    def _segment_of(self, record: Record) -> SegmentEntry | None:
        try:
            segment = decode_segment(record.value, path=record.path)
        except (Corrupt, IncompatibleFormat) as error:
            self._report(finding(kind_of(error, FindingKind.UNDECODABLE), str(error), key=record.path))
            return None
        if not segment.base <= int(record.path.rsplit("/", 1)[1]) <= segment.last:  # a merge lies under all keys in its range
            text = f"a segment of offsets {segment.base}..{segment.last}"
            self._report(about_source(FindingKind.WRONG_KEY, text, segment, key=record.path, partition=self.partition))
        if wrong := malformed(segment):
            self._report(about_source(FindingKind.MALFORMED_ENTRY, wrong, segment, key=record.path, partition=self.partition))
        return segment

    async def _entries(self, manifest: Manifest, offset: int) -> tuple[list[LocatedSource], _Hole | None]:
        pending = manifest.pending
        indexed_end = pending[0].base if pending else manifest.sequence_counter
        if offset >= indexed_end:
            found = [LocatedSource(entry, self.keys.manifest.path) for entry in pending if entry.last >= offset]
            self._compare(found)
            return found, None if found else _Hole(offset, manifest.sequence_counter)
        found = []
        for record in await self._page(self.keys.index(offset).path, self.keys.index_prefix, self._limits.chunks_per_page):
            for one in self._chunk_of(record):
                entry = one.source
                if entry.last < offset or entry.base >= indexed_end:
                    continue
                if entry.base > offset:
                    return found, _Hole(offset, entry.base)
                found.append(one)
                offset = entry.last + 1
            if offset >= indexed_end:
                return found, None
        return found, None if found else _Hole(offset, indexed_end)

    def _chunk_of(self, record: Record) -> list[LocatedSource]:
        try:
            chunk = decode_chunk(record.value, path=record.path)
        except (Corrupt, IncompatibleFormat) as error:
            self._report(finding(kind_of(error, FindingKind.UNDECODABLE), str(error), key=record.path))
            return []
        expected = self.keys.index(chunk.entries[-1].last).path
        self._report_all(of_chunk(chunk, key=record.path, expected_key=expected, partition=self.partition))
        found = [LocatedSource(entry, record.path) for entry in chunk.entries]
        self._compare(found)
        return found

    def _compare(self, found: Iterable[LocatedSource]) -> None:
        for one in found:
            if isinstance(one.source, Entry):
                wrong = self._overlap.take(one.source, key=one.key, partition=self.partition)
                if wrong is not None:
                    self._report(wrong)

    async def look_above(self) -> None:
        """Report what lies above a log that `pages` has gone through: in index/ above its end, in segments/ above the cursor.

        Chunks of pending entries may be there, and the newest segment.
        """
        manifest = self.walked
        if manifest is None:
            return
        start = self.keys.index(manifest.pending[0].base if manifest.pending else manifest.sequence_counter).path
        while records := await self._page(start, self.keys.index_prefix, self._limits.chunks_per_page):
            # What was appended meanwhile is not above the end of a log that is read after it.
            found = [one for record in records for one in self._chunk_of(record)]
            await self._above(found, lambda manifest: manifest.sequence_counter, "sequence_counter")
            start = f"{records[-1].path}!"
        if manifest.segment is None:
            start = self.keys.segment(manifest.compaction_cursor).path
        else:
            start = self.keys.segment(manifest.segment.base).path
        records = await self._page(start, self.keys.segments_prefix, self._limits.segments_per_page)
        segments = [LocatedSource(segment, record.path) for record in records if (segment := self._segment_of(record)) is not None]
        await self._above(segments, lambda manifest: manifest.compaction_cursor, "compaction_cursor")

    async def _above(self, found: list[LocatedSource], bound: Callable[[Manifest], int], name: str) -> None:
        end = -1
        for look in range(2):
            if look and found:
                await asyncio.sleep(self._limits.second_look_s)
            manifest = await self.refresh() if found else None
            if manifest is None:
                return
            end = bound(manifest)
            found = [one for one in found if one.source.last >= end]
        for one in found:
            text = f"{name}={end}"
            self._report(about_source(FindingKind.ABOVE_THE_END, text, one.source, key=one.key, partition=self.partition))

    def _missing(self, manifest: Manifest, hole: _Hole) -> StoreFinding:
        is_compacted = hole.begin < manifest.compaction_cursor
        place = self.keys.segments_prefix if is_compacted else self.keys.index_prefix
        text = f"no {'segment' if is_compacted else 'entry'} covers these offsets, though the log goes from {manifest.log_start} to "
        return finding(
            FindingKind.ENTRIES_MISSING, f"{text}{manifest.sequence_counter - 1}", key=place, first=hole.begin, last=hole.end - 1
        )

    async def _page(self, start: str, prefix: str, count: int) -> list[Record]:
        return await self._reading.page(self.keys.manifest._replace(path=start), children_of(prefix.removesuffix("/"))[1], count)

    def _report_all(self, findings: Iterable[StoreFinding]) -> None:
        for one in findings:
            self._report(one)
