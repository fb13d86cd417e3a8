"""What is in the object store, by kind, which of it entries name, and what each partition of a topic holds.

Objects are listed first and references looked for after that, so an object that no entry names when it is looked for has lost its last
reference, or has none yet: it may have been uploaded a moment ago. Nothing is deleted on this ground. `partition_totals` counts records and
objects from the metadata alone.
"""

from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from runtime.clock import Clock
from runtime.ulid import decode_ulid
from storage.formats.manifest import Entry
from storage.formats.segment import parse_segment_key
from storage.formats.wal import object_key
from storage.metadata.keys import EARLY_PREFIX
from storage.objects.port import ObjectStat
from storage.verify.early import EarlyPageList, EarlyTotal, list_early_pages
from storage.verify.entry_order import malformed
from storage.verify.findings import FindingKind, StoreFinding, finding
from storage.verify.partitions import ActivePartition, PartitionWalk, active_partitions, side_by_side
from storage.verify.reading import StoreReading
from storage.vocabulary import ObjectId

_MINUTE_MS: Final = 60_000
_AGES: Final = (
    ("less than 15 minutes", 15 * _MINUTE_MS),
    ("15 minutes to a day", 24 * 60 * _MINUTE_MS),
    ("more than a day", None),
)


class ObjectTotal(msgspec.Struct, kw_only=True):
    objects: int = 0
    size_bytes: int = 0
    oldest_ms: int | None = None
    """When the oldest was stored, by the object store's clock."""

    def add(self, stat: ObjectStat) -> None:
        self.objects += 1
        self.size_bytes += stat.size_bytes
        self.oldest_ms = stat.modified_ms if self.oldest_ms is None else min(self.oldest_ms, stat.modified_ms)


class TopicTotal(msgspec.Struct, kw_only=True):
    """What the entries of a topic name: an object that several topics share counts for each, its bytes do not. `inline_bytes` are in no
    object: they lie in the metadata store. So do `early_bytes`, those of `early_entries`, until their object is stored.
    """

    topic: str
    partitions: int = 0
    records: int = 0
    entries: int = 0
    wal_bytes: int = 0
    inline_bytes: int = 0
    early_entries: int = 0
    early_bytes: int = 0
    segments: int = 0
    segment_bytes: int = 0


class StoreTotals(msgspec.Struct, kw_only=True):
    """`kinds`: wal, segments, other. `unreadable`: partitions whose entries could not be read, so what they name counts as unreferenced."""

    kinds: dict[str, ObjectTotal] = msgspec.field(default_factory=lambda: {kind: ObjectTotal() for kind in ("wal", "segments", "other")})
    live: dict[str, ObjectTotal] = msgspec.field(default_factory=lambda: {kind: ObjectTotal() for kind in ("wal", "segments")})
    unreferenced: dict[str, ObjectTotal] = msgspec.field(default_factory=lambda: {kind: ObjectTotal() for kind in ("wal", "segments")})
    unreferenced_by_age: dict[str, ObjectTotal] = msgspec.field(default_factory=lambda: {age: ObjectTotal() for age, _ in _AGES})
    early_pages: EarlyTotal = msgspec.field(default_factory=EarlyTotal)
    topics: list[TopicTotal] = msgspec.field(default_factory=list)
    unreadable: int = 0


class StoredObject(NamedTuple):
    kind: str
    stat: ObjectStat


@dataclass(slots=True)
class Inventory:
    """Reads, and changes nothing. `run` once."""

    reading: StoreReading
    clock: Clock
    totals: StoreTotals = field(default_factory=StoreTotals)
    _topics: dict[str, TopicTotal] = field(default_factory=dict)
    _pages: EarlyPageList = field(default_factory=EarlyPageList)

    async def run(self, *, listed: Callable[[int], None] = lambda _: None) -> StoreTotals:
        """`listed` hears of objects as they are listed. Raises `Unavailable`."""
        window: dict[ObjectId, StoredObject] = {}
        is_first = True
        self._pages = await list_early_pages(self.reading)
        async for stat in objects_under(self.reading, ""):
            kind, object_id = kind_of_object(stat.key)
            self.totals.kinds[kind].add(stat)
            listed(1)
            if object_id is None:
                continue
            window[object_id] = StoredObject(kind, stat)
            if len(window) == self.reading.limits.window_objects:
                await self._look_for(window, is_first=is_first)
                is_first = False
        if window or is_first:
            await self._look_for(window, is_first=is_first)
        self.totals.topics = [self._topics[name] for name in sorted(self._topics)]
        await self._pages.finish(self.reading)
        self.totals.early_pages = self._pages.total
        return self.totals

    async def _look_for(self, window: dict[ObjectId, StoredObject], *, is_first: bool) -> None:
        async def work(one: ActivePartition) -> None:
            await self._mark(one, window, is_first=is_first)

        await side_by_side(active_partitions(self.reading, (), lambda _: None), work)
        now_ms = self.clock.now_ms()
        for stored in window.values():
            self.totals.unreferenced[stored.kind].add(stored.stat)
            self.totals.unreferenced_by_age[_age(now_ms - stored.stat.modified_ms)].add(stored.stat)
        window.clear()

    async def _mark(self, one: ActivePartition, window: dict[ObjectId, StoredObject], *, is_first: bool) -> None:
        is_unreadable = False

        def report(problem: StoreFinding) -> None:
            nonlocal is_unreadable
            is_unreadable |= problem.kind in (FindingKind.UNDECODABLE, FindingKind.NEWER_FORMAT, FindingKind.ENTRIES_MISSING)

        walk = PartitionWalk(self.reading, one.partition, report)
        manifest = await walk.start()
        total = self._topics.setdefault(one.topic.name, TopicTotal(topic=one.topic.name)) if is_first else TopicTotal(topic="")
        if manifest is not None:
            total.partitions += 1
            total.records += manifest.sequence_counter - manifest.log_start
            async for page in walk.pages():
                for source, _ in page:
                    if isinstance(source, Entry):
                        total.entries += 1
                        if source.is_inline:
                            total.inline_bytes += source.size_bytes
                            continue
                        if is_first and malformed(source) is None:
                            self._pages.note_named(walk.keys, source)
                        if self._pages.waits(source):
                            total.early_entries += 1
                            total.early_bytes += source.size_bytes
                            continue
                        total.wal_bytes += source.size_bytes
                    else:
                        total.segments += 1
                        total.segment_bytes += source.size_bytes
                    live = window.pop(source.object_id, None)
                    if live is not None:
                        self.totals.live[live.kind].add(live.stat)
        self.totals.unreadable += is_unreadable and is_first


def unreferenced_findings(totals: StoreTotals) -> list[StoreFinding]:
    """One per age, oldest last, and one for early pages; none where entries that cannot be read may name them."""
    if totals.unreadable:
        return []
    found = [
        finding(FindingKind.UNREFERENCED, f"objects={total.objects} bytes={total.size_bytes}, stored {age} ago")
        for age, total in totals.unreferenced_by_age.items()
        if total.objects
    ]
    early = totals.early_pages
    if early.unnamed:
        text = f"pages={early.unnamed} bytes={early.unnamed_bytes}" + ("" if early.is_all else f", of the {early.pages} that were listed")
        found.append(finding(FindingKind.EARLY_PAGES_UNNAMED, text, key=EARLY_PREFIX))
    return found


async def objects_under(reading: StoreReading, prefix: str, *, page: int | None = None) -> AsyncIterator[ObjectStat]:
    """All objects whose key starts with `prefix`, in the order of their keys, listed `page` at a time, or as the limits say."""
    page = page or reading.limits.objects_per_list
    start_after = ""
    while found := await reading.objects(prefix, start_after=start_after, count=page):
        for stat in found:
            yield stat
        if len(found) < page:
            return
        start_after = found[-1].key


def kind_of_object(key: str) -> tuple[str, ObjectId | None]:
    """wal, segments or other, and the object's id if its key is one that a writer makes."""
    if (named := parse_segment_key(key)) is not None:
        return "segments", named[1]
    object_id = ObjectId(key.rpartition("/")[2])
    try:
        decode_ulid(object_id)
    except ValueError:
        return "other", None
    return ("wal", object_id) if key == object_key(object_id) else ("other", None)


class PartitionTotal(msgspec.Struct, kw_only=True):
    """`wal_bytes` are those of its slices; their objects may be shared with other partitions. `inline_bytes` lie in the metadata store, and
    `early_bytes` until their object is stored. `is_readable`: whether this is all of it.
    """

    topic: str
    partition: int
    log_start: int
    log_end: int
    records: int
    wal_objects: int = 0
    wal_bytes: int = 0
    inline_bytes: int = 0
    early_entries: int = 0
    early_bytes: int = 0
    segments: int = 0
    segment_bytes: int = 0
    is_readable: bool = True


async def partition_totals(reading: StoreReading, topics: Collection[str]) -> list[PartitionTotal]:
    """By topic and partition. A partition without a manifest that can be decoded is left out. Raises `Unavailable`."""
    found: list[PartitionTotal] = []
    pages = await list_early_pages(reading)

    async def work(one: ActivePartition) -> None:
        total = await _total(reading, one, pages)
        if total is not None:
            found.append(total)

    await side_by_side(active_partitions(reading, topics, lambda _: None), work)
    return sorted(found, key=lambda total: (total.topic, total.partition))


def _age(age_ms: int) -> str:
    return next(name for name, bound_ms in _AGES if bound_ms is None or age_ms < bound_ms)


async def _total(reading: StoreReading, one: ActivePartition, pages: EarlyPageList) -> PartitionTotal | None:
    is_readable = True

    def report(problem: StoreFinding) -> None:
        nonlocal is_readable
        is_readable &= problem.kind not in (FindingKind.UNDECODABLE, FindingKind.NEWER_FORMAT, FindingKind.ENTRIES_MISSING)

    walk = PartitionWalk(reading, one.partition, report)
    manifest = await walk.start()
    if manifest is None:
        return None
    total = PartitionTotal(
        topic=one.topic.name,
        partition=one.partition.partition,
        log_start=manifest.log_start,
        log_end=manifest.sequence_counter,
        records=manifest.sequence_counter - manifest.log_start,
    )
    last_object = ""
    async for page in walk.pages():
        for source, _ in page:
            if isinstance(source, Entry) and source.is_inline:
                total.inline_bytes += source.size_bytes
            elif isinstance(source, Entry) and pages.waits(source):
                total.early_entries += 1
                total.early_bytes += source.size_bytes
            elif isinstance(source, Entry):
                # Entries of one object follow each other: a flush is committed in one piece, or what is left of it next.
                total.wal_objects += source.object_id != last_object
                total.wal_bytes += source.size_bytes
            else:
                total.segments += 1
                total.segment_bytes += source.size_bytes
            last_object = source.object_id
    total.is_readable = is_readable
    return total
