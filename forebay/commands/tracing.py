"""Traces of offsets: topic → control → entry → object, early page or segment → batch, as reads go (docs/internals/design/reading.md), past
caches.

`Tracer` only reads: no registration, no write, and a topic in deletion is left as it is. Brokers may go on appending meanwhile. Below the
compaction cursor the way is entry → segment → block → batch, each step checked.
"""

import asyncio
from functools import partial
from typing import Final, NamedTuple

import msgspec

from forebay.commands.trace import (
    EXIT_NOT_FOUND,
    EXIT_TIMED_OUT,
    BatchFacts,
    BlockFacts,
    EarlyFacts,
    ObjectFacts,
    SegmentFacts,
    SliceFacts,
    Trace,
    TracedTopic,
    TraceFailed,
    batch_facts,
    created_ms,
    entry_facts,
    manifest_facts,
    segment_entry_facts,
)
from process.settings.errors import EXIT_UNREACHABLE, EXIT_USAGE
from process.settings.reference import nearest
from storage.catalog.topic import Topic, decode_topic, decode_topic_id, read_topic_ids, validate_name
from storage.errors import Corrupt, IncompatibleFormat, NotFound, Unavailable
from storage.formats.manifest import (
    Early,
    Entry,
    EntrySource,
    LogState,
    Manifest,
    SegmentEntry,
    Spans,
    decode_chunk,
    decode_manifest,
    decode_segment,
    object_of,
)
from storage.formats.segment import (
    FOOTER_READ_BYTES,
    HEADER_BYTES,
    SegmentFooter,
    check_block,
    decode_footer,
    footer_bytes_missing,
    segment_key,
)
from storage.formats.segment import decode_header as decode_segment_header
from storage.formats.wal import WalHeader, object_key, read_header
from storage.limits import EARLY_PAGE_BYTES_MAX, WRITE_REQUEST_BYTES_MAX
from storage.log.early_pages import EarlySlice, page_keys, read_pages_certainly
from storage.log.index import covering
from storage.log.scan import scan, scan_stamped
from storage.metadata import keys
from storage.metadata.port import MetadataStore
from storage.objects.port import ObjectStat, ObjectStore
from storage.vocabulary import PartitionId, TopicId

TIMEOUT_S: Final = 30.0
ATTEMPTS_MAX: Final = 3
"""An entry may move from `pending` to index/ between the two reads, and its object may be collected: then all is read again."""

_FIX_PAGE: Final = (
    "Ask again in a minute: while the broker that wrote it runs, it stores the object. "
    "If it is gone, restore the metadata store from a backup."
)


class _Found(NamedTuple):
    entry: EntrySource
    trace: Trace


class Tracer:
    """Raises nothing but `TraceFailed`. May be cancelled at any time."""

    def __init__(self, *, metadata: MetadataStore, objects: ObjectStore, timeout_s: float = TIMEOUT_S) -> None:
        self._metadata = metadata
        self._objects = objects
        self._timeout_s = timeout_s

    async def trace(self, topic: str, partition: int, offset: int) -> Trace:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._trace(topic, partition, offset)
        except TimeoutError as error:
            raise TraceFailed(
                f"The stores did not answer within {self._timeout_s:g} s. Which they are: forebay config show --origin",
                exit_code=EXIT_TIMED_OUT,
            ) from error
        except Unavailable as error:
            raise TraceFailed(
                f"Cannot read the stores: {error}. Which they are: forebay config show --origin", exit_code=EXIT_UNREACHABLE
            ) from error
        except IncompatibleFormat as error:
            raise TraceFailed(f"Use a newer forebay: {error}", exit_code=EXIT_USAGE) from error
        except Corrupt as error:
            raise TraceFailed(f"Damaged metadata: {error}. Restore the metadata store from a backup.") from error

    async def _trace(self, name: str, partition: int, offset: int) -> Trace:
        topic = await self._topic(name)
        if not topic.has_partition(partition):
            raise TraceFailed(
                f"Topic {_quoted(name)} has no partition {partition}. It has {topic.partition_count}: 0..{topic.partition_count - 1}.",
                exit_code=EXIT_NOT_FOUND,
            )
        missing: EntrySource | None = None
        for _ in range(ATTEMPTS_MAX):
            found = await self._find(topic, partition, offset)
            entry, at = found.entry, PartitionId(topic.topic_id, partition)
            key = object_of(entry, at)
            try:
                if isinstance(entry, SegmentEntry):
                    return await trace_segment(self._objects, entry, at, offset, found.trace)
                if isinstance(entry.batches, bytes):
                    return _trace_inline(entry, entry.batches, found.trace, at, offset)
                return await self._read(entry, entry.spans, found.trace, at, offset)
            except NotFound as error:
                if isinstance(entry, Entry) and entry.is_early:
                    early = await self._read_early(entry, found.trace, at, offset)
                    if early is not None:
                        return early
                if missing == found.entry:
                    is_early = isinstance(entry, Entry) and entry.is_early
                    what = f"Object {key} of a live entry is missing" + (", and early pages do not have its bytes" if is_early else "")
                    raise trace_failed(
                        found.trace,
                        f"{what}: offsets {found.entry.base}..{found.entry.last} of {name}/{partition} "
                        "cannot be read. Check that storage.url is the one of the brokers; if it is, restore the object.",
                    ) from error
                missing = found.entry
        raise Unavailable(f"the log was compacted each time it was read: attempts={ATTEMPTS_MAX}")

    async def _topic(self, name: str) -> Topic:
        if (wrong := validate_name(name)) is not None:
            raise TraceFailed(f"Topic {_quoted(name)} does not exist: {wrong}.", exit_code=EXIT_NOT_FOUND)
        # Not through `Topics`: it finishes deletions that others began.
        (record,) = await self._metadata.get_many([keys.topic(name)])
        if record is None:
            start, end = keys.topics()
            names = [path.removeprefix(keys.TOPICS_PREFIX) for path in await self._metadata.list(start, end)]
            meant = nearest(name, names)
            hint = f"Nearest: {_quoted(meant)}." if meant else f"There are {len(names)} topics in this cluster."
            raise TraceFailed(
                f"Topic {_quoted(name)} does not exist. {hint} Another cluster? forebay config show --origin", exit_code=EXIT_NOT_FOUND
            )
        return decode_topic(record)

    async def _find(self, topic: Topic, partition: int, offset: int) -> _Found:
        """The entry that covers `offset`, by reads issued now."""
        at = keys.PartitionKeys(topic.partition(partition))
        where = f"{topic.name}/{partition}"
        for _ in range(ATTEMPTS_MAX):
            (record,) = await self._metadata.get_many([at.manifest])
            if record is None:
                raise TraceFailed(
                    f"{where} has no manifest ({at.manifest.path}): the topic was deleted meanwhile.", exit_code=EXIT_NOT_FOUND
                )
            control = decode_manifest(record.value, path=record.path)
            trace = Trace(
                topic=TracedTopic(name=topic.name, topic_id=topic.topic_id, partition_count=topic.partition_count, state=topic.state.value),
                partition=partition,
                offset=offset,
                control=manifest_facts(control, record),
            )
            if (reason := unreadable(control, offset, where=where)) is not None:
                raise trace_failed(trace, reason, exit_code=EXIT_NOT_FOUND)
            if offset < control.compaction_cursor:
                compacted = await self._find_segment(at, control, offset, topic.partition(partition), trace)
                if compacted is not None:
                    return compacted
                continue
            source = record
            if control.pending and offset >= control.pending[0].base:
                entry = covering(control.pending, offset)
            else:
                chunk = await self._metadata.get_ceiling(at.index(offset), within=at.index_prefix)
                entry = None if chunk is None else covering(decode_chunk(chunk.value, path=chunk.path).entries, offset)
                source = chunk or record
            if entry is not None:
                check_entry(entry, path=source.path)
                name = "pending" if source is record else "index"
                facts = entry_facts(entry, topic.partition(partition), source=name, source_key=source.path)
                return _Found(entry, msgspec.structs.replace(trace, entry=facts))
        place = f"its index chunk under {at.index_prefix}"
        if offset < control.compaction_cursor:
            place = f"its segment under {at.segments_prefix}"
        raise trace_failed(
            trace,
            f"No entry covers offset {offset} of {where}, though it was committed: {place} is missing. "
            "Restore the metadata store from a backup.",
        )

    async def _find_segment(
        self, at: keys.PartitionKeys, control: Manifest, offset: int, partition: PartitionId, trace: Trace
    ) -> _Found | None:
        """The segment that covers `offset`; None if retention or a merge has changed the keys since `control` was read."""
        newest = control.segment
        if newest is not None and newest.base <= offset <= newest.last:
            facts = segment_entry_facts(newest, partition, source="segment", source_key=at.manifest.path)
            return _Found(newest, msgspec.structs.replace(trace, entry=facts))
        record = await self._metadata.get_ceiling(at.segment(offset), within=at.segments_prefix)
        entry = None if record is None else decode_segment(record.value, path=record.path)
        if record is None or entry is None or not entry.base <= offset <= entry.last:
            return None
        facts = segment_entry_facts(entry, partition, source="segments", source_key=record.path)
        return _Found(entry, msgspec.structs.replace(trace, entry=facts))

    async def _read(self, entry: Entry, spans: Spans, trace: Trace, partition: PartitionId, offset: int) -> Trace:
        """The object and the batch added. Raises `NotFound` if there is no such object."""
        key = object_key(entry.object_id)
        stat = await self._objects.stat(key)
        end = max(position + length for position, length in spans)
        if stat.size_bytes < end:
            raise trace_failed(trace, f"Object {key} is cut short: {stat.size_bytes} bytes, and its entry needs {end}. Restore the object.")
        try:
            header = await read_header(partial(self._objects.get_range, key), key=key, size_bytes=stat.size_bytes)
        except Corrupt as error:
            raise object_damaged(trace, error, key) from error
        trace = msgspec.structs.replace(
            trace,
            object=ObjectFacts(
                key=key,
                size_bytes=stat.size_bytes,
                created_ms=created_ms(entry.object_id),
                modified_ms=stat.modified_ms,
                broker_epoch=header.broker_epoch,
                slices=await self._slices(header, partition),
            ),
        )
        try:
            check_names(header, entry, spans, partition, key=key)
            batch = await self._batch(entry, spans, key, offset)
        except Corrupt as error:
            raise object_damaged(trace, error, key) from error
        return _with_batch(trace, batch, key, fix="Restore the object.")

    async def _read_early(self, entry: Entry, trace: Trace, partition: PartitionId, offset: int) -> Trace | None:
        """The early pages and the batch added: the object was not there. None if they are gone, or if the object has come meanwhile."""
        at = keys.PartitionKeys(partition)
        paths = tuple(key.path for key in page_keys(at, entry))
        try:
            early = await read_pages_certainly(self._metadata, at, entry, known_version=trace.control.version)
            if early is None:
                return None
            batch = batch_in_pages(entry, early, offset, name=f"page={paths[0]!r}")
        except Corrupt as error:
            if await self._is_stored(entry):
                return None
            raise trace_failed(
                trace,
                f"Damaged early page: {error}. {_FIX_PAGE}",
            ) from error
        page = paths[(batch.start - early.start) // EARLY_PAGE_BYTES_MAX]
        trace = msgspec.structs.replace(trace, early=EarlyFacts(page=page, pages=paths, object_key=object_key(entry.object_id)))
        return _with_batch(trace, batch, f"{object_key(entry.object_id)}, in early page {page},", fix=_FIX_PAGE)

    async def _is_stored(self, entry: Entry) -> bool:
        try:
            await self._objects.stat(object_key(entry.object_id))
        except NotFound:
            return False
        return True

    async def _slices(self, header: WalHeader, partition: PartitionId) -> tuple[SliceFacts, ...]:
        names = await self._names(list(dict.fromkeys(one.partition.topic_id for one in header.slices)))
        return tuple(
            SliceFacts(
                topic=names.get(one.partition.topic_id),
                topic_id=one.partition.topic_id,
                partition=one.partition.partition,
                start=one.position,
                end=one.position + one.length,
                is_traced=one.partition == partition,
            )
            for one in header.slices
        )

    async def _names(self, topic_ids: list[TopicId]) -> dict[TopicId, str]:
        """The names of the topics that still exist."""
        records = await read_topic_ids(self._metadata, topic_ids)
        found = {topic_id: decode_topic_id(record) for topic_id, record in zip(topic_ids, records, strict=True) if record is not None}
        return {topic_id: record.name for topic_id, record in found.items() if not record.is_deleted}

    async def _batch(self, entry: Entry, spans: Spans, key: str, offset: int) -> BatchFacts:
        """The batch that holds `offset`. Raises `Corrupt` where the spans hold no such batch."""
        base = entry.base
        for position, length in spans:
            span = memoryview(await self._objects.get_range(key, position, position + length))
            found = batch_in(span, entry, offset, position=position, base=base, name=f"object={key!r}")
            if isinstance(found, BatchFacts):
                return found
            base = found
        raise too_few_records(entry, base, name=f"object={key!r}")


def batch_in(span: memoryview, entry: Entry, offset: int, *, position: int, base: int, name: str) -> BatchFacts | int:
    """The batch that holds `offset`, or the offset behind a span that does not have it. The span begins at `position` of the object, with
    offset `base`. Raise `Corrupt` where it holds no whole batches.
    """
    where = f"{name} entry={entry.base}..{entry.last} span={position}"
    window = scan([span], base=base, wanted=offset, bytes_max=1, where=where)
    if window.starts:
        start = window.positions[0]
        return batch_facts(span[start : window.end_position], start=position + start, base_offset=window.starts[0])
    if window.end_position != len(span):
        raise Corrupt(f"a batch ends outside its slice: {where} position={window.end_position} bytes={len(span)}")
    return window.end_offset


def too_few_records(entry: Entry, end_offset: int, *, name: str) -> Corrupt:
    return Corrupt(f"an entry has fewer records than it says: {name} entry={entry.base}..{entry.last} end_offset={end_offset}")


def batch_in_pages(entry: Entry, early: EarlySlice, offset: int, *, name: str) -> BatchFacts:
    """The batch that holds `offset`. Raises `Corrupt` where the pages hold no such batch."""
    base = entry.base
    for (position, _), span in zip(entry.spans, early.batches_of(entry), strict=True):
        found = batch_in(span, entry, offset, position=position, base=base, name=name)
        if isinstance(found, BatchFacts):
            return found
        base = found
    raise too_few_records(entry, base, name=name)


def _trace_inline(entry: Entry, batches: bytes, trace: Trace, partition: PartitionId, offset: int) -> Trace:
    """The batch added. Its bytes lie in the record that names the entry: there is no object."""
    name = object_of(entry, partition)
    try:
        where = f"entry={entry.base}..{entry.last} of {name}"
        window = scan([memoryview(batches)], base=entry.base, wanted=offset, bytes_max=1, where=where)
        if not window.starts:
            raise Corrupt(f"an entry has fewer records than it says: {name} entry={entry.base}..{entry.last}")
    except Corrupt as error:
        raise trace_failed(trace, f"Damaged metadata: {error}. Restore the metadata store from a backup.") from error
    start = window.positions[0]
    batch = batch_facts(memoryview(batches)[start : window.end_position], start=start, base_offset=window.starts[0])
    return _with_batch(trace, batch, name, fix="Restore the metadata store from a backup.")


def _with_batch(trace: Trace, batch: BatchFacts, place: str, *, fix: str) -> Trace:
    """Raise `TraceFailed` if its checksum is wrong."""
    trace = msgspec.structs.replace(trace, batch=batch)
    if batch.crc_ok:
        return trace
    raise trace_failed(
        trace,
        f"Checksum mismatch: the batch at bytes [{batch.start}, {batch.end}) of {place} is not what was written "
        f"(stored {batch.crc_stored}, computed {batch.crc_computed}). {fix}",
    )


def unreadable(control: Manifest, offset: int, *, where: str) -> str | None:
    """Why `offset` cannot be read, and what can; None if it lies in [log_start, sequence_counter)."""
    if control.log_state is LogState.DELETED:
        return f"{where} was deleted: its log takes no reads."
    if control.log_start == control.sequence_counter:
        return f"{where} holds no records: log_start and the end are both {control.sequence_counter}."
    readable = f"Readable: {control.log_start}..{control.sequence_counter - 1}."
    if offset < control.log_start:
        return f"Offset {offset} of {where} is below log_start {control.log_start}: it was trimmed, or never was. {readable}"
    if offset >= control.sequence_counter:
        place = "at" if offset == control.sequence_counter else "past"
        return f"Offset {offset} of {where} is {place} the end of the log, {control.sequence_counter}: nothing is there yet. {readable}"
    return None


def check_entry(entry: Entry, *, path: str) -> None:
    """Raise `Corrupt` for an entry that names no object or no bytes of it."""
    try:
        created_ms(entry.object_id)
    except ValueError as error:
        raise Corrupt(f"an entry names no object: key={path!r} entry={entry.base}..{entry.last} cause={error}") from error
    if isinstance(entry.batches, bytes):
        return
    if not entry.spans or any(position < 0 or length <= 0 for position, length in entry.spans):
        raise Corrupt(f"an entry names no bytes: key={path!r} entry={entry.base}..{entry.last} spans={entry.spans}")
    if isinstance(entry.batches, Early):
        start, (begin, end) = entry.batches.start, entry.extent
        if not 0 <= start <= begin or end - start > WRITE_REQUEST_BYTES_MAX:
            raise Corrupt(f"an entry names no early pages: key={path!r} entry={entry.base}..{entry.last} start={start} spans={entry.spans}")


def check_names(header: WalHeader, entry: Entry, spans: Spans, partition: PartitionId, *, key: str) -> None:
    """Raise `Corrupt` unless the object is the one the entry means and its header gives the entry's bytes to the partition."""
    if header.object_id != entry.object_id:
        raise Corrupt(f"the object calls itself by another id: key={key!r} id={header.object_id!r}")
    slices = [(one.position, one.position + one.length) for one in header.slices if one.partition == partition]
    for position, length in spans:
        if not any(start <= position and position + length <= end for start, end in slices):
            raise Corrupt(
                f"the header gives these bytes to no slice of the partition: key={key!r} start={position} end={position + length}"
            )


def _quoted(name: str) -> str:
    return f'"{name}"'


async def trace_segment(objects: ObjectStore, entry: SegmentEntry, partition: PartitionId, offset: int, trace: Trace) -> Trace:
    """Segment, block and batch added. Raises `TraceFailed` for what is damaged, `NotFound` if there is no such object."""
    key = segment_key(partition, entry.object_id)
    stat = await objects.stat(key)
    if stat.size_bytes != entry.size_bytes:
        raise trace_failed(trace, f"Object {key} has {stat.size_bytes} bytes, and its entry says {entry.size_bytes}. Restore the object.")
    try:
        header = decode_segment_header(await objects.get_range(key, 0, HEADER_BYTES), key=key)
        footer = await _segment_footer(objects, key, stat.size_bytes)
        if (footer.base, footer.last, header.base) != (entry.base, entry.last, entry.base):
            raise Corrupt(f"a segment covers other offsets than its entry says: footer={footer.base}..{footer.last} header={header.base}")
        trace = msgspec.structs.replace(trace, segment=_segment_facts(key, stat, entry, footer))
        block = footer.find(offset)
        if block is None:
            text = f"The segment has no batch at or behind offset {offset}: readers go on with offset {entry.last + 1}."
            raise trace_failed(trace, text, exit_code=EXIT_NOT_FOUND)
        return await _read_block(objects, key, footer, block, offset, trace)
    except Corrupt as error:
        raise object_damaged(trace, error, key) from error


async def _segment_footer(objects: ObjectStore, key: str, size_bytes: int) -> SegmentFooter:
    begin = max(0, size_bytes - FOOTER_READ_BYTES)
    tail = await objects.get_range(key, begin, size_bytes)
    missing_bytes = footer_bytes_missing(tail, size_bytes=size_bytes, key=key)
    if missing_bytes:
        tail = b"".join([await objects.get_range(key, begin - missing_bytes, begin), tail])
    return decode_footer(tail, size_bytes=size_bytes, key=key)


async def _read_block(objects: ObjectStore, key: str, footer: SegmentFooter, block: int, offset: int, trace: Trace) -> Trace:
    start = footer.positions[block]
    body = memoryview(await objects.get_range(key, start, start + footer.lengths[block]))
    facts = BlockFacts(
        number=block,
        start=start,
        end=start + len(body),
        first_offset=footer.firsts[block],
        last_offset=footer.lasts[block],
        max_timestamp_ms=footer.max_timestamps[block],
    )
    trace = msgspec.structs.replace(trace, block=facts)
    where = f"object={key!r} block={block}"
    try:
        # First the batch, then the checksum of its block: the batch shows what is left of it.
        found = scan_stamped([body], wanted=offset, bytes_max=1, where=where)
        if not found.starts:
            raise Corrupt(f"a block has no batch that its footer says it has: {where} offset={offset}")
        batch = body[found.positions[0] : found.end_position]
        trace = msgspec.structs.replace(trace, batch=batch_facts(batch, start=start + found.positions[0], base_offset=found.starts[0]))
        check_block(body, footer, block, key=key)
    except Corrupt as error:
        raise object_damaged(trace, error, key) from error
    if trace.batch is not None and trace.batch.base_offset > offset:
        text = f"There is no record at offset {offset}: readers go on with the batch at {trace.batch.base_offset}."
        raise trace_failed(trace, text, exit_code=EXIT_NOT_FOUND)
    return trace


def _segment_facts(key: str, stat: ObjectStat, entry: SegmentEntry, footer: SegmentFooter) -> SegmentFacts:
    return SegmentFacts(
        key=key,
        size_bytes=stat.size_bytes,
        created_ms=created_ms(entry.object_id),
        modified_ms=stat.modified_ms,
        batch_count=footer.batch_count,
        record_count=footer.record_count,
        block_count=len(footer.firsts),
    )


def trace_failed(trace: Trace, message: str, *, exit_code: int = 1) -> TraceFailed:
    return TraceFailed(message, exit_code=exit_code, so_far=msgspec.structs.replace(trace, problem=message))


def object_damaged(trace: Trace, error: Corrupt, key: str) -> TraceFailed:
    return trace_failed(trace, f"Damaged object: {error}. Restore the object {key}.")
