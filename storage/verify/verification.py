"""Whether the stores hold what they should: all partitions of a cluster, or of some topics.

`Verification` goes through one page of topics after the other and some partitions side by side. `PartitionCheck` looks at one partition:
its records in the metadata store, and the objects that its entries name.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

import msgspec
from crc32c import crc32c

from storage.catalog.topic import TopicState, decode_topic
from storage.errors import Corrupt, EndsEarly, IncompatibleFormat, NotFound
from storage.formats.manifest import Entry, Manifest, PageRef, SegmentEntry, Spans, decode_page
from storage.metadata import keys
from storage.metadata.keys import PartitionKeys
from storage.verify.early import WrongPage, page_keys, read_early
from storage.verify.entry_order import about_source, malformed, of_bytes
from storage.verify.findings import FindingKind, FindingReport, Severity, StoreFinding, finding, kind_of
from storage.verify.objects import WalHeads, of_blocks, of_footer, of_head, of_inline, of_order, of_placed, of_slices
from storage.verify.partitions import ActivePartition, LocatedSource, PartitionWalk, active_partitions, side_by_side
from storage.verify.reading import StoreReading
from storage.vocabulary import ObjectId, PartitionId

OffsetsPassed = Callable[[int], None]

SAMPLE_PARTS: Final = 10_000
MANIFEST_READS_MAX: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """How much of the objects is looked at: `sample_parts` ten-thousandths of them, and of these `is_deep` all bytes."""

    sample_parts: int = SAMPLE_PARTS
    is_deep: bool = False

    def takes(self, object_id: ObjectId) -> bool:
        """The same objects in every run, for all partitions that share them."""
        return crc32c(object_id.encode()) % SAMPLE_PARTS < self.sample_parts


@dataclass(slots=True)
class Checked:
    """What was looked at. Entries are those that are not in segments yet; an object that several partitions share counts for each of them,
    and an inline entry has none. `early` are entries whose object is not stored yet: early pages have their bytes.
    """

    partitions: int = 0
    entries: int = 0
    segments: int = 0
    objects: int = 0
    early: int = 0
    deep_bytes: int = 0

    def add(self, other: "Checked") -> None:
        self.partitions += other.partitions
        self.entries += other.entries
        self.segments += other.segments
        self.objects += other.objects
        self.early += other.early
        self.deep_bytes += other.deep_bytes


class PartitionCheck:
    """One run of one partition. `moved` hears how many offsets were gone through."""

    def __init__(
        self,
        reading: StoreReading,
        heads: WalHeads,
        partition: PartitionId,
        *,
        depth: Depth,
        report: FindingReport,
        moved: Callable[[int], None],
    ) -> None:
        self._reading = reading
        self._heads = heads
        self._partition = partition
        self._depth = depth
        self._report = report
        self._moved = moved
        self._walk = PartitionWalk(reading, partition, report)
        self._segment_bytes: int | None = 0
        self.checked = Checked()

    async def run(self) -> bool:
        """False if the partition has no manifest, or a tombstone, or one that cannot be read, as was reported then."""
        walk = self._walk
        if await walk.start() is None:
            return False
        self.checked.partitions = 1
        async for page in walk.pages():
            async with asyncio.TaskGroup() as tasks:
                for located in page:
                    tasks.create_task(self._check(located))
            self._moved(page[-1].source.last + 1 - page[0].source.base)
        await walk.look_above()
        manifest = walk.walked
        if manifest is None:
            return True
        if walk.is_whole and self._segment_bytes is not None and manifest.log_start < manifest.sequence_counter:
            self._check_bytes(manifest)
        await self._check_pages(manifest)
        await self._check_compaction()
        return True

    def _check_bytes(self, manifest: Manifest) -> None:
        wrong = of_bytes(
            manifest,
            self._walk.order.entries_bytes + (self._segment_bytes or 0),
            begin=self._walk.begin,
            key=self._walk.keys.manifest.path,
        )
        if wrong is not None:
            self._report(wrong)

    async def _check(self, located: LocatedSource) -> None:
        source = located.source
        if isinstance(source, Entry):
            self.checked.entries += 1
        else:
            self.checked.segments += 1
        if isinstance(source, Entry) and isinstance(source.batches, bytes):
            # Its bytes are at hand: they are always looked at.
            self.checked.deep_bytes += len(source.batches)
            for one in of_inline(source, source.batches, key=located.key, partition=self._partition):
                self._report(one)
            return
        if malformed(source) is not None or not self._depth.takes(source.object_id):
            if isinstance(source, SegmentEntry):
                self._segment_bytes = None
            return
        self.checked.objects += 1
        try:
            if isinstance(source, Entry):
                found = await self._check_entry(source, source.spans, located.key)
            else:
                found = await self._check_segment(source, located.key)
        except NotFound as error:
            if isinstance(source, Entry) and source.is_early:
                found = await self._check_early(located, source, error)
            else:
                found = await self._gone(located, error)
        except EndsEarly as error:
            found = await self._gone(located, error)
        for one in found:
            self._report(one)

    async def _gone(self, located: LocatedSource, error: NotFound | EndsEarly) -> list[StoreFinding]:
        """Objects go when no entry names them any more: only one that is still named was lost."""
        if isinstance(located.source, SegmentEntry):
            self._segment_bytes = None
        if not await self._walk.is_live(located):
            return []
        kind = FindingKind.OBJECT_MISSING if isinstance(error, NotFound) else FindingKind.OBJECT_CUT
        return [about_source(kind, str(error), located.source, key=located.key, partition=self._partition)]

    async def _check_early(self, located: LocatedSource, entry: Entry, error: NotFound) -> list[StoreFinding]:
        """The object was not there: its broker may not have stored it yet, or has died before. Then early pages have its bytes."""
        pages = page_keys(self._walk.keys, entry)
        early = await read_early(self._reading, self._walk.keys, entry, known_version=self._walk.version)
        if early is not None and not isinstance(early, WrongPage):
            self.checked.early, self.checked.objects = self.checked.early + 1, self.checked.objects - 1
            self.checked.deep_bytes += entry.size_bytes
            return list(of_placed(entry, early, name=pages[0].path, key=located.key, partition=self._partition))
        try:
            # Pages go when the object is there. It was not, before they were looked for.
            return await self._check_entry(entry, entry.spans, located.key)
        except EndsEarly as cut:
            return await self._gone(located, cut)
        except NotFound:
            pass
        if early is None:
            text = f"neither the object nor all of its early pages are there, the first of which is {pages[0].path}: {error}"
            return await self._gone(located, NotFound(text))
        if not await self._walk.is_live(located):
            return []
        kind = kind_of(early.error, FindingKind.EARLY_PAGE_DAMAGED)
        return [about_source(kind, str(early.error), entry, key=early.path, partition=self._partition)]

    async def _check_entry(self, entry: Entry, spans: Spans, key: str) -> list[StoreFinding]:
        head = await self._heads.get(entry.object_id)
        found = list(of_head(entry, spans, head, key=key, partition=self._partition))
        if self._depth.is_deep:
            found += of_order(entry, head, key=key, partition=self._partition)
        if self._depth.is_deep and not any(one.kind is FindingKind.OBJECT_CUT for one in found):
            self.checked.deep_bytes += entry.size_bytes
            found += await of_slices(self._reading, entry, spans, key=key, partition=self._partition)
        return found

    async def _check_segment(self, segment: SegmentEntry, key: str) -> list[StoreFinding]:
        footer, found = await of_footer(self._reading, segment, key=key, partition=self._partition)
        if footer is None:
            self._segment_bytes = None
            return found
        if self._segment_bytes is not None:
            self._segment_bytes += footer.body_bytes
        if self._depth.is_deep:
            self.checked.deep_bytes += segment.size_bytes
            found += await of_blocks(self._reading, segment, footer, key=key, partition=self._partition)
        return found

    async def _check_pages(self, manifest: Manifest) -> None:
        """The pages of producer states that the manifest names. One that a newer record does not name may be gone."""
        keys = self._walk.keys
        missing: list[PageRef] = []
        for _ in range(MANIFEST_READS_MAX):
            records = await self._reading.records([keys.producer_page(page.name) for page in manifest.pages]) if manifest.pages else []
            missing = []
            for page, record in zip(manifest.pages, records, strict=True):
                if record is None:
                    missing.append(page)
                    continue
                try:
                    outside = [pid for pid in decode_page(record.value, path=record.path) if not page.first_pid <= pid <= page.last_pid]
                except (Corrupt, IncompatibleFormat) as error:
                    self._report(finding(kind_of(error, FindingKind.UNDECODABLE), str(error), key=record.path))
                    continue
                if outside:
                    text = f"the page has producer {outside[0]}, and is named for {page.first_pid}..{page.last_pid}"
                    self._report(finding(FindingKind.PRODUCERS_MISSING, text, key=record.path))
            newer = await self._walk.refresh() if missing else None
            if newer is None:
                return
            named = {page.name for page in newer.pages}
            if all(page.name in named for page in missing):
                break
            manifest = newer
        for page in missing:
            text = f"no page of this name, for producers {page.first_pid}..{page.last_pid}"
            self._report(finding(FindingKind.PRODUCERS_MISSING, text, key=keys.producer_page(page.name).path))

    async def _check_compaction(self) -> None:
        keys = self._walk.keys
        attempt, claim = await self._reading.records([keys.compaction, keys.compactor_claim])
        if attempt is not None and claim is None:
            self._report(finding(FindingKind.COMPACTION_LEFT, attempt.value.decode("utf-8", "replace"), key=attempt.path))


@dataclass(slots=True)
class Findings:
    """Each finding once, `kept_max` of them, and the number of all."""

    kept_max: int
    kept: list[StoreFinding] = field(default_factory=list)
    counts: Counter[FindingKind] = field(default_factory=Counter)
    severities: Counter[Severity] = field(default_factory=Counter)
    _seen: set[StoreFinding] = field(default_factory=set)

    def add(self, one: StoreFinding) -> None:
        if one in self._seen:
            return
        self.counts[one.kind] += 1
        self.severities[one.severity] += 1
        if len(self.kept) < self.kept_max:
            self.kept.append(one)
            self._seen.add(one)

    @property
    def is_sound(self) -> bool:
        return not self.severities[Severity.ERROR] and not self.severities[Severity.WARNING]


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of a verification."""

    findings: Findings
    checked: Checked


class Verification:
    """Reads, and changes nothing. Raises `Unavailable` when a store does not answer, whatever is tried."""

    def __init__(self, reading: StoreReading, *, depth: Depth) -> None:
        self._reading = reading
        self._depth = depth
        self._heads = WalHeads(reading)
        self.findings = Findings(reading.limits.findings_kept_max)
        self.checked = Checked()

    async def run(self, topics: Collection[str] = (), *, partition: int | None = None, moved: OffsetsPassed = lambda _: None) -> Verified:
        """Check some topics, or all if none is named; of these one partition or all."""
        found = active_partitions(self._reading, topics, self.findings.add, partition=partition)
        await side_by_side(found, lambda one: self._check(one, moved))
        return Verified(self.findings, self.checked)

    async def _check(self, one: ActivePartition, moved: OffsetsPassed) -> None:
        found = 0

        def report(problem: StoreFinding) -> None:
            nonlocal found
            found += 1
            self.findings.add(msgspec.structs.replace(problem, topic=one.topic.name, partition=one.partition.partition))

        check = PartitionCheck(self._reading, self._heads, one.partition, depth=self._depth, report=report, moved=moved)
        if not await check.run() and not found and await self._is_active(one):
            report(finding(FindingKind.MANIFEST_MISSING, "there is none, or a tombstone", key=PartitionKeys(one.partition).manifest.path))
        self.checked.add(check.checked)

    async def _is_active(self, one: ActivePartition) -> bool:
        """Whether the topic was not deleted meanwhile."""
        (record,) = await self._reading.records([keys.topic(one.topic.name)])
        if record is None:
            return False
        try:
            topic = decode_topic(record)
        except (Corrupt, IncompatibleFormat):
            return False  # as the next verification says
        return topic.topic_id == one.topic.topic_id and topic.state is TopicState.ACTIVE
