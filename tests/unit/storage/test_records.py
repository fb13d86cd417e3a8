"""Records inside batches: walked, decompressed within bounds."""

import contextlib

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import records
from storage.errors import Corrupt
from storage.recordbatch import ATTRIBUTE_LOG_APPEND_TIME, HEADER_BYTES, checksum, parse_header
from storage.records import TooLarge, decompress_records, greatest_time, is_time_doubtful, recompress_batch, walk
from tests.kit.batches import batch_bytes
from tests.kit.record_batches import NOW_MS, record_batch
from tests.unit.storage.log.test_time_search import timed

COMPRESS = {1: cramjam.gzip.compress, 2: cramjam.snappy.compress_raw, 3: cramjam.lz4.compress, 4: cramjam.zstd.compress}


@pytest.mark.parametrize("codec", [0, *COMPRESS])
def test_records_are_walked_in_order(codec: int) -> None:
    batch = timed(100, 90, 130, codec=codec)

    found = walk(batch, parse_header(batch))
    assert [tuple(record) for record in found] == [(0, 100, False), (1, 90, False), (2, 130, False)]


@pytest.mark.parametrize("codec", COMPRESS)
def test_large_bodies_decompress(codec: int) -> None:
    body = bytes(range(256)) * 20_000

    assert bytes(decompress_records(bytes(COMPRESS[codec](body)), codec)) == body


def test_snappy_in_blocks_as_java_writes_it() -> None:
    block = bytes(cramjam.snappy.compress_raw(b"a" * 1_000))
    framed = b"\x82SNAPPY\x00" + b"\x00\x00\x00\x01" * 2 + (len(block).to_bytes(4, "big") + block) * 3

    assert bytes(decompress_records(framed, 2)) == b"a" * 3_000


@given(st.binary(max_size=200), st.integers(0, 7))
def test_any_bytes_are_walked_or_corrupt(payload: bytes, codec: int) -> None:
    batch = batch_bytes(3, payload=payload)
    header = parse_header(batch)._replace(attributes=codec)

    with contextlib.suppress(Corrupt):
        assert len(list(walk(batch, header))) == 3


def of_codec(codec: int, *values: bytes) -> bytearray:
    return record_batch(
        *values, codec=codec, producer_id=7, producer_epoch=2, base_sequence=40, timestamps=[NOW_MS + 9 * n for n in range(len(values))]
    )


@pytest.mark.parametrize("target", range(5))
@pytest.mark.parametrize("source", range(5))
def test_another_codec_keeps_every_byte_of_the_records_and_all_else_in_the_header(source: int, target: int) -> None:
    values = [b"value %d " % n * 50 for n in range(300)]
    batch = of_codec(source, *values)
    header = parse_header(batch)
    made = recompress_batch(memoryview(batch), header, target)
    found = parse_header(made)

    assert bytes(decompress_records(memoryview(made)[HEADER_BYTES:], target)) == bytes(of_codec(0, *values)[HEADER_BYTES:])
    assert found == header._replace(attributes=target, batch_length=len(made) - 12, crc=checksum(made))
    assert not target or len(made) < len(of_codec(0, *values)) // 4
    assert parse_header(batch) == header, "what came is left as it was"


@given(st.lists(st.binary(max_size=2_000), min_size=1, max_size=30), st.integers(0, 4), st.integers(0, 4))
def test_any_records_survive_any_codec(values: list[bytes], source: int, target: int) -> None:
    batch = of_codec(source, *values)
    made = recompress_batch(memoryview(batch), parse_header(batch), target)

    assert bytes(decompress_records(memoryview(made)[HEADER_BYTES:], target)) == bytes(of_codec(0, *values)[HEADER_BYTES:])
    assert checksum(made) == parse_header(made).crc


def test_append_time_is_stamped_with_the_codec() -> None:
    batch = of_codec(1, b"a")
    made = recompress_batch(memoryview(batch), parse_header(batch), 4, append_ms=99)

    assert parse_header(made).attributes == 4 | ATTRIBUTE_LOG_APPEND_TIME
    assert parse_header(made).max_timestamp == 99
    assert checksum(made) == parse_header(made).crc


def test_lz4_blocks_do_not_depend_on_each_other_as_java_takes_no_others() -> None:
    packed = bytes(records.compress_records(bytes(range(256)) * 2_000, records.LZ4))

    assert packed[:4] == b"\x04\x22\x4d\x18"
    assert packed[4] & 0b0010_0000


def test_snappy_is_framed_as_java_writes_it() -> None:
    body = bytes(range(256)) * 1_000
    packed = bytes(records.compress_records(body, records.SNAPPY))

    assert packed.startswith(b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01")
    assert bytes(decompress_records(packed, records.SNAPPY)) == body


@pytest.mark.parametrize(
    ("codec", "level"), [(1, 1), (1, 9), (3, 1), (3, 9), (3, 17), (4, -131_072), (4, 1), (4, 22), (2, None), (1, None)]
)
def test_every_level_that_a_topic_may_have_is_served(codec: int, level: int | None) -> None:
    body = b"some words that repeat " * 1_000

    assert bytes(decompress_records(bytes(records.compress_records(body, codec, level)), codec)) == body


def test_levels_matter() -> None:
    body = b"".join(b"%d %d," % (n * n % 977, n) for n in range(20_000))

    assert len(bytes(records.compress_records(body, 1, 9))) < len(bytes(records.compress_records(body, 1, 1)))
    assert len(bytes(records.compress_records(body, 4, 15))) < len(bytes(records.compress_records(body, 4, 1)))
    assert len(bytes(records.compress_records(body, 3, 12))) < len(bytes(records.compress_records(body, 3, 9))), (
        "9 is Kafka's number for the fast one"
    )


@pytest.mark.parametrize("codec", range(1, 5))
def test_what_does_not_decompress_is_corrupt(codec: int) -> None:
    batch = of_codec(codec, b"a" * 100)
    batch[HEADER_BYTES + 6 :] = b"\xff" * (len(batch) - HEADER_BYTES - 6)

    with pytest.raises(Corrupt):
        recompress_batch(memoryview(batch), parse_header(batch), 0)


@pytest.mark.parametrize("codec", range(1, 5))
def test_fewer_bytes_than_the_records_must_have_are_corrupt(codec: int) -> None:
    batch = record_batch(b"a", codec=codec, record_count=50, last_offset_delta=49)

    with pytest.raises(Corrupt, match="cannot hold 50 records"):
        recompress_batch(memoryview(batch), parse_header(batch), 4)


@pytest.mark.parametrize("codec", range(1, 5))
def test_a_bomb_stops_at_what_the_topic_takes(codec: int) -> None:
    batch = of_codec(codec, bytes(5_000_000))

    with pytest.raises(TooLarge, match="more than 999939 bytes"):
        recompress_batch(memoryview(batch), parse_header(batch), 0, bytes_max=1_000_000)
    with pytest.raises(TooLarge):
        recompress_batch(memoryview(batch), parse_header(batch), 0, bytes_max=0)


TIMES = st.integers(-3, 3) | st.sampled_from([-100, 63, 64, 100, 8_191, 8_192, 1 << 40])


@given(
    st.integers(-2, 1_000),
    st.lists(st.tuples(TIMES, st.sampled_from([0, 1, 50, 51, 52, 130])), min_size=1, max_size=80),
    st.integers(0, 4),
    st.integers(-3, 1_100),
)
def test_the_greatest_time_of_a_batch_is_that_of_its_records(
    base_ms: int, records: list[tuple[int, int]], codec: int, said_ms: int
) -> None:
    times = [base_ms + delta for delta, _ in records]
    values = [b"v" * size for _, size in records]
    batch = record_batch(*values, timestamps=times, base_timestamp=base_ms, max_timestamp=said_ms, codec=codec)
    header, greatest_ms = parse_header(batch), max(-1, *times)

    assert greatest_time(batch, header) == greatest_ms
    if not is_time_doubtful(batch, header):
        believed = said_ms > base_ms and len(times) > 1
        assert said_ms == greatest_ms or believed or (codec and len(times) == 1 and said_ms == base_ms)


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 8_192, 8_193])
@pytest.mark.parametrize("size", [0, 20, 53, 54, 55, 1_000])
def test_records_of_one_length_at_the_base_time_are_known_to_be_without_a_walk(count: int, size: int) -> None:
    alike = record_batch(*[b"v" * size] * count)
    later = record_batch(*[b"v" * size] * count, timestamps=[NOW_MS] * (count - 1) + [NOW_MS + 1], max_timestamp=NOW_MS)

    assert not is_time_doubtful(alike, parse_header(alike))
    assert is_time_doubtful(later, parse_header(later))


@pytest.mark.parametrize("codec", [0, *COMPRESS])
def test_what_the_broker_stamped_is_not_doubted_and_what_a_producer_did_not_date_is_read(codec: int) -> None:
    undated = record_batch(b"a", b"b", base_timestamp=-1, codec=codec)
    stamped = record_batch(b"a", b"b", attributes=ATTRIBUTE_LOG_APPEND_TIME, max_timestamp=5, codec=codec)

    assert greatest_time(undated, parse_header(undated)) == -1
    assert not is_time_doubtful(stamped, parse_header(stamped))


@given(st.binary(max_size=200), st.integers(0, 7), st.integers(1, 40))
def test_times_of_any_bytes_are_read_or_corrupt(payload: bytes, codec: int, count: int) -> None:
    batch = batch_bytes(count, payload=payload)
    header = parse_header(batch)._replace(attributes=codec)

    is_time_doubtful(batch, header)
    with contextlib.suppress(Corrupt):
        assert -1 <= greatest_time(batch, header) < 1 << 63


@pytest.mark.parametrize("codec", range(5))
def test_a_batch_that_is_compressed_anew_gets_the_greatest_time_of_its_records(codec: int) -> None:
    times = (NOW_MS, NOW_MS + 7, NOW_MS + 2)
    batch = record_batch(b"a", b"b", b"c", timestamps=times, max_timestamp=NOW_MS + 1)

    made = recompress_batch(batch, parse_header(batch), codec)

    assert parse_header(made).max_timestamp == NOW_MS + 7
    assert parse_header(made).crc == checksum(made)
