"""A trace of one offset as values: the fields of `-o json`, in the order of the way from the offset to its bytes. Then as a table.

Byte ranges are [start, end) of the object; offsets are base..last, inclusive; times are milliseconds since the Unix epoch. `TraceFailed`
says why there is no trace, or a part of one.
"""

from datetime import UTC, datetime
from typing import Final

import msgspec

from process.settings.errors import EXIT_FAILED
from runtime.ulid import RANDOM_BITS, decode_ulid
from storage.formats.manifest import Entry, Manifest, SegmentEntry, object_of
from storage.formats.segment import segment_key
from storage.metadata.port import Record
from storage.recordbatch import ATTRIBUTE_CONTROL, ATTRIBUTE_LOG_APPEND_TIME, ATTRIBUTE_TRANSACTIONAL, CODEC_MASK, checksum, parse_header
from storage.vocabulary import Buffer, ObjectId, PartitionId

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
EXIT_NOT_FOUND: Final = 4
EXIT_TIMED_OUT: Final = 124
SLICES_SHOWN_MAX: Final = 12
_LABEL_WIDTH: Final = 10


class TracedTopic(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    topic_id: str
    partition_count: int
    state: str


class ManifestFacts(msgspec.Struct, frozen=True, kw_only=True):
    """`writers`: broker epoch → commit_seq and attempt of its last commit. `sequence_counter` is the next offset."""

    key: str
    version: int
    log_state: str
    fence_epoch: int
    log_start: int
    sequence_counter: int
    compaction_cursor: int
    pending_count: int
    producer_count: int
    writers: dict[str, tuple[int, int]]
    revoked_floor: str
    bytes_total: int
    last_append_ms: int


class EntryFacts(msgspec.Struct, frozen=True, kw_only=True):
    """`source` is where the entry was found: `pending` or `segment` (in the manifest), `index` or `segments`; `source_key` is the key
    of that record. The entry of a segment has no spans; an inline entry carries `inline_bytes`, and no object has its `object_key`.
    """

    source: str
    source_key: str
    base_offset: int
    last_offset: int
    object_id: str
    object_key: str
    spans: tuple[tuple[int, int], ...]
    max_timestamp_ms: int
    inline_bytes: int | None = None


class EarlyFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The object of the entry is not stored yet. `page`: the key of the early page where the batch begins; `pages`: all of the entry.
    Byte ranges are those of the object all the same.
    """

    page: str
    pages: tuple[str, ...]
    object_key: str


class SegmentFacts(msgspec.Struct, frozen=True, kw_only=True):
    """`created_ms` is the time in its id, from the clock of the compactor that made it; `modified_ms` is what the object store says."""

    key: str
    size_bytes: int
    created_ms: int
    modified_ms: int
    batch_count: int
    record_count: int
    block_count: int


class BlockFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The row of the footer for the block that holds the batch. Blocks are numbered from 0."""

    number: int
    start: int
    end: int
    first_offset: int
    last_offset: int
    max_timestamp_ms: int


class SliceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """`topic` is null for a topic that is gone."""

    topic: str | None
    topic_id: str
    partition: int
    start: int
    end: int
    is_traced: bool


class ObjectFacts(msgspec.Struct, frozen=True, kw_only=True):
    """`created_ms` is the time in its id, from the clock of the broker that made it; `modified_ms` is what the object store says."""

    key: str
    size_bytes: int
    created_ms: int
    modified_ms: int
    broker_epoch: int
    slices: tuple[SliceFacts, ...]


class BatchFacts(msgspec.Struct, frozen=True, kw_only=True):
    """`base_offset_stored` is what the object holds, `base_offset` what readers are sent in its place."""

    start: int
    end: int
    base_offset_stored: int
    base_offset: int
    last_offset: int
    last_offset_delta: int
    record_count: int
    magic: int
    attributes: int
    codec: str
    is_transactional: bool
    is_control: bool
    is_log_append_time: bool
    producer_id: int
    producer_epoch: int
    base_sequence: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    crc_stored: str
    crc_computed: str
    crc_ok: bool


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """What was not reached is null; `problem` then says why. A WAL object has slices, a segment has blocks. `early` is there in place of
    `object` for an entry whose object is not stored yet.
    """

    topic: TracedTopic
    partition: int
    offset: int
    control: ManifestFacts
    entry: EntryFacts | None = None
    object: ObjectFacts | None = None
    early: EarlyFacts | None = None
    segment: SegmentFacts | None = None
    block: BlockFacts | None = None
    batch: BatchFacts | None = None
    problem: str | None = None


def manifest_facts(control: Manifest, record: Record) -> ManifestFacts:
    return ManifestFacts(
        key=record.path,
        version=record.version,
        log_state=control.log_state.value,
        fence_epoch=control.fence_epoch,
        log_start=control.log_start,
        sequence_counter=control.sequence_counter,
        compaction_cursor=control.compaction_cursor,
        pending_count=len(control.pending),
        producer_count=len(control.producers),
        writers={str(epoch): (writer.commit_seq, writer.attempt) for epoch, writer in control.writers.items()},
        revoked_floor=control.revoked_floor,
        bytes_total=control.bytes_total,
        last_append_ms=control.last_append_ms,
    )


def segment_entry_facts(entry: SegmentEntry, partition: PartitionId, *, source: str, source_key: str) -> EntryFacts:
    return EntryFacts(
        source=source,
        source_key=source_key,
        base_offset=entry.base,
        last_offset=entry.last,
        object_id=entry.object_id,
        object_key=segment_key(partition, entry.object_id),
        spans=(),
        max_timestamp_ms=entry.max_timestamp,
    )


def entry_facts(entry: Entry, partition: PartitionId, *, source: str, source_key: str) -> EntryFacts:
    return EntryFacts(
        source=source,
        source_key=source_key,
        base_offset=entry.base,
        last_offset=entry.last,
        object_id=entry.object_id,
        object_key=object_of(entry, partition),
        spans=tuple((position, position + length) for position, length in entry.spans),
        inline_bytes=len(entry.batches) if isinstance(entry.batches, bytes) else None,
        max_timestamp_ms=entry.max_timestamp,
    )


def batch_facts(batch: Buffer, *, start: int, base_offset: int) -> BatchFacts:
    """`batch` is exactly one batch as stored at `start` of its object; its first record has `base_offset`."""
    header = parse_header(batch)
    computed = checksum(batch)
    codec = header.attributes & CODEC_MASK
    return BatchFacts(
        start=start,
        end=start + len(batch),
        base_offset_stored=header.base_offset,
        base_offset=base_offset,
        last_offset=base_offset + header.last_offset_delta,
        last_offset_delta=header.last_offset_delta,
        record_count=header.record_count,
        magic=header.magic,
        attributes=header.attributes,
        codec=CODECS[codec] if codec < len(CODECS) else f"unknown ({codec})",
        is_transactional=bool(header.attributes & ATTRIBUTE_TRANSACTIONAL),
        is_control=bool(header.attributes & ATTRIBUTE_CONTROL),
        is_log_append_time=bool(header.attributes & ATTRIBUTE_LOG_APPEND_TIME),
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        base_timestamp_ms=header.base_timestamp,
        max_timestamp_ms=header.max_timestamp,
        crc_stored=f"{header.crc:#010x}",
        crc_computed=f"{computed:#010x}",
        crc_ok=header.crc == computed,
    )


def created_ms(object_id: ObjectId) -> int:
    """The time in the id. Raise ValueError if it is no ULID."""
    return decode_ulid(object_id) >> RANDOM_BITS


class TraceFailed(Exception):
    """`str()` is the line for the operator; `so_far` is what was found before, if that says anything."""

    def __init__(self, message: str, *, exit_code: int = EXIT_FAILED, so_far: Trace | None = None) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.so_far = so_far


def trace_as_json(trace: Trace) -> str:
    return msgspec.json.format(msgspec.json.encode(trace), indent=2).decode()


def trace_as_table(trace: Trace) -> str:
    """One block per step. Of many slices, the traced one and its first neighbours."""
    topic = trace.topic
    lines = [
        f"{topic.name}/{trace.partition} offset {trace.offset}",
        "",
        *_labelled("topic", [f"{topic.name}  id {topic.topic_id}  partitions {topic.partition_count}  {topic.state}"]),
        *_labelled("manifest", _control_lines(trace.control)),
    ]
    if trace.entry is not None:
        lines += _labelled("entry", _entry_lines(trace.entry))
    if trace.object is not None:
        lines += _labelled("object", _object_lines(trace.object))
    if trace.early is not None:
        lines += _labelled("early", _early_lines(trace.early))
    if trace.segment is not None:
        lines += _labelled("segment", _segment_lines(trace.segment))
    if trace.block is not None:
        lines += _labelled("block", _segment_block(trace.block))
    if trace.batch is not None:
        lines += _labelled("batch", _batch_lines(trace.batch, trace.offset))
    return "\n".join(lines)


def time_text(ms: int) -> str:
    """UTC to the millisecond; a number that is no time is shown as it is."""
    if ms < 0:
        return "none" if ms == -1 else str(ms)
    try:
        return datetime.fromtimestamp(ms / 1_000, tz=UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"


def _labelled(label: str, lines: list[str]) -> list[str]:
    return [f"{label if n == 0 else '':<{_LABEL_WIDTH}}{line}" for n, line in enumerate(lines)]


def _control_lines(control: ManifestFacts) -> list[str]:
    writers = "  ".join(f"{epoch}: commit_seq {seq}, attempt {attempt}" for epoch, (seq, attempt) in control.writers.items())
    return [
        f"{control.key}  version {control.version}",
        f"{control.log_state}  fence_epoch {control.fence_epoch}",
        f"log_start {control.log_start}  sequence_counter {control.sequence_counter}  compaction_cursor {control.compaction_cursor}",
        f"pending {control.pending_count}  producers {control.producer_count}  revoked_floor {control.revoked_floor or 'none'}",
        f"bytes_total {control.bytes_total}  last_append {time_text(control.last_append_ms)}",
        f"writers by broker epoch  {writers or 'none'}",
    ]


def _entry_lines(entry: EntryFacts) -> list[str]:
    return [
        f"from {entry.source}  {entry.source_key}",
        f"offsets {entry.base_offset}..{entry.last_offset}  max_timestamp {time_text(entry.max_timestamp_ms)}",
        _place(entry),
    ]


def _place(entry: EntryFacts) -> str:
    if entry.inline_bytes is not None:
        return f"{entry.inline_bytes} bytes inline: they lie in this record, no object has them"
    return f"spans {' '.join(_range(start, end) for start, end in entry.spans)} of {entry.object_key}" if entry.spans else entry.object_key


def _object_lines(found: ObjectFacts) -> list[str]:
    shown = found.slices[:SLICES_SHOWN_MAX]
    more = [one for one in found.slices[SLICES_SHOWN_MAX:] if one.is_traced]
    hidden = len(found.slices) - len(shown) - len(more)
    return [
        f"{found.key}  {found.size_bytes} bytes",
        f"created {time_text(found.created_ms)} by its id  stored {time_text(found.modified_ms)}  broker epoch {found.broker_epoch}",
        f"slices {len(found.slices)}",
        *(f"  {_slice(one)}" for one in (*shown, *more)),
        *([f"  and {hidden} more: -o json shows all"] if hidden else []),
    ]


def _early_lines(found: EarlyFacts) -> list[str]:
    place = f"early page {found.page} has the batch" + (f", one of {len(found.pages)} of the entry" if len(found.pages) > 1 else "")
    return [place, f"{found.object_key} is not stored yet: its broker stores it within a minute, or has died before"]


def _segment_lines(found: SegmentFacts) -> list[str]:
    return [
        f"{found.key}  {found.size_bytes} bytes",
        f"created {time_text(found.created_ms)} by its id  stored {time_text(found.modified_ms)}",
        f"blocks {found.block_count}  batches {found.batch_count}  records {found.record_count}",
    ]


def _segment_block(block: BlockFacts) -> list[str]:
    return [
        f"number {block.number}  bytes {_range(block.start, block.end)}",
        f"offsets {block.first_offset}..{block.last_offset}  max_timestamp {time_text(block.max_timestamp_ms)}",
    ]


def _slice(one: SliceFacts) -> str:
    name = f"{one.topic}/{one.partition}" if one.topic is not None else f"(deleted)/{one.partition}"
    return f"{_range(one.start, one.end)}  {name}  id {one.topic_id}{'  <- this one' if one.is_traced else ''}"


def _batch_lines(batch: BatchFacts, offset: int) -> list[str]:
    flags = [
        name
        for name, is_set in (
            ("transactional", batch.is_transactional),
            ("control", batch.is_control),
            ("log append time", batch.is_log_append_time),
        )
        if is_set
    ]
    return [
        f"bytes {_range(batch.start, batch.end)}, {batch.end - batch.start} of them",
        f"base offset stored {batch.base_offset_stored}, served {batch.base_offset}",
        f"offsets {batch.base_offset}..{batch.last_offset}  offset delta {offset - batch.base_offset} of {batch.last_offset_delta}",
        f"records {batch.record_count}  codec {batch.codec}  magic {batch.magic}",
        f"attributes {batch.attributes:#06x} ({', '.join(flags) or 'plain'})",
        f"producer_id {batch.producer_id}  producer_epoch {batch.producer_epoch}  base_sequence {batch.base_sequence}",
        f"base_timestamp {time_text(batch.base_timestamp_ms)}  max_timestamp {time_text(batch.max_timestamp_ms)}",
        f"crc stored {batch.crc_stored}  computed {batch.crc_computed}  {'OK' if batch.crc_ok else 'MISMATCH'}",
    ]


def _range(start: int, end: int) -> str:
    return f"[{start}, {end})"
