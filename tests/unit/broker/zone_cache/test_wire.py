"""A broker takes nothing for a request for a block, or for its answer, but what another broker of its cluster made."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.zone_cache.wire import (
    CLOCKS_DIFFER_MS_MAX,
    NONCE,
    NONCE_BYTES,
    PATH,
    SIGNATURE,
    TIME,
    BlockRange,
    block_of,
    checksum_of,
    is_signed,
    is_trailer,
    signed_headers,
    target_of,
    trailer_of,
)
from storage.formats.segment import segment_key
from storage.formats.wal import object_key
from storage.limits import BLOCK_BYTES
from storage.vocabulary import ObjectId, PartitionId, TopicId

ULID = "01JGFJJZ005591T038X855YAFS"
WAL = object_key(ObjectId(ULID))
SEGMENT = segment_key(PartitionId(TopicId("8e66447a-4af2-46f2-9663-5c2cb2777f87"), 3), ObjectId(ULID))
NOW_MS = 1_764_000_000_000
SECRET = os.urandom(32)
TARGET = target_of(BlockRange(WAL, 0, 100))


def headers(secret: bytes = SECRET, target: str = TARGET, now_ms: int = NOW_MS) -> dict[str, str]:
    return signed_headers(secret, target, now_ms=now_ms, nonce=os.urandom(NONCE_BYTES))


@given(st.sampled_from([WAL, SEGMENT]), st.integers(0, 100), st.integers(0, BLOCK_BYTES - 1), st.integers(1, BLOCK_BYTES))
def test_a_part_of_a_block_is_read_back_from_its_target(key: str, number: int, start: int, size: int) -> None:
    block = BlockRange(key, number * BLOCK_BYTES + start, number * BLOCK_BYTES + min(BLOCK_BYTES, start + size))

    assert block_of(target_of(block)) == block


@pytest.mark.parametrize(
    ("key", "start", "end"),
    [
        (WAL, 0, BLOCK_BYTES + 1),
        (WAL, BLOCK_BYTES - 1, BLOCK_BYTES + 1),
        (WAL, 5, 5),
        (WAL, 5, 4),
        (WAL, 0, 10**11),
        (f"../{WAL}", 0, 1),
        (f"{WAL}/..", 0, 1),
        (f"/{WAL}", 0, 1),
        (f"{WAL}%00", 0, 1),
        ("wal%2f01JGFJ%2f01JGFJJZ005591T038X855YAFS", 0, 1),
        ("wal/../forebay-cluster.json", 0, 1),
        ("forebay-cluster.json", 0, 1),
        (".probe/1", 0, 1),
        (f"wal/01JGFK/{ULID}", 0, 1),
        (SEGMENT.replace("00003", "3"), 0, 1),
        (SEGMENT.replace("00003", "99999999999"), 0, 1),
        ("", 0, 1),
        ("w" * 600, 0, 1),
    ],
)
def test_nothing_else_is_a_block(key: str, start: int, end: int) -> None:
    assert block_of(target_of(BlockRange(key, start, end))) is None


@pytest.mark.parametrize(
    "target",
    [
        PATH,
        f"{PATH}?key={WAL}&start=0",
        f"{TARGET}&start=1",
        f"{TARGET}#1",
        f"{TARGET} ",
        f"/x{TARGET}",
        f"http://broker:8070{TARGET}",
        f"{PATH}?key={WAL}&start=00&end=100",
        f"{PATH}?key={WAL}&start=-1&end=100",
        f"{PATH}?key={WAL}&start=0&end=1e2",
        f"{PATH}?key={WAL}&start=0&end=١",
        f"{PATH}?start=0&end=100&key={WAL}",
    ],
)
def test_a_target_has_one_form(target: str) -> None:
    assert block_of(target) is None


@given(st.text(max_size=200))
def test_any_text_is_judged(text: str) -> None:
    assert block_of(text) is None
    assert not is_signed(SECRET, text, {TIME: text, NONCE: text, SIGNATURE: text}, now_ms=NOW_MS)


def test_a_request_of_the_cluster_is_known_whichever_clock_is_ahead() -> None:
    for skew_ms in (-CLOCKS_DIFFER_MS_MAX, 0, CLOCKS_DIFFER_MS_MAX):
        assert is_signed(SECRET, TARGET, headers(now_ms=NOW_MS + skew_ms), now_ms=NOW_MS)


@pytest.mark.parametrize("skew_ms", [-CLOCKS_DIFFER_MS_MAX - 1, CLOCKS_DIFFER_MS_MAX + 1])
def test_an_old_request_and_one_from_the_future_are_refused(skew_ms: int) -> None:
    assert not is_signed(SECRET, TARGET, headers(now_ms=NOW_MS + skew_ms), now_ms=NOW_MS)


def test_a_signature_is_of_one_secret_target_time_and_nonce() -> None:
    signed = headers()

    assert is_signed(SECRET, TARGET, signed, now_ms=NOW_MS)
    assert not is_signed(os.urandom(32), TARGET, signed, now_ms=NOW_MS)
    assert not is_signed(SECRET, target_of(BlockRange(WAL, 0, 101)), signed, now_ms=NOW_MS)
    assert not is_signed(SECRET, TARGET, signed | {TIME: str(NOW_MS + 1)}, now_ms=NOW_MS)
    assert not is_signed(SECRET, TARGET, signed | {NONCE: "0" * 32}, now_ms=NOW_MS)
    assert not is_signed(SECRET, TARGET, signed | {SIGNATURE: "0" * 64}, now_ms=NOW_MS)
    assert not is_signed(SECRET, TARGET, signed | {SIGNATURE: "\udcff"}, now_ms=NOW_MS)
    assert not is_signed(SECRET, TARGET, {}, now_ms=NOW_MS)


def test_a_trailer_is_of_one_secret_request_and_content() -> None:
    parts = [b"one", b"two"]
    trailer = trailer_of(SECRET, "ab", checksum_of(parts))

    assert is_trailer(SECRET, "ab", [b"onet", b"wo"], trailer), "however it is cut"
    assert not is_trailer(SECRET, "ab", [b"one", b"two!"], trailer)
    assert not is_trailer(SECRET, "ac", parts, trailer)
    assert not is_trailer(os.urandom(32), "ab", parts, trailer)
