"""The record of a compaction under way."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import Corrupt, IncompatibleFormat
from storage.formats.manifest import CompactionAttempt, CompactionState, SegmentEntry, decode_attempt, encode_attempt
from storage.vocabulary import ObjectId

ID = ObjectId("01J00000000000000000000000")
SEGMENT = SegmentEntry(3, 9, ID, 1_000, 5, 6)
numbers = st.integers(0, 2**62)


@given(cursor=numbers, base=numbers, last=numbers, size_bytes=numbers, state=st.sampled_from(CompactionState))
def test_an_attempt_survives_the_round_trip(cursor: int, base: int, last: int, size_bytes: int, state: CompactionState) -> None:
    segment = None if state is CompactionState.WRITING_SEGMENT else SegmentEntry(base, last, ID, size_bytes, -1, -1)
    attempt = CompactionAttempt(state=state, cursor=cursor, object_id=ID, segment=segment)

    assert decode_attempt(encode_attempt(attempt), path="test") == attempt


@pytest.mark.parametrize(
    ("state", "segment"),
    [(CompactionState.WRITING_SEGMENT, SEGMENT), (CompactionState.COMMITTING, None), (CompactionState.DELETING_INDEX, None)],
)
def test_an_attempt_that_contradicts_itself_is_corrupt(state: CompactionState, segment: SegmentEntry | None) -> None:
    data = encode_attempt(CompactionAttempt(state=state, cursor=0, object_id=ID, segment=segment))

    with pytest.raises(Corrupt, match="contradicts itself"):
        decode_attempt(data, path="test")


def test_a_newer_format_is_told_apart_from_damage() -> None:
    attempt = CompactionAttempt(state=CompactionState.COMMITTING, cursor=0, object_id=ID, segment=SEGMENT)

    with pytest.raises(IncompatibleFormat):
        decode_attempt(encode_attempt(msgspec.structs.replace(attempt, fmt=2)), path="test")
    with pytest.raises(Corrupt):
        decode_attempt(b"dear diary", path="test")
