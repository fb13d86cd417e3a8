"""The early page at rest, and the key that says where its bytes lie."""

import uuid

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from runtime.ulid import encode_ulid
from storage.errors import Corrupt, IncompatibleFormat
from storage.formats.early_page import PARTITIONS_MAX, EarlyPage, decode_page, encode_page
from storage.limits import EARLY_PAGE_BYTES_MAX, METADATA_VALUE_BYTES_MAX
from storage.metadata import keys
from storage.vocabulary import ObjectId, PartitionId, TopicId

ID = ObjectId("01J00000000000000000000000")
PATH = f"llog/early/{ID}-0000000064"
TOPIC = TopicId(str(uuid.UUID(int=5)))
FIXED_BYTES = 12
PARTITION_BYTES = 20
partitions = st.builds(PartitionId, st.uuids().map(lambda value: TopicId(str(value))), st.integers(0, 2**31 - 1))
pages = st.builds(encode_page, st.lists(partitions, min_size=1, max_size=5), st.binary(min_size=1, max_size=200))


def page(partition_count: int = 2, data: bytes = b"slices") -> bytes:
    return encode_page([PartitionId(TOPIC, n) for n in range(partition_count)], data)


@given(st.lists(partitions, min_size=1, max_size=20), st.binary(min_size=1, max_size=1_000))
def test_a_page_survives_the_round_trip(found: list[PartitionId], data: bytes) -> None:
    assert decode_page(encode_page(found, data), path=PATH) == EarlyPage(tuple(found), memoryview(data))


def test_the_bytes_are_those_of_the_picture() -> None:
    value = page()

    assert value[:4] == b"FBEP"
    assert value[4:6] == (1).to_bytes(2, "big")
    assert value[6:8] == (2).to_bytes(2, "big")
    assert value[8:12] == crc32c(value[12:], crc32c(value[:8])).to_bytes(4, "big")
    assert value[12:28] == uuid.UUID(int=5).bytes
    assert value[28:32] == (0).to_bytes(4, "big")
    assert value[32:48] == uuid.UUID(int=5).bytes
    assert value[48:52] == (1).to_bytes(4, "big")
    assert value[52:] == b"slices"


def test_a_page_is_these_bytes() -> None:
    assert page(1).hex() == "46424550000100010e108ea60000000000000000000000000000000500000000736c69636573"


@given(pages, st.data())
def test_a_flipped_bit_anywhere_is_damage_or_a_newer_format(value: bytes, data: st.DataObject) -> None:
    changed = bytearray(value)
    changed[data.draw(st.integers(0, len(value) - 1))] ^= data.draw(st.integers(1, 255))

    with pytest.raises((Corrupt, IncompatibleFormat)):
        decode_page(bytes(changed), path=PATH)


def test_a_flipped_bit_of_the_number_of_partitions_is_noticed() -> None:
    """All bytes that are there would be read, as the name of one partition more."""
    for bit in range(16):
        changed = bytearray(page(2, bytes(PARTITION_BYTES * 8)))
        changed[6 + bit // 8] ^= 1 << bit % 8
        with pytest.raises(Corrupt, match=PATH):
            decode_page(bytes(changed), path=PATH)


@given(pages, st.data())
def test_a_page_that_was_cut_short_is_damage(value: bytes, data: st.DataObject) -> None:
    with pytest.raises(Corrupt, match=PATH):
        decode_page(value[: data.draw(st.integers(0, len(value) - 1))], path=PATH)


@given(st.binary(max_size=100))
def test_other_bytes_are_damage(value: bytes) -> None:
    with pytest.raises(Corrupt, match="not an early page"):
        decode_page(value, path=PATH)


def test_a_page_without_a_partition_is_damage() -> None:
    fixed = b"FBEP" + (1).to_bytes(2, "big") + (0).to_bytes(2, "big")
    value = fixed + crc32c(b"slices", crc32c(fixed)).to_bytes(4, "big") + b"slices"

    with pytest.raises(Corrupt, match="partitions=0"):
        decode_page(value, path=PATH)


def test_a_page_without_a_byte_of_a_slice_is_damage() -> None:
    with pytest.raises(Corrupt, match="cut short"):
        decode_page(page(2)[: FIXED_BYTES + 2 * PARTITION_BYTES], path=PATH)


@pytest.mark.parametrize("fmt", [2, 3, 2**16 - 1])
def test_a_newer_format_is_told_apart_from_damage(fmt: int) -> None:
    value = b"FBEP" + fmt.to_bytes(2, "big") + b"what a newer release wrote"

    with pytest.raises(IncompatibleFormat, match=f"format {fmt}, this program knows up to 1"):
        decode_page(value, path=PATH)


def test_the_fullest_page_is_a_legal_value() -> None:
    value = page(PARTITIONS_MAX, b"x" * EARLY_PAGE_BYTES_MAX)

    assert METADATA_VALUE_BYTES_MAX - PARTITION_BYTES < len(value) <= METADATA_VALUE_BYTES_MAX
    assert len(decode_page(value, path=PATH).partitions) == PARTITIONS_MAX > 200


ids = st.integers(0, 2**128 - 1).map(encode_ulid).map(ObjectId)


@given(ids, st.integers(0, 10**10 - 1), st.uuids())
def test_the_key_of_a_page_says_its_place(object_id: ObjectId, position: int, topic: uuid.UUID) -> None:
    partition_key = keys.PartitionKeys(PartitionId(TopicId(str(topic)), 3)).partition_key
    key = keys.early_page(object_id, position, partition_key)

    assert key.partition_key == partition_key
    assert keys.place_of_page(key.path) == (object_id, position)


@given(st.lists(st.tuples(ids, st.integers(0, 10**10 - 1)), min_size=2, max_size=10))
def test_keys_of_pages_sort_as_their_places_do_and_lie_in_the_range_of_all(places: list[tuple[ObjectId, int]]) -> None:
    paths = [keys.early_page(object_id, position, "t/0").path for object_id, position in sorted(places)]
    start, end = keys.early_pages("t/0")

    assert sorted(paths) == paths
    assert all(start.path <= path < end for path in paths)
    assert start.partition_key == "t/0"


@pytest.mark.parametrize(
    "path",
    [
        "",
        "llog/early/",
        "llog/early/-",
        f"llog/early/{ID}",
        f"llog/early/{ID}-",
        f"llog/early/{ID}-64",
        f"llog/early/{ID}-00000000064",
        f"llog/early/{ID}-000000006x",
        f"llog/early/{ID}--000000064",
        f"llog/early/{ID}-+000000064",
        f"llog/early/{ID}-000000006\u0664",
        f"llog/early/{ID}-\u0660\u0660\u0660\u0660\u0660\u0660\u0660\u0660\u0660\u0664",
        f"llog/early/{ID}-000000006\u00b2",
        f"llog/early/{ID}-0000000064\n",
        f"llog/early/{ID}-0000000064/x",
        f"llog/early/x/{ID}-0000000064",
        f"llog/early/{ID.lower()}-0000000064",
        f"llog/early/{ID[:-1]}-0000000064",
        f"llog/early/{ID[:-1]}U-0000000064",
        f"llog/early/8{ID[1:]}-0000000064",
        f"llog/early/ {ID}-0000000064",
        f"llog/early/{ID}\n-0000000064",
        f"llog/earlier/{ID}-0000000064",
        f"{ID}-0000000064",
        f"llog/topics/{ID}-0000000064",
    ],
)
def test_a_key_that_no_writer_makes_names_no_place(path: str) -> None:
    assert keys.place_of_page(path) is None


@given(st.text())
def test_whatever_a_key_is_its_place_is_read_without_an_error(text: str) -> None:
    for path in (text, f"llog/early/{text}", f"llog/early/{ID}-{text}"):
        place = keys.place_of_page(path)
        assert place is None or keys.early_page(*place, "t/0").path == path


@pytest.mark.parametrize("shards", [1, 2, 7, 64, 300])
def test_a_partition_key_is_found_for_every_shard(shards: int) -> None:
    def shard_of(partition_key: str) -> int:
        return crc32c(partition_key.encode()) % shards

    assert sorted(map(shard_of, keys.shard_keys(shard_of))) == list(range(shards))
