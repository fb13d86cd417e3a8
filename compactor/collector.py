"""Garbage collection: objects that no partition refers to go (docs/internals/design/upkeep.md); nothing that may still be read does.

    list (old enough) → headers → look (cheap): referred to? → it stays
      → in every partition that it may be of: revoke, then look for certain: referred to? → it stays  → delete

Before each delete both stores count it (storage/catalog/collections.py): metadata that are put back later show by it. While an object
that a live entry names is missing, nothing is deleted. Early pages may have its bytes: then it is not missing.

Early pages of old objects that their writers have left go by name (E4):

    the object is there → its pages go
    it is not (an object in pieces) → as an object, page by page, in the partitions that a page names

A copy of the metadata has the pages that its entries name, so pages that are gone are no reason to refuse it. Two deletes may still come
behind a restore, by a process that goes on. That of a page whose object is there harms nobody: the object stays, or its own deletion was
counted. That of a page of an object in pieces may take the only bytes of an entry that the copy has. It is counted, so the copy is refused.

A clock says which objects to look at, and nothing else. What cannot be read or asked for certain keeps the objects concerned, and is
reported. Any number of collectors may run at once. A cycle looks at a bounded number of objects and goes on where the last one ended.

`Footprint` sums what the object store holds from the lists that the collector makes anyway.
"""

import contextlib
import dataclasses
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

from compactor.limits import DEFAULT_LIMITS, CompactorLimits
from compactor.pages import FoundPage, OldPage, PageNames, PageSweep
from compactor.records import Records, side_by_side
from compactor.references import References, read_manifest
from runtime.clock import Clock
from runtime.lru import LruCache
from runtime.telemetry import Metric, SeriesRow, Telemetry
from runtime.ulid import ulid_ms
from storage.catalog.collections import (
    MISSING_MAX,
    CollectionsRecord,
    Deletions,
    MetadataWentBack,
    MissingObject,
    WentBack,
    with_missing,
    without_missing,
)
from storage.errors import Corrupt, IncompatibleFormat, NotFound, StorageError, Unavailable, without_frames
from storage.formats.early_page import decode_page
from storage.formats.manifest import Entry, LogState, Manifest
from storage.formats.segment import FOOTER_READ_BYTES, SegmentFooter, decode_footer, footer_bytes_missing, parse_segment_key, segment_key
from storage.formats.wal import object_key, read_header
from storage.metadata.keys import EARLY_PREFIX
from storage.metadata.port import MetadataStore
from storage.objects.port import ObjectStat, ObjectStore
from storage.vocabulary import ObjectId, PartitionId, TopicId

FOOTPRINT_BYTES: Final = Metric(
    "forebay_footprint_bytes",
    "Bytes in the object store by kind (wal, segment), as the collector's last whole list of them showed: without the last minutes "
    "(compactor.delete_grace). kind=unreferenced: those of both that nothing referred to then",
    ("kind",),
    aggregation="max",
)
FOOTPRINT_OBJECTS: Final = Metric(
    "forebay_footprint_objects", "Objects in the object store, as forebay_footprint_bytes counts them", ("kind",), aggregation="max"
)
FOOTPRINT_AGE: Final = Metric(
    "forebay_footprint_age_seconds", "Time since the older of the lists that forebay_footprint_bytes rests on", aggregation="max"
)
WAL_PREFIX: Final = "wal/"
SEGMENTS_PREFIX: Final = "segments/"
KINDS: Final = (WAL_PREFIX, SEGMENTS_PREFIX, EARLY_PREFIX)
KIND_NAMES: Final = {WAL_PREFIX: "wal", SEGMENTS_PREFIX: "segment"}
TOGETHER: Final = 16
"""Headers, and partitions, that are read side by side."""
REMEMBERED_SLICES_MAX: Final = 100_000
"""Slices of live WAL objects whose headers are not read again, about 20 MiB."""
CYCLE_OBJECTS_MAX: Final = 10_000
BATCH_OBJECTS_MAX: Final = 2_000

T = TypeVar("T")


@dataclass(slots=True)
class StoredObjects:
    """Objects and their bytes, and those of them that nothing refers to."""

    objects: int = 0
    size_bytes: int = 0
    unreferenced_objects: int = 0
    unreferenced_bytes: int = 0


class Footprint:
    """Written by the collector, one kind after the other; the thread that makes the page reads.

    A list takes several cycles where there is much to list, so a figure is that of the last whole one. The collector looks at objects that
    are old enough to be judged (`compactor.delete_grace`), so what was put since then is not in it.
    """

    def __init__(self, telemetry: Telemetry, *, clock: Clock) -> None:
        self._clock = clock
        self._under_way: dict[str, StoredObjects] = {}
        self._whole: dict[str, tuple[StoredObjects, float]] = {}
        """By kind: what the last whole list showed, and when it began."""
        self._began_s: dict[str, float] = {}
        telemetry.table(FOOTPRINT_BYTES, lambda: self._rows(is_bytes=True))
        telemetry.table(FOOTPRINT_OBJECTS, lambda: self._rows(is_bytes=False))
        telemetry.table(FOOTPRINT_AGE, self._age)

    @property
    def size_bytes(self) -> int | None:
        """All that is stored; None until each kind was listed once."""
        whole = list(self._whole.values())
        return sum(held.size_bytes for held, _ in whole) if len(whole) > 1 else None

    def begin(self, kind: str) -> None:
        """A list begins at its first object."""
        self._under_way[kind], self._began_s[kind] = StoredObjects(), self._clock.monotonic_s()

    def add(self, kind: str, listed: Sequence[ObjectStat]) -> None:
        """A part of the list."""
        if (held := self._under_way.get(kind)) is not None:
            held.objects += len(listed)
            held.size_bytes += sum(stat.size_bytes for stat in listed)

    def add_unreferenced(self, kind: str, sizes: Sequence[int]) -> None:
        """Objects of the part that was added last to which nothing seems to refer, by their sizes."""
        if (held := self._under_way.get(kind)) is not None:
            held.unreferenced_objects += len(sizes)
            held.unreferenced_bytes += sum(sizes)

    def end(self, kind: str) -> None:
        """The list is whole, if it was begun here."""
        if (held := self._under_way.pop(kind, None)) is not None:
            self._whole[kind] = held, self._began_s[kind]

    def _rows(self, *, is_bytes: bool) -> Iterator[SeriesRow]:
        whole = {kind: held for kind, (held, _) in list(self._whole.items())}
        for kind, held in whole.items():
            yield (kind,), held.size_bytes if is_bytes else held.objects
        if whole:
            yield ("unreferenced",), sum(held.unreferenced_bytes if is_bytes else held.unreferenced_objects for held in whole.values())

    def _age(self) -> Iterator[SeriesRow]:
        began_s = [began_s for _, began_s in list(self._whole.values())]
        if began_s:
            yield (), round(self._clock.monotonic_s() - min(began_s), 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorPolicy:
    """Objects older than `grace_ms` are looked at, `objects_max` per cycle and kind, `batch_max` at a time."""

    grace_ms: int = 900_000
    objects_max: int = CYCLE_OBJECTS_MAX
    batch_max: int = BATCH_OBJECTS_MAX


@dataclass(slots=True)
class UploadsReport:
    """`looked_at` unfinished uploads, of which `aborted` were old enough. `failed`: why some may be left that are, or None.
    A dry run aborts nothing: then `aborted` are those that are old enough.
    """

    looked_at: int = 0
    aborted: int = 0
    failed: StorageError | None = None


@dataclass(slots=True)
class Judged:
    """`looked_at` of a kind, of which `live` are referred to and `unsure` could not be judged; why, by what was asked, is in `failed`.

    Nothing refers to `kept` ones, and they stay: the metadata went back once. A dry run deletes nothing: then `deleted` are those that
    nothing seems to refer to.
    """

    looked_at: int = 0
    live: int = 0
    unsure: int = 0
    kept: int = 0
    deleted: int = 0
    deleted_bytes: int = 0
    failed: dict[str, StorageError] = field(default_factory=dict)


@dataclass(slots=True)
class CollectionReport(Judged):
    """Counts of objects. `uploads` is None if they were not looked at."""

    pages: Judged = field(default_factory=Judged)
    """Early pages of old objects. Those of an object that is there are `deleted`, without a question who refers to it."""
    uploads: UploadsReport | None = None
    missing: tuple[MissingObject, ...] | None = None
    """Objects that live entries name and that are not there: while there are any nothing is deleted. None if nobody looked."""


@dataclass(frozen=True, slots=True)
class UnusedCandidate:
    """An object, and the partitions that may refer to it."""

    key: str
    object_id: ObjectId
    size_bytes: int
    partitions: tuple[PartitionId, ...]
    broker_epoch: int = -1
    """The epoch of the broker that put it, of a WAL object."""


@dataclass(slots=True)
class _LookedAtPages:
    """`stored` are of objects that are there. A cheap look has shown no entry for `unseen` ones, by the path of the page."""

    stored: list[FoundPage] = field(default_factory=list)
    unseen: list[UnusedCandidate] = field(default_factory=list)
    refs: dict[str, FoundPage] = field(default_factory=dict)


class ObjectsMissing(Unavailable):
    """Live entries name objects that are not in the store: nothing is deleted until they are back, trimmed past, or accepted as lost."""

    def __init__(self, missing: Sequence[MissingObject]) -> None:
        names = ", ".join(one.key for one in missing[:3])
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        super().__init__(
            f"live entries name objects that are not in the object store: {names}{more}. Nothing is deleted meanwhile. Bring them back; "
            "if one is lost for good: forebay storage accept-lost KEY"
        )
        self.missing = tuple(missing)


@dataclass(frozen=True, slots=True)
class _Listed:
    """`stats` are those made before `before_ms`. `keys` are all that a list has shown behind `after`, up to `last`, or to the end if that
    is None. `is_end`: there are no more that are old enough.
    """

    stats: list[ObjectStat]
    keys: frozenset[str]
    after: str
    last: str | None
    before_ms: int
    is_end: bool

    def should_have(self, key: str, object_id: ObjectId) -> bool:
        """Whether the list would have shown this object, which was there when the list began."""
        return self.after < key and (self.last is None or key <= self.last) and ulid_ms(object_id) < self.before_ms


class Collector:
    """`cycle` again and again, one at a time."""

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        objects: ObjectStore,
        references: References,
        clock: Clock,
        deletions: Deletions | None = None,
        policy: CollectorPolicy | None = None,
        footprint: Footprint | None = None,
        limits: CompactorLimits = DEFAULT_LIMITS,
    ) -> None:
        """`deletions` counts for all that delete in this process; None: this collector is the only one. `footprint` sums its lists."""
        self._footprint = footprint
        self._limits = limits
        self._records = Records(metadata, limits=limits)
        self._deletions = deletions or Deletions(metadata, objects, ids=references.ids, clock=clock)
        self._objects = objects
        self._references = references
        self._clock = clock
        self._policy = policy or CollectorPolicy()
        self._sweep = PageSweep(self._records, limits=limits)
        self._after: dict[str, str] = {}
        """Where the next cycle goes on, by prefix."""
        self._live = LruCache[str, UnusedCandidate](REMEMBERED_SLICES_MAX, cost=lambda one: len(one.partitions))
        """Live WAL objects by name, the one seen last at the end: their headers never change."""

    async def cycle(self, report: CollectionReport, *, kinds: Collection[str] = KINDS, dry_run: bool = False) -> set[str]:
        """Look at the next objects, or early pages, of each of `kinds`, and add to `report`. Return the kinds whose end was reached: they
        begin again.

        Raises a `StorageError` if objects cannot be listed or deleted, `ObjectsMissing` and `MetadataWentBack` if none may be.
        """
        if not dry_run:
            await self._check_missing()
        ended, unseen, pages = set(), list[tuple[str, list[UnusedCandidate]]](), list[_LookedAtPages]()
        # All of it before anything is deleted: what one kind shows to be missing keeps the objects of the other, and all pages.
        for kind in kinds:
            if kind == EARLY_PREFIX:
                pages, is_end = await self._look_at_pages(report.pages)
            else:
                batches, is_end = await self._look_at(kind, report, dry_run=dry_run)
                unseen += [(kind, batch) for batch in batches]
            if is_end:
                ended.add(kind)
        for kind, batch in unseen:
            await self._free(kind, batch, report, dry_run=dry_run)
        for looked_at in pages:
            await self._free_pages(looked_at, report.pages, dry_run=dry_run)
        return ended

    async def note_missing_of(self, partition: PartitionId) -> None:
        """Look for what live entries of `partition` name and the store does not have: somebody has missed an object of it.

        The lists of a cycle show no partition of which every object is missing. Raises a `StorageError` if nobody can say.
        """
        known = await self._deletions.read()
        named = {object_key(one) for one in await self._references.live_wal(partition) or ()}
        named |= {segment_key(partition, one) for one in await self._references.live_segments(partition) or ()}
        missing: list[MissingObject] = []
        for key in sorted(named.difference(known.lost)):
            if len(known.missing) + len(missing) >= MISSING_MAX:
                break
            one = MissingObject(key, partition.topic_id, partition.partition)
            if one not in known.missing and await self._is_missing(one):
                missing.append(one)
        if missing:
            await self._deletions.change(partial(with_missing, found=missing), action="note missing objects")

    async def _check_missing(self) -> None:
        """Raise `ObjectsMissing` while an object is missing that was found to be."""
        found = (await self._deletions.read()).missing
        over = [one for one in found if not await self._is_missing(one)]
        if over:
            await self._deletions.change(partial(without_missing, over=over), action="note objects that are back")
        if left := [one for one in found if one not in over]:
            raise ObjectsMissing(left)

    async def _is_missing(self, one: MissingObject) -> bool:
        """True if a live entry names it for certain, and it is in the store neither before nor after that.

        One look at the store is not enough. The key may come from a compaction under way: asked before its PUT, and named after its commit.
        Early entries have their bytes in pages until it is put. These go behind that, so it is asked for behind the look at them.
        """
        if await self._is_there(one.key):
            return False
        partition, object_id = PartitionId(TopicId(one.topic_id), one.partition), _id_of(one.key)
        if object_id is None:
            return False
        if one.key.startswith(WAL_PREFIX):
            entries = await self._references.live_entries(partition, object_id)
            if not entries or await self._page_names().have_certainly(partition, entries):
                return False
        elif object_id not in (await self._references.live_segments(partition) or ()):
            return False
        return not await self._is_there(one.key)

    def _page_names(self) -> PageNames:
        return PageNames(self._records, self._references.ids, limits=self._limits)

    async def _is_there(self, key: str) -> bool:
        try:
            await self._objects.stat(key)
        except NotFound:
            return False
        return True

    async def _is_stored(self, key: str) -> bool:
        """Whether a WAL object is there. Raises `Corrupt` for what has its name and is another: nothing may be deleted on account of it."""
        try:
            await self._of_wal(await self._objects.stat(key))
        except NotFound:
            return False
        return True

    async def _note_missing(self, prefix: str, named: Mapping[PartitionId, set[ObjectId]], listed: _Listed) -> None:
        """Compare what entries name with what the list has shown. Raises `ObjectsMissing` if an object is missing for certain.

        A list proves nothing: it says which objects to ask for.
        """
        lost = frozenset((await self._deletions.read()).lost)
        unlisted: dict[PartitionId, dict[ObjectId, str]] = {}
        for partition, ids in named.items():
            for object_id in ids:
                key = object_key(object_id) if prefix == WAL_PREFIX else segment_key(partition, object_id)
                if key not in listed.keys and key not in lost and listed.should_have(key, object_id):
                    unlisted.setdefault(partition, {})[object_id] = key
        if prefix == WAL_PREFIX:
            await self._leave_out_in_pages(unlisted)
        missing: list[MissingObject] = []
        for partition, keys in unlisted.items():
            for key in keys.values():
                one = MissingObject(key, partition.topic_id, partition.partition)
                if len(missing) < MISSING_MAX and await self._is_missing(one):
                    missing.append(one)
        if missing:
            known = await self._deletions.change(partial(with_missing, found=missing), action="note missing objects")
            raise ObjectsMissing(known.missing or missing)

    async def _leave_out_in_pages(self, unlisted: Mapping[PartitionId, dict[ObjectId, str]]) -> None:
        """Objects whose entries have pages: a broker that died leaves as many as it has partitions, and they are not missing for hours."""
        names = self._page_names()

        async def ask(partition: PartitionId) -> None:
            with contextlib.suppress(StorageError):  # who asks for certain says it
                seen: dict[ObjectId, list[Entry]] = {}
                for entry in await self._references.entries_seen(partition, unlisted[partition]):
                    seen.setdefault(entry.object_id, []).append(entry)
                for object_id, entries in seen.items():
                    if await names.have(partition, entries):
                        del unlisted[partition][object_id]

        await side_by_side(list(unlisted), ask, together=TOGETHER)

    async def _look_at_pages(self, report: Judged) -> tuple[list[_LookedAtPages], bool]:
        """Look at the next early pages of old objects. Return what was found, and whether these were the last."""
        batches: list[_LookedAtPages] = []
        left, left_bytes, is_end = self._policy.objects_max, self._limits.early_pages_cycle_bytes_max, False
        before_ms = self._clock.now_ms() - self._policy.grace_ms
        while left > 0 and left_bytes > 0 and not is_end:
            pages, is_end = await self._sweep.next(before_ms=before_ms, count=min(left, self._policy.batch_max))
            left -= len(pages)
            left_bytes -= sum(page.ref.size_bytes for page in pages)
            report.looked_at += len(pages)
            batches.append(await self._judge_pages(pages, report))
        return batches, is_end

    async def _judge_pages(self, pages: Sequence[OldPage], report: Judged) -> _LookedAtPages:
        found = _LookedAtPages()
        candidates: list[UnusedCandidate] = []
        shared: dict[PartitionId, PartitionId] = {}
        by_object: dict[ObjectId, list[OldPage]] = {}
        slices = 0
        for page in pages:
            if page.place is not None:
                by_object.setdefault(page.place[0], []).append(page)
            else:
                path = page.ref.key.path
                self._keep_page(path, Corrupt(f"not the name of an early page, so no release of Forebay has put it: key={path!r}"), report)

        async def judge(object_id: ObjectId) -> None:
            nonlocal slices
            try:
                if await self._is_stored(object_key(object_id)):
                    found.stored += [page.ref for page in by_object[object_id]]
                    return
            except StorageError as error:
                report.unsure += len(by_object[object_id])
                report.failed[object_key(object_id)] = error
                return
            for ref, _, value in by_object[object_id]:
                path = ref.key.path
                if slices > self._limits.collected_slices_max:
                    report.unsure += 1  # for the next cycle
                    continue
                try:
                    partitions = decode_page(value, path=path).partitions
                except (Corrupt, IncompatibleFormat) as error:
                    self._keep_page(path, error, report)
                    continue
                slices += len(partitions)
                found.refs[path] = ref
                named = tuple([shared.setdefault(one, one) for one in partitions])
                candidates.append(UnusedCandidate(path, object_id, ref.size_bytes, named))

        await side_by_side(by_object, judge, together=TOGETHER)
        found.unseen = await self._unseen(candidates, self._references.wal_seen, {}, report)
        return found

    def _keep_page(self, path: str, error: StorageError, report: Judged) -> None:
        """It stays, since nobody can say whose it is. The first ones are named."""
        report.unsure += 1
        if len(report.failed) < self._limits.early_pages_named_max:
            report.failed[path] = without_frames(error)

    async def _free_pages(self, looked_at: _LookedAtPages, report: Judged, *, dry_run: bool) -> None:
        """Delete pages whose object is there, and of the others those that certainly no entry needs."""
        revoke, unseen = self._references.revoke_wal, looked_at.unseen
        gone = [*looked_at.stored, *(looked_at.refs[one.key] for one in unseen)]
        if not dry_run:
            gone = await self._sweep.delete(looked_at.stored)
            if free := await self._certainly_free(unseen, revoke, report):
                await self._deletions.count()
                # Once more, as for objects: the metadata may have been put back.
                free = await self._certainly_free(free, revoke, report)
                gone += await self._sweep.delete([looked_at.refs[one.key] for one in free])
        report.deleted += len(gone)
        report.deleted_bytes += sum(ref.size_bytes for ref in gone)

    async def _look_at(self, prefix: str, report: CollectionReport, *, dry_run: bool) -> tuple[list[list[UnusedCandidate]], bool]:
        """Look at the next objects. Return those that a cheap look does not show, in batches, and whether they were the last."""
        is_wal = prefix == WAL_PREFIX
        look = self._references.wal_seen if is_wal else self._references.segments_seen
        batches: list[list[UnusedCandidate]] = []
        left, is_end = self._policy.objects_max, False
        while left > 0 and not is_end:
            if self._footprint is not None and prefix not in self._after:
                self._footprint.begin(KIND_NAMES[prefix])
            listed = await self._next(prefix, min(left, self._policy.batch_max))
            if self._footprint is not None:
                self._footprint.add(KIND_NAMES[prefix], listed.stats)
            is_end = listed.is_end
            left -= len(listed.stats)
            report.looked_at += len(listed.stats)
            candidates = await self._candidates(listed.stats, self._of_wal if is_wal else _of_segment, report)
            named: dict[PartitionId, set[ObjectId]] = {}
            batches.append(await self._unseen(candidates, look, named, report))
            if is_wal:
                self._remember(candidates, besides=batches[-1])
            if self._footprint is not None:
                self._footprint.add_unreferenced(KIND_NAMES[prefix], [one.size_bytes for one in batches[-1]])
                if is_end:
                    self._footprint.end(KIND_NAMES[prefix])
            if not dry_run:
                await self._note_missing(prefix, named, listed)
        return batches, is_end

    def _remember(self, candidates: Sequence[UnusedCandidate], *, besides: Sequence[UnusedCandidate]) -> None:
        """Keep the headers of live objects, of which each cycle finds most again; the oldest go first."""
        gone = {one.key for one in besides}
        for one in candidates:
            if one.key in gone:
                self._live.pop(one.key)
            else:
                self._live.put(one.key, one)

    async def _free(self, prefix: str, unseen: Sequence[UnusedCandidate], report: CollectionReport, *, dry_run: bool) -> None:
        """Delete what of `unseen` certainly nothing refers to."""
        revoke = self._references.revoke_wal if prefix == WAL_PREFIX else self._references.revoke_segments
        known = await self._deletions.read()
        free = _not_kept(unseen if dry_run else await self._certainly_free(unseen, revoke, report), known, report)
        if free and not dry_run:
            for one in free:
                if one.broker_epoch < 0:
                    await self._check_segment(one)
            known = await self._deletions.count(newest_epoch=max(one.broker_epoch for one in free))
            # Once more: the metadata may have been put back, and the count may be in the older ones (model F-restore-looked-once).
            free = _not_kept(await self._certainly_free(free, revoke, report), known, report)
            keys = [one.key for one in free]
            count_max = self._limits.objects_per_delete
            for begin in range(0, len(keys), count_max):
                await self._objects.delete_many(keys[begin : begin + count_max])
        report.deleted += len(free)
        report.deleted_bytes += sum(one.size_bytes for one in free)

    async def _check_segment(self, one: UnusedCandidate) -> None:
        """Raise `MetadataWentBack` if it ends behind the log: it was made of records that were committed."""
        try:
            last = (await self._footer(one)).last
        except (NotFound, Corrupt):
            return  # of another collector; or of no use to anybody
        manifest = await read_manifest(self._records, one.partitions[0])
        if manifest is None or manifest.log_state is LogState.DELETED or last < manifest.sequence_counter:
            return
        certain = await self._references.certain_manifest(one.partitions[0])
        if certain is not None and last >= certain.sequence_counter:
            evidence = f"{one.key} ends with offset {last}, and the metadata end the log at {certain.sequence_counter}"
            known = await self._deletions.read()
            raise MetadataWentBack(WentBack(evidence=evidence, metadata_ms=known.at_ms, store_ms=ulid_ms(one.object_id)))

    async def _footer(self, one: UnusedCandidate) -> SegmentFooter:
        tail = await self._objects.get_range(one.key, max(0, one.size_bytes - FOOTER_READ_BYTES), one.size_bytes)
        if missing := footer_bytes_missing(tail, size_bytes=one.size_bytes, key=one.key):
            tail = await self._objects.get_range(one.key, one.size_bytes - len(tail) - missing, one.size_bytes)
        return decode_footer(tail, size_bytes=one.size_bytes, key=one.key)

    async def _next(self, prefix: str, count: int) -> _Listed:
        """The next objects that are old enough, by key. If they are the last, it begins again."""
        oldest_kept_ms = self._clock.now_ms() - self._policy.grace_ms
        found: list[ObjectStat] = []
        keys: list[str] = []
        after = self._after.pop(prefix, "")
        async with contextlib.aclosing(_as_generator(self._objects.list(prefix, start_after=after))) as listing:
            async for stat in listing:
                object_id = _id_of(stat.key)
                if object_id is None:
                    continue  # not ours to judge
                keys.append(stat.key)
                if ulid_ms(object_id) >= oldest_kept_ms:
                    if prefix == WAL_PREFIX:
                        # Keys are in the order of time.
                        return _Listed(found, frozenset(keys), after, stat.key, oldest_kept_ms, is_end=True)
                    continue
                found.append(stat)
                if len(found) == count:
                    self._after[prefix] = stat.key
                    return _Listed(found, frozenset(keys), after, stat.key, oldest_kept_ms, is_end=False)
        return _Listed(found, frozenset(keys), after, None, oldest_kept_ms, is_end=True)

    async def _candidates(
        self, stats: Sequence[ObjectStat], candidate_of: Callable[[ObjectStat], Awaitable[UnusedCandidate]], report: CollectionReport
    ) -> list[UnusedCandidate]:
        found: list[UnusedCandidate] = []
        shared: dict[PartitionId, PartitionId] = {}
        slices = 0

        async def judge(stat: ObjectStat) -> None:
            nonlocal slices
            if slices > self._limits.collected_slices_max:
                report.unsure += 1  # for the next cycle
                return
            try:
                one = await candidate_of(stat)
            except NotFound:
                return  # another collector was faster
            except StorageError as error:
                report.unsure += 1
                report.failed[stat.key] = error
                return
            slices += len(one.partitions)
            found.append(dataclasses.replace(one, partitions=tuple([shared.setdefault(p, p) for p in one.partitions])))

        await side_by_side(stats, judge, together=TOGETHER)
        return found

    async def _unseen(
        self,
        candidates: Sequence[UnusedCandidate],
        look: Callable[[PartitionId, Manifest], Awaitable[set[ObjectId]]],
        named: dict[PartitionId, set[ObjectId]],
        report: Judged,
    ) -> list[UnusedCandidate]:
        """The candidates that a cheap look does not show: most objects are live, and nothing need be revoked to know it.

        `named` gets what each partition was seen to refer to.
        """
        seen: set[ObjectId] = set()
        unsure: set[PartitionId] = set()

        async def ask(partition: PartitionId) -> None:
            try:
                manifest = await read_manifest(self._records, partition)
                if manifest is not None and manifest.log_state is not LogState.DELETED:
                    named[partition] = await look(partition, manifest)
                    seen.update(named[partition])
            except StorageError as error:
                unsure.add(partition)
                report.failed[str(partition)] = error

        await side_by_side(_partitions_of(candidates), ask, together=TOGETHER)
        return _sorted_out(candidates, seen, unsure, report)

    async def _certainly_free(
        self,
        candidates: Sequence[UnusedCandidate],
        revoke: Callable[[PartitionId, ObjectId], Awaitable[set[ObjectId] | None]],
        report: Judged,
    ) -> list[UnusedCandidate]:
        floors = _partitions_of(candidates)
        seen: set[ObjectId] = set()
        unsure: set[PartitionId] = set()

        async def ask(partition: PartitionId) -> None:
            try:
                seen.update(await revoke(partition, floors[partition]) or ())
            except StorageError as error:
                unsure.add(partition)
                report.failed[str(partition)] = error

        await side_by_side(floors, ask, together=TOGETHER)
        return _sorted_out(candidates, seen, unsure, report)

    async def _of_wal(self, stat: ObjectStat) -> UnusedCandidate:
        if (known := self._live.peek(stat.key)) is not None and known.size_bytes == stat.size_bytes:
            return known
        header = await read_header(partial(self._objects.get_range, stat.key), key=stat.key, size_bytes=stat.size_bytes)
        if stat.key != object_key(header.object_id):
            raise Corrupt(f"an object under the name of another: key={stat.key!r} header={header.object_id}")
        partitions = tuple(dict.fromkeys(one.partition for one in header.slices))
        return UnusedCandidate(stat.key, header.object_id, stat.size_bytes, partitions, header.broker_epoch)


async def _of_segment(stat: ObjectStat) -> UnusedCandidate:
    named = parse_segment_key(stat.key)
    if named is None:
        raise Corrupt(f"not the name of a segment: key={stat.key!r}")
    partition, object_id = named
    return UnusedCandidate(stat.key, object_id, stat.size_bytes, (partition,))


def _id_of(key: str) -> ObjectId | None:
    name = key.rsplit("/", 1)[1]
    with contextlib.suppress(ValueError):
        ulid_ms(name)
        return ObjectId(name)
    return None


def _not_kept(free: Sequence[UnusedCandidate], known: CollectionsRecord, report: Judged) -> list[UnusedCandidate]:
    kept = [one for one in free if known.keeps(one.object_id)]
    report.kept += len(kept)
    return [one for one in free if one not in kept] if kept else list(free)


def _partitions_of(candidates: Iterable[UnusedCandidate]) -> dict[PartitionId, ObjectId]:
    """With the newest object that each may refer to."""
    floors: dict[PartitionId, ObjectId] = {}
    for one in candidates:
        for partition in one.partitions:
            floors[partition] = max(floors.get(partition, ObjectId("")), one.object_id)
    return floors


def _sorted_out(
    candidates: Sequence[UnusedCandidate], seen: set[ObjectId], unsure: set[PartitionId], report: Judged
) -> list[UnusedCandidate]:
    free = []
    for one in candidates:
        if one.object_id in seen:
            report.live += 1
        elif not unsure.isdisjoint(one.partitions):
            report.unsure += 1
        else:
            free.append(one)
    return free


async def _as_generator(listing: AsyncIterator[ObjectStat]) -> AsyncGenerator[ObjectStat, None]:
    async for stat in listing:
        yield stat
