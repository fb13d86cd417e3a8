"""The WAL object's header at rest."""

import contextlib
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.ulid import encode_ulid
from storage.errors import Corrupt, IncompatibleFormat
from storage.formats.wal import Slice, WalHeader, decode_header, encode_header, header_bytes, object_key
from storage.vocabulary import ObjectId, PartitionId, TopicId

ID = ObjectId("01J00000000000000000000000")
partitions = st.builds(PartitionId, st.uuids().map(lambda value: TopicId(str(value))), st.integers(0, 2**31 - 1))


def header(slice_count: int = 1) -> bytes:
    topic = TopicId(str(uuid.UUID(int=5)))
    start = header_bytes(slice_count)
    return encode_header(ID, 7, [Slice(PartitionId(topic, n), start + n * 10, 10) for n in range(slice_count)])


@given(
    ulid=st.integers(0, 2**128 - 1).map(encode_ulid),
    epoch=st.integers(0, 2**63),
    layout=st.lists(st.tuples(partitions, st.integers(1, 2**40)), min_size=1, max_size=20),
)
def test_a_header_survives_the_round_trip(ulid: str, epoch: int, layout: list[tuple[PartitionId, int]]) -> None:
    position = header_bytes(len(layout))
    slices = []
    for partition, length in layout:
        slices.append(Slice(partition, position, length))
        position += length

    data = encode_header(ObjectId(ulid), epoch, slices)

    assert len(data) == header_bytes(len(slices))
    assert decode_header(data + b"slices", key="test") == WalHeader(ObjectId(ulid), epoch, tuple(slices))


def test_the_bytes_are_those_of_the_picture() -> None:
    data = header()

    assert data[:8] == b"FOREBAYW"
    assert data[8:10] == (1).to_bytes(2, "big")
    assert data[10:12] == (1).to_bytes(2, "big")
    assert data[12:16] == len(data).to_bytes(4, "big")
    assert data[16:24] == (7).to_bytes(8, "big")
    assert data[24:50] == ID.encode()
    assert data[50:66] == uuid.UUID(int=5).bytes


def test_a_flipped_bit_anywhere_is_noticed() -> None:
    missed = []
    for position in range(len(header(2))):
        data = bytearray(header(2))
        data[position] ^= 1
        with contextlib.suppress(Corrupt, IncompatibleFormat):
            decode_header(bytes(data), key="test")
            missed.append(position)

    assert missed == []


@pytest.mark.parametrize("length", [0, 7, 49, 60, len(header()) - 1])
def test_a_cut_header_is_corrupt(length: int) -> None:
    with pytest.raises(Corrupt):
        decode_header(header()[:length], key="test")


def test_a_newer_format_is_told_apart_from_damage() -> None:
    data = bytearray(header())
    data[9] = 2

    with pytest.raises(IncompatibleFormat, match="format 2"):
        decode_header(bytes(data), key="test")


def test_keys_sort_as_ids_do() -> None:
    ids = [ObjectId(encode_ulid(n << 70)) for n in range(0, 1 << 50, 1 << 43)]

    assert sorted(map(object_key, ids)) == [object_key(ulid) for ulid in ids]
