"""A compaction under way, at meta/compaction: what any compactor needs to finish or to drop it. Format 1, JSON.

    {"fmt":1, "state":"COMMITTING", "cursor":0, "object_id":"…", "segment":[base, last, "object id", size_bytes, max, running max]}

It decides nothing: a segment counts once the control record names it. An attempt that was dropped leaves an object for the collector.
"""

from enum import Enum
from typing import Final

import msgspec

from storage.errors import Corrupt
from storage.formats.control import SegmentEntry
from storage.formats.levels import UNDECODABLE, newer, undecodable
from storage.vocabulary import ObjectId

FMT: Final = 1


class CompactionState(Enum):
    WRITING_SEGMENT = "WRITING_SEGMENT"
    COMMITTING = "COMMITTING"
    DELETING_INDEX = "DELETING_INDEX"


class CompactionAttempt(msgspec.Struct, frozen=True, kw_only=True, gc=False, forbid_unknown_fields=True):
    """`cursor` is the compaction cursor that the attempt began with; `segment` is known once its object is whole."""

    fmt: int = FMT
    state: CompactionState
    cursor: int
    object_id: ObjectId
    segment: SegmentEntry | None = None


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(CompactionAttempt)


def encode_attempt(attempt: CompactionAttempt) -> bytes:
    return _encoder.encode(attempt)


def decode_attempt(data: bytes, *, path: str) -> CompactionAttempt:
    """Raise `IncompatibleFormat` for a newer format and `Corrupt` for anything that is no attempt."""
    try:
        attempt = _decoder.decode(data)
    except UNDECODABLE as error:
        raise undecodable(error, data, known=FMT, path=path) from error
    if attempt.fmt > FMT:
        raise newer(attempt.fmt, known=FMT, path=path)
    if (attempt.state is CompactionState.WRITING_SEGMENT) != (attempt.segment is None):
        raise Corrupt(f"a compaction contradicts itself: key={path!r} state={attempt.state.value} segment={attempt.segment}")
    return attempt
