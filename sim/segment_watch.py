"""What readers get of each offset below the cursor, looked at after every write: never nothing, and never what a merge has replaced.

Two merges of the same offsets may come to differ once they leave out what compaction by key shows to be obsolete, so going back is wrong
even where the batches are the same.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence

import msgspec

from storage.formats.control import LogState, SegmentEntry, decode_segment
from storage.metadata.keys import CONTROL_SUFFIX, PartitionKeys, partition_of_control
from storage.metadata.port import Delete, DeleteRange, Record, WriteOp

SEGMENTS = "/segments/"


class _Segments(msgspec.Struct):
    """The part of a control record that says where segments are."""

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
            record = records.get(path + CONTROL_SUFFIX)
            if record is not None:
                self._look_at(path, _decoder.decode(record.value), records)

    def _look_at(self, root: str, control: _Segments, records: Mapping[str, Record]) -> None:
        if control.segment is None or control.log_state is LogState.DELETED:
            return
        partition = partition_of_control(root + CONTROL_SUFFIX)
        assert partition is not None
        keys = PartitionKeys(partition)
        paths = sorted(path for path in records if path.startswith(keys.segments_prefix) and "!" not in path)
        facts = (control.rewritten, control.segment, control.log_start, *[records[path].value for path in paths])
        if self._facts.get(root) == facts:
            return
        self._facts[root] = facts
        ends = [int(path.removeprefix(keys.segments_prefix)) for path in paths]
        found: list[SegmentEntry] = []
        offset = control.log_start
        while offset <= control.segment.last:
            named = (control.rewritten, control.segment)
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
                if is_inside and now.object_id != before.object_id and before.last >= control.log_start:
                    self._complain(f"segments: readers go back behind a merge: {partition} from={before} to={now}")
        self._seen[root] = found


def _root_of(op: WriteOp) -> str | None:
    """The partition that an op is about, if it may change what readers find of segments."""
    path = op.start.path if isinstance(op, DeleteRange) else op.key.path
    if SEGMENTS in path:
        return path.partition(SEGMENTS)[0]
    if path.endswith(CONTROL_SUFFIX) and not isinstance(op, Delete | DeleteRange):
        return path.removesuffix(CONTROL_SUFFIX)
    return None
