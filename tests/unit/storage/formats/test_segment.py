"""The segment at rest: its name, header, footer and blocks, and what is refused."""

import contextlib
import struct
from array import array
from dataclasses import replace
from typing import Any

import pytest

from storage.errors import Corrupt, IncompatibleFormat
from storage.formats.segment import (
    FOOTER_READ_BYTES,
    HEADER_BYTES,
    SegmentFooter,
    SegmentHeader,
    check_block,
    decode_footer,
    decode_header,
    encode_footer,
    encode_header,
    footer_bytes,
    footer_bytes_missing,
    parse_segment_key,
    segment_key,
)
from storage.limits import (
    FRAME_BYTES_MAX,
    SEGMENT_BLOCK_BYTES_TARGET,
    SEGMENT_BLOCKS_MAX,
    SEGMENT_BYTES_MAX,
    SEGMENT_BYTES_TARGET,
    SEGMENT_FOOTER_BYTES_MAX,
)
from storage.vocabulary import ObjectId, PartitionId, TopicId
from tests.kit.segments import (
    BATCH_BYTES,
    ID,
    KEY,
    PARTITION,
    bytes_of,
    decoded,
    fact,
    resealed,
    segment,
    stamped,
    three_blocks,
    with_facts,
)

MADE = three_blocks()
BODY = bytes_of(MADE)
FOOTER = bytes(MADE.parts[-1])
HEADER = SegmentHeader(PARTITION, ID, 10)


def test_a_name_says_whose_segment_it_is_and_which() -> None:
    assert segment_key(PARTITION, ID) == KEY
    assert parse_segment_key(KEY) == (PARTITION, ID)


@pytest.mark.parametrize("number", [0, 99_999, 100_000, 2**31 - 1])
def test_a_name_may_have_any_number_of_a_partition(number: int) -> None:
    partition = PartitionId(PARTITION.topic_id, number)

    assert parse_segment_key(segment_key(partition, ID)) == (partition, ID)


@pytest.mark.parametrize(
    "key",
    [
        "",
        "wal/01JGFJ/01JGFJJZ005591T038X855YAFS",
        KEY + "/x",
        "x" + KEY,
        KEY + "\n",
        KEY.replace("00003", "3"),
        KEY.replace("00003", "000003"),
        KEY.replace("00003", "2147483648"),
        KEY.replace("00003", "0000٣"),
        KEY.replace("00003", "-0003"),
        KEY.replace("8e66447a", "8E66447A"),
        KEY.replace("8e66447a-", "8e66447a"),
        KEY.replace("01JG", "81JG"),
        KEY.replace("01JG", "01JU"),
        KEY[:-1],
    ],
)
def test_what_is_no_name_of_a_segment_is_none(key: str) -> None:
    assert parse_segment_key(key) is None


def test_the_bytes_are_those_of_the_picture() -> None:
    assert BODY[:8] == b"FOREBAYS"
    assert struct.unpack_from(">HI16sI26sQ", BODY, 8) == (1, 72, bytes.fromhex(PARTITION.topic_id.replace("-", "")), 3, ID.encode(), 10)
    assert struct.unpack_from(">16sI26s", FOOTER) == struct.unpack_from(">16sI26s", BODY, 14)
    assert struct.unpack_from(">QQQQQqQII", FOOTER, 46) == (10, 30, 5, 7, 5 * BATCH_BYTES, 1_500, 16, 3, 0)
    positions = [HEADER_BYTES + number * 2 * BATCH_BYTES for number in range(3)]
    assert [struct.unpack_from(">QQQI4xq", FOOTER, 110 + 40 * number) for number in range(3)] == [
        (10, 11, positions[0], 2 * BATCH_BYTES, 1_200),
        (15, 16, positions[1], 2 * BATCH_BYTES, 1_500),
        (17, 19, positions[2], BATCH_BYTES, 1_500),
    ]
    assert BODY[-14:] == len(FOOTER).to_bytes(4, "big") + b"\x00\x01FOREBAYE"


def test_header_and_footer_survive_the_round_trip() -> None:
    assert decode_header(BODY, key=KEY) == HEADER
    assert decode_footer(BODY, size_bytes=len(BODY), key=KEY) == MADE.footer
    assert decode_footer(FOOTER, size_bytes=len(BODY), key=KEY) == MADE.footer


def test_a_flipped_bit_of_the_header_is_noticed() -> None:
    missed = []
    for position in range(HEADER_BYTES):
        data = bytearray(BODY)
        data[position] ^= 1
        with contextlib.suppress(Corrupt, IncompatibleFormat):
            decode_header(data, key=KEY)
            missed.append(position)

    assert missed == []


def test_a_flipped_bit_of_the_footer_is_noticed() -> None:
    missed = []
    for position in range(len(FOOTER)):
        data = bytearray(FOOTER)
        data[position] ^= 1
        with contextlib.suppress(Corrupt, IncompatibleFormat):
            decode_footer(data, size_bytes=len(BODY), key=KEY)
            missed.append(position)

    assert missed == []


@pytest.mark.parametrize("length", [0, 7, 8, HEADER_BYTES - 1])
def test_a_cut_header_is_corrupt(length: int) -> None:
    with pytest.raises(Corrupt, match=f"part=header bytes={length}"):
        decode_header(BODY[:length], key=KEY)


def test_a_header_of_another_size_is_corrupt() -> None:
    data = bytearray(BODY)
    struct.pack_into(">I", data, 10, HEADER_BYTES + 8)

    with pytest.raises(Corrupt, match="header_bytes=80"):
        decode_header(data, key=KEY)


def test_a_newer_format_is_told_apart_from_damage() -> None:
    newer = [bytearray(BODY), bytearray(BODY)]
    newer[0][9] = newer[1][-9] = 2

    with pytest.raises(IncompatibleFormat, match=r"format 2, .*part=header"):
        decode_header(newer[0], key=KEY)
    with pytest.raises(IncompatibleFormat, match=r"format 2, .*part=trailer"):
        decode_footer(newer[1], size_bytes=len(BODY), key=KEY)
    with pytest.raises(IncompatibleFormat, match=r"format 2, .*part=trailer"):
        footer_bytes_missing(newer[1], size_bytes=len(BODY), key=KEY)


def test_a_format_before_the_first_is_corrupt() -> None:
    data = bytearray(BODY)
    data[9] = data[-9] = 0

    with pytest.raises(Corrupt, match=r"format 0: .*part=header"):
        decode_header(data, key=KEY)
    with pytest.raises(Corrupt, match=r"format 0: .*part=trailer"):
        decode_footer(data, size_bytes=len(BODY), key=KEY)


@pytest.mark.parametrize(
    "other",
    [
        KEY.replace("00003", "00004"),
        KEY.replace("8e66447a", "9e66447a"),
        KEY.replace("01JG", "01JH"),
    ],
    ids=["partition", "topic", "object"],
)
def test_a_segment_under_the_name_of_another_is_refused(other: str) -> None:
    with pytest.raises(Corrupt, match=r"another segment is under this name: .*part=header"):
        decode_header(BODY, key=other)
    with pytest.raises(Corrupt, match=r"another segment is under this name: .*part=footer"):
        decode_footer(BODY, size_bytes=len(BODY), key=other)


def test_a_name_of_something_else_is_refused() -> None:
    with pytest.raises(Corrupt, match="not the name of a segment: key='wal/x'"):
        decode_header(BODY, key="wal/x")


def test_it_is_said_how_much_of_the_footer_is_missing() -> None:
    for length in range(14, len(BODY) + 1):
        tail = BODY[-length:]
        missing = footer_bytes_missing(tail, size_bytes=len(BODY), key=KEY)

        assert missing == max(0, len(FOOTER) - length)
        if missing:
            with pytest.raises(Corrupt, match="segment footer is cut"):
                decode_footer(tail, size_bytes=len(BODY), key=KEY)


@pytest.mark.parametrize("length", [0, 1, 13])
def test_an_end_without_a_whole_trailer_is_corrupt(length: int) -> None:
    with pytest.raises(Corrupt, match=f"part=trailer bytes={length}"):
        footer_bytes_missing(BODY[len(BODY) - length :], size_bytes=len(BODY), key=KEY)


def test_an_object_that_is_cut_is_corrupt() -> None:
    with pytest.raises(Corrupt, match="part=trailer"):
        decode_footer(BODY[:-1], size_bytes=len(BODY) - 1, key=KEY)


@pytest.mark.parametrize("claimed", [0, footer_bytes(1) - 1, len(BODY) - HEADER_BYTES + 1, SEGMENT_FOOTER_BYTES_MAX, 2**32 - 1])
def test_a_footer_cannot_be_larger_than_what_holds_it_nor_smaller_than_one_block(claimed: int) -> None:
    tail = FOOTER[:-14] + struct.pack(">I", claimed) + FOOTER[-10:]

    with pytest.raises(Corrupt, match=f"footer_bytes={claimed} "):
        footer_bytes_missing(tail, size_bytes=len(BODY), key=KEY)


def test_a_footer_has_a_bound_whatever_the_object_s_size() -> None:
    def missing(claimed: int, size_bytes: int) -> int:
        return footer_bytes_missing(FOOTER[:-14] + struct.pack(">I", claimed) + FOOTER[-10:], size_bytes=size_bytes, key=KEY)

    assert missing(SEGMENT_FOOTER_BYTES_MAX, SEGMENT_BYTES_MAX) == SEGMENT_FOOTER_BYTES_MAX - len(FOOTER)
    with pytest.raises(Corrupt, match="does not fit"):
        missing(SEGMENT_FOOTER_BYTES_MAX + 1, SEGMENT_BYTES_MAX)
    with pytest.raises(Corrupt, match="does not fit"):
        missing(len(FOOTER), SEGMENT_BYTES_MAX + 1)


def changed(**fields: Any) -> bytes:
    return encode_footer(replace(MADE.footer, **fields))


def moved(values: "array[int]", number: int, by: int) -> "array[int]":
    return array(values.typecode, [value + (by if at == number else 0) for at, value in enumerate(values)])


OF: SegmentFooter = MADE.footer
CONTRADICTIONS = {
    "body that is longer": ({"body_bytes": OF.body_bytes + 1}, "between_header_and_footer"),
    "lengths that do not add up": ({"lengths": moved(OF.lengths, 2, 1)}, "back to back"),
    "positions that do not follow": ({"positions": moved(OF.positions, 1, 1)}, "back to back"),
    "first position after a hole": ({"positions": moved(OF.positions, 0, 1)}, "back to back"),
    "block that ends before it begins": ({"lasts": moved(OF.lasts, 0, -2)}, "do not rise"),
    "blocks that overlap": ({"lasts": moved(OF.lasts, 0, 4)}, "do not rise"),
    "batch below base": ({"base": 11}, "outside of base..last"),
    "batch above last": ({"last": 18}, "outside of base..last"),
    "negative base": ({"base": -1}, "outside of base..last"),
    "more blocks than batches": ({"batch_count": 2}, "batches=2"),
    "more batches than records": ({"record_count": 4}, "records=4"),
    "more records than offsets": ({"record_count": 22}, "records=22"),
    "timestamp that no block has": ({"max_timestamp": 1_501}, "max_timestamp=1501"),
    "timestamp that a block exceeds": ({"max_timestamp": 1_200}, "max_timestamp=1200"),
    "timestamp before its block": ({"max_timestamp_offset": 14}, "at=14"),
    "timestamp behind the first block that has it": ({"max_timestamp_offset": 17}, "at=17"),
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_a_footer_that_contradicts_itself_is_corrupt_though_its_checksum_is_right(case: str) -> None:
    fields, said = CONTRADICTIONS[case]

    with pytest.raises(Corrupt, match=rf"contradicts itself: key='{KEY}'.*{said}"):
        decode_footer(changed(**fields), size_bytes=len(BODY), key=KEY)


@pytest.mark.parametrize("blocks", [0, 4, SEGMENT_BLOCKS_MAX + 1, 2**32 - 1])
def test_blocks_that_cannot_be_there_are_corrupt_before_they_are_read(blocks: int) -> None:
    data = bytearray(FOOTER)
    struct.pack_into(">I", data, 102, blocks)

    with pytest.raises(Corrupt, match=f"do not fit: .*blocks={blocks} "):
        decoded(resealed(data), MADE)


def footer_of_blocks(count: int) -> SegmentFooter:
    lengths = array("I", [100_000] * count)
    return replace(
        MADE.footer,
        base=0,
        last=count - 1,
        batch_count=count,
        record_count=count,
        body_bytes=sum(lengths),
        max_timestamp=5,
        max_timestamp_offset=0,
        firsts=array("q", range(count)),
        lasts=array("q", range(count)),
        positions=array("Q", range(HEADER_BYTES, HEADER_BYTES + sum(lengths), 100_000)),
        lengths=lengths,
        checksums=array("I", [7] * count),
        max_timestamps=array("q", [5] * count),
    )


def test_as_many_blocks_as_there_may_be_are_read_and_one_more_is_refused() -> None:
    def read(footer: SegmentFooter) -> SegmentFooter:
        data = encode_footer(footer)
        return decode_footer(data, size_bytes=HEADER_BYTES + footer.body_bytes + len(data), key=KEY)

    assert read(footer_of_blocks(SEGMENT_BLOCKS_MAX)) == footer_of_blocks(SEGMENT_BLOCKS_MAX)
    with pytest.raises(Corrupt, match=f"blocks={SEGMENT_BLOCKS_MAX + 1}"):
        read(footer_of_blocks(SEGMENT_BLOCKS_MAX + 1))


def test_the_footer_of_a_segment_of_the_usual_size_is_read_at_once() -> None:
    blocks = SEGMENT_BYTES_TARGET // SEGMENT_BLOCK_BYTES_TARGET + 1

    assert len(encode_footer(footer_of_blocks(blocks))) == footer_bytes(blocks) <= FOOTER_READ_BYTES
    assert footer_bytes(SEGMENT_BLOCKS_MAX) > FOOTER_READ_BYTES, "footer_bytes_missing has a use"


def test_a_segment_has_room_for_any_batch_behind_its_usual_size() -> None:
    assert SEGMENT_BYTES_TARGET + FRAME_BYTES_MAX + SEGMENT_FOOTER_BYTES_MAX + HEADER_BYTES <= SEGMENT_BYTES_MAX


def test_facts_that_a_reader_may_do_without_are_passed_over() -> None:
    data = with_facts(FOOTER, fact(7, b"of a newer release"), fact(8), fact(7, bytes(1_000)))

    assert decoded(data, MADE) == MADE.footer


def test_facts_up_to_the_bound_of_a_footer_are_passed_over() -> None:
    room = SEGMENT_FOOTER_BYTES_MAX - len(FOOTER) - len(fact(7))

    assert decoded(with_facts(FOOTER, fact(7, bytes(room))), MADE) == MADE.footer
    with pytest.raises(Corrupt, match="does not fit"):
        decoded(with_facts(FOOTER, fact(7, bytes(room + 1))), MADE)


@pytest.mark.parametrize("flags", [1, 2, 0x8000])
def test_a_fact_that_a_reader_must_know_is_of_a_newer_release(flags: int) -> None:
    with pytest.raises(IncompatibleFormat, match=rf"key='{KEY}' tag=9 flags={flags}$"):
        decoded(with_facts(FOOTER, fact(7, b"x"), fact(9, b"y", flags=flags)), MADE)


@pytest.mark.parametrize(
    ("facts", "count", "said"),
    [
        ([fact(7, b"abc", length=4)], 1, "tag=7 length=4"),
        ([fact(7, b"abc", length=2**32 - 1)], 1, "length=4294967295"),
        ([fact(7), b"\x00\x07\x00"], 2, "fact=1 bytes=3"),
        ([fact(7, b"abc", length=2)], 1, "fact=1 bytes=1"),
        ([fact(7)], 2, "facts=1 expected=2"),
        ([fact(7)], 0, "facts=1 expected=0"),
        ([], 1, "facts=0 expected=1"),
    ],
)
def test_facts_that_do_not_fit_are_corrupt(facts: list[bytes], count: int, said: str) -> None:
    with pytest.raises(Corrupt, match=rf"facts of a segment footer .*{said}"):
        decoded(with_facts(FOOTER, *facts, count=count), MADE)


def block_of(number: int) -> bytes:
    return BODY[OF.positions[number] : OF.positions[number] + OF.lengths[number]]


def test_a_block_is_what_was_written() -> None:
    for number in range(3):
        check_block(block_of(number), OF, number, key=KEY)


def test_a_flipped_bit_of_a_block_is_noticed_also_in_a_base_offset() -> None:
    found = []
    for position in range(BATCH_BYTES):
        data = bytearray(block_of(1))
        data[position] ^= 1
        try:
            check_block(data, OF, 1, key=KEY)
        except Corrupt as error:
            found.append(str(error))

    assert len(found) == BATCH_BYTES
    assert all(text.startswith(f"checksum mismatch: key='{KEY}' part=block-1 expected=0x") for text in found)


def test_a_block_that_is_cut_is_corrupt() -> None:
    with pytest.raises(Corrupt, match=f"part=block-1 expected_bytes={2 * BATCH_BYTES} bytes={2 * BATCH_BYTES - 1}"):
        check_block(block_of(1)[:-1], OF, 1, key=KEY)


@pytest.mark.parametrize(
    ("offset", "block"), [(0, 0), (10, 0), (11, 0), (12, 1), (15, 1), (16, 1), (17, 2), (19, 2), (20, None), (30, None)]
)
def test_an_offset_is_found_in_the_first_block_that_reaches_it(offset: int, block: int | None) -> None:
    assert OF.find(offset) == block


@pytest.mark.parametrize(
    ("timestamp", "start", "block"), [(0, 0, 0), (1_200, 0, 0), (1_201, 0, 1), (1_500, 2, 2), (1_501, 0, None), (0, 3, None)]
)
def test_a_time_is_found_in_the_first_block_that_reaches_it(timestamp: int, start: int, block: int | None) -> None:
    assert OF.first_reaching(timestamp, start=start) == block


def test_a_header_of_the_largest_values_is_read() -> None:
    header = SegmentHeader(
        PartitionId(TopicId("ffffffff-ffff-ffff-ffff-ffffffffffff"), 2**31 - 1), ObjectId("7ZZZZZZZZZZZZZZZZZZZZZZZZZ"), 2**63 - 1
    )

    assert decode_header(encode_header(header), key=segment_key(header.partition, header.object_id)) == header


def test_a_batch_of_the_end_of_all_offsets_is_no_reason_to_fail() -> None:
    made = segment(stamped(2**63 - 1), base=2**63 - 1, last=2**63 - 1)

    assert decode_footer(made.parts[-1], size_bytes=made.size_bytes, key=made.key) == made.footer
