"""Moving the compaction cursor, pure: what a committed segment makes of the control record (docs/design/upkeep.md)."""

from enum import Enum, auto

import msgspec

from storage.formats.control import Control, LogState, SegmentEntry


class CursorRefusal(Enum):
    """Why a segment cannot be committed. Its object stays where it is: the loser deletes nothing (model F-loser)."""

    GONE = auto()
    """The partition was deleted."""
    OVERTAKEN = auto()
    """Another compaction has moved the cursor."""
    REVOKED = auto()
    """The collector has revoked the object: it may be deleting it."""


def move_cursor(control: Control, segment: SegmentEntry, *, cursor: int) -> Control | CursorRefusal:
    """The record to put by CAS when `segment`, of entries read at the compaction cursor `cursor`, is whole.

    `pending` stays as it is: its entries below the cursor become an index chunk as all do, which means nothing there (I4).
    """
    if control.log_state is LogState.DELETED:
        return CursorRefusal.GONE
    if control.compaction_cursor != cursor:
        return CursorRefusal.OVERTAKEN
    if segment.object_id <= control.revoked_floor:
        return CursorRefusal.REVOKED
    assert cursor <= segment.base <= segment.last < control.sequence_counter, f"not committed: {segment} cursor={cursor}"
    return msgspec.structs.replace(control, compaction_cursor=segment.last + 1, segment=segment)
