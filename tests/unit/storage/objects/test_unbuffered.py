"""File I/O past the page cache: the same bytes as the ordinary way, whatever the lengths."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storage.objects import unbuffered
from storage.objects.unbuffered import ALIGNMENT_BYTES, BUFFER_BYTES, WORTHWHILE_BYTES, read_unbuffered, write_unbuffered

SIZES = st.one_of(st.integers(1, 300), st.integers(100_000, 400_000), st.sampled_from([ALIGNMENT_BYTES, BUFFER_BYTES, BUFFER_BYTES + 1]))


def pattern(size_bytes: int, seed: int) -> bytes:
    return bytes((seed + n * 7) & 0xFF for n in range(256)) * (size_bytes // 256 + 1)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(sizes=st.lists(SIZES, min_size=1, max_size=5), cut=st.tuples(st.floats(0, 1), st.floats(0, 1)))
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
    finally:
        os.close(descriptor)


def test_a_small_body_is_left_to_the_ordinary_way(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    try:
        assert not write_unbuffered(descriptor, [bytes(WORTHWHILE_BYTES - 1)])
    finally:
        os.close(descriptor)


def test_a_file_system_that_refuses_is_written_the_ordinary_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unbuffered, "_O_DIRECT", 0)
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    try:
        assert not write_unbuffered(descriptor, [bytes(WORTHWHILE_BYTES)])
        assert read_unbuffered(descriptor, 0, WORTHWHILE_BYTES) is None
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
