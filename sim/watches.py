"""Judges after every write: what may go from a log, by the records as they are then, and what readers get of each offset below the cursor.

Readers never get nothing there, and never what a merge has replaced.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Final, NamedTuple

import msgspec

from storage.formats.manifest import (
    FMT,
    Entry,
    EntrySource,
    LogState,
    Manifest,
    SegmentEntry,
    decode_chunk,
    decode_manifest,
    decode_segment,
)
from storage.metadata.keys import EARLY_PREFIX, MANIFEST_SUFFIX, PartitionKeys, partition_of_manifest
from storage.metadata.port import ABSENT, Delete, DeleteRange, Put, Record, WriteOp
from storage.vocabulary import PartitionId

NO_LIMIT: Final = -1
SEGMENTS = "/segments/"


class Grant(NamedTuple):
    """What retention may delete: what is older than `begin_ms`, and what is more than `keep_bytes`."""

    begin_ms: int | None
    keep_bytes: int


class _Before(NamedTuple):
    op: WriteOp
    root: str
    manifest: Record | None
    paths: frozenset[str]
    """Keys of index/ and segments/."""


_ByPath = Mapping[str, Record]


class RetentionWatch:
    def __init__(self, complain: Callable[[str], None]) -> None:
        self._complain = complain
        self._granted: dict[int, tuple[WriteOp, Grant]] = {}
        self._entries: dict[PartitionId, dict[int, Entry]] = defaultdict(dict)
        self._ends: dict[PartitionId, set[int]] = defaultdict(set)
        self.is_on = False
        self.place_of: Callable[[PartitionId], str | None] = lambda _partition: None
        self.trimmed: MutableMapping[str, float] = {}
        """By place, the highest offset up to which somebody may have deleted."""
        self.moves = 0

    def allow(self, ops: Sequence[WriteOp], grant: Grant) -> None:
        for op in ops:
            if isinstance(op, Put) and (partition := partition_of_manifest(op.key.path)) is not None:
                self._granted[id(op)] = op, grant  # with it, so that no other gets its id
                place = self.place_of(partition)
                if place is not None:
                    log_start = decode_manifest(op.value, path=op.key.path).log_start
                    self.trimmed[place] = max(self.trimmed.get(place, 0), log_start)

    def before(self, ops: Sequence[WriteOp], records: _ByPath) -> list[_Before]:
        if not self.is_on:
            return []
        found = []
        for op in ops:
            path = op.start.path if isinstance(op, DeleteRange) else op.key.path
            root = path.removesuffix(MANIFEST_SUFFIX) if path.endswith(MANIFEST_SUFFIX) else path.rpartition("/")[0].rpartition("/")[0]
            if partition_of_manifest(root + MANIFEST_SUFFIX) is not None:
                is_put = isinstance(op, Put)
                paths = (
                    frozenset()
                    if is_put
                    else frozenset(one for one in records if one.startswith((f"{root}/index/0", f"{root}/segments/0")))
                )
                found.append(_Before(op, root, records.get(root + MANIFEST_SUFFIX), paths))
        return found

    def after(self, before: Sequence[_Before], records: _ByPath) -> None:
        for one in before:
            record = records.get(one.root + MANIFEST_SUFFIX)
            if record is None:
                continue
            partition = partition_of_manifest(record.path)
            assert partition is not None
            manifest = decode_manifest(record.value, path=record.path)
            for path in sorted(one.paths - records.keys()) if manifest.log_state is not LogState.DELETED else ():
                self._check_key(path, manifest)
            is_manifest = isinstance(one.op, Put) and one.op.key.path == record.path
            if is_manifest and (one.manifest is None or one.manifest.version != record.version):
                was = Manifest() if one.manifest is None else decode_manifest(one.manifest.value, path=record.path)
                self._check_manifest(partition, was, manifest, one.op, records)
                self._note(partition, manifest)

    def _note(self, partition: PartitionId, manifest: Manifest) -> None:
        for entry in manifest.pending:
            self._entries[partition].setdefault(entry.base, entry)
            self._ends[partition].add(entry.last + 1)
        if manifest.segment is not None:
            self._ends[partition].add(manifest.segment.last + 1)

    def _check_key(self, path: str, manifest: Manifest) -> None:
        end = int(path.rpartition("/")[2])
        below = max(manifest.log_start, manifest.compaction_cursor) if "/index/" in path else manifest.log_start
        if end >= below:
            self._complain(f"retention: a key is gone that holds what is readable: {path} log_start={manifest.log_start}")

    def _check_manifest(self, partition: PartitionId, was: Manifest, now: Manifest, op: WriteOp, records: _ByPath) -> None:
        if now.log_start < was.log_start:
            self._complain(f"retention: log_start went back: {partition} from={was.log_start} to={now.log_start}")
        kept = {entry.base for entry in now.pending}
        needed_from = max(now.compaction_cursor, now.log_start)
        for entry in was.pending:
            if entry.base not in kept and entry.last >= needed_from and now.log_state is not LogState.DELETED:
                self._check_indexed(partition, entry, records)
        granted = self._granted.get(id(op))
        if granted is None or granted[0] is not op:
            if now.log_start > was.log_start and now.log_start > self.trimmed.get(self.place_of(partition) or "", 0):
                self._complain(f"retention: nobody asked for that log_start: {partition} from={was.log_start} to={now.log_start}")
            return
        if now.pending and now.pending != was.pending:
            self._complain(f"retention: a part of the ring has gone: {partition} {was} {now}")
        if _without_its_own(now) != _without_its_own(was):
            self._complain(f"retention: it changed what is not its own: {partition} {was} {now}")
        if now.log_start > was.log_start:
            self.moves += 1
            self._check_move(partition, was.log_start, now, granted[1], records)

    def _check_indexed(self, partition: PartitionId, entry: Entry, records: _ByPath) -> None:
        keys = PartitionKeys(partition)
        chunks = [decode_chunk(one.value, path=path) for path, one in records.items() if path.startswith(f"{keys.index_prefix}0")]
        if not any(entry in chunk.entries for chunk in chunks):
            self._complain(f"retention: an entry has left the ring for nowhere: {partition} {entry}")

    def _check_move(self, partition: PartitionId, begin: int, now: Manifest, grant: Grant, records: _ByPath) -> None:
        log_start, facts = now.log_start, f"{partition} from={begin} to={now.log_start} {grant}"
        if log_start not in self._ends[partition]:
            self._complain(f"retention: part of an item has gone: {facts}")
        rest_bytes = sum(_size_bytes(one) for one in self._items(partition, now, records) if one.last >= log_start)
        if grant.keep_bytes != NO_LIMIT and rest_bytes >= grant.keep_bytes:
            return
        gone = [entry for entry in self._entries[partition].values() if entry.base < log_start and entry.last >= begin]
        young = [entry for entry in gone if grant.begin_ms is None or entry.max_timestamp >= grant.begin_ms]
        if young:
            self._complain(f"retention: neither too old nor too much: {facts} rest_bytes={rest_bytes} {young}")

    def _items(self, partition: PartitionId, manifest: Manifest, records: _ByPath) -> list[EntrySource]:
        prefix = f"{PartitionKeys(partition).segments_prefix}0"  # others are those of collectors
        segments = {
            segment.object_id: segment
            for segment in (decode_segment(one.value, path=path) for path, one in records.items() if path.startswith(prefix))
        }
        if manifest.segment is not None:
            segments[manifest.segment.object_id] = manifest.segment
        entries = [entry for entry in self._entries[partition].values() if entry.last >= manifest.compaction_cursor]
        return [*segments.values(), *entries]


def _without_its_own(manifest: Manifest) -> Manifest:
    """What retention leaves as it is. The format follows from what is pending."""
    return msgspec.structs.replace(manifest, fmt=FMT, log_start=0, pending=(), writers={}, producers={}, pages=())


def _size_bytes(source: EntrySource) -> int:
    return source.size_bytes


class _Segments(msgspec.Struct):
    """The part of a manifest that says where segments are."""

    segment: SegmentEntry | None = None
    rewritten: SegmentEntry | None = None
    log_start: int = 0
    log_state: LogState = LogState.OPEN


_decoder = msgspec.json.Decoder(_Segments)


class SegmentWatch:
    def __init__(self, complain: Callable[[str], None]) -> None:
        self._complain = complain
        self._facts: dict[str, tuple[object, ...]] = {}
        self._seen: dict[str, list[SegmentEntry]] = {}

    def look(self, ops: Sequence[WriteOp], records: Mapping[str, Record]) -> None:
        """`records`: those of the shard, now that it has carried out `ops`."""
        for path in {root for op in ops if (root := _root_of(op)) is not None}:
            record = records.get(path + MANIFEST_SUFFIX)
            if record is not None:
                self._look_at(path, _decoder.decode(record.value), records)

    def _look_at(self, root: str, manifest: _Segments, records: Mapping[str, Record]) -> None:
        if manifest.segment is None or manifest.log_state is LogState.DELETED:
            return
        partition = partition_of_manifest(root + MANIFEST_SUFFIX)
        assert partition is not None
        keys = PartitionKeys(partition)
        paths = sorted(path for path in records if path.startswith(keys.segments_prefix) and "!" not in path)
        facts = (manifest.rewritten, manifest.segment, manifest.log_start, *[records[path].value for path in paths])
        if self._facts.get(root) == facts:
            return
        self._facts[root] = facts
        ends = [int(path.removeprefix(keys.segments_prefix)) for path in paths]
        found: list[SegmentEntry] = []
        offset = manifest.log_start
        while offset <= manifest.segment.last:
            named = (manifest.rewritten, manifest.segment)
            segment = next((one for one in named if one is not None and one.base <= offset <= one.last), None)
            if segment is None:
                at = bisect_left(ends, offset)
                segment = decode_segment(records[paths[at]].value, path=paths[at]) if at < len(ends) else None
            if segment is None or not segment.base <= offset <= segment.last:
                self._complain(f"segments: none has a readable offset: {partition} offset={offset} found={segment}")
                break
            found.append(segment)
            offset = segment.last + 1
        for before in self._seen.get(root, ()):
            for now in found:
                is_inside = before.base <= now.base and now.last <= before.last
                if is_inside and now.object_id != before.object_id and before.last >= manifest.log_start:
                    self._complain(f"segments: readers go back behind a merge: {partition} from={before} to={now}")
        self._seen[root] = found


def _root_of(op: WriteOp) -> str | None:
    """The partition that an op is about, if it may change what readers find of segments."""
    path = op.start.path if isinstance(op, DeleteRange) else op.key.path
    if SEGMENTS in path:
        return path.partition(SEGMENTS)[0]
    if path.endswith(MANIFEST_SUFFIX) and not isinstance(op, Delete | DeleteRange):
        return path.removesuffix(MANIFEST_SUFFIX)
    return None


class PageWatch:
    """Judges every attempt to put an early page: the bytes at a place never change (E1), whichever attempt arrives."""

    def __init__(self, complain: Callable[[str], None]) -> None:
        self._complain = complain
        self.kept: dict[str, bytes] = {}
        """By path, all that ever were: a deleted topic had its records, too."""

    def look(self, ops: Sequence[WriteOp]) -> None:
        for op in ops:
            if not isinstance(op, Put) or not op.key.path.startswith(EARLY_PREFIX):
                continue
            if self.kept.setdefault(op.key.path, op.value) != op.value:
                self._complain(f"early page: other bytes at a place that was given before: {op.key.path}")
            if op.expected_version != ABSENT:
                self._complain(f"early page: put over what may be there: {op.key.path}")
