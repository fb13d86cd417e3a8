"""Which neighbours become one segment, and what a merge makes of the control record, pure (docs/design/upkeep.md#merging)."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from storage.formats.control import Control, LogState, SegmentEntry, with_rewritten
from storage.formats.segment import HEADER_BYTES, footer_bytes
from storage.limits import SEGMENT_BLOCK_BYTES_TARGET, SEGMENT_BYTES_TARGET
from storage.vocabulary import ObjectId


@dataclass(frozen=True, slots=True, kw_only=True)
class MergePolicy:
    """At least `count_min` neighbours become one segment of at most `segment_bytes`, each of them `is_small`.

    The segment is at least `growth_min` times as large as the largest of them. So a byte is rewritten once for each factor `growth_min`
    between the segment it came in and `segment_bytes`, however many segments there are.
    """

    segment_bytes: int = SEGMENT_BYTES_TARGET
    block_bytes: int = SEGMENT_BLOCK_BYTES_TARGET
    count_min: int = 8
    growth_min: int = 4

    def __post_init__(self) -> None:
        assert self.count_min >= 2, f"one segment is no merge: {self.count_min=}"

    def is_small(self, segment: SegmentEntry) -> bool:
        return segment.size_bytes < self.segment_bytes // 4


class MergeRefusal(Enum):
    """Why a merge cannot be committed. Its object stays where it is: it may be committed all the same (model F-merge-loser)."""

    GONE = auto()
    """The partition was deleted."""
    UNDER_WAY = auto()
    """Another merge is."""
    REVOKED = auto()
    """The collector has revoked the object: it may be deleting it."""
    NEWEST = auto()
    """It would hold the newest segment."""


def may_be_due(control: Control) -> bool:
    """Whether there is a merge to finish, or a segment below the newest."""
    return control.rewritten is not None or (control.segment is not None and control.segment.base > control.log_start)


def choose(segments: Sequence[SegmentEntry], policy: MergePolicy) -> Sequence[SegmentEntry]:
    """The neighbours to merge, of `segments` without gaps, oldest first: as many as may be, of as many the oldest. Empty: none are due."""
    best: Sequence[SegmentEntry] = ()
    for first in range(len(segments)):
        size_bytes = batch_bytes = largest_bytes = 0
        for end in range(first, len(segments)):
            segment = segments[end]
            size_bytes += segment.size_bytes
            if not policy.is_small(segment) or size_bytes > policy.segment_bytes:
                break
            of_batches = _batch_bytes(segment)
            batch_bytes += of_batches
            largest_bytes = max(largest_bytes, of_batches)
            count = end - first + 1
            if count >= policy.count_min and count > len(best) and batch_bytes >= policy.growth_min * largest_bytes:
                best = segments[first : end + 1]
    return best


def merge_of(sources: Sequence[SegmentEntry], object_id: ObjectId, *, size_bytes: int) -> SegmentEntry:
    """The entry of the object that has the batches of `sources`."""
    return SegmentEntry(
        base=sources[0].base,
        last=sources[-1].last,
        object_id=object_id,
        size_bytes=size_bytes,
        max_timestamp=max(source.max_timestamp for source in sources),
        running_max_timestamp=sources[-1].running_max_timestamp,
    )


def begin_rewriting(control: Control, merged: SegmentEntry) -> Control | MergeRefusal:
    """The record to put by CAS when the sources of `merged` were seen, and touched, after `control` was read."""
    if control.log_state is LogState.DELETED:
        return MergeRefusal.GONE
    if control.rewritten is not None:
        return MergeRefusal.UNDER_WAY
    if merged.object_id <= control.revoked_floor:
        return MergeRefusal.REVOKED
    if control.segment is None or merged.last >= control.segment.base:
        return MergeRefusal.NEWEST
    return with_rewritten(control, merged)


def is_inside(segment: SegmentEntry, merged: SegmentEntry) -> bool:
    """Whether `merged` may take its place. It may not take that of a later merge, which holds more than it does."""
    return merged.base <= segment.base and segment.last <= merged.last


def _batch_bytes(segment: SegmentEntry) -> int:
    """What is left of it in a merge, about: header and footer are not."""
    return max(1, segment.size_bytes - HEADER_BYTES - footer_bytes(1))
