"""Whether the entries of a partition follow each other, pure: offsets without holes, timestamps that only rise."""

from collections.abc import Iterator
from typing import Final

from runtime.ulid import decode_ulid
from storage.formats.manifest import Early, Entry, EntrySource, IndexChunk, Manifest, SegmentEntry, object_of
from storage.limits import WRITE_REQUEST_BYTES_MAX
from storage.verify.findings import FindingKind, StoreFinding, finding
from storage.vocabulary import PartitionId

OVERLAP_ENTRIES_MAX: Final = 4_096
"""Entries of earlier chunks that later ones are compared with: racing drains overlap by few."""


class EntryOrder:
    """Takes the sources of a log in the order of their offsets, each once, from one that covers its start."""

    def __init__(self) -> None:
        self._running: int | None = None
        self._is_segment = False
        self._following: int | None = None
        self.entries_bytes = 0

    def begin_anew(self) -> None:
        """What lies between the last source and the next one is unknown, or gone."""
        self._running = self._following = None
        self._is_segment = False

    def take(self, source: EntrySource, *, key: str, partition: PartitionId) -> Iterator[StoreFinding]:
        """What is wrong with `source` itself and with its place behind the one before."""
        running, before = source.running_max_timestamp, self._running
        is_segment, is_behind_segment = isinstance(source, SegmentEntry), self._is_segment
        self._is_segment = is_segment
        if before is not None and is_behind_segment and not is_segment:
            before = min(before, running)  # compaction may have corrected the times of segments; entries above them do not know
        expected = source.max_timestamp if before is None else max(before, source.max_timestamp)
        # Of the first source it is not known what came before, and of a segment not what its entries had before they were corrected.
        if running < expected or (before is not None and not is_segment and running != expected):
            text = f"running_max_timestamp={running} expected={expected}"
            yield about_source(FindingKind.RUNNING_MAXIMUM, text, source, key=key, partition=partition)
        self._running = max(expected, running)
        following, self._following = self._following, source.last + 1
        if isinstance(source, Entry):
            if following is not None and source.base < following:
                text = f"{_text(source)}, but what is before it covers offsets up to {following - 1}"
                yield about_source(FindingKind.OVERLAP_DISAGREES, text, source, key=key, partition=partition)
            self.entries_bytes += source.size_bytes


class OverlapCheck:
    """Chunks of racing drains may overlap; they must say the same."""

    def __init__(self) -> None:
        self._by_base: dict[int, tuple[Entry, str]] = {}

    def take(self, entry: Entry, *, key: str, partition: PartitionId) -> StoreFinding | None:
        before, its_key = self._by_base.setdefault(entry.base, (entry, key))
        if len(self._by_base) > OVERLAP_ENTRIES_MAX:
            del self._by_base[next(iter(self._by_base))]
        if before == entry:
            return None
        text = f"{_text(entry)}, but {its_key} says {_text(before)}"
        return about_source(FindingKind.OVERLAP_DISAGREES, text, entry, key=key, partition=partition)


def about_source(kind: FindingKind, found: str, source: EntrySource, *, key: str, partition: PartitionId) -> StoreFinding:
    return finding(kind, found, key=key, object_key=object_of(source, partition), first=source.base, last=source.last)


def malformed(source: EntrySource) -> str | None:
    """Why `source` can name no bytes; None if it can."""
    try:
        decode_ulid(source.object_id)
    except ValueError:
        return f"{source.object_id!r} is no object id"
    if not 0 <= source.base <= source.last:
        return f"base={source.base} last={source.last}"
    if isinstance(source, SegmentEntry):
        return None if source.size_bytes > 0 else f"size_bytes={source.size_bytes}"
    if isinstance(source.batches, bytes):
        return None if source.batches else "no batches"
    end = 0
    for position, length in source.spans:
        if position < end or length <= 0:
            return f"spans={source.spans}"
        end = position + length
    if not source.spans:
        return "spans=()"
    if isinstance(source.batches, Early):
        start, (begin, end) = source.batches.start, source.extent
        if not 0 <= start <= begin or end - start > WRITE_REQUEST_BYTES_MAX:
            return f"start={start} spans={source.spans}"
    return None


def of_chunk(chunk: IndexChunk, *, key: str, expected_key: str, partition: PartitionId) -> Iterator[StoreFinding]:
    """What is wrong with a chunk by itself."""
    entries = chunk.entries
    first, last = entries[0].base, entries[-1].last
    if key != expected_key:
        yield finding(FindingKind.WRONG_KEY, f"a chunk of offsets {first}..{last}", key=key, first=first, last=last)
    yield from _in_order(entries, key=key, partition=partition)


def of_manifest(manifest: Manifest, *, key: str, partition: PartitionId) -> Iterator[StoreFinding]:
    """What is wrong with a manifest by itself. Its decoder has compared counters with each other."""
    pending, newest = manifest.pending, manifest.segment
    yield from _in_order(pending, key=key, partition=partition)
    if pending and pending[-1].last + 1 != manifest.sequence_counter:
        last = pending[-1].last
        above = last >= manifest.sequence_counter
        yield finding(
            FindingKind.ABOVE_THE_END if above else FindingKind.MANIFEST_CONTRADICTS,
            f"pending ends at {last}, sequence_counter={manifest.sequence_counter}",
            key=key,
            first=min(last + 1, manifest.sequence_counter),
            last=max(last, manifest.sequence_counter - 1),
        )
    expected = 0 if newest is None else newest.last + 1
    if expected != manifest.compaction_cursor:
        yield finding(
            FindingKind.MANIFEST_CONTRADICTS,
            f"compaction_cursor={manifest.compaction_cursor}, but the newest segment "
            + ("is not named" if newest is None else f"ends at {newest.last}"),
            key=key,
            first=min(expected, manifest.compaction_cursor),
            last=max(expected, manifest.compaction_cursor) - 1,
        )
    if pending and manifest.max_timestamp != pending[-1].running_max_timestamp:
        yield finding(
            FindingKind.RUNNING_MAXIMUM,
            f"max_timestamp={manifest.max_timestamp}, but the last entry has running_max_timestamp={pending[-1].running_max_timestamp}",
            key=key,
            first=pending[-1].base,
            last=pending[-1].last,
        )


def of_bytes(manifest: Manifest, found_bytes: int, *, begin: int, key: str) -> StoreFinding | None:
    """`found_bytes` are those of all batches from offset `begin` to the end. `bytes_total` never falls, whatever is trimmed."""
    if found_bytes == manifest.bytes_total or (begin > 0 and found_bytes < manifest.bytes_total):
        return None
    return finding(
        FindingKind.BYTES_TOTAL,
        f"bytes_total={manifest.bytes_total}, entries from {begin} on have {found_bytes} bytes",
        key=key,
        first=begin,
        last=manifest.sequence_counter - 1,
    )


def _in_order(entries: tuple[Entry, ...], *, key: str, partition: PartitionId) -> Iterator[StoreFinding]:
    for n, entry in enumerate(entries):
        wrong = malformed(entry)
        if wrong is not None:
            yield about_source(FindingKind.MALFORMED_ENTRY, wrong, entry, key=key, partition=partition)
        following = entries[n - 1].last + 1 if n else entry.base
        if entry.base < following:
            text = f"{_text(entry)}, behind {_text(entries[n - 1])} in one record"
            yield about_source(FindingKind.OVERLAP_DISAGREES, text, entry, key=key, partition=partition)
        elif entry.base > following:
            text = "no entry covers these offsets between two of one record"
            yield finding(FindingKind.ENTRIES_MISSING, text, key=key, first=following, last=entry.base - 1)


def _text(entry: Entry) -> str:
    place = f"{len(entry.batches)} bytes inline" if isinstance(entry.batches, bytes) else f"at {entry.spans}"
    page = f", its early page at {entry.batches.start}" if isinstance(entry.batches, Early) else ""
    return f"{entry.base}..{entry.last} in {entry.object_id} {place}{page}"
