"""Every record is read to its end: what is wrong with each part of one, in every codec, and which record it is."""

from collections.abc import Callable

import cramjam
import pytest

from storage.errors import Corrupt
from storage.limits import MIB
from storage.recordbatch import parse_header
from storage.records import DECOMPRESSED_BYTES_MAX, HEADERS_MAX, NAMED_MAX, READ_SLICE_RECORDS, Readable, Unreadable, read_records, walk
from tests.kit.record_batches import NOW_MS, batch_of_records, compressed, record, record_batch, varint

CODECS = range(5)
ALWAYS = {"earliest_ms": -(2**63), "latest_ms": 2**63 - 1}


def sized(body: bytes, length: int | None = None) -> bytes:
    return varint(len(body) if length is None else length) + body


def fields(
    *, offset: bytes = varint(0), time: bytes = varint(0), key: bytes = varint(-1), value: bytes = varint(-1), headers: bytes = varint(0)
) -> bytes:
    return b"\x00" + time + offset + key + value + headers


def read(batch: bytes | bytearray, **options: int) -> Readable:
    return read_records(batch, parse_header(batch), **{**ALWAYS, **options})


GOOD = {
    "no key and no value": fields(),
    "an empty key and value": fields(key=varint(0), value=varint(0)),
    "long ones": fields(key=varint(200) + b"k" * 200, value=varint(70_000) + b"v" * 70_000),
    "headers": fields(headers=varint(2) + varint(1) + b"a" + varint(-1) + varint(0) + varint(300) + b"h" * 300),
    "a hundred headers": fields(headers=varint(100) + (varint(1) + b"a" + varint(1) + b"b") * 100),
    "a header key that is no UTF-8, which Java reads": fields(headers=varint(1) + varint(1) + b"\xff" + varint(0)),
    "far away in time": fields(time=varint(10**12)),
    "before the first": fields(time=varint(-5)),
    "attributes that mean nothing": b"\xff" + fields()[1:],
    "a varint written longer than it need be": fields(key=b"\x82\x80\x80\x00" + b"k"),
}

BAD: dict[str, tuple[bytes, str]] = {
    "a length below zero": (sized(fields(), -1), "outside its batch"),
    "a length of nothing": (sized(b""), "goes on where the batch ends"),
    "a length beyond the batch": (sized(fields(), 7), "outside its batch"),
    "a length of 4 GiB": (sized(fields(), 2**32 - 1), "varint does not fit"),
    "a length short of its fields": (sized(fields(), 5) + b"\x00" * 5, "not as long as it says"),
    "a length beyond its fields": (sized(fields() + b"\x00"), "not as long as it says"),
    "a varint that never ends": (b"\xff" * 20, "varint does not fit"),
    "a time of more than 8 bytes": (sized(fields(time=b"\xff" * 9 + b"\x7f")), "varint does not fit"),
    "an offset delta of another record": (sized(fields(offset=varint(1))), "offset deltas count from 0"),
    "an offset delta below zero": (sized(fields(offset=varint(-1))), "offset deltas count from 0"),
    "a key shorter than null": (sized(fields(key=varint(-2))), "a key has no such length"),
    "a key beyond the record": (sized(fields(key=varint(50) + b"k")), "goes on where the batch ends"),
    "a value shorter than null": (sized(fields(value=varint(-2))), "a value has no such length"),
    "a value beyond the batch": (sized(fields(value=varint(2**31 - 1))), "goes on where the batch ends"),
    "headers below zero": (sized(fields(headers=varint(-1))), "impossible number of headers"),
    "more headers than bytes": (sized(fields(headers=varint(2**31 - 1))), "impossible number of headers"),
    "a header without a key": (sized(fields(headers=varint(1) + varint(-1) + varint(0))), "header key"),
    "a header value shorter than null": (sized(fields(headers=varint(1) + varint(1) + b"a" + varint(-2))), "header value"),
    "fewer headers than it says": (sized(fields(headers=varint(2) + varint(0) + varint(0))), "goes on where the batch ends"),
}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("body", GOOD.values(), ids=GOOD)
def test_what_consumers_read_is_read(body: bytes, codec: int) -> None:
    batch = batch_of_records(sized(body), 1, codec=codec)

    has_key = [facts.has_key for facts in walk(batch, parse_header(batch))]
    assert read(batch).without_key == ([] if has_key == [True] else [0])


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(("bad", "words"), BAD.values(), ids=BAD)
def test_a_defect_is_found_and_its_record_named(bad: bytes, words: str, codec: int) -> None:
    with pytest.raises(Unreadable, match=words) as alone:
        read(batch_of_records(bad, 1, codec=codec))
    assert alone.value.index == 0
    if "offset delta" in words:
        return  # what is wrong there is another thing in another place
    behind = b"".join(record(b"good", offset_delta=delta) for delta in range(3)) + bad.replace(fields()[:3], b"\x00\x00\x06", 1)
    with pytest.raises(Unreadable, match="record 3") as later:
        read(batch_of_records(behind, 4, codec=codec))
    assert later.value.index == 3


@pytest.mark.parametrize("codec", CODECS)
def test_fewer_and_more_records_than_the_header_says(codec: int) -> None:
    records = b"".join(record(b"x" * 100, offset_delta=delta) for delta in range(5))

    assert read(batch_of_records(records, 5, codec=codec)).without_key == [0, 1, 2, 3, 4]
    with pytest.raises(Unreadable, match="goes on where the batch ends") as fewer:
        read(batch_of_records(records, 6, codec=codec))
    assert fewer.value.index == 5
    with pytest.raises(Unreadable, match="bytes are left") as more:
        read(batch_of_records(records, 4, codec=codec))
    assert more.value.index is None


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
@pytest.mark.parametrize(
    "spoilt",
    [lambda body: b"", lambda body: body[:-1], lambda body: body[: len(body) // 2], lambda _: b"\x00\x01\x02 not compressed"],
    ids=["nothing", "all but a byte", "half", "something else"],
)
def test_what_does_not_decompress_to_its_end_is_corrupt(codec: int, spoilt: Callable[[bytes], bytes]) -> None:
    records = b"".join(record(b"%d" % delta * 50, offset_delta=delta) for delta in range(20))

    with pytest.raises(Corrupt):
        read(batch_of_records(spoilt(compressed(records, codec)), 20, codec=codec, is_packed=True))


@pytest.mark.parametrize("codec", [1, 3, 4])
def test_a_bomb_is_refused_at_the_bound(codec: int) -> None:
    records = record(bytes(DECOMPRESSED_BYTES_MAX), offset_delta=0)

    with pytest.raises(Corrupt, match=f"more than {DECOMPRESSED_BYTES_MAX} bytes"):
        read(batch_of_records(records, 1, codec=codec))


def test_snappy_that_claims_too_much_is_refused_before_it_is_decompressed() -> None:
    with pytest.raises(Corrupt, match="more than"):
        read(batch_of_records(b"\xff\xff\xff\xff\x0f" + b"x" * 100, 1, codec=2, is_packed=True))


def test_lz4_blocks_that_depend_on_each_other_are_not_read_as_by_java() -> None:
    records = record(b"x" * 200_000, offset_delta=0)
    linked = cramjam.lz4.Compressor(block_linked=True)
    linked.compress(records)

    with pytest.raises(Corrupt, match="depend on each other"):
        read(batch_of_records(bytes(linked.finish()), 1, codec=3, is_packed=True))


def test_headers_are_bounded_over_all_records() -> None:
    half = varint(HEADERS_MAX // 2) + (varint(0) + varint(0)) * (HEADERS_MAX // 2)
    two, three = (b"".join(sized(fields(offset=varint(delta), headers=half)) for delta in range(count)) for count in (2, 3))

    read(batch_of_records(two, 2))
    with pytest.raises(Unreadable, match=f"at most {HEADERS_MAX} headers") as found:
        read(batch_of_records(three, 3))
    assert found.value.index == 2


def test_offset_deltas_are_right_where_their_varints_grow() -> None:
    count = 70_000
    batch = batch_of_records(b"".join(record(b"", offset_delta=delta, key=b"k") for delta in range(count)), count)

    assert read(batch) == Readable(greatest_ms=NOW_MS)


def test_records_without_a_key_and_out_of_time_are_named_up_to_a_bound() -> None:
    batch = record_batch(b"a", b"b", b"c", keys=(None, b"", b"k"), timestamps=(NOW_MS - 1, NOW_MS, NOW_MS + 2), base_timestamp=NOW_MS)

    assert read(batch, earliest_ms=NOW_MS, latest_ms=NOW_MS + 1) == Readable(greatest_ms=NOW_MS + 2, without_key=[0], out_of_time=[0, 2])
    assert read(batch, earliest_ms=NOW_MS - 1, latest_ms=NOW_MS + 2).out_of_time == []
    many = read(record_batch(*[b""] * (NAMED_MAX + 1)), earliest_ms=NOW_MS + 1)
    assert many == Readable(greatest_ms=NOW_MS, without_key=list(range(NAMED_MAX)), out_of_time=list(range(NAMED_MAX)))


def test_no_timestamp_is_never_out_of_time_and_one_beyond_64_bits_always() -> None:
    assert read(record_batch(b"a", base_timestamp=-1), earliest_ms=NOW_MS).out_of_time == []
    beyond = batch_of_records(sized(fields(time=varint(2**62))), 1, base_timestamp=2**63 - 1)
    assert read(beyond).out_of_time == [0]


def test_a_long_batch_lets_others_run_in_between() -> None:
    breaths: list[None] = []
    batch = record_batch(*[b""] * (READ_SLICE_RECORDS * 3 + 1))

    read_records(batch, parse_header(batch), **ALWAYS, breathe=lambda: breaths.append(None))
    assert len(breaths) == 3


def test_a_buffer_that_is_lent_is_given_back() -> None:
    lent = record_batch(b"x" * MIB)

    read(lent)
    lent.clear()  # a BufferError, if anybody held it
