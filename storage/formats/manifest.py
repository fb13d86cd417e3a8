"""The manifest of a partition and what travels beside it: THE record that decides (I7). Format 1; 2 while a merge is under way; 3
with inline entries; 4 with early ones.

JSON, so that an operator can read it; the small structs inside are arrays, so that it stays under 2 KiB:

    {"fmt":1, "log_state":"OPEN", "fence_epoch":0,
     "sequence_counter":120, "log_start":0, "compaction_cursor":0, "segment":null,
     "pending":[[base, last, "object id", batches, max_timestamp, running_max_timestamp], …],
         batches: [[position, length], …] | "base64" | {"start":position, "spans":[[position, length], …]}
     "writers":{"<broker_epoch>":[commit_seq, attempt]},
     "producers":{"<pid>":[epoch, [[first_seq, last_seq, base_offset, at_ms], …], txn_first_offset|null]},
     "pages":[["name", first_pid, last_pid, newest_ms], …],
     "revoked_floor":"", "bytes_total":…, "last_append_ms":…, "max_timestamp":…, "max_timestamp_offset":…}

Format 2 is that and "rewritten":[…], a segment. Format 3 is either, with an entry that carries its batches. Format 4 is any of them, with
an entry whose object is stored later. An index chunk that has such an entry is of format 3 or 4, too. Without these a record is of
format 1, byte for byte, so that a merge is all that a release before level 2 cannot read, an inline entry all that one before level 3
cannot, and an early entry all that one before level 5 cannot.

A compaction under way lies beside it, at meta/compaction (`CompactionAttempt`). `object_of` names what holds the batches of an entry.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Final, TypeVar

import msgspec

from runtime.ulid import decode_ulid
from storage.errors import Corrupt
from storage.formats.levels import UNDECODABLE, newer, undecodable
from storage.formats.segment import segment_key
from storage.formats.wal import object_key
from storage.limits import EARLY_SLICE_BYTES_MAX
from storage.vocabulary import ObjectId, PartitionId

Spans = tuple[tuple[int, int], ...]
"""Position and length, in an object."""

FMT: Final = 1
FMT_REWRITTEN: Final = 2
"""A manifest that names a merge has this number, unless it has an inline entry."""
FMT_INLINE: Final = 3
"""A record with an inline entry has this number, unless it has an early one."""
FMT_EARLY: Final = 4
"""A record with an early entry has this number."""
NO_TIMESTAMP: Final = -1
MANIFEST_BYTES: Final = 600
ENTRY_BYTES: Final = 310
SPAN_BYTES: Final = 125
EARLY_BYTES: Final = 64
WRITER_BYTES: Final = 120
PRODUCER_BYTES: Final = 150
PRODUCER_BATCH_BYTES: Final = 175
PAGE_REF_BYTES: Final = 300
"""What decoded records take in memory, estimated: at least three quarters of it (tests/unit/storage/log/test_sizes.py)."""
COMPACTION_FMT: Final = 1
INLINE_PREFIX = "inline/"
"""Before the id of an entry that carries its batches: no object has such a name."""

_encoder = msgspec.json.Encoder()
_attempt_encoder = msgspec.json.Encoder()


class LogState(Enum):
    OPEN = "OPEN"
    FENCED = "FENCED"
    DELETED = "DELETED"


class Early(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """The spans of batches in an object that its broker stores later (docs/internals/design/commit.md#early-slices).

    Until then the early page that `start` names has the bytes, or several do: the next ones begin EARLY_PAGE_BYTES_MAX apart.
    """

    start: int
    spans: Spans


class Entry(msgspec.Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """Offsets base..last (inclusive) → their batches: the spans of one object that hold them, in order, or the bytes themselves.

    Usually one span; more where batches between them were refused or had been appended before. An inline entry has the bytes; there is no
    object of its `object_id`, which says when the entry was written. The object of an early entry is stored after the entry was committed.
    `running_max_timestamp` is the greatest of this and all earlier entries: monotone, so time can be searched for.
    """

    base: int
    last: int
    object_id: ObjectId
    batches: Spans | bytes | Early
    max_timestamp: int
    running_max_timestamp: int

    @property
    def spans(self) -> Spans:
        """Where its batches lie in its object; empty if it is inline."""
        batches = self.batches
        if isinstance(batches, tuple):
            return batches
        return () if isinstance(batches, bytes) else batches.spans

    @property
    def extent(self) -> tuple[int, int]:
        """Where its batches begin and end in its object, if it is not inline."""
        spans = self.spans
        assert spans, f"inline: {self.base}..{self.last}"
        return spans[0][0], sum(spans[-1])

    @property
    def is_inline(self) -> bool:
        return isinstance(self.batches, bytes)

    @property
    def is_early(self) -> bool:
        """Its object may not be stored yet: early pages have its batches then."""
        return isinstance(self.batches, Early)

    @property
    def size_bytes(self) -> int:
        """All batches together."""
        if isinstance(self.batches, bytes):
            return len(self.batches)
        return sum([length for _, length in self.spans])


class SegmentEntry(msgspec.Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """Offsets base..last (inclusive) → a segment object, which holds nothing else."""

    base: int
    last: int
    object_id: ObjectId
    size_bytes: int
    max_timestamp: int
    running_max_timestamp: int


EntrySource = Entry | SegmentEntry
"""Where the batches of a range of offsets lie."""


class WriterEntry(msgspec.Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """The last commit of a broker epoch that was applied: makes an ambiguous commit decidable (I6)."""

    commit_seq: int
    attempt: int


class ProducerBatch(msgspec.Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    first_seq: int
    last_seq: int
    base_offset: int
    at_ms: int


class ProducerState(msgspec.Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """The newest epoch of a producer id and its last batches, oldest first (KIP-98)."""

    epoch: int
    batches: tuple[ProducerBatch, ...]
    txn_first_offset: int | None = None


class PageRef(msgspec.Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """A page of producer states that the manifest names; it holds none outside of first_pid..last_pid.

    `newest_ms`: when the last of its producers appended. A page that no manifest names is garbage.
    """

    name: str
    first_pid: int
    last_pid: int
    newest_ms: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True, gc=False, forbid_unknown_fields=True):
    fmt: int = FMT
    log_state: LogState = LogState.OPEN
    fence_epoch: int = 0
    sequence_counter: int = 0
    log_start: int = 0
    compaction_cursor: int = 0
    segment: SegmentEntry | None = None
    pending: tuple[Entry, ...] = ()
    writers: dict[int, WriterEntry] = msgspec.field(default_factory=dict)
    producers: dict[int, ProducerState] = msgspec.field(default_factory=dict)
    """In the order of their last append. A state here is newer than one of the same id in a page."""
    pages: tuple[PageRef, ...] = ()
    """Where the states of other producers are, by `first_pid`; a page covers the ids up to the `first_pid` of the next."""
    revoked_floor: ObjectId = ObjectId("")
    bytes_total: int = 0
    last_append_ms: int = NO_TIMESTAMP
    max_timestamp: int = NO_TIMESTAMP
    max_timestamp_offset: int = -1
    """Base offset of the batch whose header carries `max_timestamp`."""
    rewriting: SegmentEntry | msgspec.UnsetType = msgspec.field(name="rewritten", default=msgspec.UNSET)
    """As it is stored: absent without a merge. See `rewritten` and `with_rewritten`."""

    @property
    def rewritten(self) -> SegmentEntry | None:
        """The merge under way: below the cursor it goes before `segment` and segments/ (docs/internals/design/upkeep.md)."""
        return None if self.rewriting is msgspec.UNSET else self.rewriting


class IndexChunk(msgspec.Struct, frozen=True, kw_only=True, gc=False, forbid_unknown_fields=True):
    """The value of index/{last offset}: consecutive entries, oldest first. A derived fact, put if absent (I3)."""

    fmt: int = FMT
    entries: tuple[Entry, ...]


class SegmentFact(msgspec.Struct, frozen=True, kw_only=True, gc=False, forbid_unknown_fields=True):
    """The value of segments/{last offset}: a segment that the manifest named before (I4), or the merge that holds its offsets.

    So the entry may begin below, and end above, what the key was put for.
    """

    fmt: int = FMT
    entry: SegmentEntry


class ProducerPage(msgspec.Struct, frozen=True, kw_only=True, gc=False, forbid_unknown_fields=True):
    """The value of producers/{name}: states that left the manifest in the commit that names the page. It never changes (ADR 13)."""

    fmt: int = FMT
    producers: dict[int, ProducerState]


T = TypeVar("T", Manifest, IndexChunk, SegmentFact, ProducerPage)
_manifest_decoder = msgspec.json.Decoder(Manifest)
_chunk_decoder = msgspec.json.Decoder(IndexChunk)
_segment_decoder = msgspec.json.Decoder(SegmentFact)
_page_decoder = msgspec.json.Decoder(ProducerPage)


def with_rewritten(manifest: Manifest, merged: SegmentEntry | None) -> Manifest:
    if merged is None:
        return msgspec.structs.replace(manifest, fmt=FMT, rewriting=msgspec.UNSET)
    return msgspec.structs.replace(manifest, fmt=FMT_REWRITTEN, rewriting=merged)


def encode(value: Manifest | IndexChunk | SegmentFact | ProducerPage) -> bytes:
    """Under the lowest number of a format that has all of it."""
    if isinstance(value, Manifest):
        fmt = _fmt_of(value.pending, FMT if value.rewriting is msgspec.UNSET else FMT_REWRITTEN)
    elif isinstance(value, IndexChunk):
        fmt = _fmt_of(value.entries, FMT)
    else:
        return _encoder.encode(value)
    return _encoder.encode(value if value.fmt == fmt else msgspec.structs.replace(value, fmt=fmt))


def _fmt_of(entries: Sequence[Entry], otherwise: int) -> int:
    """The format of a record with these entries, which has the number `otherwise` if each has spans alone."""
    kinds = {type(entry.batches) for entry in entries}
    return FMT_EARLY if Early in kinds else FMT_INLINE if bytes in kinds else otherwise


def inline_bytes(entries: Sequence[Entry]) -> int:
    """What inline entries among them carry."""
    return sum([len(entry.batches) for entry in entries if isinstance(entry.batches, bytes)])


def decode_manifest(data: bytes, *, path: str) -> Manifest:
    """Raise `IncompatibleFormat` for a newer format and `Corrupt` for anything that is no manifest."""
    manifest = _decode(_manifest_decoder, data, path, known=FMT_EARLY)
    if not 0 <= manifest.log_start <= manifest.sequence_counter or not 0 <= manifest.compaction_cursor <= manifest.sequence_counter:
        raise Corrupt(
            f"manifest contradicts itself: key={path!r} log_start={manifest.log_start} "
            f"cursor={manifest.compaction_cursor} sequence_counter={manifest.sequence_counter}"
        )
    if manifest.fmt != FMT or manifest.rewriting is not msgspec.UNSET or _fmt_of(manifest.pending, FMT) != FMT:
        _check_format(manifest, path)
    if manifest.revoked_floor:
        try:
            decode_ulid(manifest.revoked_floor)
        except ValueError as error:
            raise Corrupt(f"revoked_floor is no object id: key={path!r} cause={error}") from error
    return manifest


def decode_chunk(data: bytes, *, path: str) -> IndexChunk:
    chunk = _decode(_chunk_decoder, data, path, known=FMT_EARLY)
    if not chunk.entries:
        raise Corrupt(f"empty index chunk: key={path!r}")
    if chunk.fmt != FMT:
        _check_early(chunk.entries, path)
    if chunk.fmt != _fmt_of(chunk.entries, FMT):
        raise Corrupt(f"an index chunk and its format contradict: key={path!r} fmt={chunk.fmt}")
    return chunk


def decode_segment(data: bytes, *, path: str) -> SegmentEntry:
    return _decode(_segment_decoder, data, path).entry


def decode_page(data: bytes, *, path: str) -> dict[int, ProducerState]:
    return _decode(_page_decoder, data, path).producers


def entries_bytes(entries: Sequence[Entry]) -> int:
    size_bytes = ENTRY_BYTES * len(entries)
    for entry in entries:
        size_bytes += len(entry.batches) if isinstance(entry.batches, bytes) else SPAN_BYTES * len(entry.spans)
        size_bytes += EARLY_BYTES * entry.is_early
    return size_bytes


def manifest_bytes(manifest: Manifest | None) -> int:
    if manifest is None:
        return 0
    size_bytes = (
        MANIFEST_BYTES + entries_bytes(manifest.pending) + WRITER_BYTES * len(manifest.writers) + PAGE_REF_BYTES * len(manifest.pages)
    )
    if manifest.producers:
        batches = sum([len(state.batches) for state in manifest.producers.values()])
        size_bytes += PRODUCER_BYTES * len(manifest.producers) + PRODUCER_BATCH_BYTES * batches
    return size_bytes


class CompactionState(Enum):
    WRITING_SEGMENT = "WRITING_SEGMENT"
    COMMITTING = "COMMITTING"
    DELETING_INDEX = "DELETING_INDEX"


class CompactionAttempt(msgspec.Struct, frozen=True, kw_only=True, gc=False, forbid_unknown_fields=True):
    """A compaction under way: what any compactor needs to finish or to drop it. Format 1, JSON.

        {"fmt":1, "state":"COMMITTING", "cursor":0, "object_id":"…", "segment":[base, last, "object id", size_bytes, max, running max]}

    It decides nothing: a segment counts once the manifest names it. An attempt that was dropped leaves an object for the collector.
    `cursor` is the compaction cursor that the attempt began with; `segment` is known once its object is whole.
    """

    fmt: int = COMPACTION_FMT
    state: CompactionState
    cursor: int
    object_id: ObjectId
    segment: SegmentEntry | None = None


_attempt_decoder = msgspec.json.Decoder(CompactionAttempt)


def encode_attempt(attempt: CompactionAttempt) -> bytes:
    return _attempt_encoder.encode(attempt)


def decode_attempt(data: bytes, *, path: str) -> CompactionAttempt:
    """Raise `IncompatibleFormat` for a newer format and `Corrupt` for anything that is no attempt."""
    try:
        attempt = _attempt_decoder.decode(data)
    except UNDECODABLE as error:
        raise undecodable(error, data, known=COMPACTION_FMT, path=path) from error
    if attempt.fmt > COMPACTION_FMT:
        raise newer(attempt.fmt, known=COMPACTION_FMT, path=path)
    if (attempt.state is CompactionState.WRITING_SEGMENT) != (attempt.segment is None):
        raise Corrupt(f"a compaction contradicts itself: key={path!r} state={attempt.state.value} segment={attempt.segment}")
    return attempt


def object_of(source: EntrySource, partition: PartitionId) -> str:
    """The key of the object, or `inline/{id}` where there is none."""
    if not isinstance(source, Entry):
        return segment_key(partition, source.object_id)
    return f"{INLINE_PREFIX}{source.object_id}" if source.is_inline else object_key(source.object_id)


def _check_early(entries: Sequence[Entry], path: str) -> None:
    """An entry says how many pages are asked for: raise `Corrupt` for one that no broker can have written."""
    for entry in entries:
        early = entry.batches
        if isinstance(early, Early) and not (
            early.spans and 0 <= early.start <= early.spans[0][0] and sum(early.spans[-1]) - early.start <= EARLY_SLICE_BYTES_MAX
        ):
            raise Corrupt(f"an early entry names no slice: key={path!r} entry={entry.base}..{entry.last} batches={early}")


def _check_format(manifest: Manifest, path: str) -> None:
    merged, newest = manifest.rewritten, manifest.segment
    expected = _fmt_of(manifest.pending, FMT if merged is None else FMT_REWRITTEN)
    _check_early(manifest.pending, path)
    if manifest.fmt != expected:
        raise Corrupt(f"a manifest and its format contradict: key={path!r} fmt={manifest.fmt} expected={expected} rewritten={merged}")
    if merged is not None and (newest is None or not 0 <= merged.base <= merged.last < newest.base):
        raise Corrupt(f"a merge is not below the newest segment: key={path!r} rewritten={merged} segment={newest}")


def _decode(decoder: msgspec.json.Decoder[T], data: bytes, path: str, *, known: int = FMT) -> T:
    try:
        value = decoder.decode(data)
    except UNDECODABLE as error:
        raise undecodable(error, data, known=known, path=path) from error
    if value.fmt > known:
        raise newer(value.fmt, known=known, path=path)
    return value
