"""File I/O past the page cache: the same bytes as the ordinary way, whatever the lengths."""

import errno
import fcntl
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storage.objects.files import (
    ALIGNMENT_BYTES,
    BUFFER_BYTES,
    PARTS_MAX,
    WORTHWHILE_BYTES,
    read_own_unbuffered,
    read_parts_unbuffered,
    read_unbuffered,
    write_unbuffered,
)
from storage.recordbatch import cut_views

SIZES = st.one_of(st.integers(1, 300), st.integers(100_000, 400_000), st.sampled_from([ALIGNMENT_BYTES, BUFFER_BYTES, BUFFER_BYTES + 1]))


def pattern(size_bytes: int, seed: int) -> bytes:
    return bytes((seed + n * 7) & 0xFF for n in range(256)) * (size_bytes // 256 + 1)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(sizes=st.lists(SIZES, min_size=1, max_size=3), cut=st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_what_is_written_is_what_is_read(tmp_path: Path, sizes: list[int], cut: tuple[float, float]) -> None:
    parts = [pattern(size, n)[:size] for n, size in enumerate(sizes)]
    body = b"".join(parts)
    path = tmp_path / "file"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        written = write_unbuffered(descriptor, parts)
        if not written:
            assert os.fstat(descriptor).st_size == 0, "what was not done left nothing behind"
            os.write(descriptor, body)
        assert path.read_bytes() == body
        start, end = sorted(int(part * len(body)) for part in cut)
        found = read_unbuffered(descriptor, start, end)
        assert found is None or found == body[start:end]
        own = read_own_unbuffered(descriptor, start, end, worthwhile_bytes=1)
        assert (own is None) == (start == end)
        assert own is None or (own == body[start:end] and not own.readonly)
        parts = read_parts_unbuffered(descriptor, start, end, part_bytes=16 * ALIGNMENT_BYTES)
        assert (parts is None) == (end - start < WORTHWHILE_BYTES)
        assert parts is None or b"".join(parts) == body[start:end]
    finally:
        os.close(descriptor)


def test_a_small_body_is_left_to_the_ordinary_way(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    try:
        assert not write_unbuffered(descriptor, [bytes(WORTHWHILE_BYTES - 1)])
    finally:
        os.close(descriptor)


def test_a_file_system_that_refuses_is_written_the_ordinary_way() -> None:
    descriptor = os.open(os.devnull, os.O_RDWR)  # as file systems refuse that have no way past the page cache
    try:
        assert not write_unbuffered(descriptor, [bytes(WORTHWHILE_BYTES)])
        assert read_unbuffered(descriptor, 0, WORTHWHILE_BYTES) is None
        assert read_own_unbuffered(descriptor, 0, WORTHWHILE_BYTES, worthwhile_bytes=1) is None
        assert read_parts_unbuffered(descriptor, 0, WORTHWHILE_BYTES, part_bytes=ALIGNMENT_BYTES) is None
    finally:
        os.close(descriptor)


def test_an_error_is_an_error_not_a_way_out(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"")
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="Bad file descriptor"):
            write_unbuffered(descriptor, [bytes(WORTHWHILE_BYTES)])
    finally:
        os.close(descriptor)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[tuple[int, bytes]]:
    """Its descriptor and what is in it."""
    body = pattern(400_000, 1)[:400_000]
    (tmp_path / "file").write_bytes(body)
    descriptor = os.open(tmp_path / "file", os.O_RDONLY)
    yield descriptor, body
    os.close(descriptor)


def read_in_turns(monkeypatch: pytest.MonkeyPatch, *turns: int | OSError) -> None:
    """Each call reads so many bytes at most, or fails; behind them all is read."""
    preadv, left = os.preadv, list(turns)

    def turn(descriptor: int, buffers: Sequence[memoryview], position: int) -> int:
        bytes_max = left.pop(0) if left else sum(map(len, buffers))
        if isinstance(bytes_max, OSError):
            raise bytes_max
        return preadv(descriptor, cut_views(buffers, 0, bytes_max), position) if bytes_max else 0

    monkeypatch.setattr(os, "preadv", turn)


@pytest.mark.parametrize(
    ("turns", "is_read"),
    [
        ([ALIGNMENT_BYTES, 20 * ALIGNMENT_BYTES], True),
        ([ALIGNMENT_BYTES + 1], False),
        ([ALIGNMENT_BYTES, 0], False),
        ([OSError(errno.EINVAL, "no")], False),
    ],
    ids=["in several turns", "a cut sector", "no more", "refused"],
)
def test_parts_that_come_in_turns_are_whole_or_left_to_the_ordinary_way(
    file: tuple[int, bytes], monkeypatch: pytest.MonkeyPatch, turns: list[int | OSError], is_read: bool
) -> None:
    descriptor, body = file
    read_in_turns(monkeypatch, *turns)
    parts = read_parts_unbuffered(descriptor, 7, 390_001, part_bytes=16 * ALIGNMENT_BYTES)

    assert (None if parts is None else b"".join(parts)) == (body[7:390_001] if is_read else None)
    assert not fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT
    assert parts is None or all(part.readonly for part in parts)


def test_parts_of_a_disk_that_fails_are_an_error(file: tuple[int, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    read_in_turns(monkeypatch, OSError(errno.EIO, "broken"))

    with pytest.raises(OSError, match="broken"):
        read_parts_unbuffered(file[0], 0, WORTHWHILE_BYTES, part_bytes=ALIGNMENT_BYTES)


@pytest.mark.parametrize("part_bytes", [ALIGNMENT_BYTES - 1, ALIGNMENT_BYTES // 2])
def test_parts_that_end_within_a_sector_are_left_to_the_ordinary_way(file: tuple[int, bytes], part_bytes: int) -> None:
    assert read_parts_unbuffered(file[0], 0, WORTHWHILE_BYTES, part_bytes=part_bytes) is None


def test_more_parts_than_one_call_takes_are_left_to_the_ordinary_way(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(PARTS_MAX * ALIGNMENT_BYTES))
    descriptor = os.open(tmp_path / "file", os.O_RDONLY)
    try:
        most = (PARTS_MAX - 1) * ALIGNMENT_BYTES
        assert len(read_parts_unbuffered(descriptor, 0, most, part_bytes=ALIGNMENT_BYTES) or []) == PARTS_MAX - 1
        assert read_parts_unbuffered(descriptor, 0, most + 1, part_bytes=ALIGNMENT_BYTES) is None
    finally:
        os.close(descriptor)
