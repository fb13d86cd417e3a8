"""What the commands show to people."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from forebay.commands.trace import time_text
from forebay.kafka_client.text import NOTHING, align, facts, printable
from storage.verify.findings import StoreFinding
from storage.verify.inventory import ObjectTotal, PartitionTotal, StoreTotals

if TYPE_CHECKING:
    from forebay.commands.storage.object_facts import ObjectAnswer, PartRow
    from forebay.commands.storage.showing import ListedObject


def as_blocks(findings: Sequence[StoreFinding]) -> str:
    return "\n\n".join(_block(one) for one in findings)


def counted(number: int, one: str, more: str | None = None) -> str:
    """`1 object`, `2,000 objects`."""
    return f"{number:,} {one if number == 1 else more or f'{one}s'}"


def _block(found: StoreFinding) -> str:
    place = "" if found.topic is None else f"  {found.topic}/{found.partition}"
    offsets = "" if found.first_offset is None else f"  offsets {found.first_offset}..{found.last_offset}"
    facts = (("key", found.key), ("object", found.object), ("found", found.found), ("means", found.means), ("do", found.do))
    lines = [f"{found.severity.value}  {found.kind.value}{place}{offsets}"]
    lines += [f"  {name:<6}  {value}" for name, value in facts if value is not None]
    return "\n".join(printable(line) for line in lines)


def summary_table(totals: StoreTotals) -> str:
    rows: list[list[object]] = []
    for kind, total in totals.kinds.items():
        rows.append(_row(kind, total))
        if kind in totals.live:
            rows.append(_row("  named by entries", totals.live[kind]))
            rows.append(_row("  unreferenced", totals.unreferenced[kind]))
    ages = [_row(age, total) for age, total in totals.unreferenced_by_age.items() if total.objects]
    topics = [
        [one.topic, one.partitions, one.records, one.entries, one.inline_bytes, one.wal_bytes, one.segments, one.segment_bytes]
        for one in totals.topics
    ]
    parts = [align(("KIND", "OBJECTS", "BYTES", "OLDEST"), rows)]
    if ages:
        parts.append(align(("UNREFERENCED FOR", "OBJECTS", "BYTES", "OLDEST"), ages))
    if topics:
        parts.append(align(("TOPIC", "PARTITIONS", "RECORDS", "ENTRIES", "INLINE BYTES", "WAL BYTES", "SEGMENTS", "SEGMENT BYTES"), topics))
    return "\n\n".join(parts)


def partitions_table(found: Sequence[PartitionTotal]) -> str:
    header = ("TOPIC", "PARTITION", "START", "END", "RECORDS", "INLINE BYTES", "WAL OBJECTS", "WAL BYTES", "SEGMENTS", "SEGMENT BYTES")
    rows = [
        [
            *(one.topic, one.partition, one.log_start, one.log_end, one.records),
            *(one.inline_bytes, one.wal_objects, one.wal_bytes, one.segments, one.segment_bytes),
        ]
        for one in found
    ]
    return align(header, rows)


def objects_table(found: Sequence["ListedObject"]) -> str:
    return align(("KEY", "BYTES", "STORED"), [[one.key, one.size_bytes, time_text(one.modified_ms)] for one in found])


def object_table(answer: "ObjectAnswer") -> str:
    rows: list[tuple[str, object]] = [("key", answer.key), ("kind", answer.kind), ("bytes", answer.size_bytes)]
    rows.append(("stored", time_text(answer.modified_ms)))
    if answer.created_ms is not None:
        rows.append(("created", f"{time_text(answer.created_ms)} by its id"))
    if answer.broker_epoch is not None:
        rows += [("broker", f"epoch {answer.broker_epoch}"), ("slices", answer.part_count)]
    if answer.first_offset is not None:
        rows += [("offsets", f"{answer.first_offset}..{answer.last_offset}"), ("records", answer.records), ("blocks", answer.part_count)]
    if answer.problem is not None:
        rows.append(("problem", answer.problem))
    lines = [facts(rows)]
    lines += [_part(part) for part in answer.parts]
    return "\n\n".join(lines)


def _part(part: "PartRow") -> str:
    name = part.topic if part.topic is not None else f"(deleted) {part.topic_id}"
    offsets = "" if part.first_offset is None else f"  offsets {part.first_offset}..{part.last_offset}"
    lines = [printable(f"{name}/{part.partition}  bytes [{part.start}, {part.end}){offsets}")]
    if part.batches:
        rows = [
            [f"[{one.start}, {one.end})", one.base_offset, one.records, one.codec, one.producer_id, time_text(one.max_timestamp_ms)]
            for one in part.batches
        ]
        lines.append(align(("BATCH", "BASE OFFSET", "RECORDS", "CODEC", "PRODUCER", "MAX TIMESTAMP"), rows))
    if part.problem is not None:
        lines.append(printable(f"problem  {part.problem}"))
    return "\n".join(lines)


def _row(name: str, total: ObjectTotal) -> list[object]:
    return [name, total.objects, total.size_bytes, NOTHING if total.oldest_ms is None else time_text(total.oldest_ms)]
