"""A trace for people and for programs."""

from datetime import UTC, datetime
from typing import Final

import msgspec

from forebay.commands.debug.trace import BatchFacts, BlockFacts, ControlFacts, EntryFacts, ObjectFacts, SegmentFacts, SliceFacts, Trace

SLICES_SHOWN_MAX: Final = 12
_LABEL_WIDTH: Final = 10


def as_json(trace: Trace) -> str:
    return msgspec.json.format(msgspec.json.encode(trace), indent=2).decode()


def as_table(trace: Trace) -> str:
    """One block per step. Of many slices, the traced one and its first neighbours."""
    topic = trace.topic
    lines = [
        f"{topic.name}/{trace.partition} offset {trace.offset}",
        "",
        *_block("topic", [f"{topic.name}  id {topic.topic_id}  partitions {topic.partition_count}  {topic.state}"]),
        *_block("control", _control(trace.control)),
    ]
    if trace.entry is not None:
        lines += _block("entry", _entry(trace.entry))
    if trace.object is not None:
        lines += _block("object", _object(trace.object))
    if trace.segment is not None:
        lines += _block("segment", _segment(trace.segment))
    if trace.block is not None:
        lines += _block("block", _segment_block(trace.block))
    if trace.batch is not None:
        lines += _block("batch", _batch(trace.batch, trace.offset))
    return "\n".join(lines)


def time_text(ms: int) -> str:
    """UTC to the millisecond; a number that is no time is shown as it is."""
    if ms < 0:
        return "none" if ms == -1 else str(ms)
    try:
        return datetime.fromtimestamp(ms / 1_000, tz=UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"


def _block(label: str, lines: list[str]) -> list[str]:
    return [f"{label if n == 0 else '':<{_LABEL_WIDTH}}{line}" for n, line in enumerate(lines)]


def _control(control: ControlFacts) -> list[str]:
    writers = "  ".join(f"{epoch}: commit_seq {seq}, attempt {attempt}" for epoch, (seq, attempt) in control.writers.items())
    return [
        f"{control.key}  version {control.version}",
        f"{control.log_state}  fence_epoch {control.fence_epoch}",
        f"log_start {control.log_start}  sequence_counter {control.sequence_counter}  compaction_cursor {control.compaction_cursor}",
        f"pending {control.pending_count}  producers {control.producer_count}  revoked_floor {control.revoked_floor or 'none'}",
        f"bytes_total {control.bytes_total}  last_append {time_text(control.last_append_ms)}",
        f"writers by broker epoch  {writers or 'none'}",
    ]


def _entry(entry: EntryFacts) -> list[str]:
    return [
        f"from {entry.source}  {entry.source_key}",
        f"offsets {entry.base_offset}..{entry.last_offset}  max_timestamp {time_text(entry.max_timestamp_ms)}",
        _place(entry),
    ]


def _place(entry: EntryFacts) -> str:
    if entry.inline_bytes is not None:
        return f"{entry.inline_bytes} bytes inline: they lie in this record, no object has them"
    return f"spans {' '.join(_range(start, end) for start, end in entry.spans)} of {entry.object_key}" if entry.spans else entry.object_key


def _object(found: ObjectFacts) -> list[str]:
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


def _segment(found: SegmentFacts) -> list[str]:
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


def _batch(batch: BatchFacts, offset: int) -> list[str]:
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
