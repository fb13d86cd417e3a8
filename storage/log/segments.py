"""Reading segments: offset → block (footer) → window of whole blocks → checksum → batches as they lie there, which have their offsets."""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from runtime.lru import LruCache
from runtime.singleflight import SingleFlight
from storage.cache.blocks import BlockCache, RangeSource
from storage.errors import Corrupt, IncompatibleFormat
from storage.formats.manifest import SegmentEntry
from storage.formats.segment import (
    SegmentFooter,
    check_block_of,
    decode_footer,
    footer_bytes_missing,
    segment_key,
)
from storage.log.limits import DEFAULT_LIMITS, LogLimits
from storage.log.prefetch import ReadAhead
from storage.log.scan import BatchRun, Elsewhere, Gap, first_batch_bytes, scan_stamped
from storage.recordbatch import cut_views
from storage.vocabulary import ObjectId, PartitionId

FOOTER_OVERHEAD_BYTES: Final = 1_024
BLOCK_ENTRY_BYTES: Final = 40
"""What each block adds to the memory of a footer, in arrays."""


class _Stretch(NamedTuple):
    """Blocks first..stop-1 of a segment, which are bytes [begin, end) of its object. As text it says where damage was found."""

    key: str
    partition: PartitionId
    entry: SegmentEntry
    footer: SegmentFooter
    first: int
    stop: int
    begin: int
    end: int

    def __str__(self) -> str:
        return f"object={self.key!r} partition={self.partition} entry={self.entry.base}..{self.entry.last} window={self.begin}"


class SegmentReader:
    def __init__(self, *, objects: RangeSource, blocks: BlockCache, read_ahead: ReadAhead, limits: LogLimits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._whole_bytes_max = limits.whole_segment_bytes_max
        self._objects = objects
        self._blocks = blocks
        self._read_ahead = read_ahead
        self._footers: LruCache[ObjectId, SegmentFooter] = LruCache(limits.footers_bytes_max, cost=_memory_bytes)
        self._reading: SingleFlight[ObjectId, SegmentFooter] = SingleFlight()

    async def read(
        self,
        partition: PartitionId,
        entry: SegmentEntry,
        offset: int,
        *,
        bytes_max: int,
        at_least_one: bool,
        is_in_order: bool = False,
        is_awaited: Callable[[], bool] = lambda: True,
    ) -> BatchRun | Gap | None:
        """Batches from the one that holds `offset`, or the first one behind it, about `bytes_max` of them and at least one.

        `is_in_order`: the reader will go on behind them, as it has gone on behind what it read before, if it `is_awaited` in the end.

        None without `at_least_one` if the first is larger than `bytes_max`. Raises `NotFound`, `EndsEarly`, `Corrupt`, `Unavailable`.
        """
        footer = await self.footer(partition, entry)
        stretch = _stretch(partition, entry, footer, offset, bytes_max)
        if stretch is None:
            return Gap.TO_THE_END
        # The footer of a large segment was read apart, and is not read with its last block again.
        object_size = footer.records_end if entry.size_bytes > self._whole_bytes_max else entry.size_bytes
        views = await self._blocks.read(stretch.key, stretch.begin, stretch.end, object_size=object_size, is_history=True)
        try:
            goes_on = is_in_order and is_awaited()
            return self._run_of(stretch, views, offset, bytes_max=bytes_max, at_least_one=at_least_one, is_in_order=goes_on)
        except Corrupt:
            self._blocks.drop_damaged(stretch.key, views)
            raise

    def read_here(
        self, partition: PartitionId, entry: SegmentEntry, offset: int, *, bytes_max: int, at_least_one: bool, is_in_order: bool
    ) -> BatchRun | Elsewhere | None:
        """As `read`, of what is in memory. What is damaged there is for `read` to find, and to tell."""
        footer = self._footers.get(entry.object_id)
        stretch = None if footer is None else _stretch(partition, entry, footer, offset, bytes_max)
        views = None if stretch is None else self._blocks.read_here(stretch.key, stretch.begin, stretch.end)
        if stretch is None or views is None:
            return Elsewhere.TO_BE_READ
        try:
            return self._run_of(stretch, views, offset, bytes_max=bytes_max, at_least_one=at_least_one, is_in_order=is_in_order)
        except Corrupt:
            return Elsewhere.TO_BE_READ

    def _run_of(
        self, stretch: _Stretch, views: Sequence[memoryview], offset: int, *, bytes_max: int, at_least_one: bool, is_in_order: bool
    ) -> BatchRun | None:
        """What `read` gives of the blocks that `views` are together. Raises `Corrupt`."""
        key, entry, footer, begin = stretch.key, stretch.entry, stretch.footer, stretch.begin
        # A reader that has room for less than a block is often told so, and then reads the block again: that is worth no checksum. What is
        # larger than the block is no size of a batch, and is found out below.
        length = footer.lengths[stretch.first]
        if not at_least_one and bytes_max < length and bytes_max < first_batch_bytes(views, offset) <= length:
            return None
        for number in range(stretch.first, stretch.stop):
            position = footer.positions[number] - begin
            check_block_of(cut_views(views, position, position + footer.lengths[number]), footer, number, key=key)
        found = scan_stamped(views, wanted=offset, bytes_max=bytes_max, where=stretch)
        if not found.starts or found.starts[0] < entry.base or found.end_offset > entry.last + 1:
            raise Corrupt(f"a segment has other offsets than it says: {stretch} found={found.starts[:1]}..{found.end_offset - 1}")
        if not at_least_one and found.first_bytes > bytes_max:
            return None
        if is_in_order:
            following = footer.find(found.end_offset)
            self._blocks.leave_behind(key, begin, entry.size_bytes if following is None else footer.positions[following])
            self._read_ahead.begin(key, stretch.end, footer.records_end)
        origin = found.positions[0]
        return BatchRun(
            min(offset, found.starts[0]),
            found.end_offset - 1,
            tuple(cut_views(views, origin, found.end_position)),
            tuple(found.starts),
            tuple([position - origin for position in found.positions]),
            has_gaps=True,
            # To take a part of the block that follows would mean to check all of it now, and again with its rest.
            following_bytes=footer.lengths[stretch.stop] if stretch.stop < len(footer.lasts) else 0,
        )

    async def footer(self, partition: PartitionId, entry: SegmentEntry) -> SegmentFooter:
        """Raises as `read` does."""
        kept = self._footers.get(entry.object_id)
        return kept if kept is not None else await self._reading.run(entry.object_id, lambda: self._read_footer(partition, entry))

    def drop(self, object_id: ObjectId) -> None:
        """Read the footer again: what was read by it was not there."""
        self._footers.pop(object_id)

    async def _read_footer(self, partition: PartitionId, entry: SegmentEntry) -> SegmentFooter:
        key, size_bytes = segment_key(partition, entry.object_id), entry.size_bytes
        views = await self._read_end(key, size_bytes, self._limits.footer_read_bytes)
        try:
            end = b"".join(views)
            missing_bytes = footer_bytes_missing(end, size_bytes=size_bytes, key=key)
            if missing_bytes:
                views = await self._read_end(key, size_bytes, len(end) + missing_bytes)
                end = b"".join(views)
            footer = decode_footer(end, size_bytes=size_bytes, key=key)
            if (footer.base, footer.last) != (entry.base, entry.last):
                raise Corrupt(
                    f"a segment covers other offsets than its entry says: object={key!r} partition={partition} "
                    f"entry={entry.base}..{entry.last} footer={footer.base}..{footer.last}"
                )
        except (Corrupt, IncompatibleFormat):
            # A format that we do not know may be a byte that was damaged on its way: whoever asks next is to read it again.
            self._blocks.drop_damaged(key, views)
            raise
        self._footers.put(entry.object_id, footer)
        return footer

    async def _read_end(self, key: str, size_bytes: int, wanted_bytes: int) -> list[memoryview]:
        begin = max(0, size_bytes - wanted_bytes)
        if size_bytes > self._whole_bytes_max:
            return [memoryview(await self._objects.get_range(key, begin, size_bytes))]
        # All of a small segment comes with one GET, its batches too.
        return await self._blocks.read(key, begin, size_bytes, object_size=size_bytes, is_history=True)


def _stretch(partition: PartitionId, entry: SegmentEntry, footer: SegmentFooter, offset: int, bytes_max: int) -> _Stretch | None:
    """The blocks to read: about `bytes_max` from the one with the first batch at or behind `offset` on, and at least that one; None if the
    segment has no such batch.
    """
    first = footer.find(offset)
    if first is None:
        return None
    begin, stop = footer.positions[first], first + 1
    end = begin + footer.lengths[first]
    while stop < len(footer.lasts) and end + footer.lengths[stop] - begin <= bytes_max:
        end += footer.lengths[stop]
        stop += 1
    return _Stretch(segment_key(partition, entry.object_id), partition, entry, footer, first, stop, begin, end)


def _memory_bytes(footer: SegmentFooter) -> int:
    return FOOTER_OVERHEAD_BYTES + BLOCK_ENTRY_BYTES * len(footer.lasts)
