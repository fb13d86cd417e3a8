"""Writing segments: blocks, counts, and what the writer does not take."""

import pytest
from crc32c import crc32c

from storage.formats.segment import HEADER_BYTES, SegmentWriter, check_block, decode_footer
from storage.limits import SEGMENT_BLOCK_BYTES_TARGET, SEGMENT_BLOCKS_MAX, SEGMENT_BYTES_MAX, SEGMENT_BYTES_TARGET
from storage.recordbatch import HEADER_BYTES as BATCH_HEADER_BYTES
from storage.recordbatch import restamp
from tests.kit.batches import batch_bytes
from tests.kit.segments import BATCH_BYTES, ID, KEY, PARTITION, bytes_of, segment, stamped, three_blocks


def test_the_object_is_its_header_the_runs_as_they_were_given_and_its_footer() -> None:
    run = memoryview(stamped(0) + stamped(1))
    made = segment(run, stamped(2), last=2)

    assert len(made.parts) == 4
    assert made.parts[1].obj is run.obj
    assert made.key == KEY
    assert made.size_bytes == len(bytes_of(made))


def test_the_size_is_known_while_it_grows() -> None:
    writer = SegmentWriter(PARTITION, ID, 0, block_bytes=2 * BATCH_BYTES)
    sizes = []
    for base in range(5):
        writer.add(stamped(base))
        sizes.append(writer.size_bytes)

    for count, size in enumerate(sizes, start=1):
        assert size == len(bytes_of(segment(*(stamped(base) for base in range(count)), last=count - 1)))


def test_a_block_ends_with_the_batch_that_fills_it() -> None:
    made = segment(*(stamped(base) for base in range(7)), last=6, block_bytes=2 * BATCH_BYTES + 1)

    assert list(made.footer.lengths) == [3 * BATCH_BYTES, 3 * BATCH_BYTES, BATCH_BYTES]
    assert list(made.footer.firsts) == [0, 3, 6]
    assert list(made.footer.lasts) == [2, 5, 6]


def test_blocks_are_the_same_however_the_batches_were_cut_into_runs() -> None:
    batches = [stamped(base, max_timestamp=base * 7 % 5) for base in range(9)]
    whole = b"".join(batches)

    for at in range(0, len(whole) + 1, BATCH_BYTES):
        made = segment(whole[:at], whole[at:], last=8)
        assert made.footer == segment(*batches, last=8).footer
        assert bytes_of(made) == bytes_of(segment(*batches, last=8))


def test_a_block_of_the_usual_size_ends_at_256_kib() -> None:
    payload = bytes(SEGMENT_BLOCK_BYTES_TARGET // 2 - BATCH_HEADER_BYTES)
    writer = SegmentWriter(PARTITION, ID, 0)
    for base in range(4):
        writer.add(stamped(base, payload=payload))
    writer.add(stamped(4, payload=bytes(3 * SEGMENT_BLOCK_BYTES_TARGET)))

    lengths = list(writer.finish(4).footer.lengths)

    assert lengths[:2] == [SEGMENT_BLOCK_BYTES_TARGET, SEGMENT_BLOCK_BYTES_TARGET]
    assert len(lengths) == 3


def test_counts_and_timestamps_are_those_of_the_batches() -> None:
    footer = three_blocks().footer

    assert (footer.base, footer.last, footer.batch_count, footer.record_count) == (10, 30, 5, 7)
    assert (footer.max_timestamp, footer.max_timestamp_offset) == (1_500, 16)
    assert list(footer.max_timestamps) == [1_200, 1_500, 1_500]


def test_batches_without_a_time_have_the_time_they_say() -> None:
    footer = segment(stamped(0, max_timestamp=-1), stamped(1, max_timestamp=-1), last=1).footer

    assert (footer.max_timestamp, footer.max_timestamp_offset) == (-1, 0)


def test_the_earliest_time_there_is_is_a_time() -> None:
    footer = segment(stamped(0, max_timestamp=-(2**63)), last=0).footer

    assert (footer.max_timestamp, footer.max_timestamp_offset) == (-(2**63), 0)


def test_a_batch_whose_records_are_fewer_than_its_offsets_is_taken() -> None:
    batch = stamped(5, 4)
    batch[60] = 2

    footer = segment(batch, base=3, last=11).footer
    assert (footer.record_count, footer.firsts[0], footer.lasts[0]) == (2, 5, 8)


def test_an_empty_run_is_nothing() -> None:
    assert segment(b"", stamped(0), b"", last=0) == segment(stamped(0), last=0)


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        ([stamped(3)[:12] + b"\xff" * 4 + stamped(3)[16:]], "not stamped"),
        ([batch_bytes()], "out of order"),
        ([stamped(3), stamped(3)], "out of order"),
        ([stamped(3, 5) + stamped(7)], "out of order"),
        ([stamped(1)], "out of order"),
        ([stamped(3)[:-1]], "not a whole batch"),
        ([stamped(3) + stamped(4)[:60]], "not a whole batch"),
        ([stamped(3)[:16] + b"\x01" + stamped(3)[17:]], "not a batch"),
        ([stamped(3)[:8] + bytes(4) + stamped(3)[12:]], "not a whole batch"),
        ([stamped(3)[:57] + bytes(4) + stamped(3)[61:]], "more records than offsets, or none"),
        ([stamped(3)[:60] + b"\x02" + stamped(3)[61:]], "more records than offsets, or none"),
        ([stamped(9)], "above the last offset"),
        ([], "at least one batch"),
    ],
)
def test_what_is_no_segment_is_a_fault_of_the_caller(runs: list[bytes], said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        segment(*runs, base=2, last=8)


def test_a_segment_has_a_bounded_number_of_blocks() -> None:
    whole = b"".join(stamped(base) for base in range(SEGMENT_BLOCKS_MAX + 1))
    made = segment(whole[:-BATCH_BYTES], last=SEGMENT_BLOCKS_MAX, block_bytes=1)

    assert decode_footer(bytes_of(made), size_bytes=made.size_bytes, key=KEY) == made.footer
    with pytest.raises(AssertionError, match=f"{SEGMENT_BLOCKS_MAX} blocks: {SEGMENT_BLOCKS_MAX + 1}"):
        segment(whole, last=SEGMENT_BLOCKS_MAX, block_bytes=1)


def test_a_segment_has_a_bounded_size() -> None:
    batch = stamped(0, payload=bytes(SEGMENT_BYTES_TARGET - BATCH_HEADER_BYTES))
    writer = SegmentWriter(PARTITION, ID, 0)
    for base in range(SEGMENT_BYTES_MAX // SEGMENT_BYTES_TARGET):
        restamp(batch, 0, base)  # nothing of this is put, so 64 MiB are enough
        writer.add(batch)

    assert writer.size_bytes > SEGMENT_BYTES_MAX
    with pytest.raises(AssertionError, match=f"at most {SEGMENT_BYTES_MAX} bytes"):
        writer.finish(SEGMENT_BYTES_MAX // SEGMENT_BYTES_TARGET - 1)


def test_a_segment_of_64_mib_is_whole_and_its_footer_is_read_at_once() -> None:
    payload = bytes(range(256)) * 4_096
    writer = SegmentWriter(PARTITION, ID, 0)
    base = 0
    while writer.size_bytes < SEGMENT_BYTES_TARGET:
        writer.add(stamped(base, payload=payload))
        base += 1
    made = writer.finish(base - 1)
    tail = made.parts[-1]

    footer = decode_footer(tail, size_bytes=made.size_bytes, key=KEY)
    assert len(footer.lengths) == base == 64
    for number, part in enumerate(made.parts[1:-1]):
        check_block(part, footer, number, key=KEY)
    assert footer.positions[0] == HEADER_BYTES
    assert footer.checksums[5] == crc32c(made.parts[6])
