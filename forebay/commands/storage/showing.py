"""`forebay storage summary`, `objects` and `object`, once their options are read: objects are counted, listed or decoded.

An object is decoded into what its header or footer says, and the batches that lie in it: the fields of `-o json`.
"""

import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import typer
from rich.console import Console

from forebay.commands.storage.verifying import EXIT_UNSOUND, NotThere, check_topics, is_early, kept_objects, over_stores
from forebay.commands.trace import CODECS, time_text
from forebay.kafka_client.options import Terminal
from forebay.kafka_client.text import NOTHING, align, facts, printable
from runtime.clock import SystemClock
from runtime.ulid import ulid_ms
from storage.catalog.topic import decode_topic_id, read_topic_ids
from storage.errors import Corrupt, EndsEarly, IncompatibleFormat, NotFound, StorageError
from storage.formats.segment import HEADER_BYTES, decode_header
from storage.metadata.port import MetadataStore
from storage.objects.port import ObjectStat, is_key
from storage.opening import Stores
from storage.recordbatch import CODEC_MASK
from storage.verify.early import EarlyTotal
from storage.verify.inventory import Inventory, ObjectTotal, PartitionTotal, StoreTotals, kind_of_object, objects_under, partition_totals
from storage.verify.objects import StoredBatch, batches_between, read_footer, read_head
from storage.verify.reading import StoreReading
from storage.vocabulary import PartitionId


class ListedObject(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    size_bytes: int
    modified_ms: int


class BatchRow(msgspec.Struct, frozen=True, kw_only=True):
    """`base_offset` is as stored: always 0 in a WAL object, whose batches get their offsets from the index."""

    start: int
    end: int
    base_offset: int
    records: int
    codec: str
    max_timestamp_ms: int
    producer_id: int


class PartRow(msgspec.Struct, frozen=True, kw_only=True):
    """A slice of a WAL object, or a block of a segment, with offsets. `problem`: why its batches cannot be read."""

    topic: str | None
    topic_id: str
    partition: int
    start: int
    end: int
    first_offset: int | None = None
    last_offset: int | None = None
    batches: list[BatchRow] = msgspec.field(default_factory=list)
    problem: str | None = None


class ObjectAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """`parts` are slices or blocks, as many as are wanted of `part_count`. `problem`: why there are none."""

    key: str
    kind: str
    size_bytes: int
    modified_ms: int
    created_ms: int | None = None
    broker_epoch: int | None = None
    first_offset: int | None = None
    last_offset: int | None = None
    records: int | None = None
    part_count: int = 0
    parts: list[PartRow] = msgspec.field(default_factory=list)
    problem: str | None = None

    @property
    def is_sound(self) -> bool:
        return self.problem is None and all(part.problem is None for part in self.parts)


def show_summary(file: Path | None, assignments: Sequence[str], terminal: Terminal, *, concurrency: int) -> int:
    """The exit code."""

    async def work(stores: Stores) -> StoreTotals:
        reading = StoreReading(stores.metadata, stores.objects, concurrency=concurrency)
        console = Console(file=sys.stderr, quiet=terminal.quiet)
        listed = 0
        with console.status("listing objects") as status:

            def count(objects: int) -> None:
                nonlocal listed
                listed += objects
                if listed % reading.limits.objects_per_list == 0:
                    status.update(f"{listed:,} objects listed")

            return await Inventory(reading, SystemClock()).run(listed=count)

    totals = over_stores(file, assignments, work)
    terminal.show(totals, summary_table(totals))
    if totals.unreadable:
        terminal.warn(
            f"{totals.unreadable} partitions cannot be read, so what they name counts as unreferenced. See: forebay storage verify"
        )
    return 0


def show_partitions(file: Path | None, assignments: Sequence[str], terminal: Terminal, *, topics: Sequence[str], concurrency: int) -> int:
    """The exit code."""

    async def work(stores: Stores) -> list[PartitionTotal]:
        reading = StoreReading(stores.metadata, stores.objects, concurrency=concurrency)
        await check_topics(reading, topics)
        return await partition_totals(reading, topics)

    found = over_stores(file, assignments, work)
    terminal.show(found, partitions_table(found))
    for one in found:
        if not one.is_readable:
            terminal.warn(f"{one.topic}/{one.partition} cannot be read to its end. See: forebay storage verify --topic {one.topic}")
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectChoice:
    """Objects to list. `is_kept`: those alone that nothing names and that stay."""

    prefix: str
    older_than_ms: int
    limit: int
    is_kept: bool = False


def show_objects(file: Path | None, assignments: Sequence[str], terminal: Terminal, chosen: ObjectChoice) -> int:
    """The exit code."""
    limit = chosen.limit

    async def work(stores: Stores) -> tuple[list[ListedObject], bool]:
        reading = StoreReading(stores.metadata, stores.objects, concurrency=1)
        stored_before_ms = SystemClock().now_ms() - chosen.older_than_ms
        found: list[ListedObject] = []
        kept = await kept_objects(stores) if chosen.is_kept else None
        page = min(limit + 1, reading.limits.objects_per_list)
        async for stat in _old(objects_under(reading, chosen.prefix, page=page), stored_before_ms):
            if kept is not None and stat.key not in kept:
                continue
            if len(found) == limit:
                return found, True
            found.append(ListedObject(key=stat.key, size_bytes=stat.size_bytes, modified_ms=stat.modified_ms))
        return found, False

    found, has_more = over_stores(file, assignments, work)
    terminal.show(found, objects_table(found))
    if has_more:
        terminal.say(f"There are more than {limit}: --limit shows more, --prefix narrows them down.")
    return 0


def show_object(file: Path | None, assignments: Sequence[str], terminal: Terminal, *, key: str, parts_max: int) -> int:
    """The exit code."""
    if not is_key(key):
        raise typer.BadParameter(f"{key!r} is not the name of an object")

    async def work(stores: Stores) -> ObjectAnswer:
        reading = StoreReading(stores.metadata, stores.objects, concurrency=1)
        try:
            return await object_answer(reading, stores.metadata, key, parts_max=parts_max)
        except NotFound as error:
            if await is_early(reading, key):
                raise NotThere(
                    f"The object {key} is not stored yet: early pages have its bytes. Its broker stores it within a minute, or has died "
                    "before. Whether the pages are whole: forebay storage verify"
                ) from error
            raise NotThere(f"There is no object {key}. Which there are: forebay storage objects") from error

    answer = over_stores(file, assignments, work)
    terminal.show(answer, object_table(answer))
    if len(answer.parts) < answer.part_count:
        terminal.say(f"{len(answer.parts)} of {answer.part_count} slices or blocks are shown: --limit shows more.")
    return 0 if answer.is_sound else EXIT_UNSOUND


async def _old(objects: AsyncIterator[ObjectStat], stored_before_ms: int) -> AsyncIterator[ObjectStat]:
    async for stat in objects:
        if stat.modified_ms <= stored_before_ms:
            yield stat


def summary_table(totals: StoreTotals) -> str:
    rows: list[list[object]] = []
    for kind, total in totals.kinds.items():
        rows.append(_total_row(kind, total))
        if kind in totals.live:
            rows.append(_total_row("  named by entries", totals.live[kind]))
            rows.append(_total_row("  unreferenced", totals.unreferenced[kind]))
    ages = [_total_row(age, total) for age, total in totals.unreferenced_by_age.items() if total.objects]
    early = totals.early_pages
    topics = [
        [
            *(one.topic, one.partitions, one.records, one.entries, one.inline_bytes, one.early_bytes),
            *(one.wal_bytes, one.segments, one.segment_bytes),
        ]
        for one in totals.topics
    ]
    parts = [align(("KIND", "OBJECTS", "BYTES", "OLDEST"), rows)]
    if ages:
        parts.append(align(("UNREFERENCED FOR", "OBJECTS", "BYTES", "OLDEST"), ages))
    if early.pages:
        unnamed = [_at_least(early, early.unnamed), early.unnamed_bytes]
        pages = [["early", _at_least(early, early.pages), early.size_bytes], ["  unreferenced", *unnamed]]
        parts.append(align(("IN THE METADATA STORE", "PAGES", "BYTES"), pages))
    if topics:
        header = ("TOPIC", "PARTITIONS", "RECORDS", "ENTRIES", "INLINE BYTES", "EARLY BYTES", "WAL BYTES", "SEGMENTS", "SEGMENT BYTES")
        parts.append(align(header, topics))
    return "\n\n".join(parts)


def _at_least(early: EarlyTotal, count: int) -> str:
    return f"{count}" if early.is_all else f"{count} or more"


def partitions_table(found: Sequence[PartitionTotal]) -> str:
    header = (
        *("TOPIC", "PARTITION", "START", "END", "RECORDS", "INLINE BYTES", "EARLY BYTES"),
        *("WAL OBJECTS", "WAL BYTES", "SEGMENTS", "SEGMENT BYTES"),
    )
    rows = [
        [
            *(one.topic, one.partition, one.log_start, one.log_end, one.records),
            *(one.inline_bytes, one.early_bytes, one.wal_objects, one.wal_bytes, one.segments, one.segment_bytes),
        ]
        for one in found
    ]
    return align(header, rows)


def objects_table(found: Sequence[ListedObject]) -> str:
    return align(("KEY", "BYTES", "STORED"), [[one.key, one.size_bytes, time_text(one.modified_ms)] for one in found])


def object_table(answer: ObjectAnswer) -> str:
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
    lines += [_part_text(part) for part in answer.parts]
    return "\n\n".join(lines)


def _part_text(part: PartRow) -> str:
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


def _total_row(name: str, total: ObjectTotal) -> list[object]:
    return [name, total.objects, total.size_bytes, NOTHING if total.oldest_ms is None else time_text(total.oldest_ms)]


async def object_answer(reading: StoreReading, metadata: MetadataStore, key: str, *, parts_max: int) -> ObjectAnswer:
    """Raises `NotFound`, `Unavailable`. At most `parts_max` slices or blocks are read."""
    stat = await reading.stat(key)
    kind, object_id = kind_of_object(key)
    answer = ObjectAnswer(
        key=key,
        kind=kind,
        size_bytes=stat.size_bytes,
        modified_ms=stat.modified_ms,
        created_ms=None if object_id is None else ulid_ms(object_id),
    )
    try:
        match kind:
            case "wal":
                return await _wal_answer(reading, metadata, answer, parts_max=parts_max)
            case "segments":
                return await _segment_answer(reading, metadata, answer, stat, parts_max=parts_max)
    except (Corrupt, IncompatibleFormat, EndsEarly) as error:
        return msgspec.structs.replace(answer, problem=str(error))
    return answer


async def _wal_answer(reading: StoreReading, metadata: MetadataStore, answer: ObjectAnswer, *, parts_max: int) -> ObjectAnswer:
    header = (await read_head(reading, answer.key)).header
    if isinstance(header, StorageError):
        raise header
    shown = header.slices[:parts_max]
    names = await _names(metadata, {one.partition for one in shown})
    parts = [await _part_row(reading, answer.key, one.partition, names, one.position, one.position + one.length) for one in shown]
    return msgspec.structs.replace(answer, broker_epoch=header.broker_epoch, part_count=len(header.slices), parts=parts)


async def _segment_answer(
    reading: StoreReading, metadata: MetadataStore, answer: ObjectAnswer, stat: ObjectStat, *, parts_max: int
) -> ObjectAnswer:
    decode_header(await reading.get(answer.key, 0, HEADER_BYTES), key=answer.key)
    footer = await read_footer(reading, answer.key, stat.size_bytes)
    names = await _names(metadata, {footer.partition})
    parts = []
    for block in range(min(parts_max, len(footer.firsts))):
        start = footer.positions[block]
        part = await _part_row(reading, answer.key, footer.partition, names, start, start + footer.lengths[block])
        parts.append(msgspec.structs.replace(part, first_offset=footer.firsts[block], last_offset=footer.lasts[block]))
    return msgspec.structs.replace(
        answer,
        first_offset=footer.base,
        last_offset=footer.last,
        records=footer.record_count,
        part_count=len(footer.firsts),
        parts=parts,
    )


async def _part_row(reading: StoreReading, key: str, partition: PartitionId, names: dict[str, str], start: int, end: int) -> PartRow:
    rows: list[BatchRow] = []
    problem = None
    try:
        async for batches in batches_between(reading, key, start, end):
            rows += [_batch_row(batch) for batch in batches]
    except (Corrupt, EndsEarly) as error:
        problem = str(error)
    topic_id, number = partition
    return PartRow(topic=names.get(topic_id), topic_id=topic_id, partition=number, start=start, end=end, batches=rows, problem=problem)


def _batch_row(batch: StoredBatch) -> BatchRow:
    header = batch.header
    codec = header.attributes & CODEC_MASK
    return BatchRow(
        start=batch.position,
        end=batch.position + header.size_bytes,
        base_offset=header.base_offset,
        records=header.record_count,
        codec=CODECS[codec] if codec < len(CODECS) else f"unknown ({codec})",
        max_timestamp_ms=header.max_timestamp,
        producer_id=header.producer_id,
    )


async def _names(metadata: MetadataStore, partitions: set[PartitionId]) -> dict[str, str]:
    """The names of the topics that still exist, by id."""
    topic_ids = sorted({one.topic_id for one in partitions})
    records = await read_topic_ids(metadata, topic_ids)
    found = {topic_id: decode_topic_id(record) for topic_id, record in zip(topic_ids, records, strict=True) if record is not None}
    return {topic_id: record.name for topic_id, record in found.items() if not record.is_deleted}
