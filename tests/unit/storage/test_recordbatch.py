"""Record batch v2: header, CRC, stamps."""

import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from storage import recordbatch
from storage.errors import Corrupt
from tests.kit.batches import batch_bytes


def test_the_header_is_read_by_the_picture() -> None:
    data = batch_bytes(3, producer_id=9, producer_epoch=2, first_seq=7, max_timestamp=1_234)

    header = recordbatch.parse_header(data)
    assert header.size_bytes == len(data)
    assert (header.magic, header.record_count, header.last_offset_delta) == (2, 3, 2)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.max_timestamp) == (9, 2, 7, 1_234)
    assert recordbatch.checksum(data) == header.crc


@given(st.integers(0, 2**63 - 1), st.binary(max_size=100))
def test_an_offset_is_stamped_without_touching_what_the_crc_covers(offset: int, payload: bytes) -> None:
    data = batch_bytes(2, payload=payload)
    before = bytes(data)

    recordbatch.restamp(data, 0, offset)

    header = recordbatch.parse_header(data)
    assert (header.base_offset, header.partition_leader_epoch) == (offset, 0)
    assert data[16:] == before[16:]
    recordbatch.verify(data, header, where="test")


def test_log_append_time_is_marked_and_covered_by_a_new_crc() -> None:
    data = batch_bytes(2, max_timestamp=5)

    recordbatch.stamp_log_append_time(memoryview(data), 99)

    header = recordbatch.parse_header(data)
    assert header.max_timestamp == 99
    assert header.attributes & recordbatch.ATTRIBUTE_LOG_APPEND_TIME
    recordbatch.verify(data, header, where="test")


@pytest.mark.parametrize("position", [8, 16, 17, 21, 60, 61])
def test_damage_is_noticed(position: int) -> None:
    data = batch_bytes(2)
    data[position] ^= 0x40

    with pytest.raises(Corrupt):
        recordbatch.verify(data, recordbatch.parse_header(data), where="test")


def test_the_crc_is_that_of_the_bytes_from_21_on() -> None:
    data = batch_bytes(1)

    assert struct.unpack_from(">I", data, 17) == (crc32c(bytes(data[21:])),)
