"""The WAL object's header at rest, and the head and the directory of one whose slices were given their places one by one."""

import contextlib
import uuid

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from runtime.ulid import encode_ulid
from storage.errors import Corrupt, IncompatibleFormat
from storage.formats.wal import (
    HEAD_BYTES,
    HEADER_READ_BYTES,
    Slice,
    WalHeader,
    decode_header,
    directory_of,
    encode_header,
    header_bytes,
    object_key,
    read_header,
)
from storage.vocabulary import ObjectId, PartitionId, TopicId
from tests.kit.early_entries import around

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


def test_a_header_is_these_bytes() -> None:
    assert header().hex() == (
        "464f524542415957000100010000005a0000000000000007"
        "30314a3030303030303030303030303030303030303030303030"
        "00000000000000000000000000000005"
        "00000000"
        "000000000000005a"
        "000000000000000a"
        "e78d3b25"
    )


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
    data[9] = 3

    with pytest.raises(IncompatibleFormat, match="format 3"):
        decode_header(bytes(data), key="test")


def test_keys_sort_as_ids_do() -> None:
    ids = [ObjectId(encode_ulid(n << 70)) for n in range(0, 1 << 50, 1 << 43)]

    assert sorted(map(object_key, ids)) == [object_key(ulid) for ulid in ids]


def early(slice_count: int = 2, *, length: int = 10) -> tuple[bytes, list[Slice]]:
    """An object of format 2, and its slices."""
    topic = TopicId(str(uuid.UUID(int=5)))
    slices = [Slice(PartitionId(topic, n), HEAD_BYTES + n * length, length) for n in range(slice_count)]
    head, directory = around(ID, 7, slices)
    return head + b"s" * (length * slice_count) + directory, slices


@given(
    ulid=st.integers(0, 2**128 - 1).map(encode_ulid),
    epoch=st.integers(0, 2**63),
    layout=st.lists(st.tuples(partitions, st.integers(1, 100)), min_size=1, max_size=20),
)
def test_an_object_with_its_directory_behind_the_slices_survives_the_round_trip(
    ulid: str, epoch: int, layout: list[tuple[PartitionId, int]]
) -> None:
    position = HEAD_BYTES
    slices = []
    for partition, length in layout:
        slices.append(Slice(partition, position, length))
        position += length
    head, directory = around(ObjectId(ulid), epoch, slices)
    body = head + b"s" * (position - HEAD_BYTES) + directory
    expected = WalHeader(ObjectId(ulid), epoch, tuple(slices))

    assert len(head) == HEAD_BYTES
    assert directory_of(head, key="test", size_bytes=len(body)) == (position, len(body))
    assert decode_header(body, key="test") == expected
    assert decode_header(head, key="test", directory=directory) == expected


def test_the_bytes_of_head_and_directory_are_those_of_the_picture() -> None:
    data, _ = early(2)

    assert data[:8] == b"FOREBAYW"
    assert data[8:10] == (2).to_bytes(2, "big")
    assert data[10:12] == bytes(2)
    assert data[12:16] == (2).to_bytes(4, "big")
    assert data[16:24] == (7).to_bytes(8, "big")
    assert data[24:50] == ID.encode()
    assert data[50:58] == (84).to_bytes(8, "big")
    assert data[58:60] == bytes(2)
    assert data[60:64] == crc32c(data[:60]).to_bytes(4, "big")
    assert data[64:84] == b"s" * 20
    assert data[84:100] == uuid.UUID(int=5).bytes
    assert data[100:104] == (0).to_bytes(4, "big")
    assert data[104:112] == (64).to_bytes(8, "big")
    assert data[112:120] == (10).to_bytes(8, "big")
    assert data[120:136] == uuid.UUID(int=5).bytes
    assert data[136:140] == (1).to_bytes(4, "big")
    assert data[140:148] == (74).to_bytes(8, "big")
    assert data[148:156] == (10).to_bytes(8, "big")
    assert data[156:] == crc32c(data[84:156]).to_bytes(4, "big")


def test_an_object_of_format_2_is_these_bytes() -> None:
    assert early(1)[0].hex() == (
        "464f52454241595700020000000000010000000000000007"
        "30314a3030303030303030303030303030303030303030303030"
        "000000000000004a"
        "0000"
        "9e880d2c"
        "73737373737373737373"
        "00000000000000000000000000000005"
        "00000000"
        "0000000000000040"
        "000000000000000a"
        "7925bd3e"
    )


@given(st.data())
def test_a_flipped_byte_of_head_or_directory_is_damage_or_a_newer_format(data: st.DataObject) -> None:
    body, slices = early(3)
    directory_at = HEAD_BYTES + sum(one.length for one in slices)
    position = data.draw(st.one_of(st.integers(0, HEAD_BYTES - 1), st.integers(directory_at, len(body) - 1)))
    changed = bytearray(body)
    changed[position] ^= data.draw(st.integers(1, 255))

    with pytest.raises((Corrupt, IncompatibleFormat)):
        decode_header(bytes(changed), key="test")


@given(st.data())
def test_an_object_that_was_cut_short_or_is_longer_is_corrupt(data: st.DataObject) -> None:
    body, _ = early(3)
    changed = data.draw(st.one_of(st.integers(0, len(body) - 1).map(lambda end: body[:end]), st.binary(min_size=1).map(body.__add__)))

    with pytest.raises(Corrupt):
        decode_header(changed, key="test")


def test_a_head_whose_directory_does_not_fit_the_object_is_corrupt() -> None:
    body, _ = early(3)
    for size_bytes in (len(body) - 1, len(body) + 1, HEAD_BYTES):
        with pytest.raises(Corrupt, match="directory does not fit"):
            directory_of(body[:HEAD_BYTES], key="test", size_bytes=size_bytes)


@pytest.mark.parametrize("by", [-36, -1, 1, 36])
def test_a_directory_of_the_wrong_size_is_corrupt(by: int) -> None:
    body, _ = early(3)
    begin, end = directory_of(body, key="test", size_bytes=len(body))
    directory = body[begin : end + by] if by < 0 else body[begin:end] + bytes(by)

    with pytest.raises(Corrupt, match="directory is cut short"):
        decode_header(body[:HEAD_BYTES], key="test", directory=directory)


def test_a_head_that_is_cut_short_is_corrupt() -> None:
    for length in range(HEAD_BYTES):
        with pytest.raises(Corrupt):
            directory_of(early(1)[0][:length], key="test", size_bytes=len(early(1)[0]))


class Gets:
    """An object, and the ranges of it that were asked for."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.ranges: list[tuple[int, int]] = []

    async def get(self, begin: int, end: int) -> bytes:
        self.ranges.append((begin, end))
        return self.body[begin:end]

    async def read(self, **more: int) -> WalHeader:
        return await read_header(self.get, key="test", size_bytes=len(self.body), **more)


async def test_the_header_of_a_small_object_takes_one_get_in_either_format() -> None:
    body, slices = early(20)
    for gets in (Gets(body), Gets(header(20) + b"s" * 200)):
        found = await gets.read()

        assert (found.object_id, found.broker_epoch) == (ID, 7)
        assert [one.partition for one in found.slices] == [one.partition for one in slices]
        assert gets.ranges == [(0, len(gets.body))]


async def test_a_directory_far_behind_the_slices_takes_a_second_get() -> None:
    body, slices = early(3, length=HEADER_READ_BYTES)
    gets = Gets(body)

    assert (await gets.read()).slices == tuple(slices)
    assert gets.ranges == [(0, HEADER_READ_BYTES), (HEAD_BYTES + 3 * HEADER_READ_BYTES, len(body))]


async def test_a_directory_that_the_first_get_has_in_part_is_read_whole() -> None:
    body, slices = early(3)
    for first_bytes in range(HEAD_BYTES, len(body)):
        gets = Gets(body)
        assert (await gets.read(first_bytes=first_bytes)).slices == tuple(slices)
        assert len(gets.ranges) == 2


async def test_a_header_that_is_longer_than_the_first_get_takes_a_second() -> None:
    data = header(2_000)
    gets = Gets(data + b"s" * 20_000)

    assert len((await gets.read()).slices) == 2_000
    assert gets.ranges == [(0, HEADER_READ_BYTES), (0, len(data))]


async def test_an_object_may_have_more_slices_than_a_header_in_front_could_count() -> None:
    body, slices = early(70_000, length=1)
    gets = Gets(body)

    assert (await gets.read()).slices == tuple(slices)
    assert decode_header(body, key="test").slices == tuple(slices)
    assert len(gets.ranges) == 2


@given(st.data())
async def test_whatever_byte_of_an_object_changed_its_header_is_read_or_refused_as_damage_or_as_newer(data: st.DataObject) -> None:
    body = early(3)[0] if data.draw(st.booleans()) else header(3) + b"s" * 30
    changed = bytearray(body)
    changed[data.draw(st.integers(0, len(body) - 1))] ^= data.draw(st.integers(1, 255))

    with contextlib.suppress(Corrupt, IncompatibleFormat):
        found = await Gets(bytes(changed)).read(first_bytes=data.draw(st.integers(HEAD_BYTES, 300)))
        assert (found.object_id, found.broker_epoch, len(found.slices)) == (ID, 7, 3)
