"""The segment at rest."""

import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.ulid import encode_ulid
from storage.errors import Corrupt, IncompatibleFormat
from storage.formats import segment
from storage.formats.segment import (
    END_BYTES,
    FOOTER_BYTES_MAX,
    FOOTER_READ_BYTES,
    HEADER_BYTES,
    Section,
    SegmentWriter,
    WrittenSegment,
    check_block,
    decode_footer,
    decode_header,
    missing_footer_bytes,
    parse_segment_key,
    segment_key,
)
from storage.limits import MIB, SEGMENT_BLOCK_BYTES, SEGMENT_BYTES_TARGET
from storage.recordbatch import parse_header, restamp
from storage.vocabulary import ObjectId, PartitionId, TopicId
from tests.unit.broker.handlers.record_batches import record_batch

ID = ObjectId("01J00000000000000000000000")
PARTITION = PartitionId(TopicId(str(uuid.UUID(int=5))), 3)
HUGE = 1 << 40


def batch(offset: int, *, records: int = 1, size: int = 10) -> bytearray:
    made = record_batch(*[bytes(size)] * records)
    restamp(made, 0, offset)
    return made


def written(*batches: bytearray, base: int = 0, last: int | None = None, block_bytes: int = SEGMENT_BLOCK_BYTES) -> WrittenSegment:
    """Each batch in a buffer of its own."""
    writer = SegmentWriter(PARTITION, ID, base, block_bytes=block_bytes)
    end = base
    for one in batches:
        header = parse_header(one)
        writer.add(memoryview(one), [header.base_offset], [0])
        end = header.base_offset + header.last_offset_delta
    return writer.finish(end if last is None else last)


def stored(made: WrittenSegment) -> bytes:
    return b"".join(made.parts)


def reread(data: bytes) -> segment.SegmentFooter:
    return decode_footer(data, size_bytes=len(data), key="test")


def read_whole(data: bytes) -> None:
    decode_header(data, key="test")
    for block in reread(data):
        check_block(data[block.position : block.position + block.length], block, key="test")


@st.composite
def runs(draw: st.DrawFn) -> list[list[bytearray]]:
    """Buffers with some batches each, with gaps."""
    offset = draw(st.integers(0, 2**40))
    made = []
    for _ in range(draw(st.integers(1, 6))):
        run = []
        for _ in range(draw(st.integers(1, 5))):
            offset += draw(st.integers(0, 3))
            records = draw(st.integers(1, 4))
            run.append(batch(offset, records=records, size=draw(st.integers(0, 50))))
            offset += records
        made.append(run)
    return made


@given(runs=runs(), block_bytes=st.integers(1, 600), before=st.integers(0, 5), behind=st.integers(0, 5))
def test_what_is_written_is_found_again_and_each_block_is_whole(
    runs: list[list[bytearray]], block_bytes: int, before: int, behind: int
) -> None:
    flat = [one for run in runs for one in run]
    headers = [parse_header(one) for one in flat]
    base = max(0, headers[0].base_offset - before)
    last = headers[-1].base_offset + headers[-1].last_offset_delta
    writer = SegmentWriter(PARTITION, ID, base, block_bytes=block_bytes)
    for run in runs:
        positions = [sum(map(len, run[:index])) for index in range(len(run))]
        writer.add(memoryview(b"".join(run)), [parse_header(one).base_offset for one in run], positions)
    made = writer.finish(last + behind)
    data = stored(made)
    footer = reread(data)

    assert decode_header(data, key="test") == (PARTITION, ID, base)
    assert (footer.base, footer.last, footer.batch_count) == (base, last + behind, len(flat))
    assert footer.record_count == sum(header.record_count for header in headers)
    assert footer.body_bytes == sum(map(len, flat))
    assert footer.max_timestamp == max(header.max_timestamp for header in headers)
    assert footer.max_timestamp_offset in {one.base_offset for one in headers if one.max_timestamp == footer.max_timestamp}
    assert (footer.size_bytes, made.footer.size_bytes) == (len(data), len(data))
    assert list(made.footer) == list(footer)
    assert b"".join(data[one.position : one.position + one.length] for one in footer) == b"".join(flat)
    for block in footer:
        check_block(data[block.position : block.position + block.length], block, key="test")
    for header in headers:
        for offset in (header.base_offset, header.base_offset + header.last_offset_delta):
            number = footer.find(offset)
            assert number is not None
            assert footer[number].base <= offset <= footer[number].last
    assert footer.find(last + 1) is None
    assert all(block.length >= block_bytes for block in list(footer)[:-1]), "a block ends at its target, the last one before it"


def test_an_offset_in_a_gap_is_found_in_the_block_behind_it() -> None:
    footer = written(batch(0), batch(10), batch(20), block_bytes=1).footer

    assert [footer.find(offset) for offset in (0, 1, 10, 11, 20, 21)] == [0, 1, 1, 2, 2, None]


def test_blocks_are_found_by_time() -> None:
    batches = [batch(offset) for offset in range(4)]
    for one, timestamp in zip(batches, (5, 9, 7, 12), strict=True):
        one[35:43] = timestamp.to_bytes(8, "big")
    footer = written(*batches, block_bytes=1).footer

    assert [footer.first_reaching(time) for time in (0, 6, 9, 10, 13)] == [0, 1, 1, 3, None]
    assert footer.first_reaching(6, begin=2) == 2
    assert (footer.max_timestamp, footer.max_timestamp_offset) == (12, 3)


def test_the_bytes_are_those_of_the_picture() -> None:
    data = stored(written(batch(7), base=7))

    assert data[:8] == b"FOREBAYS"
    assert data[8:12] == b"\x00\x01\x00\x46"
    assert data[12:28] == uuid.UUID(int=5).bytes
    assert data[28:32] == (3).to_bytes(4, "big")
    assert data[32:58] == ID.encode()
    assert data[58:66] == (7).to_bytes(8, "big")
    assert data[HEADER_BYTES : HEADER_BYTES + 8] == (7).to_bytes(8, "big")
    assert data[-8:] == b"FOREBAYE"


def test_a_flipped_bit_anywhere_is_noticed() -> None:
    whole = stored(written(batch(0), batch(1), block_bytes=1))
    for position in range(len(whole)):
        data = bytearray(whole)
        data[position] ^= 1
        with pytest.raises((Corrupt, IncompatibleFormat)):
            read_whole(bytes(data))


def test_a_cut_object_is_corrupt_wherever_it_is_cut() -> None:
    whole = stored(written(batch(0), batch(1)))
    for length in range(len(whole)):
        with pytest.raises(Corrupt):
            reread(whole[:length])


def test_a_footer_that_is_longer_than_the_first_read_is_asked_for() -> None:
    made = written(*[batch(offset) for offset in range(500)], block_bytes=1)
    data = stored(made)
    end = data[-FOOTER_READ_BYTES:]
    missing = missing_footer_bytes(end, size_bytes=len(data), key="test")

    assert missing > 0
    with pytest.raises(Corrupt, match="cut short"):
        decode_footer(end, size_bytes=len(data), key="test")
    assert list(decode_footer(data[-FOOTER_READ_BYTES - missing :], size_bytes=len(data), key="test")) == list(made.footer)


def test_one_read_finds_the_footer_of_a_segment_of_the_target_size() -> None:
    assert SEGMENT_BYTES_TARGET // SEGMENT_BLOCK_BYTES * 40 + END_BYTES < FOOTER_READ_BYTES


def test_a_footer_that_says_it_is_huge_is_refused_before_it_is_read() -> None:
    data = bytearray(stored(written(batch(0))))
    place = len(data) - 8 - 4 - 8
    data[place : place + 4] = (FOOTER_BYTES_MAX + 1).to_bytes(4, "big")

    with pytest.raises(Corrupt, match="does not fit"):
        missing_footer_bytes(data, size_bytes=HUGE, key="test")


def with_section(section: Section) -> bytes:
    writer = SegmentWriter(PARTITION, ID, 0)
    writer.add(memoryview(batch(0)), [0], [0])
    return stored(writer.finish(0, [section]))


def test_an_optional_section_of_a_later_release_is_kept_and_a_required_one_is_refused() -> None:
    footer = reread(with_section(Section(9, False, b"facts")))

    assert footer.sections == (Section(9, False, b"facts"),)
    with pytest.raises(IncompatibleFormat, match="tag=9"):
        reread(with_section(Section(9, True, b"facts")))


def test_a_newer_format_is_told_apart_from_damage() -> None:
    data = bytearray(stored(written(batch(0))))
    data[9] = 2
    with pytest.raises(IncompatibleFormat, match="format 2"):
        decode_header(data, key="test")
    data[-15] = 2
    with pytest.raises(IncompatibleFormat, match="format 2"):
        reread(bytes(data))


@pytest.mark.parametrize(
    ("batches", "last", "message"),
    [
        ([batch(0), batch(0)], None, "do not rise"),
        ([batch(0, records=3), batch(2)], None, "do not rise"),
        ([batch(4)], 3, "behind the end"),
        ([], 0, "at least one"),
    ],
)
def test_what_cannot_be_a_segment_is_a_mistake_of_the_program(batches: list[bytearray], last: int | None, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        written(*batches, last=last)


@pytest.mark.parametrize(
    "bad", ["", "segments/", f"wal/01J000/{ID}", f"segments/t/3/{ID}", "segments/t/00003/short", f"segments/t/00003/x/{ID}"]
)
def test_a_name_of_something_else_is_no_segment(bad: str) -> None:
    assert parse_segment_key(bad) is None


@given(topic=st.uuids(), partition=st.integers(0, 99_999), ulid=st.integers(0, 2**128 - 1).map(encode_ulid))
def test_a_name_says_which_partition_and_object_it_is(topic: Any, partition: int, ulid: str) -> None:
    named = PartitionId(TopicId(str(topic)), partition), ObjectId(ulid)

    assert parse_segment_key(segment_key(*named)) == named


def test_large_batches_have_blocks_of_their_own() -> None:
    footer = written(batch(0, size=MIB), batch(1, size=10), batch(2, size=MIB)).footer

    assert [(block.base, block.last) for block in footer] == [(0, 0), (1, 2)]
