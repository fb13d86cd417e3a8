"""Records inside batches: walked, decompressed within bounds."""

import contextlib

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import records
from storage.errors import Corrupt
from storage.recordbatch import parse_header
from storage.records import decompressed, walk
from tests.unit.storage.log.batches import batch_bytes
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

    assert bytes(decompressed(bytes(COMPRESS[codec](body)), codec)) == body


def test_snappy_in_blocks_as_java_writes_it() -> None:
    block = bytes(cramjam.snappy.compress_raw(b"a" * 1_000))
    framed = b"\x82SNAPPY\x00" + b"\x00\x00\x00\x01" * 2 + (len(block).to_bytes(4, "big") + block) * 3

    assert bytes(decompressed(framed, 2)) == b"a" * 3_000


@pytest.mark.parametrize("codec", COMPRESS)
def test_a_small_body_that_claims_to_be_huge_is_corrupt(codec: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "DECOMPRESSED_BYTES_MAX", 50_000)
    monkeypatch.setattr(records, "_DECOMPRESSED_TRIES_BYTES", (10_000, 50_000))
    bomb = bytes(COMPRESS[codec](bytes(10_000_000)))

    with pytest.raises(Corrupt, match=r"more than|claim"):
        decompressed(bomb, codec)


@given(st.binary(max_size=200), st.integers(0, 7))
def test_any_bytes_are_walked_or_corrupt(payload: bytes, codec: int) -> None:
    batch = batch_bytes(3, payload=payload)
    header = parse_header(batch)._replace(attributes=codec)

    with contextlib.suppress(Corrupt):
        assert len(list(walk(batch, header))) == 3
