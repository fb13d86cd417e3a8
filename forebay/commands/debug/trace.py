"""What a trace of one offset found, as values: the fields of `-o json`, in the order of the way from the offset to its bytes.

Byte ranges are [start, end) of the object; offsets are base..last, inclusive; times are milliseconds since the Unix epoch.
"""

from typing import Final

import msgspec

from runtime.ulid import RANDOM_BITS, decode_ulid
from storage.formats.control import Control, Entry, SegmentEntry, object_of
from storage.formats.segment import segment_key
from storage.metadata.port import Record
from storage.recordbatch import (
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_LOG_APPEND_TIME,
    ATTRIBUTE_TRANSACTIONAL,
    CODEC_MASK,
    checksum,
    parse_header,
)
from storage.vocabulary import Buffer, ObjectId, PartitionId

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")


class TracedTopic(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    topic_id: str
    partition_count: int
    state: str


class ControlFacts(msgspec.Struct, frozen=True, kw_only=True):
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
    """`source` is where the entry was found: `pending` or `segment` (in the control record), `index` or `segments`; `source_key` is the key
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
    """What was not reached is null; `problem` then says why. A WAL object has slices, a segment has blocks."""

    topic: TracedTopic
    partition: int
    offset: int
    control: ControlFacts
    entry: EntryFacts | None = None
    object: ObjectFacts | None = None
    segment: SegmentFacts | None = None
    block: BlockFacts | None = None
    batch: BatchFacts | None = None
    problem: str | None = None


def control_facts(control: Control, record: Record) -> ControlFacts:
    return ControlFacts(
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
        spans=() if isinstance(entry.batches, bytes) else tuple((position, position + length) for position, length in entry.batches),
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
