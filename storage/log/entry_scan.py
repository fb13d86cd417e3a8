"""All entries of a partition in order, as a control record says: `segments/` under `rewritten`, `segment`, index/, `pending`."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from storage.formats.control import Control, Entry, EntrySource, decode_chunk, decode_segment
from storage.log.limits import DEFAULT_LIMITS, LogLimits
from storage.metadata.keys import PartitionKeys
from storage.metadata.port import MetadataStore, children_of


class EntriesMoved(Exception):
    """Keys went while they were read: what they named was trimmed or compacted since `control` was read. Read that again."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"entries moved while they were read: offset={offset}")
        self.offset = offset


async def entry_pages(
    metadata: MetadataStore, keys: PartitionKeys, control: Control, offset: int, *, limits: LogLimits = DEFAULT_LIMITS
) -> AsyncGenerator[list[EntrySource], None]:
    """The entries from the one that holds `offset` on, as of `control`, without gaps. Each begins where the one before ends, or before
    that, if it has taken the place of that one, too.

    Raises `EntriesMoved`, `Corrupt`, `IncompatibleFormat`, `Unavailable`.
    """
    if offset < control.compaction_cursor:
        async with contextlib.aclosing(_segment_pages(metadata, keys, control, offset, limits)) as segments:
            async for found in segments:
                yield found
        offset = control.compaction_cursor
    async with contextlib.aclosing(uncompacted_pages(metadata, keys, control, offset, limits=limits)) as entries:
        async for page in entries:
            yield [*page]


async def uncompacted_pages(
    metadata: MetadataStore, keys: PartitionKeys, control: Control, offset: int, *, limits: LogLimits = DEFAULT_LIMITS
) -> AsyncGenerator[list[Entry], None]:
    """As `entry_pages`, from an offset that is not below the cursor."""
    pending = control.pending
    indexed_end = pending[0].base if pending else control.sequence_counter
    chunks = 0
    if offset < indexed_end:
        end = children_of(keys.index_prefix.removesuffix("/"))[1]
        async for record in metadata.range_scan(keys.index(offset), end):
            page: list[Entry] = []
            for entry in decode_chunk(record.value, path=record.path).entries:
                # Chunks of racing drains may overlap.
                if entry.base <= offset <= entry.last and entry.base < indexed_end:
                    page.append(entry)
                    offset = entry.last + 1
            if page:
                yield page
            if offset >= indexed_end:
                break
            chunks += 1
            if chunks % limits.chunks_per_turn == 0:
                await asyncio.sleep(0)
        if offset < indexed_end:
            raise EntriesMoved(offset)
    yield [entry for entry in pending if entry.last >= offset]


async def _segment_pages(
    metadata: MetadataStore, keys: PartitionKeys, control: Control, offset: int, limits: LogLimits
) -> AsyncGenerator[list[EntrySource], None]:
    newest, merged = control.segment, control.rewritten
    listed_end = control.compaction_cursor if newest is None else newest.base
    if merged is not None and merged.base <= offset <= merged.last:
        yield [merged]
        offset = merged.last + 1
    if offset < listed_end:
        end = children_of(keys.segments_prefix.removesuffix("/"))[1]
        segments = 0
        async for record in metadata.range_scan(keys.segment(offset), end):
            segment = decode_segment(record.value, path=record.path)
            # A merge has all keys of its sources, and what was passed is not met again.
            if segment.base <= offset <= segment.last:
                yield [segment]
                offset = segment.last + 1
            if merged is not None and merged.base <= offset <= merged.last:
                yield [merged]
                offset = merged.last + 1
            if offset >= listed_end:
                break
            segments += 1
            if segments % limits.segments_per_turn == 0:
                await asyncio.sleep(0)
        if offset < listed_end:
            raise EntriesMoved(offset)
    if newest is not None and offset <= newest.last:
        yield [newest]
