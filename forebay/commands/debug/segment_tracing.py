"""entry → segment → block → batch, for an offset below the compaction cursor: past every cache, each step checked."""

import msgspec

from forebay.commands.debug.failures import EXIT_NOT_FOUND, TraceFailed
from forebay.commands.debug.trace import BlockFacts, SegmentFacts, Trace, batch_facts, created_ms
from storage.errors import Corrupt
from storage.formats.control import SegmentEntry
from storage.formats.segment import (
    FOOTER_READ_BYTES,
    HEADER_BYTES,
    SegmentFooter,
    check_block,
    decode_footer,
    decode_header,
    footer_bytes_missing,
    segment_key,
)
from storage.log.scan import scan_stamped
from storage.objects.port import ObjectStat, ObjectStore
from storage.vocabulary import PartitionId


async def trace_segment(objects: ObjectStore, entry: SegmentEntry, partition: PartitionId, offset: int, trace: Trace) -> Trace:
    """Segment, block and batch added. Raises `TraceFailed` for what is damaged, `NotFound` if there is no such object."""
    key = segment_key(partition, entry.object_id)
    stat = await objects.stat(key)
    if stat.size_bytes != entry.size_bytes:
        raise failed(trace, f"Object {key} has {stat.size_bytes} bytes, and its entry says {entry.size_bytes}. Restore the object.")
    try:
        header = decode_header(await objects.get_range(key, 0, HEADER_BYTES), key=key)
        footer = await _footer(objects, key, stat.size_bytes)
        if (footer.base, footer.last, header.base) != (entry.base, entry.last, entry.base):
            raise Corrupt(f"a segment covers other offsets than its entry says: footer={footer.base}..{footer.last} header={header.base}")
        trace = msgspec.structs.replace(trace, segment=_facts(key, stat, entry, footer))
        block = footer.find(offset)
        if block is None:
            text = f"The segment has no batch at or behind offset {offset}: readers go on with offset {entry.last + 1}."
            raise failed(trace, text, exit_code=EXIT_NOT_FOUND)
        return await _read_block(objects, key, footer, block, offset, trace)
    except Corrupt as error:
        raise damaged(trace, error, key) from error


async def _footer(objects: ObjectStore, key: str, size_bytes: int) -> SegmentFooter:
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
        raise damaged(trace, error, key) from error
    if trace.batch is not None and trace.batch.base_offset > offset:
        text = f"There is no record at offset {offset}: readers go on with the batch at {trace.batch.base_offset}."
        raise failed(trace, text, exit_code=EXIT_NOT_FOUND)
    return trace


def _facts(key: str, stat: ObjectStat, entry: SegmentEntry, footer: SegmentFooter) -> SegmentFacts:
    return SegmentFacts(
        key=key,
        size_bytes=stat.size_bytes,
        created_ms=created_ms(entry.object_id),
        modified_ms=stat.modified_ms,
        batch_count=footer.batch_count,
        record_count=footer.record_count,
        block_count=len(footer.firsts),
    )


def failed(trace: Trace, message: str, *, exit_code: int = 1) -> TraceFailed:
    return TraceFailed(message, exit_code=exit_code, so_far=msgspec.structs.replace(trace, problem=message))


def damaged(trace: Trace, error: Corrupt, key: str) -> TraceFailed:
    return failed(trace, f"Damaged object: {error}. Restore the object {key}.")
