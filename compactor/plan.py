"""Decisions of upkeep about a manifest, pure (docs/internals/design/upkeep.md).

Compaction: which entries become the next segment, which ranges of WAL objects hold the slices of a round, and what a committed segment
makes of the record. Merging: which neighbours become one segment. Retention: which segments and entries are deleted, oldest first.
Tidying: what leaves a record to which nobody appends.
"""

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple

import msgspec

from runtime.ulid import ulid_ms
from storage.catalog.topic_configs import integer, value_of
from storage.formats.manifest import Entry, EntrySource, IndexChunk, LogState, Manifest, SegmentEntry, inline_bytes, with_rewritten
from storage.formats.segment import HEADER_BYTES, footer_bytes
from storage.limits import KIB, SEGMENT_BLOCK_BYTES_TARGET, SEGMENT_BYTES_TARGET
from storage.log.decide import FORGOTTEN_AFTER, drained
from storage.log.producer_pages import forget_expired
from storage.log.trim import decide_trim
from storage.vocabulary import ObjectId

Span = tuple[int, int]

NO_LIMIT: Final = -1
ENTRIES_MORE: Final = 16
LITTLE_AGES: Final = 6
INLINE_BYTES_DUE: Final = 64 * KIB
"""Brokers before format level 5 write batches into entries. Compaction takes this many bytes out of the metadata store at once."""
AHEAD_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPolicy:
    """A segment is due when it is full (`segment_bytes`), of many entries (`entries_due`), or when its first entry is `age_due_ms` old.

    Many entries are worth a segment only with `entries_due_bytes`, else ENTRIES_MORE times as many; fewer bytes than `little_bytes` wait
    LITTLE_AGES times as long. A segment costs a PUT however small it is, and entries cost readers little.
    """

    segment_bytes: int = SEGMENT_BYTES_TARGET
    block_bytes: int = SEGMENT_BLOCK_BYTES_TARGET
    entries_due: int = 512
    entries_due_bytes: int = 0
    age_due_ms: int = 3_600_000
    little_bytes: int = 0


def count_due(entries: Sequence[Entry], *, now_ms: int, policy: CompactionPolicy) -> int:
    """How many of `entries`, consecutive ones, oldest first, become a segment now; 0 if none is due.

    No more are needed than fill a segment: with those given, the answer is the same whether others follow or not.
    """
    filled_bytes = 0
    for number, entry in enumerate(entries, 1):
        filled_bytes += entry.size_bytes
        if filled_bytes >= policy.segment_bytes:
            return number
    if len(entries) >= entries_due(filled_bytes, policy) or inline_bytes(entries) >= INLINE_BYTES_DUE:
        return len(entries)
    if entries and now_ms - ulid_ms(entries[0].object_id) >= age_due_ms(filled_bytes, policy):
        return len(entries)
    return 0


def entries_due(filled_bytes: int, policy: CompactionPolicy) -> int:
    """The number of entries at which a segment of `filled_bytes` is due."""
    return policy.entries_due if filled_bytes >= policy.entries_due_bytes else ENTRIES_MORE * policy.entries_due


def age_due_ms(filled_bytes: int, policy: CompactionPolicy) -> int:
    """The age of the first entry at which a segment of `filled_bytes` is due."""
    return policy.age_due_ms if filled_bytes >= policy.little_bytes else LITTLE_AGES * policy.age_due_ms


def in_runs(entries: Sequence[Entry], *, bytes_max: int) -> Iterator[Sequence[Entry]]:
    """`entries` in order, in runs of at most `bytes_max`; one that is larger is a run by itself."""
    begin = filled_bytes = 0
    for number, entry in enumerate(entries):
        size_bytes = entry.size_bytes
        if number > begin and filled_bytes + size_bytes > bytes_max:
            yield entries[begin:number]
            begin, filled_bytes = number, 0
        filled_bytes += size_bytes
    if begin < len(entries):
        yield entries[begin:]


class RangeRead(NamedTuple):
    """One GET: bytes begin..end (exclusive) of an object, and the spans in it, by position."""

    object_id: ObjectId
    begin: int
    end: int
    spans: tuple[Span, ...]


def plan_reads(entries: Iterable[Entry], *, gap_bytes_max: int, get_bytes_max: int) -> list[RangeRead]:
    """The reads of all spans of `entries`, each span once, by object and position. Inline entries need none.

    Two spans are read together if no more than `gap_bytes_max` lie between them, and the read has no more than `get_bytes_max`.
    """
    by_object: dict[ObjectId, set[Span]] = {}
    for entry in entries:
        if not entry.is_inline:
            by_object.setdefault(entry.object_id, set()).update(entry.spans)
    found: list[RangeRead] = []
    for object_id in sorted(by_object):
        found += _reads_of(object_id, sorted(by_object[object_id]), gap_bytes_max=gap_bytes_max, get_bytes_max=get_bytes_max)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class MergePolicy:
    """At least `count_min` neighbours become one segment of at most `segment_bytes`, each of them `is_small`.

    The segment is at least `growth_min` times as large as the largest of them. So a byte is rewritten once for each factor `growth_min`
    between the segment it came in and `segment_bytes`, however many segments there are.
    """

    segment_bytes: int = SEGMENT_BYTES_TARGET
    block_bytes: int = SEGMENT_BLOCK_BYTES_TARGET
    count_min: int = 8
    growth_min: int = 4

    def __post_init__(self) -> None:
        assert self.count_min >= 2, f"one segment is no merge: {self.count_min=}"

    def is_small(self, segment: SegmentEntry) -> bool:
        return segment.size_bytes < self.segment_bytes // 4


class MergeRefusal(Enum):
    """Why a merge cannot be committed. Its object stays where it is: it may be committed all the same (model F-merge-loser)."""

    GONE = auto()
    """The partition was deleted."""
    UNDER_WAY = auto()
    """Another merge is."""
    REVOKED = auto()
    """The collector has revoked the object: it may be deleting it."""
    NEWEST = auto()
    """It would hold the newest segment."""


def may_be_due(manifest: Manifest) -> bool:
    """Whether there is a merge to finish, or a segment below the newest."""
    return manifest.rewritten is not None or (manifest.segment is not None and manifest.segment.base > manifest.log_start)


def choose(segments: Sequence[SegmentEntry], policy: MergePolicy) -> Sequence[SegmentEntry]:
    """The neighbours to merge, of `segments` without gaps, oldest first: as many as may be, of as many the oldest. Empty: none are due."""
    best: Sequence[SegmentEntry] = ()
    for first in range(len(segments)):
        size_bytes = batch_bytes = largest_bytes = 0
        for end in range(first, len(segments)):
            segment = segments[end]
            size_bytes += segment.size_bytes
            if not policy.is_small(segment) or size_bytes > policy.segment_bytes:
                break
            of_batches = _batch_bytes(segment)
            batch_bytes += of_batches
            largest_bytes = max(largest_bytes, of_batches)
            count = end - first + 1
            if count >= policy.count_min and count > len(best) and batch_bytes >= policy.growth_min * largest_bytes:
                best = segments[first : end + 1]
    return best


def merge_of(sources: Sequence[SegmentEntry], object_id: ObjectId, *, size_bytes: int) -> SegmentEntry:
    """The entry of the object that has the batches of `sources`."""
    return SegmentEntry(
        base=sources[0].base,
        last=sources[-1].last,
        object_id=object_id,
        size_bytes=size_bytes,
        max_timestamp=max(source.max_timestamp for source in sources),
        running_max_timestamp=sources[-1].running_max_timestamp,
    )


def begin_rewriting(manifest: Manifest, merged: SegmentEntry) -> Manifest | MergeRefusal:
    """The record to put by CAS when the sources of `merged` were seen, and touched, after `manifest` was read."""
    if manifest.log_state is LogState.DELETED:
        return MergeRefusal.GONE
    if manifest.rewritten is not None:
        return MergeRefusal.UNDER_WAY
    if merged.object_id <= manifest.revoked_floor:
        return MergeRefusal.REVOKED
    if manifest.segment is None or merged.last >= manifest.segment.base:
        return MergeRefusal.NEWEST
    return with_rewritten(manifest, merged)


def is_inside(segment: SegmentEntry, merged: SegmentEntry) -> bool:
    """Whether `merged` may take its place. It may not take that of a later merge, which holds more than it does."""
    return merged.base <= segment.base and segment.last <= merged.last


class RetentionLimits(NamedTuple):
    """NO_LIMIT for none. A timestamp that is more than `ahead_ms` ahead of the object that has it says nothing."""

    retention_ms: int
    retention_bytes: int
    ahead_ms: int = AHEAD_MS

    @property
    def is_endless(self) -> bool:
        return self.retention_ms == self.retention_bytes == NO_LIMIT


def limits_of(configs: Mapping[str, str]) -> RetentionLimits:
    """The limits of a topic: none unless its `cleanup.policy` names delete.

    A timestamp counts as far ahead as the topic lets producers date theirs, but for longer than `retention.ms` it keeps nothing.
    """
    if "delete" not in value_of(configs, "cleanup.policy").split(","):
        return RetentionLimits(NO_LIMIT, NO_LIMIT)
    retention_ms = integer(configs, "retention.ms")
    ahead_ms = min(integer(configs, "message.timestamp.after.max.ms"), retention_ms)
    return RetentionLimits(retention_ms, integer(configs, "retention.bytes"), max(AHEAD_MS, ahead_ms))


def source_ms(source: EntrySource, *, ahead_ms: int) -> int:
    """The time of the newest record of `source`; that of its object where no record has one, or one is too far ahead to be true."""
    written_ms = ulid_ms(source.object_id)
    return source.max_timestamp if 0 <= source.max_timestamp <= written_ms + ahead_ms else written_ms


class _KeptSegment(NamedTuple):
    """One item that stays, or several that go together."""

    last: int
    size_bytes: int
    newest_ms: int


class RetentionPlan:
    """`add` the items of a partition, from log_start on, until no more are wanted: then `log_start` is where it has to begin.

    As Kafka deletes whole log segments: by `retention.ms` until the first that is not older than that, by `retention.bytes` while what
    follows the first has that size already. The newest one goes, too, when it is old: there is no active segment that has to stay.

    It counts up to `sizes_kept_max` items one by one.
    """

    def __init__(self, limits: RetentionLimits, manifest: Manifest, *, now_ms: int, sizes_kept_max: int) -> None:
        self._sizes_kept_max = sizes_kept_max
        self._limits = limits
        self._bytes_total = manifest.bytes_total
        self._expired_before_ms = now_ms - limits.retention_ms
        # What is in the log was appended once, so without counting it is known to be no more than that.
        self._counts_bytes = NO_LIMIT != limits.retention_bytes < manifest.bytes_total
        self._kept: deque[_KeptSegment] = deque()
        self._kept_bytes = 0
        self._end = self.log_start = manifest.log_start

    def add(self, items: Iterable[EntrySource]) -> bool:
        """Whether the answer may change with what follows."""
        limit = self._limits.retention_bytes
        for item in items:
            # One that begins before the end has taken the place of items that were counted.
            size_bytes = item.size_bytes if item.base >= self._end or not self._kept else 0
            self._end = item.last + 1
            newest_ms = 0 if self._limits.retention_ms == NO_LIMIT else source_ms(item, ahead_ms=self._limits.ahead_ms)
            if not self._kept and self._is_expired(newest_ms):
                self.log_start = self._end
                continue
            self._kept.append(_KeptSegment(item.last, size_bytes, newest_ms))
            if not self._counts_bytes:
                return False
            self._kept_bytes += size_bytes
            while self._kept and self._kept_bytes - self._kept[0].size_bytes >= limit:
                gone = self._kept.popleft()
                self._kept_bytes -= gone.size_bytes
                self.log_start = gone.last + 1
            if len(self._kept) > self._sizes_kept_max:
                self._kept = deque(_together(self._kept, bytes_max=4 * self._kept_bytes // self._sizes_kept_max))
        return True

    def _is_expired(self, newest_ms: int) -> bool:
        return self._limits.retention_ms != NO_LIMIT and newest_ms < self._expired_before_ms

    @property
    def again_ms(self) -> float:
        """Before that nothing else is too old. What is appended to a log of which nothing stays may be old at once."""
        if self._limits.retention_ms == NO_LIMIT:
            return float("inf")
        return self._kept[0].newest_ms + self._limits.retention_ms + 1 if self._kept else 0

    @property
    def again_bytes(self) -> float:
        """Before so much was appended in all, nothing else is too much."""
        limit = self._limits.retention_bytes
        if limit == NO_LIMIT:
            return float("inf")
        if not self._counts_bytes:
            return limit + 1
        return self._bytes_total + limit - (self._kept_bytes - self._kept[0].size_bytes if self._kept else -1)


class TidyPolicy(NamedTuple):
    """A partition without appends for `idle_ms` is tidied. `producer_expiration_ms` has to be that of the brokers; None: appends alone
    forget producers.
    """

    idle_ms: int = 600_000
    producer_expiration_ms: int | None = None


class Tidied(NamedTuple):
    """`manifest` is put by CAS, `chunk` beside it and before it, if absent: entries that the record of before had pending."""

    manifest: Manifest
    chunk: IndexChunk | None = None


def is_idle(manifest: Manifest, policy: TidyPolicy, *, now_ms: int) -> bool:
    return manifest.log_state is LogState.OPEN and manifest.last_append_ms < now_ms - policy.idle_ms


def tidied(
    manifest: Manifest, log_start: int, policy: TidyPolicy, *, now_ms: int, dead_writers_max: int, gone: Collection[int] = ()
) -> Tidied | None:
    """What to put so that the log begins at `log_start`; None if nothing has to change, or nothing may.

    A commit does all of this by itself (docs/internals/design/upkeep.md#tidying). In a partition without appends it would stay: a ring of
    entries, producers that have expired, entries of `writers` whose brokers are gone.

    With it go producers that have expired, entries of the brokers `gone` in `writers`, and, in a partition without appends, the ring. Where
    log_start stays, these are worth a write only if nobody appends: appends do it without one. What was left out once is not there to be
    left out again, so a partition gets one write for each time in which nobody appends, a second when its producers expire. Up to
    `dead_writers_max` entries of brokers are not worth a write: they leave with the next one.

    The ring goes as a whole, by the chunk that a commit would make of it: its entries were committed before, so that chunk is true also if
    the CAS fails (I3). None of it is needed where all of the ring is below the cursor, where segments count (I4), or below log_start.
    """
    if manifest.log_state is not LogState.OPEN or log_start > manifest.sequence_counter:  # the latter: an old record
        return None
    trimmed = decide_trim(manifest, log_start).manifest
    idle = is_idle(manifest, policy, now_ms=now_ms)
    if trimmed is None and not idle:
        return None
    made, chunk = trimmed or manifest, None
    if policy.producer_expiration_ms is not None:
        producers = dict(made.producers)
        pages = forget_expired(made.pages, producers, before_ms=now_ms - FORGOTTEN_AFTER * policy.producer_expiration_ms)
        if len(producers) < len(made.producers) or len(pages) < len(made.pages):
            made = msgspec.structs.replace(made, producers=producers, pages=pages)
    if idle and made.pending:
        is_needed = made.pending[-1].last >= max(made.compaction_cursor, made.log_start)
        chunk = drained(made) if is_needed else None
        made = msgspec.structs.replace(made, pending=())
    dead = manifest.writers.keys() & gone
    if len(dead) > dead_writers_max or (dead and made is not manifest):
        made = msgspec.structs.replace(made, writers={epoch: entry for epoch, entry in made.writers.items() if epoch not in dead})
    return None if made is manifest else Tidied(made, chunk)


def questioned_writers(manifest: Manifest, policy: TidyPolicy, *, now_ms: int, dead_writers_max: int) -> Collection[int]:
    """The epochs of which it matters whether their brokers are gone: those of a record that is tidied anyway, or that has many."""
    if not is_idle(manifest, policy, now_ms=now_ms):
        return ()
    if len(manifest.writers) <= dead_writers_max:
        made = tidied(manifest, manifest.log_start, policy, now_ms=now_ms, dead_writers_max=dead_writers_max)
        return () if made is None else manifest.writers.keys()
    return manifest.writers.keys()


class CursorRefusal(Enum):
    """Why a segment cannot be committed. Its object stays where it is: the loser deletes nothing (model F-loser)."""

    GONE = auto()
    """The partition was deleted."""
    OVERTAKEN = auto()
    """Another compaction has moved the cursor."""
    REVOKED = auto()
    """The collector has revoked the object: it may be deleting it."""


def move_cursor(manifest: Manifest, segment: SegmentEntry, *, cursor: int) -> Manifest | CursorRefusal:
    """The record to put by CAS when `segment`, of entries read at the compaction cursor `cursor`, is whole.

    `pending` stays as it is: its entries below the cursor become an index chunk as all do, which means nothing there (I4).
    """
    if manifest.log_state is LogState.DELETED:
        return CursorRefusal.GONE
    if manifest.compaction_cursor != cursor:
        return CursorRefusal.OVERTAKEN
    if segment.object_id <= manifest.revoked_floor:
        return CursorRefusal.REVOKED
    assert cursor <= segment.base <= segment.last < manifest.sequence_counter, f"not committed: {segment} cursor={cursor}"
    return msgspec.structs.replace(manifest, compaction_cursor=segment.last + 1, segment=segment)


def _reads_of(object_id: ObjectId, spans: Sequence[Span], *, gap_bytes_max: int, get_bytes_max: int) -> list[RangeRead]:
    reads: list[RangeRead] = []
    joined: list[Span] = []
    begin = end = 0
    for position, length in spans:
        if joined and (position - end > gap_bytes_max or position + length - begin > get_bytes_max):
            reads.append(RangeRead(object_id, begin, end, tuple(joined)))
            joined = []
        if not joined:
            begin = end = position
        joined.append((position, length))
        end = max(end, position + length)
    if joined:
        reads.append(RangeRead(object_id, begin, end, tuple(joined)))
    return reads


def _batch_bytes(segment: SegmentEntry) -> int:
    """What is left of it in a merge, about: header and footer are not."""
    return max(1, segment.size_bytes - HEADER_BYTES - footer_bytes(1))


def _together(kept: Iterable[_KeptSegment], *, bytes_max: int) -> Iterator[_KeptSegment]:
    """At most `sizes_kept_max` / 2 and one: any two neighbours have more than `bytes_max`, a fourth of `sizes_kept_max` of which is all."""
    joined: _KeptSegment | None = None
    for one in kept:
        if joined is None:
            joined = one
        elif joined.size_bytes + one.size_bytes <= bytes_max:
            joined = _KeptSegment(one.last, joined.size_bytes + one.size_bytes, min(joined.newest_ms, one.newest_ms))
        else:
            yield joined
            joined = one
    if joined is not None:
        yield joined
