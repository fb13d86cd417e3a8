"""What was written into a segment is read from it: by its footer, by its blocks, and by the offsets of its batches. The rest is refused."""

import contextlib
import struct
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from storage.errors import Corrupt, IncompatibleFormat
from storage.formats.segment import (
    HEADER_BYTES,
    Segment,
    SegmentHeader,
    SegmentWriter,
    check_block,
    decode_footer,
    decode_header,
    footer_bytes_missing,
)
from storage.limits import SEGMENT_FOOTER_BYTES_MAX
from storage.log.scan import scan_stamped
from storage.recordbatch import parse_header
from tests.kit.segments import ID, KEY, PARTITION, bytes_of, decoded, resealed, stamped

Batch = tuple[int, int, int, int]
"""Offsets missing before it, records, greatest timestamp, bytes of its records."""

batches = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(-2, 8), st.integers(0, 60)), min_size=1, max_size=20)
ends = st.integers(0, 3)


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[bytearray], Segment]:
    """Batches, and the segment of them: in runs and blocks of any size."""
    listed: list[Batch] = draw(batches)
    base = offset = draw(st.sampled_from([0, 5, 2**40]))
    whole = []
    for missing, count, timestamp, payload_bytes in listed:
        offset += missing
        whole.append(stamped(offset, count, max_timestamp=timestamp, payload=b"y" * payload_bytes))
        offset += count
    cuts = sorted(draw(st.sets(st.integers(1, len(whole)), max_size=5)) | {0, len(whole)})
    writer = SegmentWriter(PARTITION, ID, base, block_bytes=draw(st.integers(1, 500)))
    for start, end in pairwise(cuts):
        writer.add(b"".join(whole[start:end]))
    return whole, writer.finish(offset - 1 + draw(ends))


@given(logs())
def test_what_was_written_is_read(log: tuple[list[bytearray], Segment]) -> None:
    whole, made = log
    body = bytes_of(made)
    headers = [parse_header(batch) for batch in whole]

    assert len(body) == made.size_bytes
    assert decode_header(body, key=KEY) == SegmentHeader(PARTITION, ID, made.footer.base)
    footer = decode_footer(body, size_bytes=len(body), key=KEY)
    assert footer == made.footer
    assert body[HEADER_BYTES : HEADER_BYTES + footer.body_bytes] == b"".join(whole)
    assert (footer.batch_count, footer.record_count) == (len(whole), sum(header.record_count for header in headers))
    assert footer.max_timestamp == max(header.max_timestamp for header in headers)
    assert footer.max_timestamp_offset == next(one.base_offset for one in headers if one.max_timestamp == footer.max_timestamp)
    for number, (position, length) in enumerate(zip(footer.positions, footer.lengths, strict=True)):
        check_block(body[position : position + length], footer, number, key=KEY)


@given(logs(), st.data())
def test_an_offset_leads_to_the_first_batch_that_reaches_it(log: tuple[list[bytearray], Segment], data: st.DataObject) -> None:
    whole, made = log
    body, footer = bytes_of(made), made.footer
    wanted = data.draw(st.integers(footer.base, footer.last))
    bytes_max = data.draw(st.integers(0, 500))
    lasts = [parse_header(batch).base_offset + parse_header(batch).last_offset_delta for batch in whole]
    expected = [batch for batch, last in zip(whole, lasts, strict=True) if last >= wanted]

    number = footer.find(wanted)

    assert (number is None) == (not expected)
    if number is not None:
        start, end = footer.positions[number], footer.positions[number] + footer.lengths[number]
        found = scan_stamped([body[start:end]], wanted=wanted, bytes_max=bytes_max, where="test")
        kept = body[start + found.positions[0] : start + found.end_position]
        assert found.starts
        assert kept == b"".join(expected[: len(found.starts)])
        assert len(kept) <= max(bytes_max, len(expected[0]))
        assert found.end_offset == lasts[len(whole) - len(expected) + len(found.starts) - 1] + 1


@given(logs(), st.integers(-3, 9), st.data())
def test_a_time_leads_to_the_first_block_that_reaches_it(log: tuple[list[bytearray], Segment], time: int, data: st.DataObject) -> None:
    whole, made = log
    footer = made.footer
    start = data.draw(st.integers(0, len(footer.firsts)))
    reaching = [header.base_offset for header in map(parse_header, whole) if header.max_timestamp >= time]
    blocks = [
        number
        for number in range(start, len(footer.firsts))
        if any(footer.firsts[number] <= base <= footer.lasts[number] for base in reaching)
    ]

    assert footer.first_reaching(time, start=start) == (blocks[0] if blocks else None)


@given(logs(), st.integers(0, 2**16), st.binary(min_size=1, max_size=8))
def test_a_footer_that_says_something_else_under_a_right_checksum_is_refused_or_could_be_true(
    log: tuple[list[bytearray], Segment], place: int, written: bytes
) -> None:
    """The reader is left with nothing that leads it out of the object, and nothing that makes it reserve more memory than that has."""
    _, made = log
    data = bytearray(made.parts[-1])
    at = place % len(data)
    data[at : at + len(written)] = written[: len(data) - at]
    footer = None
    with contextlib.suppress(Corrupt, IncompatibleFormat):
        footer = decoded(resealed(data), made)

    if footer is not None:
        assert footer.positions[0] == HEADER_BYTES
        assert sum(footer.lengths) == footer.body_bytes == made.footer.body_bytes
        assert list(footer.lasts) == sorted(footer.lasts)
        assert (footer.partition, footer.object_id) == (PARTITION, ID)


@given(st.binary(max_size=400), st.integers(0, 2**32 - 1) | st.integers(0, 500), st.integers(0, 2**40) | st.integers(0, 600))
def test_bytes_of_anybody_are_refused_and_ask_for_a_bounded_read(garbage: bytes, claimed: int, size_bytes: int) -> None:
    tail = garbage + struct.pack(">IH8s", claimed, 1, b"FOREBAYE")
    with contextlib.suppress(Corrupt):
        assert footer_bytes_missing(tail, size_bytes=size_bytes, key=KEY) <= min(SEGMENT_FOOTER_BYTES_MAX, size_bytes)
    for data in (garbage, tail, resealed(garbage + bytes(18))):
        with contextlib.suppress(Corrupt, IncompatibleFormat):
            decode_footer(data, size_bytes=size_bytes, key=KEY)
            raise AssertionError("taken")
        with contextlib.suppress(Corrupt, IncompatibleFormat):
            decode_header(data, key=KEY)
            raise AssertionError("taken")
